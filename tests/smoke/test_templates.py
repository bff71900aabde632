"""Every template of the notes in its reduced size, on CPU ranks of two nodes: the losses fall.

Steps are those that `invoke run` gives to a mesh's supervisor; here the test plays them in turn.

Over 300 lines: templates are trained once, for all tests here.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import time

import pytest

from stackyard.definitions.examples import TEXT, Where
from stackyard.definitions.job_source import Work, example_files, load_example, make_job
from stackyard.definitions.project import ROOT
from stackyard.mesh import certificates, nodes
from stackyard.mesh.jobs import select, start_request
from stackyard.mesh.node import rank_folder
from stackyard.mesh.node_plan import NodePlan, StandingPlan
from stackyard.report import evidence
from stackyard.system.archive import pack
from stackyard.validate import smoke
from tests.smoke.test_main_job import invoke

NODES = ("node1", "node2")
# Layouts of one model with the same batches: the same losses, to the rounding of fp32. (A pipeline
# has the same first loss only: in fp32 DeepSpeed counts tied weights twice in the norm to clip.)
SAME = {
    "megatron": ("gpt2-345m", "gpt2-345m-tp", "gpt2-zero-1", "gpt2-zero-2", "gpt2-zero-3"),
    "accelerate": ("gpt2-zero-2", "gpt2-zero-3"),
}
# By stack and template: what is set beside its defaults, ranks on each node.
TEMPLATES = {
    ("fairseq", "gpt2-fsdp"): ("save_every=15", 1),
    ("fairseq", "lm-fsdp"): ("", 1),
    ("megatron", "gpt2-345m"): ("save_every=15", 1),
    ("megatron", "gpt2-345m-tp"): ("", 1),
    ("megatron", "gpt2-345m-3d"): ("", 2),
    ("megatron", "gpt2-zero-1"): ("", 1),
    ("megatron", "gpt2-zero-2"): ("", 1),
    ("megatron", "gpt2-zero-3"): ("", 1),
    # The embedding is then large enough for ZeRO-3 to cut it.
    ("accelerate", "gpt2-zero-2"): ("updates=60,vocabulary=2048", 1),
    ("accelerate", "gpt2-zero-3"): ("updates=60,vocabulary=2048", 1),
    ("accelerate", "mt5-zero-3"): ("vocabulary=2048", 1),
}
# DeepSpeed leaves every tensor of fewer elements whole on every rank (its
# stage3_param_persistence_threshold).
LEFT_WHOLE = 100_000
# Where checkpoints of a template stay: others than the last one, or none.
KEPT = {
    "gpt2-fsdp": {"checkpoint_1_45.pt", "checkpoint_1_60.pt", "checkpoint_best.pt",
                  "checkpoint_last.pt"},
    "lm-fsdp": set(),
    "gpt2-345m": {"global_step15", "global_step30"},
}  # fmt: skip
# gpt2-fsdp's full size on CPU ranks: all of its own arguments, but for what makes it large.
SMALL = {
    "values": "size=full,sequence=32,batch=64,update_freq=1,updates=40,warmup=5,lr=0.01,"
              "log_every=1",
    "words": ("--decoder-layers=2", "--decoder-embed-dim=64", "--decoder-input-dim=64",
              "--decoder-output-dim=64", "--decoder-ffn-embed-dim=128",
              "--decoder-attention-heads=4", "--log-format=json"),
}  # fmt: skip
# Every run of the tests sees fairseq's `lm-fsdp` on a user's own corpus; these are taken up again.
FIRST = {"megatron": "gpt2-345m-tp", "accelerate": "gpt2-zero-3"}
# By stack: TensorBoard's names of the loss of a template, and of what else is written beside it.
WRITTEN = {
    "fairseq": ("train_inner/loss", {"train_inner/lr", "train/loss"}),
    "megatron": ("Train/Samples/train_loss", {"Train/Samples/lr", "Valid/Samples/loss"}),
    "accelerate": ("loss", {"lr"}),
}
# megatron's reduced size after each of its 30 updates: three to warm up, then a cosine to min_lr.
RATES = [0.005 * 2 / 3, 0.005,
         *(0.001 + 0.004 * 0.5 * (1 + math.cos(math.pi * n / 27)) for n in range(28))]  # fmt: skip
# Small models, whose losses fairseq or our recorder writes.
SMALL_EXAMPLES = [("fairseq", "lm-ddp"), ("megatron", "gpt-tp"), ("accelerate", "ddp-file"),
         ("accelerate", "llama-zero2")]  # fmt: skip
EVENTS = """
import json, pathlib, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
top, found = pathlib.Path(sys.argv[1]), {}
for folder in sorted({path.parent for path in top.rglob("events.out.tfevents.*")}):
    read = EventAccumulator(str(folder))
    read.Reload()
    for name in read.Tags()["scalars"]:
        place = (folder / name).relative_to(top)
        found[str(place)] = [(event.step, event.value) for event in read.Scalars(name)]
