"""The pure half of the benchmarks: what is compared, and that a wrong comparison is seen."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import (
    cold_build,
    common,
    data_large,
    hand_build,
    mesh_nodes,
    mutations,
    one_package,
    private_engine,
)
from stackyard.build import catalog
from stackyard.definitions import lock
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT, load_project
from stackyard.release.spool import Layer
from stackyard.system.errors import StackyardError

STACKS = ("accelerate", "fairseq", "megatron")
PROJECT = load_project()
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


# What Debian installs for packages that the files name: g++ and python3-dev depend on them.
IMPLIED = {"gcc": "g++", "libc6-dev": "g++", "libpython3.11-dev": "python3-dev"}


@pytest.mark.parametrize("base", cold_build.BASES)
@pytest.mark.parametrize("stack", STACKS)
def test_a_hand_written_dockerfile_has_what_the_definitions_name(stack, base):
    definitions, text = load_definitions(ROOT), dockerfile(stack)
    named = [*definitions.common.system, *definitions.common.build_system]
    named += [*definitions.common.text_packages, *definitions.bases[base].bootstrap.packages]
    words = text.replace("(", " ").replace(")", " ").split()
    assert [package for package in named if IMPLIED.get(package, package) not in words] == []
    wheels = [definitions.wheels[name] for name in definitions.stacks[stack].builds]
    assert [w.package for w in wheels if f"{w.package}=={w.version}" not in text] == []


def variables(text, device):
    """What a Dockerfile sets in an image for a device: in that device's stage, and in the last."""
    stages = dict(stage.split("\n", 1) for stage in text.split("\nFROM ")[1:])
    taken = [body for name, body in stages.items() if name.endswith((f"for-{device}", "}"))]
    lines = [line for body in taken for line in body.splitlines() if line.startswith("ENV ")]
    pairs = (word.split("=") for line in lines for word in line.split()[1:])
    return {name: value.strip('"') for name, value in pairs}


@pytest.mark.parametrize("base", cold_build.BASES)
@pytest.mark.parametrize("stack", STACKS)
def test_a_hand_written_image_has_the_environment_of_its_base(stack, base):
    image = catalog.resolve(PROJECT.definitions, stack, base)
    wanted = {name: setting.value for name, setting in image.env.items()}
    assert variables(dockerfile(stack), image.base.device) == wanted


@pytest.mark.parametrize("base", cold_build.BASES)
@pytest.mark.parametrize("stack", STACKS)
def test_wheels_are_compiled_by_hand_with_the_environment_of_ours(stack, base):
    steps = dockerfile(stack).replace("'", "").split("\nRUN ")
    for wheel in catalog.resolve(PROJECT.definitions, stack, base).wheels:
        (step,) = [one for one in steps if f"{wheel.wheel.package}==" in one]
        assert [n for n, value in wheel.env.items() if f"{n}={value}" not in step] == []


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


