"""Certify hosts: train on every GPU alone, then in groups until what is bad is named.

Owns the order, and the checks that come of it. Hosts with a GPU that is bad alone take no part in
groups. `certify.play` trains, `certify.judge` judges, `certify.plan` chooses the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stackyard.definitions.spec import Baseline
from stackyard.gpu.doctor import WRONG, Finding
from stackyard.gpu.health import silent
from stackyard.gpu.transport import Offer
from stackyard.validate.certify import judge
from stackyard.validate.certify.compare import Compared
from stackyard.validate.certify.group import GroupRun, Members, members_of
from stackyard.validate.certify.judge import Bits, Wrong
from stackyard.validate.certify.links import Carried, Links, transport_check
from stackyard.validate.certify.plan import Fault, Group, isolate
from stackyard.validate.checks import FAILED, NOT_RUN, Check, at_most, check, not_run

Say = Callable[[str], None]


class Trainer(Protocol):
    """Train on groups (`play.Yard`)."""

    device: str
    offer: Offer

    @property
    def slots(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of each host's GPUs."""

    def train(self, groups: Sequence[Members]) -> list[GroupRun]:
        """Train on disjoint groups at the same time."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """Hold the result of one group in a round.

    Attributes:
        why: why it is bad; empty where it is good.
    """

    names: tuple[str, ...]
    why: tuple[str, ...]
    seconds: float
    tail: str = ""

    def holds(self, name: str) -> bool:
        """Return whether a host, or a GPU by itself or with its host, was in the group."""
        return name in self.names or name.partition(":")[0] in self.names


@dataclass(kw_only=True)
class Certified:
    """Hold all that was seen of the hosts.

    Attributes:
        slots: GPUs of each host that took part.
        models: the model of each GPU, by name.
        bits: the fingerprint of each GPU that trained alone to its end, by name.
        expected: the fingerprint that holds, by model; `sources` says what it is from.
        wrong: GPUs that are bad alone.
        disagreeing: models of GPUs whose losses differ too much.
        compared: speeds of GPUs alone, and of groups on one host.
        rounds: groups by round; the first round is every host alone.
        faults: what the groups named.
    """

    slots: Mapping[str, tuple[int, ...]]
    links: Links
    carried: Carried
    models: dict[str, str] = field(default_factory=dict)
    bits: dict[str, Bits] = field(default_factory=dict)
    expected: dict[str, Bits] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    rounds: list[tuple[Tested, ...]] = field(default_factory=list)
    faults: tuple[Fault, ...] = ()
    not_grouped: str = ""

    def evidence(self, fault: Fault) -> str:
        """Return why the smallest bad group with all names of a fault was bad."""
        found = [
            tested for tested in (one for groups in self.rounds for one in groups)
            if tested.why and all(tested.holds(name) for name in fault.names)
        ]  # fmt: skip
        return "; ".join(min(found, key=lambda one: len(one.names)).why) if found else ""


def certify(
    yard: Trainer, baselines: Sequence[Baseline], known: Mapping[str, Bits], say: Say
) -> Certified:
    """Train on every GPU alone, then in groups, until what is bad is named.

    Args:
        known: fingerprints of an earlier certification with the same image, by model of GPU.
    """
    slots = yard.slots
    found = Certified(
        slots=slots, links=Links(device=yard.device), carried=Carried(offer=yard.offer)
    )
    count = sum(len(numbers) for numbers in slots.values())
    say(f"round 1: each of {count} {'GPUs' if yard.device == 'cuda' else 'CPU ranks'} alone")
    _alone(yard, found, baselines, known)
    bad = {wrong.place.host for wrong in found.wrong}
    good = {host: numbers for host, numbers in slots.items() if host not in bad}
    if sum(map(len, good.values())) > 1:
        _in_groups(yard, found, good, baselines, say)
    else:
        found.not_grouped = "fewer than two GPUs are left that are good alone"
    return found


def nothing(device: str) -> Certified:
    """Return what is known where no host can take part."""
    return Certified(
        slots={}, links=Links(device=device), carried=Carried(offer=Offer()),
        not_grouped="no host can take part",
    )  # fmt: skip


def _alone(
    yard: Trainer,
    found: Certified,
    baselines: Sequence[Baseline],
    known: Mapping[str, Bits],
) -> None:
    groups = [Members(gpus={host: numbers}, alone=True) for host, numbers in found.slots.items()]
    runs = yard.train(groups)
    for run in runs:
        for number, place in enumerate(run.places):
            rank = run.ranks.get(number)
            if rank is not None:
                found.models[place.name] = rank.model
                if rank.ended:
                    found.bits[place.name] = judge.bits_of(rank)
    ranks = [rank for run in runs for rank in run.ranks.values()]
    found.expected, found.sources = judge.references(ranks, known)
    found.compared = judge.own_speeds(runs, baselines, yard.device)
    places = [place for run in runs for place in run.places]
    found.wrong = [
        *judge.unfinished(runs),
        *judge.deviating(runs, found.expected),
        *judge.slow(found.compared, places),
    ]
    found.disagreeing = judge.disagreeing(runs, found.expected)
    found.rounds.append(tuple(_tested(run, _whys(found.wrong, run)) for run in runs))


def _whys(wrong: Sequence[Wrong], run: GroupRun) -> list[str]:
    return [f"{one.place.name}: {one.why}" for one in wrong if one.place in run.places]


def _tested(run: GroupRun, why: Sequence[str]) -> Tested:
    names = run.names if len(run.names) > 1 else tuple(place.name for place in run.places)
    return Tested(
        names=names, why=tuple(why), seconds=run.seconds, tail=run.tail if why else ""
    )  # fmt: skip


def _in_groups(
    yard: Trainer,
    found: Certified,
    hosts: Mapping[str, tuple[int, ...]],
    baselines: Sequence[Baseline],
    say: Say,
) -> None:
    """Test groups, round by round, as the plan asks for them."""
    search = isolate(hosts)
    results: dict[Group, bool] | None = None
    late: dict[Group, set[str]] = {}
    while True:
        try:
            groups = search.send(results) if results is not None else next(search)
        except StopIteration as ended:
            found.faults = tuple(judge.settled(one, late, hosts) for one in ended.value.faults)
            return
        say(f"round {len(found.rounds) + 1}: {_shown(groups)}")
        runs = yard.train([members_of(group, found.slots) for group in groups])
        whys = [judge.reasons_against(r, found.expected, found.links, baselines) for r in runs]
        results = {group: bool(why) for group, why in zip(groups, whys, strict=True)}
        tested = []
        for group, run, why in zip(groups, runs, whys, strict=True):
            tail = run.tail if why else ""
            names = tuple(sorted(group))
            tested.append(Tested(names=names, why=tuple(why), seconds=run.seconds, tail=tail))
            found.compared += judge.group_speeds(run, baselines)
            found.carried.add(run)
            late[group] = {p.host if p.host in group else p.name for p in run.late}
        found.rounds.append(tuple(tested))


def _shown(groups: Sequence[Group]) -> str:
    sizes = [len(group) for group in groups]
    if len(groups) == 1:
        return f"{sizes[0]} together"
    spread = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return f"{len(groups)} groups of {spread} at the same time"


def checks_of(
    found: Certified, health: Mapping[str, Sequence[Finding]], unused: Mapping[str, str]
) -> tuple[Check, ...]:
    """Return the checks of a certification.

    Args:
        health: findings by host.
        unused: why hosts and GPUs that were asked for took no part, by name.
    """
    gpus = found.links.device == "cuda"
    return (
        _reached(found, unused),
        _health(health, gpus=gpus),
        _fingerprint(found),
        _speed(found),
        *([transport_check(found.carried)] if gpus else []),
        _groups(found),
    )


def _reached(found: Certified, unused: Mapping[str, str]) -> Check:
    wrong = [f"{name}: {why}" for name, why in unused.items()]
    gpus = sum(len(numbers) for numbers in found.slots.values())
    measured = {"hosts": len(found.slots), "gpus": gpus}
    return check("reached", measured, {"left_out": at_most(0)}, wrong)


def _health(health: Mapping[str, Sequence[Finding]], *, gpus: bool) -> Check:
    """Check that nothing is wrong on any host; one of which nothing could be read is not run."""
    findings = [one for several in health.values() for one in several]
    expected = {"wrong": at_most(0)}
    wrong = [f"{host}: {one.name}: {one.what}" for host, several in health.items()
             for one in several if one.state == WRONG]  # fmt: skip
    states: dict[str, int] = {}
    for one in findings:
        states[one.state] = states.get(one.state, 0) + 1
    unread = [
        f"{host}: {why}" for host, several in health.items() if (why := silent(several, gpus=gpus))
    ]
    if not wrong and (unread or not findings):
        why = "; ".join(unread) or "no host's health could be read"
        return not_run("health", expected, why, states)
    return check("health", states, expected, wrong)


def _fingerprint(found: Certified) -> Check:
    expected = {"differ": at_most(0), "compared_with": dict(found.sources)}
    wrong = [f"{one.place.name}: {one.why}" for one in found.wrong if one.by != judge.SPEED]
    wrong += found.disagreeing
    measured = {"gpus": len(found.bits), "fingerprints": len(set(found.bits.values()))}
    compared = sum(1 for source in found.sources.values() if not source.startswith("nothing"))
    if not wrong and not compared:
        why = "each GPU is the only one of its model, and no earlier report was named"
        return not_run("fingerprint", expected, why, measured)
    return check("fingerprint", measured, expected, wrong)


def _speed(found: Certified) -> Check:
    counts: dict[str, int] = {}
    for one in found.compared:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    expected = {"failed": at_most(0)}
    wrong = [f"{one.reading.place}: {judge.said(one)}" for one in found.compared
             if one.outcome == FAILED]  # fmt: skip
    if set(counts) <= {NOT_RUN}:
        return not_run("speed", expected, "there was nothing to compare with", counts)
    return check("speed", counts, expected, wrong)


def _groups(found: Certified) -> Check:
    expected = {"faults": at_most(0)}
    if found.not_grouped:
        return not_run("groups", expected, found.not_grouped)
    wrong = []
    for fault in found.faults:
        seen = found.evidence(fault)
        wrong.append(f"{fault.kind} {' - '.join(fault.names)}: {fault.why}"
                     + (f" ({seen})" if seen else ""))  # fmt: skip
    measured = {"rounds": len(found.rounds), "links": len(found.links.speeds)}
    return check("groups", measured, expected, wrong)


def bad_places(found: Certified) -> dict[str, str]:
    """Return why each host, GPU or link is bad, by name; a link's name is `A - B`."""
    bad: dict[str, str] = {}
    for one in found.wrong:
        bad[one.place.name] = "; ".join(filter(None, [bad.get(one.place.name, ""), one.why]))
    for fault in found.faults:
        seen = found.evidence(fault)
        bad[" - ".join(fault.names)] = f"{fault.why}{': ' + seen if seen else ''}"
    return bad
