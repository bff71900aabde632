"""Made-up benches: a definition, and what a good run of it saw."""

from __future__ import annotations

import dataclasses
from typing import Any

from stackyard.validate.bench.definition import Bench, BenchSize, Model, Peak, Side, Tolerance
from stackyard.validate.bench.plan import BenchPlan, Turn, make_plan
from stackyard.validate.bench.result import Played, Seen
from stackyard.validate.outcome import Phase
from stackyard.validate.record import Training, Window, Work
from tests.unit import samples

UPDATES, WARM, WINDOW = 40, 20, 10
PEAK = Peak(names=("NVIDIA", "H200"), flops=1e6, source="made up")
MODEL = Model(layers=2, width=8, heads=2, inner=32, vocabulary=100, context=16)
SPEEDS = {"stock": 100.0, "ours": 150.0, "part": 110.0}


def side(name: str, **changes: Any) -> Side:
    values: dict[str, Any] = {
        "what": f"what {name} is", "program": (), "args": (), "env": {}, "against": "",
        "asked": False,
    }  # fmt: skip
    return Side(name=name, **{**values, **changes})


def bench(**changes: Any) -> Bench:
    size = BenchSize(
        device="cpu", what="small", model=MODEL, rows=50, batch=4,
        updates=UPDATES, warm=WARM, window=WINDOW,
        args=("--width={width}",), env={"SIZE": "1"},
        tolerance=Tolerance(curve=0.1, end=0.05),
        wider={},
    )  # fmt: skip
    values: dict[str, Any] = {
        "stack": "toy",
        "what": "a toy",
        "unit": "words",
        "launcher": "torchrun",
        "one_launcher": "alone",
        "one_args": ("--one",),
        "prepare": ("prepare", "{data}", "{vocabulary}"),
        "program": ("train.py", "--record={record}"),
        "sides": (
            side("stock", env={"FUSED": "0"}, fused=("fast",)),
            side("ours", fused=("fast",)),
            side("part", args=("--part",), asked=True),
        ),
        "sizes": {"cpu": size, "cuda": dataclasses.replace(size, device="cuda")},
        "start_seconds": 30,
        "stall_seconds": 30,
    }
    return Bench(**{**values, **changes})


def plan(ranks: int = 2, **changes: Any) -> BenchPlan:
    values: dict[str, Any] = {"device": "cpu", "rounds": 2, "updates": 0, "named": ()}
    given = {**values, **changes}
    return make_plan(bench(), given.pop("device"), ranks, **given)


def training(turn: Turn, device: str = "cpu", **changes: Any) -> Training:
    """A training at the side's speed on each rank, a little less on the second."""
    ranks = {}
    for number in range(turn.ranks):
        seconds = 400.0 / SPEEDS[turn.side] * (1.0 + 0.25 * (turn.ranks > 1))
        windows = {
            step: Window(seconds=seconds, tokens=400.0, peak_bytes=1000 * step + number)
            for step in range(WINDOW, UPDATES + 1, WINDOW)
        }
        # The first window, in which things are compiled, must not count.
        windows[WINDOW] = Window(seconds=99.0, tokens=400.0, peak_bytes=1)
        place = (turn.group - 1) * turn.ranks + number
        ranks[number] = samples.rank(
            number,
            turn.ranks,
            losses={step: 5.0 - step / UPDATES for step in windows},
            windows=windows,
            ended=UPDATES if device == "cpu" else UPDATES + 4,
            device=device if device == "cpu" else f"cuda:{number}",  # of those it sees
            gpu="" if device == "cpu" else f"GPU-{place}",
        )
    return samples.training(
        turn.label, 1, **{"ranks": ranks, "wanted": turn.ranks, "strays": {"node1": []}, **changes}
    )


def seen(made: BenchPlan, **changes: Any) -> Seen:
    played = tuple(
        Played(turn=turn, training=training(turn, made.size.device)) for turn in made.turns()
    )
    phases = (Phase(name="prepare data", seconds=1.5),)
    return Seen(**{"run": "toy-1", "played": played, "phases": phases, **changes})


def with_training(value: Seen, label: str, **changes: Any) -> Seen:
    """The same run with one training changed."""
    played = tuple(
        dataclasses.replace(one, training=dataclasses.replace(one.training, **changes))
        if one.turn.label == label
        else one
        for one in value.played
    )
    return dataclasses.replace(value, played=played)


def with_rank(value: Seen, label: str, number: int, **changes: Any) -> Seen:
    """The same run with one rank of one training changed."""
    found = next(one for one in value.played if one.turn.label == label)
    ranks = samples.changed(found.training, number, **changes).ranks
    return with_training(value, label, ranks=ranks)


def watched(value: Seen) -> Seen:
    """The same run with what every GPU did in an update; on two ranks they communicate."""
    for played in value.played:
        two = played.turn.ranks > 1
        work = Work(wall=0.5 if two else 0.4, seconds=0.42 if two else 0.3,
                    compute=0.32 if two else 0.3, communication=0.15 if two else 0.0)  # fmt: skip
        for number in range(played.turn.ranks):
            value = with_rank(value, played.turn.label, number, work=work)
    return value
