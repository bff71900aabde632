"""Choose the figure of a check that tables and pages show first.

Pure: it reads a check as it stands in a report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Figures = dict[str, Callable[[Mapping[str, Any]], str]]


def figure(check: Mapping[str, Any]) -> str:
    """Return a check's most important figure; empty if nothing was measured."""
    measured = check["measured"]
    if measured and check["name"] == "parity":  # the others' figures are of one bound
        return _parity_figure(measured, check["expected"])
    read = (SMOKE | BENCH | TEMPLATE).get(check["name"])
    return read(measured) if measured and read else ""


def _mesh_figure(measured: Mapping[str, Any]) -> str:
    logins = len(measured["logins"])
    return f"{logins} login{'s' * (logins != 1)}, {len(measured['refused'])} refused"


def _loss_figure(measured: Mapping[str, Any]) -> str:
    """Name the losses of the first layout that ended with the judged updates: the reference.

    A layout that is killed and resumed goes on past them until it is killed.
    """
    judged = min(measured.values(), key=lambda layout: layout["updates"])
    return _fall([judged["first"], judged["last"]])


def _fall(found: Sequence[float | str]) -> str:
    """Name the first and the last of some losses; empty where one is no number."""
    numbers = [number for number in found if isinstance(number, float)]
    if not numbers or len(numbers) < len(found):
        return ""
    return f"{numbers[0]:.2f} to {numbers[-1]:.2f}"


def _transport_figure(measured: Mapping[str, Any]) -> str:
    found = {via for entry in measured.values() for p in entry["transports"].values() for via in p}
    return ", ".join(sorted(found))


def _parity_figure(measured: Mapping[str, Any], own: Collection[str] = ()) -> str:
    """Name the largest difference, and each of layouts with a bound of their own."""
    gaps = {name: layout["largest_difference"] for name, layout in measured.items()}
    numbers = {name: gap for name, gap in gaps.items() if isinstance(gap, float)}
    rest = [gap for name, gap in gaps.items() if name not in own]
    named = [f"{name} by {gap:.1g}" for name, gap in numbers.items() if name in own]
    if not rest:
        return f"differs: {', '.join(named)}" if named else ""
    return ", ".join([_largest(rest), *named]) if _largest(rest) else ""


def _largest(gaps: Sequence[float | str]) -> str:
    numbers = [gap for gap in gaps if isinstance(gap, float)]
    return f"differs by {max(numbers):.1g}" if len(numbers) == len(gaps) else ""


def _pause_figure(measured: Mapping[str, Any]) -> str:
    longest = max((one["seconds"] for one in measured.values()), default=0.0)
    return f"longest pause {longest:.2g} s"


def _fused_figure(measured: Mapping[str, Any]) -> str:
    """Name the parts that ran anywhere."""
    ranks = [parts for training in measured.values() for parts in training.values()]
    ran = {name for parts in ranks for name, state in parts.items() if state == "ran"}
    return f"{', '.join(sorted(ran)) or 'nothing'} ran"


SMOKE: Figures = {
    "mesh": _mesh_figure,
    "world_size": lambda measured: f"{len(measured)} trainings",
    "loss_falls": _loss_figure,
    "ranks_agree": lambda measured: f"{sum(m['compared'] for m in measured.values())} hashes",
    "parity": _parity_figure,
    "resume_equal": lambda measured: _largest([measured["largest_difference"]]),
    "no_strays": lambda measured: f"{measured['processes_left']} left",
    "transport": _transport_figure,
    "bandwidth": lambda measured: f"{measured['busbw_gb_s'].get('1 GiB', 0):.1f} GB/s",
    "throughput": lambda measured: f"{measured['gpt2_small_tokens_s']:,.0f} tokens/s",
    "memory": lambda measured: f"{max(measured['left_bytes'].values(), default=0)} bytes left",
    "fused": _fused_figure,
}
BENCH: Figures = {
    "trained": lambda measured: f"{measured['trainings']} trainings",
    "own_device": lambda measured: f"{len(measured)} trainings",
    "same_loss": lambda measured: _largest(
        [one["end"] for one in measured.values() if "end" in one]
    ),
    "steady": _pause_figure,
    "freed": lambda measured: f"{max(measured['left_bytes'].values(), default=0)} bytes left",
}
TEMPLATE: Figures = {
    "launched": lambda measured: f"{len(measured)} launches",
    "loss": lambda measured: _fall([measured["first"], measured["last"]]),
    "validated": lambda measured: _fall([loss for _, loss in measured["losses"]]),
    "resumed": lambda measured: _largest([measured["largest_difference"]]),
    "kept": lambda measured: f"{len(measured['updates'])} checkpoints",
}
