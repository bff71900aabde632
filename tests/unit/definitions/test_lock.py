"""The lock's text, and the digest that ties it to what it was made from."""

import hashlib

import pytest

from stackyard.definitions import lock
from tests.unit import samples

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_each_lock_has_its_place():
    assert lock.base_lock_path("cpu") == "images/bases/cpu.lock"
    assert lock.lock_path("toy", "cpu") == "images/toy/cpu.lock"
    assert lock.wheel_lock_path("beta") == "images/wheels/beta.lock"


def test_a_lock_is_rendered_sorted_with_its_digest_and_its_command():
    entries = [
        lock.Locked(name="zeta", version="1", hashes=()),
        lock.Locked(name="alpha", version="2.0+cpu", hashes=(B, A)),
    ]
    assert lock.render_lock(entries, inputs=A, command="invoke lock toy") == (
        "# Written by `invoke lock toy`; do not edit.\n"
        f"# inputs: {A}\n"
        "alpha==2.0+cpu \\\n"
        f"    --hash={A} \\\n"
        f"    --hash={B}\n"
        "zeta==1\n"
    )


def test_a_rendered_lock_is_read_back():
    entries = (
        lock.Locked(name="alpha", version="2.0+cpu", hashes=(A, B)),
        lock.Locked(name="zeta", version="1", hashes=()),
    )
    text = lock.render_lock(entries, inputs=B, command="x")
    assert lock.parse_lock(text) == entries
    assert lock.locked_inputs(text) == B


def test_names_are_read_as_pip_compares_them_and_markers_are_left_out():
    text = "Foo_Bar.Baz==1.2 ; sys_platform == 'linux' \\\n    --hash=" + A + "\n"
    assert lock.parse_lock(text) == (lock.Locked(name="foo-bar-baz", version="1.2", hashes=(A,)),)


def test_comments_and_unpinned_lines_are_no_entries():
    assert lock.parse_lock("# alpha==1\n\nalpha>=1\n--index-url x\n") == ()


@pytest.mark.parametrize(
    ("named", "held", "other"),
    [
        ("torch===2.0.0", "torch==2.0.0", {}),
        ("torch==2.0.0+cpu", "torch==2.0.0+cpu", {}),
        ("torch===2.0.0", "torch==2.0.0+cpu", {"torch": "2.0.0+cpu"}),
        ("torch==2.0.0", "torch==2.0.0+cpu", {"torch": "2.0.0+cpu"}),
        ("torch==2.0.0+cpu", "torch==2.0.0", {"torch": "2.0.0"}),
    ],
)
def test_a_local_version_is_another_build(named, held, other):
    base = samples.base(torch=(named, "numpy==2.1.0"))
    assert lock.other_builds(base, lock.parse_lock(f"{held}\nnumpy==2.1.0\n")) == other


def test_versions_are_by_name():
    assert lock.versions(lock.parse_lock("alpha==1\nBeta==2\n")) == {"alpha": "1", "beta": "2"}


@pytest.mark.parametrize("text", ["", "# inputs: sha256:short\n", f"  # inputs: {A}\n"])
def test_a_lock_without_a_digest_has_none(text):
    assert lock.locked_inputs(text) == ""


def stack_inputs(stack=None, base=None, fix=None):
    fixes = {"alpha-old": fix or samples.fix()}
    return lock.stack_inputs(stack or samples.stack(), base or samples.base(), fixes)


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": samples.stack(packages={"alpha": "1.2.1"})},
        {"stack": samples.stack(builds=())},
        {"base": samples.base(python="3.12")},
        {"base": samples.base(platform="linux/arm64")},
        {"base": samples.base(torch=("torch==2.1.0",))},
        {"fix": samples.fix(remedy=samples.remedy(override=("omegaconf==2.3.0",)))},
        {"fix": samples.fix(remedy=samples.remedy(exclude=("torchaudio",)))},
    ],
)
def test_what_decides_a_stacks_lock_changes_its_digest(changes):
    assert stack_inputs(**changes) != stack_inputs()


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": samples.stack(summary="another", env={"A": "1"}, system=("vim",))},
        {"stack": samples.stack(fixes=("alpha-old", "unknown"))},
        {"base": samples.base(summary="another", env={})},
        {"fix": samples.fix(remedy=samples.remedy(env={"A": "1"}))},
    ],
)
def test_what_does_not_decide_a_stacks_lock_leaves_its_digest(changes):
    assert stack_inputs(**changes) == stack_inputs()


def test_a_pulled_bases_reference_decides_and_a_made_ones_does_not():
    made, there = samples.base(reference="other"), samples.pulled(reference="other")
    assert stack_inputs(base=made) == stack_inputs()
    assert stack_inputs(base=there) != stack_inputs(base=samples.pulled())


def test_what_a_base_out_of_files_provides_decides_its_locks():
    one, other = samples.carried(), samples.carried(provides={})
    assert lock.base_inputs(one) != lock.base_inputs(other)
    assert lock.base_inputs(samples.pulled()) == lock.base_inputs(samples.pulled(provides={}))


