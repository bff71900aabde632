"""Which trainings a bench plays, in which order, and each of them as a smoke's training.

Owns the order of turns and the filling of a bench's own placeholders. Pure: nothing is started
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stackyard.bench.definition import Bench, Side, Size
from stackyard.bench.read import counting_problem
from stackyard.document import nearest
from stackyard.errors import UsageError
from stackyard.spec import Layout, Smoke

# Windows of this many updates are looked at by the clock; the ranks read it from their environment.
WINDOW = "STACKYARD_BENCH_WINDOW"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One training of a bench: a side, on some ranks, in one round."""

    side: str
    ranks: int
    round: int

    @property
    def label(self) -> str:
        """Its name, unique in its run."""
        return f"{self.side}-{self.ranks}-{self.round}"

    def gpus(self, available: int) -> tuple[int, ...]:
        """Indexes of the GPUs that its ranks compute on: fewer than there are move on each round.

        GPUs of one host differ by a few per cent, and many ranks go as fast as the slowest of
        theirs: what one rank makes is to be seen on all GPUs, not only on the first.
        """
        if self.ranks >= available:
            return tuple(range(available))
        first = (self.round - 1) * self.ranks
        return tuple(sorted((first + rank) % available for rank in range(self.ranks)))


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """A bench as it will be played.

    Attributes:
        sides: those that are played, each behind the one it is held against.
        counts: numbers of ranks, ascending.
    """

    bench: Bench
    size: Size
    sides: tuple[Side, ...]
    counts: tuple[int, ...]
    rounds: int

    def turns(self) -> tuple[Turn, ...]:
        """Every training: side after side, at each number of ranks, in every round.

        So what drifts over minutes (clocks, temperature, neighbours) meets all sides alike.
        """
        return tuple(
            Turn(side=side.name, ranks=ranks, round=number)
            for number in range(1, self.rounds + 1)
            for ranks in self.counts
            for side in self.sides
        )


def make_plan(
    bench: Bench, device: str, ranks: int, *, rounds: int, updates: int, named: Sequence[str]
) -> BenchPlan:
    """Decide what is played.

    Args:
        ranks: the most ranks at the same time.
        updates: of one training; 0 for the definition's own number.
        named: sides by name; empty for those that are not only played on request.

    Raises:
        UsageError: a side is unknown, or nothing would be counted.
    """
    size = bench.sizes[device]
    if updates:
        size = replace(size, updates=updates)
    wrong = counting_problem(size.updates, size.warm, size.window)
    if wrong:
        raise UsageError(f"--updates {updates} does not do", why=wrong)
    if rounds < 1:
        raise UsageError(f"--rounds {rounds} plays nothing", hint="--rounds 1")
    return BenchPlan(
        bench=bench,
        size=size,
        sides=choose_sides(bench, named),
        counts=rank_counts(ranks),
        rounds=rounds,
    )


def choose_sides(bench: Bench, named: Sequence[str]) -> tuple[Side, ...]:
    """The sides to play, in the definition's order; with each comes what it is held against."""
    known = [side.name for side in bench.sides]
    for name in named:
        if name not in known:
            raise UsageError(f"{bench.stack} has no side {name!r}", why=nearest(name, known))
    wanted = set(named) or {side.name for side in bench.sides if not side.asked}
    before = 0
    while before != len(wanted):
        before = len(wanted)
        wanted |= {bench.against(bench.side(name)) for name in wanted}
    return tuple(side for side in bench.sides if side.name in wanted)


def rank_counts(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the most."""
    found, count = [], 1
    while count < most:
        found.append(count)
        count *= 2
    return (*found, most)


class _Kept(dict[str, object]):
    """Placeholders that are somebody else's stay as they are."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


def _fill(words: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(word.format_map(_Kept(values)) for word in words)


def as_smoke(plan: BenchPlan, side: Side, ranks: int) -> Smoke:
    """One side's training as `stackyard.training` takes it: one layout, nothing saved."""
    bench, size = plan.bench, plan.size
    values: dict[str, object] = {
        **vars(size.model), "rows": size.rows, "batch": size.batch,
        "window": size.window, "warm": size.warm,
    }  # fmt: skip
    alone = bench.one_args if ranks == 1 else ()
    layout = Layout(
        name=f"{side.name}-{ranks}",
        ranks=ranks,
        args=_fill((*side.args, *alone), values),
        launcher=bench.one_launcher if ranks == 1 else bench.launcher,
        options={},
    )
    return Smoke(
        launcher=layout.launcher,
        env={**size.env, **side.env, WINDOW: str(size.window)},
        prepare=_fill(bench.prepare, values),
        program=_fill(side.program or bench.program, values),
        args=_fill(size.args, values),
        updates=size.updates,
        save_at=size.updates,
        reference=layout.name,
        resume=layout.name,
        tolerance=size.tolerance.curve,
        start_seconds=bench.start_seconds,
        stall_seconds=bench.stall_seconds,
        layouts=(layout,),
        device=size.device,
    )
