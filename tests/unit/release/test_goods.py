"""What a pull of one file asks hosts, by the shell that they would run it in."""

import hashlib
import subprocess
from types import SimpleNamespace

import pytest

from stackyard.mesh.link import HostError
from stackyard.release import goods
from stackyard.release.goods import FileGoods, look
from stackyard.release.squashfs import Squashed

pytestmark = pytest.mark.usefixtures("allow_processes")
DATA = b"x" * 1000
FILE = Squashed(
    release="toy-r2", image="sha256:1", sha256=f"sha256:{hashlib.sha256(DATA).hexdigest()}",
    bytes=len(DATA), made_by="mksquashfs 4.5.1", contents=2,
)  # fmt: skip


class Here:
    """A link whose host is this machine, with a home of the test."""

    def __init__(self, home):
        self.host, self._home = SimpleNamespace(name="study"), home

    def shell(self, script, *words, seconds):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self._home)}
        done = subprocess.run(["sh", "-s", "--", *words], input=script.encode(), env=env,
                              capture_output=True, check=True)  # fmt: skip
        return done.stdout.decode()


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


def bring(folder="~/images", **changes):
    return FileGoods(**{"file": FILE, "folder": folder, "ready": lambda: FILE, **changes})


def test_a_folder_that_is_not_there_yet_has_a_path_and_room(here, tmp_path):
    found = look(here, "~/images/deep")
    assert (found.path, found.files, found.sha256) == (f"{tmp_path}/images/deep", (), "")
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_a_host_lacks_the_file_until_it_has_exactly_this(here, tmp_path):
    path = tmp_path / "images" / "toy-r2.sqsh"
    path.parent.mkdir()
    asked = bring()
    for data in (None, b"", DATA[:-1] + b"y", DATA[:-1]):
        if data is not None:
            path.write_bytes(data)
        assert asked.ask(here) is True
    path.write_bytes(DATA)
    assert asked.ask(here) is None
    assert asked.path("study") == str(path)


def test_without_openssl_the_digest_is_the_same(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "df", "tail", "awk", "wc", "sha256sum"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "toy-r2.sqsh").write_bytes(DATA)
    words = [str(tmp_path), "toy-r2.sqsh", str(len(DATA)), ".sqsh"]
    done = subprocess.run(["/bin/sh", "-s", "--", *words], input=goods._LOOK.encode(), check=True,
                          env={"PATH": str(tmp_path / "bin")}, capture_output=True)  # fmt: skip
    assert f"sum {FILE.sha256.partition(':')[2]}" in done.stdout.decode().splitlines()


def test_files_of_a_folder_are_named_whatever_their_names_hold(here, tmp_path):
    for name in ("a b.sqsh", "c.sqsh", "d.txt", "-e.sqsh"):
        (tmp_path / name).write_bytes(b"")
    assert sorted(look(here, str(tmp_path)).files) == ["-e.sqsh", "a b.sqsh", "c.sqsh"]


def test_a_host_checks_the_file_and_gives_it_its_path(here, tmp_path):
    asked = bring(str(tmp_path))
    asked.ask(here)
    parcel = asked.pack([True])
    assert (parcel.digest, parcel.size) == (FILE.sha256, 1000)
    assert asked.plan("study") == {
        "plan": f"file {FILE.sha256.partition(':')[2]} 1000\n".encode(),
        "target": f"{tmp_path}/toy-r2.sqsh".encode(),
    }
    assert not asked.is_there(here)
    (tmp_path / "toy-r2.sqsh").write_bytes(DATA)
    assert asked.is_there(here)


def test_room_is_for_what_is_still_to_come(here, tmp_path):
    asked = bring(str(tmp_path), file=Squashed(**{**vars(FILE), "bytes": 2**60}))
    asked.ask(here)
    why, hint = asked.why_no_room("study", 0)
    assert "are to come" in why and str(tmp_path) in why and "--into" in hint
    assert asked.why_no_room("study", 2**60 - 1) == ("", "")


@pytest.mark.parametrize("said", ["", "free 1\n", "folder x\nfree 1\n", "folder /x\nfree much\n"])
def test_a_host_that_answers_otherwise_is_told(said):
    link = SimpleNamespace(
        host=SimpleNamespace(name="study"), shell=lambda *words, seconds: said
    )  # fmt: skip
    with pytest.raises(HostError, match="does not answer as a shell does"):
        look(link, "/x")
