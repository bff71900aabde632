"""The rules of the design, read from the sources: who may import what, and in which direction.

Each rule is a function from sources to what breaks it; beside each stands a test that shows it
catching a made-up violation.
"""

import ast
import functools
import sys

import pytest

from stackyard.project import ROOT

# One direction (docs/design.md): definitions are loaded, resolved, rendered and planned; an image
# is launched in a mesh; what was seen is judged and reported; then the edges that do it, and the
# commands that put it together. A module imports only what stands before it.
ORDER = [
    "",  # the package itself
    # values and small tools
    "errors", "spec", "image", "archive", "template", "positional",
    # users' own code
    "source", "source_tree",
    # *.yml --load--> specs; reading checks a smoke against the table of launchers
    "document", "compat", "lock", "lock_change",
    "launch.request", "launch.everywhere", "launch.alone", "launch.torchrun", "launch.deepspeed",
    "launch.accelerate", "launch.plain", "launch.each", "launch",
    "read_smoke", "read_left_out", "read", "read_fix", "failures", "references", "load", "project",
    # specs --catalog--> ResolvedImage --dockerfile, plan--> BuildPlan
    "catalog", "upstream", "dockerfile", "plan", "fork", "source_fit", "hostfiles",
    # layers --contents--> what is installed --> bill of materials, size report
    "layer_stream", "layer", "contents", "installed", "sbom", "sizes",
    # layers and configuration of an image --gate--> what must not be published
    "caller", "gate_rules", "gate_tokens", "gate_content", "gate_stream", "gate_allowed", "gate",
    # Run --> raw logs --judge--> Outcome --> report
    "placement", "access", "nccl", "fused", "checks", "doctor",
    "job", "mesh", "record", "judge_gpu", "judge", "outcome", "diagnose", "report",
    "comparison", "comparison_view", "earlier", "page",
    "bench", "bench.definition", "bench.flops", "bench.read", "bench.plan", "bench.result",
    "bench.judge", "bench.report",
    "prove", "prove.plan", "prove.judge", "prove.report", "prove.page",
    "examples", "read_example", "dataset", "job_source", "fleet", "fleet.hosts", "fleet.mounts",
    "fleet.survey", "fleet.plan", "fleet.jobs", "own_copy",
    # releases: manifests, statements, what travels to hosts
    "oci", "release", "evidence", "parcel", "fleet.relay",
    # jobs as objects and scripts of engines that are there already
    "clusters",
    "clusters.kubernetes_yaml", "clusters.kubernetes_site", "clusters.kubernetes_start",
    "clusters.kubernetes_pod", "clusters.kubernetes", "clusters.kubernetes_state",
    "clusters.slurm_site", "clusters.slurm", "clusters.slurm_state", "site_file",
    # the edges
    "guard", "exclusive", "process", "source_read", "settings",
    "stream", "engine", "lease", "follow", "warden",
    "bundle", "resolve", "fetch", "foundation", "build", "hostbase", "host",
    "clusters.kubernetes_client", "clusters.slurm_client", "cluster_engine",
    # BuildPlan --engine--> Image --launch, mesh--> Run
    "nodes", "gpus", "measure", "gpu_run", "watch", "training", "smoke",
    "bench.play",
    "prove.play",
    # machines over ssh, and runs that live on several of them
    "fleet.link", "fleet.talk", "fleet.standing", "fleet.muster", "fleet.sync", "fleet.runs",
    "fleet.owner",
    # Image --publish--> release --pull--> the same digest on every host
    "credentials", "registry", "signing", "vouch", "spool", "layer_source", "verify", "publish",
    "releasing", "airgap", "fleet.receiver", "fleet.inspect", "fleet.pull", "fleet.prune",
    # arguments in, terminal and exit code out
    "tables", "console", "builder", "locking", "outdated", "smokes", "commands", "cli", "cli_lock",
    "cli_compare", "cli_source", "cli_smoke", "cli_doctor",
    "fleet_view", "cli_hosts", "cli_mount", "cli_fleet", "cli_examples", "cluster_job",
    "cli_clusters",
    "release_view", "cli_release", "cli_pull", "cli_evidence", "cli_bench", "cli_prove",
    "data_run", "cli_data",
]  # fmt: skip

