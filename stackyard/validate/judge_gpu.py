"""Make the checks that only GPUs have: transport, bandwidth, throughput, memory, fused parts.

Owns their thresholds and messages, as `validate.judge` owns those of every smoke. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.gpu import nccl
from stackyard.gpu import transport as carried
from stackyard.gpu.placement import Placement
from stackyard.validate.checks import Check, at_least, at_most, check, not_run
from stackyard.validate.record import Training

# Least ratio to the bare host, measured in the same smoke: a container may cost the rest.
BANDWIDTH_RATIO = 0.95
TRAINING_RATIO = {1: 0.99}
SEVERAL_RATIO = 0.98
LARGEST = str(1024 * 2**20)
FREED_SECONDS = 10.0
FREED_BYTES = 64 * 2**20
NOTHING: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, kw_only=True)
class GpuObservation:
    """Hold what a smoke on GPUs observed beside its trainings.

    Attributes:
        measured: result of `images/measure/gpu_measure.py` in this placement; empty if it did not
            run.
        bare: the same on the bare host; empty if that was not measured.
        no_bare: why the bare host was not measured.
        used_before, used_after: bytes in use on each GPU of the run, by UUID.
        freed_seconds: seconds from the last training until that memory was free again.
    """

    placement: Placement
    driver: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    bare: Mapping[str, Any] = field(default_factory=dict)
    no_bare: str = ""
    failed: str = ""
    used_before: Mapping[str, int] = field(default_factory=dict)
    used_after: Mapping[str, int] = field(default_factory=dict)
    freed_seconds: float = 0.0


def judge_gpu(
    seen: GpuObservation,
    trainings: Sequence[tuple[str, Training]],
    broken: str,
    parts: Mapping[str, Sequence[str]] = NOTHING,
) -> tuple[Check, ...]:
    """Return all checks, in a fixed order; `parts` are those that must be fused, by layout."""
    return (
        transport(seen, trainings, broken),
        bandwidth(seen, broken),
        throughput(seen, trainings, broken),
        memory(seen, trainings, broken),
        fused(trainings, broken, parts),
    )


def transport(
    seen: GpuObservation, trainings: Sequence[tuple[str, Training]], broken: str
) -> Check:
    """Check that every channel takes the placement's best transport, and every rank its own GPU."""
    placement = seen.placement
    expected = {"placement": placement.name, "transport": placement.transport}
    several = [(name, found) for name, found in trainings if found.wanted > 1]
    if not several:
        return not_run("transport", expected, broken or "no training had two ranks")
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    asked = {gpu.uuid for gpu in placement.gpus}
    for name, training in several:
        ranks = training.ranks.values()
        for rank in ranks:
            if rank.backend != "nccl":
                wrong.append(f"{name}: rank {rank.rank} talks {rank.backend}, not nccl")
            if rank.gpu not in asked:
                wrong.append(
                    f"{name}: rank {rank.rank} computes on {rank.gpu or 'no GPU'}, not asked for"
                )
        gpus = [rank.gpu for rank in ranks if rank.gpu]
        if len(set(gpus)) < len(gpus):
            wrong.append(f"{name}: ranks share a GPU: {', '.join(gpus)}")
        log = training.nccl
        if log is None or not log.transports:
            wrong.append(f"{name}: NCCL's log names no channel, so nothing proves its transport")
            continue
        measured[name] = {
            "channels": log.channels,
            "transports": {pair: list(via) for pair, via in log.transports.items()},
            "nccl": log.version,
            "paths": [carried.words(path.value()) for path in carried.paths(log, carried.Offer())],
        }
        wrong += _slow_channels(name, log, placement)
    return check("transport", measured, expected, wrong)


_ORDER = ("P2P", "SHM", "NET")


def _slow_channels(name: str, log: nccl.NcclLog, placement: Placement) -> list[str]:
    wrong = []
    for pair, found in log.transports.items():
        kinds = {nccl.kind(via) for via in found}
        worse = [k for k in kinds if k not in _ORDER or _rank(k) > _rank(placement.transport)]
        if worse:
            says = f"; NCCL: {log.warnings[0]}" if log.warnings else ""
            wrong.append(
                f"{name}: rank {pair.replace('>', ' to ')} goes over {', '.join(found)};"
                f" {placement.name!r} allows {placement.transport}{says}"
            )
    return wrong


