"""Evidence as a value: what it says, what it may not say, and what it counts for."""

import base64
import json

import pytest

from stackyard.report import evidence
from stackyard.report.evidence import Envelope, Signature
from stackyard.scan import oci
from stackyard.system.errors import ReleaseError
from tests.unit.releases import TEMPLATE, image, layers_of, ran
from tests.unit.report.test_certify import KINDS, record

IMAGE, OTHER = image("one", "two"), image("one", "three")

ID = oci.digest_of(IMAGE.config)


def read(report=None, layers=None):
    payload = evidence.statement(report or ran(IMAGE), layers or layers_of(IMAGE))
    return evidence.read_evidence(Envelope(payload=payload), "FILE")


# What it says


def test_it_is_an_in_toto_test_result_of_the_image():
    value = json.loads(evidence.statement(ran(IMAGE), layers_of(IMAGE)))
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert value["subject"] == [{"name": "stackyard/toy:cpu", "digest": {"sha256": ID[7:]}}]
    told = value["predicate"]
    assert (told["result"], told["failedTests"], told["warnedTests"]) == ("PASSED", [], [])
    assert told["passedTests"] == [check["name"] for check in ran(IMAGE)["checks"]]
    assert told["configuration"] == [{"name": "recipe", "digest": {"sha256": 64 * "5"}}]


def test_an_image_without_a_recipe_has_no_configuration():
    report = ran(IMAGE)
    report["image"]["recipe"] = ""
    told = json.loads(evidence.statement(report, layers_of(IMAGE)))["predicate"]
    assert told["configuration"] == []


def test_every_figure_of_the_report_is_in_it():
    found = read()
    assert found.report == ran(IMAGE)
    assert (found.image_id, list(found.diff_ids)) == (ID, layers_of(IMAGE))
    assert (found.hardware, found.placement) == (
        "2 x NVIDIA H200, driver 580.159.04",
        "together",
    )
    seen = {check["name"]: check["measured"] for check in ran(IMAGE)["checks"]}
    assert found.ratios == {name: seen[name]["ratio"] for name in ("bandwidth", "throughput")}


@pytest.mark.parametrize(
    ("outcome", "result", "where"),
    [("failed", "FAILED", "failedTests"), ("not run", "WARNED", "warnedTests")],
)
def test_what_did_not_pass_is_named_in_in_totos_words(outcome, result, where):
    report = changed_check("throughput", outcome=outcome, why="no torch")
    told = json.loads(evidence.statement(report, layers_of(IMAGE)))["predicate"]
    assert (told["result"], told[where]) == (result, ["throughput"])
    assert "throughput" not in told["passedTests"]


def changed_check(name, overall=None, **changes):
    """A report in which a check says something else."""
    report = ran(IMAGE)
    for check in report["checks"]:
        check.update(changes if check["name"] == name else {})
    return {**report, "outcome": overall or changes.get("outcome", "passed")}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "CPU ranks"),
        (["A", "A"], "2 x A, driver 1"),
        (["A", "B"], "1 x A, 1 x B, driver 1"),
        (["\x1b[2J"], "1 x \\x1b[2J, driver 1"),
    ],
)
def test_hardware_is_said_in_words_that_a_terminal_takes_as_text(names, words):
    gpus = {"driver": "1", "devices": [{"name": name} for name in names]}
    assert read(ran(IMAGE, gpus=gpus if names else {})).hardware == words


def test_the_latest_of_users_own_source_is_another():
    assert read().tag == "toy-cpu-latest"
    report = ran(IMAGE)
    report["image"]["sources"] = [{"short": "1"}]
    assert read(report).tag == "toy-cpu-src-latest"


@pytest.mark.parametrize("name", ["stack", "base", "started"])
def test_words_of_a_run_are_text_for_a_terminal(name):
    assert getattr(read(ran(IMAGE, **{name: "a\x1b[2J"})), name) == "a\\x1b[2J"
    gpus = {**ran(IMAGE)["gpus"], "placement": "a\nb"}
    assert read(ran(IMAGE, gpus=gpus)).placement == "a\\nb"


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf"), float("-inf")])
def test_a_ratio_that_is_not_finite_is_refused(number):
    report = changed_check("bandwidth", measured={"ratio": number})
    value = json.loads(evidence.statement(ran(IMAGE), layers_of(IMAGE)))
    value["predicate"][evidence.EXTENSION]["report"] = report
    with pytest.raises(ReleaseError, match="is not evidence written by"):
        evidence.read_evidence(Envelope(payload=json.dumps(value).encode()), "FILE")


