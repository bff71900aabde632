"""What a bench is made of: sides, sizes, a model's dimensions, the peaks of GPUs. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Model:
    """Dimensions of a decoder-only transformer, as far as its FLOPs depend on them.

    Attributes:
        inner: width of the feed-forward part.
        vocabulary: rows of the output projection, padding included.
        context: tokens of one sequence.
    """

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far two sides' losses may lie apart, in the unit in which the bench records them.

    Attributes:
        curve: at any update after the warm-up.
        end: at the last update.
    """

    curve: float
    end: float


@dataclass(frozen=True, kw_only=True)
class BenchSize:
    """What is trained on one kind of device.

    Attributes:
        device: `cpu` or `cuda`.
        what: what it is, in words, after the bench's own.
        rows: documents of the made-up text; trainings that need more begin again.
        batch: sequences of one rank in one update.
        updates: optimizer updates of one training.
        warm: updates at its beginning that are not counted.
        window: updates between two synchronised looks at the clock.
        args: arguments of every side on this device.
        env: environment of every side on this device.
        tolerance: how far losses may lie apart.
        wider: the same for sides, by name, that compute in another precision.
    """

    device: str
    what: str
    model: Model
    rows: int
    batch: int
    updates: int
    warm: int
    window: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    tolerance: Tolerance
    wider: Mapping[str, Tolerance]

    def bounds(self, side: str) -> Tolerance:
        """How far that side's losses may lie from those that it is held against."""
        return self.wider.get(side, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way of doing the same training.

    Attributes:
        what: what it is, in words.
        program: what runs in place of the bench's own program; empty for that.
        against: the side that speed and losses are held against; empty for the first of all. A
            side that trains something else (another dropout) names itself.
        asked: whether it is played only when it is named.
        fused: parts that must run on every rank on GPUs, unless its environment has them off.
    """

    name: str
    what: str
    program: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    against: str
    asked: bool
    fused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A stack's bench: `images/<stack>/bench.yml`.

    Attributes:
        what: what is trained, and what differs between the sides where that is not the point.
        unit: what a token is called in tables (`tokens`, `words`).
        prepare: makes the data on the first node, from nothing but the image.
        launcher: starts the ranks; `one_launcher` where there is a single one.
        sides: the first one is what others are held against.
    """

    stack: str
    what: str
    unit: str
    launcher: str
    one_launcher: str
    one_args: tuple[str, ...]
    prepare: tuple[str, ...]
    program: tuple[str, ...]
    sides: tuple[Side, ...]
    sizes: Mapping[str, BenchSize]
    start_seconds: int
    stall_seconds: int

    def side(self, name: str) -> Side:
        """The side of that name (reading and choosing made sure that it exists)."""
        return next(side for side in self.sides if side.name == name)

    def against(self, side: Side) -> str:
        """The side that another is held against; itself, for the first one."""
        return side.against or self.sides[0].name


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What a GPU can do at most in dense half precision.

    Attributes:
        names: what the driver calls it: words that must all be in its name.
        flops: floating-point operations a second.
    """

    names: tuple[str, ...]
    flops: float
    source: str
