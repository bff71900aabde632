"""Judge what the trainings of a certification recorded: bits, speeds and hangs.

Owns when a GPU computes something else, when a group is bad, and what is slow. It must not choose
groups (`certify.plan` does). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stackyard.definitions.read.baseline import ALLREDUCE, COPY, TOKENS
from stackyard.definitions.spec import Baseline
from stackyard.validate.certify.compare import Compared, Reading, compare
from stackyard.validate.certify.group import GroupRun, Place
from stackyard.validate.certify.links import BOUNDS, Links
from stackyard.validate.certify.plan import GPU, HOST, Fault, Group
from stackyard.validate.certify.record import RankRecord
from stackyard.validate.checks import FAILED

Bits = tuple[str, ...]
# Losses of GPUs of several models may differ by this, as those of a smoke in half precision.
TOLERANCE = 0.02
UPDATES = "updates_s"
# Kinds of a baseline that are those of ranks together.
TOGETHER = (ALLREDUCE, COPY, TOKENS)
BITS, SPEED, END = "bits", "speed", "end"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Hold a GPU that is bad alone.

    Attributes:
        by: what is wrong: its bits, its speed, or its training did not end.
    """

    place: Place
    by: str
    why: str


def bits_of(rank: RankRecord) -> Bits:
    """Return the fingerprint of a rank: the digests of all updates, in order."""
    return tuple(f"{s.local}.{s.shared}" for _, s in sorted(rank.steps.items()))


def references(
    ranks: Iterable[RankRecord], known: Mapping[str, Bits]
) -> tuple[dict[str, Bits], dict[str, str]]:
    """Return the fingerprint that holds for each model of GPU, and what it is from.

    A model of which no fingerprint is known and most GPUs do not agree has none.

    Args:
        known: fingerprints of an earlier certification with the same image, by model.
    """
    found: dict[str, Bits] = {}
    sources: dict[str, str] = {}
    counts: dict[str, Counter[Bits]] = {}
    for rank in ranks:
        if rank.ended:
            counts.setdefault(rank.model, Counter())[bits_of(rank)] += 1
    for model, counter in counts.items():
        (bits, count), total = counter.most_common(1)[0], counter.total()
        if model in known:
            found[model], sources[model] = known[model], "the fingerprint of the earlier report"
        elif count * 2 > total and total > 1:
            found[model], sources[model] = bits, f"{count} of {total} of its model"
        elif total == 1:
            found[model], sources[model] = bits, "nothing: it is the only one of its model"
    return found, sources


def deviating(runs: Sequence[GroupRun], expected: Mapping[str, Bits]) -> list[Wrong]:
    """Return the GPUs that computed something else when they trained alone."""
    found = []
    for run in runs:
        for number, place in enumerate(run.places):
            rank = run.ranks.get(number)
            if rank is None or not rank.ended:
                continue
            if rank.model not in expected:
                why = f"GPUs of its model ({rank.model}) differ, and no two are more than others"
                found.append(Wrong(place=place, by=BITS, why=why))
            elif step := first_difference(bits_of(rank), expected[rank.model]):
                why = f"it computes something else from update {step} on"
                found.append(Wrong(place=place, by=BITS, why=why))
    return found


def first_difference(bits: Bits, expected: Bits) -> int:
    """Return the first update that differs, from 1; 0 where none does."""
    for number, (one, other) in enumerate(zip(bits, expected, strict=False), 1):
        if one != other:
            return number
    return 0 if len(bits) == len(expected) else min(len(bits), len(expected)) + 1


def disagreeing(runs: Sequence[GroupRun], expected: Mapping[str, Bits]) -> list[str]:
    """Return a sentence for each two models of GPUs whose losses differ by too much."""
    losses: dict[str, list[float]] = {}
    for run in runs:
        for rank in run.ranks.values():
            if rank.ended and bits_of(rank) == expected.get(rank.model):
                losses.setdefault(rank.model, [s.loss for _, s in sorted(rank.steps.items())])
    first, *others = losses or [""]
    found = []
    for model in others:
        pairs = zip(losses[first], losses[model], strict=False)
        gap = max((abs(one - other) for one, other in pairs), default=0.0)
        if not gap <= TOLERANCE:
            found.append(f"losses of {first} and {model} differ by {gap:.3g}")
    return found


def unfinished(runs: Sequence[GroupRun]) -> list[Wrong]:
    """Return the GPUs that did not end their training alone."""
    found = []
    for run in runs:
        why = run.hang or run.reason or f"its training ended with exit code {run.code}"
        found += [Wrong(place=place, by=END, why=f"alone: {why}") for place in run.missing]
    return found


