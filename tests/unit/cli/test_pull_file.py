"""`invoke pull --as squashfs` onto this machine: made once, verified, and never an older one."""

import contextlib
import json
import shutil
import tarfile

import pytest

from stackyard.cli.options.releases import PullRequest
from stackyard.cli.steps import pull as cli_pull
from stackyard.cli.steps import pull_file
from stackyard.definitions.project import Project
from stackyard.mesh.hosts import Fleet, Host
from stackyard.mesh.link import HostError
from stackyard.mesh.preflight import Muster
from stackyard.mesh.runs import Reached
from stackyard.release.spool import cache_folder, layer_path
from stackyard.system import signing
from tests.schemas.published import refused
from tests.unit import samples
from tests.unit.lines import run
from tests.unit.release.test_squashfs import PROGRAM
from tests.unit.releases import NAME, Held, accept, image, make_key, state

pytestmark = pytest.mark.usefixtures("allow_processes")
IMAGE = image("one", "two")
LATEST = "toy-cpu-latest"


class Site:
    """A registry with a release, a user with signers, and a mksquashfs that keeps its input."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.capsys, self.key = folder, capsys, make_key(folder)
        self.held, self.cache = Held(), folder / "cache"
        accept(folder, self.key)
        registry = self.held.open(monkeypatch)
        project = Project(root=folder, definitions=samples.definitions(), default_base="cpu")
        monkeypatch.setattr(cli_pull, "load_project", lambda: project)
        monkeypatch.setattr(cli_pull, "open_registry", lambda *_: registry)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        monkeypatch.chdir(folder)
        self.program = folder / "bin" / "mksquashfs"
        self.program.parent.mkdir()
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
        self.release(NAME, IMAGE)

    def release(self, name, found):
        """Sign a release, and move the latest tag to it."""
        digest = self.held.put(found, name, LATEST)
        text = state(found, name=name)
        self.held.sign(digest, text, signing.sign(text, self.key))

    def pull(self, **changes):
        """The exit code, and the answer."""
        asked = PullRequest(**{"stack": "toy", "as_": "squashfs", "into": "images", **changes})
        code = run(cli_pull.pull, asked, as_json=True)
        value = json.loads(self.capsys.readouterr().out)
        assert refused("answers/error" if "error" in value else "answers/pull", value) == []
        return code, value

    @property
    def calls(self):
        """How often the program made a file."""
        return len([path for path in (self.folder / "images").iterdir() if ".called" in path.name])


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    return Site(tmp_path, monkeypatch, capsys)


def test_a_release_becomes_a_file_of_its_layers(site):
    code, value = site.pull()
    assert code == 0, value
    target = site.folder / "images" / f"{NAME}.sqsh"
    assert value["squashfs"]["path"] == str(target)
    assert value["squashfs"]["bytes"] == target.stat().st_size
    with tarfile.open(target) as made:
        assert {member.name for member in made} == {"etc/environment", "file0", "file1"}
    starts = value["squashfs"]["start"]
    assert str(target) in starts["pyxis"]["line"] and not starts["pyxis"]["seen"]
    assert starts["squashfs"]["line"].startswith("invoke run toy --base cpu --on slurm")


def test_the_second_pull_makes_nothing(site):
    site.pull()
    asked, first = len(site.held.asked), site.pull()
    assert first[0] == 0 and site.calls == 1
    assert not [line for line in site.held.asked[asked:] if any(d in line for d in IMAGE.layers)]


@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(b"x"), lambda path: path.unlink()])
def test_a_file_that_is_not_whole_is_made_again(site, harm):
    _, before = site.pull()
    harm(site.folder / "images" / f"{NAME}.sqsh")
    _, after = site.pull()
    assert site.calls == 2 and after["squashfs"] == before["squashfs"]


def test_a_damaged_layer_of_the_cache_is_fetched_again(site):
    folder = cache_folder({"XDG_CACHE_HOME": str(site.cache)})
    folder.mkdir(parents=True)
    digest, data = next(iter(IMAGE.layers.items()))
    layer_path(folder, digest).write_bytes(data[:-1] + b"x")
    assert site.pull()[0] == 0
    assert layer_path(folder, digest).read_bytes() == data


def test_a_layer_that_the_registry_changed_makes_no_file(site):
    digest = next(iter(IMAGE.layers))
    site.held.blobs[digest] = site.held.blobs[digest][:-1] + b"x"
    code, value = site.pull()
    assert code == 1 and "is not what was signed" in value["error"]["what"]
    assert [path.name for path in (site.folder / "images").iterdir()] == []


def test_a_tag_that_was_moved_back_is_refused(site):
    newer = NAME.replace("-r1", "-r2")
    site.release(newer, image("one", "two", "three"))
    assert site.pull()[0] == 0
    site.held.put(IMAGE, LATEST)
    code, value = site.pull()
    assert (
        code == 1 and f"this machine holds {NAME.replace('-r1', '-r2')}" in value["error"]["what"]
    )
    assert site.pull(release=NAME)[0] == 0


def test_without_the_program_nothing_is_fetched(site, monkeypatch):
    site.program.unlink()
    (site.program.parent / "ssh-keygen").symlink_to(str(shutil.which("ssh-keygen")))
    monkeypatch.setenv("PATH", str(site.program.parent))
    code, value = site.pull()
    assert code == 3 and "mksquashfs is not on this machine" in value["error"]["what"]
    assert not [line for line in site.held.asked if any(d in line for d in IMAGE.layers)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"as_": "squash"}, "--as is image or squashfs, not 'squash'"),
        ({"via": "registry"}, "hosts cannot pull one"),
        ({"mirror": "m:1"}, "hosts cannot pull one"),
        ({"as_": "image", "into": "/images"}, "--into names the folder of a file"),
        ({"hosts": "a", "into": "images"}, "is no absolute path"),
    ],
)
def test_options_that_make_no_sense_are_refused(site, changes, why):
    code, value = site.pull(**changes)
    assert code == 2 and why in value["error"]["what"]


# Hosts that nobody can log in to


HINT = "ssh study once and compare the fingerprint it shows"
STRANGE = HostError("study", "its host key is not known", why="Host key verification", hint=HINT)


@pytest.fixture
def strange(monkeypatch):
    """Two hosts: one whose key is not known, and one that is down."""
    hosts = tuple(Host(name=name, ssh=name) for name in ("study", "train"))
    failed = {"study": STRANGE, "train": HostError("train", "it is down")}

    @contextlib.contextmanager
    def reached(fleet, **_):
        yield Reached(fleet=fleet, links={}, failed=failed)

    for module in (cli_pull, pull_file):
        monkeypatch.setattr(module, "load_fleet", lambda given: Fleet(hosts=hosts, source=given))
        monkeypatch.setattr(module, "reached", reached)


@pytest.mark.parametrize("kind", [{"as_": "image", "into": ""}, {"into": "/images"}])
def test_of_a_host_that_failed_is_said_what_to_do(site, strange, kind):
    asked = PullRequest(stack="toy", hosts="study,train", **{"as_": "squashfs", **kind})
    assert run(cli_pull.pull, asked) == 1
    out = " ".join(site.capsys.readouterr().out.split())
    assert f"study: its host key is not known; {HINT} " in out
    assert "train: it is down" not in out  # it is in the table, and there is no remedy
    assert out.endswith("study, train; after that the same command goes on where it was")
    code, value = site.pull(hosts="study,train", **kind)
    assert (code, value["hosts"]["study"]["hint"], value["hosts"]["train"]["hint"]) == (1, HINT, "")


def test_prune_names_a_host_that_failed_once_and_says_what_to_do(site, strange):
    assert run(cli_pull.prune, "study,train", 2, dry_run=True) == 1
    out = site.capsys.readouterr().out.splitlines()
    assert out == [f"study: its host key is not known; {HINT}", "train: it is down"]


def test_a_host_that_answers_the_login_and_nothing_else_does_not_have_the_release(
    site, strange, monkeypatch
):
    mute = HostError("mute", "its shell does not answer as a shell does", hint="look at ~/.profile")
    seen = Muster(facts={}, engines={}, runs={}, failed={"mute": mute})
    monkeypatch.setattr(cli_pull, "muster", lambda *_: seen)
    code, value = site.pull(hosts="study,train,mute", as_="image", into="")
    assert (code, value["hosts"]["mute"]["state"]) == (1, "failed")
    assert value["hosts"]["mute"]["hint"] == "look at ~/.profile"
