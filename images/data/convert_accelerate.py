"""Read a checkpoint that accelerate saved of a model of transformers: DDP or DeepSpeed's ZeRO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed_files
import torch
from convert import Model
from source import Refused


def read(checkpoint: Path, name: str, settings: Mapping[str, Any]) -> Model:
    """Read an update's folder; the model's configuration is given, or beside it in `model`.

    Raises:
        Refused: there is no configuration, or no checkpoint.
    """
    given = Path(settings["config"]) if settings["config"] else None
    config = given or checkpoint.parent / "model" / "config.json"
    if not config.is_file():
        raise Refused(
            f"{name} does not hold the model's configuration",
            why="accelerate saves weights without it",
            hint="--config config.json, as model.config.save_pretrained(FOLDER) writes it",
        )
    about = json.loads(config.read_text(encoding="utf-8"))
    whole = checkpoint / "model.safetensors"
    if whole.is_file():
        from safetensors.torch import load_file

        weights = load_file(str(whole))
    elif (checkpoint / "pytorch_model").is_dir():
        weights = deepspeed_files.module(checkpoint / "pytorch_model", name)
    else:
        raise Refused(
            f"{name} holds no checkpoint of accelerate",
            why="neither model.safetensors nor DeepSpeed's pytorch_model",
            hint="--checkpoint names one update's folder: SAVE/update-1000",
        )
    weights = _once(weights)
    words = [
        key
        for key in weights
        if key.endswith(("wte.weight", "embed_tokens.weight", "shared.weight"))
    ]
    return Model(about, weights, tuple(words[:1]))


def _once(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each tensor under its first name; transformers ties the others to it again.

    ZeRO-3's weights hold an mT5's embedding three times, of 250,112 rows each.
    """
    seen: set[tuple[int, torch.Size]] = set()
    found = {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in seen or not tensor.numel():
            found[name] = tensor
        seen.add(place)
    return found
