"""Run `invoke convert`, from its arguments to a folder that transformers loads.

Owns the meaning of the arguments, and the output. `data.conversion` converts.
"""

from __future__ import annotations

from pathlib import Path

from stackyard.build.builder import Builder
from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import ConvertRequest
from stackyard.data import conversion, dataset
from stackyard.data.encoding import require_free
from stackyard.definitions.document import nearest
from stackyard.definitions.project import load_project
from stackyard.mesh import nodes
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError


def convert(terminal: Terminal, typed: ConvertRequest) -> Answer:
    """Run `invoke convert STACK --checkpoint PATH --out FOLDER [...]`."""
    project = load_project()
    if typed.stack not in dataset.STACKS:
        what = f"there are no checkpoints of a stack {typed.stack!r} to convert"
        why = nearest(typed.stack, dataset.STACKS)
        raise UsageError(what, why=why, hint=f"one of {', '.join(dataset.STACKS)}")
    if not typed.checkpoint or not typed.out:
        missing = "--checkpoint" if not typed.checkpoint else "--out"
        raise UsageError(
            f"{missing} is missing",
            hint=f"invoke convert {typed.stack} --checkpoint SAVE --data FOLDER --out MODEL",
        )
    out = Path(typed.out).expanduser().absolute()
    require_free(out)
    folder, name = conversion.find_checkpoint(typed.checkpoint, typed.stack)
    request = conversion.Request(
        stack=typed.stack,
        folder=folder,
        name=name,
        typed=typed.checkpoint,
        data=_path(typed.data),
        heads=typed.heads,
        config=_path(typed.config),
    )
    conversion.require(request)
    chosen = decide(project, typed.stack, typed.base, gpus=0, cpu_ranks_anywhere=True)
    with Engine() as held:
        built = Builder(project, held, terminal.say).build(chosen.stack, chosen.base.name)
        nodes.sweep(held)
        about = conversion.convert(held, built.info.id, request, out)
    terminal.text(
        f"{about['class']}, {about['parameters']:,} values in fp32, {about['vocabulary']:,} tokens;"
        f" the model is in {out}"
    )
    if not about["tokenizer"]:
        terminal.note("it has no tokenizer: --data FOLDER brings that of `invoke data` along")
    return {"out": str(out), **about}, 0


def _path(typed: str) -> Path | None:
    return Path(typed).expanduser().resolve() if typed else None
