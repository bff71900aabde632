"""Plan the trainings of a bench and their order, and express each as a smoke's training.

Owns the order of turns and the filling of a bench's own placeholders. Pure: it must not start
anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stackyard.definitions.document import nearest
from stackyard.definitions.spec import Layout, Smoke
from stackyard.system.errors import UsageError
from stackyard.validate.bench.definition import Bench, BenchSize, Side
from stackyard.validate.bench.read import counting_problem
from stackyard.validate.record import WORK_UPDATES, measured_work

# Environment variable from which the ranks read the number of updates in a timed window.
WINDOW = "STACKYARD_BENCH_WINDOW"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Describe one training of a bench: a side, on some ranks, in one round.

    Attributes:
        group: number, from 1, among the same trainings that run at the same time.
        groups: how many of them there are.
    """

    side: str
    ranks: int
    round: int
    group: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """Return the name that only the same trainings at the same time share."""
        return f"{self.side}-{self.ranks}-{self.round}"

    @property
    def label(self) -> str:
        """Return the training's name, unique in its run."""
        return f"{self.name}.{self.group}" if self.groups > 1 else self.name

    def gpus(self, available: int) -> tuple[int, ...]:
        """Return the indexes of the GPUs that only this training's ranks compute on.

        GPUs of one host differ by a few per cent, and many ranks are as fast as the slowest of
        their GPUs: a training on few ranks must be measured on all GPUs. Where groups leave some
        free, they move on in every round.
        """
        first = (self.round - 1) * self.groups * self.ranks + (self.group - 1) * self.ranks
        return tuple(sorted((first + rank) % available for rank in range(self.ranks)))


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """Describe a bench as it will run.

    Attributes:
        sides: those that run, in the definition's order.
        counts: numbers of ranks, ascending.
        available: number of GPUs, or of CPU ranks, at the same time.
        nodes: on how many nodes; over several hosts only one training runs at a time.
    """

    bench: Bench
    size: BenchSize
    sides: tuple[Side, ...]
    counts: tuple[int, ...]
    rounds: int
    available: int
    nodes: int = 1

    @property
    def updates(self) -> int:
        """Return the updates of each training.

        On GPUs a few follow those that count: a profiler gets ready in one, and watches the others.
        """
        return self.size.updates + (1 + WORK_UPDATES if self.size.device == "cuda" else 0)

    def groups(self) -> tuple[tuple[Turn, ...], ...]:
        """Return the groups that run at the same time, by round, then ranks, then side.

        Drift over minutes (clocks, temperature, neighbours) thus affects all sides alike; and as
        every group takes all GPUs that it can, each number of ranks is measured under one load.
        """
        return tuple(
            self._group(side.name, ranks, number)
            for number in range(1, self.rounds + 1)
            for ranks in self.counts
            for side in self.sides
        )

    def _group(self, side: str, ranks: int, number: int) -> tuple[Turn, ...]:
        groups = self.available // ranks if self.nodes == 1 else 1
        return tuple(
            Turn(side=side, ranks=ranks, round=number, group=group, groups=groups)
            for group in range(1, groups + 1)
        )

    def turns(self) -> tuple[Turn, ...]:
        """Return every training, in the order in which they are started."""
        return tuple(turn for group in self.groups() for turn in group)

    def gpus(self, turn: Turn) -> tuple[int, ...]:
        """Return the indexes of the GPUs that a training's ranks compute on.

        They are empty on CPU ranks, and over hosts, whose nodes are filled one after another.
        """
        here = self.size.device == "cuda" and self.nodes == 1
        return turn.gpus(self.available) if here else ()

    def spread(self, ranks: int, names: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Return the nodes that a training's ranks fill, and the ranks on each of them."""
        each = min(ranks, self.available // self.nodes)
        return tuple(names[: ranks // each]), each


def make_plan(
    bench: Bench,
    device: str,
    ranks: int,
    *,
    rounds: int,
    updates: int,
    named: Sequence[str],
    counts: Sequence[int] = (),
    nodes: int = 1,
) -> BenchPlan:
    """Decide which trainings run.

    Args:
        ranks: the most ranks at the same time.
        updates: of one training; 0 for the definition's own number.
        named: sides by name; empty for all but those that run only on request.
        counts: numbers of ranks, as `read_counts` found them; empty for 1, 2, 4, ... and the most.
        nodes: on how many nodes they are.

    Raises:
        UsageError: a side is unknown, or nothing would be counted.
    """
    size = bench.sizes[device]
    if updates:
        size = shortened(size, updates)
    wrong = counting_problem(size.updates, size.warm, size.window)
    if wrong:
        raise UsageError(f"--updates {updates} does not do", why=wrong)
    if rounds < 1:
        raise UsageError(f"--rounds {rounds} runs nothing", hint="--rounds 1")
    found = tuple(counts) or rank_counts(ranks)
    each = ranks // nodes
    uneven = [count for count in found if count > each and count % each]
    if uneven or ranks % nodes:
        raise UsageError(
            f"{uneven[0] if uneven else ranks} ranks cannot be spread over {nodes} nodes evenly",
            hint="--counts with numbers that fill whole nodes, as many GPUs on each",
        )
    return BenchPlan(
        bench=bench,
        size=size,
        sides=choose_sides(bench, named),
        counts=found,
        rounds=rounds,
        available=ranks,
        nodes=nodes,
    )


def shortened(size: BenchSize, updates: int) -> BenchSize:
    """Return a size with this many updates; with fewer, the end has the curve's tolerance."""
    if updates >= size.updates:
        return replace(size, updates=updates)
    wider = {name: replace(bounds, end=bounds.curve) for name, bounds in size.wider.items()}
    tolerance = replace(size.tolerance, end=size.tolerance.curve)
    return replace(size, updates=updates, tolerance=tolerance, wider=wider)


def choose_sides(bench: Bench, named: Sequence[str]) -> tuple[Side, ...]:
    """Return the sides to run, in the definition's order, and the sides they are compared with."""
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
    """Return the numbers of ranks to measure: 1, 2, 4, ... and the most."""
    found, count = [], 1
    while count < most:
        found.append(count)
        count *= 2
    return (*found, most)


def read_counts(text: str, most: int) -> tuple[int, ...]:
    """Read numbers of ranks as typed (`1,4`); return them ascending, none for an empty text.

    Args:
        most: the most ranks at the same time.

    Raises:
        UsageError: one is not a number, is given twice, or is more than `most`.
    """
    found: list[int] = []
    for word in text.split(",") if text.strip() else ():
        number = int(word) if word.strip().isascii() and word.strip().isdecimal() else 0
        wrong = ""
        if number < 1:
            wrong = f"{word.strip()!r} is no number of ranks"
        elif number > most:
            wrong = f"{number} ranks are more than the {most} there are"
        elif number in found:
            wrong = f"{number} is said twice"
        if wrong:
            hint = f"--counts {','.join(map(str, rank_counts(most)))}"
            raise UsageError(f"--counts {text} does not do", why=wrong, hint=hint)
        found.append(number)
    return tuple(sorted(found))


class _Kept(dict[str, object]):
    """Leave placeholders that others fill in unchanged."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


def _fill(words: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(word.format_map(_Kept(values)) for word in words)


def as_smoke(plan: BenchPlan, side: Side, ranks: int) -> Smoke:
    """Return one side's training for `validate.training`: one layout, nothing saved."""
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
        env={
            **(measured_work(size.updates + 1) if size.device == "cuda" else {}),
            **size.env,
            **side.env,
            WINDOW: str(size.window),
        },
        prepare=_fill(bench.prepare, values),
        program=_fill(side.program or bench.program, values),
        args=_fill(size.args, values),
        updates=plan.updates,
        save_at=plan.updates,
        reference=layout.name,
        resume=layout.name,
        tolerance=size.tolerance.curve,
        start_seconds=bench.start_seconds,
        stall_seconds=bench.stall_seconds,
        layouts=(layout,),
        device=size.device,
    )
