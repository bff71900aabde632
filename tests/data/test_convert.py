"""Converted checkpoints compute what the stacks compute: the same logits on real text, in fp32.

Those of fairseq's and Megatron's usual way are in `test_trains.py`, of what is trained there.
"""

import json
import re
import struct

import pytest

from stackyard.data import container
from stackyard.definitions import examples
from stackyard.definitions.project import ROOT
from tests.data.conftest import CLOSE

FAIRSEQ = [
    "--task=language_modeling", "--tokens-per-sample=32", "--batch-size=8", "--optimizer=adam",
    "--lr=0.01", "--lr-scheduler=inverse_sqrt", "--warmup-updates=4", "--max-update=30",
    "--decoder-layers=2", "--decoder-embed-dim=64", "--decoder-ffn-embed-dim=128",
    "--decoder-attention-heads=4", "--disable-validation", "--no-epoch-checkpoints", "--cpu",
    "--distributed-backend=gloo", "--num-workers=0", "--log-format=simple",
]  # fmt: skip
DIMENSIONS = ["--decoder-input-dim=64", "--decoder-output-dim=64"]
FSDP = ["--ddp-backend=fully_sharded", "--no-reshard-after-forward", "--checkpoint-activations"]
MODELS = {
    "gpt2": ["--arch=transformer_lm_gpt"],
    "projected": [
        "--arch=transformer_lm", "--decoder-input-dim=32", "--decoder-output-dim=32",
        "--decoder-learned-pos", "--activation-fn=gelu_accurate", "--no-scale-embedding",
    ],
    "narrow-output": ["--arch=transformer_lm", "--decoder-input-dim=64", "--decoder-output-dim=32"],
    "fsdp": ["--arch=transformer_lm", *DIMENSIONS, *FSDP],
    "sharded": ["--arch=transformer_lm", *DIMENSIONS, *FSDP, "--use-sharded-state"],
}  # fmt: skip
# fairscale saves shards between three calls of CUDA, which CPU ranks do not have.
WITHOUT_CUDA = """
from unittest import mock
for name in ("torch.cuda.synchronize", "torch.cuda.current_stream", "torch.Tensor.record_stream"):
    mock.patch(name).start()
"""
TRAIN = "from fairseq_cli.train import cli_main\ncli_main()\n"


@pytest.mark.repeat
@pytest.mark.parametrize("name", MODELS)
def test_fairseq(box, make, place, fairseq_difference, name):
    folder = place / f"convert-fairseq-{name}"
    folder.mkdir()
    data = folder / "data"
    make("fairseq", tokenizer="bpe", split=(98.0, 2.0, 0.0)).rename(data)
    (folder / "train.py").write_text((WITHOUT_CUDA if name == "sharded" else "") + TRAIN)
    ranks = 2 if name in ("fsdp", "sharded") else 1
    launch = ["torchrun", f"--nproc_per_node={ranks}"] if ranks > 1 else ["python3"]
    box("fairseq").said(
        *launch, str(folder / "train.py"), str(data), *FAIRSEQ, *MODELS[name],
        f"--save-dir={folder}/save",
    )  # fmt: skip
    checkpoint = folder / "save" / "checkpoint_last.pt"
    assert fairseq_difference(checkpoint, data, 2 if name == "sharded" else 1) < CLOSE


@pytest.mark.repeat  # test_fairseq converts what was trained with this tokenizer, too
def test_a_tokenizer_comes_along_with_its_own_numbers(box, make, place, convert, material):
    folder = place / "convert-tokenizer"
    folder.mkdir()
    data = folder / "data"
    make("fairseq", tokenizer="bpe", split=(98.0, 2.0, 0.0)).rename(data)
    box("fairseq").said(
        "fairseq-train", str(data), *FAIRSEQ, *MODELS["gpt2"], f"--save-dir={folder}/save"
    )
    model = convert("fairseq", folder / "save" / "checkpoint_last.pt", data=data)
    said = box("accelerate").said(
        "python3", "-c",
        "import sys; from transformers import AutoTokenizer as T, AutoModelForCausalLM as M\n"
        "t, m = T.from_pretrained(sys.argv[1]), M.from_pretrained(sys.argv[1])\n"
        "text = open(sys.argv[2]).readline().strip()[:6]\n"
        "given = t(text, return_tensors='pt')\n"
        "print(m.config.vocab_size == len(t), t.decode(given.input_ids[0]) == text,\n"
        "      t.eos_token_id == m.config.eos_token_id,\n"
        "      float(m(**given, labels=given.input_ids).loss) < 6)",
        str(model), str(material / "text.txt"),
    )  # fmt: skip
    assert said.splitlines()[-1] == "True True True True"