def test_a_gpu_base_takes_the_build_of_torch_that_it_names_and_no_local_one(tmp_path):
    base = PROJECT.definitions.bases["cuda"]
    local = tmp_path / "local"
    local.mkdir()
    for version in ("2.13.0+cpu", "2.12.0"):
        (local / f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    hand_build.write_context(PROJECT, base, tmp_path / "context", (local,))
    written = (tmp_path / "context" / "requirements" / "base.txt").read_text().splitlines()
    assert "torch===2.13.0" in written
    assert "numpy==2.4.6" in written
    assert list((tmp_path / "context" / "wheels").glob("*.whl")) == []


def test_a_build_of_torch_that_the_public_index_lacks_must_be_on_this_machine(tmp_path):
    base, wheel = PROJECT.definitions.bases["cpu"], "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    with pytest.raises(StackyardError, match="in no local folder"):
        hand_build.write_context(PROJECT, base, tmp_path / "without", ())
    (tmp_path / wheel).touch()
    hand_build.write_context(PROJECT, base, tmp_path / "with", (tmp_path,))
    assert (tmp_path / "with" / "wheels" / wheel).is_file()


@pytest.mark.parametrize("base", cold_build.BASES)
def test_every_file_that_a_hand_written_dockerfile_mounts_or_copies_is_in_the_context(
    tmp_path, base
):
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    context = tmp_path / "context"
    hand_build.write_context(PROJECT, PROJECT.definitions.bases[base], context, (tmp_path,))
    for stack in STACKS:
        text = (context / hand_build.dockerfile_name(stack)).read_text()
        sources = [w.split("source=")[1].split(",")[0] for w in text.split() if "source=" in w]
        assert f"fixes/{stack}.json" in sources
        for path in (*sources, *copied(text)):
            assert (context / path).exists(), path
        fixes = json.loads((context / hand_build.fixes_path(stack)).read_text())
        named = " ".join(fix["id"] for fix in fixes)
        assert f"--only {named} " in (ROOT / f"images/{stack}/{base}.Dockerfile").read_text()


def test_the_dockerfiles_are_told_which_device_images_are_for():
    client = hand_build.buildkit.Client(path="docker", buildx=False)
    hand = hand_build.Hand(client=client, folder=Path("c"), secrets={}, proxies={}, device="cuda")
    assert "DEVICE=cuda" in hand_build.arguments(hand, "fairseq")


def test_secrets_reach_the_builder_as_files_never_as_words():
    client = hand_build.buildkit.Client(path="docker", buildx=False)
    secrets = {"pip.conf": Path("s/pip.conf")}
    hand = hand_build.Hand(
        client=client, folder=Path("c"), secrets=secrets, proxies={"P": "secret"}
    )
    words = hand_build.arguments(hand, "fairseq")
    assert "id=pip.conf,src=s/pip.conf" in words
    assert "secret" not in " ".join(words).replace("--secret", "")


# cold builds


def content(**packages):
    return {
        "python": packages,
        "files": {"/etc/ssh/sshd_config": "1"},
        "debian": {"less": 1},
        "env": {"LANG": "C.UTF-8"},
    }


@pytest.mark.parametrize("kind", ["files", "debian", "env"])
def test_a_file_debian_package_or_variable_that_is_missing_is_seen(kind):
    ours = content()
    ((name, value),) = ours[kind].items()
    assert cold_build.missing(ours, {**ours, kind: {}}) == [f"{kind}: {name}: {value}, not there"]


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


def layer(name, size):
    return Layer(diff_id=name, unpacked=int(size * 1e9), digest=f"z{name}", size=int(size * 4e8))


def run(side, seconds=100.0, torch=1.9, own=0.15):
    images = {
        "x": [layer("base", 0.4), layer(f"torch {torch}", torch), layer("x", own)],
        # Above a layer of its own, also what both have is the stack's.
        "y": [
            layer("base", 0.4),
            layer(f"torch {torch}", torch),
            layer("y", 0.05),
            layer("z", 0.1),
        ],
    }
    return {
        "side": side,
        "seconds": {"all": seconds, "x": seconds / 2},
        **cold_build.weighed(images),
        "content": {"x": content(einops="1")},
    }


def test_layers_are_counted_once_and_a_stacks_own_from_the_bottom():
    found = run("stackyard")
    assert found["bytes"] == 2_600_000_000
    assert found["layers"]["torch 1.9"] == 1_900_000_000
    assert found["pulled"]["torch 1.9"] == 760_000_000
    assert found["images"]["x"]["bytes"] == 2_450_000_000
    assert found["images"]["x"]["pulled_bytes"] == 980_000_000
    assert found["images"]["y"]["largest_layer"] == 1_900_000_000
    assert [found["images"][stack]["own_bytes"] for stack in "xy"] == [150_000_000, 150_000_000]


def runs(**ours):
    others = [run(cold_build.SERIAL, 100.0, torch=2.5), run(cold_build.AT_ONCE, 70.0, torch=2.5)]
    return [run(cold_build.OURS, **{"seconds": 60.0, **ours}), *others]


def test_time_and_bytes_are_judged_against_by_hand():
    measured = cold_build.summarise(runs(), ["x", "y"], "cpu")
    assert [round(verdict.value, 2) for verdict in measured.verdicts] == [0.6, 0.86, 0.81]
    assert [verdict.met for verdict in measured.verdicts] == [True, False, False]
    assert measured.panels[0].series[cold_build.SERIAL] == [[100.0], [50.0], []]
    assert len(measured.panels) == 2


@pytest.mark.parametrize(
    ("ours", "unmet"),
    [
        ({}, []),
        ({"torch": 2.01}, ["layer, in GB, the largest"]),
        ({"own": 0.21}, ["what a stack adds to what all share, in GB, the largest"]),
        ({"torch": 5.1}, ["image, in GB, the largest", "layer, in GB, the largest"]),
    ],
)
def test_images_of_a_gpu_base_keep_its_limits(ours, unmet):
    verdicts = cold_build.limit_verdicts(runs(**ours), "cuda")
    assert len(verdicts) == 3
    assert [verdict.what for verdict in verdicts if not verdict.met] == unmet


def test_images_of_a_gpu_base_are_shown_beside_those_of_others_which_name_their_source():
    measured = cold_build.summarise(runs(), ["x", "y"], "cuda")
    *_, unpacked, pulled = measured.panels
    assert len(unpacked.x) == len(unpacked.limit) == 2 + len(cold_build.OTHERS)
    assert all(len(values) == len(unpacked.x) for values in unpacked.series.values())
    assert unpacked.series[cold_build.OURS][:2] == [[2.45], [2.45]]
    assert pulled.series[cold_build.OURS] == [[0.98], [0.98]]
    said = [found for found in measured.runs if found["side"] == cold_build.PUBLISHED]
    assert [found["gigabytes"] for found in said] == [
        other.gigabytes for other in cold_build.OTHERS
    ]
    page = (Path(cold_build.__file__).parent / "README.md").read_text()
    assert [found["source"] for found in said if found["source"] not in page] == []
    assert {found["name"].split()[0] for found in said} == {"NVIDIA", "AWS"}


def test_each_base_has_a_result_of_its_own():
    names = [cold_build.result_name(base) for base in cold_build.BASES]
    assert names == ["cold_build", "cold_build_cuda"]


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
        with pytest.raises(StackyardError, match="did not change a alone"):
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


def test_every_committed_mutation_can_be_made_in_the_code_of_today():
    for mutation in mutations.read_list(mutations.LIST.read_text()):
        text = (ROOT / mutation.file).read_text()
        assert mutations.mutate(text, mutation) != text, mutation.breaks


def test_a_run_leaves_out_the_test_that_finds_every_mutation():
    path, name = mutations.FINDS_ALL.split("::")
    assert (ROOT / path, globals().get(name) is not None) == (Path(__file__).resolve(), True)


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
            {"outcome": mutations.SURVIVED, "survives": "y", "file": "stackyard/validate/judge.py"},
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


# large data


def large(**changed):
    runs = [
        {"side": data_large.OURS, "megabytes": size, "workers": 2, "seconds": size / 10,
         "memory": 300 * 10**6, "disk": 107, "written": 100}
        for size in (500, 5000)
    ]  # fmt: skip
    runs[-1] |= changed
    runs.append({"side": data_large.LINES, "megabytes": 500, "seconds": 150.0})
    return [verdict.met for verdict in data_large.verdicts(runs, (500, 5000))]


def test_large_data_are_judged_by_time_growth_memory_and_disk():
    assert large() == [True, True, True, True]
    assert large(seconds=650) == [True, False, True, True]
    assert large(memory=601 * 10**6) == [True, True, False, True]
    assert large(disk=200) == [True, True, True, False]


def test_large_files_are_lines_of_json_in_a_fixed_order(tmp_path):
    for name in "ab":
        data_large.make_file(["你好", 'say "x"'], 100_000, tmp_path / name)
    text = gzip.decompress((tmp_path / "a").read_bytes())
    assert text == gzip.decompress((tmp_path / "b").read_bytes())
    assert len(text) >= 100_000
    assert {json.loads(line)["text"] for line in text.splitlines()} == {"你好", 'say "x"'}
