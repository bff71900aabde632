"""What uv is asked for, and what is left out because the base provides it."""

import json
from pathlib import Path

import pytest

from stackyard.build.locks import resolve
from stackyard.build.mirrors import CallerSettings
from stackyard.definitions import lock
from stackyard.definitions.lock import Locked
from stackyard.system.errors import CommandError, EngineError, StackyardError
from stackyard.system.image import ImageInfo
from tests.unit import samples

NOBODY = CallerSettings(secrets={}, wheel_folders=(), proxies={})


@pytest.fixture
def uv(monkeypatch):
    """Every command and the files that it was given; each answers with `answer`."""
    ran = []
    answer = {"text": "alpha==1.2.0 \\\n    --hash=sha256:" + "0" * 64}

    def run(argv, *, env, timeout):
        source = Path(argv[argv.index("compile") + 1])
        overrides = source.with_name("overrides.txt")
        said = overrides.read_text().split("\n") if overrides.exists() else []
        ran.append((argv, source.read_text().splitlines(), [line for line in said if line]))
        Path(argv[argv.index("-o") + 1]).write_text(answer["text"])

    monkeypatch.setattr(resolve.process, "run", run)
    return ran, answer


def test_what_a_base_provides_is_no_requirement_of_a_build(uv):
    wheel = samples.wheel(requires=("setuptools==80.0.0", "NumPy==2.4.6", "pip==26.3"))
    resolve.lock_wheel(wheel, samples.carried(), NOBODY)
    (_, sdist, _), (_, needs, dropped) = uv[0]
    assert sdist == ["beta==3.0"]
    assert needs == ["setuptools==80.0.0", "pip==26.3"]
    assert dropped == ["torch ; sys_platform == 'never'", "numpy ; sys_platform == 'never'"]


def test_a_build_on_a_base_that_provides_nothing_is_locked_whole(uv):
    wheel = samples.wheel(requires=("setuptools==80.0.0", "numpy==2.4.6"))
    resolve.lock_wheel(wheel, samples.base(), NOBODY)
    assert uv[0][1][1:] == (["setuptools==80.0.0", "numpy==2.4.6"], [])


def test_a_wheels_lock_is_the_union_of_what_its_build_needs_on_every_base(uv):
    wheel = samples.wheel(requires=("numpy==2.4.6",))
    pins = {"beta": "beta==3.0 --hash=sha256:" + "1" * 64, "numpy": "numpy==2.4.6"}

    def on(base, others=""):
        before, uv[1]["text"] = len(uv[0]), "\n".join(pins.values())
        (text,) = resolve.lock_wheel(wheel, base, NOBODY, others).values()
        return text, uv[0][before:]

    first, _ = on(samples.base())
    del pins["numpy"]  # the other base has it
    both, ran = on(samples.carried(), first)
    assert both == first
    assert lock.versions(lock.parse_lock(both)) == {"beta": "3.0", "numpy": "2.4.6"}
    assert len(ran) == 2


def test_bases_that_need_different_versions_for_a_build_are_told_to_pin_one(uv):
    others = samples.locked("beta==3.0", "packaging==25.0")
    uv[1]["text"] = "packaging==26.3"
    with pytest.raises(StackyardError) as caught:
        resolve.lock_wheel(samples.wheel(), samples.pulled(), NOBODY, others)
    said = "building beta needs packaging 26.3 on gpu, and 25.0 on other bases"
    assert (caught.value.what, caught.value.why) == (said, "one lock serves every base")
    assert "images/wheels/beta.yml" in caught.value.hint


def lock_on(base, **changes):
    stack = samples.stack(fixes=(), **changes)
    return resolve.lock_stack(stack, base, {}, base.provided, NOBODY)


def test_what_a_base_provides_is_left_out_of_a_stacks_resolution(uv):
    files = lock_on(samples.carried())
    assert list(files) == ["images/toy/far.lock"]
    ((argv, asked, dropped),) = uv[0]
    assert asked == ["alpha==1.2.0"]
    assert dropped == ["numpy ; sys_platform == 'never'", "torch ; sys_platform == 'never'"]
    assert argv[argv.index("--python-version") + 1] == "3.12"
    assert argv[argv.index("--python-platform") + 1] == "x86_64-manylinux_2_34"


@pytest.mark.parametrize(("package", "version"), [("torch", "2.10.0"), ("numpy", "2.4.6")])
def test_a_pin_on_what_a_base_provides_is_refused(uv, package, version):
    with pytest.raises(StackyardError) as caught:
        lock_on(samples.carried(), packages={package: version})
    assert f"toy wants {package} {version}, far provides " in caught.value.what
    assert caught.value.why == "what the base provides is never replaced"
    assert uv[0] == []


