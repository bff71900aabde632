"""Whatever lies in the definitions' folder is loaded or refused with its place, in bounded time.

Some examples of the smallest stack's files, and with the marker `repeat` 10,000 of all files; the
same at every run. FUZZ=fresh takes others, new at each run (what fails says how to get it again).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import time
from functools import cache

import pytest
import yaml
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from stackyard.build import base_image, catalog, recipe
from stackyard.definitions.project import ROOT, load_project
from stackyard.system.errors import DefinitionError, StackyardError, UsageError
from stackyard.validate.prove import plan as prove_plan
from tests.unit import samples
from tests.unit.fuzzing import (
    ACTIONS,
    DOCUMENTS,
    ODD,
    broken_bytes,
    broken_lines,
    broken_structure,
    grown,
    written,
)

FEW, MANY = 24, 1700
SECONDS = 2.0  # of processor time for one example; a good project takes 0.02
INSIDE = {path: (ROOT / path).read_text(encoding="utf-8") for path in recipe.INSIDE}


def examples(number):
    """Settings of a test of so many examples."""
    return settings(
        max_examples=number,
        derandomize=os.environ.get("FUZZ") != "fresh",
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# The property


def outcome(root, *, locks_required=True):
    """Load what lies there and use what was accepted; says which of both it was.

    Anything but an answer or a refusal that names its places gets out as it is.
    """
    started = time.process_time()
    try:
        project = load_project(root, locks_required=locks_required)
        use(project)
        found = "accepted"
    except DefinitionError as error:
        check_places(root, error)
        found = "refused"
    except UsageError as error:
        assert error.what.startswith("stackyard.toml:"), error
        assert str(error).replace("\n", "").isprintable(), error
        found = "refused"
    seconds = time.process_time() - started
    assert seconds < SECONDS, f"took {seconds:.1f} s"
    return found


def use(project):
    """Resolve, render and plan every image; only errors that a user can act on are allowed."""
    for stack in project.definitions.stacks:
        for base in project.definitions.bases:
            with contextlib.suppress(StackyardError):
                image = catalog.resolve(project.definitions, stack, base)
                files = {**INSIDE, **image.locks}
                name = base_image.base_reference(image.base, image.common)
                made = recipe.make_plan(
                    image, files, base_image=name, content=recipe.BaseContent(digest="sha256:0")
                )
                check_dockerfile(made.context[made.dockerfile])
                proofs, _ = prove_plan.proofs(image, project.definitions.limits.values())
                for proof in proofs:
                    without = prove_plan.without_fix(image, proof.id)
                    assert [fix.id for wheel in without.wheels for fix in wheel.fixes].count(
                        proof.id
                    ) == 0
                check_dockerfile(prove_plan.files_stages(image))


INSTRUCTIONS = ("ARG", "FROM", "SHELL", "USER", "RUN", "COPY", "ENV", "ENTRYPOINT", "CMD", "LABEL",
                "WORKDIR")  # fmt: skip


def check_dockerfile(text):
    """No value has become an instruction: each begins as the template has it."""
    text.encode()
    goes_on = False
    for line in text.split("\n"):
        if not goes_on and line and not line.startswith("#"):
            assert line.split()[0] in INSTRUCTIONS, line
        goes_on = line.endswith("\\") or (goes_on and line.startswith("#"))


KEYED = ("unknown key", "required key", "must be", "duplicate key", "must lie", "unknown value")


def check_places(root, error):
    assert error.problems
    for problem in error.problems:
        said = str(problem)
        assert said.isprintable() and len(said) < 2000, said[:3000]
        assert problem.message and problem.line >= 1, said
        assert problem.file.startswith("images/"), said
        path = root / problem.file
        if path.is_file():
            lines = path.read_bytes().decode("utf-8", "replace").splitlines()
            assert problem.line <= len(lines) + 1, said
        if problem.message.startswith(KEYED):
            assert problem.key or problem.message == "must be a mapping of keys to values", said


# The places


def copy_of(root, paths):
    """A copy of some of this project's definitions."""
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    assert outcome(root) == "accepted"
    return root


@pytest.fixture(scope="module")
def smallest(tmp_path_factory):
    """The stack with the fewest fixes, alone."""
    return copy_of(tmp_path_factory.mktemp("smallest"), files_of_the_smallest())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All of this project."""
    return copy_of(tmp_path_factory.mktemp("whole"), REAL)


@pytest.fixture
def real(request, number):
    """This project, as much of it as goes with the number of examples."""
    return request.getfixturevalue("smallest" if number == FEW else "whole")


@pytest.fixture
def files(number):
    """The paths of `real`."""
    return files_of_the_smallest() if number == FEW else REAL


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A small project."""
    root = tmp_path_factory.mktemp("toy")
    samples.Tree(root)
    (root / "stackyard.toml").write_text('default_base = "cpu"\n')
    assert outcome(root) == "accepted"
    return root


