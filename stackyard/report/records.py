"""Make the record of a run: one JSON object for machines, from which the page is made.

Owns the schema (docs/reference/report.md). Pure: the clock, image and machine are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stackyard.build.catalog import ResolvedImage
from stackyard.build.recipe import BASE_LABEL, PACKAGES_LABEL
from stackyard.build.source.naming import Source, despite_of, sources_of
from stackyard.definitions.spec import Failure
from stackyard.gpu.placement import Gpu
from stackyard.report import shapes
from stackyard.system.image import ImageInfo
from stackyard.validate import judge
from stackyard.validate.checks import Check
from stackyard.validate.diagnose import DiagnosisValue, diagnose_all, diagnosis_value
from stackyard.validate.judge_gpu import GpuObservation
from stackyard.validate.outcome import Observation, Outcome, Phase

SCHEMA: Final = "stackyard.report/2"
CPU_RANKS = "cpu-ranks"
HOSTS = "hosts"
SLURM = "slurm"


def path_of(stack: str, base: str, kind: str, suffix: str) -> str:
    """Return a report's path, from the project's root; the newest run replaces the one before."""
    return f"reports/{stack}/{base}/{kind}.{suffix}"


def path_of_report(value: Mapping[str, Any], suffix: str) -> str:
    """Return a record's path: one file per placement of GPUs, without suffix for `together`.

    A report of CPU ranks never replaces one of GPUs, nor one of hosts or Slurm one of this machine.
    """
    name = value.get("gpus", {}).get("placement", "together")
    name = CPU_RANKS if value.get("ranks") == "cpu" else name
    kind = value["kind"]
    if kind == "template":
        kind = f"{kind}-{value['example']}"
    kind = kind if name in ("together", HOSTS, SLURM) else f"{kind}-{name}"
    where = SLURM if value.get("slurm") else HOSTS if value.get("hosts") else ""
    kind = f"{kind}-{where}" if where else kind
    # An image of users' own code has records of its own, so that it never replaces the stack's.
    short = "-".join(source["short"] for source in value["image"].get("sources", ()))
    kind = f"{kind}-src-{short}" if short else kind
    return path_of(value["stack"], value["base"], kind, suffix)


def smoke_report(
    image: ResolvedImage,
    info: ImageInfo,
    outcome: Outcome,
    *,
    started: str,
    seconds: float,
    host: Mapping[str, str],
    ranks: str,
    build_seconds: float,
    failures: Iterable[Failure],
) -> shapes.SmokeReport:
    """Return the record of one smoke.

    Args:
        started: UTC time in ISO 8601.
        seconds: wall time of the smoke, without the build.
        ranks: the device that was trained on, `cpu` or `cuda`.
        build_seconds: wall time spent on building the image (near 0 if it existed).
        failures: known failures, to recognise in a smoke that did not pass.
    """
    seen = outcome.observation
    return {
        "schema": SCHEMA,
        "kind": "smoke",
        "stack": image.stack.name,
        "base": image.base.name,
        "outcome": outcome.verdict,
        "started": started,
        "seconds": round(seconds, 2),
        "build_seconds": round(build_seconds, 2),
        "run": outcome.run,
        "image": image_value(image, info, seen.installed),
        "host": dict(host),
        "nodes": list(seen.nodes),
        "checks": [check_value(check) for check in outcome.checks],
        "diagnoses": _diagnoses(outcome, failures),
        "phases": [
            {"name": "find or build the image", "seconds": round(build_seconds, 2), "at": 0.0},
            *[phase_value(phase, build_seconds) for phase in outcome.phases],
        ],
        "curves": {
            name: [[step, as_json(loss)] for step, loss in sorted(training.losses.items())]
            for name, training in seen.everything.items()
        },
        **_parts(seen, ranks, image.base.device),
        "commands": {name: list(training.command) for name, training in seen.trainings.items()},
        "last_lines": {
            name: training.tail
            for name, training in seen.everything.items()
            if outcome.verdict != "passed"
        },
    }


def _parts(seen: Observation, ranks: str, device: str) -> shapes.SmokeParts:
    """Return what only some smokes have."""
    found: shapes.SmokeParts = {
        "speeds": {
            name: {"updates_s": as_json(round(training.updates_s, 4))}
            for name, training in seen.trainings.items()
        }
    }
    if ranks != device:
        found["ranks"] = ranks
    if seen.gpu:
        found["gpus"] = _gpus(seen.gpu)
    if absent := judge.not_applicable(seen):
        found["not_applicable"] = absent
    return found


def _gpus(seen: GpuObservation) -> shapes.GpusValue:
    """Return a run's GPUs, how they are spread over containers, and their measurements."""
    placement = seen.placement
    return {
        "placement": placement.name,
        "why": placement.why,
        "warnings": list(placement.warnings),
        "transport": placement.transport,
        "settings": dict(placement.env),
        "driver": seen.driver,
        "devices": devices(placement.gpus),
        "measured": as_json(dict(seen.measured)),
        "bare": as_json(dict(seen.bare)),
        "no_bare": seen.no_bare,
    }


