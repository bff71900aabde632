"""Say which launches a smoke has: their order, their nodes, and the words of their programs.

Owns the placeholders of a smoke's commands. It must not start anything: `validate.training` does in
a mesh, and Slurm by its own commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stackyard.definitions.spec import Smoke
from stackyard.validate.training_log import TrainingPlan

TEXT = "/usr/local/share/stackyard/text"


def fill(words: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """Put values into the placeholders of a command line."""
    return tuple(word.format(**values) for word in words)


def spread(ranks: int, nodes: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the nodes that a layout's ranks are spread over, and the most ranks on each.

    Uses as many nodes as possible; a layout with fewer ranks than nodes leaves the last ones idle.
    """
    used = tuple(nodes[:ranks])
    return used, -(-ranks // len(used))


def launches(smoke: Smoke, names: Sequence[str], shared: str) -> tuple[TrainingPlan, ...]:
    """Return the launches of a smoke in order: its layouts, and the one that is resumed.

    The layout that is resumed goes on past its last judged update, until it is killed: up to that
    update it is the uninterrupted training, too.

    Args:
        names: of all nodes.
        shared: the folder that they share.
    """

    def one(name: str, label: str, kill_after: int | None = None) -> TrainingPlan:
        layout = smoke.layout(name)
        used, per_node = spread(layout.ranks, names)
        return TrainingPlan(
            layout=layout, label=label, save=f"{shared}/checkpoints/{name}", nodes=used,
            per_node=per_node, kill_after=kill_after, shared=shared,
        )  # fmt: skip

    found = [
        one(layout.name, layout.name, smoke.updates if layout.name == smoke.resume else None)
        for layout in smoke.layouts
    ]
    return (*found, one(smoke.resume, f"{smoke.resume}-resumed"))


def data_in(shared: str) -> str:
    """Return the folder of the data, in the folder that the nodes of a run share."""
    return f"{shared}/data"


def placeholders(smoke: Smoke, plan: TrainingPlan) -> dict[str, object]:
    """Return the values of a launch's placeholders."""
    return {
        "text": TEXT,
        "data": data_in(plan.shared),
        "save": plan.save,
        "record": plan.record or plan.folder,
        "updates": smoke.updates if plan.kill_after is None else smoke.horizon,
        "horizon": smoke.horizon,
        "save_at": smoke.save_at,
        "ranks": plan.layout.ranks,
        **gpus_of(smoke),
    }


def gpus_of(smoke: Smoke) -> dict[str, object]:
    """Return the placeholders for the ranks of the largest layout."""
    most = max(layout.ranks for layout in smoke.layouts)
    return {"gpus": most, "gpus/2": most // 2}


def program_words(smoke: Smoke, plan: TrainingPlan) -> tuple[str, ...]:
    """Return the program of a launch with its arguments, as every rank runs it."""
    return fill((*smoke.program, *smoke.args, *plan.layout.args), placeholders(smoke, plan))


def prepare_words(smoke: Smoke, shared: str) -> tuple[str, ...]:
    """Return the command that makes the data, in the folder that the nodes of a run share."""
    values = {"text": TEXT, "data": data_in(shared), "updates": smoke.updates,
              "horizon": smoke.horizon}  # fmt: skip
    return fill(smoke.prepare, {**values, "save": "", "record": "", "save_at": "", "ranks": 2,
                                 **gpus_of(smoke)})  # fmt: skip
