"""Debian packages in a folder: locked by version and hash, and no others beside them."""

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from stackyard.build import packages, recipe
from stackyard.build.mirrors import CallerSettings
from stackyard.system.chunks import digest_of_file
from stackyard.system.errors import CommandError, StackyardError
from tests.unit.debs import deb, sha256, source

PLATFORM = "linux/amd64"
needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="apt reads the archive")
pytestmark = pytest.mark.usefixtures("allow_processes")


def archive(folder, *more):
    """An archive: something essential, a program and what it needs, a text."""
    deb(folder, "ground", Essential="yes", Priority="required")
    deb(folder, "lib", "1:2.0-1")
    deb(folder, "app", "1.0", Depends="lib", Recommends="extra")
    deb(folder, "extra")
    deb(folder, "text", Depends="extra")
    for name, version in more:
        deb(folder, name, version)
    packages.write_index(folder)
    return folder


def collect(place, out, install=("app",), download=("text",)):
    return packages.collect(
        out, platform=PLATFORM, install=install, download=download, sources=source(place)
    )


def listed(folder):
    found = packages.read_index((folder / packages.INDEX).read_text())
    return {one.name: one.version for one in found}


def test_apt_has_sources_lists_and_architecture_of_its_own():
    words = packages.apt_command("linux/arm64", Path("/b"), "download", "tini")
    assert words[0] == "apt-get"
    assert words[-2:] == ["download", "tini"]
    assert {
        "APT::Architecture=arm64",
        "Dir::Etc::Preferences=/dev/null",
        "Dir::Etc::SourceList=/dev/null",
        "Dir::Etc::SourceParts=/b/sources",
        "Dir::State::status=/dev/null",
        "Dir::State::Lists=/b/apt/lists",
    } <= set(words)


def test_apt_keeps_what_it_read_of_its_lists_for_the_next_command():
    # apt.conf.d of Debian's container images says that nothing is kept.
    words = packages.apt_command("linux/amd64", Path("/b"), "update")
    assert "Dir::Cache::pkgcache=pkgcache.bin" in words
    assert "Dir::Cache::srcpkgcache=srcpkgcache.bin" in words


def test_sources_of_the_callers_are_taken_as_they_are():
    own = CallerSettings(secrets={"apt.sources": b"own"}, wheel_folders=(), proxies={})
    assert packages.sources_of("bookworm", own) == b"own"


@pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="mmdebstrap knows Debian's archive")
def test_without_sources_of_the_callers_they_are_those_of_mmdebstrap():
    text = packages.sources_of("bookworm", CallerSettings(secrets={}, wheel_folders=(), proxies={}))
    lines = [re.sub(r"\[.*?\] |https?://[^ ]*", "", line) for line in text.decode().split("\n")]
    wanted = ["bookworm", "bookworm-updates", "bookworm-security"]
    assert [line.split() for line in lines if line] == [["deb", suite, "main"] for suite in wanted]


@pytest.mark.parametrize(("text", "name"), [
    (b"deb [trusted=yes] file:/a ./\n", "caller.list"),
    (b"Types: deb\nURIs: file:/a\n", "caller.sources"),
])  # fmt: skip
def test_apt_is_told_the_form_of_its_sources_by_their_name(tmp_path, text, name):
    packages.prepare(tmp_path, text)
    assert (tmp_path / "sources" / name).read_bytes() == text


@needs_apt
def test_what_is_essential_and_asked_for_is_fetched_with_what_it_needs_and_locked(tmp_path):
    place = archive(tmp_path / "archive", ("lib", "1:1.9"))
    digest = collect(place, tmp_path / "out")
    found = packages.read_index((tmp_path / "out" / packages.INDEX).read_text())
    assert digest == digest_of_file(tmp_path / "out" / packages.INDEX)
    # Nothing that is only recommended; of a text not even what it needs.
    assert {one.name: one.version for one in found} == {
        "app": "1.0", "ground": "1", "lib": "1:2.0-1", "text": "1",
    }  # fmt: skip
    for one in found:
        path = tmp_path / "out" / one.file
        assert (one.sha256, one.size) == (sha256(path), path.stat().st_size)
        assert (place / one.file).read_bytes() == path.read_bytes()


@needs_apt
def test_a_locked_folder_is_an_archive_of_just_these_packages(tmp_path):
    digest = collect(archive(tmp_path / "archive"), tmp_path / "one")
    assert collect(tmp_path / "one", tmp_path / "two") == digest
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


@needs_apt
def test_a_package_that_no_source_has_is_named(tmp_path):
    with pytest.raises(CommandError, match="apt-get") as caught:
        collect(archive(tmp_path / "archive"), tmp_path / "out", install=("gone",))
    assert "gone" in caught.value.why


# The same packages from an archive that has moved on


def fetch(place, index, out):
    return packages.fetch_locked(out, index, platform=PLATFORM, sources=source(place))


