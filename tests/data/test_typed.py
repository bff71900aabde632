"""`invoke data` and `invoke convert` as they are typed: from compressed JSON lines to a model."""

import functools
import gzip
import json
import math
import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT


@pytest.fixture
def typed():
    def run(*words):
        line = [sys.executable, "-m", "invoke", *words, "--base", "cpu", "--json"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


@pytest.fixture
def lines(material, tmp_path):
    """JSON lines of the text, compressed by gzip and by zstd."""
    texts = (material / "text.txt").read_text(encoding="utf-8").splitlines()
    data = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "text.jsonl").write_text(data, encoding="utf-8")
    subprocess.run(["zstd", "-q", tmp_path / "text.jsonl"], check=True)
    return tmp_path


@pytest.fixture(scope="module")
def plain(make_in, tmp_path_factory):
    """What a stack has of the plain text."""
    folder = tmp_path_factory.mktemp("plain")

    @functools.cache
    def made(stack):
        return make_in(folder, stack, out=stack, tokenizer="bpe", split=(98.0, 2.0, 0.0))

    return made


FILES = {"fairseq": ("bin", "idx", "txt"), "megatron": ("bin", "idx")}


@pytest.mark.parametrize(
    ("stack", "suffix"),
    [("fairseq", ".jsonl"), ("fairseq", ".jsonl.gz"), ("fairseq", ".jsonl.zst"),
     ("megatron", ".jsonl.gz")],
)  # fmt: skip
def test_json_lines_give_the_bytes_of_plain_text(typed, plain, lines, material, stack, suffix):
    out = lines / "typed"
    about, _ = typed(
        "data", stack, "--input", f"{lines}/text{suffix}", "--tokenizer", str(material / "bpe"),
        "--split", "98,2", "--out", str(out),
    )  # fmt: skip
    names = [path.name for kind in FILES[stack] for path in plain(stack).glob(f"*.{kind}")]
    assert len(names) == {"fairseq": 5, "megatron": 4}[stack]
    for name in names:
        assert (out / name).read_bytes() == (plain(stack) / name).read_bytes()
    assert about["splits"]["train"]["documents"] == 2352


@pytest.mark.repeat  # of one reader before another kind of vocabulary
@pytest.mark.parametrize(
    ("vocab", "options", "how"),
    [
        ("vocab.json", (), {}),
        ("own.json", ("--unk", "[UNK]", "--eod", "[END]", "--keep-blank"),
         {"unk": "[UNK]", "eod": "[END]", "keep_blank": True}),
        ("own.json", ("--unk", "[UNK]", "--no-append-eod"), {"unk": "[UNK]", "append_eod": False}),
    ],
    ids=["usual words", "words of one's own", "no end"],
)  # fmt: skip
def test_json_lines_and_plain_text_give_the_same_words(
    typed, make, lines, material, vocab, options, how
):
    """As they are typed, and as the function makes them. The text has a blank line."""
    texts = (material / "text.txt").read_text(encoding="utf-8").splitlines()
    texts.insert(100, "")
    (material / "blank.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = (json.dumps({"text": text}) for text in texts)
    (lines / "blank.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    for place, form in ((material, "txt"), (lines, "jsonl")):
        about, _ = typed("data", "megatron", "--input", f"{place}/blank.{form}",
                         "--out", str(lines / form), "--vocab", str(material / vocab),
                         *options)  # fmt: skip
        assert about["splits"]["train"]["documents"] == len(texts) - ("keep_blank" not in how)
        assert about["unknown tokens"] > 0
    wanted = make("megatron", vocab=vocab, train="blank.txt", **how)
    for kind in ("bin", "idx"):
        read = [(out / f"train.{kind}").read_bytes() for out in (lines / "txt", lines / "jsonl")]
        assert read == [(wanted / f"train.{kind}").read_bytes()] * 2 and read[0]


@pytest.mark.parametrize(
    ("folder", "options", "end"),
    [
        ("gpt2", ("--vocab", "{}/vocab.json", "--merges", "{}/merges.txt"), "<|endoftext|>"),
        pytest.param(
            "bert", ("--tokenizer", "{}", "--eod", "[SEP]"), "[SEP]", marks=pytest.mark.repeat
        ),
    ],
)
def test_megatrons_other_tokenizers_number_text_as_transformers_does(
    typed, box, material, tmp_path, folder, options, end
):
    own, text, out = material / folder, material / "text.txt", tmp_path / "out"
    about, _ = typed("data", "megatron", "--input", str(text), "--out", str(out),
                     *(word.format(own) for word in options))  # fmt: skip
    wanted = own / "wanted.bin"
    said = box("accelerate").said(
        "python3", "/srv/test/by_transformers.py", str(own), str(text), end, str(wanted)
    )
    count, different = map(int, said.splitlines()[-1].split())
    assert about["splits"]["train"]["tokens"] == count and different > 100
    assert (out / "train.bin").read_bytes() == wanted.read_bytes()


def test_fairseq_trains_on_folders_one_an_epoch_and_its_model_is_converted(
    typed, box, lines, material, place
):
    out = place / "sharded"
    _, said = typed(
        "data", "fairseq", "--input", f"{lines}/text.jsonl.zst",
        "--tokenizer", str(material / "bpe"), "--split", "98,2", "--shards", "3",
        "--out", str(out),
    )  # fmt: skip
    folders = f"{out}/shard0:{out}/shard1:{out}/shard2"
    assert f"fairseq-train {folders}" in said
    told = box("fairseq").said(
        "fairseq-train", folders, "--task=language_modeling", "--arch=transformer_lm",
        "--decoder-layers=1", "--decoder-embed-dim=32", "--decoder-ffn-embed-dim=32",
        "--decoder-attention-heads=2", "--tokens-per-sample=64", "--batch-size=32",
        "--optimizer=adam", "--lr=0.001", "--max-epoch=4", "--log-format=json",
        "--cpu", "--num-workers=0", f"--save-dir={place}/sharded-save",
    )  # fmt: skip
    epochs = [json.loads(line[line.index("{") :]) for line in told.splitlines()
              if '"train_loss"' in line]  # fmt: skip
    assert [one["epoch"] for one in epochs] == [1, 2, 3, 4]
    updates = [int(one["train_num_updates"]) for one in epochs]
    # The fourth epoch reads the first folder again.
    assert updates[3] - updates[2] == updates[0]
    model = place / "sharded-model"
    about, _ = typed(
        "convert", "fairseq", "--checkpoint", f"{place}/sharded-save/checkpoint_last.pt",
        "--data", str(out), "--out", str(model),
    )  # fmt: skip
    assert (about["class"], about["out"]) == ("OPTForCausalLM", str(model))
    told = box("accelerate").said(
        "python3", "-c",
        "import sys; from transformers import AutoTokenizer as T, AutoModelForCausalLM as M\n"
        "t, m = T.from_pretrained(sys.argv[1]), M.from_pretrained(sys.argv[1])\n"
        "given = t(open(sys.argv[2]).readline().strip(), return_tensors='pt').input_ids\n"
        "print(len(t), m.config.vocab_size, float(m(input_ids=given, labels=given).loss))",
        str(model), str(material / "text.txt"),
    )  # fmt: skip
    *numbers, loss = told.splitlines()[-1].split()
    assert numbers == [str(about["vocabulary"])] * 2
    assert float(loss) < math.log(about["vocabulary"])
