"""Build accelerate's engine for a layout, and prove that it is the one asked for.

It must fail, not fall back: accelerate can silently replace DeepSpeed by plain DDP, and ZeRO-3 can
silently keep every tensor whole.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs

CLIP = 1.0
ZERO_OPTIMIZERS = {2: "DeepSpeedZeroOptimizer", 3: "DeepSpeedZeroOptimizer_Stage3"}


def build_accelerator(zero_stage: int, precision: str) -> Accelerator:
    """Set up the process group.

    Without GPUs accelerate sees no distributed run at all in a DeepSpeed launch unless the backend
    is named, and a single process fails if it is. With GPUs its own choice is right.
    """
    named = zero_stage and not torch.cuda.is_available()
    accelerator = Accelerator(
        mixed_precision=precision,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")] if named else None,
    )
    if zero_stage and accelerator.distributed_type != DistributedType.DEEPSPEED:
        raise SystemExit(f"ZeRO-{zero_stage} asked for, got {accelerator.distributed_type}")
    if zero_stage == 3:
        zero = accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        # The default (1e5 elements) would leave every tensor of a model this small whole.
        zero["stage3_param_persistence_threshold"] = 0
    return accelerator


def assert_zero(model: Any, stage: int) -> None:
    """Stop unless DeepSpeed really runs ZeRO at `stage`.

    Call it after an update: before the first one ZeRO-3 shows every tensor as partitioned,
    including those that it gathers once and then keeps whole.
    """
    found = type(model.optimizer).__name__
    whole = sum(parameter.numel() > 0 for parameter in model.parameters())
    total = sum(1 for _ in model.parameters())
    print(f"ZeRO-{stage}: {found}, {total - whole} of {total} tensors partitioned", flush=True)
    if found != ZERO_OPTIMIZERS[stage] or model.zero_optimization_stage() != stage:
        raise SystemExit(f"ZeRO-{stage} asked for, the engine has {found}")
    if stage == 2 and not model.optimizer.partition_gradients:
        raise SystemExit("ZeRO-2 asked for, gradients are not partitioned")
    if stage == 3 and whole == total:
        raise SystemExit("ZeRO-3 asked for, every parameter is whole on every rank")
    if model.gradient_clipping() != CLIP:
        raise SystemExit(f"clip at {CLIP} asked for, the engine has {model.gradient_clipping()}")


def whole_parameters(model: Any, zero_stage: int) -> AbstractContextManager[Any]:
    """Gather all parameters whole on every rank while the context is open."""
    if zero_stage != 3:
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        list(model.parameters())
    )
    return gathered


def save(accelerator: Accelerator, final: Path) -> None:
    """Write a checkpoint of all ranks, which gets its final name only when it is complete."""
    partial = final.with_name(final.name + ".partial")
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        partial.rename(final)
    accelerator.wait_for_everyone()


def leave() -> NoReturn:
    """Run what is registered for the exit, then end the process without the interpreter's own end.

    With DDP and with ZeRO, threads of gloo outlive the groups (seen with torch 2.13). One that
    takes the interpreter's lock while the interpreter ends aborts a training that has passed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
