"""Pretrain GPT-2 with tensor, pipeline and data parallelism or ZeRO: Megatron layers, DeepSpeed.

Does what pretrain_gpt2.py of Megatron-LM with DeepSpeed did in 2021, with current packages. Started
once a rank, by torchrun or the deepspeed launcher. Resumes from the newest checkpoint in --save, if
there is one. After SIGTERM it saves and ends.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import gpt2
import samples
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from megatron.core import parallel_state, tensor_parallel
from stackyard_record import Recorder, events_folder
from stackyard_stop import StopSignal

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, or these words; docs/howto/templates.md lists the names that were others in 2021."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    samples.add_options(parser)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--pp", type=int, default=1, help="pipeline-parallel size")
    parser.add_argument("--ds-config", type=Path, help="DeepSpeed's JSON: ZeRO and what you add")
    for name in ("layers", "hidden", "heads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--min-lr", type=float, default=1e-5)
    parser.add_argument("--decay-updates", type=int, required=True, help="end of the cosine")
    parser.add_argument("--warmup", type=float, default=0.01, help="part of the decay updates")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--precision", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--recompute", choices=("yes", "no"), default="yes", help="activations")
    parser.add_argument("--fusions", choices=("yes", "no"), default="no",
                        help="megatron-core's, made by torch.compile")  # fmt: skip
    parser.add_argument("--save-every", type=int, default=10000, help="and at the end; 0: never")
    parser.add_argument("--save", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--record", required=True, help="folder of this launch's records")
    parser.add_argument("--tensorboard", default="", help="folder of event files; empty: none")
    parser.add_argument("--local_rank", type=int, default=0, help="set by the launcher")
    return parser.parse_args(words)


def shape_of(options: argparse.Namespace) -> gpt2.Shape:
    """Return the size of the model, and how it is computed."""
    return gpt2.Shape(
        layers=options.layers, hidden=options.hidden, heads=options.heads, dropout=options.dropout,
        sequence=options.sequence, vocabulary=options.vocabulary,
        recompute=options.recompute == "yes", fusions=options.fusions == "yes",
    )  # fmt: skip


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """Return DeepSpeed's configuration: the file's, with the arguments' values."""
    config = json.loads(options.ds_config.read_text()) if options.ds_config else {}
    found: dict[str, Any] = {
        "train_batch_size": samples.global_batch(options),
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": options.clip,
        "steps_per_print": options.updates + 1,
        "zero_allow_untested_optimizer": True,
    }
    if options.precision != "no":
        found[options.precision] = {"enabled": True}
    events = events_folder(options.tensorboard, dist.get_rank())
    if events and "tensorboard" not in config:
        found["tensorboard"] = {"enabled": True, "output_path": events, "job_name": ""}
    clash = sorted(set(found) & set(config))
    if clash:
        raise SystemExit(f"{options.ds_config}: {', '.join(clash)} come from the arguments")
    return {**config, **found}


def rate(options: argparse.Namespace) -> Callable[[int], float]:
    """Return a linear warm-up and then a cosine decay to --min-lr, as factors of --lr."""
    warm = max(1, int(options.warmup * options.decay_updates))
    least = options.min_lr / options.lr

    def factor(done: int) -> float:
        if done < warm:
            return (done + 1) / warm
        part = min(1.0, (done - warm) / max(1, options.decay_updates - warm))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part))

    return factor


def make_engine(options: argparse.Namespace, replicas: int) -> Any:
    """Build the model in DeepSpeed's engine.

    Raises:
        SystemExit: ZeRO-2 or ZeRO-3 with tensor or pipeline parallelism, which this program lacks;
            bf16 without ZeRO, whose checkpoints DeepSpeed cannot load.
    """
    config = configuration(options)
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if stage == 0 and options.precision == "bf16" and options.save_every:
        raise SystemExit(
            "in bf16 without ZeRO DeepSpeed cannot load what it saves:"
            " --ds-config=/srv/templates/zero-1.json, or --save-every=0"
        )
    if stage > 1 and options.tp * options.pp > 1:
        raise SystemExit(f"ZeRO-{stage} goes with --tp=1 --pp=1; ZeRO-1 with any")
    shape = shape_of(options)
    dtype = DTYPES[options.precision]
    model: Any = (
        gpt2.Whole(shape, dtype)
        if stage > 1
        else gpt2.build_pipeline(shape, tp=options.tp, pp=options.pp, dp=replicas, dtype=dtype)
    )
    optimizer = torch.optim.AdamW(
        gpt2.groups_of(model, options.weight_decay), lr=options.lr, betas=(0.9, 0.999),
        fused=torch.cuda.is_available(),
    )  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(made, rate(options)),
        config=config,
    )
    if engine.zero_optimization_stage() != stage:
        raise SystemExit(f"ZeRO-{stage} asked for, got {engine.zero_optimization_stage()}")
    if stage > 1:
        return Plain(engine, options.accumulate)
    return engine


def write_event(engine: Any, name: str, value: Any) -> None:
    """Write a value to DeepSpeed's monitor, which only the first rank keeps, as DeepSpeed does."""
    if engine.monitor.enabled:
        engine.monitor.write_events([(name, float(value), engine.global_samples)])


