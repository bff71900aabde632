"""A project's definitions: every problem of every file at once, with file and line."""

import dataclasses
import fnmatch
import itertools
import re

import pytest

from stackyard.build import host
from stackyard.build.catalog import resolve
from stackyard.definitions import lock
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT
from stackyard.definitions.references import check_references
from stackyard.gpu import doctor
from stackyard.system.errors import DefinitionError
from tests.unit import samples

STACK, FIX, BASE = "images/toy/stack.yml", "images/fixes/alpha-old.yml", "images/bases/cpu.yml"
LOCK_AGAIN = "type `invoke lock toy`"


@pytest.fixture
def tree(tmp_path):
    return samples.Tree(tmp_path)


def test_a_good_tree_loads(tree):
    found = tree.load()
    assert list(found.stacks) == ["toy"]
    assert list(found.fixes) == ["alpha-old", "beta-build"]
    assert sorted(found.locks) == [
        "images/bases/cpu.lock",
        "images/toy/cpu.lock",
        "images/wheels/beta.lock",
    ]


def test_the_definitions_of_this_project_load():
    found = load_definitions(ROOT)
    assert {"fairseq", "megatron", "accelerate"} <= set(found.stacks)
    assert {"cpu", "ngc"} <= set(found.bases)


OWN = load_definitions(ROOT)
CUDA = [b for b in OWN.bases.values() if b.device == "cuda" and b.bootstrap is not None]


@pytest.mark.parametrize("base", CUDA, ids=lambda base: base.name)
def test_what_a_base_states_of_cuda_is_what_its_lock_holds(base):
    held = lock.versions(lock.parse_lock(OWN.locks[lock.base_lock_path(base.name)]))
    (runtime,) = [v for name, v in held.items() if name.startswith("nvidia-cuda-runtime")]
    assert base.facts["cuda"].value == ".".join(runtime.split(".")[:2])
    major = int(base.facts["cuda"].value.split(".")[0])
    assert base.facts["driver"].value == doctor.DRIVER_FLOORS[major]
    assert base.facts["architectures"].value.startswith("sm_")
    assert base.disk_bytes > host.NEEDED_BYTES - 1
    assert lock.other_builds(base, lock.parse_lock(OWN.locks[lock.base_lock_path(base.name)])) == {}


@pytest.mark.parametrize("name", ["ngc", "ngc-25-01"])
def test_a_pulled_base_states_room_for_what_is_pulled(name):
    assert OWN.bases[name].disk_bytes > 22 * 10**9
    assert "not measured" in OWN.bases[name].facts["disk"].source


@pytest.mark.parametrize("base", CUDA, ids=lambda base: base.name)
def test_every_name_of_a_layer_is_in_the_lock(base):
    held = lock.versions(lock.parse_lock(OWN.locks[lock.base_lock_path(base.name)]))
    assert len(base.torch_layers) == 2
    for pattern in itertools.chain(*base.torch_layers):
        assert fnmatch.filter(held, pattern), pattern


@pytest.mark.parametrize("base", CUDA, ids=lambda base: base.name)
def test_an_image_with_cudas_wheels_names_no_folder_of_libraries(base):
    """A system's cuDNN or NCCL would be taken in place of the wheel's: pytorch 80637."""
    for stack in OWN.stacks:
        env = resolve(OWN, stack, base.name).env
        assert "LD_LIBRARY_PATH" not in env
        assert env["NVIDIA_VISIBLE_DEVICES"].value == "all"
        assert env["NVIDIA_DRIVER_CAPABILITIES"].value == "compute,utility"


def test_of_the_bases_for_gpus_one_has_the_torch_of_cpu_ranks():
    def torch(base):
        held = lock.versions(lock.parse_lock(OWN.locks[lock.base_lock_path(base)]))
        return held["torch"].partition("+")[0]

    assert torch("cuda") == torch("cpu")


# Within one file


