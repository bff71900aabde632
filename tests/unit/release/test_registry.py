"""The distribution protocol: bytes are what their digest says, trouble passes or is told."""

import io
import json

import pytest
import requests

from stackyard.release import connection, registry
from stackyard.release.credentials import Login
from stackyard.scan import oci
from stackyard.system import transport
from stackyard.system.errors import RegistryError
from tests.unit.gate_samples import certificate
from tests.unit.releases import NAME, PLACE, Held, image, reply

IMAGE = image("one", "two")
DIGEST = oci.digest_of(IMAGE.manifest)
DATA = bytes(range(256)) * 40
BLOB = oci.described("a/b", DATA)
ANN = Login(user="ann", password="n0t-a-w0rd")


@pytest.fixture
def held():
    found = Held()
    found.put(IMAGE, NAME)
    found.blobs[BLOB.digest] = DATA
    return found


@pytest.fixture
def asked(held, monkeypatch):
    with held.open(monkeypatch) as found:
        yield found


def refused(call, what, *, passing=False):
    with pytest.raises(RegistryError, match=what) as caught:
        call()
    assert caught.value.passing == passing
    return caught.value


def first(held, *answers):
    """Have these answers (or errors) given first."""
    left = list(answers)

    def before(request):
        found = left.pop(0) if left else None
        if isinstance(found, Exception):
            raise found
        return found

    held.before = before


def only(held, method, part, answer):
    """Have one kind of request answered otherwise, each time."""
    held.before = lambda request: (
        answer() if request.method == method and part in request.url else None
    )


# Bytes and digests


@pytest.mark.parametrize("reference", [NAME, DIGEST])
def test_a_manifest_is_found_by_tag_and_digest(asked, reference):
    assert asked.manifest(reference) == IMAGE.manifest


def test_what_is_not_there_is_none(asked):
    missing = oci.digest_of(b"missing")
    assert asked.manifest("missing") is None
    assert (asked.has(missing), asked.blob_size(missing)) == (False, None)
    assert (asked.has(BLOB.digest), asked.blob_size(BLOB.digest)) == (True, len(DATA))
    refused(lambda: asked.blob(oci.described("a/b", b"missing")), "404")


def test_a_manifest_of_another_digest_is_refused(held, asked):
    held.manifests[DIGEST] = IMAGE.manifest + b" "
    error = refused(lambda: asked.manifest(DIGEST), "is not what its digest says")
    assert oci.digest_of(IMAGE.manifest + b" ") in error.why and "nothing was used" in error.hint


@pytest.mark.parametrize("data", [DATA[:-1], DATA[:-1] + b"x", DATA + b"x", b""])
def test_a_blob_of_another_digest_is_refused(held, asked, data):
    assert asked.blob(BLOB) == DATA
    held.blobs[BLOB.digest] = data
    refused(lambda: asked.blob(BLOB), "the blob is not what its digest says")


def test_what_is_longer_than_it_may_be_is_not_asked_for_or_not_used(asked, monkeypatch):
    assert asked.blob(BLOB, len(DATA)) == DATA
    refused(lambda: asked.blob(BLOB, len(DATA) - 1), "too long to be read")
    monkeypatch.setattr(registry, "LONGEST_MANIFEST", len(IMAGE.manifest))
    assert asked.manifest(NAME) == IMAGE.manifest
    monkeypatch.setattr(registry, "LONGEST_MANIFEST", len(IMAGE.manifest) - 1)
    refused(lambda: asked.manifest(NAME), "is too long")


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("start", [0, 1, 1000, len(DATA)])
def test_a_blob_is_read_from_a_place_on_also_from_who_knows_no_ranges(
    held, asked, monkeypatch, start, ranges
):
    monkeypatch.setattr(transport, "CHUNK", 700)
    held.ranges = ranges
    assert b"".join(asked.stream(BLOB.digest, start)) == DATA[start:]


class Breaks(io.BytesIO):
    """A body that ends before its end."""

    def read1(self, size=-1):
        data = super().read1(size)
        if not data:
            raise requests.exceptions.ChunkedEncodingError("broken off")
        return data


