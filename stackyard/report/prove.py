"""Make the record of proofs, one JSON object per image, and what is kept of it.

Owns both schemas (docs/reference/fixes.md): the report of one command, and
`images/<base>.proofs.json`, the last record of each proof. Pure: the clock and
the machine are arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.spec import Definitions, Fix, Limit
from stackyard.report import records
from stackyard.report.shapes import Proofs, ProofValue, ProveReport
from stackyard.system.image import ImageInfo
from stackyard.validate.prove.judge import PROVEN, Verdict
from stackyard.validate.prove.plan import digest, versions_of

SCHEMA: Final = "stackyard.prove/1"
_TAIL = 25  # lines of an output that is shown
_LINE = 300  # characters of a line that is kept


def recorded_path(base: str) -> str:
    """Return the path of a base's recorded proofs, from the project's root."""
    return f"images/{base}.proofs.json"


def prove_report(
    image: ResolvedImage,
    info: ImageInfo,
    verdicts: Sequence[Verdict],
    elsewhere: Mapping[str, str],
    *,
    run: str,
    started: str,
    seconds: float,
    host: Mapping[str, str],
) -> ProveReport:
    """Return the record of all proofs of one image.

    Args:
        elsewhere: why declared fixes and limits have no proof on this base.
        started: UTC time in ISO 8601.
        seconds: wall time, without the build.
    """
    wrong = [verdict for verdict in verdicts if verdict.word != PROVEN]
    return {
        "schema": SCHEMA,
        "kind": "prove",
        "stack": image.stack.name,
        "base": image.base.name,
        "outcome": "failed" if wrong else "passed" if verdicts else "not run",
        "started": started,
        "seconds": round(seconds, 2),
        "run": run,
        "image": records.image_value(image, info),
        "host": dict(host),
        "proofs": [_proof_value(verdict) for verdict in verdicts],
        "elsewhere": dict(sorted(elsewhere.items())),
    }


def _proof_value(verdict: Verdict) -> ProofValue:
    proof, without = verdict.proof, verdict.without
    value: ProofValue = {
        "id": proof.id,
        "kind": proof.kind,
        "verdict": verdict.word,
        "symptom": verdict.symptom[:_LINE],
        "expected": proof.witness.fails_with,
        "with": {"code": verdict.with_.code, "seconds": round(verdict.with_.seconds, 2)},
        "without": None
        if without is None
        else {"code": without.code, "seconds": round(without.seconds, 2)},
    }
    if verdict.word == PROVEN:
        return value
    shown = verdict.with_ if verdict.with_.code or without is None else without
    return {**value, "why": verdict.why, "last_lines": _tail(shown.output)}


def _tail(output: str) -> str:
    return "\n".join(line[:_LINE] for line in output.splitlines()[-_TAIL:])


def definition(definitions: Definitions, proof_id: str) -> Fix | Limit:
    """Return the fix or limit of a proof."""
    name = proof_id.partition("#")[0]
    return definitions.fixes[name] if name in definitions.fixes else definitions.limits[name]


def record(
    before: Mapping[str, Any],
    definitions: Definitions,
    played: Iterable[tuple[ResolvedImage, Mapping[str, Any]]],
    *,
    whole: bool,
) -> Proofs:
    """Return the recorded proofs, updated with those of some reports.

    Args:
        before: the proofs recorded so far.
        played: images with their reports.
        whole: whether every proof of these images ran; if so, their other records are dropped.
    """
    found = {stack: dict(proofs) for stack, proofs in before.items()}
    for image, value in played:
        kept = {} if whole else found.get(image.stack.name, {})
        for proof in value["proofs"]:
            kept.pop(proof["id"], None)
            if proof["verdict"] == PROVEN:
                one = definition(definitions, proof["id"])
                kept[proof["id"]] = {
                    "kind": proof["kind"],
                    "failed": proof["symptom"],
                    "passed": True,
                    "versions": versions_of(one, image),
                    "seconds": round(proof["with"]["seconds"] + proof["without"]["seconds"], 1),
                    "recorded": value["started"][:10],
                    "of": digest(one, image),
                }
        found[image.stack.name] = dict(sorted(kept.items()))
    return dict(sorted(found.items()))


def text(value: Mapping[str, Any]) -> str:
    """Return a record as the text of its file."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
