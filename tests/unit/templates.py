"""A made-up training of a template: 40 updates, killed after 30, resumed from 20; a plain loop."""

from __future__ import annotations

import dataclasses
from typing import Any

from stackyard.definitions.job_source import load_example
from stackyard.definitions.project import ROOT
from stackyard.report import trained
from stackyard.report.shapes import TemplateReport
from stackyard.validate.bench.definition import Peak
from stackyard.validate.record import RankRecord, Training
from stackyard.validate.template.figures import TemplateSeen
from stackyard.validate.template.judge import judge
from stackyard.validate.template.plan import KILLED, RESUMED, TemplatePlan, make_plan
from tests.unit import reports, samples

PEAK = Peak(names=("NVIDIA",), flops=1e9, source="made up")
PLAN = make_plan(load_example(ROOT, "megatron", "gpt2-345m"), "cpu", 2, updates=40)


def _rank(number: int, first: int, last: int, **changes: object) -> RankRecord:
    """Two updates a second; after update 35 a checkpoint takes 5 s more."""
    steps = range(first, last + 1)
    return dataclasses.replace(
        RankRecord(
            rank=number, world_size=2, host="node1", pid=7 + number, backend="gloo", device="cpu",
            losses={at: 10.0 - 0.1 * (at - 1) for at in steps},
            times={at: at / 2 + (5 if at > 35 else 0) for at in steps},
            valid={at: 6.0 - 0.1 * at for at in steps if at % 10 == 0},
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def _training(first: int, last: int, **changes: object) -> Training:
    ranks = {
        number: _rank(
            number, first, last, ended=last if last == 40 else None,
            loaded=[first - 1] if first > 1 else [], saved=[20],
            memory={"allocated": 6000 + 1000 * number} if last == 40 else {},
        )
        for number in (0, 1)
    }  # fmt: skip
    found = Training(
        layout="gpt2-345m", ranks=ranks, wanted=2, nodes=("node1",), code=0, stopped="",
        killed=False, strays={"node1": []}, tail="", seconds=20.0, command=("torchrun",),
    )  # fmt: skip
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def good() -> TemplateSeen:
    """Return what a training as it should be shows."""
    return TemplateSeen(
        run="toy-1", killed=_training(1, 30, killed=True, code=None), resumed=_training(21, 40),
        plain=beside(1.0), names=("latest", "global_step20", "global_step40"),
    )  # fmt: skip


def beside(share: float, more: float = 0.0, last: int = 20) -> Training:
    """Return a launch of 20 updates, of whose speed the template's is this share.

    Its losses are more by so much.
    """
    found = _training(1, last)
    ranks = {
        number: dataclasses.replace(
            rank, ended=last, losses={at: loss + more for at, loss in rank.losses.items()},
            times={at: at / 2 * share for at in rank.times}, memory={"allocated": 9000},
        )
        for number, rank in found.ranks.items()
    }  # fmt: skip
    return dataclasses.replace(found, ranks=ranks)


def with_losses(seen: TemplateSeen, label: str, losses: dict[int, float]) -> TemplateSeen:
    """Return it with other losses of some updates of a launch."""
    assert label in (KILLED, RESUMED)
    one: Training = getattr(seen, label)
    ranks = {
        number: dataclasses.replace(rank, losses={**rank.losses, **losses})
        for number, rank in one.ranks.items()
    }
    return dataclasses.replace(seen, **{label: dataclasses.replace(one, ranks=ranks)})


def report(seen: TemplateSeen, plan: TemplatePlan = PLAN, **changes: Any) -> TemplateReport:
    """Return the record of it."""
    values: dict[str, Any] = {
        "peaks": (PEAK,), "started": "2030-01-02T03:04:05+00:00", "seconds": 1.0, "host": {},
        "gpus": {}, "failures": (),
        "made": {"command": "invoke bench", "version": "1", "commit": "", "dirty": False},
    }  # fmt: skip
    return trained.template_report(
        reports.resolve(samples.definitions(), "toy", "cpu"), reports.INFO, plan, seen,
        judge(plan, seen), **{**values, **changes},
    )  # fmt: skip
