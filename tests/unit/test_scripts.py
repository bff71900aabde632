"""Every text that a shell will read is whole, for that shell and for a linter.

Texts are found, not listed: files of the project, everything that templates of shell make, the
steps of Dockerfiles, what modules hand to a shell, and the commands of definitions.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from stackyard.build import dockerfile
from stackyard.build.catalog import resolve
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT
from stackyard.schedulers.kubernetes_site import STARTING
from stackyard.system import template
from stackyard.validate import slurm_plan
from stackyard.validate.prove import plan as prove_plan
from tests.golden import test_slurm as slurm_samples
from tests.unit import benches, kubernetes_jobs, slurm_smokes
from tests.unit.build import test_source_fork as test_fork
from tests.unit.mesh import test_example_copy as test_own_copy

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("allow_processes")]

# What is made, not written: environments, caches, reports.
SKIPPED = {".git", "__pycache__", "reports", "node_modules", "results"}
SHEBANG = re.compile(r"#!.*\b(bash|sh)\b")
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}
OPTION = re.compile(r"-[a-z]*c")
SHELLCHECK = Path(sys.executable).parent / "shellcheck"


# The two judges


def unread(shell, text):
    """What the shell says of a text that it only parses; empty where it is whole."""
    done = subprocess.run(
        [shell, "-n"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    # A text within a text that lacks its end is a warning, and the code is 0.
    return done.stderr.strip() or ("" if done.returncode == 0 else f"exit code {done.returncode}")


def linted(folder, shell, texts, *more):
    """What shellcheck says of texts by name."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    # SC2016 is about `$` in single quotes: values are quoted so that nothing is expanded.
    command = [SHELLCHECK, "--format=gcc", "--exclude=SC2016", f"--shell={shell}", *more, *texts]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def shell_of(text):
    """Which shell a script is for; POSIX sh where it does not say."""
    found = SHEBANG.match(text)
    return found[1] if found else "sh"


@pytest.mark.parametrize(
    ("shell", "text"),
    [
        ("bash", "for x in 1 2; do\n  echo $x\n"),
        ("sh", "if true; then echo; \n"),
        ("sh", "echo 'a\n"),
        ("bash", "cat <<'END'\nEN\n"),
    ],
)
def test_a_text_that_is_not_whole_is_noticed(shell, text):
    assert unread(shell, text)
    assert not unread("bash", "x=(1 2)\ncat <<'END'\nEND\n")


def test_what_a_linter_holds_against_a_text_is_noticed(tmp_path):
    said = linted(tmp_path, "sh", {"good": "echo a\n", "bad": "rm $1\nx=(1 2)\n"})
    assert "SC2086" in said and "SC3030" in said and "good" not in said


# Files of the project


def files(matches):
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in set(folders) - SKIPPED if not f.startswith(".venv"))
        found += [Path(folder) / name for name in sorted(names) if matches(Path(folder) / name)]
    return [path.relative_to(ROOT).as_posix() for path in found]


def is_script(path):
    if path.suffix == ".sh":
        return True
    with path.open("rb") as file:
        return not path.suffix and bool(SHEBANG.match(file.readline(200).decode("latin-1")))


