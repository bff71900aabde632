"""Build the models that `pretrain.py` trains: GPT-2 and mT5, new or from a folder of transformers.

Owns their configurations and what differs from transformers' own defaults. It must not train.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed


def build_model(options: argparse.Namespace, seed: int) -> Any:
    """Build the model with random weights, the same on every rank, or those of --from."""
    set_seed(seed)
    build = build_gpt2 if options.model == "gpt2" else build_mt5
    return build(options, require_model(options) if options.start else "")


def require_model(options: argparse.Namespace) -> str:
    """Return the folder of --from.

    Raises:
        SystemExit: it holds no model of this kind.
    """
    config = Path(options.start) / "config.json"
    if not config.is_file():
        raise SystemExit(f"--from={options.start} holds no config.json: a folder of transformers")
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    if kind != options.model:
        raise SystemExit(f"--from={options.start} holds a model {kind!r}, not {options.model!r}")
    return str(options.start)


def build_gpt2(options: argparse.Namespace, start: str) -> Any:
    """Build GPT-2; from a folder its sizes count, but dropout is the options'."""
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    drop = {f"{part}_pdrop": options.dropout for part in ("resid", "embd", "attn")}
    if start:
        model: Any = GPT2LMHeadModel.from_pretrained(start, dtype=torch.float32, **drop)
        if model.config.n_positions < options.sequence:
            raise SystemExit(f"--from={start} has positions for {model.config.n_positions} tokens:"
                             f" --set sequence={model.config.n_positions}")  # fmt: skip
        return model
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=options.vocabulary, n_positions=options.sequence, n_embd=options.hidden,
            n_layer=options.layers, n_head=options.heads,
            n_inner=options.inner or 4 * options.hidden, use_cache=False, bos_token_id=0,
            eos_token_id=0, **drop,
        )
    )  # fmt: skip


def build_mt5(options: argparse.Namespace, start: str) -> Any:
    """Build mT5 as it was published, or load it from a folder.

    A folder decides the sizes of the model; the options decide its dropout.
    """
    from transformers.models.mt5.configuration_mt5 import MT5Config
    from transformers.models.mt5.modeling_mt5 import MT5ForConditionalGeneration

    if start:
        model: Any = MT5ForConditionalGeneration.from_pretrained(
            start, dtype=torch.float32, dropout_rate=options.dropout
        )
        # The loaded configuration calls the embeddings tied, whether or not they are.
        model.config.tie_word_embeddings = model.lm_head.weight is model.shared.weight
        return model
    model = MT5ForConditionalGeneration(
        MT5Config(
            vocab_size=options.vocabulary, d_model=options.hidden, d_kv=options.head_size,
            d_ff=options.inner or 4 * options.hidden, num_layers=options.layers,
            num_heads=options.heads, dropout_rate=options.dropout, use_cache=False,
            decoder_start_token_id=0, feed_forward_proj="gated-gelu",
        )
    )  # fmt: skip
    # Encoder and decoder share the embedding, the output layer has weights of its own. transformers
    # 5 ties it, too, in a new model: logits then begin 28 times too large, and no such model was
    # published. A loaded one keeps what its file has.
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    torch.nn.init.normal_(model.lm_head.weight, std=options.hidden**-0.5)
    model.all_tied_weights_keys.pop("lm_head.weight", None)
    model.config.tie_word_embeddings = False
    return model
