"""The commands that evidence goes through: `publish --evidence`, `evidence`, `releases`, `pull`."""

import json
from datetime import date
from pathlib import Path

import pytest

from stackyard.cli.options.releases import EvidenceRequest, PublishRequest, PullRequest
from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.steps import audit, fingerprints, published, release
from stackyard.cli.steps import evidence as cli_evidence
from stackyard.cli.steps import pull as cli_pull
from stackyard.definitions.project import Project
from stackyard.release import candidate, publish
from stackyard.release import spool as spools
from stackyard.release.spool import Layer, Saved, Spool
from stackyard.release.statement import Subject
from stackyard.report import certify, evidence, pages, vouch
from stackyard.scan import oci
from stackyard.scan.audit import IndexAnswer, Vulnerability, judge
from stackyard.scan.contents import merge
from stackyard.scan.installed import Installed
from stackyard.system import signing
from stackyard.system.errors import ReleaseError, UsageError
from stackyard.system.image import ImageInfo
from tests.schemas.published import refused
from tests.unit import samples
from tests.unit.lines import run
from tests.unit.releases import (
    WHO,
    Held,
    accept,
    image,
    layers_of,
    make_key,
    ran,
    shown_by,
)

pytestmark = pytest.mark.usefixtures("allow_processes")
ONE, TWO = image("one", "same"), image("two", "same")
NAME = "toy-1.0-gpu-r1"


class Engine:
    """An engine that holds one image, whatever it is asked for."""

    version, found, id = "20.10", ONE, ""
    held_images = staticmethod(lambda: ())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def image(self, name):
        return ImageInfo(
            id=self.id or oci.digest_of(self.found.config), tags=(), labels={}, env=(), size=1,
            layers=tuple(layers_of(self.found)),
        )  # fmt: skip

    pull = image

    def tag(self, *names):
        pass


class Site:
    """A project, an engine with an image, a registry, a publisher with a key."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.held, self.capsys = folder, Held(), capsys
        self.audit = judge([IndexAnswer(name="python", packages=1)], (), date(2026, 1, 1))
        (folder / ".ssh").mkdir()
        self.key = make_key(folder / ".ssh", "id_ed25519")
        self.signers = accept(folder, self.key)
        self.registry = self.held.open(monkeypatch)
        project = Project(root=folder, definitions=samples.definitions(), default_base="gpu")
        values = {"HOME": folder, "XDG_CACHE_HOME": folder / "cache", "USER": "me"}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(folder)
        subject = Subject(stack="toy", version="1.0", base_name="gpu", base_release="gpu")
        monkeypatch.setattr(publish, "SETTLE_SECONDS", 0)
        self.project = project
        for module in (published, release, cli_evidence, cli_pull):
            monkeypatch.setattr(module, "load_project", lambda: project)
        for module in (published, release, cli_evidence, cli_pull, fingerprints):
            monkeypatch.setattr(module, "open_registry", lambda *_: self.registry)
        for module in (release, cli_pull):
            monkeypatch.setattr(module, "Engine", Engine)
        monkeypatch.setattr(release, "size_lines", lambda sizes: [])
        monkeypatch.setattr(audit, "audited", lambda *_: self.audit)
        for name, value in {
            "_require_current": lambda *_: None, "subject_of": lambda image: subject,
            "read": self.read, "lock_digests": lambda *_: {},
        }.items():  # fmt: skip
            monkeypatch.setattr(candidate, name, value)
        monkeypatch.setattr(pages, "revision", lambda root: {})

    def read(self, project, engine, store, found, say):
        layers = tuple(Layer(**said) for said in Engine.found.said)
        for layer in layers:
            Spool(spools.cache_folder({"XDG_CACHE_HOME": str(self.folder / "cache")})).path(
                layer
            ).write_bytes(Engine.found.layers[layer.digest])
        saved = Saved(config=Engine.found.config, layers=layers, read={})
        return candidate.Read(
            saved=saved, findings=(), attached=(), sizes={}, created="2026-01-01T00:00:00+00:00",
            installed=Installed(contents=merge([]), system={}, packages=(), distributions=()),
        )  # fmt: skip

    def file(self, data, name="FILE"):
        """A file of evidence, relative to where commands run."""
        (self.folder / name).write_bytes(data)
        return name

    def run(self, command, given):
        """A command's JSON, and what it wrote for people."""
        code = run(command, given, as_json=True)
        out, err = self.capsys.readouterr()
        name = "publish" if command is release.publish else "evidence"
        schema = name if "error" not in json.loads(out) else "error"
        assert refused(f"answers/{schema}", json.loads(out)) == []
        return code, json.loads(out), err

    def publish(self, *files, **changes):
        given = PublishRequest(stack="toy", evidence=files, **changes)
        return self.run(release.publish, given)

    def evidence(self, file, **changes):
        return self.run(cli_evidence.show, EvidenceRequest(file=file, **changes))

    def releases(self):
        code = run(published.releases, "", "", as_json=True)
        assert code == 0
        out, _ = self.capsys.readouterr()
        assert refused("answers/releases", json.loads(out)) == []
        return {row["name"]: row for row in json.loads(out)["releases"]}


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Engine, "found", ONE)
    return Site(tmp_path, monkeypatch, capsys)