@pytest.mark.parametrize(
    ("held", "why"), [("torch-2.0.0+cpu-cp311-cp311-linux_x86_64.whl", "the wheel folder {folder}"),
                      ("torch-2.0.0-cp311-cp311-linux_x86_64.whl", "a package index")]
)  # fmt: skip
def test_a_lock_of_another_build_is_refused_and_who_offered_it_is_named(uv, tmp_path, held, why):
    uv[1]["text"] = "torch==2.0.0+cpu \\\n    --hash=sha256:" + "0" * 64
    (tmp_path / held).touch()
    caller = CallerSettings(secrets={}, wheel_folders=(tmp_path,), proxies={})
    with pytest.raises(StackyardError) as caught:
        resolve.lock_base(samples.base(), caller)
    assert caught.value.what == (
        "base cpu names torch==2.0.0, but uv resolved another build: torch 2.0.0+cpu"
    )
    assert caught.value.why == f"offered by {why.format(folder=tmp_path)}"
    assert caught.value.hint.startswith("write torch===2.0.0 in images/bases/cpu.yml")


def test_the_addresses_of_sources_are_read_from_uvs_answer(uv):
    uv[1]["text"] = (
        '[[packages]]\nname = "a"\n'
        'sdist = { url = "https://x/a-1.tar.gz", hashes = { sha256 = "0" } }\n'
        'wheels = [{ url = "https://x/a.whl" }]\n'
        '[[packages]]\nname = "b"\n'
        'sdist = { upload-time = 2021, url = "https://x/b-2.tar.gz" }\n'
    )
    locked = [Locked(name="a", version="1", hashes=()), Locked(name="b", version="2", hashes=())]
    found = resolve.find_sdists(locked, samples.base(), NOBODY)
    assert found == ["https://x/a-1.tar.gz", "https://x/b-2.tar.gz"]
    ((argv, asked, _),) = uv[0]
    assert asked == ["a==1", "b==2"]
    assert argv[argv.index("--format") + 1] == "pylock.toml"


# Bases that are pulled.

HELD = {"torch": "2.1.0a0+nv", "numpy": "2.0.0", "regex": "2024.1", "apex": "0+of.its.own"}


def lock_pulled(**changes):
    stack = samples.stack(fixes=(), builds=())
    base = samples.pulled(**changes)
    (text,) = resolve.lock_stack(stack, base, {}, HELD, NOBODY).values()
    return text


@pytest.fixture
def read(monkeypatch):
    """What uv finds in its constraints, and in the file that it is to write."""
    found = {"answer": ["alpha==1.2.0"]}

    def run(argv, *, env, timeout):
        out = Path(argv[argv.index("-o") + 1])
        found["preferred"] = out.read_text().splitlines()
        source = Path(argv[argv.index("compile") + 1])
        text = source.with_name("constraints.txt").read_text()
        found["constraints"] = dict(line.split("=", 1) for line in text.split())
        found["dropped"] = source.with_name("overrides.txt").read_text().split("\n")
        if isinstance(found["answer"], Exception):
            raise found["answer"]
        out.write_text("".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in found["answer"]))

    monkeypatch.setattr(resolve.process, "run", run)
    return found


def test_what_a_pulled_base_holds_in_versions_of_an_index_is_a_constraint(read):
    read["answer"] = ["alpha==1.2.0", "numpy==2.0.0"]
    text = lock_pulled()
    assert sorted(read["constraints"]) == ["numpy", "regex"]
    never = " ; sys_platform == 'never'"
    assert [line for line in read["dropped"] if line] == [f"apex{never}", f"torch{never}"]
    assert lock.versions(lock.parse_lock(text)) == {"alpha": "1.2.0"}


def test_what_may_be_replaced_is_kept_where_it_serves(read):
    read["answer"] = ["alpha==1.2.0", "regex==2024.1"]
    text = lock_pulled(replaceable=("regex",))
    assert (sorted(read["constraints"]), read["preferred"]) == (["numpy"], ["regex==2024.1"])
    assert lock.versions(lock.parse_lock(text)) == {"alpha": "1.2.0"}
    read["answer"] = ["alpha==1.2.0", "regex==2025.1"]
    assert "regex==2025.1" in lock_pulled(replaceable=("regex",))


