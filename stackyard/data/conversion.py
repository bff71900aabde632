"""Convert a checkpoint to a folder of transformers, which appears whole or not at all.

Owns the meaning of the arguments of `invoke convert`, and which folders its container sees.
`images/data/convert.py` converts; checkpoints are pickles, which run what they hold, and so are
opened only there.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackyard.data import container, dataset
from stackyard.data.encoding import put, require_free
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError

_CHECKPOINT, _DATA, _CONFIG = "/data/checkpoint", "/data/made", "/data/config.json"
_PROGRAM = container.Program(
    name="convert.py",
    what="converting the checkpoint",
    fewer="a conversion takes about three times the checkpoint's weights in fp32",
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Hold what one conversion is asked for.

    Attributes:
        folder: the folder that the container sees; `name` is the checkpoint's name in it, empty for
            the folder itself.
        typed: what the user typed, for messages.
        data: the folder of `invoke data` that the model was trained on, if its tokenizer is wanted.
        heads: attention heads, where the checkpoint does not say; 0 otherwise.
        config: the configuration of a model of transformers, if it is not beside the checkpoint.
    """

    stack: str
    folder: Path
    name: str
    typed: str
    data: Path | None = None
    heads: int = 0
    config: Path | None = None


def find_checkpoint(typed: str, stack: str) -> tuple[Path, str]:
    """Return the folder of a checkpoint and its name there; shards share a name.

    Raises:
        UsageError: there is nothing of that name.
    """
    path = Path(typed).expanduser().resolve()
    if path.is_dir() and stack != "accelerate":
        return path, ""
    if path.is_dir():  # the model's configuration is beside an update's folder
        return path.parent, path.name
    if path.is_file() or any(path.parent.glob(f"{path.stem}-shard*{path.suffix}")):
        return path.parent, path.name
    raise UsageError(
        f"--checkpoint {typed} does not exist",
        hint="the folder that a training saved to, or one file of fairseq's (checkpoint_last.pt)",
    )


def require(request: Request) -> None:
    """Refuse options that another stack has, and folders that are not there.

    Raises:
        UsageError: an option does not fit.
    """
    if request.heads and request.stack != "megatron":
        raise UsageError(f"--heads is for megatron; {request.stack}'s checkpoints say it")
    if request.config and request.stack != "accelerate":
        raise UsageError(f"--config is for accelerate; {request.stack}'s checkpoints say it")
    if request.config and not request.config.is_file():
        raise UsageError(f"--config {request.config}: there is no such file")
    if request.data and not request.data.is_dir():
        raise UsageError(
            f"--data {request.data}: there is no such folder", hint="the --out of `invoke data`"
        )
    for path in (request.folder, request.data, request.config):
        if path and ":" in str(path):
            raise UsageError(f"{path} has a colon, which the engine cannot pass to a container")


def convert(engine: Engine, image: str, request: Request, out: Path) -> dict[str, Any]:
    """Convert a checkpoint; the folder appears at `out` when all is written.

    Raises:
        DataError: the program refused the checkpoint.
        UsageError: `out` is taken.
        StackyardError: the container ended.
    """
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    binds = {_CHECKPOINT: str(request.folder)}
    if request.data:
        binds[_DATA] = str(request.data)
    if request.config:
        binds[_CONFIG] = str(request.config)
    given = {
        "stack": request.stack,
        "checkpoint": {"path": f"{_CHECKPOINT}/{request.name}", "name": request.typed},
        "data": _DATA if request.data else "",
        "data_name": str(request.data or ""),
        "heads": request.heads,
        "config": _CONFIG if request.config else "",
        "work": dataset.WORK,
    }
    try:
        done = container.run(
            engine, image, _PROGRAM, given, binds, work, lambda event, seconds: None
        )
        require_free(out)
        put(work / "ready", out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    about: dict[str, Any] = done["about"]
    return about