def test_a_ratio_that_is_no_number_is_none():
    assert "bandwidth" not in read(changed_check("bandwidth", measured={"ratio": True})).ratios


# A certification


def certification(kind="good"):
    """The record of a certification with this image."""
    value = record(KINDS[kind])
    return {**value, "image": {**value["image"], "id": ID}}


def test_a_certification_is_evidence_of_its_gpus_and_of_no_training():
    found = read(certification())
    evidence.require_passed(found, "FILE")
    evidence.require_image(found, "FILE", ID, layers_of(IMAGE))
    assert (found.kind, found.stack, found.outcome) == ("certify", "accelerate", "passed")
    assert found.hardware.startswith("8 x ") and "driver" not in found.hardware
    assert not found.on_gpus
    assert read({**certification(), "device": "cpu"}).hardware == "CPU ranks"


def test_a_certification_that_named_something_is_refused_with_what_to_type():
    with pytest.raises(ReleaseError, match="of a certify that did not pass: failed") as caught:
        evidence.require_passed(read(certification("wrong")), "FILE")
    assert "h02:1" in caught.value.why
    assert "invoke certify accelerate --base cuda --hosts hosts.yml" in caught.value.hint


# The envelope


@pytest.mark.parametrize(("payload", "size"), [(b"hello", b"5"), ("é".encode(), b"2"), (b"", b"0")])
def test_what_is_signed_is_dsses_encoding_of_type_and_payload(payload, size):
    signed = Envelope(payload=payload).signed
    assert signed == b"DSSEv1 28 application/vnd.in-toto+json " + size + b" " + payload


def test_an_envelope_is_one_line_and_is_read_as_it_was_written():
    one, two = Signature(keyid="a", data=b"1"), Signature(keyid="b", data=b"\xff\n")
    made = Envelope(payload=b"x\ny").with_signature(one).with_signature(two)
    assert made.text().count(b"\n") == 1 and made.text().endswith(b"\n")
    assert evidence.read_envelope(made.text(), "FILE") == made
    again = made.with_signature(Signature(keyid="a", data=b"3"))
    assert [one.data for one in again.signatures] == [b"\xff\n", b"3"]


GOOD = {"payloadType": "application/vnd.in-toto+json", "payload": "e30=", "signatures": []}


@pytest.mark.parametrize(
    "value",
    [None, [], "x", {}, {**GOOD, "payloadType": "text/plain"}, {**GOOD, "payload": "?"},
     {**GOOD, "payload": 3}, {**GOOD, "signatures": None}, {**GOOD, "signatures": [1]},
     {**GOOD, "signatures": [{"sig": "?"}]}, {**GOOD, "signatures": [{"keyid": "a"}]}],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(value):
    data = b"\xff" if value is None else json.dumps(value).encode()
    with pytest.raises(ReleaseError, match="FILE is not evidence written by") as caught:
        evidence.read_envelope(data, "FILE")
    assert "invoke smoke, bench and certify write it" in caught.value.hint
    assert evidence.read_envelope(json.dumps(GOOD).encode(), "FILE").payload == b"{}"


def test_more_signatures_than_are_verified_are_refused():
    """Each costs processes, and nobody is known to have made any."""
    one = {"keyid": "a", "sig": "AAAA"}
    most = {**GOOD, "signatures": [one] * 16}
    assert len(evidence.read_envelope(json.dumps(most).encode(), "FILE").signatures) == 16
    more = {**GOOD, "signatures": [one] * 17}
    with pytest.raises(ReleaseError) as caught:
        evidence.read_envelope(json.dumps(more).encode(), "FILE")
    assert "it has 17 signatures, at most 16 are verified" in caught.value.why


# What it may not say


def made(**changes):
    """A statement that says something else at its top, in its predicate or in its extension."""
    value = json.loads(evidence.statement(ran(IMAGE), layers_of(IMAGE)))
    predicate = value["predicate"]
    own = predicate[evidence.EXTENSION]
    for place in (own, predicate, value):
        place.update({key: new for key, new in changes.items() if key in place})
    return Envelope(payload=json.dumps(value).encode())


SUBJECT = {"name": "x", "digest": {"sha256": oci.digest_of(OTHER.config)[7:]}}
THIS = {"name": "x", "digest": {"sha256": ID[7:]}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "another kind of statement"),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "another kind of statement"),
        ({"subject": [SUBJECT]}, "its subject is another image"),
        ({"subject": [THIS, SUBJECT]}, "its subject is another image"),
        ({"subject": []}, "its subject is another image"),
        ({"subject": [{"name": "x"}]}, "digest"),
        ({"result": "FAILED"}, "result is not what its report says"),
        ({"passedTests": ["mesh"]}, "passedTests is not what its report says"),
        ({"failedTests": ["mesh"]}, "failedTests is not what its report says"),
        ({"warnedTests": ["mesh"]}, "warnedTests is not what its report says"),
        ({"diff_ids": []}, "no report of an image"),
        ({"diff_ids": ["sha256:1"]}, "layers without digests"),
        ({"diff_ids": [3]}, "layers without digests"),
        ({"report": {}}, "image"),
        ({"report": ran(IMAGE, kind="prove")}, "no report of an image"),
        ({"report": ran(IMAGE, image={"id": "sha256:1"})}, "no report of an image"),
        ({"report": ran(IMAGE, outcome="splendid")}, "splendid"),
        ({"report": ran(IMAGE, checks=[{"name": "mesh"}])}, "outcome"),
        ({"report": ran(IMAGE, gpus={"devices": [{}]})}, "name"),
        ({"predicate": {"result": "PASSED"}}, "evidence/v1"),
    ],
)
def test_what_is_no_test_result_or_says_two_things_is_refused(changes, why):
    with pytest.raises(ReleaseError, match="FILE is not evidence written by") as caught:
        evidence.read_evidence(made(**changes), "FILE")
    assert why in caught.value.why
    assert evidence.read_evidence(made(), "FILE").image_id == ID