@pytest.mark.parametrize("changes", [{"version": "3.1"}, {"requires": ()}, {"package": "other"}])
def test_what_decides_a_wheels_lock_changes_its_digest(changes):
    assert lock.wheel_inputs(samples.wheel(**changes)) != lock.wheel_inputs(samples.wheel())


def test_a_wheels_lock_keeps_what_other_bases_need_until_it_is_declared_anew():
    new, old = (samples.locked(*pins.split()) for pins in ("a==2 b==1", "a==1 c==1"))
    assert lock.versions(lock.parse_lock(lock.extended(new, old))) == {
        "a": "2", "b": "1", "c": "1",
    }  # fmt: skip
    assert lock.locked_inputs(lock.extended(new, old)) == lock.locked_inputs(new)
    assert lock.extended(new, old.replace("f" * 64, "e" * 64)) == new
    assert lock.extended(new, "") == new


def test_a_digest_is_the_same_on_every_run():
    # Written down once: a change of how digests are made makes every committed lock stale.
    text = '{"platform": "linux/amd64", "python": "3.11", "torch": ["torch==2.0.0"]}'
    wanted = "sha256:3b609d76daabb1516601f2b7287a9349ca017e65ce4d89c2803822e971572f28"
    assert hashlib.sha256(text.encode()).hexdigest() == wanted.removeprefix("sha256:")
    assert lock.base_inputs(samples.base()) == wanted


def test_the_lock_of_a_pulled_base_names_its_image_and_all_that_it_holds():
    base = samples.pulled(reference="registry.example:5000/nv/torch:25.12-py3")
    text = lock.render_pulled(base, A, {"torch": "2.1.0a0+nv", "numpy": "2.0.0"})
    assert text == (
        "# Written by `invoke lock --base gpu`; do not edit.\n"
        f"# inputs: {lock.pulled_inputs(base)}\n"
        f"# image: registry.example:5000/nv/torch@{A}\n"
        "numpy==2.0.0\n"
        "torch==2.1.0a0+nv\n"
    )
    found = lock.pinned(base, {"images/bases/gpu.lock": text})
    assert found.image == f"registry.example:5000/nv/torch@{A}"
    assert lock.pinned(base, {}).image == base.reference
    of_other = {"images/bases/cpu.lock": text}
    assert lock.pinned(samples.base(), of_other).image == "stackyard/base:cpu"


def test_a_stacks_lock_belongs_to_one_image_of_a_pulled_base():
    base = samples.pulled()
    one, other = (
        lock.pinned(base, {"images/bases/gpu.lock": lock.render_pulled(base, digest, {})})
        for digest in (A, B)
    )
    digests = {lock.stack_inputs(samples.stack(), b, {}) for b in (base, one, other)}
    assert len(digests) == 3


def of_stack(stack, base, inputs, *pins):
    """A stack's lock on a base, as `invoke lock` makes it."""
    found = [lock.Locked(name=n, version=v, hashes=(A,)) for n, v in (p.split("==") for p in pins)]
    command = lock.stack_command(stack, base)
    return lock.render_lock(found, inputs=f"sha256:{inputs * 64}", command=command)


def test_bases_that_need_the_same_packages_share_the_file_of_the_first():
    same = {
        f"images/toy/{base}.lock": of_stack("toy", base, inputs, "x==1")
        for base, inputs in (("a", "1"), ("b", "2"), ("c", "3"))
    }
    others = {
        "images/toy/d.lock": of_stack("toy", "d", "4", "x==2"),
        "images/other/a.lock": of_stack("other", "a", "5", "x==1"),
        "images/bases/a.lock": samples.locked("x==1"),
        "images/wheels/x.lock": samples.locked("x==1"),
    }
    held = lock.files(same | others)
    assert held == others | {
        "images/toy/a.lock": (
            "# Written by `invoke lock toy --base a`; do not edit.\n"
            f"# inputs: sha256:{'1' * 64}\n"
            f"# inputs on b: sha256:{'2' * 64}\n"
            f"# inputs on c: sha256:{'3' * 64}\n"
            f"x==1 \\\n    --hash={A}\n"
        )
    }
    assert lock.parse_lock(held["images/toy/a.lock"]) == lock.parse_lock(same["images/toy/a.lock"])
    back = {}
    for path, text in held.items():
        back |= lock.spread(path, text)
    assert back == same | others
    assert lock.holders(same | others) == {
        **dict.fromkeys(same, "images/toy/a.lock"), **{path: path for path in others},
    }  # fmt: skip


def test_a_copied_stack_has_the_locks_of_all_bases_and_a_renamed_file_only_its_own():
    text = lock.files({
        f"images/toy/{base}.lock": of_stack("toy", base, "1", "x==1") for base in ("a", "b")
    })["images/toy/a.lock"]  # fmt: skip
    copy = lock.spread("images/copy/a.lock", text)
    assert set(copy) == {"images/copy/a.lock", "images/copy/b.lock"}
    assert lock.files(copy) == {"images/copy/a.lock": text}
    assert lock.spread("images/toy/c.lock", text) == {"images/toy/c.lock": text}
    assert lock.holders({"images/toy/c.lock": text}) == {"images/toy/c.lock": "images/toy/c.lock"}
