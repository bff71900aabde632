"""Plan a template's launches: one that is killed, one that goes on, and a plain loop beside them.

Owns the values that make a long training short: updates, schedule, saves and validations. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stackyard.definitions.examples import (
    FULL,
    REDUCED,
    Cost,
    Example,
    Where,
    chosen_size,
    counts,
    job_of,
)
from stackyard.definitions.spec import Layout, Smoke
from stackyard.launch.job import Job
from stackyard.mesh.node import rank_folder
from stackyard.system.errors import UsageError, shown
from stackyard.validate.bench.definition import Model
from stackyard.validate.record import WORK_UPDATES, measured_work
from stackyard.validate.training_log import TrainingPlan

UPDATES: Final = 200
LEAST_UPDATES: Final = 16
KILLED, RESUMED, PLAIN = "killed", "resumed", "plain"
# Updates at the beginning of a launch that are not counted in its speed.
WARM: Final = 10
# A plain loop makes a quarter of the updates, and so does a template without one of its costs.
LEAST_BESIDE: Final = 20
# A rank of the full size reads gigabytes of a checkpoint before it says anything.
SILENT_SECONDS = 300
_NUMBERS = ("batch", "accumulate", "update_freq", "sequence", "eval_every", "keep_saves")
_SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")


@dataclass(frozen=True, kw_only=True)
class TemplatePlan:
    """Hold one template as it is trained, on one node.

    Attributes:
        device: `cpu` or `cuda`.
        size: `full` or `reduced`.
        settings: values that differ from the template's own.
        values: every value that counts, the settings included.
        save_at: the update whose checkpoint is taken up.
        kill_after: the update after which every rank is killed.
        replicas: data-parallel groups of ranks.
    """

    example: Example
    device: str
    size: str
    ranks: int
    updates: int
    settings: Mapping[str, str]
    values: Mapping[str, str]
    words: tuple[str, ...]
    save_at: int
    kill_after: int
    replicas: int

    @property
    def tokens(self) -> int:
        """Return the tokens of inputs in one update, over all ranks."""
        steps = int(self.values.get("accumulate") or self.values.get("update_freq") or 1)
        return self.replicas * int(self.values["batch"]) * steps * int(self.values["sequence"])

    @property
    def beside(self) -> int:
        """Return the updates that a plain loop makes, with the schedule of all."""
        return min(self.updates, max(LEAST_BESIDE, self.updates // 4))

    @property
    def costs(self) -> Mapping[str, Cost]:
        """Return what may cost speed beside a plain loop, by the label of its launch."""
        plain = self.example.plain
        return {without(name): cost for name, cost in plain.costs.items()} if plain else {}

    def changed(self, cost: Cost) -> TemplatePlan:
        """Return the plan of the template without one of its costs."""
        example = replace(
            self.example,
            program=(*self.example.program, *cost.args),
            options={**self.example.options, **cost.options},
        )
        values = {**self.values, **cost.values}
        return replace(
            self, example=example, values=values, settings={**self.settings, **cost.values},
            replicas=self.ranks // _groups(example, values, self.ranks),
        )  # fmt: skip

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Return the updates after which the template validates; empty where epochs decide."""
        every = int(self.values.get("eval_every", 0))
        return tuple(range(every, self.updates + 1, every)) if every else ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Return the updates whose checkpoints the template's rules keep to the end."""
        every = int(self.values["save_every"])
        saved = range(every, self.updates + 1, every)
        return tuple(saved)[-int(self.values.get("keep_saves", 0)) :]


def make_plan(
    example: Example,
    device: str,
    ranks: int,
    *,
    updates: int = 0,
    given: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
) -> TemplatePlan:
    """Plan a training of `updates`, saved at its half and killed at three quarters.

    The template's own schedule, saves and validations are brought into that many updates; values
    that the user set come before.

    Raises:
        UsageError: it cannot be resumed, the updates are too few, or the example refuses.
    """
    given = given or {}
    updates = updates or UPDATES
    if "save_every" not in example.values or "batch" not in example.values:
        raise UsageError(
            f"{example.name} is a small example, no template: it cannot be benched",
            hint=f"invoke run {example.stack} --examples names the templates",
        )
    if updates < LEAST_UPDATES or updates % 4:
        raise UsageError(
            f"--updates must be {LEAST_UPDATES} or more with --example, and a multiple of 4",
            why="the training is saved at the half and killed after three quarters",
            hint=f"--updates {max(LEAST_UPDATES, -(-updates // 4) * 4)}",
        )
    clash = sorted({"updates", "save_every"} & given.keys())
    if clash:
        raise UsageError(
            f"--set {clash[0]}=... goes with no --example of a bench", hint="--updates N"
        )
    size = chosen_size(example, device, given)
    size_name = REDUCED if size is example.sizes.get(REDUCED) else FULL
    usual = {**example.values, **size.values, **example.devices[device].values}
    settings = {**_short(usual, updates), **given}
    values = {**usual, **settings}
    for name in _NUMBERS:
        if name in values and not counts(values[name]):
            what = f"{example.name}: {name} must be a whole number, not {shown(values[name])!r}"
            raise UsageError(what)
    groups = _groups(example, values, ranks)
    plan = TemplatePlan(
        example=example, device=device, size=size_name, ranks=ranks, updates=updates,
        settings=settings, values=values, words=tuple(words),
        save_at=updates // 2, kill_after=updates * 3 // 4,
        replicas=ranks // groups,
    )  # fmt: skip
    job(plan, {}, KILLED, "/shared")  # refuses values that it does not have
    return plan