# What it counts for


def test_what_nobody_signed_is_refused_with_how_to_sign():
    with pytest.raises(ReleaseError, match="FILE is not signed") as caught:
        evidence.require_signed(Envelope(payload=b""), "FILE")
    assert caught.value.hint.endswith("invoke evidence FILE --sign")
    evidence.require_signed(Envelope(payload=b"").with_signature(Signature(keyid="", data=b"")), "")


@pytest.mark.parametrize(
    ("report", "outcome", "why"),
    [
        (changed_check("parity", outcome="failed", why="two differs"), "failed", "two differs"),
        (changed_check("throughput", outcome="not run", why="no torch"), "not run", "no torch"),
        (changed_check("mesh", "passed", outcome="failed", why="hidden"), "passed", "hidden"),
        (ran(IMAGE, outcome="failed"), "failed", "names no check"),
        (ran(IMAGE, checks=[]), "passed", "names no check"),
    ],
)
def test_what_did_not_pass_counts_for_nothing(report, outcome, why):
    with pytest.raises(ReleaseError, match=f"did not pass: {outcome}") as caught:
        evidence.require_passed(read(report), "FILE")
    assert why in caught.value.why
    assert caught.value.hint.endswith("invoke smoke toy --base cpu --gpus 2")
    evidence.require_passed(read(), "FILE")


@pytest.mark.parametrize(
    ("image_id", "layers", "what"),
    [
        (oci.digest_of(OTHER.config), layers_of(IMAGE), "is evidence of another image"),
        (ID, layers_of(OTHER), "is evidence of other layers"),
        (ID, layers_of(IMAGE)[:1], "is evidence of other layers"),
        (ID, layers_of(IMAGE)[::-1], "is evidence of other layers"),
    ],
)
def test_it_counts_for_the_very_image_and_layers_that_it_names(image_id, layers, what):
    with pytest.raises(ReleaseError, match=f"FILE {what}") as caught:
        evidence.require_image(read(), "FILE", image_id, layers)
    assert f"--image {image_id[7:19]} --gpus 2" in caught.value.hint
    evidence.require_image(read(), "FILE", ID, layers_of(IMAGE))


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("smoke", "smoke toy --base cpu --image {} --gpus 2"),
        (
            "smoke-isolated",
            "smoke toy --base cpu --image {} --gpus 2 --nodes 2 --placement isolated",
        ),
        ("bench", "bench toy --base cpu --image {} --gpus 2"),
        (TEMPLATE, "bench toy --example gpt2-zero-2 --base cpu --image {} --gpus 2"),
    ],
)  # fmt: skip
def test_what_to_type_makes_such_a_run_of_the_image(name, typed):
    with pytest.raises(ReleaseError) as caught:
        evidence.require_image(read(ran(IMAGE, name)), "FILE", oci.digest_of(OTHER.config), ())
    short = oci.digest_of(OTHER.config)[7:19]
    assert caught.value.hint.endswith(f"invoke {typed.format(short)}")
    with pytest.raises(ReleaseError) as caught:
        evidence.require_passed(read(ran(IMAGE, name, outcome="failed")), "FILE")
    assert caught.value.hint.endswith(f"invoke {typed.replace(' --image {}', '')}")