print(json.dumps(found))
"""

# mT5 hides other spans in each epoch; the corpus of each model is in its own folder. Every program
# runs in a process of its own, forked from one that has imported what takes seconds.
RESUMED = f"""
import os, pathlib, runpy, sys
sys.path.insert(0, "/var/tmp/srv/templates")
import accelerate, torch, transformers
import models, spans

def run(program, **options):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, program
        return
    words = ((f"--{{name.replace('_', '-')}}", str(value)) for name, value in options.items())
    sys.argv = [program, *(word for pair in words for word in pair)]
    runpy.run_path(f"/var/tmp/srv/templates/{{program}}.py", run_name="__main__")
    sys.exit()

def train(folder, **options):
    usual = dict(
        corpus="c", save=folder, record=f"{{folder}}.rec", vocabulary=512, layers=1, hidden=64,
        heads=4, sequence=32, updates=25, batch=4, lr=0.001, dropout=0, precision="no",
        save_every=15, eval_every=5, eval_iters=2)
    run("pretrain", **usual | options)

def said(folder):
    for path in sorted(pathlib.Path(f"{{folder}}.rec").iterdir()):
        print(path.read_text(), end="")

for model in sys.argv[1:]:
    os.mkdir(f"/var/tmp/{{model}}")
    os.chdir(f"/var/tmp/{{model}}")
    run("make_corpus", text="{TEXT}", out="c", lines=60, vocabulary=512, sentinels=100)
    train("a", model=model)
    os.mkdir("b")
    os.system("cp -r a/update-15 b")
    train("b", model=model)
    train("from", model=model, **{{"from": "a/model", "updates": 1}})
    print("model", model)
    said("a")
    print("again")
    said("b")
    print("from")
    said("from")
"""
# As many as google/mt5-base has; encoder and decoder share one embedding, the output has its own.
FULL_SIZE = """
import argparse, models, os, torch
names = "layers hidden heads inner head_size vocabulary sequence".split()
options = argparse.Namespace(
    model="mt5", start="", dropout=0.0, **{name: int(os.environ[name]) for name in names})
with torch.device("meta"):
    model = models.build_model(options, 1234)
