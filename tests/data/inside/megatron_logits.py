"""Megatron's template, and what its ranks compute of some tokens once it has trained.

    torchrun --nproc_per_node=N megatron_logits.py TOKENS OUT [ARGUMENT OF pretrain.py...]

Each rank of the last stage writes its part of the vocabulary, OUT.<tensor rank>.
"""

import sys

given, out = sys.argv[1:3]
sys.argv[1:] = sys.argv[3:]

import gpt2  # noqa: E402
import pretrain  # noqa: E402
import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from tokens import read  # noqa: E402

has_trained, kept = [], []
loss_of, train = gpt2.loss_of, pretrain.train


def keep(logits, labels):
    if has_trained:
        kept.append(logits.detach().clone())  # Megatron's cross entropy works in its input
    return loss_of(logits, labels)


def train_and_compute(engine, options, *others):
    train(engine, options, *others)
    has_trained.append(True)
    tokens = read(given)
    engine.eval_batch(iter([(tokens, tokens)] * options.accumulate))
    if kept and parallel_state.get_data_parallel_rank() == 0:
        rank = parallel_state.get_tensor_model_parallel_rank()
        torch.save(kept[0].transpose(0, 1).contiguous(), f"{out}.{rank}")


gpt2.loss_of, pretrain.train = keep, train_and_compute
pretrain.main()
