"""Fetching a bundle's content: the exact commands, for the base's platform and never this one's."""

import hashlib
import sys
from pathlib import Path

import pytest

from stackyard.build import bundle, bundle_fetch
from stackyard.build.mirrors import CallerSettings
from stackyard.definitions import lock
from stackyard.system.errors import StackyardError
from tests.unit import samples, servers
from tests.unit.build import test_bundle

NOBODY = CallerSettings(secrets={}, wheel_folders=(), proxies={})
SOURCES = CallerSettings(secrets={"apt.sources": b"Types: deb"}, wheel_folders=(), proxies={})


def test_wheels_are_asked_for_by_hash_for_the_bases_python_and_platform():
    caller = CallerSettings(secrets={}, wheel_folders=(Path("/w"),), proxies={})
    words = bundle_fetch.wheel_command(samples.carried(), Path("x.lock"), Path("out"), caller)
    head, platforms = (
        words[: -len(bundle_fetch.platforms(samples.carried()))],
        words[-len(bundle_fetch.platforms(samples.carried())) :],
    )
    assert head == [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--find-links", "/w", "--dest", "out", "--requirement", "x.lock",
        "--only-binary=:all:", "--implementation=cp", "--python-version=3.12",
    ]  # fmt: skip
    assert platforms[0] == "--platform=manylinux_2_34_x86_64"
    assert all(word.endswith("_x86_64") for word in platforms)


def test_platforms_are_every_glibc_up_to_what_locks_are_resolved_for():
    found = bundle_fetch.platforms(samples.carried(platform="linux/arm64"))
    assert found[0] == "manylinux_2_34_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"} <= set(found)
    assert "manylinux_2_35_aarch64" not in found


def test_an_index_that_only_uv_was_told_of_reaches_pip_in_a_private_file(tmp_path):
    caller = CallerSettings(secrets={"pip.conf": b"hunter2"}, wheel_folders=(), proxies={})
    env = bundle_fetch.pip_environment(caller, tmp_path)
    path = Path(env["PIP_CONFIG_FILE"])
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"hunter2", 0o600)
    assert bundle_fetch.pip_environment(NOBODY, tmp_path) == {}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """A project, and every command that is run for a bundle of it."""
    ran = []

    def run(argv, *, env=None, cwd=None, timeout=0):
        ran.append(list(argv))
        if "--dest" in argv:
            text = Path(argv[argv.index("--requirement") + 1]).read_text()
            for item in lock.parse_lock(text):
                (Path(argv[argv.index("--dest") + 1]) / f"{item.name}.whl").write_text("x")

    (tmp_path / "requirements.lock").write_text("rich==15.0 \\\n    --hash=sha256:" + "0" * 64)
    monkeypatch.setattr(bundle_fetch.process, "run", run)
    asked = []

    def resolved(*args, **named):
        asked.append(named)
        return ()

    monkeypatch.setattr(bundle_fetch.resolve, "compile_requirements", resolved)
    monkeypatch.setattr(
        bundle_fetch.resolve, "find_sdists", lambda *_: ["https://x/a%2B1/beta-3.0.tar.gz"]
    )
    monkeypatch.setattr(bundle_fetch, "download", lambda address, caller: b"beta")
    return tmp_path, ran, asked


def image():
    """The image of the bundle's tests, its sdist locked as what is downloaded here."""
    digest = "sha256:" + hashlib.sha256(b"beta").hexdigest()
    path = "images/wheels/beta.lock"
    text = test_bundle.locks()[path].replace("sha256:" + "0" * 64, digest, 1)
    assert lock.parse_lock(text)[0].name == "beta"
    return test_bundle.image(locks={**test_bundle.locks(), path: text})


def test_every_lock_is_fetched_into_its_folder_and_packed(commands):
    root, ran, asked = commands
    manifest = bundle_fetch.make(root, [image()], root / "far.tar", SOURCES, lambda text: None)
    assert set(manifest.files) == {
        "wheels/alpha.whl",
        "wheels/setuptools.whl",  # and no numpy: the base has it
        "sdists/beta-3.0.tar.gz",
        "tool/requirements.lock",
    }
    folders = [Path(words[words.index("--dest") + 1]).name for words in ran if "--dest" in words]
    assert folders == ["wheels", "wheels", "tool"]
    assert bundle.read(root / "far.tar") == manifest
    assert [words[-1] for words in ran if words[0] == "apt-get"] == ["update", "tini"]
    (own,) = asked
    assert own["constraints"] == {"rich": "15.0"}
    assert own["project"] == root / "pyproject.toml"
    assert own["base"].name == "far"


def test_sources_with_another_hash_are_refused(commands, monkeypatch):
    root, _, _ = commands
    monkeypatch.setattr(bundle_fetch, "download", lambda address, caller: b"tampered")
    with pytest.raises(StackyardError, match="has a hash that no lock names"):
        bundle_fetch.make(root, [image()], root / "far.tar", SOURCES, lambda text: None)


def test_sources_that_the_index_does_not_have_are_named(commands, monkeypatch):
    root, _, _ = commands
    monkeypatch.setattr(bundle_fetch.resolve, "find_sdists", lambda *_: [])
    with pytest.raises(StackyardError, match=r"no sources found of beta 3\.0"):
        bundle_fetch.make(root, [image()], root / "far.tar", SOURCES, lambda text: None)


