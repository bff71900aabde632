"""The rules of the design, read from the sources: who may import what, and in which direction.

Each rule is a function from sources to what breaks it; beside each stands a test that shows it
catching a made-up violation.
"""

import ast
import functools
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from stackyard.definitions.project import ROOT
from tests.unit.test_language import project_files

pytestmark = pytest.mark.once
# The order of rooms: a module imports only its own room and those before it.
ROOMS = [
    "system", "launch", "definitions", "gpu", "build", "scan", "mesh", "schedulers", "data",
    "validate", "report", "release", "cli",
]  # fmt: skip

PURE = [
    "system.archive", "system.chunks", "system.errors", "system.image", "system.template", "launch",
    "launch.accelerate", "launch.accelerate_config", "launch.alone", "launch.deepspeed",
    "launch.deepspeed_config", "launch.each", "launch.everywhere", "launch.job", "launch.plain",
    "launch.request", "launch.settings", "launch.torchrun", "definitions.compat",
    "definitions.document", "definitions.examples", "definitions.load", "definitions.lock",
    "definitions.read.baseline",
    "definitions.read.example", "definitions.read.failures", "definitions.read.files",
    "definitions.read.fix", "definitions.read.left_out", "definitions.read.smoke",
    "definitions.references", "definitions.spec", "gpu.access", "gpu.doctor", "gpu.fused",
    "gpu.health", "gpu.infiniband", "gpu.nccl", "gpu.placement",
    "gpu.transport",
    "build.base_host_files", "build.catalog", "build.dockerfile",
    "build.locks.change", "build.locks.upstream", "build.recipe", "build.source.fit",
    "build.source.fork", "build.source.naming", "build.source.tree", "scan.contents",
    "scan.difference", "scan.installed", "scan.layer", "scan.layer_stream",
    "scan.mirror_traces", "scan.oci",
    "scan.sbom", "scan.secrets.allowed", "scan.secrets.content", "scan.secrets.gate",
    "scan.secrets.parts", "scan.secrets.rules", "scan.secrets.tokens", "scan.sizes",
    "mesh.again", "mesh.certificates", "mesh.example_copy", "mesh.hosts", "mesh.jobs",
    "mesh.mounts", "mesh.node", "mesh.node_plan", "mesh.settings", "mesh.survey",
    "schedulers.fitting",
    "schedulers.kubernetes",
    "schedulers.kubernetes_pod", "schedulers.kubernetes_site", "schedulers.kubernetes_start",
    "schedulers.kubernetes_state", "schedulers.kubernetes_yaml", "schedulers.site",
    "schedulers.entering", "schedulers.slurm", "schedulers.slurm_site", "schedulers.slurm_steps",
    "schedulers.slurm_state", "data.dataset", "data.sharded",
    "validate.bench.definition", "validate.bench.flops",
    "validate.bench.judge", "validate.bench.plan", "validate.bench.result",
    "validate.certify.compare", "validate.certify.group", "validate.certify.judge",
    "validate.certify.links", "validate.certify.plan", "validate.certify.record",
    "validate.certify.search",
    "validate.checks",
    "validate.diagnose", "validate.judge", "validate.judge_gpu", "validate.judge_mesh",
    "validate.outcome", "validate.judge_training", "validate.prove.judge",
    "validate.prove.plan", "validate.record", "report.bench", "report.certify",
    "report.chart", "report.comparison", "report.comparison_view", "report.earlier",
    "report.evidence", "report.figures",
    "report.page", "report.prove", "report.prove_page", "report.records", "release.parcel",
    "release.recipe_record", "release.relay", "release.statement", "cli.option",
    "cli.options.images",
    "cli.options.releases", "cli.options.runs", "cli.options.trainings", "cli.parser",
]  # fmt: skip

# The one module, or the modules of the one folder, that may import each.
ALONE = {"subprocess": "system.process", "docker": "system.engine", "jinja2": "system.template"}
# The SDK is also what reads `docker login`'s store, which has nothing to do with an engine.
ALSO = {("release.credentials", "docker")}
WORLD = {"docker", "subprocess", "time", "datetime"}
# Programs in nodes import each other by their own names.
BESIDE = {"strays", "line", "job", "client", "step", "members", "stacks", "hang", "watched",
          "apply_fixes"}  # fmt: skip
# What a program in nodes takes from its image, where a rank asks for it: torch's writer.
OF_THE_IMAGE = {("inside.stackyard_record", "torch")}
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
# What nothing imports: programs of images and their data, benchmarks and scripts.
OTHERS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in project_files() if path.relative_to(ROOT).parts[0] != "stackyard"
}  # fmt: skip


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
        if what in foreign(source)
        and not f"{name}.".startswith(f"{alone}.")
        and (name, what) not in ALSO
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


def room(name):
    """The room of a module: the first of its names; empty for the package itself."""
    return name.partition(".")[0]


def backwards(package, rooms):
    found = [f"{name} stands in no room" for name in package if name and room(name) not in rooms]
    found += [f"room {one} is empty" for one in rooms if one not in map(room, package)]
    for name in (name for name in package if room(name) in rooms):
        for other in imported(package[name], package):
            if room(other) not in ("", *rooms[: rooms.index(room(name)) + 1]):
                found.append(f"{name} imports {other}, which comes later")
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