def gpu(found=ONE, name="smoke", **changes):
    """A report of an image on the base for GPUs."""
    return ran(found, name, **{"base": "gpu", **changes})


def shown(site, **changes):
    return shown_by(ONE, site.key, report=gpu(**changes))


# publish


def test_an_image_with_evidence_is_published_and_its_smoke_is_its_proof(site):
    code, told, _ = site.publish(site.file(shown(site)))
    assert (code, told["name"], told["proven"]) == (0, NAME, True)
    assert told["seen_on"] == ["2 x NVIDIA H200, driver 580.159.04"]
    assert told["evidence"][0]["signer"].startswith("me@")
    (row,) = site.releases().values()
    assert row["evidence"][0]["hardware"] == "2 x NVIDIA H200, driver 580.159.04"
    assert (row["evidence"][0]["signer"], row["needs_gpus"]) == (WHO, True)


CPU, GPU = "stackyard/toy:cpu", "stackyard/toy:gpu"


@pytest.mark.parametrize(
    ("held", "changes", "why", "hint"),
    [
        ((CPU,), {"to": "r.example/n"}, f"here: {CPU}",
         "invoke publish toy --base cpu --to r.example/n; or first: invoke smoke toy --gpus 2"),
        ((GPU,), {"base": "cpu", "unproven": True}, f"here: {GPU}",
         "invoke publish toy --base gpu --unproven; or first: invoke smoke toy --gpus 0"),
        ((), {}, "", "invoke smoke toy --gpus 2 builds it and sees it train"),
        ((CPU, GPU), {"image": "mine"}, "", "docker images 'stackyard/*' shows what it has"),
    ],
)  # fmt: skip
def test_of_an_image_that_is_not_here_the_hint_can_be_typed(
    site, monkeypatch, held, changes, why, hint
):
    there = Engine.image
    monkeypatch.setattr(
        Engine, "image", lambda engine, name: there(engine, name) if name in held else None
    )
    code, told, _ = site.publish(**changes)
    assert (code, told["error"]["why"], told["error"]["hint"]) == (2, why, hint)


MANIFEST = oci.digest_of(ONE.manifest)


def test_evidence_names_the_configuration_whatever_the_engine_calls_the_image(site, monkeypatch):
    """An engine with containerd's image store calls it by its manifest."""
    monkeypatch.setattr(Engine, "id", MANIFEST)
    code, told, _ = site.publish(site.file(shown(site)))
    assert (code, told["name"], told["proven"]) == (0, NAME, True)
    assert site.releases()[NAME]["evidence"][0]["signer"] == WHO


@pytest.mark.parametrize("store", ["", MANIFEST])
def test_evidence_of_other_than_the_configuration_as_saved_is_not_published(
    site, monkeypatch, store
):
    monkeypatch.setattr(Engine, "id", store)
    report = gpu()
    report["image"]["id"] = MANIFEST
    code, told, _ = site.publish(site.file(shown_by(ONE, site.key, report=report)))
    assert code == 1 and "FILE is evidence of another image" in told["error"]["what"]
    assert site.held.manifests == {} and site.held.blobs == {}


def failed(found):
    found["checks"][0].update(outcome="failed", why="no login")
    return {**found, "outcome": "failed"}