LAYOUTS = {
    "3d": (4, ["--tp=2", "--pp=2", "--replicas=1", "--accumulate=2"], ""),
    "tp-zero-1": (4, ["--tp=2", "--replicas=2", "--accumulate=1"], "zero-1"),
    "pp-zero-1": (4, ["--pp=2", "--replicas=2", "--accumulate=2"], "zero-1"),
    "zero-1": (2, ["--replicas=2", "--accumulate=1"], "zero-1"),
    "zero-3": (2, ["--replicas=2", "--accumulate=1"], "zero-3"),
}


@pytest.mark.repeat
@pytest.mark.parametrize("layout", LAYOUTS)
def test_megatron(box, make, place, megatron, convert, difference, layout):
    ranks, words, zero = LAYOUTS[layout]
    folder = place / f"convert-megatron-{layout}"
    folder.mkdir()
    data = folder / "data"
    make("megatron", vocab="characters.json", train="spelled.txt", eod="<eod>").rename(data)
    templates = folder / "templates"
    templates.mkdir()
    for path in (ROOT / "images" / "megatron" / "templates").iterdir():
        (templates / path.name).write_bytes(path.read_bytes())
    for name in examples.BESIDE:
        (templates / name).write_bytes((ROOT / "stackyard" / "inside" / name).read_bytes())
    env = {"PYTHONPATH": str(templates), "DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    sizes = ["--layers=2", "--hidden=64", "--heads=4", "--lr=0.005", "--decay-updates=20",
             "--dropout=0", "--precision=no", f"--save={folder}/save", "--save-every=20",
             f"--record={folder}/record"]  # fmt: skip
    read = [f"--corpus={data}", f"--cache={folder}/cache", "--split=900,50,50", "--sequence=32",
            "--vocabulary=4096", "--updates=20", "--batch=4", "--eval-every=20", "--eval-iters=1",
            *(word for word in words if not word.startswith(("--tp", "--pp")))]  # fmt: skip
    parallel = [word for word in words if word.startswith(("--tp", "--pp"))]
    more = [f"--ds-config={templates}/{zero}.json"] if zero else []
    box("megatron").said("python3", str(templates / "samples.py"), *read, env=env)
    computed = megatron(folder, data, ranks, [*read, *sizes, *parallel, *more], env)
    assert difference(convert("megatron", folder / "save"), *computed) < CLOSE


def test_megatron_wants_the_number_of_heads_where_nothing_says_it(convert, box, place):
    folder = place / "convert-old"
    (folder / "global_step1").mkdir(parents=True)
    (folder / "latest").write_text("global_step1")
    box("megatron").said(
        "python3", "-c",
        "import sys, torch\n"
        "torch.save({'weight': torch.zeros(4, 4)},"
        " sys.argv[1] + '/global_step1/layer_00-model_00-model_states.pt')",
        str(folder),
    )  # fmt: skip
    with pytest.raises(container.DataError, match="does not say how many attention heads"):
        convert("megatron", folder)


# By kind of model, stack and tokenizer of the data: which of them end every text themselves?
ENDINGS = [
    ("gpt2", "accelerate", "bpe"),
    ("gpt2", "accelerate", "mt5"),  # T5's own does
    ("gpt2", "megatron", "bert"),  # BERT's begins texts, too
    ("gpt2", "fairseq", "mt5"),
    ("mt5", "accelerate", "mt5"),
    ("mt5", "accelerate", "unigram"),  # a bare one does not
]
# Adds each to a model; says the numbers of a text and of a pair as transformers gives them to a
# user, those that the data hold, and the end.
ADDED = """
import json, sys
from pathlib import Path
import convert, encode, torch
from transformers import AutoTokenizer
for number, (kind, stack, name) in enumerate(json.loads(sys.argv[2])):
    data, out = Path(sys.argv[1], name), Path(sys.argv[3], str(number))
    out.mkdir(parents=True)
    config = {"is_encoder_decoder": kind == "mt5", "model_type": kind}
    model = convert.Model(config, {"w": torch.zeros(8000, 1)}, ("w",))
    convert.add_tokenizer(model, stack, data, name, out)
    (out / "config.json").write_text(json.dumps({"model_type": kind}))
    text = "The sea. 白日依山尽"
    own = encode.tokens(data, name).tokenizer.encode(text, add_special_tokens=False).ids
    found = AutoTokenizer.from_pretrained(out)
    print(json.dumps([found(text).input_ids, found.encode("a", "b"), own, found.eos_token_id]))
"""