LONG_MODULE, LONG_FUNCTION = 300, 60


def too_long(package):
    """Modules over 300 lines that do not say why, and functions over 60."""
    found = []
    for name, source in package.items():
        said = ast.get_docstring(ast.parse(source)) or ""
        if source.count("\n") > LONG_MODULE and f"Over {LONG_MODULE} lines:" not in said:
            found.append(name)
        functions = [node for node in _nodes(source) if isinstance(node, ast.FunctionDef)]
        long = [one for one in functions if one.end_lineno - one.lineno >= LONG_FUNCTION]
        found += [f"{name}.{one.name}" for one in long]
    return found


def undocumented(package):
    return [name for name, source in package.items() if not ast.get_docstring(ast.parse(source))]


def beyond_the_library(package):
    found = []
    for name, source in package.items():
        # What lies beside a program in the image is there for it, too.
        others = foreign(source) - set(sys.stdlib_module_names) - BESIDE
        own = {"stackyard"} if any(m.startswith("stackyard") for m, _ in _named(source)) else set()
        found += [f"{name} imports {other}" for other in sorted(others | own)
                  if (name, other) not in OF_THE_IMAGE]  # fmt: skip
    return found


def relative(package):
    return [name for name, source in package.items()
            if any(module.startswith(".") for module, _ in _named(source))]  # fmt: skip


# This project keeps them


def test_the_sources_were_found():
    assert {"definitions.spec", "launch", "launch.torchrun", "cli.command"} <= set(HERE)
    assert {"inside.node", "inside.strays"} <= set(INSIDE)
    assert {"tasks.py", "scripts/rooms", "images/data/prepare.py"} <= set(OTHERS)


def test_each_edge_library_has_one_importer():
    assert imported_elsewhere(HERE) == []
    for what, alone in ALONE.items():
        inside = [s for name, s in HERE.items() if f"{name}.".startswith(f"{alone}.")]
        assert any(what in foreign(source) for source in inside), what


def test_nothing_but_process_starts_processes():
    assert started_elsewhere(HERE) == []


def test_pure_modules_see_no_engine_process_environment_or_clock():
    assert [name for name in PURE if name not in HERE] == []
    assert worldly(HERE, PURE) == []


def test_no_module_imports_a_later_room():
    assert backwards(HERE, ROOMS) == []


def test_the_picture_of_the_rooms_is_of_todays_imports(allow_processes):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "rooms", "--check"], capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_tests_of_every_room_are_collected(pytestconfig):
    """pytest has names of folders that it passes over; one of them was a room's."""
    passed_over = pytestconfig.getini("norecursedirs")
    assert not [one for one in ROOMS if any(fnmatch(one, pattern) for pattern in passed_over)]


def test_imports_have_no_cycle():
    assert cycle(HERE) == []


def test_long_modules_say_why_and_no_function_is_long():
    assert too_long({**HERE, **INSIDE, **OTHERS}) == []


def test_every_module_says_what_it_owns():
    assert undocumented({**HERE, **INSIDE, **OTHERS}) == []


def test_what_runs_in_containers_needs_the_standard_library_only():
    assert beyond_the_library(INSIDE) == []


def test_imports_are_written_in_full():
    assert relative(HERE) == []


# Each rule catches what it is for


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import subprocess", ["plan imports subprocess, which only system.process may"]),
        ("import subprocess as s", ["plan imports subprocess, which only system.process may"]),
        ("def f():\n    from subprocess import run", ["plan imports subprocess, which only"
                                                    " system.process may"]),
        ("import docker.errors", ["plan imports docker, which only system.engine may"]),
        ("from jinja2 import Template", ["plan imports jinja2, which only system.template may"]),
        ("import importlib\nimportlib.import_module('docker')",
         ["plan imports docker, which only system.engine may"]),
        ("__import__('docker')", ["plan imports docker, which only system.engine may"]),
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
        ({"a.x": "from stackyard.a import y", "a.y": "", "b.z": "from stackyard.a import x"}, []),
        ({"a": "", "a.x": "from stackyard.b import z", "b.z": ""},
         ["a.x imports b.z, which comes later"]),
        ({"a.x": "from stackyard.b.z import q", "b.z": ""}, ["a.x imports b.z, which comes later"]),
        ({"a.x": "import stackyard.b.z", "b.z": ""}, ["a.x imports b.z, which comes later"]),
        ({"": "", "a": "import stackyard", "b": ""}, []),
        ({"a": "", "b": "", "c": ""}, ["c stands in no room"]),
        ({"a": ""}, ["room b is empty"]),
    ],
)  # fmt: skip
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


def test_what_is_too_long_is_caught():
    lines = "x = 1\n" * 60
    body = lines.replace("x", "    x")
    package = {
        "long": lines * 6,
        "said": f'"""Owns x.\n\nOver 300 lines: a table.\n"""\n{lines * 6}',
        "short": f"def f():\n{body[:-10]}",
        "f": f"def f():\n{body}",
    }
    assert too_long(package) == ["long", "f.f"]


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