assert model.encoder.embed_tokens.weight is model.shared.weight is model.decoder.embed_tokens.weight
print(sum(part.numel() for part in model.parameters()))
"""


@pytest.fixture(scope="module")
def meshes(engine, stack_images):
    """Two nodes of a stack, started when they are first asked for."""
    with contextlib.ExitStack() as stack:
        found = {}

        def of(name):
            if name not in found:
                built = stack_images[name]
                settings = smoke.node_settings(built.info.id, built.image.stack.smoke, {})
                run = f"test-{secrets.token_hex(4)}"
                plan = certificates.MeshPlan(run=run, nodes=NODES, port=2222, seconds=3600)
                started = nodes.running_mesh(engine, plan, settings, now=int(time.time()))
                found[name] = stack.enter_context(started)
                nodes.wait_reachable(found[name])
            return found[name]

        yield of


@pytest.fixture(scope="module")
def trained(meshes):
    """A template trained once: what it said, and the folder of the job."""
    found = {}

    def of(stack, name):
        if (stack, name) not in found:
            said, folder = play(meshes(stack), stack, name, *TEMPLATES[stack, name])
            found[stack, name] = said, folder
        return found[stack, name]

    return of


def play(running, stack, name, settings="", per_node=1, words=(), folder="", steps=None):
    """As `invoke run STACK --example NAME --set SETTINGS -- WORDS`; what was said, and where.

    `steps` is how many of its steps are taken: all but the last prepare.
    """
    example = load_example(ROOT, stack, name)
    folder = folder or f"/var/lib/stackyard/jobs/{secrets.token_hex(4)}"
    where = Where(name=folder[-8:], base="cpu", image="", nodes=2, per_node=per_node, device="cpu",
                  folder=folder, save=f"{folder}/checkpoints",
                  record=rank_folder(folder[-8:]))  # fmt: skip
    work = Work(example=name, settings=settings, words=words)
    job = make_job(work, example, where, root=ROOT, stack=stack, usual="")
    standing = StandingPlan(run=running.plan.run, stack=stack, base="cpu", image="",
                            nodes=tuple(NodePlan(name=n, host="here") for n in NODES))  # fmt: skip
    port = 20000 + secrets.randbelow(9000)
    value, launch = start_request(standing, job, select(standing, per_node), port, 60)
    for node in NODES:
        put(running, node, job.files)
        put(running, node, launch.files)
    value["steps"] = value["steps"][:steps]
    running.talk.send("start", **value)
    running.talk.send("follow", job=value["name"])
    said, ended = "", None
    while ended is None:
        event = running.talk.next(200)
        assert event is not None and event["event"] != "refused", event
        if event["event"] == "log":
            said += "".join(f"{entry['text']}\n" for entry in event["lines"] if "text" in entry)
        elif event["event"] == "ended":
            ended = event["job"]
    assert ended["code"] == 0, f"{ended['step']} ended with {ended['code']}: {said[-9000:]}"
    return said, folder


def put(running, node, files):
    tree = {path.lstrip("/"): text.encode() if isinstance(text, str) else text
            for path, text in files.items()}  # fmt: skip
    words = ["tar", "-x", "-C", "/"]
    done = running.engine.exec(
        running.containers[node], words, seconds=20, stdin=pack(tree, mode=0o644)
    )
    assert done.code == 0, done.output


def losses(text):
    """Losses that the first rank printed, in order: of our programs, and of fairseq."""
    found = re.findall(r"update \d+ loss ([0-9.]+)|loss=([0-9.]+), ppl", text)
    return [float(ours or theirs) for ours, theirs in found]


def valid_losses(text):
    """Losses of the validation, likewise."""
    found = re.findall(
        r"update \d+ valid ([0-9.]+)|valid on 'valid' subset \| loss ([0-9.]+)", text
    )
    return [float(ours or theirs) for ours, theirs in found]


def checkpoints(running, folder):
    """Names of the checkpoints that a job left on the first node."""
    listed = f"mkdir -p {folder}/checkpoints && ls {folder}/checkpoints"
    done = running.engine.exec(running.first, ["sh", "-c", listed], seconds=20)
    assert done.code == 0, done.output
    return {one for one in done.output.split() if one.startswith(("checkpoint", "global_step"))}


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        pytest.param(
            stack, name, id=f"{stack}/{name}",
            marks=pytest.mark.repeat,
        )
        for stack, name in TEMPLATES
    ],
)  # fmt: skip
def test_a_template_trains_on_two_ranks(meshes, trained, stack, name):
    said, folder = trained(stack, name)
    running, found = meshes(stack), losses(said)
    assert len(found) >= 2 and found[-1] < 0.9 * found[0], found
    if stack == "megatron" or name == "gpt2-fsdp":
        valid = valid_losses(said)
        assert len(valid) >= 2 and valid[-1] < 0.97 * valid[0], valid
    if stack != "accelerate":
        assert checkpoints(running, folder) == KEPT.get(name, {"global_step30"})
    if stack == "accelerate":
        validated = valid_losses(said)
        assert len(validated) >= 2 and validated[-1] < validated[0], validated
        script = (
            "import json, sys; from safetensors.numpy import load_file;"
            " print(json.dumps({name: t.size for name, t in load_file(sys.argv[1]).items()}))"
        )
        words = ["python3", "-c", script, f"{folder}/checkpoints/model/model.safetensors"]
        done = running.engine.exec(running.first, words, seconds=30)
        assert done.code == 0, done.output
        sizes = json.loads(done.output.splitlines()[-1])
        # What was cut is there, and whole: it would be empty otherwise.
        assert all(sizes.values()) and max(sizes.values()) > LEFT_WHOLE, sizes


def require_events(running, stack, folder, name, others=frozenset()):
    """The first rank's event files hold the losses that it recorded, and these other values."""
    words = ["python3", "-c", EVENTS, f"{folder}/checkpoints/tensorboard"]
    done = running.engine.exec(running.first, words, seconds=60)
    assert done.code == 0, done.output
    written = json.loads(done.output.splitlines()[-1])
    assert others <= set(written), sorted(written)
    words = ["cat", f"{rank_folder(folder[-8:])}/rank0.jsonl"]
    lines = running.engine.exec(running.first, words, seconds=20).output.splitlines()
    steps = [line for line in map(json.loads, lines) if line["event"] == "step"]
    assert steps and [loss for _, loss in written[name]] == pytest.approx(
        [line["loss"] for line in steps], rel=1e-6
    )
    # DeepSpeed counts samples, the others updates.
    each = written[name][0][0] if stack == "megatron" and "/" in name else 1
    assert [at for at, _ in written[name]] == [each * line["step"] for line in steps]
    return written


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        pytest.param(*found, id="/".join(found), marks=pytest.mark.repeat)
        for found in TEMPLATES
    ],
)  # fmt: skip
def test_a_template_writes_event_files_with_the_losses_of_its_record(meshes, trained, stack, name):
    _, folder = trained(stack, name)
    loss, others = WRITTEN[stack]
    written = require_events(meshes(stack), stack, folder, loss, others)
    if stack == "megatron":  # of each update the rate of the next one, as DeepSpeed writes it
        assert [rate for _, rate in written["Train/Samples/lr"]] == pytest.approx(RATES, rel=1e-5)