def test_a_connection_that_breaks_while_a_blob_is_read_is_told(held, asked):
    answer = reply(200)
    answer.raw = Breaks(DATA[:100])
    only(held, "GET", "/blobs/", lambda: answer)
    refused(lambda: list(asked.stream(BLOB.digest)), "does not answer", passing=True)


# Bringing


def bring(asked, data=b"new"):
    """Upload; whether it had to be brought, and what was told of it."""
    told = []
    blob = oci.described("a/b", data)
    return asked.upload(blob, lambda: io.BytesIO(data), told.append), told


def test_a_blob_is_brought_once(held, asked):
    brought, told = bring(asked)
    assert brought and sum(told) == 3
    assert held.blobs[oci.digest_of(b"new")] == b"new"
    assert bring(asked) == (False, [])


def test_a_blob_that_breaks_off_is_forgotten_and_brought_from_its_start(held, asked):
    left = [reply(503), reply(503)]

    def before(request):
        if request.method == "PUT" and left:
            request.body.read()
            return left.pop()
        return None

    held.before = before
    brought, told = bring(asked)
    assert brought and sum(told) == 3 and min(told) == -3
    assert held.blobs[oci.digest_of(b"new")] == b"new"
    assert sum(words.startswith("DELETE /v2/upload/1") for words in held.asked) == 2


# What distribution 2.8 answers where its disk is full.
_DETAIL = {"DriverName": "filesystem", "Enclosed": {"Op": "write", "Path": "/data", "Err": 28}}
FULL = json.dumps(
    {"errors": [{"code": "UNKNOWN", "message": "unknown error", "detail": _DETAIL}]}
).encode()


@pytest.mark.parametrize(
    ("status", "text", "hint"),
    [
        (403, b"", "docker login registry.example"),
        (405, b"", "read-only"),
        (500, FULL, "no space left"),
        (507, b"quota exceeded", "no space left"),
    ],
)
def test_what_a_registry_does_not_take_is_not_brought_again(held, asked, status, text, hint):
    only(held, "PUT", "/upload/", lambda: reply(status, text))
    assert hint in refused(lambda: bring(asked), f"refused PUT .*: {status}").hint
    assert len([words for words in held.asked if words.startswith("PUT")]) == 1
    assert oci.digest_of(b"new") not in held.blobs


def test_a_refusal_is_told_in_the_registrys_own_words_and_not_as_json():
    one = {"code": "UNAUTHORIZED", "message": "authentication required", "detail": None}
    assert connection._told(json.dumps({"errors": [one, {**one, "message": "again"}]}) + "\n") == (
        "UNAUTHORIZED: authentication required; UNAUTHORIZED: again"
    )
    for text in ("", "no json", "[]", '{"errors": 1}', '{"errors": [1]}', '{"errors": []}'):
        assert connection._told(f"{text}\n") == text


@pytest.fixture
def beside(held):
    """A blob that another repository of the registry has."""
    held.beside["team/other"] = {oci.digest_of(b"new"): b"new"}
    return held


def mount(asked, source):
    told = []
    blob = oci.described("a/b", b"new")
    return asked.upload(blob, lambda: io.BytesIO(b"new"), told.append, source), sum(told)


def test_an_upload_that_is_given_up_ends_at_its_next_chunk_and_is_cancelled(held, asked):
    def before(request):
        if request.method == "PUT":
            asked.give_up()
            request.body.read()
        return None

    held.before = before
    refused(lambda: bring(asked), "was given up")
    assert [words.partition(" ")[0] for words in held.asked] == ["HEAD", "POST", "PUT", "DELETE"]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_who_gives_up_repeats_no_request(held, asked, method):
    def before(request):
        if request.method != method:
            return None
        asked.give_up()
        return reply(503)

    held.before = before
    refused(lambda: bring(asked), "503", passing=True)
    assert [words.partition(" ")[0] for words in held.asked].count(method) == 1


