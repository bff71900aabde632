"""A registry that lies, stalls or asks for too much: one clear error, in time, nothing half there.

The servers are real, on the loopback interface: what is shown is what requests does, too.
"""

import base64
import io
import json
import time

import pytest

from stackyard.release import connection, registry
from stackyard.release.credentials import Login
from stackyard.release.layer_source import LayerSource
from stackyard.scan import oci
from stackyard.system import transport
from stackyard.system.errors import RegistryError, ReleaseError
from tests.unit import servers
from tests.unit.releases import NAME, image

pytestmark = pytest.mark.usefixtures("allow_own_servers", "quiet")
IMAGE = image("one", "two")
DIGEST = oci.digest_of(IMAGE.manifest)
ANN = Login(user="ann", password="n0t-a-w0rd")
BASIC = f"Basic {base64.b64encode(b'ann:n0t-a-w0rd').decode()}"
MANIFEST = f"/v2/team/yard/manifests/{NAME}"
REFERRERS = f"/v2/team/yard/referrers/{DIGEST}"
IN_TIME = 5  # seconds, on a busy machine


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    servers.as_nobody(monkeypatch, tmp_path)


def asked(server, login=None, **given):
    """The registry at a server; impatient."""
    repository = oci.parse_repository(f"{server.host}/team/yard")
    patience = connection.Patience(silent_seconds=0.3, tries=2, pause_seconds=0)
    return registry.Registry(repository, login, **{"patience": patience, **given})


def refused(call, what):
    """The one error that a call ends with, in time."""
    started = time.monotonic()
    with pytest.raises((RegistryError, ReleaseError), match=what) as caught:
        call()
    assert time.monotonic() - started < IN_TIME
    assert ANN.password not in str(caught.value)
    return caught.value


def wants_login(answer):
    """Let answer who shows the login, and ask everybody else for it."""

    def one(request):
        if request.headers.get("Authorization") == BASIC:
            answer(request)
        else:
            request.reply(401, WWW_Authenticate='Basic realm="x"')

    return one


# Credentials


def test_a_login_is_not_sent_to_where_an_upload_is_to_go():
    """The address of an upload comes from the registry, and may be anybody's."""

    def answer(request):
        if request.command == "HEAD":
            request.reply(404)
        else:
            request.reply(202, Location=f"{other.url}/upload")

    def take(request):
        request.reply(201)

    blob = oci.described("a/b", b"new")
    with (
        servers.serve(take) as other,
        servers.serve(wants_login(answer)) as server,
        asked(server, ANN) as found,
    ):
        assert found.upload(blob, lambda: io.BytesIO(b"new"), lambda count: None)
    assert [one.login for one in other.asked] == [""]
    assert server.asked[-1].login == BASIC


def test_a_host_that_the_registry_redirects_to_is_told_no_login_also_where_it_asks_for_one():
    def answer(request):
        request.reply(307, Location=f"{other.url}/there")

    def ask(request):
        if request.path.startswith("/token"):
            request.reply(200, b'{"token": "t"}')
        else:
            request.reply(401, WWW_Authenticate=f'Bearer realm="{other.url}/token",service="x"')

    with servers.serve(ask) as other, servers.serve(answer) as server, asked(server, ANN) as found:
        refused(lambda: found.manifest(NAME), "refused GET .*: 401")
    assert {one.login for one in other.asked} == {""}
    assert {one.path for one in other.asked} == {"/there"}


def test_what_a_host_answers_that_the_registry_redirects_to_is_used():
    """Registries keep blobs elsewhere: their digests are what is believed."""

    def answer(request):
        request.reply(307, Location=f"{other.url}/there")

    def give(request):
        request.reply(200, IMAGE.manifest)

    with (
        servers.serve(give) as other,
        servers.serve(wants_login(answer)) as server,
        asked(server, ANN) as found,
    ):
        assert found.manifest(DIGEST) == IMAGE.manifest
    assert [one.login for one in other.asked] == [""]


def test_an_identity_token_is_not_sent_on_to_where_the_token_service_redirects():
    def answer(request):
        if request.path == "/token":
            request.reply(307, Location=f"{other.url}/token")
        else:
            request.reply(401, WWW_Authenticate=f'Bearer realm="{server.url}/token",service="x"')

    def take(request):
        request.reply(200, b'{"token": "t"}')

    with (
        servers.serve(take) as other,
        servers.serve(answer) as server,
        asked(server, Login(token="mine")) as found,
    ):
        refused(lambda: found.manifest(NAME), "refused asking for a token: 307")
    assert other.asked == []