PURE = [
    "spec", "errors", "document", "read", "failures", "references", "load", "compat", "lock",
    "lock_change", "upstream", "source", "source_tree", "source_fit", "fork",
    "catalog", "diagnose", "dockerfile", "plan", "hostfiles", "launch", "launch.request",
    "launch.alone", "launch.torchrun", "launch.deepspeed", "launch.accelerate",
    "dataset",
    "oci", "release", "evidence", "parcel", "fleet.relay", "launch.everywhere", "job", "mesh",
    "record",
    "judge", "judge_gpu", "checks", "placement",
    "access",
    "nccl", "fused", "read_smoke", "read_left_out", "doctor", "outcome", "image", "report", "page",
    "comparison", "comparison_view", "earlier",
    "archive", "template", "positional",
    "clusters.kubernetes", "clusters.kubernetes_pod", "clusters.kubernetes_site",
    "clusters.kubernetes_start", "clusters.kubernetes_state", "clusters.kubernetes_yaml",
    "clusters.slurm", "clusters.slurm_site", "clusters.slurm_state", "site_file",
    "examples", "read_example", "own_copy", "fleet.hosts", "fleet.mounts", "fleet.survey",
    "fleet.plan", "fleet.jobs", "launch.plain",
    "launch.each", "layer_stream", "layer", "contents", "installed", "sbom", "sizes",
    "caller", "gate_rules", "gate_tokens", "gate_content", "gate_stream", "gate_allowed", "gate",
    "bench.definition", "bench.flops", "bench.plan", "bench.result", "bench.judge", "bench.report",
    "read_fix", "prove.plan", "prove.judge", "prove.report", "prove.page",
]  # fmt: skip

# The one module that may import each.
ALONE = {"subprocess": "process", "docker": "engine", "jinja2": "template"}
# The SDK is also what reads `docker login`'s store, which has nothing to do with an engine.
ALSO = {("credentials", "docker")}
WORLD = {"docker", "subprocess", "time", "datetime"}
# Programs in nodes import each other by their own names.
BESIDE = {"strays", "lease", "job", "client", "launcher", "members", "apply_fixes"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}
STARTING = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve",
            "execvp", "execvpe", "execl", "execlp", "spawnv", "spawnl", "spawnvp"}  # fmt: skip


def sources(inside):
    """Sources of the package by dotted name, either what runs here or what runs in containers."""
    folder = ROOT / "stackyard"
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if ("inside" in parts) == inside:
            found[".".join(part for part in parts if part != "__init__")] = path.read_text()
    return found


HERE, INSIDE = sources(False), sources(True)


# Reading imports


@functools.cache
def _nodes(source):
    return list(ast.walk(ast.parse(source)))


@functools.cache
def _named(source):
    """Every (module, name or None) that a source imports, wherever in it that stands."""
    return list(_imports(source))


def _imports(source):
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("__import__", "import_module"):
            first = node.args[0] if node.args else None
            known = isinstance(first, ast.Constant) and isinstance(first.value, str)
            yield (first.value if known else "?", None)


def _called(node):
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def imported(source, package):
    """The modules of the package that a source imports, as dotted names within it."""
    found = set()
    for module, name in _named(source):
        if module.partition(".")[0] != "stackyard":
            continue
        inner = module.removeprefix("stackyard").removeprefix(".")
        below = ".".join(part for part in (inner, name) if part)
        found.add(below if below in package else inner)
    return found


def foreign(source):
    """The top-level names of everything else that a source imports."""
    return {module.partition(".")[0] or module for module, _ in _named(source)} - {"stackyard"}


