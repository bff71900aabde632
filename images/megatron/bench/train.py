"""Train megatron-core's GPT model with DeepSpeed, megatron-core's engine or DDP, in bf16 on GPUs.

Shapes, initial values, batches and optimizer are those of `plain.py`; attention is torch's SDPA, as
in the smoke: megatron-core's own without Transformer Engine keeps all scores. On GPUs
megatron-core's own fusions are on, which torch.compile makes: bias with GELU, bias with the
residual, cross entropy. Started once a rank by torchrun.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import os
from collections.abc import Callable
from typing import Any

import deepspeed
import gpt
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from model import CausalAttention
from stackyard_record import Recorder
from torch import nn
from windows import Windows

# Names of `gpt.Gpt`'s parameters, by the ends of megatron-core's names.
NAMES = {
    "embedding.word_embeddings": "tokens",
    "embedding.position_embeddings": "places",
    "decoder.final_layernorm": "norm",
    "input_layernorm": "norm1",
    "self_attention.linear_qkv": "qkv",
    "self_attention.linear_proj": "out",
    "pre_mlp_layernorm": "norm2",
    "mlp.linear_fc1": "up",
    "mlp.linear_fc2": "down",
}


plain_gelu = functools.partial(nn.functional.gelu, approximate="tanh")


def build_model(options: argparse.Namespace, dtype: torch.dtype, device: torch.device) -> GPTModel:
    """Build the model with the initial values of the plain loop.

    megatron-core's fused cross entropy gives its gradient in bf16, so on CPU ranks nothing is
    fused.
    """
    fused = device.type == "cuda" and not options.unfused
    config = TransformerConfig(
        num_layers=options.layers,
        hidden_size=options.width,
        num_attention_heads=options.heads,
        ffn_hidden_size=options.inner,
        # megatron-core's fused GELU is always the tanh approximation.
        activation_func=nn.functional.gelu if fused else plain_gelu,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_dropout_fusion=fused,
        bias_activation_fusion=fused,
        cross_entropy_loss_fusion=fused,
        gradient_accumulation_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules = dataclasses.replace(
        spec.submodules.self_attention.submodules, core_attention=CausalAttention
    )
    model = GPTModel(
        config,
        spec,
        vocab_size=options.vocabulary,
        max_sequence_length=options.context,
        share_embeddings_and_output_weights=True,
    ).to(device=device, dtype=dtype)
    copy_values(gpt.build(options, device), model, options.heads)
    return model


@torch.no_grad()
def copy_values(plain: gpt.Gpt, model: GPTModel, heads: int) -> None:
    """Copy every parameter of the plain model; megatron-core keeps query, key and value by head."""
    values = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        place, found = next((p, f) for p, f in NAMES.items() if owner.endswith(p))
        layer = owner.removesuffix(place).removeprefix("decoder.layers.").strip(".")
        value = values.pop(f"blocks.{layer}.{found}.{kind}" if layer else f"{found}.{kind}")
        if found == "qkv":
            parts = value.view(3, heads, -1, *value.shape[1:]).transpose(0, 1)
            value = parts.reshape(value.shape)
        parameter.copy_(value)
    if values:
        raise SystemExit(f"no place in megatron-core's model for {', '.join(values)}")


def deepspeed_step(options: argparse.Namespace, model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return an update by DeepSpeed's engine: on GPUs bf16 with fp32 master parameters."""
    optimizer: Any = gpt.build_optimizer(model.parameters(), options.lr)
    scheduler = gpt.build_scheduler(optimizer, options.warm)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_clipping": gpt.CLIP,
        "bf16": {"enabled": torch.cuda.is_available()},
        "zero_optimization": {"stage": options.zero},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": options.updates + 1,
    }
    gpt.set_options(config, options.set)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(tokens: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = engine(tokens, places, None, labels=labels).mean()
        engine.backward(loss)
        engine.step()
        scheduler.step()
        return loss

    return step


def ddp_step(options: argparse.Namespace, model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return an update as in the plain loop: DDP, bf16 autocast on GPUs."""
    optimizer = gpt.build_optimizer(model.parameters(), options.lr)
    scheduler = gpt.build_scheduler(optimizer, options.warm)
    cuda = torch.cuda.is_available()
    if dist.get_world_size() > 1:
        device = next(model.parameters()).device
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True
        )

    def step(tokens: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=cuda):
            loss: torch.Tensor = model(tokens, places, None, labels=labels).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def core_step(options: argparse.Namespace, model: GPTModel) -> Callable[..., torch.Tensor]:
    """Return an update by megatron-core: its DDP and optimizer.

    Gradients and master parameters are in fp32 beside bf16 parameters.
    """
    made = DistributedDataParallel(
        model.config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True),
        model,
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=options.lr,
            bf16=True,
            params_dtype=torch.bfloat16,
            clip_grad=gpt.CLIP,
            adam_beta1=0.9,
            adam_beta2=0.95,
            weight_decay=0.0,
        ),
        [made],
        use_gloo_process_groups=False,
    )
    scheduler = gpt.build_scheduler(optimizer.optimizer, options.warm)

    def step(tokens: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        made.zero_grad_buffer()
        optimizer.zero_grad()
        loss: torch.Tensor = made(tokens, places, None, labels=labels).mean()
        loss.backward()
        made.finish_grad_sync()
        optimizer.step()
        scheduler.step()
        return loss

    return step


# How an update is made, and True where parameters are bf16 on GPUs.
ENGINES: dict[str, tuple[Callable[..., Any], bool]] = {
    "deepspeed": (deepspeed_step, True),
    "core": (core_step, True),
    "ddp": (ddp_step, False),
}


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    parser = gpt.parser(__doc__ or "")
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--zero", type=int, default=0, help="DeepSpeed's ZeRO stage")
    parser.add_argument("--set", action="append", default=[], help="DeepSpeed: SECTION.KEY=JSON")
    parser.add_argument("--unfused", action="store_true", help="without megatron-core's fusions")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    if options.engine == "core" and not cuda:
        parser.error("--engine=core needs a GPU: megatron-core's optimizer keeps its state on one")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    deepspeed.init_distributed("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    recorder = Recorder(options.record, rank, world, backend=dist.get_backend(), device=str(device))
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1, inference_rng_tracker=not cuda)
    engine, half = ENGINES[options.engine]
    dtype = torch.bfloat16 if cuda and half else torch.float32
    model = build_model(options, dtype, device)
    make: Callable[..., torch.Tensor] = engine(options, model)
    places = torch.arange(options.context, device=device).expand(options.batch, -1)
    windows = Windows(recorder)
    windows.start()
    for step, (tokens, labels) in enumerate(gpt.batches(options, rank, world, device), start=1):
        loss = make(tokens, places, labels)
        windows.update(step, loss, 1.0, tokens.numel())
    recorder.end(options.updates)
    dist.barrier()
    # The engine holds process groups and is part of reference cycles: free it before the
    # interpreter exits.
    del make, model, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
