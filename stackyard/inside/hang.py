"""Name who waits in which collective, and who never came.

Owns that conclusion, from what ranks answered (`stacks.py`). Pure: answers in, sentences out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_C10D = "torch/distributed/distributed_c10d.py"
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_PACKAGES = ("/site-packages/torch/", "/dist-packages/torch/")
# So many ranks are named; a sentence with hundreds is read by nobody.
NAMED = 8


@dataclass(frozen=True)
class At:
    """Hold where one rank is.

    Attributes:
        collective: that it waits in; empty where it waits in none that its stack shows.
        place: the line of the program, innermost first.
        number: of the collective, where the flight recorder has it.
    """

    collective: str
    place: str
    stopped: bool = False
    number: int | None = None


def at(answer: Mapping[str, object]) -> At:
    """Return where a rank is, from its answer."""
    frames = [(str(f), int(str(n)), str(name)) for f, n, name in _list(answer.get("stack"))]
    flight = _list(answer.get("open"))
    collective, number = _collective(frames), None
    if flight:
        first = dict(flight[0])
        collective = str(first["name"]).removeprefix("nccl:") or collective
        number = int(str(first["number"]))
    return At(collective, _place(frames), bool(answer.get("stopped")), number)


def _list(value: object) -> Sequence:  # type: ignore[type-arg]
    return value if isinstance(value, list) else []


def _collective(frames: Sequence[tuple[str, int, str]]) -> str:
    names = [name for file, _, name in frames if file.endswith(_C10D) and name[0] != "_"]
    if names:
        return names[-1]  # the function that the program called
    if any(file.endswith(_BACKWARD[0]) and name == _BACKWARD[1] for file, _, name in frames):
        return "backward"
    return ""


def _place(frames: Sequence[tuple[str, int, str]]) -> str:
    """Return the innermost line that is the program's own, not torch's or Python's."""
    for file, line, name in frames:
        library = "/lib/python3" in file and "-packages/" not in file
        if not library and not file.startswith("<frozen") and not _of_torch(file):
            return f"{name} ({file.rpartition('/')[2]}:{line})"
    if frames:
        file, line, name = frames[0]
        return f"{name} ({file.rpartition('/')[2]}:{line})"
    return ""


def _of_torch(file: str) -> bool:
    return any(part in file for part in _PACKAGES)


def explain(
    answers: Mapping[int, Mapping[str, object]], nodes: Mapping[int, str]
) -> tuple[str, list[str], list[int]]:
    """Return one sentence for the whole job, one for each rank, and who keeps others waiting.

    A rank keeps others waiting if it is stopped, or known to be in no collective while another
    rank is in one.

    Args:
        answers: of ranks that live, by number.
        nodes: the node of every rank that was started, by number.
    """
    places = {rank: at(answer) for rank, answer in sorted(answers.items())}
    lines = [f"{_name(rank, nodes)} {_said(one)}" for rank, one in places.items()]
    ras = [line for answer in answers.values() for line in _ras_lines(str(answer.get("ras", "")))]
    what = _conclusion(places, nodes)
    silent = [rank for rank in sorted(nodes) if rank not in places]
    if silent:
        what = f"{what}; {_names(silent, nodes)} did not answer"
    return "; ".join([what, *ras[:3]]), lines, _late(places)


def _late(places: Mapping[int, At]) -> list[int]:
    stopped = [rank for rank, one in places.items() if one.stopped]
    waiting = any(one.collective for one in places.values())
    away = [rank for rank, one in places.items() if one.place and not one.collective]
    return stopped or (away if waiting else [])


def _said(one: At) -> str:
    if one.stopped:
        return "is stopped"
    number = f" #{one.number}" if one.number is not None else ""
    doing = f"waits in {one.collective}{number}" if one.collective else "waits in no collective"
    return f"{doing}, at {one.place}" if one.place else f"{doing}; its stack is not known"


def _conclusion(places: Mapping[int, At], nodes: Mapping[int, str]) -> str:
    stopped = [rank for rank, one in places.items() if one.stopped]
    if stopped:
        return f"{_names(stopped, nodes)} {_is(stopped)} stopped"
    waiting: dict[tuple[str, int | None], list[int]] = {}
    for rank, one in places.items():
        if one.collective:
            waiting.setdefault((one.collective, one.number), []).append(rank)
    others = [rank for rank, one in places.items() if not one.collective]
    if not waiting:
        shown = "; ".join(f"{_name(rank, nodes)} is at {places[rank].place or 'no known line'}"
                          for rank in others[:4])  # fmt: skip
        if shown or not nodes:
            return f"no rank waits in a collective: {shown}" if shown else "the launcher waits"
        return "no rank answers"
    if others:
        (collective, _), ranks = max(waiting.items(), key=lambda item: len(item[1]))
        where = f" (at {places[others[0]].place})" if places[others[0]].place else ""
        return (
            f"{_names(others, nodes)}{where} never came to {collective}, where"
            f" {_names(ranks, nodes)} {'wait' if len(ranks) > 1 else 'waits'}"
        )
    if len(waiting) == 1:
        ((collective, _),) = waiting
        ranks = next(iter(waiting.values()))
        if len(ranks) == 1:
            return f"{_names(ranks, nodes)} waits in {collective}, and nobody else is there"
        return f"all ranks wait in {collective}: what they send does not arrive"
    return "ranks wait in different collectives: " + "; ".join(
        f"{_names(ranks, nodes)} in {collective}{f' #{number}' if number is not None else ''}"
        for (collective, number), ranks in waiting.items()
    )


def _name(rank: int, nodes: Mapping[int, str]) -> str:
    return f"rank {rank} ({nodes.get(rank, '?')})"


def _names(ranks: Sequence[int], nodes: Mapping[int, str]) -> str:
    shown = ", ".join(_name(rank, nodes) for rank in ranks[:NAMED])
    return f"{shown} and {len(ranks) - NAMED} more" if len(ranks) > NAMED else shown


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _ras_lines(text: str) -> list[str]:
    """Return what NCCL's RAS says of ranks that differ, as it says it."""
    wanted = ("operation count", "has launched up to", "have launched up to", "MISMATCH")
    return [" ".join(line.split())[:300] for line in text.splitlines()
            if any(word in line for word in wanted)]  # fmt: skip
