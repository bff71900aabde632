"""A job in a standing mesh, as its supervisor is asked to run it.

Owns the steps of a job: files for every node, the commands that prepare it, its launcher's command,
all as the launchers of `stackyard.launch` write them. Pure: it is told the mesh and a free port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stackyard.errors import UsageError, shown
from stackyard.fleet.plan import NodePlan, StandingPlan
from stackyard.job import Job
from stackyard.launch import LAUNCHERS, Launch, LaunchRequest

JOBS = "/var/lib/stackyard/jobs"
SCRATCH = "/run/stackyard/launch"
SITE = "/srv/stackyard/site"
# What starts its own processes on other nodes only when it is told their slots one by one.
_UNEVEN = ("deepspeed",)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which nodes take part, and which slots of each (GPUs, or CPU ranks by number).

    Attributes:
        text: as the caller wrote it, for launchers that read it themselves.
    """

    slots: Mapping[str, tuple[int, ...]]
    text: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, in order."""
        return tuple(self.slots)

    @property
    def even(self) -> bool:
        """Whether every node has as many."""
        return len({len(slots) for slots in self.slots.values()}) == 1


def select(plan: StandingPlan, per_node: int, include: str = "", exclude: str = "") -> Selection:
    """The nodes and slots of a run, less what the caller leaves out.

    Args:
        per_node: CPU ranks on each node; nodes with GPUs have a slot for each.
        include: `node1:0,1@node2:0`, as DeepSpeed's `-i`; a node without numbers is whole.
        exclude: the same, as DeepSpeed's `-e`.

    Raises:
        UsageError: a node or slot does not exist, both are given, or nothing is left.
    """
    there = {node.name: _slots(node, per_node) for node in plan.nodes}
    if include and exclude:
        raise UsageError("--include and --exclude cannot be given together")
    text = include or exclude
    if not text:
        return Selection(slots=there)
    named = _parse(text, there, "--include" if include else "--exclude")
    if include:
        slots = named
    else:
        slots = {
            node: tuple(s for s in all_ if s not in named.get(node, ()))
            for node, all_ in there.items()
        }
    slots = {node: slots[node] for node in there if slots.get(node)}
    if not slots:
        raise UsageError(f"{'--include' if include else '--exclude'} {shown(text)} leaves nothing")
    return Selection(slots=slots, text="@".join(f"{n}:{','.join(map(str, s))}"
                                                for n, s in slots.items()))  # fmt: skip


def _slots(node: NodePlan, per_node: int) -> tuple[int, ...]:
    return tuple(range(len(node.gpus) or per_node))


def _parse(
    text: str, there: Mapping[str, tuple[int, ...]], flag: str
) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        node, colon, numbers = part.partition(":")
        if node not in there:
            raise UsageError(
                f"{flag}: there is no node {shown(node)!r}", hint=f"one of: {', '.join(there)}"
            )
        words = numbers.split(",") if colon else [str(slot) for slot in there[node]]
        for word in words:
            if not word.isdecimal() or int(word) not in there[node]:
                count = len(there[node])
                raise UsageError(
                    f"{flag}: {node} has no slot {shown(word)!r}",
                    why=f"it has {count} slot{'s' if count != 1 else ''}: 0 to {count - 1}",
                )
        found[node] = tuple(dict.fromkeys([*found.get(node, ()), *(int(w) for w in words)]))
    return found


def request_of(plan: StandingPlan, job: Job, selection: Selection, port: int) -> LaunchRequest:
    """What the launcher is asked for.

    Raises:
        UsageError: this launcher cannot start different numbers of ranks on nodes.
    """
    if not selection.even and job.launcher not in _UNEVEN:
        counts = ", ".join(f"{node} {len(s)}" for node, s in selection.slots.items())
        raise UsageError(
            f"{job.launcher} starts as many ranks on every node, not {counts}",
            hint="choose as many slots of each node, or --launcher deepspeed",
        )
    nodes = [plan.node(name) for name in selection.nodes]
    gpus = tuple(tuple(selection.slots[n.name]) for n in nodes) if job.device == "cuda" else ()
    ports = {node.port for node in plan.nodes}
    whole = all(len(s) == len(_slots(plan.node(n), job.per_node))
                for n, s in selection.slots.items())  # fmt: skip
    return LaunchRequest(
        nodes=selection.nodes,
        per_node=max(len(slots) for slots in selection.slots.values()),
        gpus=gpus,
        device=job.device,
        port=port,
        program=job.program,
        env={**job.env, **environment(plan, job, selection, whole=whole)},
        folder=job.folder,
        scratch=f"{SCRATCH}/{job.name}",
        ssh_port=ports.pop() if len(ports) == 1 else 0,
        options={**job.options, "meeting": meeting_file(job)},
        include="" if whole and len(selection.nodes) == len(plan.nodes) else selection.text,
    )


def meeting_file(job: Job) -> str:
    """Where ranks that meet by a file find it: the job's options say, or the shared folder."""
    return job.options.get("meeting") or f"/shared/stackyard-{job.name}.meeting"


def environment(
    plan: StandingPlan, job: Job, selection: Selection, *, whole: bool
) -> dict[str, str]:
    """What ranks need to know of us: where their words go, and which GPUs are theirs."""
    site = ":".join(part for part in (SITE, job.env.get("PYTHONPATH", "")) if part)
    found = {"STACKYARD_LOGS": f"{JOBS}/{job.name}/ranks", "PYTHONPATH": site}
    if job.device == "cuda" and not whole and len({*selection.slots.values()}) == 1:
        first = selection.nodes[0]
        chosen = [plan.node(first).gpus[slot] for slot in selection.slots[first]]
        if sum(n.host == plan.node(first).host for n in plan.nodes) == 1:
            # Containers of a host of their own see their GPUs numbered from 0.
            chosen = list(selection.slots[first])
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, chosen))
    return found


def start_request(
    plan: StandingPlan, job: Job, selection: Selection, port: int, lease: float
) -> tuple[dict[str, Any], Launch]:
    """The supervisor's request for a job, and the launch (its files may be for every node).

    Raises:
        UsageError: the launcher cannot start such a job.
    """
    request = request_of(plan, job, selection, port)
    launch = LAUNCHERS[job.launcher](request)
    steps = [
        _step(f"prepare: {' '.join(words)[:60]}", LAUNCHERS["each"](_quiet(request, words)))
        for words in job.prepare
    ]
    steps.append(_step("train", launch))
    value = {
        "name": job.name,
        "steps": steps,
        "env": dict(job.env),
        "folder": job.folder,
        "lease": lease,
        "nodes": list(selection.nodes),
        "shown": {
            "stack": job.stack, "base": job.base, "launcher": job.launcher,
            "ranks": sum(len(slots) for slots in selection.slots.values()),
            "program": list(job.program),
        },
    }  # fmt: skip
    return value, launch


def _quiet(request: LaunchRequest, words: Sequence[str]) -> LaunchRequest:
    """The same request for a command that is no training: it has no ranks to listen to."""
    env = {k: v for k, v in request.env.items() if k != "STACKYARD_LOGS"}
    return replace(request, program=tuple(words), env=env)


def _step(what: str, launch: Launch) -> dict[str, Any]:
    files = {} if launch.everywhere else dict(launch.files)
    return {"what": what, "argv": list(launch.argv), "env": dict(launch.env), "files": files}
