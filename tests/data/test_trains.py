"""Each stack's own example trains on what `invoke data` made: the loss falls."""

import json
import shutil

from stackyard.definitions import examples
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.example import read_example
from stackyard.validate import smoke

UPDATES = 30


def program(stack, name, folder, **given):
    """The example's command, with its places below `folder`."""
    path = ROOT / "images" / stack / "examples" / f"{name}.yml"
    example = read_example(path.read_text(encoding="utf-8"), str(path), stack, name)
    where = examples.Where(
        name="x", base="cpu", image="x", nodes=1, per_node=example.multiple, device="cpu",
        folder=str(folder), save=str(folder / "save"),
    )  # fmt: skip
    job = examples.job_of(example, where, {}, {"updates": str(UPDATES), **given})
    for file, data in smoke.workload_files(ROOT / "images" / stack / "smoke").items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    for name in examples.BESIDE:
        shutil.copy(ROOT / "stackyard" / "inside" / name, folder)
    words = [word.replace("/srv/smoke", str(folder)) for word in job.program]
    return [*(["python3"] if words[0].endswith(".py") else []), *words], dict(job.env)


def losses(folder):
    lines = (folder / "record" / "rank0.jsonl").read_text().splitlines()
    return [found["loss"] for found in map(json.loads, lines) if found.get("event") == "step"]


def test_fairseq(box, make, place):
    folder = place / "train-fairseq"
    (folder / "data").mkdir(parents=True)
    shutil.move(make("fairseq", tokenizer="bpe", split=(98.0, 2.0, 0.0)), folder / "data" / "bin")
    words, env = program("fairseq", "lm-ddp", folder, log_every="5")
    words += ["--distributed-world-size=1", "--no-save", "--log-format=json"]
    said = box("fairseq").said(*words, env=env)
    inner = [json.loads(line[line.index("{") :]) for line in said.splitlines()
             if "train_inner" in line]  # fmt: skip
    found = [float(entry["loss"]) for entry in inner]
    assert len(found) == UPDATES // 5
    assert found[-1] < 0.9 * found[0], found


def test_megatron(box, make, place):
    folder = place / "train-megatron"
    made = make("megatron", vocab="characters.json", train="spelled.txt", eod="<eod>")
    shutil.copytree(made, folder / "data")
    for kind in ("bin", "idx"):
        (folder / "data" / f"train.{kind}").rename(folder / "data" / f"text.{kind}")
    # Its own text would be read where the index is missing.
    words, env = program("megatron", "gpt-tp", folder)
    words = [word for word in words if not word.startswith(("--tp", "--dp"))]
    box("megatron").said(*words, env=env, folder=str(folder))
    found = losses(folder)
    assert len(found) == UPDATES
    assert found[-1] < 0.9 * found[0], found


def test_accelerate(box, make, place):
    folder = place / "train-accelerate"
    shutil.copytree(make("accelerate", tokenizer="bpe", seq_length=32), folder / "data")
    (folder / "data" / "train.npy").rename(folder / "data" / "blocks.npy")
    words, env = program("accelerate", "llama-ddp", folder)
    box("accelerate").said(*words, env=env, folder=str(folder))
    found = losses(folder)
    assert len(found) == UPDATES
    assert found[-1] < 0.95 * found[0], found