def test_an_unknown_key_is_named_with_file_line_and_nearest_key(tree):
    tree.change(STACK, "imports: [alpha]", "import: [alpha]")
    assert tree.problems() == [f"{STACK}:8: import: unknown key; did you mean 'imports'?"]


def test_a_duplicate_key_is_named_with_both_lines(tree):
    tree.change(STACK, "imports: [alpha]", "summary: again\nimports: [alpha]")
    assert tree.problems() == [f"{STACK}:8: summary: duplicate key, first given on line 2"]


def test_an_unquoted_version_is_refused(tree):
    tree.change(BASE, '"3.11"', "3.10")
    said = f"{BASE}:4: python: must be text; YAML reads 3.10 as float: write '3.10'"
    assert said in tree.problems()


def test_disk_space_is_stated_in_gib(tree):
    tree.change(BASE, "env:", "facts: {disk: {value: 12 GB, source: a guess}}\nenv:")
    (said,) = tree.problems()
    assert said.endswith("value: must be like '12 GiB'")


def test_a_lock_that_holds_another_build_is_refused(tree):
    tree.change("images/bases/cpu.lock", "torch==2.0.0", "torch==2.0.0+cpu")
    (said,) = tree.problems()
    assert "images/bases/cpu.lock holds torch 2.0.0+cpu, not the build of the base" in said
    assert said.endswith(LOCK_AGAIN)


def test_an_unquoted_version_of_a_package_is_refused_at_its_line(tree):
    tree.change(STACK, 'alpha: "1.2.0"', "alpha: 1.10")
    said = f"{STACK}:4: packages.alpha: must be text; YAML reads 1.10 as float: write '1.10'"
    assert said in tree.problems()


def test_a_bad_regular_expression_is_named(tree):
    tree.change(FIX, "'^old$'", "'[a'")
    assert tree.problems() == [
        f"{FIX}:12: remedy.replace[0].pattern: not a regular expression:"
        " unterminated character set at position 0"
    ]


def test_a_bad_placeholder_is_named(tree):
    tree.change(STACK, '{data}"]\n  updates', '{dat}"]\n  updates')
    assert tree.problems() == [f"{STACK}:12: smoke.program: unknown {{dat}}; did you mean 'data'?"]


def test_a_name_that_is_not_its_folders_is_refused(tree):
    tree.change(STACK, "name: toy", "name: tyo")
    assert tree.problems() == [
        f"{STACK}:1: name: must be 'toy', like its file or folder, not 'tyo'"
    ]


@pytest.mark.parametrize("text", ["- a\n", "a\n", ""])
def test_a_file_that_is_no_mapping_is_refused(tree, text):
    tree.write("images/fixes/more.yml", text)
    assert tree.problems() == ["images/fixes/more.yml:1: must be a mapping of keys to values"]


def test_malformed_files_are_all_reported(tree):
    tree.write("images/fixes/broken.yml", "a: [\n")
    tree.write("images/bases/broken.yml", "a: b\n  c: d\n")
    first, second = tree.problems()
    wrong = "mapping values are not allowed in this context, at ': d'"
    assert first == f"images/bases/broken.yml:2: not YAML: {wrong}"
    assert second.startswith("images/fixes/broken.yml:2: not YAML: ")


def test_a_file_that_is_no_text_is_refused(tree):
    tree.write("images/fixes/more.yml", b"\xff\xfe")
    (said,) = tree.problems()
    assert said.startswith("images/fixes/more.yml:1: cannot be read: 'utf-8' codec can't decode")


def test_a_lock_that_is_no_text_is_refused(tree):
    tree.write("images/toy/cpu.lock", b"\xff")
    (said, *_) = tree.problems()
    assert said.startswith("images/toy/cpu.lock:1: cannot be read: 'utf-8' codec can't decode")


@pytest.mark.parametrize("path", ["images/toy/cpu.lock", FIX])
def test_a_folder_in_place_of_a_file_is_refused(tree, path):
    (tree.root / path).unlink()
    (tree.root / path).mkdir()
    assert f"{path}:1: cannot be read: Is a directory" in tree.problems()