def _rank(transport: str) -> int:
    return _ORDER.index(transport)


def bandwidth(seen: GpuObservation, broken: str) -> Check:
    """Check that all-reduce keeps the bare host's bus bandwidth."""
    expected = {"ratio": at_least(BANDWIDTH_RATIO)}
    found = seen.measured.get("allreduce")
    if not found:
        return _unmeasured("bandwidth", seen, expected, broken)
    bare = seen.bare.get("allreduce", {})
    measured: dict[str, Any] = {
        "busbw_gb_s": {_size(size): entry["busbw_gb_s"] for size, entry in found.items()},
        "bare_busbw_gb_s": {_size(size): entry["busbw_gb_s"] for size, entry in bare.items()},
        "copy_gb_s": seen.measured.get("copy_gb_s"),
        "torch": _torch(seen),
    }
    own, reference = float(found[LARGEST]["busbw_gb_s"]), bare.get(LARGEST, {}).get("busbw_gb_s")
    if seen.placement.transport == "NET":  # nothing to compare it with: docker's own default
        return check("bandwidth", measured, {"1 GiB": "measured"}, [])
    if not reference:
        return not_run("bandwidth", expected, _no_reference(seen), measured)
    measured["ratio"] = round(own / reference, 4)
    wrong = []
    if not own >= BANDWIDTH_RATIO * reference:  # NaN fails, too
        wrong.append(f"{own:.1f} GB/s at 1 GiB, the bare host has {reference:.1f}")
    return check("bandwidth", measured, expected, wrong)


def _unmeasured(name: str, seen: GpuObservation, expected: Any, broken: str) -> Check:
    if seen.failed:
        return check(name, None, expected, [seen.failed])
    return not_run(name, expected, broken or "nothing was measured")


def _no_reference(seen: GpuObservation) -> str:
    return f"there is nothing to compare with: {seen.no_bare or 'the bare host measured nothing'}"


def _torch(seen: GpuObservation) -> dict[str, Any]:
    """Return both torch versions: a ratio between two does not measure the container alone."""
    return {"image": seen.measured.get("torch"), "bare_host": seen.bare.get("torch")}


def _size(size: str) -> str:
    mib = int(size) // 2**20
    return f"{mib // 1024} GiB" if mib >= 1024 else f"{mib} MiB"


def throughput(
    seen: GpuObservation, trainings: Sequence[tuple[str, Training]], broken: str
) -> Check:
    """Check that a plain training keeps the bare host's speed; report the smoke's own with it."""
    nodes = len(seen.placement.nodes)
    ratio = TRAINING_RATIO.get(nodes, SEVERAL_RATIO)
    bare = seen.bare.get("training", {}).get("tokens_s")
    expected = {"ratio": at_least(ratio)}
    found = seen.measured.get("training")
    if not found:
        return _unmeasured("throughput", seen, expected, broken)
    measured: dict[str, Any] = {
        "gpu": seen.measured["gpu"],
        "driver": seen.driver,
        "torch": _torch(seen),
        "gpt2_small_tokens_s": found["tokens_s"],
        "bare_tokens_s": bare,
        "updates_s": {name: rate for name, t in trainings if (rate := updates_a_second(t))},
    }
    if not math.isfinite(loss := found.get("last_loss", 0.0)):
        return check("throughput", measured, expected, [f"GPT-2 small ends with a loss of {loss}"])
    if seen.placement.transport == "NET":  # as for bandwidth
        return check("throughput", measured, {"tokens/s": "measured"}, [])
    if not bare:
        return not_run("throughput", expected, _no_reference(seen), measured)
    measured["ratio"] = round(found["tokens_s"] / bare, 4)
    wrong = []
    if not found["tokens_s"] >= ratio * bare:
        wrong.append(f"{found['tokens_s']:,.0f} tokens/s, the bare host has {bare:,.0f}")
    return check("throughput", measured, expected, wrong)