@pytest.mark.repeat
@pytest.mark.parametrize(("stack", "name"), SMALL_EXAMPLES)
def test_small_examples_write_event_files_too(meshes, stack, name):
    _, folder = play(meshes(stack), stack, name, "updates=20")
    require_events(
        meshes(stack), stack, folder, WRITTEN[stack][0] if stack == "fairseq" else "loss"
    )


@pytest.mark.repeat  # the reduced size has the same arguments, but for the model's
def test_fairseqs_full_size_takes_its_arguments(meshes):
    """fairseq's own cosine after the warm-up, down to --min-lr; of its epochs the last three."""
    running = meshes("fairseq")
    said, folder = play(running, "fairseq", "gpt2-fsdp", SMALL["values"], words=SMALL["words"])
    rates = [float(rate) for rate in re.findall(r'"lr": "([0-9.e-]+)"', said)]
    cosine = [1e-5 + 0.5 * (0.01 - 1e-5) * (1 + math.cos(math.pi * n / 35)) for n in range(35)]
    # The rate after the last update is that of a next cycle, which does not come.
    assert rates[4:-1] == pytest.approx(cosine, rel=0.01, abs=2e-6), rates
    # The last epoch is cut short.
    *epochs, _ = sorted({int(n) for n in re.findall(r'"epoch": (\d+), "valid_loss"', said)})
    assert len(epochs) > 3
    assert checkpoints(running, folder) == {
        "checkpoint_best.pt", "checkpoint_last.pt", *(f"checkpoint{n}.pt" for n in epochs[-3:]),
    }  # fmt: skip


@pytest.mark.repeat
@pytest.mark.parametrize("stack", SAME)
def test_every_layout_has_the_same_losses(trained, stack):
    first, *others = (losses(trained(stack, name)[0]) for name in SAME[stack])
    assert len(first) >= 4
    for name, other in zip(SAME[stack][1:], others, strict=True):
        assert other == pytest.approx(first, abs=1e-3), name
    if stack == "megatron":
        start = losses(trained(stack, "gpt2-345m-3d")[0])[0]
        assert start == pytest.approx(first[0], abs=1e-3)


@pytest.mark.repeat
def test_the_notes_own_tensor_parallel_size_has_the_same_losses(meshes, trained):
    """Four ranks on two nodes, as the template's default has it on GPUs."""
    said, _ = play(meshes("megatron"), "megatron", "gpt2-345m-tp", "tp=4", 2)
    wanted = losses(trained("megatron", "gpt2-345m-tp")[0])
    assert losses(said) == pytest.approx(wanted, abs=1e-3)