def test_who_gives_up_during_a_pause_repeats_nothing_after_it(held, monkeypatch):
    asked = held.open(monkeypatch, patience=connection.Patience())
    monkeypatch.setattr(connection.time, "sleep", lambda seconds: asked.give_up())
    held.before = lambda request: reply(503)
    refused(asked.tags, "503", passing=True)
    assert len(held.asked) == 1


def test_a_blob_of_another_repository_is_taken_from_there_and_not_brought(beside, asked):
    assert mount(asked, "team/other") == (False, 0)
    assert beside.blobs[oci.digest_of(b"new")] == b"new"
    assert not [words for words in beside.asked if words.startswith("PUT")]


def test_a_blob_that_is_not_there_any_more_is_brought_in_the_upload_that_was_begun(beside, asked):
    assert mount(asked, "team/third") == (True, 3)
    assert beside.blobs[oci.digest_of(b"new")] == b"new"
    assert len([words for words in beside.asked if words.startswith("POST")]) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405, 500])
def test_where_nothing_may_be_taken_from_a_repository_the_blob_is_brought(beside, asked, status):
    only(beside, "POST", "mount=", lambda: reply(status))
    assert mount(asked, "team/other") == (True, 3)


def test_a_blob_whose_link_was_left_empty_is_brought_again(held, asked):
    only(held, "HEAD", "/blobs/", lambda: reply(500))
    assert mount(asked, "") == (True, 3)
    only(held, "HEAD", "/blobs/", lambda: reply(503))
    refused(lambda: mount(asked, ""), "503", passing=True)


def test_a_manifest_lies_under_its_name(held, asked):
    asked.put_manifest("name", b"{}")
    assert held.manifests["name"] == b"{}"


def test_a_blob_that_another_publisher_uploads_may_be_unknown_for_a_moment(held, asked):
    unknown = reply(400, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}')
    first(held, unknown)
    asked.put_manifest("name", b"{}")
    assert held.manifests["name"] == b"{}"
    first(held, reply(400, b'{"errors":[{"code":"MANIFEST_INVALID"}]}'))
    refused(lambda: asked.put_manifest("name", b"[]"), "400")
    assert held.manifests["name"] == b"{}"


@pytest.mark.parametrize("api", [True, False])
def test_what_is_attached_lies_beside_what_was_there(held, asked, api):
    held.api = api
    assert asked.referrers(DIGEST) == ()
    subject = oci.described(oci.MANIFEST, IMAGE.manifest)
    made = []
    for kind in ("a/one", "a/two", "a/two"):
        data = oci.artifact_manifest(kind, [], subject, {})
        new = registry.manifest_descriptor(data, kind)
        asked.attach(new, data, DIGEST)
        made.append(new)
    found = asked.referrers(DIGEST)
    assert {entry.artifact_type for entry in found} == {"a/one", "a/two"}
    assert {entry.digest for entry in found} == {one.digest for one in made} <= set(held.manifests)


def test_a_list_of_artifacts_that_is_none_is_told(held, asked):
    held.manifests[oci.referrers_tag(DIGEST)] = b'{"manifests": 3}'
    refused(lambda: asked.referrers(DIGEST), "its list of artifacts cannot be read")


def test_tags_come_in_pages(held, asked):
    link = {"Link": f'</v2/{PLACE.name}/tags/list?n=1000&last=b>; rel="next"'}
    first(held, reply(200, b'{"tags": ["a", "b"]}', **link), reply(200, b'{"tags": ["c"]}'))
    assert asked.tags() == ["a", "b", "c"]
    assert held.asked[1].endswith("last=b")


@pytest.mark.parametrize("answer", [reply(404), reply(200, b'{"tags": null}'), reply(200, b"[]")])
def test_a_repository_that_is_not_there_yet_has_no_tags(held, asked, answer):
    first(held, answer)
    assert asked.tags() == []


def test_an_answer_that_is_no_json_is_told(held, asked):
    first(held, reply(200, b"<html>a proxy's own page"))
    assert "a proxy's own page" in refused(asked.tags, "something else than JSON").why


# Trouble


LOST = requests.exceptions.ConnectionError("reset by peer")