@cache
def files_of_the_smallest():
    """This project's files that the stack with the fewest fixes needs."""
    found = load_project().definitions
    stack = min(found.stacks.values(), key=lambda one: len(one.fixes))
    fixes = {*stack.fixes, *(fix for name in stack.builds for fix in found.wheels[name].fixes)}
    limits = [one.id for one in found.limits.values() if one.stacks == (stack.name,)][:2]
    failures = [one.id for one in found.failures.values() if not one.brings][:2]
    needed = (
        "images/common.yml", "images/bases/", f"images/{stack.name}/", "stackyard.toml",
        *(f"images/wheels/{name}." for name in stack.builds),
        *(f"images/fixes/{name}.yml" for name in fixes),
        *(f"images/fixes/files/{path}" for name in fixes for path in found.fixes[name].remedy.add),
        *(f"images/failures/{name}.yml" for name in failures),
        *(f"images/limits/{name}.yml" for name in limits),
    )  # fmt: skip
    return [path for path in REAL if path.startswith(needed)]


@contextlib.contextmanager
def holding(path, content):
    """The file with another content for a while."""
    before = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        yield
    finally:
        path.write_bytes(before)


REAL = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "images/**/*.yml",
        "images/**/*.lock",
        "images/fixes/files/**/*.py",
        "stackyard.toml",
    )
    for path in ROOT.glob(pattern)
)
TOY = sorted(samples.FILES)


def kind(path):
    """What a definition file is: the folder that decides how it is read."""
    return "stack" if path.endswith("stack.yml") else path.rpartition("/")[0]


@cache
def document(path):
    """The parsed document of a file of this project."""
    return yaml.load((ROOT / path).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@cache
def grammar(path):
    """Every document of that file's kind, of this project and of the small one."""
    real_ = [document(p) for p in REAL if p.endswith(".yml") and kind(p) == kind(path)]
    toys = [yaml.safe_load(text) for p, text in samples.FILES.items() if kind(p) == kind(path)]
    own = yaml.safe_load(samples.FILES[path])
    return [own] * (100 * len(real_)) + real_ + toys


# What holds of it


def fuzzed(holds):
    """Make a test of what holds of fixtures and drawn data: of few examples, and of many."""
    wanted = [name for name in inspect.signature(holds).parameters if name != "data"]

    @pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=pytest.mark.repeat)])
    def test(request, number):
        fixtures = {name: request.getfixturevalue(name) for name in wanted}
        examples(number)(given(data=st.data())(holds))(**fixtures)

    test.__name__ = holds.__name__
    return test


@fuzzed
def test_bytes_of_a_file_may_be_anything(real, files, data):
    path = data.draw(st.sampled_from(files))
    with holding(real / path, data.draw(broken_bytes((ROOT / path).read_bytes()))):
        outcome(real)


@fuzzed
def test_lines_of_a_file_may_be_anything(real, files, data):
    path = data.draw(st.sampled_from(files))
    with holding(real / path, data.draw(broken_lines((ROOT / path).read_text()))):
        outcome(real)


@fuzzed
def test_keys_and_values_may_be_anything(real, files, data):
    path = data.draw(st.sampled_from([p for p in files if p.endswith(".yml")]))
    with holding(real / path, data.draw(broken_structure(document(path)))):
        outcome(real)


@fuzzed
def test_a_document_may_say_anything_in_known_words(toy, data):
    path = data.draw(st.sampled_from(TOY))
    with holding(toy / path, written(data.draw(grown(grammar(path))))):
        outcome(toy, locks_required=data.draw(st.booleans()))


@fuzzed
def test_a_file_may_be_any_document(toy, data):
    path = data.draw(st.sampled_from([*TOY, "images/toy/cpu.lock", "images/bases/cpu.lock"]))
    text = data.draw(st.one_of(st.sampled_from(DOCUMENTS), st.text(max_size=60)))
    coding = data.draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")))
    with holding(toy / path, text.encode(coding, "replace")):
        outcome(toy)


@fuzzed
def test_the_folder_may_hold_anything(tmp_path_factory, toy, data):
    root = tmp_path_factory.getbasetemp() / "folder"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(toy, root)
    for _ in range(data.draw(st.integers(1, 3))):
        there = sorted(path for path in root.rglob("*") if not path.is_symlink())
        path = data.draw(st.sampled_from(there))
        other = path.parent / data.draw(st.sampled_from((*ODD, *(p.name for p in there))))
        action = data.draw(st.sampled_from(sorted(ACTIONS)))
        with contextlib.suppress(OSError, shutil.Error):  # what cannot be there is not asked about
            ACTIONS[action](path, other)
        if not (root / "images").exists():
            break
    outcome(root)


@examples(FEW)
@given(st.sampled_from([{}, [], {"a": "b"}, ["a"], {"a": []}]).flatmap(broken_structure))
def test_a_document_of_which_little_is_left_is_broken_as_well(text):
    assert yaml.compose(text, Loader=yaml.CSafeLoader) is not None


# The examples are worth something: both answers come out of what is mostly right


@pytest.mark.parametrize("wanted", ["accepted", "refused"])
@pytest.mark.parametrize("path", ["images/toy/stack.yml", "images/bases/cpu.yml"])
def test_documents_in_known_words_are_accepted_and_refused(toy, path, wanted):
    def answered(value):
        with holding(toy / path, written(value)):
            return outcome(toy, locks_required=False) == wanted

    some = settings(examples(500), phases=[Phase.generate])
    find(grown(grammar(path)), answered, settings=some)