def _groups(example: Example, values: Mapping[str, str], ranks: int) -> int:
    """Return how many ranks hold one copy of the model.

    Raises:
        UsageError: a parallel size is no number, or the ranks are no multiple of it.
    """
    wrong = [name for name in example.parallel if not counts(values[name])]
    if wrong:
        what = f"{wrong[0]} must be a whole number, not {shown(values[wrong[0]])!r}"
        raise UsageError(f"{example.name}: {what}")
    groups = example.multiple * math.prod(int(values[name]) for name in example.parallel)
    if ranks % groups:
        names = " x ".join(example.parallel)
        raise UsageError(
            f"{example.name} needs a multiple of {groups} ranks, not {ranks}",
            why=f"each copy of the model is cut into {names} = {groups} parts",
            hint=f"--set {','.join(f'{name}=N' for name in example.parallel)}",
        )
    return groups


def _short(usual: Mapping[str, str], updates: int) -> dict[str, str]:
    """Return the values that bring a whole training into so many updates."""
    found = {
        "updates": str(updates), "decay_updates": str(updates), "save_every": str(updates // 2),
        "eval_every": str(updates // 4), "log_every": "1",
    }  # fmt: skip
    if usual.get("warmup", "").isdecimal():  # in updates; as a part of them it stays
        found["warmup"] = str(min(int(usual["warmup"]), updates // 10))
    return {name: value for name, value in found.items() if name in usual}


def without(name: str) -> str:
    """Return the label of the launch that leaves a cost out."""
    return f"without-{name}"


def job(plan: TemplatePlan, files: Mapping[str, bytes], label: str, shared: str) -> Job:
    """Return one launch as a job; the two of the template share the folder of checkpoints."""
    where = Where(
        name=label, base="", image="", nodes=1, per_node=plan.ranks, device=plan.device,
        folder=shared, save=save_folder(shared, label), record=rank_folder(label),
    )  # fmt: skip
    example, words = plan.example, plan.words
    # Not in the launch whose speed counts: a profiler costs some.
    watched = plan.device == "cuda" and label in (KILLED, *plan.costs)
    after = measured_after(plan) if watched else 0
    if label == PLAIN:
        assert example.plain is not None
        program = (example.plain.program, *example.program[1:])
        example = replace(example, program=program, launcher="torchrun", options={})
        words = (*words, f"--only={plan.beside}")
    elif label in plan.costs:
        plan = plan.changed(plan.costs[label])
        example = plan.example
    one = job_of(example, where, files, plan.settings, words)
    if after:
        one = replace(one, env={**one.env, **measured_work(after)})
    return one


def measured_after(plan: TemplatePlan) -> int:
    """Return after which update the GPUs' work is measured; 0 where no place is for it.

    No validation and no checkpoint lies between the updates that are measured.
    """
    others = {
        *plan.evaluations,
        *range(0, plan.updates, int(plan.values["save_every"]) or plan.updates),
    }
    # A launch without a part ends after fewer updates than the one that is killed.
    last = min(plan.kill_after, plan.beside - 2)
    for after in range(WARM, last - WORK_UPDATES + 1):
        if not others & set(range(after, after + WORK_UPDATES)):
            return after
    return 0


def save_folder(shared: str, label: str = RESUMED) -> str:
    """Return the folder of checkpoints of a launch."""
    return f"{shared}/{'checkpoints' if label in (KILLED, RESUMED) else label}"


def as_smoke(plan: TemplatePlan, one: Job) -> Smoke:
    """Return a launch in the form that trainings in a mesh are started from."""
    # Braces are a smoke's placeholders; the words of a job are complete.
    words = tuple(word.replace("{", "{{").replace("}", "}}") for word in one.program)
    layout = Layout(
        name=plan.example.name, ranks=plan.ranks, args=(), launcher=one.launcher,
        options=one.options,
    )  # fmt: skip
    saved = one.name in (KILLED, RESUMED)
    return Smoke(
        launcher=one.launcher, env=one.env, prepare=(), program=words, updates=plan.updates,
        save_at=plan.save_at if saved else 0, reference=layout.name, resume=layout.name,
        tolerance=0.0, start_seconds=SILENT_SECONDS, stall_seconds=SILENT_SECONDS,
        layouts=(layout,), device=plan.device,
    )  # fmt: skip


def launch(plan: TemplatePlan, smoke: Smoke, label: str, run: str, shared: str) -> TrainingPlan:
    """Return one launch; the plain loop ends by itself, as the one that is resumed does."""
    stops = {KILLED: plan.kill_after, RESUMED: None, PLAIN: None}
    return TrainingPlan(
        layout=smoke.layouts[0], label=label, save=save_folder(shared, label), run=run,
        shared=shared, nodes=("node1",), per_node=plan.ranks,
        kill_after=stops.get(label, plan.beside),
    )  # fmt: skip


def model_of(values: Mapping[str, str]) -> tuple[Model | None, str]:
    """Return the dimensions that FLOPs depend on; None, with the reason, where they are unknown."""
    if "head_size" in values:
        return None, "the formula is that of decoder-only models, and this one has an encoder, too"
    missing = [name for name in _SIZES if not values.get(name, "").isdecimal()]
    if missing:
        return None, f"the template's values do not say its {', '.join(missing)}"
    layers, width, heads, context, vocabulary = (int(values[name]) for name in _SIZES)
    inner = int(values.get("inner") or 0) or 4 * width
    return Model(
        layers=layers, width=width, heads=heads, inner=inner, vocabulary=vocabulary,
        context=context,
    ), ""  # fmt: skip


def with_node(smoke: Smoke) -> Smoke:
    """Return a smoke without its own environment, for the container that holds all launches."""
    return replace(smoke, env={})