def no_torch(found):
    for check in found["checks"]:
        if check["name"] in evidence.COMPARED:
            check.update(outcome="not run", why="no torch")
    return {**found, "outcome": "not run"}


def other_layers(site):
    payload = evidence.statement(gpu(), layers_of(ONE)[::-1])
    return vouch.sign(evidence.Envelope(payload=payload), site.key).text()


def changed(site):
    """Signed as failed, then made to pass."""
    bad = evidence.read_envelope(shown_by(ONE, site.key, report=failed(gpu())), "FILE")
    good = evidence.statement(gpu(), layers_of(ONE))
    return evidence.Envelope(payload=good, signatures=bad.signatures).text()


def as_release(site):
    envelope = evidence.Envelope(payload=evidence.statement(gpu(), layers_of(ONE)))
    seal = signing.sign(envelope.signed, site.key)
    return envelope.with_signature(evidence.Signature(keyid="", data=seal)).text()


WRONG = {
    "unsigned": (
        lambda site: shown_by(ONE, report=gpu()),
        "FILE is not signed", "invoke evidence FILE --sign",
    ),
    "a stranger's": (
        lambda site: shown_by(ONE, make_key(site.folder, "stranger"), report=gpu()),
        "FILE is not signed by anybody who may", "allowed_signers names who may",
    ),
    "changed after it was signed": (
        changed, "FILE is not signed by anybody who may", "allowed_signers names who may",
    ),
    "signed as a release": (
        as_release, "FILE is not signed by anybody who may", "allowed_signers names who may",
    ),
    "of another image": (
        lambda site: shown_by(TWO, site.key, report=gpu(TWO)),
        "FILE is evidence of another image", "invoke smoke toy --base gpu --image",
    ),
    "of other layers": (
        other_layers, "FILE is evidence of other layers", "invoke smoke toy --base gpu --image",
    ),
    "failed": (
        lambda site: shown_by(ONE, site.key, report=failed(gpu())),
        "FILE is of a smoke that did not pass: failed", "invoke smoke toy --base gpu --gpus 2",
    ),
    "not run": (
        lambda site: shown_by(ONE, site.key, report=no_torch(gpu())),
        "FILE is of a smoke that did not pass: not run", "invoke smoke toy --base gpu --gpus 2",
    ),
    "no evidence": (
        lambda site: b"{}", "FILE is not evidence written by",
        "invoke smoke, bench and certify write it",
    ),
    "of CPU ranks": (
        lambda site: shown(site, gpus={}),
        "there is no evidence that it trains on one", "--without-gpu-evidence",
    ),
    "a bench's": (
        lambda site: shown(site, name="bench"),
        "there is no evidence that it trains on one", "invoke smoke toy --base gpu --gpus 2",
    ),
    "without a ratio": (
        lambda site: shown(site, name="smoke-isolated"),
        "there is no evidence that it trains on one", "invoke smoke toy --base gpu --gpus 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_evidence_is_one_error_with_what_to_type_and_nothing_is_named(site, kind):
    make, what, hint = WRONG[kind]
    code, told, said = site.publish(site.file(make(site)))
    assert code == 1 and what in told["error"]["what"]
    assert hint in told["error"]["hint"]
    assert said.count("error: ") == 1
    assert site.held.manifests == {} and site.held.blobs == {}


@pytest.mark.parametrize("kind", ["of another image", "failed", "unsigned"])
def test_one_wrong_piece_among_good_ones_is_refused_by_its_name(site, kind):
    bad = site.file(WRONG[kind][0](site), "BAD")
    code, told, _ = site.publish(site.file(shown(site)), bad)
    assert code == 1 and told["error"]["what"].startswith("BAD is ")
    assert site.held.manifests == {}


def test_a_file_that_is_not_there_is_said(site):
    code, told, _ = site.publish("FILE")
    assert code == 2 and "FILE cannot be read" in told["error"]["what"]


def passed_here(site, **changes):
    """A report of this machine: the proof of the image, as far as it goes."""
    path = site.folder / "reports" / "toy" / "gpu" / "smoke.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(gpu(**changes)))


def test_an_image_for_gpus_needs_evidence_even_where_its_smoke_passed_here(site):
    passed_here(site)
    code, told, _ = site.publish()
    assert code == 1 and "no evidence that it trains on one" in told["error"]["what"]
    assert "no --evidence was given" in told["error"]["why"]
    assert site.held.manifests == {}


def test_the_option_publishes_it_and_says_so(site):
    passed_here(site, gpus={})
    code, told, said = site.publish(without_gpu_evidence=True)
    assert (code, told["seen_on"], told["needs_gpus"]) == (0, [], True)
    assert "published without evidence of GPUs: its statement says so" in said
    assert site.releases()[NAME]["evidence"] == []


def test_the_option_is_no_proof_of_training(site):
    code, told, _ = site.publish(without_gpu_evidence=True)
    assert code == 1 and "has passed no smoke" in told["error"]["what"]


def test_an_image_for_cpu_ranks_needs_no_gpus(site):
    data = shown_by(ONE, site.key, report=ran(ONE, gpus={}))
    code, told, said = site.publish(site.file(data), base="cpu")
    assert (code, told["needs_gpus"]) == (0, False) and "without evidence" not in said


# evidence


def released(site):
    code, told, _ = site.publish(site.file(shown(site, name="smoke-shared-ipc"), "FIRST"))
    assert code == 0
    return told["digest"]


def test_unsigned_evidence_is_signed_looked_at_and_attached(site):
    digest = released(site)
    file = site.file(shown_by(ONE, report=gpu()))
    code, told, _ = site.evidence(file, sign=True)
    assert code == 0 and 'namespaces="evidence@stackyard"' in told["signer"]
    code, told, _ = site.evidence(file)
    assert (code, told["signer"], told["hardware"]) == (
        0, WHO, "2 x NVIDIA H200, driver 580.159.04",
    )  # fmt: skip
    code, told, _ = site.evidence(file, add=True)
    assert (code, told["release"], told["digest"], told["again"]) == (0, NAME, digest, False)
    placements = {one["placement"] for one in site.releases()[NAME]["evidence"]}
    assert placements == {"together", "shared-ipc"}
    code, told, _ = site.evidence(file, add=True)
    assert (code, told["again"]) == (0, True)


def test_signing_and_attaching_are_one_command_where_both_are_asked_for(site):
    released(site)
    code, told, _ = site.evidence(site.file(shown_by(ONE, report=gpu())), sign=True, add=True)
    assert (code, told["release"]) == (0, NAME) and "signer" in told


def test_what_is_no_evidence_is_not_signed(site):
    file = site.file(b"{}")
    code, told, _ = site.evidence(file, sign=True)
    assert code == 1 and "is not evidence written by" in told["error"]["what"]
    assert Path(file).read_bytes() == b"{}"


@pytest.mark.parametrize(
    "kind",
    ["unsigned", "a stranger's", "changed after it was signed", "of another image",
     "of other layers", "failed", "not run", "no evidence"],
)  # fmt: skip
def test_wrong_evidence_is_not_attached_to_a_standing_release(site, kind):
    released(site)
    before = dict(site.held.manifests)
    make, what, hint = WRONG[kind]
    code, told, said = site.evidence(site.file(make(site)), add=True, release=NAME)
    assert code == 1 and what in told["error"]["what"] and said.count("error: ") == 1
    assert hint in told["error"]["hint"]
    assert site.held.manifests == before


def test_evidence_of_an_older_release_is_attached_by_its_name(site, monkeypatch):
    released(site)
    monkeypatch.setattr(Engine, "found", TWO)
    code, _, _ = site.publish(site.file(shown_by(TWO, site.key, report=gpu(TWO)), "SECOND"))
    assert code == 0
    file = site.file(shown(site))
    code, told, _ = site.evidence(file, add=True)
    assert code == 1 and "--release NAME" in told["error"]["hint"]
    assert "(toy-1.0-gpu-r2)" in told["error"]["why"]
    code, told, _ = site.evidence(file, add=True, release=NAME)
    assert (code, told["release"]) == (0, NAME)


def test_evidence_is_not_attached_to_a_release_that_nobody_believes(site):
    released(site)
    site.signers.write_text(signing.signer_line(make_key(site.folder, "other"), WHO) + "\n")
    by = make_key(site.folder, "third")
    with site.signers.open("a") as file:
        file.write(signing.signer_line(by, "third", [signing.EVIDENCE]) + "\n")
    code, told, _ = site.evidence(site.file(shown_by(ONE, by, report=gpu())), add=True)
    assert code == 1 and "cannot be believed" in told["error"]["what"]


def test_evidence_that_a_registry_loses_from_its_list_is_told(site):
    released(site)
    kept = dict(site.held.manifests)

    def before(request):
        site.held.manifests.update(
            {tag: kept[tag] for tag in kept if tag.startswith("sha256-")}
        )  # somebody else's list, written after ours

    site.held.before = before
    code, told, _ = site.evidence(site.file(shown(site)), add=True)
    assert code == 4 and "does not list the evidence" in told["error"]["what"]


# What others see


def table(site, capsys):
    run(published.releases, "", "")
    return " ".join(capsys.readouterr().out.split())


def test_releases_show_hardware_and_signer_and_what_nobody_saw(site, capsys):
    passed_here(site, gpus={})
    site.publish(without_gpu_evidence=True)
    assert "no smoke on GPUs from" in table(site, capsys)
    site.evidence(site.file(shown(site)), add=True)
    said = table(site, capsys)
    assert "no GPU" not in said and "NVIDIA H200" in said and "smoke by" in said


def test_a_list_without_the_voucher_shows_nothing_of_what_was_seen(site, capsys):
    by = make_key(site.folder, "lab")
    file = site.file(shown_by(ONE, by, report=gpu()))
    both = site.folder / "both"
    line = signing.signer_line(by, "lab@site", [signing.EVIDENCE])
    both.write_text(f"{site.signers.read_text()}{line}\n")
    code, _, _ = site.publish(file, signers=str(both))
    assert code == 0
    row = site.releases()[NAME]
    assert row["evidence"] == [] and "not signed by anybody who may" in row["evidence_refused"][0]
    said = table(site, capsys)
    assert "no smoke on GPUs from" in said and "H200" not in said
    site.signers.write_text(both.read_text())
    assert site.releases()[NAME]["evidence"][0]["signer"] == "lab@site"


def test_a_pull_says_on_which_hardware_and_by_whose_key(site, capsys):
    released(site)
    code = run(cli_pull.pull, PullRequest(stack="toy"))
    out = capsys.readouterr().out
    assert code == 0
    told = f"{NAME}: 2 x NVIDIA H200, driver 580.159.04; smoke by {WHO}"
    assert told in out.splitlines()
    run(cli_pull.pull, PullRequest(stack="toy"), as_json=True)
    value = json.loads(capsys.readouterr().out)
    assert refused("answers/pull", value) == []
    assert value["evidence"][0]["signer"] == WHO and value["evidence_refused"] == []


def test_a_pull_of_a_release_that_is_on_another_base_only_says_what_to_type(site):
    site.held.put(ONE, "toy-gpu-latest")
    given = {"from_": "r.example/n", "hosts": "a b", "as_": "squashfs"}
    _, told, _ = site.run(cli_pull.pull, PullRequest(stack="toy", base="cpu", **given))
    assert told["error"]["hint"] == (
        "invoke pull toy --base gpu --from r.example/n --hosts 'a b' --as squashfs"
    )
    asked = PullRequest(stack="toy", base="cpu", release="toy-1.0-cpu-r7", **given)
    _, told, _ = site.run(cli_pull.pull, asked)
    assert (
        told["error"]["hint"]
        == "invoke releases --from registry.example/team/yard lists what there is"
    )
    site.publish(site.file(shown(site)))
    asked = PullRequest(stack="toy", base="cpu", release=NAME)
    _, told, _ = site.run(cli_pull.pull, asked)
    assert told["error"]["hint"] == f"invoke pull toy --base gpu --release {NAME}"


def test_a_pull_says_that_nobody_saw_it_on_a_gpu(site, capsys):
    passed_here(site, gpus={})
    site.publish(without_gpu_evidence=True)
    run(cli_pull.pull, PullRequest(stack="toy"))
    assert f"{NAME}: no smoke on GPUs from an accepted signer" in capsys.readouterr().out


# Vulnerabilities, which a publication looks for


def hole(*fixed):
    found = Vulnerability(package="torch", version="2.0", ids=("CVE-1",), fixed=fixed)
    return judge([IndexAnswer(name="python", packages=1, findings=(found,))], (), date(2026, 1, 1))


def test_a_fixable_vulnerability_blocks_a_publication(site):
    site.audit = hole("2.1")
    code, value, err = site.publish(without_gpu_evidence=True, unproven=True)
    assert code == 1 and "torch 2.0: CVE-1, fixed in 2.1" in json.dumps(value) + err
    assert site.held.manifests == {}


def test_a_statement_holds_what_was_known_and_what_was_not_looked_up(site):
    parts = [*hole().parts, IndexAnswer(name="system", why="there are no apt sources")]
    site.audit = judge(parts, (), date(2026, 1, 1))
    code, value, err = site.publish(without_gpu_evidence=True, unproven=True)
    assert code == 0 and "vulnerabilities, system: not run: there are no apt sources" in err
    assert value["audit"]["outcome"] == "not run"
    (text,) = [json.loads(data) for data in site.held.blobs.values() if b'"seen_on"' in data]
    assert text["audit"] == value["audit"] == site.audit.value()


# A certification's fingerprint


def certified(site, of=ONE, **models):
    """Signed evidence of a passed certification of these fingerprints by model of GPU."""
    value = {
        "schema": certify.SCHEMA, "kind": "certify", "stack": "toy", "base": "gpu",
        "outcome": "passed", "started": "2026-01-02T03:04:05+00:00", "device": "cuda",
        "image": {"id": oci.digest_of(of.config), "tag": "stackyard/toy:gpu"},
        "hosts": [{"host": "a", "gpus": [{"model": model} for model in models]}],
        "checks": [{"name": "fingerprint", "outcome": "passed", "measured": {}, "expected": {}}],
        "fingerprints": {m: {"bits": b, "compared_with": "2 of 2"} for m, b in models.items()},
    }  # fmt: skip
    return shown_by(of, site.key, report=value)


def known(site, against, of=ONE, **more):
    """The fingerprints that `invoke certify --against` takes, for this image."""
    asked = CertifyRequest(stack="toy", against=against, signers=str(site.signers), **more)
    text = fingerprints.earlier(site.project, asked)
    return certify.fingerprints_of(text, against, oci.digest_of(of.config))


def test_a_release_has_the_signed_fingerprint_of_its_image(site):
    one, two = (site.file(certified(site, **m), n) for n, m in {
        "ONE": {"H100": ["1.1", "2.2"]}, "TWO": {"H200": ["3.3"]}}.items())  # fmt: skip
    assert site.publish(site.file(shown(site)), one)[0] == 0
    with_one = known(site, NAME, from_="x")
    assert with_one == {"H100": ("1.1", "2.2")}
    assert site.evidence(two, add=True)[0] == 0
    assert known(site, NAME, from_="x") == {**with_one, "H200": ("3.3",)}
    with pytest.raises(UsageError, match="is of another image"):
        known(site, NAME, of=TWO, from_="x")


def test_a_release_without_a_fingerprint_or_with_two_is_refused(site):
    assert site.publish(site.file(shown(site)))[0] == 0
    with pytest.raises(ReleaseError, match=f"{NAME} has no fingerprint"):
        known(site, NAME, from_="x")
    for name, bits in (("ONE", "1.1"), ("TWO", "1.2")):
        assert site.evidence(site.file(certified(site, H200=[bits]), name), add=True)[0] == 0
    with pytest.raises(ReleaseError, match=f"{NAME} has two fingerprints of H200"):
        known(site, NAME, from_="x")


def test_a_fingerprint_in_a_file_counts_only_with_an_accepted_signature(site):
    path = site.file(certified(site, H200=["1.1"]), f"a.{evidence.SUFFIX}")
    assert known(site, path) == {"H200": ("1.1",)}
    site.signers.write_text(
        site.signers.read_text().replace("ssh-ed25519 AAAA", "ssh-ed25519 BBBB")
    )
    with pytest.raises(ReleaseError):
        known(site, path)


def test_a_certification_is_no_proof_that_an_image_trains(site):
    code, told, _ = site.publish(site.file(certified(site, H200=["1.1"])))
    assert code == 1 and "a certify shows the state of hosts" in told["error"]["why"]
