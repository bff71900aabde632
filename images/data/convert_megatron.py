"""Read a GPT of Megatron layers from DeepSpeed's files as transformers' GPT-2.

Owns the names and the cutting of Megatron's layers: which tensors of tensor-parallel ranks are
joined along which side, and how queries, keys and values lie in one tensor. GPT-2 computes the
same: learned positions, norms before each block, GELU by tanh or an exact one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deepspeed_files
import torch
from convert import Model
from source import Refused

_JOINED = {
    "linear_qkv.weight": 0, "linear_qkv.bias": 0, "linear_fc1.weight": 0, "linear_fc1.bias": 0,
    "linear_proj.weight": 1, "linear_fc2.weight": 1,
    "words.weight": 0, "projection.weight": 0,
}  # fmt: skip
"""Along which side the parts of tensor-parallel ranks are joined; all ranks hold the others whole."""
_OTHER_NAMES = {
    "word_embeddings.weight": "words.weight", "position_embeddings.weight": "places.weight",
    "places.table.weight": "places.weight", "table.weight": "places.weight",
}  # fmt: skip
_LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_LINEAR = {
    "self_attention.linear_proj": "attn.c_proj", "mlp.linear_fc1": "mlp.c_fc",
    "mlp.linear_fc2": "mlp.c_proj",
}  # fmt: skip
_NORMS = {"input_layernorm": "ln_1", "pre_mlp_layernorm": "ln_2"}


def read(checkpoint: Path, name: str, settings: Mapping[str, Any]) -> Model:
    """Read a checkpoint: one update's folder, or that of all, of which the newest is taken.

    Raises:
        Refused: parts are missing, or it is another model.
    """
    folder = deepspeed_files.newest(checkpoint, name)
    parts: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        if found := _LAYER_FILE.fullmatch(path.name):
            parts.setdefault(int(found[1]), {})[int(found[2])] = path
    weights = _pipeline(parts, name) if parts else _whole(folder, name)
    state = deepspeed_files.client_state(folder)
    heads = settings["heads"] or state.get("heads", 0)
    if not heads:
        raise Refused(
            f"{name} does not say how many attention heads the model has",
            why="its tensors have the same shapes for any number",
            hint="--heads N",
        )
    # Templates say theirs; models of your own that say nothing have an exact GELU.
    return _as_gpt2(weights, int(heads), str(state.get("activation", "gelu")), name)


def _pipeline(parts: Mapping[int, Mapping[int, Path]], name: str) -> dict[str, torch.Tensor]:
    """Join the files of a pipeline's layers, of all tensor-parallel ranks."""
    ranks = sorted(set().union(*parts.values()))
    lacking = [number for number, found in parts.items() if sorted(found) != ranks]
    if lacking or ranks != list(range(len(ranks))):
        raise Refused(
            f"{name} lacks files of layer {min(lacking, default=0)}",
            hint="gather the files of all hosts in one folder",
        )
    weights: dict[str, torch.Tensor] = {}
    layers = 0
    for number in sorted(parts):
        states = [deepspeed_files.load(parts[number][rank]) for rank in ranks]
        prefix = ""
        if any(key.startswith("layer.") for key in states[0]):
            prefix, layers = f"layers.{layers}.", layers + 1
        elif set(states[0]) == {"weight"}:
            prefix = "words."
        elif set(states[0]) == {"weight", "bias"}:
            prefix = "norm."
        for key in states[0]:
            whole = _OTHER_NAMES.get(prefix + key, prefix + key)
            if not key.endswith("_extra_state"):
                weights[whole] = _join(whole, [state[key] for state in states])
    return weights


def _join(name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    side = next((side for end, side in _JOINED.items() if name.endswith(end)), None)
    return parts[0] if side is None else torch.cat(list(parts), dim=side)


def _whole(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Read a model that is one module, as ZeRO-2 and ZeRO-3 need it."""
    found = deepspeed_files.module(folder, name)
    return {
        _OTHER_NAMES.get(key, key): tensor
        for key, tensor in found.items()
        if not key.endswith("_extra_state")
    }


def _as_gpt2(weights: dict[str, torch.Tensor], heads: int, activation: str, name: str) -> Model:
    try:
        words, places = weights.pop("words.weight"), weights.pop("places.weight")
        norm = weights.pop("norm.weight"), weights.pop("norm.bias")
    except KeyError as error:
        raise Refused(f"{name} has no {error}", why="it is no GPT of these templates") from error
    head = weights.pop("projection.weight", None)
    hidden = words.shape[1]
    if hidden % heads:
        raise Refused(f"--heads {heads} does not divide the hidden size {hidden}")
    found = {
        "transformer.wte.weight": words, "transformer.wpe.weight": places,
        "transformer.ln_f.weight": norm[0], "transformer.ln_f.bias": norm[1],
    }  # fmt: skip
    layers = 0
    for key, tensor in weights.items():
        number, _, own = key.removeprefix("layers.").partition(".layer.")
        kind = own.rpartition(".")[2]
        layer, module = f"transformer.h.{number}", own.removesuffix(f".{kind}")
        if not number.isdecimal() or kind not in ("weight", "bias"):
            raise Refused(f"{name} holds {key}", why="transformers' GPT-2 has nothing like it")
        layers = max(layers, int(number) + 1)
        if module == "self_attention.linear_qkv":
            found[f"{layer}.attn.c_attn.{kind}"] = _queries_first(tensor, heads, hidden, name)
        elif module in _LINEAR:  # GPT-2's lie the other way round
            found[f"{layer}.{_LINEAR[module]}.{kind}"] = tensor.T
        elif module in _NORMS:
            found[f"{layer}.{_NORMS[module]}.{kind}"] = tensor
        else:
            raise Refused(f"{name} holds {key}", why="transformers' GPT-2 has nothing like it")
    if head is not None:
        found["lm_head.weight"] = head
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": words.shape[0],
        "n_positions": places.shape[0],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": found["transformer.h.0.mlp.c_fc.bias"].shape[0],
        "activation_function": activation,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": head is None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    ends = ("transformer.wte.weight",) if head is None else (
        "transformer.wte.weight", "lm_head.weight")  # fmt: skip
    return Model(config, found, ends)


def _queries_first(tensor: torch.Tensor, heads: int, hidden: int, name: str) -> torch.Tensor:
    """Turn [head, query | key | value, ...] to GPT-2's [query | key | value of all heads, ...]."""
    if tensor.shape[0] != 3 * hidden:
        raise Refused(f"{name} shares keys among queries", why="GPT-2 does not")
    cut = tensor.reshape(heads, 3, hidden // heads, *tensor.shape[1:])
    return cut.transpose(0, 1).reshape(tensor.shape).T
