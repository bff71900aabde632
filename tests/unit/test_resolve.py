"""What uv is asked for, and what is left out because the base provides it."""

from pathlib import Path

import pytest

from stackyard import resolve
from stackyard.errors import StackyardError
from stackyard.lock import Locked
from stackyard.settings import CallerSettings
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
        "base cpu names torch==2.0.0, and what was resolved is torch 2.0.0+cpu: another build"
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
