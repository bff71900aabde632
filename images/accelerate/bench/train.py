"""Train transformers' GPT-2 through accelerate: DDP or DeepSpeed's ZeRO, in bf16 on GPUs.

Shapes, initial values, batches and optimizer are those of `plain.py`. Started once a rank by
torchrun.
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any

import gpt
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DistributedType, InitProcessGroupKwargs
from stackyard_record import Recorder
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from windows import Windows


def build_accelerator(zero_stage: int, batch: int, settings: list[str]) -> Accelerator:
    """Build the accelerator: the process group, and DeepSpeed where a ZeRO stage is given.

    Without GPUs the backend must be named for DeepSpeed, and for nothing else.
    """
    cuda = torch.cuda.is_available()
    precision = "bf16" if cuda else "no"
    if not zero_stage:
        if os.environ["WORLD_SIZE"] == "1":
            # With a launcher's variables accelerate would wrap a single process in DDP, too.
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                del os.environ[name]
        return Accelerator(mixed_precision=precision, cpu=not cuda)
    plugin = DeepSpeedPlugin(zero_stage=zero_stage, gradient_clipping=gpt.CLIP)
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = batch
    gpt.set_options(plugin.deepspeed_config, settings)
    accelerator = Accelerator(
        mixed_precision=precision,
        deepspeed_plugin=plugin,
        kwargs_handlers=[] if cuda else [InitProcessGroupKwargs(backend="gloo")],
    )
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        raise SystemExit(f"ZeRO-{zero_stage} asked for, got {accelerator.distributed_type}")
    return accelerator


def build_model(options: argparse.Namespace, device: torch.device) -> GPT2LMHeadModel:
    """Build GPT-2 with torch's SDPA, without dropout, with the initial values of the plain loop."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=options.vocabulary,
            n_positions=options.context,
            n_embd=options.width,
            n_layer=options.layers,
            n_head=options.heads,
            n_inner=options.inner,
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            attn_implementation="sdpa",
        )
    ).to(device)
    gpt.neutral(model)
    gpt.initialise(model.parameters(), rows_out=False)
    return model


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    parser = gpt.parser(__doc__ or "")
    parser.add_argument("--zero", type=int, choices=(0, 2, 3), default=0, help="ZeRO stage; 0: DDP")
    parser.add_argument("--set", action="append", default=[], help="DeepSpeed: SECTION.KEY=JSON")
    options = parser.parse_args()
    accelerator = build_accelerator(options.zero, options.batch, options.set)
    rank, world = accelerator.process_index, accelerator.num_processes
    recorder = Recorder(
        options.record,
        rank,
        world,
        backend=accelerator.state.backend or "none",
        device=str(accelerator.device),
    )
    model: Any = build_model(options, accelerator.device)
    optimizer: Any = gpt.build_optimizer(model.parameters(), options.lr)
    scheduler = gpt.build_scheduler(optimizer, options.warm)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    windows = Windows(recorder)
    windows.start()
    rows = gpt.batches(options, rank, world, accelerator.device)
    for step, (tokens, labels) in enumerate(rows, start=1):
        loss = gpt.loss_of(model(input_ids=tokens).logits, labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), gpt.CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        windows.update(step, loss, 1.0, tokens.numel())
    # The engine holds process groups and is part of reference cycles: free it before the
    # interpreter exits.
    del model, optimizer, loss
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()
    recorder.end(options.updates)


if __name__ == "__main__":
    main()