def without_ratio(name):
    report = ran(IMAGE)
    for check in report["checks"]:
        if check["name"] == name:
            del check["measured"]["ratio"]
    return report


def without_check(name):
    report = ran(IMAGE)
    return {**report, "checks": [one for one in report["checks"] if one["name"] != name]}


def twice(name):
    """A check that failed, then passed."""
    checks = ran(IMAGE)["checks"]
    first = next(one for one in checks if one["name"] == name)
    return ran(IMAGE, checks=[{**first, "outcome": "failed"}, *checks])


ON_GPUS = [
    (without_check("transport"), False, "transport did not pass or is missing"),
    (without_check("memory"), False, "memory did not pass or is missing"),
    (without_check("fused"), True, ""),
    (changed_check("transport", "passed", outcome="failed"), False, "transport did not pass"),
    (changed_check("memory", "passed", outcome="not run"), False, "memory did not pass"),
    (changed_check("fused", "passed", outcome="not run"), False, "fused did not pass"),
    (twice("transport"), False, "transport did not pass"),
    (ran(IMAGE), True, ""),
    (ran(IMAGE, "smoke-shared-ipc"), True, ""),
    (ran(IMAGE, "smoke-isolated"), False, "have no ratio to the bare host"),
    (without_ratio("bandwidth"), False, "have no ratio to the bare host"),
    (without_ratio("throughput"), False, "have no ratio to the bare host"),
    (ran(IMAGE, gpus={}), False, "it shows nothing of GPUs"),
    (ran(IMAGE, "bench"), False, "a bench shows speed"),
    (
        ran(IMAGE, TEMPLATE),
        False,
        "template gpt2-zero-2 on 2 x NVIDIA H100 80GB HBM3, driver"
        " 580.159.04: a template shows that one program trains",
    ),
    (ran(IMAGE, kind="bench"), False, "a bench shows speed"),
    (changed_check("throughput", "passed", outcome="failed"), False, "have no ratio"),
    (changed_check("throughput", outcome="not run"), False, "have no ratio to the bare host"),
]


@pytest.mark.parametrize(("report", "counts", "why"), ON_GPUS)
def test_an_image_for_gpus_needs_a_smoke_on_gpus_beside_the_bare_host(report, counts, why):
    found = read(report)
    assert found.on_gpus is counts

    def require(*pieces, without=False):
        evidence.require_on_gpus(pieces, "x:1", "toy", "gpu", without=without)

    require(found, without=True)
    require(read(), found)
    if counts:
        require(found)
        return
    with pytest.raises(ReleaseError, match="no evidence that it trains on one") as caught:
        require(found)
    assert why in caught.value.why
    assert "--without-gpu-evidence" in caught.value.hint


def test_without_any_evidence_it_is_said_what_to_type():
    with pytest.raises(ReleaseError) as caught:
        evidence.require_on_gpus([], "x:1", "toy", "gpu", without=False)
    assert caught.value.why == "no --evidence was given"
    assert "invoke smoke toy --base gpu --gpus 2" in caught.value.hint
    assert "reports/toy/gpu/smoke.intoto.jsonl" in caught.value.hint


def test_files_beside_an_image_have_names_of_their_own():
    one, two = (evidence.file_name(data, "smoke") for data in (b"1", b"2"))
    assert one != two and one.startswith("evidence-smoke-") and one.endswith(".intoto.jsonl")


def test_the_payload_is_in_the_envelope_as_base64():
    payload = evidence.statement(ran(IMAGE), layers_of(IMAGE))
    value = json.loads(Envelope(payload=payload).text())
    assert base64.b64decode(value["payload"]) == payload and value["signatures"] == []
