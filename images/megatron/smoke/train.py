"""Train a tiny GPT with tensor, pipeline and data parallelism: Megatron layers, DeepSpeed engine.

Started once a rank by the `deepspeed` launcher. Resumes from the checkpoint in the save folder, and
then makes the same updates on the same data as a run that never stopped.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import corpus
import deepspeed
import model
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from megatron.core import parallel_state, tensor_parallel
from stackyard_record import Recorder
from vocabulary import CharacterTokenizer

HASH_EVERY = 10


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the product of the three sizes is the number of ranks.

    Without `--dp` it follows from the others and the ranks that the launcher started.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--pp", type=int, default=1, help="pipeline-parallel size")
    parser.add_argument("--dp", type=int, default=0, help="data-parallel size")
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--save", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--record", required=True, help="record folder of this launch")
    parser.add_argument("--tensorboard", default="", help="folder of event files")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--horizon", type=int, required=True, help="updates to index samples for")
    parser.add_argument("--save-at", type=int, required=True, help="update to save after")
    parser.add_argument("--bf16", action="store_true", help="train in bf16 (on GPUs)")
    parser.add_argument("--local_rank", type=int, default=0, help="set by the launcher")
    options = parser.parse_args()
    options.dp = options.dp or int(os.environ.get("WORLD_SIZE", "1")) // (options.tp * options.pp)
    return options


def stand_alone(ranks: int) -> None:
    """Give a single process, started by no launcher, the environment that DeepSpeed requires."""
    if ranks == 1:
        os.environ.setdefault("RANK", "0")
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("WORLD_SIZE", "1")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")  # any free port: nothing else has to find it


def initialise_parallelism(tp: int, pp: int) -> None:
    """Create Megatron's process groups inside the running process group."""
    parallel_state.initialize_model_parallel(tp, pp, create_gloo_process_groups=False)
    # Megatron's ordinary tracker holds CUDA generator states, which CPU ranks do not have and do
    # not need without dropout.
    on_gpus = torch.cuda.is_available()
    tensor_parallel.model_parallel_cuda_manual_seed(model.SEED, inference_rng_tracker=not on_gpus)


def check_rank_order(pipeline: PipelineModule) -> None:
    """Check that Megatron and DeepSpeed number the ranks alike.

    Each numbers them on its own, and a silent mismatch would mix up the shards.
    """
    grid = pipeline.mpu()
    megatron = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
    )
    ours = (
        grid.get_slice_parallel_rank(),
        grid.get_pipe_parallel_rank(),
        grid.get_data_parallel_rank(),
    )
    if megatron != ours:
        raise RuntimeError(f"(tp, pp, dp) ranks differ: Megatron {megatron}, DeepSpeed {ours}")


def build_engine(pipeline: PipelineModule, dp: int, *, bf16: bool) -> PipelineEngine:
    """Build an engine; gradients accumulate over the micro-batches of a replica's share."""
    config = {
        "train_batch_size": corpus.GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": corpus.micro_batch(dp),
        "gradient_accumulation_steps": corpus.GLOBAL_BATCH // corpus.micro_batch(dp) // dp,
        "optimizer": {
            "type": "AdamW",
            # A rate at which rounding, which differs between layouts, does not grow in 40 updates.
            # torch_adam: DeepSpeed's fused AdamW would compile an extension at start-up.
            "params": {"lr": 2e-3, "betas": [0.9, 0.95], "torch_adam": True},
        },
        "gradient_clipping": 1.0,
        "bf16": {"enabled": bf16},
        "steps_per_print": HASH_EVERY,
    }
    engine, *_ = deepspeed.initialize(
        model=pipeline, model_parameters=pipeline.parameters(), config=config
    )
    return engine


def record_parameters(recorder: Recorder, step: int, pipeline: PipelineModule) -> None:
    """Hash this rank's parameters, grouped with the ranks that must hold the same ones."""
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    stage = f"stage{parallel_state.get_pipeline_model_parallel_rank()}"
    named = list(pipeline.named_parameters())
    replicated = [(n, p) for n, p in named if not getattr(p, "tensor_model_parallel", False)]
    recorder.params(step, named, group=f"{stage}-shard{tp_rank}")
    recorder.params(step, replicated, group=f"{stage}-replicated")


def train(engine: PipelineEngine, recorder: Recorder, options: argparse.Namespace) -> None:
    """Make the updates that the checkpoint, if there is one, has not done yet."""
    path, client = engine.load_checkpoint(str(options.save))
    done = 0 if path is None else int(client["update"])
    if done:
        recorder.loaded(done)
    tokenizer = CharacterTokenizer.load(options.data)
    corpus.write_indexed_dataset(tokenizer, options.data)
    batches = corpus.micro_batches(
        corpus.build_dataset(tokenizer, options.data, options.horizon),
        first_update=done,
        updates=options.updates,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=options.dp,
    )
    for step in range(done + 1, options.updates + 1):
        recorder.step(step, engine.train_batch(batches).item())
        if step % HASH_EVERY == 0 or step == options.updates:
            record_parameters(recorder, step, engine.module)
        if step == options.save_at:
            # It returns after a barrier that follows the last write of all ranks.
            engine.save_checkpoint(
                str(options.save), client_state={"update": step, "heads": model.HEADS}
            )
            recorder.saved(step)
    recorder.end(options.updates)


def main() -> None:
    """Run one rank, from joining the process group to leaving it."""
    options = parse_arguments()
    stand_alone(options.tp * options.pp * options.dp)
    accelerator = get_accelerator()
    if torch.cuda.is_available():
        accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(accelerator.communication_backend_name())
    recorder = Recorder(
        options.record,
        dist.get_rank(),
        dist.get_world_size(),
        backend=dist.get_backend(),
        device=accelerator.current_device_name(),
        tensorboard=options.tensorboard,
    )
    initialise_parallelism(options.tp, options.pp)
    tokenizer = CharacterTokenizer.load(options.data)
    pipeline = model.build_pipeline(
        tokenizer.vocab_size,
        corpus.SEQUENCE_LENGTH,
        tp=options.tp,
        pp=options.pp,
        dp=options.dp,
        dtype=torch.bfloat16 if options.bf16 else torch.float32,
    )
    check_rank_order(pipeline)
    train(build_engine(pipeline, options.dp, bf16=options.bf16), recorder, options)
    dist.barrier()
    # The engine holds process groups and gloo's threads, and is part of reference cycles: left to
    # the interpreter's exit, they sometimes abort it after the training.
    del pipeline
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