SCRIPTS = files(is_script)
DOCKERFILES = files(lambda path: path.name.endswith("Dockerfile"))


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_of_the_project_is_whole(path, tmp_path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert unread(shell_of(text), text) == ""
    assert linted(tmp_path, shell_of(text), {"script": text}) == ""


def test_scripts_of_the_project_are_found():
    assert {"scripts/test", "stackyard/mesh/survey.sh", "benchmarks/run"} <= set(SCRIPTS)


# What templates make


@functools.cache
def made():
    """Texts of each template, as the tests of what they are for have them made."""
    found = {}
    render = template.render

    def kept(name, values, **more):
        text = render(name, values, **more)
        found.setdefault(name, {})[text] = None
        return text

    with mock.patch.object(template, "render", kept):
        for name in slurm_samples.SITES:
            list(slurm_samples.parts(name))
            asked = slurm_smokes.plan(Path("/shared/my job"), site=slurm_samples.SITES[name])
            slurm_plan.contents(asked)
        slurm_plan.contents(slurm_smokes.bench(Path("/shared/my job"), benches.plan(2, nodes=2)))
        for launcher in STARTING:
            for nodes in (1, 2) if launcher != "alone" else (1,):
                make(launcher, nodes)
        for stack, name in test_own_copy.ALL:
            for device in ("cpu", "cuda"):
                test_own_copy.files_of(stack, name, device=device)
        images = load_definitions(ROOT)
        for image in (
            resolve(images, stack, base) for stack in images.stacks for base in images.bases
        ):
            dockerfile.render_files(image)
            prove_plan.files_stages(image)
            for wheel in image.wheels:
                prove_plan.wheel_stages(wheel.wheel.package)
        prove_plan.back_stages()
        test_fork.made(test_fork.forked())
    return {name: list(texts) for name, texts in found.items()}


def make(launcher, nodes):
    wanted = kubernetes_jobs.job(
        launcher=launcher, nodes=nodes, per_node=1 if launcher == "alone" else 2,
        options={"zero_stage": "2", "restarts": "3"}, env={"A": "it's $HOME"},
        prepare=(("prepare", "two words"),), folder="/srv/my work",
    )  # fmt: skip
    kubernetes_jobs.rendered(wanted)


SHELL_TEMPLATES = sorted(
    path.relative_to(template.TEMPLATES).as_posix() for path in template.TEMPLATES.rglob("*.sh.j2")
)
# Read aloud rather than run: the working directory is the node's.
LINES = {"example/commands.sh.j2": ["--exclude=SC2164"]}
# Parts of another script, which says for which shell.
BASH = {
    "clusters/slurm-node.sh.j2", "clusters/slurm-enter.sh.j2", "clusters/slurm-left.sh.j2",
}  # fmt: skip


@pytest.mark.parametrize("name", SHELL_TEMPLATES)
def test_what_a_template_of_shell_makes_is_whole(name, tmp_path):
    texts = made()[name]
    shell = "bash" if name in BASH else shell_of(texts[0])
    assert [said for text in texts if (said := unread(shell, text))] == []
    named = {f"{number}.sh": text for number, text in enumerate(texts)}
    assert linted(tmp_path, shell, named, *LINES.get(name, [])) == ""


# Steps of Dockerfiles


def steps(text):
    """The shell of a Dockerfile's RUN steps, and what each of them hands to it."""
    shell, found = "sh", []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for instruction in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = instruction.partition(" ")
        if word == "SHELL":
            shell = "bash" if "bash" in rest else "sh"
        elif word == "RUN":
            found.append((shell, re.sub(r"^(\s*--\w+=\S+)+", "", rest)))
    return found


def steps_unread(text):
    """What is wrong with the steps of a Dockerfile."""
    found = steps(text)
    assert found
    return [said for shell, step in found if (said := unread(shell, step))]


@pytest.mark.parametrize(
    "path", [path for path in DOCKERFILES if "RUN" in (ROOT / path).read_text()]
)
def test_the_steps_of_a_dockerfile_are_whole(path):
    assert steps_unread((ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", ["Dockerfile.j2", "Prove.j2"])
def test_the_steps_that_templates_make_are_whole(name):
    assert [said for text in made()[name] for said in steps_unread(text)] == []


def test_a_step_that_is_not_whole_is_noticed():
    text = 'RUN a\nSHELL ["bash"]\nRUN --mount=type=tmpfs \\\n--a=b \\\n# c\n c \\\n&& d\n'
    assert steps(text) == [("sh", "a"), ("bash", "   c  && d")]
    assert steps_unread("FROM x\nRUN a \\\n  &&\nUSER 0\n") != []
    assert steps_unread("FROM x\nRUN --mount=type=tmpfs,target=/x (a\n") != []


# What modules hand to a shell, and commands of definitions


def handed(tree):
    """Expressions of a module that a shell reads: behind `sh -c`, or sent to a host's shell."""
    for node in ast.walk(tree):
        parts = getattr(node, "elts", None) or getattr(node, "args", None)
        if isinstance(node, (ast.List, ast.Tuple, ast.Call)) and parts:
            words = [getattr(part, "value", None) for part in parts]
            yield from ((shell, parts[at]) for shell, at in behind(words))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "shell":
            yield "sh", node.args[0]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_script":
            yield "sh", node.args[1]


def behind(words):
    """The shell and the place of each word that stands behind `sh -c`."""
    for at in range(2, len(words)):
        shell, option = words[at - 2 : at]
        if shell in SHELLS and OPTION.fullmatch(str(option)):
            yield shell.rpartition("/")[2], at


def values(node, tree):
    """The texts that an expression may stand for; a word for what is put into them."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [
            getattr(p, "value", "") if isinstance(p, ast.Constant) else "word" for p in node.values
        ]
        return ["".join(parts)]
    if isinstance(node, ast.Name):
        assigned = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)
                    and [t for t in n.targets if getattr(t, "id", "") == node.id]]  # fmt: skip
        return [text for one in assigned for text in values(one.value, tree)]
    return []


def texts_of(source):
    """What a module hands to shells, and the expressions that are none of its own texts."""
    tree, found, unknown = ast.parse(source), [], []
    for shell, node in handed(tree):
        texts = values(node, tree)
        found += [(shell, text) for text in texts]
        unknown += [] if texts else [ast.unparse(node)]
    return list(dict.fromkeys(found)), unknown


def test_what_a_module_hands_to_a_shell_is_found():
    source = """
TEXT = "one"
def f(link, folder):
    run(["sh", "-euc", f"two {folder}; exit", "name"], "bash", "-c", TEXT)
    script = "three"
    link.shell(script, folder)
    link.shell(far.SCRIPT)
    run("bash", "-x", "four")
"""
    found, unknown = texts_of(source)
    assert sorted(found) == [("bash", "one"), ("sh", "three"), ("sh", "two word; exit")]
    assert unknown == ["far.SCRIPT"]


MODULES = files(lambda path: path.suffix == ".py" and "tests" not in path.relative_to(ROOT).parts)


def test_what_modules_hand_to_a_shell_is_whole(tmp_path):
    found, unknown = [], []
    for path in MODULES:
        texts, others = texts_of((ROOT / path).read_text(encoding="utf-8"))
        found += [(path, shell, text) for shell, text in texts]
        unknown += [f"{path}: {what}" for what in others]
    assert unknown == [  # scripts of the project
        "stackyard/gpu/gpus.py: infiniband.SCRIPT",
        "stackyard/mesh/preflight.py: survey.SCRIPT",
        "stackyard/mesh/standing.py: survey.SCRIPT",
    ]
    assert len(found) > 12
    assert [(path, said) for path, shell, text in found if (said := unread(shell, text))] == []
    for shell in ("sh", "bash"):
        named = {f"{number}-{path.replace('/', '-')}": text
                 for number, (path, of, text) in enumerate(found)
                 if of == shell and path.startswith("stackyard/")}  # fmt: skip
        # SC2154: a variable that whoever starts the text has set.
        assert linted(tmp_path, shell, named, "--exclude=SC2154") == ""


def commands(value):
    """Every command of a definition: its sequences of words, however far inside."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(part, str) for part in value):
            yield list(value)
        else:
            for part in value:
                yield from commands(part)


def test_what_definitions_hand_to_a_shell_is_whole():
    examples = [test_own_copy.load_example(ROOT, *one) for one in test_own_copy.ALL]
    found = {(shell, words[at]) for words in commands([load_definitions(ROOT), *examples])
             for shell, at in behind(words)}  # fmt: skip
    assert found
    assert [said for shell, text in found if (said := unread(shell, text))] == []