@pytest.mark.repeat
@pytest.mark.parametrize(
    ("stack", "name"),
    [("megatron", "gpt2-345m"), ("megatron", "gpt2-zero-3"), ("accelerate", "gpt2-zero-2")],
)
def test_a_template_trains_in_bf16(meshes, stack, name):
    """CPU ranks leave it out to be exact, and have no fp16."""
    more, ranks = TEMPLATES[stack, name]
    said, _ = play(meshes(stack), stack, name, f"{more},precision=bf16".strip(","), ranks)
    found = losses(said)
    assert len(found) >= 4 and found[-1] < 0.9 * found[0], found


@pytest.mark.repeat  # of one template's own refusals
def test_a_vocabulary_that_is_too_small_is_named_and_one_of_any_size_is_padded(meshes):
    """With tensor parallelism: ranks could not share an odd number of rows."""
    running = meshes("megatron")
    ranks = TEMPLATES["megatron", "gpt2-345m-tp"][1]
    with pytest.raises(AssertionError, match="holds token") as caught:
        play(running, "megatron", "gpt2-345m-tp", "vocabulary=10", ranks)
    enough = int(re.search(r"holds token \d+: --set vocabulary=(\d+)", str(caught.value))[1])
    odd = enough + 1 - enough % 2
    said, _ = play(running, "megatron", "gpt2-345m-tp", f"vocabulary={odd}", ranks)
    assert losses(said)[-1] < 0.9 * losses(said)[0]


@pytest.mark.repeat  # of one template's own refusals
@pytest.mark.parametrize(
    ("settings", "file", "said"),
    [
        ("tp=1,pp=1", "/var/tmp/both.json", r"both\.json: train_batch_size come from"),
        (
            "tp=1,pp=1,precision=bf16",
            "/srv/templates/zero-0.json",
            "in bf16 without ZeRO DeepSpeed cannot",
        ),
        ("tp=2,pp=1", "/srv/templates/zero-2.json", "ZeRO-2 goes with --tp=1 --pp=1"),
        ("tp=1,pp=2", "/srv/templates/zero-3.json", "ZeRO-3 goes with --tp=1 --pp=1"),
    ],
)
def test_what_deepspeeds_file_cannot_be_with_arguments_is_refused(meshes, settings, file, said):
    running = meshes("megatron")
    for node in NODES:
        put(running, node, {"/var/tmp/both.json": json.dumps({"train_batch_size": 8})})
    with pytest.raises(AssertionError, match=said):
        play(running, "megatron", "gpt2-345m-3d", settings, words=(f"--ds-config={file}",))


@pytest.mark.repeat  # of one template by another file of DeepSpeed's
@pytest.mark.parametrize(
    ("settings", "kept"),
    [("", {"global_step30"}), ("precision=bf16,save_every=0", set())],
    ids=["fp32", "bf16"],
)
def test_a_template_trains_without_zero_by_a_file_of_deepspeeds(meshes, settings, kept):
    """In bf16 nothing is saved, as DeepSpeed could not load it."""
    words, running = ("--ds-config=/srv/templates/zero-0.json",), meshes("megatron")
    said, folder = play(running, "megatron", "gpt2-345m", settings, words=words)
    assert losses(said)[-1] < 0.9 * losses(said)[0]
    assert checkpoints(running, folder) == kept


@pytest.mark.repeat  # of one template by another file of DeepSpeed's
@pytest.mark.parametrize(("name", "cost"), [
    ("gpt2-345m", "zero"), ("gpt2-zero-1", "zero"), ("gpt2-zero-2", "zero"),
    ("gpt2-zero-2", "stage"), ("gpt2-zero-3", "zero"), ("gpt2-zero-3", "stage"),
])  # fmt: skip
def test_a_template_trains_without_what_may_cost_its_speed(meshes, name, cost):
    """In bf16, as on GPUs, where a bench starts it so if a plain loop is faster."""
    words = load_example(ROOT, "megatron", name).plain.costs[cost].args
    said, _ = play(meshes("megatron"), "megatron", name, "precision=bf16", words=words)
    assert losses(said)[-1] < 0.9 * losses(said)[0]


@pytest.mark.parametrize(
    "stack", [pytest.param(name, marks=pytest.mark.repeat) for name in ("accelerate", "megatron")]
)
def test_checkpoints_that_nodes_do_not_share_are_named_when_they_are_taken_up(
    meshes, trained, stack
):
    """What the second node lacks would have it begin anew beside a first that goes on."""
    _, folder = trained(stack, FIRST[stack])
    with pytest.raises(AssertionError, match="the nodes do not see the same checkpoint"):
        play(meshes(stack), stack, FIRST[stack], *TEMPLATES[stack, FIRST[stack]], folder=folder)


