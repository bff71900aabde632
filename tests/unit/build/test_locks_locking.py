"""The steps of `invoke lock`: all is resolved before anything is written, nothing is left stale."""

import contextlib
import dataclasses
import json

import pytest

from stackyard.build import host
from stackyard.build.locks import locking, resolve
from stackyard.build.locks.change import change_lines
from stackyard.cli.steps import lock as cli_lock
from stackyard.definitions.lock import Locked, files, parse_lock, versions
from stackyard.definitions.project import load_project
from stackyard.system import cleanup
from stackyard.system.errors import CommandError, EngineError, NothingToRunOn, UsageError
from stackyard.system.files import replace_texts
from tests.unit import samples
from tests.unit.lines import run

SURVEY = locking._survey
FAR = """\
name: far
summary: another base
reference: registry.example/far:1
device: cuda
python: "3.12"
platform: linux/amd64
distribution: ubuntu/noble
provides: {torch: {value: "2.1.0", source: notes}}
entrypoint: [/usr/bin/tini, --]
never_built: nobody could pull it
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A project with two bases; `asked` are the requirements of every resolution."""
    made = samples.Tree(tmp_path)
    made.asked, made.fail_on, made.newer, made.wants = [], None, {}, {}

    def answer(requirements, **given):
        made.asked.append((given["base"].name, tuple(requirements)))
        if made.fail_on == made.asked[-1]:
            raise CommandError("uv pip compile failed", code=1)
        fixed = given.get("constraints") or {}
        if any(fixed.get(name, version) != version for name, version in made.wants.items()):
            raise CommandError("uv pip compile failed", code=1, why="idna is pinned")
        pins = [word.split("==") for word in requirements]
        # What torch needs comes with it, in the newest version there is.
        pins += made.newer.items() if requirements == ("torch==2.0.0",) else ()
        hashes = ("sha256:" + "0" * 64,)
        return tuple(Locked(name=name, version=version, hashes=hashes) for name, version in pins)

    monkeypatch.setattr(resolve, "compile_requirements", answer)
    monkeypatch.setattr(locking.mirrors, "collect", lambda *a, **k: None)
    made.surveyed = []

    def survey(project, base):
        made.surveyed.append(base.reference)
        return made.digest, {"torch": "2.1.0", "numpy": "2.0.0"}

    made.digest = "sha256:" + "1" * 64
    monkeypatch.setattr(locking, "_survey", survey)
    return made