class Plain:
    """Give an engine without a pipeline the `train_batch` and `eval_batch` of a pipeline."""

    def __init__(self, engine: Any, accumulate: int) -> None:
        self.engine, self.accumulate = engine, accumulate
        self.load_checkpoint, self.save_checkpoint = engine.load_checkpoint, engine.save_checkpoint
        self.monitor = engine.monitor

    @property
    def global_samples(self) -> int:
        """Return how many samples were trained on."""
        return int(self.engine.global_samples)

    def _loss(self, data: Iterator[samples.Sample]) -> torch.Tensor:
        tokens, labels = (part.to(self.engine.device) for part in next(data))
        loss: torch.Tensor = self.engine(tokens, labels)
        return loss

    def train_batch(self, data: Iterator[samples.Sample]) -> torch.Tensor:
        """Make one update; return the mean loss of the global batch."""
        self.engine.train()
        total = torch.zeros((), device=self.engine.device)
        for _ in range(self.accumulate):
            loss = self._loss(data)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach().float() / self.accumulate
        dist.all_reduce(total)
        total /= dist.get_world_size()
        write_event(self, "Train/Samples/train_loss", total)
        return total

    @torch.no_grad()
    def eval_batch(self, data: Iterator[samples.Sample]) -> torch.Tensor:
        """Return the mean loss of a global batch."""
        self.engine.eval()
        total = sum((self._loss(data).float() for _ in range(self.accumulate)), torch.zeros(
            (), device=self.engine.device)) / self.accumulate  # fmt: skip
        dist.all_reduce(total)
        return total / dist.get_world_size()


def require_shared(save: Path) -> None:
    """Check that all ranks find the same checkpoint.

    DeepSpeed names the newest one on the first node only.

    Raises:
        SystemExit: they do not; some would train on from it and others from the beginning.
    """
    latest = save / "latest"
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, latest.read_text() if latest.is_file() else "")
    if len(set(seen)) > 1:
        raise SystemExit(
            f"the nodes do not see the same checkpoint in {save}: --save a folder that they share"
        )


def train(engine: Any, options: argparse.Namespace, recorder: Recorder, stop: StopSignal) -> None:
    """Make the updates that the checkpoint, if there is one, has not done yet."""
    require_shared(options.save)
    path, client = engine.load_checkpoint(str(options.save))
    done = 0 if path is None else int(client["update"])
    if done:
        recorder.loaded(done)
    dataset, valid = samples.build(options)
    replica, batch = parallel_state.get_data_parallel_rank(), samples.global_batch(options)
    data = samples.batches(dataset, options, first=done * batch, replica=replica)
    for step in range(done + 1, options.updates + 1):
        loss = engine.train_batch(data).item()
        recorder.step(step, loss)
        if valid and step % options.eval_every == 0:
            rounds = step // options.eval_every - 1
            first = rounds * options.eval_iters * batch
            some = samples.batches(valid, options, first=first, replica=replica)
            losses = [float(engine.eval_batch(some)) for _ in range(options.eval_iters)]
            mean = sum(losses) / len(losses)
            write_event(engine, "Valid/Samples/loss", mean)
            recorder.valid(step, mean)
        stopped = stop.agreed(get_accelerator().current_device_name())
        last = stopped or step == options.updates
        if options.save_every and (last or step % options.save_every == 0):
            # It returns after a barrier that follows the last write of all ranks.
            more = {"update": step, "heads": options.heads, "activation": gpt2.ACTIVATION}
            engine.save_checkpoint(str(options.save), client_state=more)
            recorder.saved(step)
        if stopped and step < options.updates:
            if dist.get_rank() == 0:
                print(f"stopped by SIGTERM after update {step}", flush=True)
            return
    recorder.end(options.updates)


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    options, stop = parse_arguments(), StopSignal()
    accelerator = get_accelerator()
    cuda = torch.cuda.is_available()
    if cuda:
        accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(accelerator.communication_backend_name())
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.tp * options.pp * options.replicas != world:
        raise SystemExit(
            f"--tp={options.tp} x --pp={options.pp} x --replicas={options.replicas} are not {world} ranks"
        )
    recorder = Recorder(
        options.record, rank, world, backend=dist.get_backend(),
        device=accelerator.current_device_name(),
    )  # fmt: skip
    parallel_state.initialize_model_parallel(
        options.tp, options.pp, create_gloo_process_groups=False
    )
    engine = make_engine(options, options.replicas)
    # Dropout differs between stages and replicas; tensor-parallel ranks share what they must.
    seed = gpt2.SEED + 100 * parallel_state.get_pipeline_model_parallel_rank()
    seed += 10000 * parallel_state.get_data_parallel_rank()
    torch.manual_seed(seed)
    # Megatron's ordinary tracker holds CUDA generator states, which CPU ranks do not have.
    tensor_parallel.model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not cuda)
    train(engine, options, recorder, stop)
    dist.barrier()
    # The engine holds process groups and gloo's threads, and is part of reference cycles: left to
    # the interpreter's exit, they sometimes abort it after the training.
    del engine
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