def updates_a_second(training: Training) -> float | None:
    """Return a smoke training's updates per second, from the tenth on; None if it has fewer."""
    for rank in training.ranks.values():
        times = [at for step, at in sorted(rank.times.items()) if step >= 10]
        if len(times) > 1 and times[-1] > times[0]:
            return round((len(times) - 1) / (times[-1] - times[0]), 1)
    return None


def still_held(seen: GpuObservation) -> tuple[dict[str, int], list[str], str]:
    """Return the bytes held on each GPU (by UUID) beyond those before the run, and the failures.

    GPUs that could not be read after the run are left out, and named last; empty if all could.
    """
    before, after = seen.used_before, seen.used_after
    left = {uuid: max(0, after[uuid] - was) for uuid, was in before.items() if uuid in after}
    missing = ", ".join(uuid for uuid in before if uuid not in after)
    wrong = [
        f"{count / 2**20:.0f} MiB are still held on {uuid}"
        for uuid, count in left.items()
        if count > FREED_BYTES
    ]
    return left, wrong, f"what {missing} held afterwards could not be read" if missing else ""


def freed(seen: GpuObservation | None, broken: str) -> Check:
    """Check that GPUs hold no more memory than before a bench or a template's training."""
    expected = {"left_bytes": at_most(FREED_BYTES), "within_seconds": FREED_SECONDS}
    if seen is None or not seen.used_after:
        return not_run("freed", expected, broken or "what GPUs hold could not be asked")
    left, wrong, unread = still_held(seen)
    measured = {"left_bytes": left, "freed_after_seconds": round(seen.freed_seconds, 2)}
    if unread and not wrong:
        return not_run("freed", expected, unread, measured)
    return check("freed", measured, expected, wrong)


def memory(seen: GpuObservation, trainings: Sequence[tuple[str, Training]], broken: str) -> Check:
    """Check that every rank reports its peak, and that GPUs are freed after the run."""
    expected = {"left_bytes": at_most(FREED_BYTES), "within_seconds": FREED_SECONDS}
    if not trainings or not seen.used_after:
        why = "what GPUs hold could not be read" if trainings else "nothing was trained"
        return not_run("memory", expected, broken or why)
    wrong: list[str] = []
    peaks: dict[str, Any] = {}
    for name, training in trainings:
        if training.killed:
            continue
        peaks[name] = {f"rank {r.rank}": r.memory.get("reserved") for r in training.ranks.values()}
        silent = [r.rank for r in training.ranks.values() if r.ended is not None and not r.memory]
        if silent:
            wrong.append(f"{name}: rank {silent[0]} told no peak")
    left, held, unread = still_held(seen)
    wrong += held
    measured = {
        "peak_reserved_bytes": peaks,
        "left_bytes": left,
        "freed_after_seconds": round(seen.freed_seconds, 2),
    }
    if unread and not wrong:
        return not_run("memory", expected, unread, measured)
    return check("memory", measured, expected, wrong)


def fused(
    trainings: Sequence[tuple[str, Training]],
    broken: str,
    parts: Mapping[str, Sequence[str]] = NOTHING,
) -> Check:
    """Check that every fused part that is on and has work runs, on all ranks.

    Args:
        parts: by layout, those required on every rank unless switched off; an unused one fails.
    """
    required = {name: list(names) for name, names in parts.items() if names}
    expected = {"parts": required or "all that are on", "ranks": "all"}
    if not any(training.ranks for _, training in trainings):
        return not_run("fused", expected, broken or "nothing was trained")
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    for name, training in trainings:
        for rank in training.ranks.values():
            said = {part: found.state for part, found in rank.fused.items()}
            measured.setdefault(name, {})[f"rank {rank.rank}"] = said
            where = f"{name}: rank {rank.rank}: the fused part"
            wrong += [
                f"{where} {part!r} {found.lost}" for part, found in rank.fused.items() if found.lost
            ]
            wrong += [
                f"{where} {part!r} did not run: nothing asked for it"
                for part in parts.get(training.layout, ())
                if said.get(part, "not asked") == "not asked"
            ]
    return check("fused", measured, expected, wrong)
