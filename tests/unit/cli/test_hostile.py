"""Commands typed whole at a registry that lies or stalls: one error, in time, nothing half there.

`tests/unit/release/test_hostile_registry.py` shows each defence, this that commands have them.
"""

import base64
import contextlib
import functools
import io
import json
from types import SimpleNamespace

import pytest

from stackyard.cli.steps import published, pull, release, verify
from stackyard.definitions.project import Project
from stackyard.release import connection
from stackyard.release.registry import Registry
from stackyard.scan import oci
from stackyard.system import signing
from tests.unit import samples, servers
from tests.unit.lines import type_line
from tests.unit.release.test_squashfs import PROGRAM
from tests.unit.releases import NAME, Held, accept, image, make_key, state

# Without bounds of its own a command would wait for minutes, or for ever.
pytestmark = [
    pytest.mark.usefixtures("allow_own_servers", "allow_processes"), pytest.mark.timeout(60),
]  # fmt: skip
IMAGE, OTHER = image("one", "two"), image("another")
LATEST = "toy-cpu-latest"
READING = {
    "pull": "pull toy --from {place}",
    "squashfs": "pull toy --as squashfs --into into --from {place}",
    "bundle": "bundle toy --images --out out --from {place}",
    "verify": f"verify {NAME} --from {{place}}",
}
LISTING = {"releases": "releases --from {place}", "publish": "publish toy --key key --to {place}"}
COPYING = ("squashfs", "bundle")
LOGIN = base64.b64encode(b"ann:n0t-a-w0rd").decode()


class Site:
    """A user with a login, and a registry with a signed release, which a test makes hostile.

    Attributes:
        fault: answers a request in the registry's place.
        at: what is in the path of a request that the fault answers.
    """

    def __init__(self, folder, monkeypatch, capsys):
        self._folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.held, self.fault, self.at, self.key = (
            Held(api=True),
            None,
            "/",
            make_key(folder, "key"),
        )
        accept(folder, self.key)
        digest = self.held.put(IMAGE, NAME, LATEST)
        self.said = state(IMAGE)
        self.held.sign(digest, self.said, signing.sign(self.said, self.key))
        patience = connection.Patience(silent_seconds=0.6, tries=2, pause_seconds=0)
        project = Project(root=folder, definitions=samples.definitions(), default_base="cpu")
        for step in (published, pull, release, verify):
            monkeypatch.setattr(step, "load_project", lambda: project)
        monkeypatch.setattr(published, "Registry", functools.partial(Registry, patience=patience))
        # A publication's image: the registry is asked before anything of it is read.
        monkeypatch.setattr(release, "Engine", lambda: contextlib.nullcontext())
        monkeypatch.setattr(release.candidate, "candidate", lambda *given, **named: None)
        (folder / "bin").mkdir()
        (folder / "bin" / "mksquashfs").write_text(PROGRAM)
        (folder / "bin" / "mksquashfs").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        monkeypatch.setenv("DOCKER_CONFIG", str(folder / "docker"))
        (folder / "docker").mkdir()
        servers.as_nobody(monkeypatch, folder)
        monkeypatch.chdir(folder)

    def _answer(self, request):
        if request.headers.get("Authorization") != f"Basic {LOGIN}":
            request.reply(401, WWW_Authenticate='Basic realm="ours"')
            return
        if self.fault is not None and self.at in request.path:
            self.fault(request)
            return
        body = io.BytesIO(request.body) if "/upload/" in request.path else request.body
        asked = SimpleNamespace(method=request.command, headers=request.headers, body=body)
        found = self.held._answer(asked, request.path)
        headers = {name.replace("-", "_"): value for name, value in found.headers.items()}
        request.reply(found.status_code, found.raw.read(), **headers)

    def _files(self):
        """Return all files but locks, which stay by design."""
        return {path for path in self._folder.rglob("*")
                if path.is_file() and path.suffix != ".lock"}  # fmt: skip

    def type(self, line):
        """Return the exit code and what was said on standard error; no file may be new."""
        with servers.serve(self._answer) as server:
            login = json.dumps({"auths": {server.host: {"auth": LOGIN}}})
            (self._folder / "docker" / "config.json").write_text(login)
            before = self._files()
            code = type_line(self._monkeypatch, line.format(place=f"{server.host}/team/yard"))
        assert self._files() == before
        return code, self._capsys.readouterr()


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    return Site(tmp_path, monkeypatch, capsys)


