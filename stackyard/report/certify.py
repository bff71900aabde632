"""Make the record of a certification, its page, and what to type about what is bad.

Owns the schema `stackyard.certify/1`. Pure: the clock and the hosts' answers are arguments.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from stackyard.gpu.doctor import WRONG, Finding
from stackyard.report import records
from stackyard.report.page import check_row
from stackyard.report.shapes import (
    CertifiedGpu,
    CertifiedHost,
    CertifiedImage,
    CertifyReport,
    ComparedValue,
    TestedValue,
)
from stackyard.system import template
from stackyard.system.errors import UsageError
from stackyard.validate import checks
from stackyard.validate.certify.compare import SUSPICIOUS, Compared
from stackyard.validate.certify.group import Place
from stackyard.validate.certify.judge import Bits
from stackyard.validate.certify.search import Certified, Tested, bad_places, checks_of

SCHEMA: Final = "stackyard.certify/1"
GOOD, BAD = "good", "bad"
# A page draws a matrix of links up to so many ends; beyond, it lists the slow ones.
MATRIX_ENDS = 64


def path_of(run: str, suffix: str) -> str:
    """Return a report's path, from the project's root; the newest of a name replaces the others."""
    return f"reports/certify/{run}.{suffix}"


def certify_report(
    found: Certified,
    health: Mapping[str, Sequence[Finding]],
    unused: Mapping[str, str],
    *,
    stack: str,
    base: str,
    image: CertifiedImage,
    run: str,
    hosts: str,
    started: str,
    seconds: float,
) -> CertifyReport:
    """Return the record of one certification.

    Args:
        health: findings by host, read after the trainings.
        unused: why hosts and GPUs that were asked for took no part, by name.
        hosts: the inventory, as it was typed.
        started: UTC time in ISO 8601.
    """
    made = checks_of(found, health, unused)
    bad = bad_places(found)
    rows = [_host(found, name, health.get(name, ()), bad) for name in found.slots]
    return {
        "schema": SCHEMA,
        "kind": "certify",
        "stack": stack,
        "base": base,
        "outcome": checks.verdict(made),
        "started": started,
        "seconds": round(seconds, 2),
        "run": run,
        "image": image,
        "device": found.links.device,
        "hosts": rows,
        "unused": dict(unused),
        "checks": [records.check_value(one) for one in made],
        "fingerprints": {
            model: {"bits": list(bits), "compared_with": found.sources[model]}
            for model, bits in sorted(found.expected.items())
        },
        "compared": [_compared(one) for one in found.compared],
        "links": [
            {"ends": list(link.ends), "kind": link.kind, "gb_s": link.gb_s, "slow": link.slow}
            for link in found.links.seen()
        ],
        "rounds": [[_tested(one) for one in groups] for groups in found.rounds],
        "faults": [
            {"kind": fault.kind, "names": list(fault.names), "why": fault.why,
             "evidence": found.evidence(fault)}
            for fault in found.faults
        ],
        "to_do": _to_do(found, health, unused, stack=stack, base=base, hosts=hosts),
    }  # fmt: skip


def _host(
    found: Certified, name: str, findings: Sequence[Finding], bad: Mapping[str, str]
) -> CertifiedHost:
    gpus = [_gpu(found, Place(host=name, index=index), bad) for index in found.slots[name]]
    wrong = [bad[name]] if name in bad else []
    wrong += [f"{one.name}: {one.what}" for one in findings if one.state == WRONG]
    return {
        "host": name,
        "state": BAD if wrong or any(gpu["state"] == BAD for gpu in gpus) else GOOD,
        "why": "; ".join(wrong),
        "gpus": gpus,
        "health": [asdict(one) for one in findings],
    }


def _gpu(found: Certified, place: Place, bad: Mapping[str, str]) -> CertifiedGpu:
    name = place.name
    own = [one for one in found.compared if one.reading.place == name]
    below = [f"{one.reading.kind} is suspicious" for one in own if one.outcome == SUSPICIOUS]
    why = [bad[name]] if name in bad else below
    state = BAD if name in bad else SUSPICIOUS if below else GOOD
    return {
        "name": name,
        "index": place.index,
        "model": found.models.get(name, ""),
        "state": state,
        "why": "; ".join(why),
        "fingerprint": short(found.bits[name]) if name in found.bits else "",
        "speeds": {
            one.reading.kind: round(one.reading.value, 4)
            for one in own if one.reading.value is not None
        },
    }  # fmt: skip


def short(bits: Bits) -> str:
    """Return a fingerprint as a few characters, for people."""
    return hashlib.sha256("\n".join(bits).encode()).hexdigest()[:12]


def _compared(one: Compared) -> ComparedValue:
    return {
        "place": one.reading.place,
        "kind": one.reading.kind,
        "ranks": one.reading.ranks,
        "bytes": one.reading.bytes,
        "value": records.as_json(one.reading.value),
        "against": one.against,
        "at_least": one.at_least,
        "outcome": one.outcome,
        "by": one.by,
    }


def _tested(one: Tested) -> TestedValue:
    return {"names": list(one.names), "bad": bool(one.why), "why": list(one.why),
            "seconds": one.seconds, "last_lines": one.tail}  # fmt: skip


def _to_do(
    found: Certified,
    health: Mapping[str, Sequence[Finding]],
    unused: Mapping[str, str],
    *,
    stack: str,
    base: str,
    hosts: str,
) -> list[str]:
    """Return what to do and type about everything that is bad."""
    lines = [
        f"{host}: {one.name}: {one.hint}" for host, several in health.items()
        for one in several if one.state == WRONG and one.hint
    ]  # fmt: skip
    kinds = {" - ".join(fault.names): fault for fault in found.faults}
    named = f"--hosts {shlex.quote(hosts)} " if hosts else ""
    for name in bad_places(found):
        fault = kinds.get(name)
        if fault is not None and fault.kind == "link" and ":" in name:
            what = "look at what joins both: nvidia-smi topo -m; nvidia-smi nvlink --status"
        elif fault is not None and fault.kind == "link":
            what = "look at cable, port and switch between both"
        elif fault is not None and fault.kind == "unexplained":
            what = "it came and went: certify again"
        elif ":" in name:
            what = "take this GPU out of use (gpus: in hosts.yml) and have it looked at"
        else:
            what = "take this host out of hosts.yml and have it looked at"
        lines.append(f"{name}: {what}")
    lines += found.carried.less
    lines += [f"{name}: {why}" for name, why in unused.items()]
    if lines:
        lines.append(f"what hosts say of themselves: invoke doctor {named}".rstrip())
        lines.append(f"afterwards, again: invoke certify {stack} --base {base} {named}".rstrip())
    return lines


def fingerprints_of(text: str, path: str, image: str) -> dict[str, Bits]:
    """Read the fingerprints of an earlier report of the same image, by model of GPU.

    Raises:
        UsageError: it is no passed certification, or one of another image.
    """
    try:
        value = json.loads(text)
        if value["schema"] != SCHEMA:
            raise ValueError(f"its schema is {value['schema']!r}")
        of, outcome = value["image"]["id"], value["outcome"]
        found = {str(model): tuple(map(str, one["bits"]))
                 for model, one in value["fingerprints"].items()}  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no report of invoke certify", why=str(error)) from error
    if outcome != checks.PASSED:
        raise UsageError(f"{path} did not pass ({outcome})", hint="name one that passed")
    if of != image:
        raise UsageError(
            f"{path} is of another image",
            why=f"it has {of[7:19]}, the hosts have {image[7:19]}: bits may differ",
            hint="certify with the image of the report, or leave --against out",
        )
    return found


def render_page(report: Mapping[str, Any]) -> str:
    """Return the page of one certification: hosts by GPUs, links, what was compared, to do."""
    ends = sorted({end for link in report["links"] for end in link["ends"]})
    values: dict[str, object] = {
        "report": report,
        "checks": [check_row(check) for check in report["checks"]],
        "columns": range(max((len(host["gpus"]) for host in report["hosts"]), default=0)),
        "ends": ends if len(ends) <= MATRIX_ENDS else [],
        "matrix": _matrix(report["links"], ends) if len(ends) <= MATRIX_ENDS else [],
        "slow": [link for link in report["links"] if link["slow"]],
        "compared": [_row(one) for one in report["compared"]],
    }
    return template.render("certify.html.j2", values)


def _matrix(links: Iterable[Mapping[str, Any]], ends: Sequence[str]) -> list[dict[str, Any]]:
    known = {frozenset(link["ends"]): link for link in links}
    return [
        {"name": one, "cells": [known.get(frozenset((one, other))) for other in ends]}
        for one in ends
    ]  # fmt: skip


def _row(one: Mapping[str, Any]) -> dict[str, str]:
    size = f" of {one['bytes'] / 2**20:g} MiB" if one["bytes"] else ""
    figures = {
        key: "" if one[key] is None else f"{float(one[key]):.4g}"
        for key in ("value", "against", "at_least")
    }
    return {"place": one["place"], "kind": f"{one['kind']}{size}", "outcome": one["outcome"],
            "by": one["by"], **figures}  # fmt: skip