@pytest.mark.parametrize("redirected", [False, True])
def test_an_entry_of_netrc_does_not_take_the_place_of_the_registrys_token(
    tmp_path, monkeypatch, redirected
):
    def answer(request):
        if request.path.startswith("/token"):
            request.reply(200, b'{"token": "ours"}')
        elif request.headers.get("Authorization") != "Bearer ours":
            request.reply(401, WWW_Authenticate=f'Bearer realm="{server.url}/token",service="x"')
        elif redirected and request.path == MANIFEST:
            request.reply(307, Location="/elsewhere")
        else:
            request.reply(200, IMAGE.manifest)

    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with servers.serve(answer) as server, asked(server) as found:
        assert found.manifest(NAME) == IMAGE.manifest
    assert {one.login for one in server.asked} == {"", "Bearer ours"}


# Certificates


@pytest.mark.parametrize("trusted", [True, False])
def test_a_registrys_own_certificates_count_behind_a_proxy(tmp_path, monkeypatch, trusted):
    (tmp_path / "registry.example").mkdir()
    context = servers.own_certificate(tmp_path / "registry.example", "registry.example")
    certs = tmp_path if trusted else tmp_path / "none"

    def answer(request):
        request.reply(200, IMAGE.manifest)

    with servers.serve(answer, context) as server, servers.proxy(server) as between:
        monkeypatch.setenv("HTTPS_PROXY", between.url)
        repository = oci.parse_repository("registry.example/team/yard")
        patience = connection.Patience(tries=1)
        with registry.Registry(repository, certs=certs, patience=patience) as found:
            if trusted:
                assert found.manifest(NAME) == IMAGE.manifest
            else:
                refused(lambda: found.manifest(NAME), "certificate .* cannot be trusted")
    assert [one.path for one in between.asked] == ["registry.example:443"]


# Lists in pages


def entry(number):
    """An artifact beside the image."""
    return oci.described("a/b", b"%d" % number)


def pages(*links, missing=()):
    """Give a page of referrers for each link, and one that has none."""

    def answer(request):
        number = int(request.path.partition("?page=")[2] or 0)
        link = {"Link": links[number]} if number < len(links) else {}
        if number in missing:
            request.reply(404)
        else:
            data = oci.referrers_index([entry(number)])
            request.reply(200, data, Content_Type=oci.INDEX, **link)

    return answer


@pytest.mark.parametrize("link", ["?page={}", REFERRERS + "?page={}", "http://HOST" + REFERRERS
                                  + "?page={}"])  # fmt: skip
def test_every_page_of_referrers_is_read(link):
    def answer(request):
        links = [f'<{link.format(n)}>; rel="next"'.replace("HOST", server.host) for n in (1, 2)]
        pages(*links)(request)

    with servers.serve(answer) as server, asked(server) as found:
        assert found.referrers(DIGEST) == (entry(0), entry(1), entry(2))


def test_a_missing_page_of_referrers_is_no_end_of_the_list():
    links = ('<?page=1>; rel="next"', '<?page=2>; rel="next"')
    with servers.serve(pages(*links, missing={1})) as server, asked(server) as found:
        refused(lambda: found.referrers(DIGEST), "refused GET .*referrers.*: 404")


@pytest.mark.parametrize("which", ["referrers", "tags"])
def test_a_page_on_another_host_is_not_asked_for(which):
    def answer(request):
        link = f'<{other.url}/page>; rel="next"'
        request.reply(200, oci.referrers_index([entry(0)]), Content_Type=oci.INDEX, Link=link)

    with servers.serve(pages()) as other, servers.serve(answer) as server, asked(server) as found:
        call = found.tags if which == "tags" else lambda: found.referrers(DIGEST)
        refused(call, "the next page of a list is on another host")
    assert other.asked == []


@pytest.mark.parametrize(
    ("bound", "value", "pages"), [("MOST_PAGES", 3, 3), ("LONGEST_LIST", 20, 2)]
)
def test_a_list_without_end_is_given_up(monkeypatch, bound, value, pages):
    monkeypatch.setattr(registry, "MOST_PAGES", 9)
    monkeypatch.setattr(registry, bound, value)

    def answer(request):
        request.reply(200, b'{"tags": ["a"]}', Link='<?page=1>; rel="next"')

    with servers.serve(answer) as server, asked(server) as found:
        refused(found.tags, "a list does not end")
    assert len(server.asked) == pages