MODELS = ("gpt2", "mt5")


@pytest.fixture(scope="module")
def resumed(meshes):
    """What `RESUMED` said of each model."""
    running = meshes("accelerate")
    example = load_example(ROOT, "accelerate", "gpt2-zero-2")
    files = example_files(ROOT, example)
    put(running, NODES[0], {f"/var/tmp{path}": text for path, text in files.items()})
    words = ["env", "TORCHDYNAMO_DISABLE=1", "ACCELERATE_USE_CPU=true", "python3", "-uc", RESUMED]
    done = running.engine.exec(running.first, [*words, *MODELS], seconds=400)
    assert done.code == 0, done.output[-3000:]
    _, *parts = re.split("(?m)^model .*\n", done.output)
    return dict(zip(MODELS, parts, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_template_goes_on_as_if_it_had_never_stopped(resumed, model):
    """One process, from its checkpoint on: the same batches follow, into the next epoch.

    What is validated is the same, too. A start from the trained model goes on where that ended.
    """
    first, again, start = (
        [line.partition(', "time')[0] for line in part.splitlines()
         if line.startswith(('{"event": "step"', '{"event": "valid"'))]
        for part in re.split("(?m)^(?:again|from)\n", resumed[model])
    )  # fmt: skip
    assert len(first) == 25 + 5 and len(again) == 10 + 2
    assert again == first[-12:]
    begun, trained, new = (json.loads(f"{lines[n]}}}")["loss"] for lines, n in
                           ((first, 0), (first, -2), (start, 0)))  # fmt: skip
    assert new < begun - 0.5 * (begun - trained), (begun, trained, new)


@pytest.mark.repeat  # of one template's numbers
def test_the_mt5_of_the_full_size_is_the_published_one(meshes):
    running = meshes("accelerate")
    example = load_example(ROOT, "accelerate", "mt5-zero-3")
    put(running, NODES[0], {f"/var/tmp{path}": text for path, text
                            in example_files(ROOT, example).items()})  # fmt: skip
    words = ["env", "PYTHONPATH=/var/tmp/srv/templates", "TORCHDYNAMO_DISABLE=1",
             *(f"{name}={value}" for name, value in example.values.items() if value.isdecimal()),
             "python3", "-c", FULL_SIZE]  # fmt: skip
    done = running.engine.exec(running.first, words, seconds=120)
    assert done.output.splitlines()[-1] == "582401280", done.output


# GPT-2 of megatron's templates in one process: how often its layers run for one update with
# `recompute` and without, and the largest difference of the gradients; before these, the rows for
# the words.
RECOMPUTED = """
import torch, gpt2
from megatron.core import parallel_state, tensor_parallel
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
parallel_state.initialize_model_parallel(1, 1)
runs, run = [], gpt2.Layer._run
gpt2.Layer._run = lambda layer, hidden: runs.append(layer) or run(layer, hidden)
counts, gradients = [], []
for recompute in (True, False):
    shape = gpt2.Shape(layers=2, hidden=64, heads=4, sequence=32, vocabulary=100, dropout=0.1,
                       recompute=recompute, fusions=False)
    model = gpt2.Whole(shape, torch.float32)
    torch.manual_seed(7)
    tensor_parallel.model_parallel_cuda_manual_seed(7, inference_rng_tracker=True)
    runs.clear()
    text = torch.arange(4 * 32).reshape(4, 32) % 100
    model(text, text).backward()
    counts.append(len(runs))
    gradients.append([parameter.grad for parameter in model.parameters()])
print(len(model.words.weight), *counts, max((a - b).abs().max().item() for a, b in zip(*gradients)))
"""


@pytest.mark.repeat  # of one setting of one stack's templates
def test_recomputed_layers_run_twice_with_the_same_dropout(meshes):
    running = meshes("megatron")
    example = load_example(ROOT, "megatron", "gpt2-345m")
    put(running, NODES[0], {f"/var/tmp{path}": text for path, text
                            in example_files(ROOT, example).items()})  # fmt: skip
    words = ["env", "PYTHONPATH=/var/tmp/srv/templates", "TORCHDYNAMO_DISABLE=1", "python3", "-c",
             RECOMPUTED]  # fmt: skip
    done = running.engine.exec(running.first, words, seconds=120)
    rows, with_it, without, difference = done.output.splitlines()[-1].split()
    assert rows == "128", done.output  # of 100 words
    assert (with_it, without) == ("4", "2"), done.output
    assert float(difference) < 1e-7


# A program of one's own on two tensor-parallel ranks: two layers, whose gradients are compared with
# those of the same layers without checkpoints, under each of DeepSpeed's options. Of each it says
# how often layers ran, how many of the first one's 2,048 numbers it keeps, and what differs most.
CHECKPOINTED = """
import json, pathlib, sys
import deepspeed, torch
from megatron.core import parallel_state
deepspeed.init_distributed("gloo", verbose=False)
parallel_state.initialize_model_parallel(2, 1, create_gloo_process_groups=False)

def train(options=None):
    if options is not None:
        file = pathlib.Path(f"ds{torch.distributed.get_rank()}.json")
        file.write_text(json.dumps(
            {"train_micro_batch_size_per_gpu": 1, "activation_checkpointing": options}))
        deepspeed.checkpointing.configure(parallel_state, deepspeed_config=str(file))
    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.3), torch.nn.GELU())
              for _ in range(2)]
    runs, text = [], torch.randn(4, 8, 64, requires_grad=True)
    first = hidden = 1 * text
    for layer in layers:
        layer.register_forward_pre_hook(lambda *given: runs.append(given))
        hidden = (layer(hidden) if options is None
                  else deepspeed.checkpointing.checkpoint(layer, hidden))
    kept = getattr(first, "saved_data", first).numel()
    hidden.square().sum().backward()
    return len(runs), kept, [text.grad, *(p.grad for layer in layers for p in layer.parameters())]

*_, wanted = train()
for options in json.loads(sys.argv[1]):
    try:
        runs, kept, found = train(options)
        said = [runs, kept, max((a - b).abs().max().item() for a, b in zip(found, wanted))]
    except (AssertionError, RuntimeError) as error:
        said = [str(error)]
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        print(f"\\nfound {json.dumps(said)}\\n", end="", flush=True)
    torch.distributed.barrier()
"""
PARTED, NUMBER = {"partition_activations": True}, {"number_checkpoints": 2}
CONTIGUOUS = {"contiguous_memory_optimization": True}
IN_MEMORY = {"cpu_checkpointing": True}
TIMED = {"synchronize_checkpoint_boundary": True, "profile": True}
# What DeepSpeed's `activation_checkpointing` holds: numbers that are kept of each layer's input, or
# the error. In the host's memory alone nothing is kept where that is the ranks' memory already.
OPTIONS = [
    ({}, 2048), (NUMBER, 2048), (TIMED, 2048), (PARTED, 1024), (PARTED | IN_MEMORY, 1024),
    (PARTED | NUMBER | CONTIGUOUS, 1024),
    (PARTED | NUMBER | CONTIGUOUS | IN_MEMORY | TIMED, 1024),
    (NUMBER | CONTIGUOUS, "only available with partitioned activations"),
    (PARTED | CONTIGUOUS, "Must specify the number of layers"),
    (IN_MEMORY, "need to be at least 1D, but they are 0D"),
]  # fmt: skip


@pytest.mark.repeat  # of what DeepSpeed has for programs of one's own
def test_deepspeeds_checkpoints_of_activations_give_the_same_gradients(meshes):
    """Layers run twice with the same dropout, and each of two ranks keeps its part of the input."""
    running = meshes("megatron")
    put(running, NODES[0], {"/var/tmp/checkpointed.py": CHECKPOINTED})
    words = ["env", "TORCHDYNAMO_DISABLE=1", "DS_ACCELERATOR=cpu", "OMP_NUM_THREADS=1",
             "torchrun", "--nproc_per_node=2", "--master_addr=127.0.0.1", "--master_port=29811",
             "/var/tmp/checkpointed.py",
             json.dumps([options for options, _ in OPTIONS])]  # fmt: skip
    done = running.engine.exec(running.first, words, seconds=200, folder="/var/tmp")
    found = re.findall(r"(?m)^found (.*)$", done.output)
    assert len(found) == len(OPTIONS), done.output[-3000:]
    for (options, wanted), said in zip(OPTIONS, map(json.loads, found), strict=True):
        if isinstance(wanted, str):
            assert wanted in said[0], (options, said)
        else:
            assert said == [4, wanted, 0.0], (options, said)
    assert re.search(r"time \(ms\) \| fwd: ", done.output)


@pytest.mark.repeat  # of one mistake in a corpus
def test_a_corpus_with_an_empty_part_is_named_and_not_searched_for_ever(meshes):
    running = meshes("megatron")
    example = load_example(ROOT, "megatron", "gpt2-345m")
    programs = {f"/var/tmp{path}": text for path, text in example_files(ROOT, example).items()}
    put(running, NODES[0], programs)
    script = (
        "cd /var/tmp/srv/templates && export TORCHDYNAMO_DISABLE=1;"
        f" python3 make_corpus.py --text {TEXT} --out /var/tmp/few --lines 4"
        " && python3 samples.py --corpus=/var/tmp/few --cache=/var/tmp/few.cache --sequence=32"
        " --vocabulary=2048 --updates=1 --batch=1 --replicas=1"
    )
    done = running.engine.exec(running.first, ["sh", "-c", script], seconds=60)
    assert done.code == 1, done.output
    assert "holds 8 documents: --split 900,50,50 leaves none for test" in done.output


def test_the_users_corpus_and_arguments_go_in(meshes):
    """Nothing is prepared then; what follows `--` is the program's. An epoch reads one folder."""
    running = meshes("fairseq")
    _, earlier = play(running, "fairseq", "lm-fsdp", steps=-1)
    second = f"cd {earlier}/data && cp -r bin second && rm second/valid.*"
    for container in running.containers.values():
        done = running.engine.exec(container, ["sh", "-c", second], seconds=20)
        assert done.code == 0, done.output
    folders = f"{earlier}/data/bin", f"{earlier}/data/second"
    settings = f"corpus={':'.join(folders)},batch=64"
    said, folder = play(running, "fairseq", "lm-fsdp", settings, words=("--max-update=15",))
    assert "num_updates=15," in said and "num_updates=16," not in said
    found = losses(said)
    assert found[-1] < 0.9 * found[0], found
    read = re.findall(r"loaded [\d,]+ examples from: (\S+)/train", said)
    assert list(dict.fromkeys(read)) == list(folders)
    made = running.engine.exec(running.first, ["ls", f"{folder}/data"], seconds=20)
    assert made.code != 0


def test_every_template_of_the_notes_is_tried():
    paths = ROOT.glob("images/*/examples/*.yml")
    names = [(path.parent.parent.name, path.stem) for path in paths]
    assert {found for found in names if load_example(ROOT, *found).note} == set(TEMPLATES)
    assert set(FIRST.items()) <= set(TEMPLATES)


@pytest.mark.repeat  # of each stack: how a template is killed, resumed and recorded
@pytest.mark.parametrize(
    ("stack", "name", "more"),
    [("fairseq", "gpt2-fsdp", ()), ("accelerate", "mt5-zero-3", ()),
     ("megatron", "gpt2-345m", ("--set", "precision=bf16"))],  # as on GPUs
)  # fmt: skip
def test_a_benched_template_is_killed_resumed_and_judged(stack_images, stack, name, more):
    """The way of the full size, in the reduced one; what is not for CPU ranks is `not run`."""
    done = invoke("bench", stack, "--example", name, "--gpus", "0", "--updates", "40", "--json",
                  *more, timeout=300)  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    (report,) = json.loads(done.stdout)["reports"]
    plain = {"fairseq": []}.get(stack, ["plain"])
    assert {check["name"]: check["outcome"] for check in report["checks"]} == dict.fromkeys(
        ("launched", "loss", "validated", "resumed", "kept", *plain, "no_strays"), "passed"
    )
    assert not plain or report["plain"]["tokens_s"] > 0
    assert report["figures"]["tokens_s"] > 0 and report["figures"]["mfu"] is None
    path = ROOT / "reports" / stack / "cpu" / f"template-{name}-cpu-ranks.json"
    assert json.loads(path.read_text(encoding="utf-8")) == report
    assert "<polyline" in path.with_suffix(".html").read_text(encoding="utf-8")
    file = path.with_suffix(".intoto.jsonl")
    found = evidence.read_evidence(evidence.read_envelope(file.read_bytes(), str(file)), str(file))
    assert (found.what, found.image_id) == (f"template {name}", report["image"]["id"])