def test_a_link_to_itself_is_refused(tree):
    (tree.root / FIX).unlink()
    (tree.root / FIX).symlink_to(tree.root / FIX)
    assert f"{FIX}:1: cannot be read: Too many levels of symbolic links" in tree.problems()


def test_a_lock_with_something_else_than_a_version_is_named_with_its_line(tree):
    path = "images/toy/cpu.lock"
    tree.change(path, "alpha==1.2.0", "alpha==new")
    assert f"{path}:3: alpha: not a version: Invalid version: 'new'" in tree.problems()


def test_a_wrong_version_in_a_lock_that_bases_share_is_named_in_the_file_that_is_there():
    found = load_definitions(ROOT)
    assert "images/accelerate/cuda.lock" in found.locks
    wrong = {path: re.sub("^tqdm==.*? ", "tqdm==new ", text, flags=re.MULTILINE)
             for path, text in found.locks.items()}  # fmt: skip
    changed = dataclasses.replace(found, locks=wrong)
    said = list(check_references(ROOT, changed, locks_required=False))
    named = {one.file for one in said if one.message.startswith("not a version")}
    assert "images/accelerate/cpu.lock" in named
    assert all((ROOT / path).is_file() for path in named)


def test_the_version_of_what_a_base_provides_must_be_one(tree):
    tree.change(BASE, "env:\n", "provides:\n  torch: {value: new, source: a guess}\nenv:\n")
    said = f"{BASE}:12: provides: torch: not a version: Invalid version: 'new'"
    assert said in tree.problems()


def test_a_reference_that_is_no_image_is_refused(tree):
    tree.change(BASE, "device: cpu", "reference: a b\ndevice: cpu")
    assert f"{BASE}:3: reference: not the name of an image: 'a b'" in tree.problems()


def test_a_value_cannot_become_an_instruction_of_the_dockerfile(tree):
    tree.change(STACK, "imports: [alpha]", 'imports: ["alpha\\nRUN b"]')
    (said,) = tree.problems()
    assert said.startswith(f"{STACK}:8: imports: must be one line without control characters")


def test_a_list_of_the_wrong_kind_is_one_problem(tree):
    tree.change(STACK, "fixes: [alpha-old]", "fixes: alpha-old")
    assert tree.problems() == [f"{STACK}:7: fixes: must be a list"]


def test_a_wheel_may_be_named_stack(tree):
    wheel = 'package: stack\nversion: "1.0"\nrequires: []\n'
    tree.write("images/wheels/stack.yml", wheel)
    found = tree.load()
    assert (sorted(found.wheels), sorted(found.stacks)) == (["beta", "stack"], ["toy"])


def test_a_file_without_a_name_is_refused(tree):
    tree.write("images/wheels/.yml", samples.FILES["images/wheels/beta.yml"])
    assert "images/wheels/.yml:1: package: a name is lower-case letters, digits and dashes" in (
        tree.problems()
    )


def test_a_missing_common_file_is_named(tree):
    (tree.root / "images/common.yml").unlink()
    assert tree.problems() == ["images/common.yml:1: cannot be read: no such file"]


# Across files


def test_an_unknown_fix_is_named_with_the_nearest(tree):
    tree.change(STACK, "[alpha-old]", "[alpha-odl]")
    said = f"{STACK}:7: fixes: unknown fix 'alpha-odl'; did you mean 'alpha-old'?"
    assert tree.problems() == [said]


def test_an_unknown_fix_of_a_wheel_is_named(tree):
    tree.change("images/wheels/beta.yml", "[beta-build]", "[beta-biuld]")
    assert tree.problems() == [
        "images/wheels/beta.yml:4: fixes: unknown fix 'beta-biuld'; did you mean 'beta-build'?"
    ]


def test_a_fix_that_fits_no_version_is_named(tree):
    tree.change(FIX, "==1.2.0", "==1.3.0")
    said = f"{STACK}:7: fixes: fix 'alpha-old' does not apply: alpha 1.2.0 is not ==1.3.0"
    assert tree.problems() == [said]


