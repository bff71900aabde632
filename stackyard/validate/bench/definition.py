"""Define a bench: sides, sizes, a model's dimensions, the peaks of GPUs. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Model:
    """Hold the dimensions of a decoder-only transformer that its FLOPs depend on.

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
    """Limit the difference between two sides' losses, in the unit that the bench records.

    Attributes:
        curve: at any update after the warm-up.
        end: at the last update.
    """

    curve: float
    end: float


@dataclass(frozen=True, kw_only=True)
class BenchSize:
    """Describe the training on one kind of device.

    Attributes:
        device: `cpu` or `cuda`.
        what: description, which follows the bench's own.
        rows: documents of the made-up text; trainings that need more start over.
        batch: sequences of one rank in one update.
        updates: optimizer updates of one training.
        warm: updates at its beginning that are not counted.
        window: updates between two synchronised readings of the clock.
        args: arguments of every side on this device.
        env: environment of every side on this device.
        tolerance: how far losses may differ.
        wider: tolerances, by name, of sides that compute in another precision.
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
        """Return how far a side's losses may differ from those they are compared with."""
        return self.wider.get(side, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Describe one way of doing the same training.

    Attributes:
        what: description of the side.
        program: command in place of the bench's own program; empty for that one.
        against: the side that speed and losses are compared with; empty for the first side. A
            side that trains something else (another dropout) names itself.
        asked: whether it runs only when it is named.
        fused: parts that must run on every rank on GPUs, unless its environment turns them off.
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
    """Describe a stack's bench (`images/<stack>/bench.yml`).

    Attributes:
        what: description of the training, and of incidental differences between the sides.
        unit: name of a token in tables (`tokens`, `words`).
        prepare: command that makes the data on the first node, from nothing but the image.
        launcher: how the ranks are started.
        program: what every side runs, unless it names its own.
        sides: the variants; each is compared with the first one, unless it names another.
        sizes: model, batch, updates and bounds, for `cuda` and for `cpu`.
        start_seconds: time within which every rank must have joined.
        stall_seconds: longest silence of a training.
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
        """Return the side of this name (reading and choosing have checked that it exists)."""
        return next(side for side in self.sides if side.name == name)

    def against(self, side: Side) -> str:
        """Return the name of the side that a side is compared with; its own for the first one."""
        return side.against or self.sides[0].name


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Hold a GPU's peak in dense half precision.

    Attributes:
        names: words that must all be in the driver's name of the GPU.
        flops: floating-point operations per second.
    """

    names: tuple[str, ...]
    flops: float
    source: str
