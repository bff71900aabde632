"""Write and read evidence: a record of a run as an in-toto test result in an envelope.

Owns the statement, the envelope (DSSE) and the rules by which evidence counts for an image
(docs/howto/evidence.md). Pure: it must not read files, sign or ask a registry; `report.vouch` does.

Over 300 lines: what is written, read and required of evidence is one format.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stackyard.scan.oci import digest_of, is_digest
from stackyard.system.errors import ReleaseError, shown
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED

ENVELOPE = "application/vnd.dsse.envelope.v1+json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
# in-toto's parsing rules: a property that a predicate lacks is named by a URI.
EXTENSION = "https://stackyard.example/evidence/v1"
SUFFIX = "intoto.jsonl"
LONGEST = 4 * 2**20
# Verifying each one costs two processes, before any signer is known.
MOST_SIGNATURES = 16
KINDS = ("smoke", "bench", "template", "certify")
WRITTEN = "is not evidence written by `invoke smoke`, `bench` or `certify`"
RESULTS = {PASSED: "PASSED", NOT_RUN: "WARNED", FAILED: "FAILED"}
# Checks of a smoke on GPUs that prove something only with a ratio to the bare host.
COMPARED = ("bandwidth", "throughput")
# Checks that every smoke on GPUs has, and one that stacks with fused kernels have.
ALWAYS = ("transport", "memory")
SOMETIMES = ("fused",)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Hold one signature of an envelope; `keyid` is a fingerprint for people and proves nothing."""

    keyid: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Hold a statement as bytes, and its signatures."""

    payload: bytes
    signatures: tuple[Signature, ...] = ()

    @property
    def signed(self) -> bytes:
        """Return the bytes that are signed (DSSE's pre-authentication encoding)."""
        return b"DSSEv1 %d %s %d %s" % (
            len(PAYLOAD), PAYLOAD.encode(), len(self.payload), self.payload,
        )  # fmt: skip

    def with_signature(self, added: Signature) -> Envelope:
        """Return the envelope with another signature, in place of one by the same key."""
        others = tuple(one for one in self.signatures if one.keyid != added.keyid)
        return replace(self, signatures=(*others, added))

    def text(self) -> bytes:
        """Return the envelope as one line of JSON."""
        value = {
            "payloadType": PAYLOAD,
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": [
                {"keyid": one.keyid, "sig": base64.b64encode(one.data).decode()}
                for one in self.signatures
            ],
        }
        return json.dumps(value).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Hold a statement as read.

    Attributes:
        image_id: the digest of the image's configuration; `diff_ids` of its layers, unpacked.
        outcome: as in the report.
        gpus: names of the GPUs that were trained on; none for CPU ranks.
        driver: the GPU driver's version.
        ratios: ratios to the bare host of `bandwidth` and `throughput`, where they passed.
        unmet: the checks that did not pass, each with its reason.
        report: the whole report: every check and figure.
    """

    image_id: str
    diff_ids: tuple[str, ...]
    kind: str
    stack: str
    base: str
    outcome: str
    started: str
    placement: str
    gpus: tuple[str, ...]
    driver: str
    ratios: Mapping[str, float]
    unmet: tuple[str, ...]
    report: Mapping[str, Any]

    @property
    def what(self) -> str:
        """Return what was run, in words."""
        return f"{self.kind} {self.example}".rstrip()

    @property
    def example(self) -> str:
        """Return the name of a template; empty for every other kind."""
        return shown(str(self.report.get("example", ""))) if self.kind == "template" else ""

    @property
    def hardware(self) -> str:
        """Return the hardware of the run, in words."""
        counted = ", ".join(f"{count} x {name}" for name, count in Counter(self.gpus).items())
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{counted}{driver}" if counted else "CPU ranks"

    @property
    def on_gpus(self) -> bool:
        """Return whether the evidence shows that the image trains on GPUs.

        Only a passed smoke does, with a ratio to the bare host: `bandwidth` and `throughput` prove
        nothing without one. Transport, memory and any fused kernels must have passed, too.
        """
        smoke = self.kind == "smoke" and self.outcome == PASSED and bool(self.gpus)
        return smoke and set(self.ratios) == set(COMPARED) and not self.lacking

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the checks of GPUs without a ratio that are missing or did not pass."""
        seen: dict[str, set[str]] = {}
        for check in self.report["checks"]:
            seen.setdefault(check["name"], set()).add(check["outcome"])
        asked = (*ALWAYS, *(name for name in SOMETIMES if name in seen))
        return tuple(name for name in asked if seen.get(name) != {PASSED})

    @property
    def tag(self) -> str:
        """Return the moving tag of releases of this stack on this base."""
        own = "src-" if self.report["image"].get("sources") else ""
        return f"{self.stack}-{self.base}-{own}latest"


