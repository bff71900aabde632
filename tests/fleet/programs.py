"""Programs that tests start in place of a training, and files that users write beside theirs."""

import json

# Takes no processor, for tests that are about its run; one line an update from the first rank.
LIGHT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for update in range(1, 100000):
    loss = torch.ones(1) / update
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
    time.sleep(0.1)
"""

# As users write them, tiny and on data of their own: accelerate, DeepSpeed, and HF's Trainer. They
# train on GPUs where there are any.
OWN_ACCELERATE = """
import os
import accelerate, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7)
# Without GPUs accelerate sees one rank in a DeepSpeed launch unless the backend is named.
named = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true" and not torch.cuda.is_available()
gloo = accelerate.InitProcessGroupKwargs(backend="gloo")
one = accelerate.Accelerator(kwargs_handlers=[gloo] if named else None)
x = torch.randn(64, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
model, optimizer, data = one.prepare(model, optimizer, data)
for update, (x, y) in enumerate((batch for epoch in range(6) for batch in data), 1):
    loss = torch.nn.functional.mse_loss(model(x), y)
    one.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if one.is_main_process:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
kind = f"{one.distributed_type.value} in {one.mixed_precision}"
kind += ", by dynamo" * hasattr(model, "_orig_mod")
print(f"rank {one.process_index} of {one.num_processes} by {kind}", flush=True)
one.end_training()
"""
DEEPSPEED = """
import argparse, deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(7)
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
x = torch.randn(2, 8).to(engine.device)
for update in range(1, 31):
    loss = torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
ranks = torch.distributed.get_world_size()
stage = engine.zero_optimization_stage()
print(f"rank {engine.global_rank}: stage {stage} of {ranks} ranks", flush=True)
"""
# The accelerate configuration of the fifth note of 2021, but for its address.
NOTE_YAML = """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  deepspeed_config_file: ./deepspeed.json
  deepspeed_hostfile: ./hostfile
  deepspeed_multinode_launcher: pdsh
  zero3_init_flag: true
distributed_type: DEEPSPEED
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
machine_rank: 0
main_process_ip: 192.0.2.10
main_process_port: 22
main_training_function: main
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
DEEPSPEED_JSON = json.dumps({
    "train_batch_size": 4, "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 2, "overlap_comm": False},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
})  # fmt: skip
TRAINER_JSON = json.dumps({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False},
})  # fmt: skip
TRAINER_WORDS = (
    "--output_dir", "/tmp/out", "--max_steps", "10", "--logging_steps", "2",
    "--per_device_train_batch_size", "2", "--learning_rate", "0.01",
    "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "true",
)  # fmt: skip
TRAINER = """
import pathlib, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
sys.argv += [] if torch.cuda.is_available() else ["--use_cpu"]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
text = pathlib.Path(__file__).read_bytes() * 4

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        ids = torch.tensor(list(text[number * 32 : number * 32 + 32]))
        return {"input_ids": ids, "labels": ids}

shape = GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=1, n_head=2,
                   bos_token_id=0, eos_token_id=0)
trainer = Trainer(model=GPT2LMHeadModel(shape), args=args, train_dataset=Data())
trainer.train()
if trainer.is_world_process_zero():
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"update {row['step']} loss {float(row['loss']):.6f}", flush=True)
ranks = f"{args.process_index} of {args.world_size}"
kind = next(trainer.model.parameters()).dtype
print(f"rank {ranks} deepspeed {bool(args.deepspeed)} in {kind}", flush=True)
"""
# A small GPT-2 under ZeRO-3, made in two ways: a cut parameter holds no element of its own.
ZERO_INIT = """
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from deepspeed import zero
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
torch.manual_seed(7)
shape = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2,
                   bos_token_id=0, eos_token_id=0)
whole = GPT2LMHeadModel(shape)
whole.save_pretrained("/var/tmp/whole")
one = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
one.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 4

def is_cut(model):
    return all(parameter.numel() == 0 for parameter in model.parameters())

# Of lines that ranks say alike a run shows one.
print(f"rank {one.process_index} by class: cut {is_cut(GPT2LMHeadModel(shape))}", flush=True)
model = AutoModelForCausalLM.from_config(shape)
print(f"rank {one.process_index} by from_config: cut {is_cut(model)}", flush=True)
loaded = AutoModelForCausalLM.from_pretrained("/var/tmp/whole")
with zero.GatheredParameters(list(loaded.parameters())):
    same = all(map(torch.equal, loaded.parameters(), whole.parameters()))
print(f"rank {one.process_index} by from_pretrained: cut {is_cut(loaded)} same {same}", flush=True)
trained, optimizer = one.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
text = torch.arange(4 * 32).reshape(4, 32) % 3
for update in range(1, 21):
    loss = trained(input_ids=text, labels=text).loss
    one.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if one.is_main_process:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
one.end_training()
"""
# LoRA on a small GPT-2 under ZeRO-3, its adapter saved in both ways.
LORA = """
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(7)
one = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
shape = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                   initializer_range=0.3, bos_token_id=0, eos_token_id=0)
wanted = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
model = get_peft_model(GPT2LMHeadModel(shape), wanted)
model, optimizer = one.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
text = torch.arange(4 * 32).reshape(4, 32) % 3
for update in range(1, 31):
    loss = model(input_ids=text, labels=text).loss
    one.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if one.is_main_process:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
state = one.get_state_dict(model)  # on every rank; the first one gets it
if one.is_main_process:
    whole = {name.replace(".default", ""): tensor for name, tensor in state.items()}
    for way, more in (("plain", {}), ("gathered", {"state_dict": state})):
        one.unwrap_model(model).save_pretrained(f"/tmp/{way}", **more)
        saved = load_file(f"/tmp/{way}/adapter_model.safetensors")
        same = [torch.equal(tensor, whole[name]) for name, tensor in saved.items()]
        print(f"saved {way}: {sum(same)} of {len(same)} as trained", flush=True)
kind = one.distributed_type.value
print(f"rank {one.process_index} of {one.num_processes} by {kind}", flush=True)
one.end_training()
"""