def uses_of_os(source, names):
    """Those of `names` that a source takes from os."""
    attributes = {
        node.attr
        for node in _nodes(source)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "os"
    }
    taken = {name for module, name in _named(source) if module == "os"}
    return (attributes | taken) & names


# The rules: each gives what breaks it


def imported_elsewhere(package):
    return [
        f"{name} imports {what}, which only {alone} may"
        for name, source in package.items()
        for what, alone in ALONE.items()
        if what in foreign(source) and name != alone and (name, what) not in ALSO
    ]


def started_elsewhere(package):
    return [
        f"{name} uses os.{what}"
        for name, source in package.items()
        for what in sorted(uses_of_os(source, STARTING))
    ]


def reached(name, package):
    """A module and everything of the package that it imports, however far away."""
    found, open_ = set(), [name]
    while open_:
        name = open_.pop()
        if name not in found and name in package:
            found.add(name)
            open_ += imported(package[name], package)
    return found


def worldly(package, pure):
    """What pure modules see of the world, themselves or through what they import."""
    found = []
    for name in pure:
        for through in sorted(reached(name, package)):
            source = package[through]
            seen = sorted(WORLD & foreign(source))
            seen += [f"os.{what}" for what in sorted(uses_of_os(source, ENVIRONMENT))]
            by = "" if through == name else f" by way of {through}"
            found += [f"{name} sees {what}{by}" for what in seen]
    return found


def backwards(package, order):
    found = [f"{name} has no place in the order" for name in package if name not in order]
    found += [f"{name} stands in the order and is not there" for name in order
              if name not in package]  # fmt: skip
    for name in set(package) & set(order):
        for other in imported(package[name], package):
            if other not in order[: order.index(name)]:
                found.append(f"{name} imports {other or 'stackyard'}, which comes later")
    return sorted(found)


def cycle(package):
    """The first cycle of imports, as the names on it; empty when there is none."""

    def walk(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        for other in sorted(imported(package.get(name, ""), package) - done):
            found = walk(other, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    done = set()
    return next((found for name in sorted(package) if (found := walk(name, []))), [])


def undocumented(package):
    return [name for name, source in package.items() if not ast.get_docstring(ast.parse(source))]


def beyond_the_library(package):
    found = []
    for name, source in package.items():
        # What lies beside a program in the image is there for it, too.
        others = foreign(source) - set(sys.stdlib_module_names) - BESIDE
        own = {"stackyard"} if any(m.startswith("stackyard") for m, _ in _named(source)) else set()
        found += [f"{name} imports {other}" for other in sorted(others | own)]
    return found


def relative(package):
    return [name for name, source in package.items()
            if any(module.startswith(".") for module, _ in _named(source))]  # fmt: skip


# This project keeps them


def test_the_sources_were_found():
    assert {"spec", "launch", "launch.torchrun", "cli"} <= set(HERE)
    assert {"inside.node", "inside.strays"} <= set(INSIDE)


def test_each_edge_library_has_one_importer():
    assert imported_elsewhere(HERE) == []
    assert [what for what, alone in ALONE.items() if what not in foreign(HERE[alone])] == []


def test_nothing_but_process_starts_processes():
    assert started_elsewhere(HERE) == []


def test_pure_modules_see_no_engine_process_environment_or_clock():
    assert [name for name in PURE if name not in HERE] == []
    assert worldly(HERE, PURE) == []


def test_no_module_imports_a_later_one():
    assert backwards(HERE, ORDER) == []


def test_imports_have_no_cycle():
    assert cycle(HERE) == []


def test_every_module_says_what_it_owns():
    assert undocumented({**HERE, **INSIDE, "tasks": (ROOT / "tasks.py").read_text()}) == []


def test_what_runs_in_containers_needs_the_standard_library_only():
    assert beyond_the_library(INSIDE) == []


def test_imports_are_written_in_full():
    assert relative(HERE) == []


# Each rule catches what it is for


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import subprocess", ["plan imports subprocess, which only process may"]),
        ("import subprocess as s", ["plan imports subprocess, which only process may"]),
        ("def f():\n    from subprocess import run", ["plan imports subprocess, which only"
                                                    " process may"]),
        ("import docker.errors", ["plan imports docker, which only engine may"]),
        ("from jinja2 import Template", ["plan imports jinja2, which only template may"]),
        ("import importlib\nimportlib.import_module('docker')",
         ["plan imports docker, which only engine may"]),
        ("__import__('docker')", ["plan imports docker, which only engine may"]),
        ("import json\nfrom stackyard import process", []),
        ("'import subprocess'  # import docker", []),
    ],
)  # fmt: skip
def test_a_second_importer_of_an_edge_library_is_caught(source, found):
    assert imported_elsewhere({"plan": source}) == found


