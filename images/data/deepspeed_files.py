"""Read the files of DeepSpeed's checkpoints: the newest one, its client state, whole modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from source import Refused

_MODULE = "mp_rank_00_model_states.pt"


def newest(folder: Path, name: str) -> Path:
    """Return the folder of one update: the folder itself, or the newest that it names.

    Raises:
        Refused: there is none.
    """
    latest = folder / "latest"
    if latest.is_file():
        folder = folder / latest.read_text(encoding="utf-8").strip()
    if not folder.is_dir() or not any(folder.glob("*model_states.pt")):
        raise Refused(
            f"{name} holds no checkpoint of DeepSpeed",
            why=f"no *model_states.pt in {folder.name}",
            hint="--checkpoint names the folder that the training saved to",
        )
    return folder


def load(path: Path) -> dict[str, Any]:
    """Load one file.

    Raises:
        Refused: it cannot be read.
    """
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # pickle and zip raise all kinds
        why = f"{type(error).__name__}: {error}"
        raise Refused(f"{path.name} cannot be read", why=why) from error
    return found


def client_state(folder: Path) -> Mapping[str, Any]:
    """Return what the training itself put into its checkpoint, among DeepSpeed's own."""
    files = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    return load(files[0]) if files else {}


def module(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the whole weights of a model that is not cut by tensor or pipeline parallelism.

    ZeRO-1 and ZeRO-2 save them whole; those of ZeRO-3 are put together from the shards of the
    optimizer, in fp32.

    Raises:
        Refused: the ranks' files are not all here.
    """
    if list(folder.glob("mp_rank_0[1-9]_model_states.pt")):
        raise Refused(f"{name} is cut by tensor parallelism, of a model that is not known")
    whole = folder / _MODULE
    if whole.is_file():
        found = load(whole)
        if found.get("ds_version") and found.get("module"):
            weights: dict[str, torch.Tensor] = found["module"]
            return weights
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        weights = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), tag=folder.name)
    except Exception as error:  # DeepSpeed raises all kinds
        raise Refused(
            f"the shards of {name} cannot be put together",
            why=f"{type(error).__name__}: {error}",
            hint="gather the files of all hosts in one folder",
        ) from error
    return weights
