"""Each stack's own example trains on what `invoke data` made: the loss falls.

What fairseq and Megatron trained here is converted, too, and computes the same afterwards.
"""

import json
import re
import shutil

import pytest

from stackyard.definitions import examples
from stackyard.definitions.job_source import example_files, load_example
from stackyard.definitions.project import ROOT
from tests.data.conftest import CLOSE

UPDATES = 30


def program(stack, name, folder, ranks=1, **given):
    """The example's commands, the program's last, with their places below `folder`."""
    example = load_example(ROOT, stack, name)
    where = examples.Where(
        name="x", base="cpu", image="x", nodes=1, per_node=ranks, device="cpu",
        folder=str(folder), save=str(folder / "save"),
    )  # fmt: skip
    files = example_files(ROOT, example)
    job = examples.job_of(example, where, files, {"updates": str(UPDATES), **given})
    for place, data in job.files.items():
        path = folder / place.partition("/srv/")[2].partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def here(words):
        words = [re.sub(r"/srv/(smoke|templates)\b", str(folder), word) for word in words]
        return [*(["python3"] if words[0].endswith(".py") else []), *words]

    return [here(words) for words in (*job.prepare, job.program)], dict(job.env)


def losses(folder, event="step"):
    lines = (folder / "record" / "rank0.jsonl").read_text().splitlines()
    return [found["loss"] for found in map(json.loads, lines) if found.get("event") == event]


@pytest.fixture(scope="module")
def by_fairseq(box, make_in, place, tmp_path_factory):
    """Trained by fairseq: its folder, and what was said."""
    folder = place / "train-fairseq"
    (folder / "data").mkdir(parents=True)
    made = make_in(tmp_path_factory.mktemp("made"), "fairseq", tokenizer="bpe",
                   split=(98.0, 2.0, 0.0))  # fmt: skip
    shutil.move(made, folder / "data" / "bin")
    (*_, words), env = program("fairseq", "lm-ddp", folder, log_every="5")
    words += ["--distributed-world-size=1", "--log-format=json"]
    return folder, box("fairseq").said(*words, env=env)


@pytest.mark.repeat  # test_typed.py trains on data that were typed
def test_fairseq(by_fairseq):
    inner = [json.loads(line[line.index("{") :]) for line in by_fairseq[1].splitlines()
             if "train_inner" in line]  # fmt: skip
    found = [float(entry["loss"]) for entry in inner]
    assert len(found) == UPDATES // 5
    assert found[-1] < 0.9 * found[0], found


@pytest.mark.repeat  # test_typed.py has one of a sharded folder
def test_fairseqs_model_is_converted_and_computes_the_same(by_fairseq, fairseq_difference):
    folder, _ = by_fairseq
    checkpoint = folder / "save" / "checkpoint_last.pt"
    assert fairseq_difference(checkpoint, folder / "data" / "bin") < CLOSE


@pytest.fixture(scope="module")
def by_megatron(box, make_in, megatron, place, tmp_path_factory):
    """Two ranks of the notes' template for ZeRO-2, on a folder that is divided already."""
    folder = place / "train-megatron"
    data = make_in(tmp_path_factory.mktemp("made"), "megatron", vocab="characters.json",
                   train="spelled.txt", eod="<eod>", split=(900.0, 50.0, 50.0))  # fmt: skip
    shutil.copytree(data, folder / "corpus")
    commands, env = program("megatron", "gpt2-zero-2", folder, ranks=2,
                            corpus=f"{folder}/corpus", vocabulary="4096")  # fmt: skip
    assert not any("make_corpus" in word for words in commands for word in words)
    *prepare, (_, own, *words) = commands
    for first in prepare:
        box("megatron").said(*first, env=env, folder=str(folder))
    assert own == f"{folder}/pretrain.py"
    env = {**env, "PYTHONPATH": str(folder)}
    return folder, megatron(folder, folder / "corpus", 2, words, env)


def test_megatron(by_megatron):
    """The notes' own template, with its validation."""
    folder, _ = by_megatron
    found = losses(folder)
    assert len(found) == UPDATES
    assert found[-1] < 0.9 * found[0], found
    valid = losses(folder, "valid")
    assert len(valid) == 2 and valid[1] < valid[0], valid
    assert {path.name for path in (folder / "save").glob("global_step*")} == {"global_step30"}


def test_megatrons_model_is_converted_and_computes_the_same(by_megatron, convert, difference):
    folder, computed = by_megatron
    assert difference(convert("megatron", folder / "save"), *computed) < CLOSE


def test_accelerate(box, make, place):
    folder = place / "train-accelerate"
    shutil.copytree(make("accelerate", tokenizer="bpe", seq_length=32), folder / "data")
    (folder / "data" / "train.npy").rename(folder / "data" / "blocks.npy")
    (*_, words), env = program("accelerate", "llama-ddp", folder)
    box("accelerate").said(*words, env=env, folder=str(folder))
    found = losses(folder)
    assert len(found) == UPDATES
    assert found[-1] < 0.95 * found[0], found