@pytest.mark.parametrize("trouble", [reply(503), reply(429), reply(500), LOST])
def test_trouble_that_passes_is_waited_for(held, asked, trouble):
    first(held, trouble, trouble, trouble)
    assert asked.manifest(NAME) == IMAGE.manifest


def test_trouble_that_stays_is_told_after_some_tries(held, asked):
    first(held, *[LOST] * 99)
    error = refused(lambda: asked.manifest(NAME), "does not answer", passing=True)
    assert "reset by peer" in error.why
    assert 1 < len(held.asked) < 10


def test_a_registry_whose_trouble_stays_is_to_be_asked_later(held, asked):
    first(held, *[reply(500) for _ in range(9)])
    error = refused(lambda: asked.manifest(NAME), "refused GET .*: 500", passing=True)
    assert "again later" in error.hint and "space" not in error.hint


@pytest.mark.parametrize(("status", "text"), [(400, b""), (403, b""), (500, b"no space left")])
def test_what_does_not_pass_is_not_asked_again(held, asked, status, text):
    first(held, reply(status, text))
    refused(lambda: asked.manifest(NAME), f"refused GET .*: {status}")
    assert len(held.asked) == 1


def test_a_certificate_that_cannot_be_trusted_is_told_with_where_to_put_its_authority(held, asked):
    first(held, *[requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED]")] * 9)
    error = refused(lambda: asked.manifest(NAME), "certificate of registry .* cannot be trusted")
    assert "/etc/docker/certs.d/registry.example/ca.crt" in error.hint


def test_a_registrys_own_authority_is_trusted_beside_the_systems(tmp_path):
    usual = transport.Certificates(tmp_path)._context.cert_store_stats()["x509"]
    (tmp_path / "ca.crt").write_bytes(certificate("Firm"))
    assert transport.Certificates(tmp_path)._context.cert_store_stats()["x509"] == usual + 1


def test_a_certificate_that_cannot_be_read_is_told_with_its_folder(tmp_path):
    (tmp_path / PLACE.host).mkdir()
    (tmp_path / PLACE.host / "ca.crt").write_text("no certificate")
    with registry.Registry(PLACE, certs=tmp_path) as found:
        error = refused(lambda: found.manifest(NAME), "a certificate cannot be read")
    assert str(tmp_path / PLACE.host) in error.what


def test_a_registry_of_this_machine_is_asked_without_tls(monkeypatch):
    held = Held()
    held.open(monkeypatch)
    seen = []
    held.before = lambda request: seen.append(request.url)
    for host in ("localhost:5000", "127.0.0.1:5000", "[::1]:5000", "localhost.example"):
        registry.Registry(oci.parse_repository(f"{host}/yard")).manifest("x")
    assert [url.partition(":")[0] for url in seen] == ["http", "http", "http", "https"]


# Logins


class Doors:
    """A registry that lets in who shows the right thing; what was shown is kept."""

    def __init__(self, held, challenge, key):
        self.challenge, self.key, self.shown = challenge, key, []
        self.token = {"token": "t0ken"}
        held.before = self.before

    def before(self, request):
        shown = request.headers.get("Authorization", "")
        self.shown.append((request.url.partition("?")[0], shown))
        if "/token" in request.url:
            self.wanted = request
            return reply(200, json.dumps(self.token).encode())
        return None if shown == self.key else reply(401, WWW_Authenticate=self.challenge)


BASIC = "Basic YW5uOm4wdC1hLXcwcmQ="
ASKS = 'Bearer realm="{}",service="registry.example",scope="repository:team/yard:pull"'
REALM = "https://registry.example/token"


def test_a_login_is_shown_when_it_is_asked_for_and_then_kept(held, monkeypatch):
    doors = Doors(held, 'Basic realm="x"', BASIC)
    with held.open(monkeypatch, login=ANN) as found:
        assert found.manifest(NAME) == found.manifest(NAME) == IMAGE.manifest
    assert [shown for _, shown in doors.shown] == ["", BASIC, BASIC]


@pytest.mark.parametrize(("login", "says"), [(None, ""), (ANN, "as somebody who may do this")])
def test_whoever_is_not_let_in_is_told_how_to_log_in(held, monkeypatch, login, says):
    doors = Doors(held, 'Basic realm="x"', "Basic of somebody else")
    with held.open(monkeypatch, login=login) as found:
        error = refused(lambda: found.manifest(NAME), "401")
    assert error.hint.startswith("docker login registry.example") and says in error.hint
    assert len(doors.shown) <= 2
    assert ANN.password not in str(error)


@pytest.mark.parametrize("realm", [REALM, "http://localhost:5001/token"])
@pytest.mark.parametrize("name", ["token", "access_token"])
def test_a_token_is_asked_for_where_the_registry_says(held, monkeypatch, name, realm):
    doors = Doors(held, ASKS.format(realm), "Bearer t0ken")
    doors.token = {name: "t0ken"}
    with held.open(monkeypatch, login=ANN) as found:
        assert found.manifest(NAME) == IMAGE.manifest
    assert [shown for _, shown in doors.shown] == ["", BASIC, "Bearer t0ken"]
    assert "scope=repository%3Ateam%2Fyard%3Apull" in doors.wanted.url
    assert doors.wanted.method == "GET"


def test_an_identity_token_is_exchanged_and_never_in_an_address(held, monkeypatch):
    doors = Doors(held, ASKS.format(REALM), "Bearer t0ken")
    with held.open(monkeypatch, login=Login(token="mine")) as found:
        assert found.manifest(NAME) == IMAGE.manifest
    assert doors.wanted.method == "POST" and "mine" not in doors.wanted.url
    assert "refresh_token=mine" in doors.wanted.body


def test_a_token_that_is_refused_is_told(held, monkeypatch):
    doors = Doors(held, ASKS.format(REALM), "Bearer t0ken")

    def before(request):
        return reply(403) if "/token" in request.url else doors.before(request)

    held.before = before
    with held.open(monkeypatch, login=ANN) as found:
        error = refused(lambda: found.manifest(NAME), "refused asking for a token: 403")
    assert error.hint.startswith("docker login")


@pytest.mark.parametrize(
    "realm",
    ["http://registry.example/token", "http://localhost.evil.example/token", "ftp://x/token", "",
     "http://localhost@evil.example/token"],
)  # fmt: skip
def test_a_login_is_not_sent_unencrypted_to_whoever_asks_for_it(held, monkeypatch, realm):
    doors = Doors(held, ASKS.format(realm), "Bearer t0ken")
    with held.open(monkeypatch, login=ANN) as found:
        error = refused(lambda: found.manifest(NAME), "asks for our login at")
    assert "not an encrypted connection" in error.why
    assert [shown for _, shown in doors.shown] == [""]


def test_a_login_in_the_middle_of_an_upload_begins_it_anew(held, monkeypatch):
    body = []

    def before(request):
        if request.method != "PUT":
            return None
        body.append(request.body.read())
        if "Authorization" not in request.headers:
            return reply(401, WWW_Authenticate='Basic realm="x"')
        return reply(201)

    held.before = before
    told = []
    with held.open(monkeypatch, login=ANN) as found:
        blob = oci.described("a/b", b"new")
        assert found.upload(blob, lambda: io.BytesIO(b"new"), told.append)
    assert body == [b"new", b"new"] and sum(told) == 3


def test_a_registry_is_waited_for_as_long_as_there_is_patience(held, monkeypatch):
    pauses = []
    monkeypatch.setattr("stackyard.release.connection.time.sleep", pauses.append)
    first(held, *[LOST] * 99)
    patience = connection.Patience(tries=3, pause_seconds=2.0)
    with held.open(monkeypatch, patience=patience) as asked, pytest.raises(RegistryError):
        asked.tags()
    assert (len(held.asked), pauses) == (3, [2.0, 4.0])


def test_each_try_of_an_upload_begins_it_once(held, asked):
    only(held, "POST", "/uploads/", lambda: reply(503))
    blob = oci.described("application/x", b"1")
    refused(lambda: asked.upload(blob, lambda: io.BytesIO(b"1"), lambda count: None), "503",
            passing=True)  # fmt: skip
    assert len([line for line in held.asked if line.startswith("POST")]) == 4
