"""Logits of Megatron's template as its own ranks compute them: its arguments, after TOKENS and OUT.

    torchrun --nproc_per_node=N megatron_logits.py TOKENS.pt OUT [ARGUMENT OF pretrain.py...]

Each rank of the last stage writes its part of the vocabulary, OUT.<tensor rank>.
"""

import sys

tokens_file, out = sys.argv[1:3]
sys.argv[1:] = sys.argv[3:]

import deepspeed  # noqa: E402
import gpt2  # noqa: E402
import pretrain  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402

kept, loss_of = [], gpt2.loss_of


def keep(logits, labels):
    kept.append(logits.detach().clone())  # Megatron's cross entropy works in its input
    return loss_of(logits, labels)


gpt2.loss_of = keep
options = pretrain.parse_arguments()
deepspeed.init_distributed(get_accelerator().communication_backend_name())
parallel_state.initialize_model_parallel(options.tp, options.pp, create_gloo_process_groups=False)
engine = pretrain.make_engine(options, options.replicas)
tensor_parallel.model_parallel_cuda_manual_seed(1, inference_rng_tracker=True)
path, _ = engine.load_checkpoint(str(options.save))
assert path, options.save
tokens = torch.load(tokens_file)
engine.eval_batch(iter([(tokens, tokens)] * options.accumulate))
if kept and parallel_state.get_data_parallel_rank() == 0:
    rank = parallel_state.get_tensor_model_parallel_rank()
    torch.save(kept[0].transpose(0, 1).contiguous(), f"{out}.{rank}")
torch.distributed.barrier()