def test_a_base_in_whose_way_something_is_says_what_to_write(read):
    read["answer"] = CommandError("uv failed", code=1, why="alpha wants regex>=2025")
    with pytest.raises(StackyardError) as caught:
        lock_pulled()
    assert caught.value.what == "the requirements of toy do not fit the packages in gpu"
    assert caught.value.why == "alpha wants regex>=2025"
    assert "name the package under `replaceable` in images/bases/gpu.yml" in caught.value.hint


DIGEST = "sha256:" + "1" * 64
NAMES = {"registry.example/torch:1": (f"registry.example/torch@{DIGEST}",)}


class Holding:
    """An engine that holds or pulls one image, which says `said` when it is read."""

    def __init__(self, said, *, here=(), there=NAMES):
        self.said, self.here, self.there, self.pulled = said, dict(here), there, []

    def room(self):
        self.pulled.append("room")

    def image(self, name):
        if name not in {*self.here, "id"}:
            return None
        digests = self.here.get(name, ())
        return ImageInfo(id="id", tags=(), labels={}, env=(), size=1, layers=(), digests=digests)

    def pull(self, name):
        self.pulled.append(name)
        self.here = dict(self.there)
        return self.image(name)

    def run_once(self, image, argv, *, seconds):
        assert (image, argv[:2]) == ("id", ["python3", "-c"])
        return self.said


def says(*held, python="3.12"):
    noise = "== PyTorch ==\nWARNING: The NVIDIA Driver was not detected.\n"
    return f"{noise}{json.dumps({'python': python, 'held': held})}\nbash: PS1: unbound variable\n"


TORCH = ("torch", "2.1.0a0+nv")


def test_the_digest_and_the_inventory_are_those_of_one_image():
    said = says(TORCH, ("NumPy", "2.0.0"), ("numpy", "1.0"), (None, "1"), ("odd", "1.0-x/y"))
    engine = Holding(said)
    found = resolve.survey(engine, samples.pulled(), engine.room)
    held = {"torch": "2.1.0a0+nv", "numpy": "2.0.0", "odd": "0+1.0.x.y"}
    assert (found, engine.pulled) == ((DIGEST, held), ["room", "registry.example/torch:1"])
    assert resolve.survey(engine, samples.pulled(), engine.room) == found
    assert len(engine.pulled) == 2


def test_too_little_disk_is_said_before_an_image_is_pulled_to_be_read():
    engine = Holding(says(TORCH))

    def full():
        raise EngineError("9 GiB are missing")

    with pytest.raises(EngineError, match="9 GiB are missing"):
        resolve.survey(engine, samples.pulled(), full)
    assert engine.pulled == []


@pytest.mark.parametrize(
    ("named", "listed"),
    [
        ("docker.io/x/torch", "x/torch"),
        ("x/torch", "docker.io/x/torch"),
        ("index.docker.io/x/torch", "x/torch"),
        ("docker.io/library/torch", "torch"),
        ("torch", "docker.io/library/torch"),
    ],
)
def test_an_image_of_docker_hub_has_its_digest_under_every_name_of_it(named, listed):
    there = {f"{named}:1": (f"{listed}@{DIGEST}",)}
    engine = Holding(says(TORCH), here=there)
    base = samples.pulled(reference=f"{named}:1")
    assert resolve.survey(engine, base, engine.room)[0] == DIGEST
    assert engine.pulled == []


@pytest.mark.parametrize(
    ("said", "there", "what", "why"),
    [
        (says(TORCH), {"registry.example/torch:1": ()}, "has no digest", "the engine holds it"),
        (says(TORCH), {"registry.example/torch:1": (f"other/torch@{DIGEST}",)}, "no digest", ""),
        (says(TORCH), {"registry.example/torch:1": (f"docker.io/torch@{DIGEST}",)}, "no digest",
         ""),
        (says(("torch", "2.2")), NAMES, "does not hold what images/bases/gpu.yml says",
         "torch: gpu declares 2.1.0a0+nv, the image holds 2.2"),
        (says(), NAMES, "does not hold what", "the image holds none"),
        (says(TORCH, python="3.13"), NAMES, "has Python 3.13, gpu declares 3.12", "wheels"),
        ("python3: not found", NAMES, "no inventory from id", "python3: not found"),
    ],
)  # fmt: skip
def test_an_image_that_is_not_as_its_base_says_is_refused(said, there, what, why):
    with pytest.raises(StackyardError) as caught:
        resolve.survey(Holding(said, here=there, there=there), samples.pulled(), lambda: None)
    assert what in caught.value.what
    assert why in caught.value.why