def test_a_fix_of_a_package_that_is_not_there_is_named(tree):
    tree.change(FIX, '{alpha: "==1.2.0"}', '{gamma: ">=1"}')
    said = f"{STACK}:7: fixes: fix 'alpha-old' does not apply: gamma is not installed"
    assert tree.problems() == [said]


def test_a_fix_of_a_wheel_belongs_to_the_wheel(tree):
    tree.change(STACK, "[alpha-old]", "[alpha-old, beta-build]")
    assert tree.problems() == [f"{STACK}:7: fixes: fix 'beta-build' belongs to a wheel's fixes"]


def test_a_fix_of_a_stack_belongs_to_the_stack(tree):
    tree.write(FIX, samples.FILES[FIX].replace('alpha: "==1.2.0"', 'beta: "==3.0"'))
    tree.change("images/wheels/beta.yml", "[beta-build]", "[beta-build, alpha-old]")
    said = "images/wheels/beta.yml:4: fixes: fix 'alpha-old' belongs to a stack's fixes"
    assert tree.problems() == [said]


def test_a_package_that_may_be_built_from_users_source_has_one_version(tree):
    """It comes as a wheel, but the file says how its source is built."""
    wheel = 'package: alpha\nversion: "1.2.0"\nrequires: []\n'
    tree.write("images/wheels/alpha.yml", wheel)
    before = tree.load()
    assert (list(before.stacks["toy"].builds), "alpha" in before.wheels) == (["beta"], True)
    tree.write("images/wheels/alpha.yml", wheel.replace("1.2.0", "1.3.0"))
    (said,) = tree.problems()
    assert "alpha 1.2.0, but images/wheels/alpha.yml is for 1.3.0" in said


def test_an_unknown_wheel_is_named(tree):
    tree.change(STACK, "[beta]", "[betta]")
    assert tree.problems() == [f"{STACK}:6: builds: unknown wheel 'betta'; did you mean 'beta'?"]


def test_a_wheel_of_another_version_than_the_stack_wants_is_named(tree):
    tree.change(STACK, 'beta: "3.0"', 'beta: "3.1"')
    said = f"{STACK}:3: packages: beta 3.1 must be built, but images/wheels/beta.yml builds 3.0"
    assert said in tree.problems()


@pytest.mark.parametrize(
    "path",
    [
        "images/bases/cpu.lock",
        "images/toy/cpu.lock",
        "images/wheels/beta.lock",
    ],
)
def test_a_missing_lock_is_named_with_what_to_type(tree, path):
    (tree.root / path).unlink()
    assert tree.problems() == [f"{STACK}:3: packages: missing lock {path}; {LOCK_AGAIN}"]


HOST = """name: here
summary: this machine's own
device: cuda
python: "3.11"
platform: linux/amd64
host:
  paths: [/usr/bin]
  distributions: [torch]
provides:
  torch: {source: what torch requires}
facts: {}
env: {}
"""


def test_a_stack_needs_no_lock_on_a_base_made_of_a_host(tree):
    (tree.root / "images/bases/here.yml").write_text(HOST)
    assert "here" in tree.load().bases
    # One that is there is held against the definitions.
    (tree.root / "images/toy/here.lock").write_text("# inputs: sha256:" + "0" * 64 + "\n")
    said = tree.problems()
    assert any("images/toy/here.lock was made from other packages" in line for line in said)


def test_a_stale_lock_is_named_with_what_to_type(tree):
    tree.change(STACK, 'beta: "3.0"\n', 'beta: "3.0"\n  delta: "1"\n')
    said = "images/toy/cpu.lock was made from other packages or fixes than these"
    assert tree.problems() == [f"{STACK}:3: packages: {said}; {LOCK_AGAIN}"]


def test_a_stale_lock_of_a_base_says_what_of_the_base_is_another(tree):
    lock_file = tree.root / "images/bases/cpu.lock"
    text = lock_file.read_text()
    lock_file.write_text(text.replace(lock.locked_inputs(text), "sha256:" + "0" * 64))
    said = "images/bases/cpu.lock was made for another `torch`, platform or Python"
    assert any(said in line for line in tree.problems())