# Bytes


def test_an_artifact_in_the_place_of_another_is_refused():
    def answer(request):
        request.reply(200, image("another").manifest)

    with servers.serve(answer) as server, asked(server) as found:
        error = refused(lambda: found.manifest(DIGEST), "is not what its digest says")
    assert "nothing was used" in error.hint


@pytest.mark.parametrize("declared", [False, True])
def test_a_huge_manifest_is_not_read_to_its_end(monkeypatch, declared):
    monkeypatch.setattr(registry, "LONGEST_MANIFEST", 2**20)
    flood = servers.Flood(declared=declared)
    with servers.serve(flood) as server, asked(server) as found:
        refused(lambda: found.manifest(NAME), "is too long")
    assert len(server.asked) == 1
    assert flood.taken < 32 * 2**20  # of which the system holds some in its buffers


def test_the_body_of_a_redirect_is_not_read():
    flood = servers.Flood(redirects=True, there=IMAGE.manifest)
    with servers.serve(flood) as server, asked(server) as found:
        assert found.manifest(NAME) == IMAGE.manifest
    assert flood.taken < 32 * 2**20


@pytest.mark.parametrize("call", ["manifest", "referrers", "tags", "blob"])
def test_a_slow_body_is_given_up_in_time(call):
    blob = oci.described("a/b", bytes(1000))
    with servers.serve(servers.drip) as server, asked(server) as found:
        given = {"manifest": (NAME,), "referrers": (DIGEST,), "tags": (), "blob": (blob,)}[call]
        error = refused(lambda: getattr(found, call)(*given), "does not answer")
    assert "bytes of the answer came in" in error.why
    assert len(server.asked) == 2  # it may pass: one more try


def test_a_slow_refusal_is_given_up_in_time():
    def answer(request):
        request.begin(403, Content_Length="1000")
        request.endless(b" ", 0.05, 200)

    with servers.serve(answer) as server, asked(server) as found:
        refused(lambda: found.manifest(NAME), "does not answer")


@pytest.mark.parametrize("fault", ["slow", "short", "endless"])
def test_of_a_layer_that_stalls_or_breaks_off_nothing_is_kept(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(transport, "SLOWEST", 2**20)

    def answer(request):
        if fault == "slow":
            servers.drip(request)
        elif fault == "short":
            request.begin(200, Content_Length="1000")
            request.wfile.write(bytes(500))
            request.close_connection = True

    layer, flood = oci.described(oci.LAYER, bytes(1000)), servers.Flood()
    with servers.serve(flood if fault == "endless" else answer) as server, asked(server) as found:
        source = LayerSource(found, tmp_path / "layers", {layer.digest: layer.size})
        what = {
            "slow": "does not answer",
            "short": "does not answer",
            "endless": "is not what was signed",
        }
        refused(lambda: list(source.read(layer.digest)), what[fault])
    assert list((tmp_path / "layers").iterdir()) == []
    assert flood.taken < 32 * 2**20


@pytest.mark.parametrize("address", ["http://[", "https://x:port/", "//[::1"])
def test_an_address_that_is_none_is_told(address):
    def location(request):
        request.reply(404) if request.command == "HEAD" else request.reply(202, Location=address)

    def link(request):
        request.reply(200, b'{"tags": []}', Link=f'<{address}>; rel="next"')

    def realm(request):
        request.reply(401, WWW_Authenticate=f'Bearer realm="{address}"')

    def redirect(request):
        request.reply(307, Location=address)

    blob = oci.described("a/b", b"new")
    for answer in (location, link, realm, redirect):
        with servers.serve(answer) as server, asked(server) as found, pytest.raises(RegistryError):
            if answer is location:
                found.upload(blob, lambda: io.BytesIO(b"new"), lambda count: None)
            else:
                found.tags()


def test_a_size_that_is_no_number_is_no_size():
    def answer(request):
        request.begin(200, Content_Length="many")
        request.close_connection = True

    with servers.serve(answer) as server, asked(server) as found:
        assert found.blob_size(DIGEST) == -1


def test_what_is_asked_for_comes_as_it_is_and_not_compressed():
    """Digests are of the bytes that a registry sends."""
    seen = []

    def answer(request):
        seen.append(request.headers["Accept-Encoding"])
        request.reply(200, json.dumps({"tags": ["a"]}).encode())

    with servers.serve(answer) as server, asked(server) as found:
        assert found.tags() == ["a"]
    assert seen == ["identity"]
