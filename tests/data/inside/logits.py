"""Logits of tokens, [batch, sequence]: by fairseq of its own checkpoint, or by transformers.

logits.py CHECKPOINT SHARDS TOKENS OUT.pt      (by fairseq; SHARDS: 1 for one whole file)
"""

import sys

import torch
from tokens import read


def by_fairseq(checkpoint, shards):
    from fairseq import checkpoint_utils

    # fairseq loads shards only where names may be missing; then none may differ.
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [checkpoint], num_shards=int(shards), strict=shards == "1"
    )
    return lambda tokens: models[0].eval()(tokens)[0]


def by_transformers(folder):
    """An encoder and decoder get the tokens both."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    both = AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
    model, about = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(about.values()), about
    more = (lambda tokens: {"decoder_input_ids": tokens}) if both else (lambda tokens: {})
    return lambda tokens: model.eval()(tokens, **more(tokens)).logits


if __name__ == "__main__":
    checkpoint, shards, tokens, out = sys.argv[1:]
    with torch.no_grad():
        torch.save(by_fairseq(checkpoint, shards)(read(tokens)).float(), out)