def devices(gpus: Iterable[Gpu]) -> list[shapes.DeviceValue]:
    """Return GPUs as data."""
    return [
        {"index": g.index, "uuid": g.uuid, "name": g.name, "memory_bytes": g.memory_bytes}
        for g in gpus
    ]


def _diagnoses(outcome: Outcome, failures: Iterable[Failure]) -> list[DiagnosisValue]:
    """Return known failures in the output of trainings and checks; none if all passed."""
    if outcome.verdict == "passed":
        return []
    seen = outcome.observation
    texts = {
        name: training.tail
        for name, training in seen.everything.items()
        if not training.killed  # SIGKILL ended it on purpose
    }
    # A check gives its reasons on one line: each is evidence by itself.
    texts |= {check.name: check.why.replace("; ", "\n") for check in outcome.checks if check.why}
    return [diagnosis_value(found) for found in diagnose_all(texts, failures, "run")]


def image_value(
    image: ResolvedImage, info: ImageInfo, installed: Mapping[str, Mapping[str, str]] | None = None
) -> shapes.ImageValue:
    """Return an image as data; `sources` and `despite` only if there are any.

    Args:
        installed: versions found in it, by kind of package and name; none if they were not read.
    """
    return {
        "id": info.id,
        "tags": list(info.tags),
        "recipe": info.labels.get("stackyard.recipe", ""),
        "size_bytes": info.size,
        "fixes": [fix.id for fix in image.fixes],
        "packages": {
            name: setting.value
            for name, setting in sorted({**image.provided, **image.packages}.items())
        },
        **_image_parts(info, installed or {}),
    }


def certified_image(image_id: str, tag: str, info: ImageInfo | None) -> shapes.CertifiedImage:
    """Return the image of a certification as data.

    Args:
        info: what a host says about the image; None where no host can be asked any more.
    """
    found: shapes.CertifiedImage = {"id": image_id, "tag": tag}
    if info is not None:
        found["recipe"] = info.labels.get("stackyard.recipe", "")
        if base := _base(info):
            found["base"] = base
    return found


def _base(info: ImageInfo) -> shapes.BaseValue | None:
    digest = info.labels.get(BASE_LABEL)
    packages = info.labels.get(PACKAGES_LABEL, "")
    return {"digest": digest, "packages": packages} if digest else None


def _image_parts(info: ImageInfo, installed: Mapping[str, Mapping[str, str]]) -> shapes.ImageParts:
    """Return what was found in an image, and the sources and left-out fixes of users' own code."""
    found: shapes.ImageParts = {}
    if base := _base(info):
        found["base"] = base
    if installed:
        found["installed"] = {kind: dict(installed[kind]) for kind in installed}
    if sources := sources_of(info.labels):
        found["sources"] = [_source(source) for source in sources]
    if despite := despite_of(info.labels):
        found["despite"] = list(despite)
    return found


def _source(source: Source) -> shapes.SourceValue:
    return {
        "package": source.package,
        "origin": source.origin,
        "revision": source.revision,
        "commit": source.commit,
        "dirty": source.dirty,
        "digest": source.digest,
        "submodules": list(source.submodules),
        "version": source.version,
        "files": source.files,
        "short": source.short,
    }


def phase_value(phase: Phase, after: float = 0.0) -> shapes.PhaseValue:
    """Return a phase as data, of a whole that began `after` seconds."""
    return {"name": phase.name, "seconds": phase.seconds, "at": round(phase.at + after, 2)}


def check_value(check: Check) -> shapes.CheckValue:
    """Return a check as data; `why` only if there is a reason."""
    value: shapes.CheckValue = {
        "name": check.name,
        "outcome": check.outcome,
        "measured": as_json(check.measured),
        "expected": as_json(check.expected),
    }
    if check.why:
        value["why"] = check.why
    return value


def as_json(value: Any) -> Any:
    """Return a value with every number that JSON lacks as text: `nan`, `inf`, `-inf`.

    This is their one form in reports; `float` reads it.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value


def together(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several reports as one answer of a command."""
    outcomes = {report["outcome"] for report in reports}
    outcome = next((o for o in ("failed", "not run") if o in outcomes), None)
    outcome = outcome or ("passed" if reports else "not run")
    return {"outcome": outcome, "reports": list(reports)}
