"""Make the request by which the supervisor of a standing mesh runs a job.

Owns the steps of a job: files for every node, the commands that prepare it, its launcher's command,
all as the launchers of `launch` write them. Pure: the mesh and a free port are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stackyard.launch import CHOICES, Launch, LaunchRequest, accelerate, launched, wrong_options
from stackyard.launch.accelerate_config import Ranks, conflicts, replaced
from stackyard.launch.job import Job
from stackyard.mesh import settings
from stackyard.mesh.node import GRACE_SECONDS, SCRATCH, nccl_environment, rank_environment
from stackyard.mesh.node_plan import NodePlan, StandingPlan, visible
from stackyard.mesh.settings import Variables
from stackyard.system.errors import UsageError, shown


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Hold the nodes that take part, and the slots of each (GPUs, or CPU ranks by number)."""

    slots: Mapping[str, tuple[int, ...]]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes' names, in order."""
        return tuple(self.slots)

    @property
    def even(self) -> bool:
        """Return whether all nodes have the same number of slots."""
        return len({len(slots) for slots in self.slots.values()}) == 1


def select(plan: StandingPlan, per_node: int, include: str = "", exclude: str = "") -> Selection:
    """Select the nodes and slots of a run.

    Args:
        per_node: CPU ranks on each node; nodes with GPUs have a slot for each GPU.
        include: `node1:0,1@node2:0`, as DeepSpeed's `-i`; a node without numbers means all slots.
        exclude: the same, as DeepSpeed's `-e`.

    Raises:
        UsageError: a node or slot does not exist, both are given, or nothing is left.
    """
    if per_node < 1:
        raise UsageError(f"--per-node must be at least 1, not {per_node}")
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
    return Selection(slots=slots)


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
        found[node] = tuple(sorted({*found.get(node, ()), *(int(word) for word in words)}))
    return found


def request_of(
    plan: StandingPlan, job: Job, selection: Selection, port: int, own: Variables | None = None
) -> LaunchRequest:
    """Return the request for the job's launcher.

    Args:
        own: the user's variables by node (`mesh.settings`).

    Raises:
        UsageError: this launcher cannot start these ranks, or has no such option.
    """
    require_startable(job, selection)
    if not selection.even and job.launcher != "deepspeed":
        counts = ", ".join(f"{node} {len(s)}" for node, s in selection.slots.items())
        raise UsageError(
            f"{job.launcher} starts as many ranks on every node, not {counts}",
            hint="choose as many slots of each node, or --launcher deepspeed",
        )
    takes = taken(plan, selection) if job.device == "cuda" else {}
    named = {name for variables in (own or {}).values() for name in variables}
    away = len(selection.nodes) == 1 and selection.nodes[0] != plan.nodes[0].name
    alone = len(selection.nodes) == 1 and not away
    ports = {node.port for node in plan.nodes}
    whole = all(len(s) == len(plan.node(n).gpus) for n, s in selection.slots.items())
    # What ranks print is theirs: where the user asks NCCL to speak, it is not moved to a file.
    quiet = not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & {*named, *job.env}
    on_gpus = job.device == "cuda"
    nccl = nccl_environment(plan.run, job.name, logs=quiet) if on_gpus else {}
    generated = {**nccl, **job.env, **environment(job, {} if whole else takes)}
    # A node alone is started with its variables; several read them from a file of their own, which
    # DeepSpeed's nodes find by a program on PYTHONPATH.
    kept = {"PYTHONPATH"} if _exported(job) else set()
    env = {name: value for name, value in generated.items() if name not in named - kept}
    env |= (own or {}).get(selection.nodes[0], {}) if alone else {}
    return LaunchRequest(
        nodes=selection.nodes,
        per_node=max(len(slots) for slots in selection.slots.values()),
        gpus=tuple(takes.values()),
        device=job.device,
        port=port,
        program=job.program,
        env=env,
        folder=job.folder,
        scratch=f"{SCRATCH}/{job.name}",
        ssh_port=ports.pop() if len(ports) == 1 else 0,
        options={**job.options, "meeting": meeting_file(job)},
        # On GPUs `gpus` holds the choice, by the numbers in the container; slots count in a node.
        include="" if takes or selection.even else counted(selection),
        settings=settings.path_of(job) if named and not alone else "",
        config=job.config,
        away=away,
    )


def config_ranks(job: Job, selection: Selection) -> Ranks:
    """Return what an accelerate configuration is held against."""
    count = max(len(slots) for slots in selection.slots.values())
    return Ranks(nodes=selection.nodes, per_node=count, device=job.device)


def replaced_lines(job: Job, selection: Selection) -> list[str]:
    """Return a sentence on the lines of the user's configuration that the run replaces."""
    return replaced(job.config, config_ranks(job, selection)) if job.config else []


