"""The pure half of the benchmarks: what is compared, and that a wrong comparison is seen."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from benchmarks import (
    cold_build,
    common,
    hand_build,
    mesh_nodes,
    mutations,
    one_package,
    private_engine,
)
from stackyard import lock
from stackyard.errors import StackyardError
from stackyard.load import load_definitions
from stackyard.project import ROOT

STACKS = ("accelerate", "fairseq", "megatron")
LOCK = lock.render_lock(
    [
        lock.Locked(name="einops", version="0.8.2", hashes=("sha256:" + "a" * 64,)),
        lock.Locked(name="regex", version="1.0", hashes=("sha256:" + "b" * 64,)),
    ],
    inputs="sha256:" + "0" * 64,
    command="invoke lock x",
)


def dockerfile(stack):
    return (hand_build.DOCKERFILES / f"{stack}.Dockerfile").read_text()


# results


def test_a_goal_is_met_up_to_its_value_and_never_by_nothing():
    def met(value):
        return common.Verdict(what="x", value=value, goal=0.8).met

    assert met(0.8)
    assert not met(0.81)
    assert not met(float("nan"))


def test_a_ratio_is_of_medians_and_needs_both_sides():
    assert common.median_ratio([1, 2, 30], [4, 4, 100]) == 0.5
    with pytest.raises(ValueError):
        common.median_ratio([], [1])


def test_a_result_keeps_every_single_run():
    runs = [{"side": "a", "seconds": 1.0}, {"side": "b", "seconds": 2.0}]
    verdicts = [common.Verdict(what="a", value=1.0, goal=2.0)]
    measured = common.Measured(title="t", runs=runs, panels=[], verdicts=verdicts)
    result = json.loads(json.dumps(common.as_result("n", {"cpus": "2"}, measured, "now")))
    assert result["runs"] == runs
    assert result["verdicts"] == [{"what": "a", "value": 1.0, "goal": 2.0, "met": True}]


def test_the_cpu_is_named():
    assert common.cpu_model("processor\t: 0\nmodel name\t: A CPU\n") == "A CPU"
    assert common.cpu_model("") == "unknown"


# the hand-written side


def shared_part(text):
    body, found, _ = text.partition("# END OF THE SHARED PART")
    assert found
    return body.splitlines()[1:]


def test_hand_written_images_share_the_layers_of_their_first_part():
    # The engine takes a step for the same one only where it and all before it are.
    parts = [shared_part(dockerfile(stack)) for stack in STACKS]
    assert parts[0] == parts[1] == parts[2]
    # Torch, the largest of them, is in that part.
    assert [line for line in parts[0] if "source=requirements/base.txt" in line]


@pytest.mark.parametrize("stack", STACKS)
def test_a_hand_written_dockerfile_has_what_the_definitions_name(stack):
    definitions, text = load_definitions(ROOT), dockerfile(stack)
    named = [*definitions.common.system, *definitions.common.build_system]
    named += definitions.common.text_packages
    assert [package for package in named if f" {package}" not in text] == []
    wheels = [definitions.wheels[name] for name in definitions.stacks[stack].builds]
    assert [w.package for w in wheels if f"{w.package}=={w.version}" not in text] == []


def copied(text):
    """The project's files that a Dockerfile copies into its image."""
    return {w for w in text.split() if w.startswith("stackyard/inside/") and "," not in w}


@pytest.mark.parametrize("stack", STACKS)
def test_a_hand_written_dockerfile_copies_what_the_rendered_one_does(stack):
    rendered = (ROOT / "images" / stack / "cpu.Dockerfile").read_text()
    mounted = {
        word.split("source=")[1].split(",")[0]
        for word in rendered.split()
        if "target=/mnt/inside/" in word
    }
    assert copied(dockerfile(stack)) == mounted != set()


def test_requirements_are_the_locks_pins_without_hashes():
    assert hand_build.requirements(LOCK) == "einops==0.8.2\nregex==1.0\n"


