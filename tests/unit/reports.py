"""Reports of made-up smokes: a good one, and one for each way that a smoke can be bad."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from stackyard.build.catalog import resolve
from stackyard.definitions.spec import Base
from stackyard.report import records
from stackyard.system.image import ImageInfo
from stackyard.validate import judge
from stackyard.validate.outcome import Observation, Outcome, Phase
from tests.unit import samples

PHASES = (
    Phase(name="start nodes", seconds=0.5),
    Phase(name="log in between nodes", seconds=0.25, at=0.5),
)
FAILURES = (
    samples.failure(
        id="oom",
        title="a GPU is out of memory",
        any_of=("out of memory",),
        remedy="a <smaller> batch",
        threads=("https://forge.example/1",),
        brings=("missing",),
    ),
    samples.failure(id="missing", kind="consequence", any_of=("did not join",)),
)
INFO = ImageInfo(
    id="sha256:1234",
    tags=("stackyard/toy:cpu",),
    labels={"stackyard.recipe": "sha256:recipe"},
    env=(),
    size=1_500_000_000,
    layers=(),
)


def outcome(seen: Observation) -> Outcome:
    checks = judge.judge(samples.smoke(), seen)
    return Outcome(run="toy-1", checks=checks, phases=PHASES, observation=seen)


def of(seen: Observation, base: Base | None = None) -> dict[str, Any]:
    return records.smoke_report(
        resolve(samples.definitions(**({"bases": {"cpu": base}} if base else {})), "toy", "cpu"),
        INFO,
        outcome(seen),
        started="2030-01-02T03:04:05+00:00",
        seconds=12.345,
        host={"engine": "20.10", "cpus": "2"},
        ranks="cpu",
        build_seconds=0.004,
        failures=FAILURES,
    )


def good() -> dict[str, Any]:
    return of(samples.observation())


def not_finite() -> dict[str, Any]:
    """NaN and both infinities, in every training."""
    bad = samples.losses() | {1: math.nan, 30: math.inf, 40: -math.inf}
    two = samples.changed(samples.training(), 0, losses=bad)
    killed = samples.changed(samples.killed(), 0, losses=bad)
    resumed = samples.changed(samples.resumed(), 0, losses=bad)
    one = samples.changed(samples.training("one", 1), 0, losses=bad)
    trainings = {"one": one, "two": two}
    return of(samples.observation(trainings=trainings, killed=killed, resumed=resumed))


def silent() -> dict[str, Any]:
    """No rank said anything."""
    two = samples.training(ranks={}, code=None, stopped="rank 0 (node1) did not join within 90 s")
    trainings = {"one": samples.training("one", 1), "two": two}
    resumed, killed = samples.resumed(ranks={}), samples.killed(ranks={}, killed=False)
    return of(samples.observation(trainings=trainings, resumed=resumed, killed=killed))


def failed() -> dict[str, Any]:
    """Words that a page must not take for its own."""
    two = dataclasses.replace(
        samples.training(),
        code=1,
        stopped='<script>alert("x")</script> & more',
        tail="</pre><b>bold</b>",
        command=("train.py", "--x=<img src=http://evil.example/x>"),
    )
    return of(samples.observation(trainings={"one": samples.training("one", 1), "two": two}))


def recognised() -> dict[str, Any]:
    """Its cause is in the last lines of a training, and what follows in those of another."""
    two = samples.training(code=1, tail="x\nrank 1: CUDA out of memory & more")
    resumed = samples.resumed(tail="rank 1 did not join")
    trainings = {"one": samples.training("one", 1), "two": two}
    return of(samples.observation(trainings=trainings, resumed=resumed))


def broken() -> dict[str, Any]:
    """It ended before anything was tried."""
    seen = Observation(nodes=samples.NODES, environment={}, broken="node2 did not start")
    return of(seen)


def half() -> dict[str, Any]:
    """It ended in the middle."""
    return of(samples.observation(killed=None, resumed=None, broken="the engine left"))


BROKEN = {
    "not finite": not_finite,
    "silent": silent,
    "failed": failed,
    "recognised": recognised,
    "broken": broken,
    "half": half,
}