def test_a_tokenizer_ends_texts_as_its_model_wants(box, material, place):
    """A GPT-2 would go on behind the end of its prompt; T5 has always seen an end."""
    words = [str(material), json.dumps(ENDINGS), str(place / "ends")]
    said = box("accelerate").said("python3", "-c", ADDED, *words, env={"PYTHONPATH": "/srv/data"})
    for case, line in zip(ENDINGS, said.splitlines()[-len(ENDINGS) :], strict=True):
        numbers, pair, own, end = json.loads(line)
        if case[0] == "mt5":
            assert (numbers, end) == ([*own, 1], 1), case
            assert pair.count(end) == 2 and pair[-1] == end, case
        else:
            assert numbers == own and end not in pair, case


def embeddings(model):
    """Names of the embeddings in a model's file, which begins with a table of contents."""
    with (model / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        names = json.loads(file.read(size))
    ends = ("lm_head.weight", "shared.weight", "tokens.weight")
    return sorted(name for name in names if name.endswith(ends))


# The numbers of the tokenizer's first sentinels and end.
NUMBERS = """
import sys
from transformers import AutoTokenizer
found = AutoTokenizer.from_pretrained(sys.argv[1])("a<extra_id_0>b<extra_id_1>").input_ids
print(*(n for n in found if n > 411 or n == 1))
"""


@pytest.mark.parametrize(
    ("kind", "stage"),
    [("mt5", 0)]
    + [pytest.param("gpt2", stage, marks=pytest.mark.repeat) for stage in (0, 2, 3)]
    + [pytest.param("mt5", 3, marks=pytest.mark.repeat)],
)
def test_accelerate(box, place, convert, difference, kind, stage):
    folder = place / f"convert-accelerate-{kind}-{stage}"
    folder.mkdir()
    for path in (ROOT / "images" / "accelerate" / "templates").glob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name in examples.BESIDE:
        (folder / name).write_bytes((ROOT / "stackyard" / "inside" / name).read_bytes())
    (folder / "accelerate.yaml").write_text(
        "{compute_environment: LOCAL_MACHINE, distributed_type: DEEPSPEED, use_cpu: true,"
        " mixed_precision: 'no', num_machines: 1, num_processes: 2, machine_rank: 0,"
        f" deepspeed_config: {{zero_stage: {stage}, zero3_init_flag: false,"
        " offload_param_device: none, offload_optimizer_device: none,"
        " gradient_accumulation_steps: 1,"
        f" zero3_save_16bit_model: {str(stage == 3).lower()}}}}}"
    )
    env = {"TORCHDYNAMO_DISABLE": "1"} | ({} if stage else {"ACCELERATE_USE_CPU": "true"})
    run = box("accelerate")
    text = "/usr/local/share/stackyard/text"
    corpus = ["--text", text, "--out", f"{folder}/corpus", "--lines", "60", "--vocabulary", "512",
              "--sentinels", "100"]  # fmt: skip
    run.said("python3", f"{folder}/make_corpus.py", *corpus, env=env)
    launch = ["accelerate", "launch", "--config_file", f"{folder}/accelerate.yaml"]
    run.said(
        *(launch if stage else ["python3"]), f"{folder}/pretrain.py", f"--model={kind}",
        f"--corpus={folder}/corpus", "--vocabulary=512", "--layers=2", "--hidden=64", "--heads=4",
        "--sequence=32", "--updates=20", "--batch=4", "--lr=0.005", "--dropout=0",
        "--precision=no", "--save-every=20", f"--zero-stage={stage}", f"--save={folder}/save",
        f"--record={folder}/record", env=env,
    )  # fmt: skip
    model = convert("accelerate", folder / "save" / "update-20", data=folder / "corpus")
    # The template itself saves its whole model at the end, through transformers.
    tokens = f"{folder}/corpus/train.npy,,8,32"
    assert difference(model, tokens, folder / "save" / "model") < CLOSE
    if kind == "mt5":
        # The embedding is there once, under the name that transformers ties the others to.
        assert embeddings(model) == ["lm_head.weight", "shared.weight"]
        assert run.said("python3", "-c", NUMBERS, str(model)).splitlines()[-1] == "511 510 1"
        said = run.said("python3", f"{folder}/fill.py", "--model", str(model), "--most", "8",
                        "The <extra_id_0> walks in<extra_id_1>", env=env)  # fmt: skip
        # What fills a blank may be a line's end; warnings come before.
        assert re.search(r"(?ms)^The.{0,100} walks in", said), said
