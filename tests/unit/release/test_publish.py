"""Publications: whole in the registry, read back and signed before anything has a name."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stackyard.release import publish, statement, verify
from stackyard.release.publish import Publisher, PublishPlan, require_clean
from stackyard.release.recipe_record import PACKAGES
from stackyard.release.registry import manifest_descriptor
from stackyard.release.spool import Layer, Saved, Spool, note_place, place_beside
from stackyard.release.statement import LOCK, REPORT, SBOM, Attached
from stackyard.report import evidence, vouch
from stackyard.scan import oci
from stackyard.scan.secrets.gate import Finding
from stackyard.system.errors import RegistryError, ReleaseError
from stackyard.system.image import ImageInfo
from tests.unit.releases import (
    NAME,
    PLACE,
    SUBJECT,
    Held,
    accept,
    image,
    make_key,
    ran,
    reply,
    shown_by,
)

pytestmark = pytest.mark.usefixtures("allow_processes")
ONE, TWO = image("one", "same"), image("two", "same")
FILES = (
    Attached(title="sbom.cdx.json", media_type=SBOM, data=b'{"components": []}'),
    Attached(title="images/a.lock", media_type=LOCK, data=b"a==1"),
    Attached(title="images/b.lock", media_type=LOCK, data=b"b==1"),
)


class Site:
    """A registry, and a publisher with a key and a folder of layers."""

    def __init__(self, folder, monkeypatch):
        self.held, self.folder, self.said = Held(), folder, []
        self.key = make_key(folder)
        self.signers = accept(folder, self.key)
        self.registry = self.held.open(monkeypatch)
        self.spool = Spool(folder / "layers")

    def publish(self, found=ONE, **changes):
        layers = tuple(Layer(**said) for said in found.said)
        for layer in layers:
            self.spool.path(layer).write_bytes(found.layers[layer.digest])
        saved = Saved(config=found.config, layers=layers, read={})
        ident = oci.digest_of(found.config)
        given = {
            "subject": SUBJECT, "created": "2026-01-01T00:00:00+00:00", "proof": None,
            "info": ImageInfo(id=ident, tags=(), labels={}, env=(), size=1, layers=()),
            "attached": FILES, "locks": {}, "key": self.key, "builder": {}, "source": {},
        }  # fmt: skip
        wanted = PublishPlan(**{**given, **changes})
        return Publisher(self.registry, self.spool, self.said.append).publish(saved, wanted)

    def verified(self, reference):
        return verify.verify_release(self.registry, reference, self.signers)

    def names(self):
        """Tags that lead to an image."""
        return {t for t in self.held.manifests if statement.is_release_tag(t) or "latest" in t}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "SETTLE_SECONDS", 0)
    return Site(tmp_path, monkeypatch)


def test_what_was_published_is_whole_signed_and_found_by_its_names(site):
    done = site.publish()
    assert (done.name, done.latest, done.again) == (NAME, SUBJECT.latest, False)
    for reference in (NAME, SUBJECT.latest, done.digest):
        found = site.verified(reference)
        assert found.release.digest == done.digest
        assert [layer["digest"] for layer in found.release.layers] == list(ONE.layers)
    assert {digest: site.held.blobs[digest] for digest in ONE.layers} == ONE.layers
    assert site.held.blobs[found.release.image_id] == ONE.config
    assert sum(map(len, ONE.layers.values())) + len(ONE.config) < done.sent
    assert done.held == 0


def test_what_lies_beside_it_is_named_in_the_statement(site):
    found = site.verified(site.publish().name)
    named = [oci.read_descriptor(value) for value in found.release.value["artifacts"]]
    titles = [blob.annotations[oci.TITLE] for blob in named]
    files, attested = titles[:3], titles[3:]
    assert files == ["sbom.cdx.json", "images/a.lock", "images/b.lock"]
    assert [site.registry.blob(blob) for blob in named[:3]] == [file.data for file in FILES]
    assert attested == ["provenance.sigstore.json", "sbom.sigstore.json"]
    # A kind each, each attestation, and the statement.
    assert len(site.registry.referrers(found.release.digest)) == 5


def test_the_packages_it_was_built_from_travel_with_it_once(site):
    data = b"packages" * 1000
    layer = Layer(diff_id="", unpacked=9, digest=oci.digest_of(data), size=len(data))
    site.spool.path(layer).write_bytes(data)
    found = site.verified(site.publish(packages=layer).name)
    (blob,) = [oci.read_descriptor(value) for value in found.release.value["artifacts"]
               if value["mediaType"] == PACKAGES]  # fmt: skip
    assert (site.held.blobs[blob.digest], blob.annotations[oci.TITLE]) == (data, "packages.tar.gz")
    kinds = [entry.artifact_type for entry in site.registry.referrers(found.release.digest)]
    assert kinds.count(PACKAGES) == 1
    again = site.publish(packages=layer)
    assert (again.again, again.sent) == (True, 0)


def test_packages_that_came_later_are_signed_for_the_same_release(site):
    name = site.publish().name
    layer = Layer(diff_id="", unpacked=1, digest=oci.digest_of(b"x"), size=1)
    site.spool.path(layer).write_bytes(b"x")
    assert site.publish(packages=layer).name == name
    named = {value["digest"] for value in site.verified(name).release.value["artifacts"]}
    assert layer.digest in named


def test_the_same_image_again_is_the_same_release_and_brings_nothing(site):
    first, again = site.publish(), site.publish()
    assert (again.name, again.again) == (first.name, True)
    assert again.sent == 0
    assert again.held == sum(map(len, ONE.layers.values()))


def test_layers_of_another_repository_are_taken_from_there(site):
    """What a publication brought, or a pull fetched, is known the next time."""
    first = site.publish()
    layers = {layer.digest: site.held.blobs.pop(layer.digest) for layer in first.layers}
    elsewhere = oci.Repository(host=PLACE.host, name="team/other")
    assert {place_beside(site.spool.folder, one, elsewhere) for one in layers} == {PLACE.name}
    for one in layers:
        note_place(site.spool.folder, one, elsewhere)
    site.held.beside[elsewhere.name] = layers
    again = site.publish()
    assert (again.digest, again.sent) == (first.digest, 0)
    assert again.held == sum(layer.size for layer in first.layers)


def test_what_is_known_of_a_layer_does_not_count_for_another_registry_or_its_own_repository(
    tmp_path,
):
    note_place(tmp_path, "sha256:1", PLACE)
    assert place_beside(tmp_path, "sha256:1", PLACE) == ""
    assert place_beside(tmp_path, "sha256:1", oci.Repository(host="x.example", name="a")) == ""
    other = oci.Repository(host=PLACE.host, name="a")
    for spoilt in ("[]", "{", '{"registry.example": 3}'):
        (path,) = tmp_path.iterdir()
        path.write_text(spoilt)
        assert place_beside(tmp_path, "sha256:1", other) == ""


def test_a_proof_that_came_later_is_signed_for_the_same_release(site):
    site.publish()
    assert not site.verified(NAME).release.proven
    attached = [Attached(title="smoke.json", media_type=REPORT, data=b"{}")]
    done = site.publish(proof=ran(ONE), attached=attached)
    assert (done.name, done.attested) == (NAME, ("provenance", "test-result"))
    assert site.verified(NAME).release.proven


def test_another_image_takes_the_next_number_and_only_its_own_layers_travel(site):
    site.publish()
    done = site.publish(TWO)
    shared = next(iter(set(ONE.layers) & set(TWO.layers)))
    assert done.name == "toy-1.0-cpu-r2" and done.held == len(ONE.layers[shared])
    assert site.verified(SUBJECT.latest).release.name == done.name


def test_the_latest_stays_the_later_one_when_an_earlier_one_is_published_again(site):
    site.publish()
    two = site.publish(TWO)
    assert site.publish().name == NAME
    assert site.verified(SUBJECT.latest).release.digest == two.digest


# Evidence


def seen(site, *reports):
    return [
        vouch.verified(shown_by(ONE, site.key, report=report), "FILE", site.signers)
        for report in reports
    ]


def beside(site):
    return verify.evidence_beside(site.registry, site.verified(NAME), site.signers)


def test_evidence_lies_beside_the_image_and_the_statement_names_it(site):
    pieces = seen(site, ran(ONE), ran(ONE, "bench"), ran(ONE, gpus={}))
    done = site.publish(evidence=pieces, needs_gpus=True)
    assert {one.data for one in beside(site).believed} == {one.data for one in pieces}
    assert done.artifacts.count(evidence.ENVELOPE) == 3
    found = site.verified(NAME).release
    assert (found.needs_gpus, found.seen_on_gpus) == (True, True)
    assert found.value["seen_on"] == ["2 x NVIDIA H200, driver 580.159.04"]
    named = {value["digest"] for value in found.value["artifacts"]}
    assert {oci.digest_of(one.data) for one in pieces} <= named
    titles = [value["annotations"][oci.TITLE] for value in found.value["artifacts"]]
    assert len(set(titles)) == len(titles)


def test_a_release_without_evidence_of_gpus_says_so(site):
    site.publish(evidence=seen(site, ran(ONE, "bench")), needs_gpus=True)
    found = site.verified(NAME).release
    assert (found.needs_gpus, found.seen_on_gpus, found.value["seen_on"]) == (True, False, [])


def test_evidence_that_came_later_is_signed_for_the_same_release(site):
    site.publish(needs_gpus=True)
    pieces = seen(site, ran(ONE))
    done = site.publish(evidence=pieces, needs_gpus=True)
    assert (done.name, done.again) == (NAME, True)
    assert site.verified(NAME).release.seen_on_gpus
    assert site.publish(evidence=pieces, needs_gpus=True).sent == 0


# What is not as it should be has no name


def refused(site, error, what, *, names=frozenset()):
    with pytest.raises(error, match=what):
        site.publish()
    assert site.names() == names


@pytest.mark.parametrize("status", [500, 403])
def test_a_registry_that_takes_a_part_only_names_nothing(site, status):
    big = max(ONE.layers, key=lambda digest: len(ONE.layers[digest]))
    digest = big.replace(":", "%3A")

    def before(request):
        lost = request.method == "PUT" and (big in request.url or digest in request.url)
        return reply(status) if lost else None

    site.held.before = before
    refused(site, RegistryError, f"refused PUT .*: {status}")


@pytest.mark.parametrize("size", ["3", None])
def test_a_blob_that_is_not_whole_when_it_is_read_back_names_nothing(site, size):
    asked = []
    digest = next(iter(ONE.layers))

    def before(request):
        if request.method == "HEAD" and digest in request.url:
            asked.append(request)
            if len(asked) > 1:  # first, whether it is there already
                return reply(404) if size is None else reply(200, Content_Length=size)
        return None

    site.held.before = before
    refused(site, ReleaseError, "is not whole in the registry")


def test_a_manifest_that_is_not_there_when_it_is_read_back_names_nothing(site):
    put = []

    def before(request):
        if request.method == "PUT" and "/manifests/sha256:" in request.url and not put:
            put.append(request)
            return reply(201)  # and forgets it
        return None

    site.held.before = before
    refused(site, ReleaseError, "is not there after it was brought")


def test_ctrl_c_ends_the_uploads_in_flight(site, monkeypatch):
    running = threading.Event()

    class Interrupted(ThreadPoolExecutor):
        def map(self, *given):
            super().map(*given)
            assert running.wait(10)
            raise KeyboardInterrupt

    def before(request):
        if request.method == "PUT":
            until = time.monotonic() + 5
            running.set()
            while time.monotonic() < until:
                request.body.read(1)
                time.sleep(0.01)
            return reply(503)
        return None

    site.held.before = before
    monkeypatch.setattr(publish, "ThreadPoolExecutor", Interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        site.publish()
    assert time.monotonic() - began < 4
    asked = [words.partition(" ")[0] for words in site.held.asked]
    assert 1 <= asked.count("PUT") == asked.count("DELETE") <= len(ONE.layers)
    assert site.names() == set()


def test_a_failure_of_one_upload_leaves_the_others_their_time(site):
    """The next publication finds there what they brought."""
    lost, kept = ONE.layers
    running, failed = threading.Event(), threading.Event()

    def before(request):
        if request.method == "PUT" and lost.partition(":")[2] in request.url:
            assert running.wait(10)
            failed.set()
            return reply(403)
        if request.method == "PUT" and kept.partition(":")[2] in request.url:
            running.set()
            assert failed.wait(10)
            time.sleep(0.1)
        return None

    site.held.before = before
    refused(site, RegistryError, "refused PUT .*: 403")
    assert kept in site.held.blobs


def test_a_layer_that_is_damaged_here_is_told_and_no_more_kept(site):
    layer = min(ONE.layers)
    path = site.spool.folder / layer.replace(":", "-")

    def before(request):
        # The one that uploads this layer: another thread could write it again once it is removed.
        if request.method == "HEAD" and layer in request.url and path.exists():
            path.write_bytes(bytes(path.stat().st_size))
        return None

    site.held.before = before
    refused(site, ReleaseError, "was damaged in this machine's cache")
    assert not path.exists()


def test_a_key_that_does_not_sign_names_nothing(site):
    site.key.write_text("no key")
    refused(site, ReleaseError, "does not sign")


def test_a_statement_that_does_not_come_back_as_it_was_signed_names_nothing(site):
    def before(request):
        for digest, data in site.held.blobs.items():
            if request.method == "GET" and digest in request.url and b'"schema"' in data:
                return reply(200, data + b" ")
        return None

    site.held.before = before
    refused(site, RegistryError, "is not what its digest says")


def test_a_name_that_somebody_gave_to_another_image_meanwhile_is_not_moved(site):
    other = TWO.manifest

    def before(request):
        # The statement is the last to come before the names.
        if request.method == "PUT" and statement.STATEMENT.encode() in (_body(request) or b""):
            site.held.manifests[NAME] = other
        return None

    site.held.before = before
    refused(site, ReleaseError, "names another image", names={NAME})
    assert site.held.manifests[NAME] == other


def _body(request):
    return request.body if isinstance(request.body, bytes) else None


def test_a_name_that_is_moved_right_after_it_was_put_is_told(site):
    def before(request):
        if request.method == "PUT" and request.url.endswith(SUBJECT.latest):
            site.held.manifests[NAME] = TWO.manifest
        return None

    site.held.before = before
    with pytest.raises(ReleaseError, match="was changed meanwhile"):
        site.publish()


def test_of_two_publishers_with_one_number_both_go_on_to_the_next(site):
    claims = []

    def before(request):
        if request.method == "PUT" and "-r1-" in request.url and not claims:
            claims.append(request)
            site.held.manifests["toy-1.0-cpu-r1-0123456789ab"] = b"{}"
        return None

    site.held.before = before
    assert site.publish().name == "toy-1.0-cpu-r2"


class Clock:
    """Time that passes only while every publisher sleeps; the one due first is woken."""

    def __init__(self, sleepers):
        self._now, self._due, self._sleepers = 0.0, {}, sleepers
        self._changed = threading.Condition()

    def sleep(self, seconds):
        with self._changed:
            own = threading.get_ident()
            self._due[own] = (self._now + seconds, own)
            self._changed.notify_all()
            due = self._due[own]
            assert self._changed.wait_for(
                lambda: len(self._due) == self._sleepers and min(self._due.values()) == due, 30
            )
            self._now = self._due.pop(own)[0]

    def leave(self):
        with self._changed:
            self._sleepers -= 1
            self._changed.notify_all()


def test_two_publishers_that_do_the_same_at_the_same_moments_take_different_numbers(
    tmp_path, monkeypatch
):
    site, clock = Site(tmp_path, monkeypatch), Clock(2)
    monkeypatch.setattr(publish.time, "sleep", clock.sleep)
    # Each request takes both the same time.
    site.held.before = lambda request: clock.sleep(0.01)
    publishers = [Publisher(site.registry, site.spool, site.said.append) for _ in range(2)]

    def claim(publisher, found):
        try:
            return publisher._claim(SUBJECT, manifest_descriptor(found.manifest))
        finally:
            clock.leave()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(claim, publishers, (ONE, TWO)))) == 2


def test_where_every_number_is_taken_a_publisher_gives_up(site):
    def before(request):
        number = request.url.rpartition("-r")[2].partition("-")[0]
        if request.method == "PUT" and f"-r{number}-" in request.url:
            site.held.manifests[f"toy-1.0-cpu-r{number}-0123456789ab"] = b"{}"
        return None

    site.held.before = before
    refused(site, RegistryError, "no revision of toy-1.0-cpu is free")


# Secrets


def found(*, secret, path="/root/.netrc"):
    return Finding(rule="password", path=path, what="a password 0123", secret=secret)


def test_an_image_with_a_secret_is_not_published_and_every_place_is_named():
    findings = [found(secret=True), found(secret=True), found(secret=True, path="/etc/x")]
    with pytest.raises(ReleaseError, match="must not be published: 2 places") as caught:
        require_clean([*findings, found(secret=False, path="/tmp/untidy")], "toy:1")
    assert caught.value.why.splitlines() == [
        "password: /etc/x: a password 0123", "password: /root/.netrc: a password 0123",
    ]  # fmt: skip


def test_what_is_only_untidy_may_be_published():
    require_clean([found(secret=False)], "toy:1")


def test_of_very_many_places_some_are_named_and_the_others_counted():
    many = [found(secret=True, path=f"/etc/{number}") for number in range(50)]
    with pytest.raises(ReleaseError) as caught:
        require_clean(many, "toy:1")
    assert caught.value.why.endswith("and 10 more")
