"""Plan the group tests that name a bad host, GPU or link.

Owns which groups are tested next, from the results so far. It must not test: a caller trains on
each group of a round and reports which groups were bad (slow, wrong or hung). Pure.

All hosts are tested together first. A bad group is halved, and both halves are tested at the same
time. Where both are good, their quarters are crossed until two hosts are left that are bad only
together. Each of them is then tested with known good hosts: good with another, the link between
both is bad; bad with every other, the host is. Hosts that are not named must at last have been good
together, each two of them. Of a host that is bad alone, every GPU is tested alone, then crossed.

Three kinds of faults are assumed: a host or GPU that is bad in every group, one that is bad in
every group of two or more (its adapter), and two that are bad in every group that holds both.
Groups without a fault are good. Results that fit none of these are reported as unexplained.

Over 300 lines: one search, a short function a step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stackyard.system.errors import UsageError

Group = frozenset[str]
Round = tuple[Group, ...]
HOST, GPU, LINK, UNEXPLAINED = "host", "gpu", "link", "unexplained"
# Limit of faults that can be distinguished: a good host then has no more bad partners than that.
FAULTS = 3
_Rounds = Generator[list[Group], None, None]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Hold one named fault.

    Attributes:
        kind: `host`, `gpu`, `link` or `unexplained`.
        names: the host, the GPU (`HOST:INDEX`), both ends of the link, or a group that was bad
            while its parts were good.
        untried: ends of a link that were in no good group, for want of another partner.
    """

    kind: str
    names: tuple[str, ...]
    why: str
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Hold what the tests have shown; no fault means that each two hosts were good together."""

    faults: tuple[Fault, ...] = ()


def gpu_name(host: str, index: int) -> str:
    """Return the name of one GPU in groups and faults."""
    return f"{host}:{index}"


def isolate(hosts: Mapping[str, Sequence[int]]) -> Generator[Round, Mapping[Group, bool], Verdict]:
    """Yield rounds of groups, take each round's results, and return the verdict.

    No two groups of a round share a host or GPU, so they can be tested at the same time.

    Args:
        hosts: numbers of the GPUs, by host; one with fewer than two is not taken apart.

    Raises:
        UsageError: there is no host.
    """
    if not hosts:
        raise UsageError("there is no host to test")
    search = _Search(tuple(hosts), _Seen(), hosts)
    for groups in search.work():
        new = tuple(group for group in dict.fromkeys(groups) if group not in search.seen.bad)
        if new:
            search.seen.record((yield new))
    return Verdict(faults=tuple(search.faults()))


@dataclass(kw_only=True)
class _Seen:
    """Hold the results of all groups.

    Attributes:
        bad: whether a group was bad.
        number: a bit for each host or GPU.
        good_with: bits of the others that one was good together with.
    """

    bad: dict[Group, bool] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    good_with: dict[str, int] = field(default_factory=dict)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            self.number[name] = 1 << len(self.number)
            self.good_with[name] = 0

    def record(self, results: Mapping[Group, bool]) -> None:
        for group, bad in results.items():
            self.bad[group] = bad
            if not bad:
                self.cover(group)

    def cover(self, group: Group) -> None:
        """Take each two of a group for good together."""
        bits = self.bits(group)
        for name in group:
            self.good_with[name] |= bits & ~self.number[name]

    def bits(self, names: Iterable[str]) -> int:
        return sum(self.number[name] for name in names)


class _Search:
    """Search faults among hosts, or among the GPUs of one host.

    Args:
        gpus: numbers of the GPUs by host; empty where the names are GPUs.
    """

    def __init__(
        self, names: Sequence[str], seen: _Seen, gpus: Mapping[str, Sequence[int]]
    ) -> None:
        self.names, self.seen, self.gpus = names, seen, gpus
        seen.add(names)
        self.order = {name: number for number, name in enumerate(names)}
        self.faulty: dict[str, str] = {}
        self.pairs: set[Group] = set()
        self.links: list[Group] = []
        self.unexplained: list[Group] = []
        self.inside: dict[str, _Search] = {}

    def faults(self) -> Iterable[Fault]:
        """Return the named faults, those of GPUs in place of their hosts'."""
        kind = HOST if self.gpus else GPU
        for name in sorted(self.faulty, key=self.order.__getitem__):
            found = list(self.inside[name].faults()) if name in self.inside else []
            yield from found or [Fault(kind=kind, names=(name,), why=self.faulty[name])]
        why = "bad together, and each of them is good with others"
        for link in self.links:
            names = self._sorted(link)
            alone = tuple(name for name in names if not self.seen.good_with[name])
            missing = f"; {' and '.join(alone)} had no other partner" if alone else ""
            yield Fault(kind=LINK, names=names, why=f"{why}{missing}", untried=alone)
        for group in self.unexplained:
            why = "bad together, but all of its parts were good: not seen again"
            yield Fault(kind=UNEXPLAINED, names=self._sorted(group), why=why)

    def _sorted(self, group: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(group, key=self.order.__getitem__))

    def work(self) -> _Rounds:
        """Yield the groups of each round until each two names are good together or named."""
        taken_apart: list[_Rounds] = []
        while True:
            group = self._unproven()
            steps = _Joined(taken_apart)
            if not group:
                yield from steps.rest()
                if not self._unproven():
                    return
                continue
            yield [group, *steps.next()]
            taken_apart = steps.running
            if self.seen.bad[group]:
                for groups in self._isolate(group):
                    steps = _Joined(taken_apart)
                    yield [*groups, *steps.next()]
                    taken_apart = steps.running
                taken_apart += self._take_apart()

    def _unproven(self) -> Group:
        """Return the largest group without known faults that holds two not yet good together."""
        seen = self.seen
        there = [name for name in self.names if name not in self.faulty]
        if len(there) == 1:
            alone = Group(there)
            return Group() if alone in seen.bad or seen.good_with[there[0]] else alone
        everybody, barred = seen.bits(there), dict.fromkeys(there, 0)
        for link in self.links:
            for name in link & set(there):
                barred[name] |= seen.bits(link - {name})
        for name in there:
            missing = everybody & ~seen.number[name] & ~seen.good_with[name] & ~barred[name]
            if missing:
                other = next(one for one in there if seen.number[one] & missing)
                return self._widened([name, other], there, barred)
        return Group()

    def _widened(self, names: list[str], there: Iterable[str], barred: Mapping[str, int]) -> Group:
        held = self.seen.bits(names)
        for name in there:
            if not held & (barred[name] | self.seen.number[name]):
                names.append(name)
                held |= self.seen.number[name]
        return Group(names)

    def _isolate(self, group: Group) -> _Rounds:
        """Name at least one fault of a bad group, or give the group up as unexplained."""
        known = len(self.faulty) + len(self.links)
        if len(group) == 1:
            self._alone(group)
        else:
            yield from self._within(group)
            yield from self._control()
        if len(self.faulty) + len(self.links) == known:
            self.unexplained.append(group)
            self.seen.cover(group)

    def _alone(self, group: Group) -> None:
        (name,) = group
        self.faulty.setdefault(name, "bad alone")

    def _halves(self, group: Group) -> tuple[Group, Group]:
        names = self._sorted(group)
        middle = (len(names) + 1) // 2
        return Group(names[:middle]), Group(names[middle:])

    def _within(self, group: Group) -> _Rounds:
        """Search a bad group of two or more."""
        halves = self._halves(group)
        yield list(halves)
        bad = [half for half in halves if self.seen.bad[half]]
        for half in bad:
            if len(half) == 1:
                self._alone(half)
        if bad:
            yield from _Joined([self._within(half) for half in bad if len(half) > 1]).rest()
        else:
            yield from self._across(*halves)

    def _across(self, one: Group, other: Group) -> _Rounds:
        """Search two that are bad together, one in each of two good groups."""
        while len(one) + len(other) > 2:
            (a, b), (c, d) = self._halves(one), self._halves(other)
            for crossed in (((a, c), (b, d)), ((a, d), (b, c))):
                pairs = [(x, y) for x, y in crossed if x and y]
                yield [x | y for x, y in pairs]
                bad = [(x, y) for x, y in pairs if self.seen.bad[x | y]]
                if bad:
                    one, other = bad[0]
                    break
            else:
                return
        self.pairs.add(one | other)

    def _control(self) -> _Rounds:
        """Test both of each bad pair with others, until each is known to be good or bad."""
        while True:
            self._judge()
            groups: list[Group] = []
            suspects = {name for pair in self.pairs for name in pair if not self._cleared(name)}
            used: set[str] = set()
            for name in self._sorted(suspects):
                control = self._partnered(name, suspects, used)
                if control:
                    groups.append(control)
                    used |= control
            if not groups:
                break
            yield groups
            for group in groups:
                if self.seen.bad[group] and len(group) == 1:
                    self._alone(group)
                elif self.seen.bad[group]:
                    self.pairs.add(group)
        self.links += sorted(self.pairs, key=self._sorted)
        self.pairs = set()

    def _judge(self) -> None:
        """Name those that were bad with too many others, and forget what that explains."""
        named = -1
        while named != len(self.faulty):
            named = len(self.faulty)
            for name in self._sorted({name for pair in self.pairs for name in pair}):
                self._judge_one(name)
        self.pairs = {pair for pair in self.pairs if not pair & set(self.faulty)}

    def _judge_one(self, name: str) -> None:
        others = [one for one in self.names if one not in self.faulty and one != name]
        bad_with = [other for other in others if other in self._tried(name)]
        enough = max(2, min(FAULTS + 1, len(others)))
        if not self._cleared(name) and name not in self.faulty and len(bad_with) >= enough:
            self.faulty[name] = f"good alone, and bad with {', '.join(bad_with)}"

    def _tried(self, name: str) -> set[str]:
        """Return the partners that one was bad with, in pairs."""
        pairs = (*self.pairs, *self.links)
        return {other for pair in pairs if name in pair for other in pair - {name}}

    def _cleared(self, name: str) -> bool:
        return bool(self.seen.good_with[name])

    def _partnered(self, name: str, suspects: set[str], used: set[str]) -> Group:
        """Return the next group that a suspect is tested in; empty where there is none now."""
        if name in used:
            return Group()
        if Group([name]) not in self.seen.bad:
            return Group([name])
        left_out = {name, *used, *self.faulty, *self._tried(name)}
        partners = [other for other in self.names if other not in left_out]
        # A partner that is known to be good leaves one explanation fewer.
        partners.sort(key=lambda other: (not self._cleared(other), other in suspects))
        return Group([name, partners[0]]) if partners else Group()

    def _take_apart(self) -> list[_Rounds]:
        """Begin the search inside of each host that is bad alone and has several GPUs."""
        found = []
        for host, why in self.faulty.items():
            gpus = self.gpus.get(host, ())
            if len(gpus) > 1 and host not in self.inside and why == "bad alone":
                names = [gpu_name(host, index) for index in gpus]
                self.inside[host] = _Search(names, self.seen, {})
                found.append(self.inside[host].apart())
        return found

    def apart(self) -> _Rounds:
        """Test each GPU alone; where all are good, search those that are bad together."""
        each = [Group([name]) for name in self.names]
        yield each
        for group in each:
            if self.seen.bad[group]:
                self._alone(group)
        if not self.faulty:
            self.seen.bad[Group(self.names)] = True  # the host's own result
            yield from self._within(Group(self.names))
            yield from self._control()


class _Joined:
    """Take the steps of several searches, whose groups share nothing, in the same rounds."""

    def __init__(self, searches: Iterable[_Rounds]) -> None:
        self.running = list(searches)

    def next(self) -> list[Group]:
        """Return the next groups of all; a search is dropped when it has ended."""
        groups: list[Group] = []
        for search in list(self.running):
            found = next(search, None)
            if found is None:
                self.running.remove(search)
            else:
                groups += found
        return groups

    def rest(self) -> _Rounds:
        """Yield the groups of all until each has ended."""
        while groups := self.next():
            yield groups