def test_secrets_reach_the_builder_as_files_never_as_words():
    client = hand_build.build.Client(path="docker", buildx=False)
    secrets = {"pip.conf": Path("s/pip.conf")}
    hand = hand_build.Hand(
        client=client, folder=Path("c"), secrets=secrets, proxies={"P": "secret"}
    )
    words = hand_build.arguments(hand, "fairseq")
    assert "id=pip.conf,src=s/pip.conf" in words
    assert "secret" not in " ".join(words).replace("--secret", "")


# cold builds


def content(**packages):
    return {"python": packages, "files": {"/etc/ssh/sshd_config": "1"}, "debian": {"less": 1}}


def test_by_hand_may_hold_more_but_nothing_less_or_else():
    ours = content(einops="1")
    assert cold_build.missing(ours, content(einops="1", pip="2")) == []
    assert cold_build.missing(ours, content(einops="2")) == ["python: einops: 1, not 2"]
    assert cold_build.missing(ours, content()) == ["python: einops: 1, not there"]


def test_sides_that_differ_are_no_comparison():
    def run(side, **packages):
        return {"side": side, "content": {"x": content(**packages)}}

    ours = run(cold_build.OURS, einops="1")
    cold_build.require_same([ours, run(cold_build.SERIAL, einops="1")])
    with pytest.raises(StackyardError, match="same content"):
        cold_build.require_same([ours, run(cold_build.SERIAL, einops="2")])


def test_rows_are_found_after_progress():
    output = "[ 1.0 s] cpu: {\nhalf\n" + json.dumps({"images": [{"stack": "x"}]}, indent=1)
    assert cold_build.built_rows(output) == [{"stack": "x"}]


def test_time_and_bytes_are_judged_against_by_hand():
    def run(side, seconds, size):
        each = {"all": seconds, "x": seconds / 2}
        return {"side": side, "seconds": each, "bytes": size, "content": {"x": content(einops="1")}}

    runs = [
        run(cold_build.OURS, 60.0, 8e9),
        run(cold_build.SERIAL, 100.0, 9e9),
        run(cold_build.AT_ONCE, 70.0, 9e9),
    ]
    measured = cold_build.summarise(runs, ["x"])
    assert [round(verdict.value, 2) for verdict in measured.verdicts] == [0.6, 0.86, 0.89]
    assert [verdict.met for verdict in measured.verdicts] == [True, False, False]
    assert measured.panels[0].series[cold_build.SERIAL] == [[100.0], [50.0]]


def saved(path):
    """An archive as older engines write it: the second layer is a link to the first."""
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:1", "sha256:2", "sha256:3"]}}).encode()
    layers = ["a/layer.tar", "b/layer.tar", "c/layer.tar"]
    manifest = json.dumps([{"Config": "c.json", "Layers": layers}]).encode()
    files = {"c.json": config, "manifest.json": manifest, layers[0]: b"1234", layers[2]: b"123456"}
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo(layers[1])
        link.type, link.linkname = tarfile.SYMTYPE, "../a/layer.tar"
        tar.addfile(link)


def test_layers_are_measured_by_digest_through_links(tmp_path):
    saved(tmp_path / "image.tar")
    sizes = cold_build.layer_bytes(tmp_path / "image.tar")
    assert sizes == {"sha256:1": 4, "sha256:2": 4, "sha256:3": 6}


def test_mounts_of_the_benchmarks_engine_are_found_and_no_others():
    text = "proc /proc proc rw 0 0\na /b/data/x x rw 0 0\na /b/data x rw 0 0\na /bother x rw 0 0\n"
    assert private_engine.mounts_below(text, Path("/b")) == ["/b/data", "/b/data/x"]


# one package


def test_a_pin_is_set_or_added():
    text = 'name: x\npackages:\n  a: "1"\nbuilds: []\n'
    assert '  a: "2"\n' in one_package.with_pin(text, "a", "2")
    assert 'packages:\n  b: "3"\n  a: "1"\n' in one_package.with_pin(text, "b", "3")


