"""Make the job of `invoke run` on hosts, with the user's own settings beside those of hosts.yml.

Owns which of the caller's variables go along, and reading a configuration. What they may say is
decided by `mesh.settings` and `launch.accelerate_config`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stackyard.cli.options.runs import JobRequest, RunRequest
from stackyard.definitions import job_source
from stackyard.definitions.examples import Example, Where
from stackyard.definitions.job_source import Work
from stackyard.definitions.project import ROOT, load_project
from stackyard.gpu import gpus
from stackyard.launch import accelerate_config
from stackyard.launch.accelerate_config import AccelerateConfig
from stackyard.launch.job import Job
from stackyard.mesh import settings
from stackyard.mesh.jobs import Selection, require_startable, select
from stackyard.mesh.node import JOBS, rank_folder
from stackyard.mesh.node_plan import StandingPlan
from stackyard.system.errors import UsageError, shown


@dataclass(frozen=True, kw_only=True)
class Own:
    """Hold the user's own settings of a run, beside those of hosts.yml.

    Attributes:
        settings: variables by name: typed ones, and NCCL's of the caller.
        caller: names of the variables taken from the caller's environment.
    """

    settings: Mapping[str, str]
    caller: tuple[str, ...] = ()
    config: AccelerateConfig | None = None


def caller_variables(caller: Mapping[str, str]) -> dict[str, str]:
    """Return NCCL's variables of the command's environment, which go to every node.

    Raises:
        UsageError: one cannot be set there.
    """
    found = gpus.caller_settings(caller)
    wrong = [name for name, value in found.items() if settings.why_not(name, value)]
    if wrong:
        what = f"{', '.join(wrong)} of your environment cannot go to the nodes"
        raise UsageError(what, why=settings.why_not(wrong[0], found[wrong[0]]), hint="unset it")
    return found


def own_of(arguments: RunRequest, caller: Mapping[str, str]) -> Own:
    """Return the user's settings, out of what was typed and the environment of the command.

    Raises:
        UsageError: a variable cannot be set, or the configuration cannot be read or used.
    """
    found = caller_variables(caller)
    path = arguments.accelerate_config
    text = ""
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{shown(path)} cannot be read", why=str(error)) from error
    return Own(
        settings={**found, **settings.parse(arguments.env)},
        caller=tuple(sorted(found)),
        config=accelerate_config.parse(text, path) if path else None,
    )


def work_of(asked: JobRequest) -> Work:
    """Return the work that a job is made of."""
    return Work(
        example=asked.example, words=asked.words, launcher=asked.launcher, settings=asked.set,
        save=asked.save, folder=asked.folder,
    )  # fmt: skip


def make_job(
    plan: StandingPlan, example: Example | None, wanted: RunRequest, nodes: int, per_node: int
) -> Job:
    """Make a mesh's job from an example or from the user's own command.

    Raises:
        UsageError: the example does not fit.
    """
    name = f"{example.name if example else 'run'}-{time.strftime('%H%M%S')}-{secrets.token_hex(2)}"
    folder = f"{JOBS}/{name}"
    where = Where(
        name=name,
        base=plan.base,
        image=plan.image,
        nodes=nodes,
        per_node=per_node,
        device="cuda" if any(node.gpus for node in plan.nodes) else "cpu",
        folder=folder,
        save=wanted.save or f"{folder}/checkpoints",
        record=rank_folder(name),
    )
    usual = ""
    if example is None and not wanted.launcher:
        usual = load_project().definitions.stacks[plan.stack].smoke.launcher
    return job_source.make_job(
        work_of(wanted), example, where, root=ROOT, stack=plan.stack, usual=usual
    )


def chosen(
    plan: StandingPlan,
    example: Example | None,
    wanted: RunRequest,
    lost: Collection[str],
    own: Own,
) -> tuple[Job, Selection]:
    """Return the job and its nodes and slots in a mesh that is up or about to start.

    Raises:
        UsageError: the job does not fit them.
    """
    gone = [] if wanted.include else [name for name in plan.names if name in lost]
    # A lost node is in the plan of a standing mesh alone.
    away = {*lost} - {*plan.names}
    excluded = [one for one in wanted.exclude.split("@") if one.partition(":")[0] not in away]
    left_out = "@".join(filter(None, [*excluded, *gone]))
    selection = select(plan, wanted.per_node, wanted.include, left_out)
    per_node = max(len(slots) for slots in selection.slots.values())
    job = make_job(plan, example, wanted, len(selection.nodes), per_node)
    job = replace(job, settings=own.settings, config=own.config)
    require_startable(job, selection)
    return job, selection