@pytest.fixture
def locked(tmp_path):
    """An index that was locked once."""
    collect(archive(tmp_path / "then"), tmp_path / "locked")
    return (tmp_path / "locked" / packages.INDEX).read_text()


@needs_apt
def test_the_locked_versions_are_fetched_although_newer_ones_are_there(tmp_path, locked):
    now = archive(tmp_path / "now", ("lib", "1:2.0-2"))
    assert collect(now, tmp_path / "newest") != digest_of_file(tmp_path / "locked/Packages")
    assert listed(tmp_path / "newest")["lib"] == "1:2.0-2"
    assert fetch(now, locked, tmp_path / "out") == digest_of_file(tmp_path / "locked/Packages")
    assert listed(tmp_path / "out")["lib"] == "1:2.0-1"


@needs_apt
def test_a_version_that_is_gone_is_named_with_what_to_type(tmp_path, locked):
    now = archive(tmp_path / "now", ("lib", "1:2.0-2"))
    (now / "lib_2.0-1_amd64.deb").unlink()
    packages.write_index(now)
    with pytest.raises(StackyardError, match="do not have all 4 locked packages") as caught:
        fetch(now, locked, tmp_path / "out")
    assert "lib" in caught.value.why and "1:2.0-1" in caught.value.why
    assert "STACKYARD_APT_SOURCES=FILE" in caught.value.hint


@needs_apt
def test_a_version_with_another_content_is_refused(tmp_path, locked):
    now = archive(tmp_path / "now")
    deb(now, "lib", "1:2.0-1", {"usr/lib/evil": "x"})
    packages.write_index(now)
    with pytest.raises(StackyardError, match="other files of 1 locked packages") as caught:
        fetch(now, locked, tmp_path / "out")
    assert caught.value.why == "lib 1:2.0-1"


# As one file


class Engine:
    """An engine that keeps the root of what it imports."""

    def import_tar(self, path, name, changes):
        self.taken = name, path.read_bytes(), changes


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    deb(made, "app", "2:1.0+b~1")
    deb(made, "lib")
    packages.write_index(made)
    return made


def held(folder):
    engine = Engine()
    packages.hold(engine, folder, "stackyard/packages:x")
    name, data, changes = engine.taken
    assert (name, changes) == ("stackyard/packages:x", [])
    return data


def test_a_folder_is_one_file_and_a_folder_again(folder, tmp_path):
    data = held(folder)
    assert data == held(folder)
    assert packages.unpack(io.BytesIO(data), tmp_path / "out") == digest_of_file(
        folder / "Packages"
    )
    for path in folder.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert packages.index_of(io.BytesIO(data)) == (folder / "Packages").read_text()


def test_an_image_is_named_by_the_index_that_its_base_is_labelled_with():
    labels = {recipe.PACKAGES_LABEL: "sha256:" + "0123456789ab" + "0" * 52}
    assert packages.packages_of(labels) == "stackyard/packages:0123456789ab"
    assert packages.packages_of({}) == ""


def tar(*members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return made.getvalue()


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", ".hidden", "-o", "a b"])
def test_a_path_out_of_the_folder_is_refused(tmp_path, name):
    with pytest.raises(StackyardError, match="cannot be unpacked") as caught:
        packages.unpack(io.BytesIO(tar((name, b"x"))), tmp_path / "out")
    assert "is no file of a package" in caught.value.why
    assert list((tmp_path / "out").iterdir()) == [] and not (tmp_path / "x").exists()


def test_a_link_is_refused(tmp_path):
    with pytest.raises(StackyardError, match="cannot be unpacked"):
        packages.unpack(io.BytesIO(tar(("a", None))), tmp_path / "out")


@pytest.mark.parametrize("change", ["altered", "more", "less", "unlisted", "cut"])
def test_a_folder_that_is_not_that_of_its_index_is_refused(folder, tmp_path, change):
    if change == "altered":
        path = folder / "lib_1_amd64.deb"
        path.write_bytes(path.read_bytes() + b"\n")
    elif change == "more":
        deb(folder, "other")
    elif change == "less":
        (folder / "lib_1_amd64.deb").unlink()
    elif change == "unlisted":
        (folder / "Packages").unlink()
    data = held(folder)
    data = data[:700] if change == "cut" else data
    with pytest.raises(StackyardError) as caught:
        packages.unpack(io.BytesIO(data), tmp_path / "out")
    named = {"altered": "lib_1_amd64.deb", "more": "other_1_amd64.deb", "less": "lib_1_amd64.deb",
             "unlisted": "no index", "cut": "cannot be unpacked"}[change]  # fmt: skip
    assert named in f"{caught.value.what} {caught.value.why}"


@pytest.mark.parametrize("text", ["", "Package: a\n", "Package: a\nVersion: 1\nSHA256: 0\nSize: x"])
def test_an_index_without_versions_or_hashes_is_refused(text):
    with pytest.raises(StackyardError, match="an index of packages cannot be read"):
        packages.read_index(text)
