"""Bundles: what goes in, that every byte is checked, and whether one fits what is built."""

import io
import json
import tarfile
import zipfile

import pytest

from stackyard.build import bundle
from stackyard.build.catalog import resolve
from stackyard.system.errors import UsageError
from tests.unit import samples


def locks():
    return {
        "images/toy/far.lock": samples.locked("alpha==1.2.0"),
        "images/wheels/beta.lock": samples.locked("beta==3.0", "numpy==2", "setuptools==80.0.0"),
    }


def image(**changes):
    base = changes.pop("base", samples.carried())
    values = {"bases": {"far": base}, "locks": locks(), **changes}
    return resolve(samples.definitions(**values), "toy", "far")


def uv_wheel():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("uv-1.data/scripts/uv", b"the program")
        archive.writestr("uv/__init__.py", b"")
    return buffer.getvalue()


CONTENT = {
    "wheels/alpha-1.2.0-py3-none-any.whl": b"alpha",
    "sdists/beta-3.0.tar.gz": b"beta",
    "debs/tini_1%3a0.19+x~1_amd64.deb": b"tini",
    "tool/requirements.lock": b"uv==1",
    "tool/uv-1-py3-none-manylinux_2_17_x86_64.whl": uv_wheel(),
}


def write_bundle(path, folder, of):
    """Write a bundle for an image, out of a folder that is made; what it says."""
    for name in bundle.FOLDERS:
        (folder / name).mkdir(parents=True)
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    return bundle.write(path, folder, [of])


@pytest.fixture
def made(tmp_path):
    """A bundle: where it is, and what it says."""
    path = tmp_path / "far.tar"
    return path, write_bundle(path, tmp_path / "content", image())


def test_what_was_packed_is_read_again(made):
    path, manifest = made
    assert bundle.read(path) == manifest
    assert set(manifest.files) == set(CONTENT)
    assert (manifest.base, manifest.stacks, manifest.python) == ("far", ("toy",), "3.12")
    assert manifest.packages == ("fortunes", "libwrap0", "rsync", "tini")
    assert set(manifest.locks) == set(locks())
    assert manifest.bytes_by_folder()["wheels"] == 5


def test_the_same_content_gives_the_same_bytes(made, tmp_path):
    path, _ = made
    other = tmp_path / "other.tar"
    bundle.write(other, tmp_path / "content", [image()])
    assert other.read_bytes() == path.read_bytes()


def test_nothing_half_written_is_left(made, tmp_path, monkeypatch):
    before = made[0].read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(bundle, "_add", full)
    with pytest.raises(OSError, match="no space"):
        bundle.write(made[0], tmp_path / "content", [image()])
    assert made[0].read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["content", "far.tar"]


# Damage


def repacked(path, change):
    """The bundle with its members (name, data) changed."""
    with tarfile.open(path) as archive:
        members = [(m.name, archive.extractfile(m).read()) for m in archive.getmembers()]
    with tarfile.open(path, "w") as archive:
        for name, data in change(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def manifest_changed(**changes):
    def change(members):
        (name, data), *rest = members
        return [(name, json.dumps({**json.loads(data), **changes}).encode()), *rest]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda ms: [(n, d.replace(b"alpha", b"omega") if n.startswith("wheels") else d)
                     for n, d in ms], "alpha-1.2.0-py3-none-any.whl has another sha256"),
        (lambda ms: [m for m in ms if not m[0].startswith("debs")], "cannot be found in it"),
        (lambda ms: [*ms, ("wheels/more.whl", b"")], "'wheels/more.whl' is not in its bundle.json"),
        (lambda ms: ms[1:], "it does not begin with bundle.json"),
        (lambda ms: [("bundle.json", b"[1]"), *ms[1:]], "bundle.json: "),
        (lambda ms: [("bundle.json", b"{"), *ms[1:]], "bundle.json: "),
        (manifest_changed(files={"../etc/passwd": "0"}), "bundle.json names '../etc/passwd'"),
        (manifest_changed(files={"/wheels/x": "0"}), "bundle.json names '/wheels/x'"),
        (manifest_changed(extra=1), "bundle.json: "),
    ],
)  # fmt: skip
def test_a_changed_bundle_is_refused(made, change, why):
    path, _ = made
    repacked(path, change)
    with pytest.raises(UsageError) as caught:
        bundle.read(path)
    assert caught.value.what == f"{path} is no bundle, or a damaged one"
    assert why in caught.value.why


def test_a_cut_off_bundle_is_refused(made):
    path, _ = made
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UsageError, match="no bundle, or a damaged one"):
        bundle.read(path)


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\x1f\x8bcompressed"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match="no bundle, or a damaged one"):
        bundle.read(tmp_path / "x")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.tar cannot be read") as caught:
        bundle.read(tmp_path / "gone.tar")
    assert caught.value.why == "No such file or directory"


def test_another_format_says_which(made):
    repacked(made[0], manifest_changed(format=2))
    with pytest.raises(UsageError, match="of format 2, this is Stackyard with format 1"):
        bundle.read(made[0])


# Fit


def test_a_bundle_fits_what_it_was_made_for(made):
    bundle.require_fit(made[0], made[1], image())


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"locks": {**locks(), "images/toy/far.lock": samples.locked("alpha==1.3.0")}},
         "images/toy/far.lock has changed since"),
        ({"stacks": {"toy": samples.stack(system=("rsync", "strace"))}},
         "it lacks the packages strace"),
        ({"base": samples.carried(given_system=())}, "it lacks the packages g++ openssh-server"),
    ],
)  # fmt: skip
def test_a_bundle_that_does_not_fit_says_why(made, other, why):
    with pytest.raises(UsageError) as caught:
        bundle.require_fit(made[0], made[1], image(**other))
    assert caught.value.why == why
    assert "does not fit toy on far" in caught.value.what


def test_a_bundle_for_another_stack_and_base_names_its_locks(made):
    other = resolve(samples.definitions(), "toy", "cpu")
    with pytest.raises(UsageError) as caught:
        bundle.require_fit(made[0], made[1], other)
    assert caught.value.why.splitlines()[:2] == [
        "it is for base far", "images/bases/cpu.lock is not in it",
    ]  # fmt: skip


def test_a_base_that_installs_packages_cannot_be_built_from_one():
    with pytest.raises(UsageError, match="images on cpu cannot be built from a bundle") as caught:
        bundle.require_offline(samples.base())
    assert "package sources" in caught.value.why
    bundle.require_offline(samples.carried())


# Tools


def test_build_steps_get_everything_but_the_tools_own_wheels(made, tmp_path):
    bundle.write_tools(made[0], tmp_path / "tools.tar")
    with tarfile.open(tmp_path / "tools.tar") as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
        assert archive.getmember("uv").mode == 0o755
    assert found.pop("uv") == b"the program"
    assert "bundle.json" in found
    assert set(found) - {"bundle.json"} == {n for n in CONTENT if not n.startswith("tool/")}
