"""Read a fairseq language model, whole or in FSDP's shards, as transformers' OPT.

OPT computes what fairseq's decoder does: norms before or after each block, learned positions from
number 2 on, a factor on nothing. So the factor of fairseq's embeddings is multiplied into them, and
sinusoidal positions become the table that fairseq computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from convert import Model
from source import Refused

_ACTIVATIONS = {
    "relu": "relu", "relu_squared": "relu2", "gelu": "gelu", "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new", "tanh": "tanh", "linear": "linear",
}  # fmt: skip
_BLOCK = re.compile(
    r"layers\.\d+\.(self_attn\.(q|k|v|out)_proj|self_attn_layer_norm|fc1|fc2|final_layer_norm)"
    r"\.(weight|bias)"
)
_NOT_WEIGHTS = ("version", "embed_positions._float_tensor", "embed_positions.weights")


def read(checkpoint: Path, name: str, settings: Mapping[str, Any]) -> Model:
    """Read a checkpoint: a file, the name that its shards share, or the folder of the last one.

    Raises:
        Refused: it is no language model, or one that OPT cannot compute.
    """
    if checkpoint.is_dir():
        checkpoint, name = checkpoint / "checkpoint_last.pt", f"{name}/checkpoint_last.pt"
    state, weights = _load(checkpoint, name)
    options = _options(state, name)
    prefix = "decoder."
    if not all(key.startswith(prefix) for key in weights):
        raise Refused(f"{name} is no language model", why="it has more than a decoder")
    found = {key.removeprefix(prefix): tensor for key, tensor in weights.items()}
    return _as_opt(found, options, name)


def _load(path: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Load a checkpoint's state and its whole weights."""
    stem = re.sub(r"-shard\d+$", "", path.stem)
    shards = sorted(
        path.parent.glob(f"{stem}-shard*.pt"), key=lambda found: int(found.stem.rpartition("d")[2])
    )
    if path.is_file() and path.stem == stem:
        state = _read(path, name)
        return state, state["model"]
    if not shards:
        raise Refused(f"there is no {name}", why="and no shards of it (-shard0.pt)")
    states = [_read(shard, shard.name) for shard in shards]
    if "fsdp_metadata" not in states[0]:
        raise Refused(f"{shards[0].name} has no fsdp_metadata", why="it is no shard of FSDP")
    wanted = states[0]["fsdp_metadata"].get("world_size", len(states))
    if wanted != len(states):
        raise Refused(
            f"{name} has {wanted} shards, {len(states)} are here",
            hint="gather the shards of all hosts in one folder",
        )
    from fairscale.nn import FullyShardedDataParallel

    return states[0], FullyShardedDataParallel.consolidate_shard_weights(
        shard_weights=[state["model"] for state in states],
        shard_metadata=[state["fsdp_metadata"] for state in states],
    )


def _read(path: Path, name: str) -> dict[str, Any]:
    """Read one file; fairseq keeps its options in it as objects of its own."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False, mmap=False)
    except Exception as error:  # pickle, zip and fairseq raise all kinds
        raise Refused(f"{name} cannot be read", why=f"{type(error).__name__}: {error}") from error
    if not isinstance(state, dict) or "model" not in state:
        raise Refused(f"{name} is no checkpoint of fairseq")
    return state


def _options(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the model's options, with the task's that it takes its length from."""
    config = state.get("cfg")
    if config is None and state.get("args") is not None:
        return dict(vars(state["args"]))
    if config is None:
        raise Refused(f"{name} has no options of a model", why="neither `cfg` nor `args`")
    parts = [config[part] for part in ("task", "model")]
    plain = [part if isinstance(part, Mapping) else vars(part) for part in parts]
    return {**plain[0], **plain[1]}


def _as_opt(weights: dict[str, torch.Tensor], options: Mapping[str, Any], name: str) -> Model:
    words, head = weights.pop("embed_tokens.weight"), weights.pop("output_projection.weight", None)
    if head is None:
        raise Refused(f"{name} has an adaptive softmax", why="OPT has none")
    blocks = {key: tensor for key, tensor in weights.items() if _BLOCK.fullmatch(key)}
    if "layers.0.fc1.weight" not in blocks:
        raise Refused(f"{name} has no layers of a decoder")
    rest = {key: t for key, t in weights.items() if key not in blocks and key not in _NOT_WEIGHTS}
    inner, hidden = blocks["layers.0.fc1.weight"].shape
    scale = 1.0 if options.get("no_scale_embedding") else hidden**0.5
    words, head = words.float() * scale, head.float()
    into, out = rest.pop("project_in_dim.weight", None), rest.pop("project_out_dim.weight", None)
    found = {}
    if into is not None and out is not None and into.shape == out.T.shape:
        found = {"model.decoder.project_in.weight": into, "model.decoder.project_out.weight": out}
    else:  # one of them alone, which OPT has no place for
        words = words if into is None else words @ into.float().T
        head = head if out is None else head @ out.float()
    positions = _positions(rest, options, hidden)
    last = [rest.pop(f"layer_norm.{kind}", None) for kind in ("weight", "bias")]
    if rest:
        raise Refused(f"{name} holds {min(rest)}", why="transformers' OPT has nothing like it")
    activation = options.get("activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise Refused(f"{name} has the activation {activation!r}", why="transformers has none such")
    found |= {
        "model.decoder.embed_tokens.weight": words,
        "model.decoder.embed_positions.weight": positions,
        "lm_head.weight": head,
        **{f"model.decoder.{key}": tensor for key, tensor in blocks.items()},
    }
    if last[0] is not None and last[1] is not None:
        found["model.decoder.final_layer_norm.weight"] = last[0]
        found["model.decoder.final_layer_norm.bias"] = last[1]
    before = bool(options.get("decoder_normalize_before", True))
    config = {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": words.shape[0],
        "hidden_size": hidden,
        "word_embed_proj_dim": words.shape[1],
        "ffn_dim": inner,
        "num_hidden_layers": 1 + max(int(key.split(".")[1]) for key in blocks),
        "num_attention_heads": int(options["decoder_attention_heads"]),
        "max_position_embeddings": positions.shape[0] - 2,
        "activation_function": _ACTIVATIONS[activation],
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and last[0] is None,
        # The factor of the embeddings is in one of both only.
        "tie_word_embeddings": False,
        "dropout": float(options.get("dropout", 0.1)),
        "attention_dropout": float(options.get("attention_dropout", 0.0)),
        "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1,
    }  # fmt: skip
    return Model(config, found, ("model.decoder.embed_tokens.weight", "lm_head.weight"))


def _positions(
    rest: dict[str, torch.Tensor], options: Mapping[str, Any], hidden: int
) -> torch.Tensor:
    """Return the table of positions, whose first two rows nothing reads."""
    learned = rest.pop("embed_positions.weight", None)
    if learned is not None:
        return learned
    rows = 2 + int(options.get("max_target_positions") or options["tokens_per_sample"])
    if options.get("no_token_positional_embeddings"):
        return torch.zeros(rows, hidden)
    from fairseq.modules import SinusoidalPositionalEmbedding

    return SinusoidalPositionalEmbedding.get_embedding(rows, hidden, 1)