def everything(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def locked_on_two(tree):
    """As when somebody who has the other base locked there, too."""
    tree.write("images/bases/far.yml", FAR)
    for base in ("cpu", "far"):
        made = locking.resolve_all(
            load_project(tree.root, locks_required=False), "all", base, lambda *_: None
        )
        replace_texts(tree.root, made.files)
    tree.asked.clear()
    return load_project(tree.root)


def lock(tree, stack="all", base=""):
    project = load_project(tree.root, locks_required=False)
    return locking.resolve_all(project, stack, base, lambda *_: None)


def test_a_lock_on_one_base_that_leaves_another_stale_is_refused_before_anything(tree):
    locked_on_two(tree)
    tree.change("images/toy/stack.yml", 'alpha: "1.2.0"', 'alpha: "1.2.1"')
    tree.change("images/fixes/alpha-old.yml", "==1.2.0", ">=1.2.0")
    before = everything(tree.root)
    with pytest.raises(UsageError) as caught:
        lock(tree, "toy", "cpu")
    assert "toy cannot be locked on cpu alone" in caught.value.what
    assert "images/toy/far.lock" in caught.value.why
    assert caught.value.hint.startswith("invoke lock toy (")
    assert (tree.asked, everything(tree.root)) == ([], before)


def test_what_the_refusal_names_is_what_helps(tree):
    locked_on_two(tree)
    tree.change("images/toy/stack.yml", 'alpha: "1.2.0"', 'alpha: "1.2.1"')
    tree.change("images/fixes/alpha-old.yml", "==1.2.0", ">=1.2.0")
    made = lock(tree, "toy")
    assert made.stale == {}
    replace_texts(tree.root, made.files)
    load_project(tree.root)
    moved = {change.path: change.moved for change in made.changes if change.moved}
    assert list(moved) == ["images/toy/cpu.lock", "images/toy/far.lock"]
    assert moved["images/toy/far.lock"][0].way == "up"


def test_one_base_alone_may_be_locked_where_the_others_fit(tree):
    locked_on_two(tree)
    made = lock(tree, "toy", "cpu")
    assert {base for base, _ in tree.asked} == {"cpu"}
    assert (made.written, made.stale) == ((), {})


def test_a_base_that_comes_to_need_something_else_gets_a_file_of_its_own(tree):
    """And loses it again; the file of its own goes before what another's says of it."""
    locked_on_two(tree)
    cpu, far = tree.root / "images/toy/cpu.lock", tree.root / "images/toy/far.lock"
    shared = cpu.read_text()
    assert "# inputs on far: " in shared and not far.exists()
    texts = load_project(tree.root).definitions.locks
    far.write_text(texts["images/toy/far.lock"].replace("alpha==1.2.0", "alpha==1.1.0"))
    found = load_project(tree.root).definitions.locks
    assert "alpha==1.1.0" in found["images/toy/far.lock"]
    apart = files(found)
    assert apart["images/toy/cpu.lock"] == texts["images/toy/cpu.lock"]
    assert apart["images/toy/far.lock"] == far.read_text()
    made = lock(tree)
    assert made.gone == ("images/toy/far.lock",)
    assert set(made.written) == {"images/toy/far.lock"}
    assert made.files["images/toy/cpu.lock"] == shared


def test_a_wheel_is_locked_once_for_all_bases(tree):
    tree.change("images/wheels/beta.yml", '==80.0.0"', '==80.0.0", "torch==2.1.0"')
    project = locked_on_two(tree)  # far has torch
    held = {"beta": "3.0", "setuptools": "80.0.0", "torch": "2.1.0"}
    for base in ("", "cpu", "far"):
        made = lock(tree, base=base)
        assert made.written == ()
        text = made.files["images/wheels/beta.lock"]
        assert versions(parse_lock(text)) == held
        assert text == project.definitions.locks["images/wheels/beta.lock"]


def test_nothing_is_written_when_the_last_resolution_fails(tree):
    locked_on_two(tree)
    tree.change("images/toy/stack.yml", 'alpha: "1.2.0"', 'alpha: "1.2.1"')
    tree.change("images/fixes/alpha-old.yml", "==1.2.0", ">=1.2.0")
    before = everything(tree.root)
    tree.fail_on = ("far", ("alpha==1.2.1", "beta==3.0"))
    with pytest.raises(CommandError):
        lock(tree)
    assert everything(tree.root) == before
    assert ("cpu", ("alpha==1.2.1", "beta==3.0")) in tree.asked


def test_a_stack_may_be_locked_while_another_one_is_not_and_that_is_said(tree):
    other = samples.FILES["images/toy/stack.yml"].replace("name: toy", "name: other")
    tree.write("images/other/stack.yml", other)
    made = lock(tree, "toy")
    assert made.stale == {"images/other/cpu.lock": "invoke lock other --base cpu"}
    assert lock(tree).stale == {}


@pytest.mark.parametrize("change", [False, True])
def test_check_writes_nothing_and_its_exit_code_says_whether_it_would(
    tree, monkeypatch, capsys, change
):
    locked_on_two(tree)
    if change:
        tree.change("images/toy/stack.yml", 'alpha: "1.2.0"', 'alpha: "1.2.1"')
        tree.change("images/fixes/alpha-old.yml", "==1.2.0", ">=1.2.0")
    monkeypatch.setattr(cleanup, "guarded", lambda warden: contextlib.nullcontext())
    monkeypatch.setattr(cli_lock, "load_project", lambda **named: load_project(tree.root, **named))
    before = everything(tree.root)
    assert run(cli_lock.lock, "all", "", check=True, as_json=True) == int(change)
    assert everything(tree.root) == before
    value = json.loads(capsys.readouterr().out)
    assert ("images/toy/cpu.lock" in value["changed"]) is change
    assert value["check"]
    if change:
        assert run(cli_lock.lock, "all", "", check=False, as_json=False) == 0
        said = capsys.readouterr().out
        assert "up       alpha 1.2.0 -> 1.2.1" in said
        # Both bases need the same, so they share a file.
        assert "written: images/toy/cpu.lock" in said
        assert not (tree.root / "images/toy/far.lock").exists()
        assert run(cli_lock.lock, "all", "", check=True) == 0
        assert "nothing changed on cpu: the torch layer, toy" in capsys.readouterr().out


LAYER, ONE = "images/bases/cpu.lock", "images/bases/one.lock"


@pytest.fixture
def grown(tree):
    """Stacks `toy` and `other` locked on two bases, for which the index has newer packages now."""
    made_here = samples.FILES["images/bases/cpu.yml"].replace("name: cpu", "name: one")
    tree.write("images/bases/one.yml", made_here)
    other = samples.FILES["images/toy/stack.yml"].replace("name: toy", "name: other")
    tree.write("images/other/stack.yml", other)
    tree.newer = {"idna": "3.1"}
    replace_texts(tree.root, lock(tree).files)
    tree.newer = {"idna": "3.2"}
    tree.asked.clear()
    return tree


def test_a_new_stack_keeps_the_layers_that_the_others_share(grown):
    mine = samples.FILES["images/toy/stack.yml"].replace("name: toy", "name: mine")
    grown.write("images/mine/stack.yml", mine)
    before = everything(grown.root)
    made = lock(grown, "mine")
    assert {path.split("/")[1] for path in made.written} == {"mine"}
    assert ("cpu", ("torch==2.0.0",)) not in grown.asked
    replace_texts(grown.root, made.files)
    assert {p: text for p, text in everything(grown.root).items() if p in before} == before
    assert (made.stale, made.outgrown, made.rebuilt) == ({}, (), {})


def test_what_is_above_a_kept_layer_is_resolved_with_its_pins(grown, monkeypatch):
    given = []
    real = resolve.lock_stack
    monkeypatch.setattr(resolve, "lock_stack", lambda *a: given.append(a[3]) or real(*a))
    lock(grown, "toy")
    assert given == [{"torch": "2.0.0", "idna": "3.1"}] * 2


def test_locking_everything_renews_the_layers_and_names_all_stacks(grown):
    made = lock(grown)
    assert {LAYER, ONE} == set(made.written)
    assert made.rebuilt == {"other": ("cpu", "one"), "toy": ("cpu", "one")}
    assert made.outgrown == ()


@pytest.mark.parametrize("change", ["missing", "torch", "build"])
def test_a_layer_that_is_not_there_or_not_its_bases_is_resolved(grown, change):
    if change == "missing":
        (grown.root / ONE).unlink()
    elif change == "torch":
        grown.change(ONE, "# inputs: sha256:", "# inputs: sha256:0000000000")
    else:
        grown.change(ONE, "torch==2.0.0", "torch==2.0.0+cu1")
    made = lock(grown, "toy")
    assert set(made.written) == {ONE}
    assert "idna==3.2" in made.files[ONE]
    assert made.outgrown == ()
    assert made.rebuilt == {"other": ("one",)}


def test_a_layer_that_a_stack_does_not_fit_is_resolved_with_it_and_that_is_said(
    grown, monkeypatch, capsys
):
    grown.wants = {"idna": "3.2"}
    monkeypatch.setattr(cleanup, "guarded", lambda warden: contextlib.nullcontext())
    monkeypatch.setattr(cli_lock, "load_project", lambda **named: load_project(grown.root, **named))
    assert run(cli_lock.lock, "toy", "cpu", check=True) == 1
    out, err = capsys.readouterr()
    assert "the torch layer on cpu: 1 up\n  up       idna 3.1 -> 3.2\n" in out
    assert f"would be written: {LAYER}\n" in out
    assert err.splitlines()[-2:] == [
        "toy does not fit the torch layer as it was locked on cpu: that changes, too",
        "images that will be built again, since their locks change: other (cpu)",
    ]
    assert run(cli_lock.lock, "toy", "cpu", check=True, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["rebuilt"] == {"other": ["cpu"]}


def test_a_stack_without_a_solution_on_a_new_layer_either_is_refused(grown):
    grown.wants = {"idna": "2.0"}
    before = everything(grown.root)
    with pytest.raises(CommandError):
        lock(grown, "toy")
    assert everything(grown.root) == before


def test_outdated_counts_what_is_newer_in_the_layer_too(grown):
    then = locking.resolve_on(load_project(grown.root), ["toy"], "cpu", lambda *_: None)
    assert "idna==3.2" in then[LAYER]


def test_a_pulled_base_is_read_once_and_locked_by_its_digest(tree):
    tree.write("images/bases/far.yml", FAR)
    replace_texts(tree.root, lock(tree, "toy", "far").files)
    text = (tree.root / "images/bases/far.lock").read_text()
    assert f"# image: registry.example/far@{tree.digest}\n" in text
    assert text.endswith("\nnumpy==2.0.0\ntorch==2.1.0\n")
    first = f"ARG BASE=registry.example/far@{tree.digest}\n"
    assert first in (tree.root / "images/toy/far.Dockerfile").read_text()
    tree.digest = "sha256:" + "2" * 64  # the tag has moved since
    assert lock(tree, "toy", "far").written == ()
    assert tree.surveyed == ["registry.example/far:1"]


def test_another_image_is_read_and_what_was_locked_on_the_old_one_is_named(tree):
    other = samples.FILES["images/toy/stack.yml"].replace("name: toy", "name: other")
    tree.write("images/other/stack.yml", other)
    replace_texts(tree.root, lock(tree, "other", "cpu").files)
    tree.write("images/bases/far.yml", FAR)
    replace_texts(tree.root, lock(tree, "all", "far").files)
    load_project(tree.root)
    tree.digest = "sha256:" + "2" * 64
    tree.change("images/bases/far.yml", "far:1", "far:2")
    made = lock(tree, "toy", "far")
    assert tree.surveyed == ["registry.example/far:1", "registry.example/far:2"]
    assert made.stale == {"images/other/far.lock": "invoke lock other --base far"}
    assert [line for line in change_lines(made.changes) if "image" in line] == [
        "the image on far: the same packages, from changed definitions"
    ]


def test_the_first_lock_of_an_image_does_not_list_all_that_it_holds(tree):
    tree.write("images/bases/far.yml", FAR)
    lines = change_lines(lock(tree, "toy", "far").changes)
    assert "the image on far: locked for the first time, 2 packages" in lines
    assert not any("numpy" in line for line in lines)


def test_an_image_that_there_is_no_room_for_is_not_pulled(tree, monkeypatch):
    class Full(contextlib.AbstractContextManager):
        """An engine with 5 GiB left; it can pull nothing."""

        def __exit__(self, *_):
            pass

        def image(self, name):
            return None

        def data_folder(self):
            return "/engine"

    monkeypatch.setattr(locking, "_survey", SURVEY)
    monkeypatch.setattr(locking, "Engine", Full)
    monkeypatch.setattr(host, "free_bytes", lambda _: 5 * 2**30)
    tree.write(
        "images/bases/far.yml", f"{FAR}facts: {{disk: {{value: 30 GiB, source: a guess}}}}\n"
    )
    with pytest.raises(NothingToRunOn, match="base 'far'") as caught:
        lock(tree, "toy", "far")
    assert "5.0 GiB are free in /engine, 30 are needed: 25.0 GiB are missing" in caught.value.why
    assert caught.value.hint.startswith("docker system prune")


def test_an_image_that_cannot_be_had_leaves_no_lock_and_says_which_bases_can(tree, monkeypatch):
    def nowhere():
        raise EngineError("registry.example/far:1 could not be pulled", why="no such host")

    monkeypatch.setattr(locking, "_survey", SURVEY)
    monkeypatch.setattr(locking, "Engine", nowhere)
    tree.write("images/bases/far.yml", FAR)
    before = everything(tree.root)
    with pytest.raises(NothingToRunOn, match="base 'far'") as caught:
        lock(tree, "toy", "far")
    assert "no such host" in caught.value.why
    assert "--base cpu" in caught.value.hint
    assert everything(tree.root) == before


def test_a_changed_stack_is_locked_wherever_it_is_locked_already():
    project = load_project(locks_required=False)
    assert locking.locked_bases(project, "fairseq") == ["cpu", "cuda", "cuda12", "nvidia-host"]
    kept = {path: text for path, text in project.definitions.locks.items() if "nvidia" not in path}
    definitions = dataclasses.replace(project.definitions, locks=kept)
    assert locking.locked_bases(dataclasses.replace(project, definitions=definitions), "all") == [
        "cpu", "cuda", "cuda12",
    ]  # fmt: skip
