"""Read what `invoke certify --against` names: a report, signed evidence, or a release.

Owns which of them a word means. `report.certify` reads fingerprints and compares their image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.steps.published import find_signers, open_registry
from stackyard.definitions.project import Project
from stackyard.release import verify
from stackyard.report import evidence, vouch
from stackyard.report.evidence import Evidence
from stackyard.system.errors import ReleaseError, UsageError, shown


def earlier(project: Project, asked: CertifyRequest) -> str:
    """Return the report of an earlier certification; empty where none was named.

    Raises:
        UsageError: it cannot be read, or there is no list of signers.
        ReleaseError: evidence or a release cannot be verified, or has no fingerprint.
        RegistryError: the registry does not answer.
    """
    name, path = asked.against, Path(asked.against)
    if not name:
        return ""
    if not asked.from_ and (path.exists() or not project.registry):
        if not name.endswith(evidence.SUFFIX):
            return _read(path)
        found = vouch.verified(vouch.read_file(path), name, find_signers(asked.signers))
        evidence.require_passed(found.evidence, name)
        return merged([found.evidence], name)
    signers = find_signers(asked.signers)
    with open_registry(project, asked.from_, "--from") as registry:
        standing = verify.verify_release(registry, name, signers)
        beside = verify.evidence_beside(registry, standing, signers)
    return merged([one.evidence for one in beside.believed], standing.release.name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{shown(str(path))} cannot be read",
            why=str(error),
            hint="--against RELEASE --from REGISTRY/NAME takes the fingerprints of a release",
        ) from error


def _bits(one: Any) -> Any:
    return one.get("bits") if isinstance(one, dict) else one


def merged(found: Sequence[Evidence], name: str) -> str:
    """Return the certifications among verified evidence as one report, of all models of GPU.

    Raises:
        ReleaseError: there is none, or two of them contradict each other.
    """
    reports = [one.report for one in found if one.kind == "certify"]
    known: dict[str, Any] = {}
    for report in reports:
        # What is no fingerprint is refused where it is read, with what is wrong with it.
        found_there = report.get("fingerprints")
        for model, one in (found_there if isinstance(found_there, dict) else {}).items():
            if _bits(known.setdefault(model, one)) != _bits(one):
                raise ReleaseError(
                    f"{name} has two fingerprints of {shown(model)}",
                    why="two pieces of evidence contradict each other",
                    hint="name the right one: --against FILE",
                )
    if not known:
        raise ReleaseError(
            f"{name} has no fingerprint",
            why="no evidence of a certification that counts is attached to it",
            hint="invoke certify writes evidence; invoke evidence FILE --sign, then --add",
        )
    return json.dumps({**reports[0], "fingerprints": known})