def test_a_wheel_that_is_declared_anew_is_named_once_for_all_bases(tree):
    tree.write("images/bases/far.yml", samples.FILES[BASE].replace("name: cpu", "name: far"))
    tree.change("images/wheels/beta.yml", "setuptools==80.0.0", "setuptools==81.0.0")
    said = "images/wheels/beta.lock was made from other packages or fixes than these"
    assert tree.problems().count(f"{STACK}:3: packages: {said}; {LOCK_AGAIN}") == 1


def test_a_changed_base_makes_every_lock_on_it_stale(tree):
    tree.change(BASE, "torch==2.0.0", "torch==2.1.0")
    assert [line.split(": ")[2].split()[0] for line in tree.problems()] == [
        "images/toy/cpu.lock",
        "images/bases/cpu.lock",
    ]


def test_a_lock_is_not_asked_for_where_locks_are_made(tree):
    (tree.root / "images/toy/cpu.lock").unlink()
    assert "images/toy/cpu.lock" not in load_definitions(tree.root, locks_required=False).locks


def test_a_base_that_nobody_has_built_needs_no_lock(tree):
    text = samples.FILES[BASE].replace("name: cpu", "name: far\nnever_built: not reached")
    tree.write("images/bases/far.yml", text)
    assert sorted(tree.load().bases) == ["cpu", "far"]


def test_a_base_that_is_built_needs_its_locks(tree):
    tree.write("images/bases/far.yml", samples.FILES[BASE].replace("name: cpu", "name: far"))
    assert [line.split("; ")[0].rpartition(" ")[2] for line in tree.problems()] == [
        "images/toy/far.lock",
        "images/bases/far.lock",
    ]


# All of it


def test_problems_of_all_files_come_at_once_sorted_by_place(tree):
    tree.change(STACK, "imports: [alpha]", "import: [alpha]")
    tree.change(FIX, "count: 1", "count: one")
    tree.change(BASE, "device: cpu", "device: tpu")
    tree.write("images/wheels/broken.yml", "- a\n")
    (tree.root / "images/bases/cpu.lock").unlink()
    assert tree.problems() == [
        f"{BASE}:3: device: unknown value 'tpu'; did you mean 'cpu'?",
        f"{FIX}:14: remedy.replace[0].count: must be a whole number",
        f"{FIX}:14: remedy.replace[0].count: must be at least 1",
        f"{STACK}:3: packages: missing lock images/bases/cpu.lock; {LOCK_AGAIN}",
        f"{STACK}:8: import: unknown key; did you mean 'imports'?",
        "images/wheels/broken.yml:1: must be a mapping of keys to values",
    ]


def test_the_error_counts_its_problems_and_says_what_to_do(tree):
    tree.change(STACK, "imports: [alpha]", "import: [alpha]")
    with pytest.raises(DefinitionError) as caught:
        tree.load()
    assert str(caught.value) == (
        "1 problem in the definitions\n"
        f"  {STACK}:8: import: unknown key; did you mean 'imports'?\n"
        "To go on: correct the lines named above"
    )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("wrong", [False, True])
def test_where_only_locks_are_missing_the_hint_is_what_to_type(tree, wrong):
    (tree.root / "images/toy/cpu.lock").unlink()
    if wrong:
        tree.change(STACK, "imports: [alpha]", "import: [alpha]")
    with pytest.raises(DefinitionError) as caught:
        tree.load()
    line = f"{STACK}:3: packages: missing lock images/toy/cpu.lock; {LOCK_AGAIN}"
    assert line in caught.value.why
    assert caught.value.hint == ("correct the lines named above" if wrong else "invoke lock toy")


def test_a_module_that_no_fix_adds_is_named(tree):
    path = tree.root / "images/fixes/files/alpha/new.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    assert tree.problems() == ["images/fixes/files/alpha/new.py:1: no fix adds it"]