def require_startable(job: Job, selection: Selection) -> None:
    """Require that the job's launcher can start it, and that its configuration fits the ranks.

    Raises:
        UsageError: they do not; names every contradiction.
    """
    _check_launcher(job, selection)
    if job.config is None:
        return
    name = job.config.name
    if job.launcher != "accelerate":
        what = f"{name} is for the launcher accelerate, not for {job.launcher}"
        raise UsageError(what, hint="--launcher accelerate")
    twice = [option for option in ("zero_stage", "start") if option in job.options]
    if twice:
        what = f"{name} decides what {' and '.join(twice)} would, too"
        raise UsageError(what, hint="leave --accelerate-config or that option out")
    found = conflicts(job.config, config_ranks(job, selection))
    if found:
        raise UsageError(f"{name} contradicts this run", why="\n".join(found))


def _check_launcher(job: Job, selection: Selection) -> None:
    known = CHOICES.get(job.launcher, {})
    wrong = wrong_options(job.launcher, {n: v for n, v in job.options.items() if n in known})
    ranks = sum(len(slots) for slots in selection.slots.values())
    if wrong:
        raise UsageError(f"{job.launcher}: {'; '.join(wrong)}")
    if job.launcher == "alone" and ranks != 1:
        raise UsageError(
            f"launcher alone starts one process, not {ranks} ranks",
            hint=f"--include {selection.nodes[0]}:0, or another --launcher",
        )


def counted(selection: Selection) -> str:
    """Return CPU ranks in DeepSpeed's syntax; their slots count from 0 on every node."""
    counts = {node: range(len(slots)) for node, slots in selection.slots.items()}
    return "@".join(f"{node}:{','.join(map(str, slots))}" for node, slots in counts.items())


def taken(plan: StandingPlan, selection: Selection) -> dict[str, tuple[int, ...]]:
    """Return the GPUs that each node's ranks compute on, as its container numbers them."""
    numbers = {name: visible(plan, plan.node(name)) for name in selection.nodes}
    return {name: tuple(numbers[name][slot] for slot in slots)
            for name, slots in selection.slots.items()}  # fmt: skip


def meeting_file(job: Job) -> str:
    """Return the path of the rendezvous file: from the job's options, or in the shared folder."""
    return job.options.get("meeting") or f"/shared/stackyard-{job.name}.meeting"


def environment(job: Job, takes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the environment of ranks: the folder of their logs, PYTHONPATH, and their GPUs.

    Args:
        takes: the GPUs of each node; empty where ranks use all of them.

    Raises:
        UsageError: the GPUs differ between nodes, and the launcher gives all nodes the same.
    """
    site = settings.python_path(job.env.get("PYTHONPATH", ""))
    found = {**rank_environment(job.name), "PYTHONPATH": site}
    if not takes or _tells_each_node(job, len(takes)):
        return found
    if len({*takes.values()}) > 1:
        raise UsageError(
            f"{job.launcher} gives every node the same GPUs, not "
            + "@".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in takes.items()),
            hint="choose the same slots of each node, or --launcher deepspeed",
        )
    found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, next(iter(takes.values()))))
    return found


def _tells_each_node(job: Job, nodes: int) -> bool:
    """Return whether DeepSpeed starts the ranks, and so sets CUDA_VISIBLE_DEVICES on each node."""
    if job.launcher == "accelerate":
        return nodes > 1 and accelerate.by_pdsh(job.config, job.options)
    return job.launcher == "deepspeed"


def _exported(job: Job) -> bool:
    """Return whether DeepSpeed passes the environment on to the nodes, on a command line."""
    return _tells_each_node(job, 2) and job.options.get("ssh") != "no"


def start_request(
    plan: StandingPlan,
    job: Job,
    selection: Selection,
    port: int,
    lease: float,
    own: Variables | None = None,
) -> tuple[dict[str, Any], Launch]:
    """Return the supervisor's request for a job, and the launch (with files for the nodes).

    Args:
        own: the user's variables by node; several nodes also need `settings.files`.

    Raises:
        UsageError: the launcher cannot start such a job.
    """
    request = request_of(plan, job, selection, port, own)
    launch = launched(job.launcher, request)
    steps = [
        launched("each", _quiet(request, words)).step(f"prepare: {' '.join(words)[:60]}")
        for words in job.prepare
    ]
    steps.append(launch.step("train"))
    return {
        "name": job.name,
        "steps": steps,
        "env": dict(job.env),
        "folder": job.folder,
        "lease": lease,
        "grace_seconds": GRACE_SECONDS,
        "restarts": int(job.options.get("restarts") or 0),
        "nodes": list(selection.nodes),
        "shown": {
            "stack": job.stack, "base": job.base, "launcher": job.launcher,
            "ranks": sum(len(slots) for slots in selection.slots.values()),
            "program": list(job.program),
            **({"updates": job.updates} if job.updates else {}),
            **({"own_code": list(job.own)} if job.own else {}),
        },
    }, launch  # fmt: skip


def _quiet(request: LaunchRequest, words: Sequence[str]) -> LaunchRequest:
    """Return the request for a command that prepares a job: its output is not a rank's."""
    env = {k: v for k, v in request.env.items() if k != "STACKYARD_LOGS"}
    return replace(request, program=tuple(words), env=env)