def statement(report: Mapping[str, Any], diff_ids: Sequence[str]) -> bytes:
    """Return what a report says of its image, as an in-toto statement.

    Args:
        diff_ids: digests of the image's layers, unpacked, from the bottom.
    """
    image = report["image"]
    value = {
        "_type": STATEMENT,
        "subject": [
            {
                "name": f"stackyard/{report['stack']}:{report['base']}",
                "digest": {"sha256": str(image["id"]).removeprefix("sha256:")},
            }
        ],
        "predicateType": TEST_RESULT,
        "predicate": predicate(report, diff_ids),
    }
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def predicate(report: Mapping[str, Any], diff_ids: Sequence[str]) -> dict[str, Any]:
    """Return a report as in-toto's predicate of a test result."""
    return {
        **_result(report),
        "configuration": _configuration(str(report["image"].get("recipe", ""))),
        EXTENSION: {"diff_ids": list(diff_ids), "report": dict(report)},
    }


def _configuration(recipe: str) -> list[dict[str, Any]]:
    """Return the image's recipe as in-toto names resources; nothing for an image without one."""
    known = is_digest(recipe)
    return [{"name": "recipe", "digest": {"sha256": recipe[7:]}}] if known else []


def _result(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome and check names as in-toto's test result.

    Checks not run are warned tests.
    """
    named: dict[str, list[str]] = {outcome: [] for outcome in RESULTS}
    for check in report["checks"]:
        named[check["outcome"]].append(check["name"])
    return {
        "result": RESULTS[report["outcome"]],
        "passedTests": named[PASSED],
        "warnedTests": named[NOT_RUN],
        "failedTests": named[FAILED],
    }


def file_name(data: bytes, kind: str) -> str:
    """Return the name of a piece of evidence beside an image."""
    return f"evidence-{kind}-{digest_of(data)[7:19]}.{SUFFIX}"


def read_envelope(data: bytes, name: str) -> Envelope:
    """Read an envelope that somebody else may have made.

    Raises:
        ReleaseError: it is none, holds no in-toto statement, or has too many signatures.
    """
    try:
        value = json.loads(data)
        if value["payloadType"] != PAYLOAD:
            raise ValueError(f"its payload is {value['payloadType']!r}")
        count = len(value["signatures"])
        if count > MOST_SIGNATURES:
            raise ValueError(f"it has {count} signatures, at most {MOST_SIGNATURES} are verified")
        return Envelope(
            payload=_decoded(value["payload"]),
            signatures=tuple(
                Signature(keyid=str(one.get("keyid", "")), data=_decoded(one["sig"]))
                for one in value["signatures"]
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _unreadable(name, error) from error


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError("base64 is text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error


def _unreadable(name: str, error: Exception) -> ReleaseError:
    return ReleaseError(
        f"{name} {WRITTEN}",
        why=shown(repr(error)),
        hint=f"invoke smoke, bench and certify write it beside their reports, as *.{SUFFIX}",
    )


def read_evidence(envelope: Envelope, name: str) -> Evidence:
    """Read an envelope's statement; callers trust it only once its signature is verified.

    Raises:
        ReleaseError: it is no test result of one image, or it contradicts itself.
    """
    try:
        value = json.loads(envelope.payload)
        kinds = value["_type"], value["predicateType"]
        if kinds != (STATEMENT, TEST_RESULT):
            raise ValueError(f"another kind of statement: {kinds}")
        predicate = value["predicate"]
        found = _evidence(predicate[EXTENSION]["report"], predicate[EXTENSION]["diff_ids"])
        if [subject["digest"]["sha256"] for subject in value["subject"]] != [found.image_id[7:]]:
            raise ValueError("its subject is another image than its report's")
        for key, told in _result(found.report).items():
            if predicate[key] != told:
                raise ValueError(f"{key} is not what its report says")
    except (
        AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise _unreadable(name, error) from error
    return found


def _evidence(report: Mapping[str, Any], diff_ids: Sequence[Any]) -> Evidence:
    image_id = report["image"]["id"]
    if report["kind"] not in KINDS or not is_digest(image_id) or not diff_ids:
        raise ValueError("no report of an image")
    if not all(isinstance(digest, str) and is_digest(digest) for digest in diff_ids):
        raise ValueError("layers without digests")
    gpus, checks = report.get("gpus") or {}, report["checks"]
    return Evidence(
        image_id=image_id,
        diff_ids=tuple(diff_ids),
        kind=report["kind"],
        stack=shown(str(report["stack"])),
        base=shown(str(report["base"])),
        outcome=report["outcome"],
        started=shown(str(report["started"])),
        placement=shown(str(gpus.get("placement", ""))),
        gpus=tuple(shown(str(name)) for name in _models(report)),
        driver=shown(str(gpus.get("driver", ""))),
        ratios={c["name"]: r for c in checks if (r := _ratio(c)) is not None},
        unmet=tuple(
            shown(f"{c['name']} {c['outcome']}: {c.get('why', '')}")
            for c in checks
            if c["outcome"] != PASSED
        ),
        report=report,
    )


def _models(report: Mapping[str, Any]) -> list[Any]:
    """Return the driver's name of each GPU that a report is of; none for CPU ranks."""
    if report["kind"] == "certify":
        gpus = [gpu["model"] for host in report["hosts"] for gpu in host["gpus"]]
        return gpus if report["device"] == "cuda" else []
    return [device["name"] for device in (report.get("gpus") or {}).get("devices", ())]


def _ratio(check: Mapping[str, Any]) -> float | None:
    """Return a check's ratio to the bare host; None if it has none or did not pass.

    Raises:
        ValueError: it is not finite.
        OverflowError: it is too large for a float.
    """
    if check["name"] not in COMPARED or check["outcome"] != PASSED:
        return None
    found = (check["measured"] or {}).get("ratio")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if not math.isfinite(found):
        raise ValueError(f"the ratio of {check['name']} is not finite")
    return float(found)


def require_signed(envelope: Envelope, name: str) -> None:
    """Require at least one signature.

    Raises:
        ReleaseError: there is none.
    """
    if not envelope.signatures:
        raise ReleaseError(
            f"{name} is not signed",
            why="nobody vouches for it: anybody could have written it",
            hint=f"somebody who saw the run signs it: invoke evidence {name} --sign",
        )


def require_passed(found: Evidence, name: str) -> None:
    """Require that every check of the evidence passed.

    Raises:
        ReleaseError: a check failed or was not run, or there is none.
    """
    if found.outcome != PASSED or found.unmet or not found.report["checks"]:
        raise ReleaseError(
            f"{name} is of a {found.what} that did not pass: {found.outcome}",
            why="\n".join(found.unmet) or "its report names no check",
            hint=f"repair what it names, then {_again(found)}",
        )


def _again(found: Evidence, image_id: str = "") -> str:
    """Return the command of such a run; of the stack's own image unless another is named."""
    named = f" --image {image_id[7:19]}" if image_id else ""
    count = len(found.report.get("nodes") or ()) if found.kind == "smoke" else 0
    spread = f" --nodes {count} --placement {found.placement}" if found.gpus and count > 1 else ""
    start = f"invoke {found.kind} {found.stack} --base {found.base}"
    if found.kind == "template":
        start = f"invoke bench {found.stack} --example {found.example} --base {found.base}"
    if found.kind == "certify":
        return f"{start}{named} --hosts hosts.yml{'' if found.gpus else ' --gpus 0'}"
    return f"{start}{named} --gpus {len(found.gpus)}{spread}"


def require_image(found: Evidence, name: str, image_id: str, diff_ids: Sequence[str]) -> None:
    """Require that the evidence is of this image.

    Raises:
        ReleaseError: it is of another one.
    """
    again = f"run it with the image that is released: {_again(found, image_id)}"
    if found.image_id != image_id:
        raise ReleaseError(
            f"{name} is evidence of another image",
            why=f"it is of image {found.image_id[7:19]}, this is {image_id[7:19]}",
            hint=again,
        )
    if list(found.diff_ids) != list(diff_ids):
        raise ReleaseError(
            f"{name} is evidence of other layers than this image's",
            why=f"it names {len(found.diff_ids)} layers, not all of them this image's"
            f" {len(diff_ids)}",
            hint=again,
        )


def require_on_gpus(
    found: Sequence[Evidence], name: str, stack: str, base: str, *, without: bool
) -> None:
    """Require evidence that an image for GPUs trains on GPUs.

    Args:
        without: whether it may be released without such evidence.

    Raises:
        ReleaseError: no piece of evidence shows it.
    """
    if without or any(one.on_gpus for one in found):
        return
    told = [f"{one.what} on {one.hardware}: {_short_of(one)}" for one in found]
    raise ReleaseError(
        f"{name} is an image for GPUs, and there is no evidence that it trains on one",
        why="\n".join(told) or "no --evidence was given",
        hint=f"invoke smoke {stack} --base {base} --gpus 2 where there are GPUs writes"
        f" reports/{stack}/{base}/smoke.{SUFFIX}: --evidence FILE;"
        " --without-gpu-evidence publishes it and says so in the release",
    )


def _short_of(found: Evidence) -> str:
    if found.kind != "smoke":
        what = {
            "bench": "speed",
            "template": "that one program trains",
            "certify": "the state of hosts",
        }[found.kind]
        return f"a {found.kind} shows {what}, a smoke shows that the image trains"
    if not found.gpus:
        return "it shows nothing of GPUs"
    if found.lacking:
        return f"{' and '.join(found.lacking)} did not pass or is missing"
    return f"{' and '.join(COMPARED)} have no ratio to the bare host"
