"""Translate the Kubernetes objects of a run into Stackyard's states.

Owns the table of conditions. It must not query the cluster: `kubernetes_client` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Conditions of a JobSet or Job as states of a run; the first one that is true decides.
_CONDITIONS = {
    "Failed": "failed",
    "FailureTarget": "failed",
    "Completed": "succeeded",
    "Complete": "succeeded",
    "Suspended": "queued",
}


@dataclass(frozen=True, kw_only=True)
class PodState:
    """Describe one pod of a run.

    Attributes:
        name: the pod's host name: its name without the random letters at its end.
        machine: the node that it was scheduled to; empty before.
        state: Kubernetes' phase, such as Pending or Running.
        why: the reason why it waits or has failed; may be empty.
    """

    name: str
    machine: str
    state: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Hold the state of a run.

    Attributes:
        state: `queued`, `starting`, `running`, `succeeded`, `failed` or `gone`.
        why: the cluster's message about it.
    """

    run: str
    state: str
    why: str
    pods: tuple[PodState, ...]


def read_run(run: str, found: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> RunState:
    """Return the state of a run.

    Args:
        found: its JobSet or Job; empty when there is none.
        pods: its pods.
    """
    if not found:
        return RunState(run=run, state="gone", why="", pods=())
    read = tuple(sorted(map(_pod, pods), key=_by_index))
    state, why = _condition(found)
    if not state:
        ran = any(pod.state in ("Running", "Succeeded") for pod in read)
        state = "running" if ran else "starting"
    return RunState(run=run, state=state, why=why, pods=read)


def _condition(found: Mapping[str, Any]) -> tuple[str, str]:
    conditions = found.get("status", {}).get("conditions", [])
    true = {c["type"]: c.get("message", "") for c in conditions if c.get("status") == "True"}
    word = next((word for word in _CONDITIONS if word in true), "")
    return (_CONDITIONS[word], true[word]) if word else ("", "")


def _pod(found: Mapping[str, Any]) -> PodState:
    status = found.get("status", {})
    return PodState(
        name=found["metadata"]["name"].rpartition("-")[0],
        machine=found.get("spec", {}).get("nodeName", ""),
        state=status.get("phase", ""),
        why=_why(status),
    )


def _why(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting:
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
        if ended and ended.get("exitCode"):
            return f"{ended.get('reason', 'Error')}, exit code {ended['exitCode']}"
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message", ""))
    return str(status.get("message", ""))


def _by_index(pod: PodState) -> tuple[int, str]:
    index = pod.name.rpartition("-")[2]
    return (int(index) if index.isdigit() else 0, pod.name)