def test_the_importer_that_may_is_not_caught():
    may = {alone: f"import {what}" for what, alone in ALONE.items()}
    assert imported_elsewhere(may) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.system('x')", ["plan uses os.system"]),
        ("from os import execv", ["plan uses os.execv"]),
        ("import os\nos.getpid()", []),
    ],
)
def test_a_process_started_past_subprocess_is_caught(source, found):
    assert started_elsewhere({"plan": source}) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", ["plan sees time"]),
        ("from datetime import date", ["plan sees datetime"]),
        ("import docker", ["plan sees docker"]),
        ("import os\nx = os.environ['A']", ["plan sees os.environ"]),
        ("from os import getenv", ["plan sees os.getenv"]),
        ("import os.path", []),
        ("from stackyard import lock", ["plan sees time by way of lock"]),
        ("from stackyard.far import x", ["plan sees time by way of lock"]),
        ("def f():\n    import stackyard.lock", ["plan sees time by way of lock"]),
        ("import math", []),
    ],
)
def test_a_pure_module_that_sees_the_world_is_caught(source, found):
    package = {"plan": source, "lock": "import time", "far": "from stackyard.lock import y"}
    assert worldly(package, ["plan"]) == found


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ({"a": "", "b": "from stackyard import a"}, []),
        ({"a": "from stackyard import b", "b": ""}, ["a imports b, which comes later"]),
        ({"a": "from stackyard.b import x", "b": ""}, ["a imports b, which comes later"]),
        ({"a": "import stackyard.b", "b": ""}, ["a imports b, which comes later"]),
        ({"a": "from stackyard import a", "b": ""}, ["a imports a, which comes later"]),
        ({"a": "", "b": "", "c": ""}, ["c has no place in the order"]),
        ({"a": ""}, ["b stands in the order and is not there"]),
    ],
)
def test_a_module_that_looks_ahead_is_caught(package, found):
    assert backwards(package, ["a", "b"]) == found


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ({"a": "from stackyard import b", "b": ""}, []),
        ({"a": "from stackyard import b", "b": "from stackyard import a"}, ["a", "b", "a"]),
        ({"a": "", "b": "from stackyard import c", "c": "from stackyard.d import x",
          "d": "import stackyard.b"}, ["b", "c", "d", "b"]),
        ({"a": "from stackyard import b, c", "b": "from stackyard import c", "c": ""}, []),
    ],
)  # fmt: skip
def test_a_cycle_is_caught(package, found):
    assert cycle(package) == found


def test_a_module_without_docstring_is_caught():
    assert undocumented({"a": '"""Owns a."""', "b": "x = 1", "c": "# words\n'' "}) == ["b", "c"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import json, os.path", []),
        ("import torch", ["inside.x imports torch"]),
        ("def f():\n    import numpy.linalg", ["inside.x imports numpy"]),
        ("from stackyard import spec", ["inside.x imports stackyard"]),
        ("import yaml\nimport stackyard", ["inside.x imports stackyard", "inside.x imports yaml"]),
    ],
)
def test_what_a_container_may_lack_is_caught(source, found):
    assert beyond_the_library({"inside.x": source}) == found


def test_a_relative_import_is_caught():
    assert relative({"a": "from . import b", "b": "from .c import d", "c": "import d"}) == [
        "a",
        "b",
    ]
