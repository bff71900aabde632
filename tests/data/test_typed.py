"""`invoke data` as it is typed: compressed JSON lines in, data that fairseq trains on out."""

import gzip
import json
import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT


@pytest.fixture
def typed():
    def run(*words):
        line = [sys.executable, "-m", "invoke", "data", *words, "--base", "cpu", "--json"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


@pytest.fixture
def plain(make):
    """The same text as a plain file."""
    return make("fairseq", out="plain", tokenizer="bpe", split=(98.0, 2.0, 0.0))


@pytest.fixture
def lines(material, tmp_path):
    """JSON lines of the text, compressed by gzip and by zstd."""
    texts = (material / "text.txt").read_text(encoding="utf-8").splitlines()
    data = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "text.jsonl").write_text(data, encoding="utf-8")
    subprocess.run(["zstd", "-q", tmp_path / "text.jsonl"], check=True)
    return tmp_path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_json_lines_give_the_bytes_of_plain_text(typed, plain, lines, material, suffix):
    out = lines / "out"
    about, _ = typed(
        "fairseq", "--input", f"{lines}/text{suffix}", "--tokenizer", str(material / "bpe"),
        "--split", "98,2", "--out", str(out),
    )  # fmt: skip
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx", "dict.txt"):
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    assert about["splits"]["train"]["documents"] == 2352


def test_fairseq_trains_on_folders_one_an_epoch(typed, box, lines, material, place):
    out = place / "sharded"
    _, said = typed(
        "fairseq", "--input", f"{lines}/text.jsonl.zst", "--tokenizer", str(material / "bpe"),
        "--split", "98,2", "--shards", "3", "--out", str(out),
    )  # fmt: skip
    folders = f"{out}/shard0:{out}/shard1:{out}/shard2"
    assert f"fairseq-train {folders}" in said
    told = box("fairseq").said(
        "fairseq-train", folders, "--task=language_modeling", "--arch=transformer_lm",
        "--decoder-layers=1", "--decoder-embed-dim=32", "--decoder-ffn-embed-dim=32",
        "--decoder-attention-heads=2", "--tokens-per-sample=64", "--batch-size=32",
        "--optimizer=adam", "--lr=0.001", "--max-epoch=4", "--no-save", "--log-format=json",
        "--cpu", "--num-workers=0",
    )  # fmt: skip
    epochs = [json.loads(line[line.index("{") :]) for line in told.splitlines()
              if '"train_loss"' in line]  # fmt: skip
    assert [one["epoch"] for one in epochs] == [1, 2, 3, 4]
    updates = [int(one["train_num_updates"]) for one in epochs]
    # The fourth epoch reads the first folder again.
    assert updates[3] - updates[2] == updates[0]