def asks_for_a_login(request):
    request.reply(401, WWW_Authenticate='Basic realm="mine"')


def lacks_a_page(request):
    if "page=" in request.path:
        request.reply(404)
        return
    data = b'{"tags": []}' if "/tags/" in request.path else oci.referrers_index([])
    request.reply(200, data, Content_Type=oci.INDEX, Link='<?page=1>; rel="next"')


@contextlib.contextmanager
def fault_of(name):
    """Yield a function that answers a request with a fault."""
    with servers.serve(asks_for_a_login) as elsewhere:
        yield {
            "redirect": lambda request: request.reply(307, Location=f"{elsewhere.url}/there"),
            "missing page": lacks_a_page,
            "huge": servers.Flood(),
            "slow": servers.drip,
        }[name]
    assert {one.login for one in elsewhere.asked} == ({""} if name == "redirect" else set())


SAID = {
    "redirect": "refused",
    "missing page": "404",
    "huge": "is too long",
    "slow": "answer came in",
}


@pytest.mark.parametrize("command", [*READING, *LISTING])
@pytest.mark.parametrize("name", SAID)
def test_a_hostile_registry_is_one_error_and_leaves_nothing(site, command, name):
    lists = "/tags/" if command in LISTING else "/referrers/"
    with fault_of(name) as site.fault:
        site.at = lists if name == "missing page" or command in LISTING else "/manifests/"
        code, (out, said) = site.type({**READING, **LISTING}[command])
    assert code == 4, said
    assert said.count("error:") == 1 and "Traceback" not in said and out == ""
    assert SAID[name] in said


@pytest.mark.parametrize("command", READING)
def test_another_image_under_the_tag_with_the_releases_signature_is_refused(site, command):
    digest = site.held.put(OTHER, NAME, LATEST)
    site.held.sign(digest, site.said, signing.sign(site.said, site.key))
    code, (_, said) = site.type(READING[command])
    assert code == 1, said
    assert said.count("error:") == 1 and "cannot be believed" in said


def test_another_image_under_the_tag_is_listed_as_not_believed(site):
    site.held.put(OTHER, NAME, LATEST)
    code, (out, said) = site.type(LISTING["releases"])
    assert (code, said.count("error:")) == (0, 0)
    assert "not believed" in out and "cannot be believed" in " ".join(said.split())


@pytest.mark.parametrize("command", COPYING)
@pytest.mark.parametrize(
    ("name", "code", "what"),
    [("redirect", 4, "refused"), ("huge", 1, "is not what was signed"),
     ("slow", 4, "answer came in"), ("swap", 1, "is not what was signed")],
)  # fmt: skip
def test_of_hostile_layers_no_file_is_made_or_kept(site, command, name, code, what):
    if name == "swap":
        layers = {digest: data[:-1] + b"x" for digest, data in IMAGE.layers.items()}
        site.held.blobs |= layers
        found, (_, said) = site.type(READING[command])
    else:
        site.at = f"/blobs/{next(iter(IMAGE.layers))}"
        with fault_of(name) as site.fault:
            found, (_, said) = site.type(READING[command])
    assert (found, said.count("error:")) == (code, 1), said
    assert what in said and "Traceback" not in said


@pytest.mark.parametrize("command", ["squashfs", "bundle", "verify", "releases"])
def test_the_same_registry_serves_who_meets_no_fault(site, command, monkeypatch):
    """Without it the other tests could pass for another reason."""
    monkeypatch.setattr(site, "_files", set)
    code, (_, said) = site.type({**READING, **LISTING}[command])
    assert code == 0, said