def test_only_one_entry_of_a_lock_changes():
    moved = (
        LOCK.replace("0.8.2", "0.8.1").replace("regex==1.0", "regex==9").replace("0" * 64, "c" * 64)
    )
    changed = one_package.with_entry(LOCK, moved, "einops", "invoke lock x")
    assert lock.versions(lock.parse_lock(changed)) == {"einops": "0.8.1", "regex": "1.0"}
    assert lock.locked_inputs(changed) == "sha256:" + "c" * 64
    with pytest.raises(StackyardError):
        one_package.with_entry(LOCK, LOCK, "absent", "invoke lock x")


def row(stack, image, made):
    return {"stack": stack, "image": image, "made": made}


def test_a_rebuild_touches_one_stack_and_really_changes_it():
    before = {"a": "1", "b": "2"}
    one_package.require_only("a", [row("a", "9", True), row("b", "2", False)], before)
    for rows in (
        [row("a", "9", True), row("b", "8", False)],
        [row("a", "9", True), row("b", "2", True)],
        [row("a", "1", True), row("b", "2", False)],
        [row("a", "1", False), row("b", "2", False)],
    ):
        with pytest.raises(StackyardError, match="not just a"):
            one_package.require_only("a", rows, before)


# meshes


def test_a_mesh_may_take_its_seconds_or_so_many_times_docker_run():
    assert mesh_nodes.goal(2, bare=0.4) == 2.0
    assert mesh_nodes.goal(2, bare=4.0) == 10.0
    assert mesh_nodes.goal(4, bare=1.0) is None


# mutations


def mistake(**changes):
    values = {"file": "a.py", "tests": ["t"], "breaks": "x", "old": "a < b", "new": "a <= b"}
    return mutations.Mutation(**{**values, **changes})


def test_a_mutation_is_made_where_its_text_is_found_once():
    assert mutations.mutate("if a < b:\n    pass\n", mistake()) == "if a <= b:\n    pass\n"


@pytest.mark.parametrize(
    ("text", "changes", "why"),
    [
        ("if a > b: 1", {}, "is there 0 times"),
        ("if a < b: a < b", {}, "is there 2 times"),
        ("if a < b: 1", {"new": "a <"}, "is no Python there"),
    ],
)
def test_a_mutation_that_would_show_nothing_cannot_be_made(text, changes, why):
    with pytest.raises(ValueError, match=why):
        mutations.mutate(text, mistake(**changes))


def test_the_committed_mutations_are_read():
    found = mutations.read_list(mutations.LIST.read_text())
    assert len({(one.file, one.breaks) for one in found}) == len(found) >= 66


@pytest.mark.parametrize(
    ("changes", "unmet"),
    [
        ({"outcome": mutations.KILLED}, set()),
        ({"outcome": mutations.LATE}, set()),
        ({"outcome": mutations.SURVIVED, "survives": "y"}, set()),
        ({"outcome": mutations.SURVIVED}, {"survivors without a reason"}),
        ({"outcome": mutations.KILLED, "survives": "y"}, {"said to survive, but killed"}),
        ({"outcome": mutations.BROKEN}, {"not to be made"}),
        (
            {"outcome": mutations.SURVIVED, "survives": "y", "file": "stackyard/judge.py"},
            {"survivors in judge, verify and signing"},
        ),
    ],
)
def test_each_fault_of_tests_or_list_misses_a_goal(changes, unmet):
    others = [mistake(outcome=mutations.KILLED) for _ in range(59)]
    found = mutations.verdicts([mistake(**changes), *others])
    assert {verdict.what for verdict in found if not verdict.met} == unmet


def test_more_survivors_than_5_of_60_miss_the_goal():
    def met(count):
        left = [mistake(outcome=mutations.SURVIVED, survives="y")] * count
        others = [mistake(outcome=mutations.KILLED)] * (60 - count)
        return all(verdict.met for verdict in mutations.verdicts([*left, *others]))

    assert met(5) and not met(6)