INDEX = b'[[index]]\nurl = "https://me:p%40ss@mirror.example/simple"\ndefault = true\n'


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("https://mirror.example/files/a.tar.gz", (b"me", b"p@ss")),
        ("https://mirror.example.evil/files/a.tar.gz", None),
        ("https://other.example/files/a.tar.gz", None),
    ],
)
def test_an_indexs_password_goes_to_that_index_only(address, sent):
    caller = CallerSettings(secrets={"uv.toml": INDEX}, wheel_folders=(), proxies={})
    assert bundle_fetch.login(address, caller) == sent
    assert bundle_fetch.login(address, NOBODY) is None


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """Download as a user without proxies, with a ~/.netrc of the test's own."""
    servers.as_nobody(monkeypatch, tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")

    def download(server):
        index = f'[[index]]\nurl = "https://me:p%40ss@{server.host}/simple"\n'.encode()
        caller = CallerSettings(secrets={"uv.toml": index}, wheel_folders=(), proxies={})
        return bundle_fetch.download(f"{server.url}/a.tar.gz", caller)

    return download


@pytest.mark.usefixtures("allow_own_servers")
def test_an_indexs_password_is_not_sent_to_where_the_index_redirects(downloads, tmp_path):
    (tmp_path / "netrc").unlink()

    def give(request):
        request.reply(200, b"data")

    def redirect(request):
        request.reply(302, Location=f"{other.url}/files/a.tar.gz")

    with servers.serve(give) as other, servers.serve(redirect) as index:
        assert downloads(index) == b"data"
    assert [one.login for one in index.asked] == ["Basic bWU6cEBzcw=="]
    assert [one.login for one in other.asked] == [""]


@pytest.mark.usefixtures("allow_own_servers")
def test_an_indexs_own_password_goes_before_an_entry_of_netrc(downloads):
    with servers.serve(lambda request: request.reply(200, b"data")) as index:
        assert downloads(index) == b"data"
    assert [one.login for one in index.asked] == ["Basic bWU6cEBzcw=="]


@pytest.mark.usefixtures("allow_own_servers")
def test_the_callers_certificates_are_trusted(downloads, monkeypatch, tmp_path):
    context = servers.own_certificate(tmp_path, "mirror.example")
    ca = {"ca.pem": (tmp_path / "ca.crt").read_bytes()}
    trusting = CallerSettings(secrets=ca, wheel_folders=(), proxies={})
    with (
        servers.serve(lambda request: request.reply(200, b"data"), context) as server,
        servers.proxy(server) as between,
    ):
        monkeypatch.setenv("HTTPS_PROXY", between.url)
        assert bundle_fetch.download("https://mirror.example/a", trusting) == b"data"
        with pytest.raises(StackyardError, match="cannot fetch") as caught:
            bundle_fetch.download("https://mirror.example/a", NOBODY)
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.why


@pytest.mark.usefixtures("allow_own_servers")
def test_what_cannot_be_downloaded_is_named_without_its_password(downloads):
    with servers.serve(lambda request: request.reply(404)) as server:
        address = server.url.replace("//", "//me:pw@") + "/a"
        with pytest.raises(StackyardError, match=f"cannot fetch {server.url}/a") as caught:
            bundle_fetch.download(address, NOBODY)
    assert "404" in caught.value.why and "pw" not in str(caught.value)
    with pytest.raises(StackyardError, match=f"cannot fetch {server.url}/a") as caught:
        bundle_fetch.download(address, NOBODY)
    assert "refused" in caught.value.why and "pw" not in str(caught.value)


@pytest.mark.usefixtures("allow_own_servers")
@pytest.mark.parametrize("redirects", [False, True])
def test_of_a_flood_no_more_is_read_than_a_source_may_have(downloads, monkeypatch, redirects):
    monkeypatch.setattr(bundle_fetch, "LONGEST", 2**20)
    flood = servers.Flood(redirects=redirects, there=b"data")
    with servers.serve(flood) as server:
        if redirects:
            assert downloads(server) == b"data"
        else:
            with pytest.raises(StackyardError, match="cannot fetch") as caught:
                downloads(server)
            assert caught.value.why == "it is longer than 1 MiB"
    assert flood.taken < 32 * 2**20


@pytest.mark.usefixtures("allow_own_servers")
def test_a_source_that_drips_is_given_up(downloads, monkeypatch):
    monkeypatch.setattr(bundle_fetch, "SILENT_SECONDS", 0.3)
    with (
        servers.serve(servers.drip) as server,
        pytest.raises(StackyardError, match="cannot fetch") as caught,
    ):
        downloads(server)
    assert "bytes of the answer came in" in caught.value.why


@pytest.mark.usefixtures("allow_own_servers")
def test_an_entry_of_netrc_goes_where_no_index_has_a_password(downloads, tmp_path):
    with servers.serve(lambda request: request.reply(200, b"data")) as server:
        assert bundle_fetch.download(f"{server.url}/a", NOBODY) == b"data"
    assert [one.login for one in server.asked] == ["Basic c29tZWJvZHk6ZWxzZQ=="]


def test_a_lock_without_entries_asks_for_nothing(commands):
    root, ran, _ = commands
    locks = {"images/toy/far.lock": samples.locked()}
    stacks = {"toy": samples.stack(builds=(), fixes=())}
    lone = test_bundle.image(locks=locks, stacks=stacks)
    bundle_fetch.make(root, [lone], root / "far.tar", SOURCES, lambda text: None)
    assert [w[-1] for w in ran if "download" in w and "pip" in w] == ["--platform=linux_x86_64"]


def test_without_package_sources_that_is_said(commands):
    root, _, _ = commands
    with pytest.raises(StackyardError, match="no package sources of debian/bookworm") as caught:
        bundle_fetch.make(root, [image()], root / "far.tar", NOBODY, lambda text: None)
    assert "STACKYARD_APT_SOURCES" in caught.value.hint
    assert not (root / "far.tar").exists()