def own_speeds(
    runs: Sequence[GroupRun], baselines: Sequence[Baseline], device: str
) -> list[Compared]:
    """Compare the speeds of all GPUs that trained alone."""
    readings = []
    for run in runs:
        for number, place in enumerate(run.places):
            rank = run.ranks.get(number)
            if rank is None or not rank.ended:
                continue
            values: dict[str, float | None] = {UPDATES: rank.updates_s, **rank.speeds}
            readings += [
                Reading(place=place.name, gpu=rank.model, kind=kind, ranks=1, value=value,
                        why="too few updates" if value is None else "")
                for kind, value in values.items()
            ]  # fmt: skip
    bounds = BOUNDS[device]
    return list(compare(readings, baselines, suspicious=bounds.suspicious, bad=bounds.bad))


def slow(compared: Sequence[Compared], places: Iterable[Place]) -> list[Wrong]:
    """Return the GPUs that are too slow alone."""
    by_name = {place.name: place for place in places}
    found: dict[str, list[str]] = {}
    for one in compared:
        if one.outcome == FAILED and one.reading.value is not None:
            found.setdefault(one.reading.place, []).append(said(one))
    return [
        Wrong(place=by_name[name], by=SPEED, why="; ".join(whys)) for name, whys in found.items()
    ]


def said(one: Compared) -> str:
    """Return a comparison as a clause."""
    if one.reading.value is None or one.at_least is None or one.against is None:
        return f"{one.reading.kind}: {one.by}"
    return (
        f"{one.reading.kind} {one.reading.value:.4g}, {one.by} is {one.against:.4g}"
        f" (at least {one.at_least:.4g})"
    )


def reasons_against(
    run: GroupRun,
    expected: Mapping[str, Bits],
    links: Links,
    baselines: Sequence[Baseline],
) -> list[str]:
    """Return why a group is bad: hung, ended with an error, wrong or slow; empty if it is good."""
    slow_links = links.slow(links.add(run))
    if run.hang or run.reason or run.code != 0 or run.missing:
        names = ", ".join(place.name for place in run.missing)
        why = run.hang or run.reason or f"exit code {run.code}"
        return [f"it did not end ({names or 'all ranks did'}): {why}"]
    found = list(_wrong_bits(run, expected))
    found += slow_links
    found += [said(one) for one in group_speeds(run, baselines) if one.outcome == FAILED]
    return found


def _wrong_bits(run: GroupRun, expected: Mapping[str, Bits]) -> Iterable[str]:
    models = {rank.model for rank in run.ranks.values()}
    if len(models) != 1:
        return  # gradients of several models of GPUs have no sum that is known
    (model,) = models
    for number, rank in sorted(run.ranks.items()):
        step = first_difference(bits_of(rank), expected[model]) if model in expected else 0
        if step:
            before, after = bits_of(rank)[step - 1 : step], expected[model][step - 1 : step]
            own = [one.split(".")[0] for one in (*before, *after)]
            what = "its own gradients" if len(set(own)) > 1 else "the sum over ranks"
            yield f"{run.places[number].name}: {what} differ from update {step} on"


def group_speeds(run: GroupRun, baselines: Sequence[Baseline]) -> list[Compared]:
    """Compare what ranks on one host measured together with the baseline of as many ranks.

    What the baseline holds, and their program did not measure, is `not run`.
    """
    rank = run.ranks.get(0)
    if rank is None or not rank.ended or len(run.names) > 1 or len(run.places) < 2:
        return []
    given = {(ALLREDUCE, size): speed for size, speed in rank.allreduce.items()}
    given |= {(kind, 0): speed for kind, speed in rank.speeds.items()}
    wanted = [m for b in baselines if rank.model in b.gpus for m in b.measures
              if m.kind in TOGETHER and m.ranks == len(run.places)]  # fmt: skip
    place = " ".join(run.names) + f" ({len(run.places)} ranks)"
    readings = [
        Reading(place=place, gpu=rank.model, kind=m.kind, ranks=m.ranks, bytes=m.bytes,
                value=given.get((m.kind, m.bytes)), why="this command does not measure it")
        for m in wanted
    ]  # fmt: skip
    return list(compare(readings, baselines))


def settled(fault: Fault, late: Mapping[Group, set[str]], hosts: Mapping[str, object]) -> Fault:
    """Name one end of a link whose ends had no other partner, if the other only waited for it."""
    names = late.get(Group(fault.names), set())
    if len(fault.untried) < 2 or len(names) != 1:
        return fault
    (name,) = names
    (other,) = set(fault.names) - names
    why = f"good alone; {other} waited for it, and neither had another partner"
    return Fault(kind=HOST if name in hosts else GPU, names=(name,), why=why)
