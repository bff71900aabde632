"""What is made is what each stack's own tools make of the same text, for any number of workers."""

import filecmp
import json
import os
import re

import pytest

from stackyard.data import container, encoding
from stackyard.definitions.examples import BESIDE
from stackyard.definitions.project import ROOT


def same_files(first, second):
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    _, differ, errors = filecmp.cmpfiles(first, second, names, shallow=False)
    return differ + errors


@pytest.fixture(scope="module")
def by_fairseq(box, material, place):
    """fairseq-preprocess --bpe hf, run several times in one process; and what it says."""
    out = place / "fairseq"
    words = ["python3", "/srv/test/fairseq_tokenizer.py", str(material), str(out)]
    # A word of a logger, on the other stream, may come last.
    said = box("fairseq").said(*words).splitlines()
    return out, json.loads(next(line for line in reversed(said) if line.startswith("{")))


@pytest.mark.parametrize("name", ["bpe", "unigram", "mt5"])
def test_fairseq_encodes_with_a_tokenizer_and_gives_the_text_back(by_fairseq, material, name):
    found = by_fairseq[1][name]
    lines = (material / "text.txt").read_text(encoding="utf-8").count("\n")
    assert (found["lines"], found["unknown"]) == (lines, 0)
    assert found["encoded"]
    assert found["shifted"]
    if name != "mt5":  # sentencepiece normalises text: what comes back is normalised, too
        assert found["differ"] == []
        assert found["same"] == ["train.bin", "train.idx", "dict.txt"]


def test_fairseq_says_what_is_wrong_with_a_tokenizer(by_fairseq):
    missing, none, empty, other = by_fairseq[1]["errors"]
    assert missing == "--hf-tokenizer /nowhere: there is no such folder or file"
    assert none.startswith("--bpe hf needs --hf-tokenizer")
    assert "holds no tokenizer that can be read" in empty
    assert other.startswith("the dictionary was not made from")


def test_fairseqs_data_are_those_of_fairseq_preprocess(by_fairseq, make):
    # The unigram tokenizer has an <unk> of its own, and more tokens than the text has.
    out = make("fairseq", tokenizer="unigram")
    names = ["train.bin", "train.idx", "dict.txt"]
    same, differ, errors = filecmp.cmpfiles(out, by_fairseq[0] / "unigram", names, shallow=False)
    assert (same, differ, errors) == (names, [], [])


@pytest.mark.repeat  # of one kind of model
def test_what_a_model_lacks_is_bytes_here_and_unknown_to_fairseq_preprocess(by_fairseq, make):
    """Of a SentencePiece model with byte fallback, which transformers reads without it."""
    found = by_fairseq[1]["bytes"]
    spelled = [f"<0x{byte:02X}>" for byte in "𪚥".encode()]
    at = found["pieces"].index(spelled[0])
    assert found["pieces"][at : at + 4] == spelled
    out = make("fairseq", tokenizer="bytes", train="rare.txt")
    made = list(memoryview((out / "train.bin").read_bytes()).cast("H"))
    # fairseq's own four words come first; its 2 ends a line, the model's 2 is `<unk>`.
    assert made == [*(number + 4 for number in found["own"]), 2]
    assert found["preprocessed"] == [*made[:at], 2 + 4, *made[at + 4 :]]


@pytest.mark.parametrize(
    ("vocab", "unk", "end", "how"),
    [
        pytest.param("vocab.json", "<unk>", ["<|endoftext|>"], {}, id="usual words"),
        pytest.param("own.json", "[UNK]", ["[END]"], {"unk": "[UNK]", "eod": "[END]"},
                     id="words of one's own", marks=pytest.mark.repeat),
        pytest.param("own.json", "[UNK]", [], {"unk": "[UNK]", "append_eod": False}, id="no end",
                     marks=pytest.mark.repeat),
    ],
)  # fmt: skip
def test_megatrons_data_are_those_of_its_own_builder(
    box, make, material, place, vocab, unk, end, how
):
    text = (material / "text.txt").read_text(encoding="utf-8")
    (material / "blank.txt").write_text(text + "\n" + text, encoding="utf-8")
    out = make("megatron", train="blank.txt", vocab=vocab, keep_blank=True, workers=3, **how)
    words = [str(material / "blank.txt"), str(material / vocab), str(place / "notes"), unk, *end]
    # Without torch's compiler, which Megatron would load on import, and nothing here uses.
    env = {"TORCHDYNAMO_DISABLE": "1"}
    box("megatron").said("python3", "/srv/test/line_by_line.py", *words, env=env)
    for kind in ("bin", "idx"):
        assert (out / f"train.{kind}").read_bytes() == (place / f"notes.{kind}").read_bytes()
    about = json.loads((out / "data.json").read_text(encoding="utf-8"))
    assert about["unknown tokens"] > 0
    table = json.loads((material / vocab).read_text(encoding="utf-8"))
    token, number = (end[0], table[end[0]]) if end else ("", None)
    assert about["end"] == {"token": token, "number": number}


def test_bytes_do_not_depend_on_the_workers(make):
    split = {"tokenizer": "bpe", "split": (90.0, 5.0, 5.0)}
    one = make("megatron", out="one", workers=1, **split)
    three = make("megatron", out="three", workers=3, **split)
    assert same_files(one, three) == []
    about = json.loads((one / "data.json").read_text(encoding="utf-8"))
    assert [part["documents"] for part in about["splits"].values()] == [2160, 120, 120]


def test_accelerates_blocks_are_what_its_tokenizer_says(box, make, material, place):
    out = make("accelerate", tokenizer="bpe", seq_length=32)
    kept = place / "blocks"
    out.rename(kept)
    words = [str(kept), str(material / "bpe"), str(material / "text.txt")]
    box("accelerate").said("python3", "/srv/test/read_blocks.py", *words)


def test_a_vocabulary_of_250000_takes_32_bits_and_mt5_reads_its_sentinels(box, make, place):
    """Numbers above 65,500 come out as they went in, through the samples of the template."""
    made = make("accelerate", tokenizer="wide", train="wide.txt", seq_length=34)
    about = json.loads((made / "data.json").read_text(encoding="utf-8"))
    assert (about["dtype"], about["vocabulary"]) == ("int32", 250_100)
    folder = place / "wide-blocks"
    made.rename(folder)
    programs = [*(ROOT / "images" / "accelerate" / "templates").glob("*.py"),
                *(ROOT / "stackyard" / "inside" / name for name in BESIDE)]  # fmt: skip
    for path in programs:
        (folder / path.name).write_bytes(path.read_bytes())
    env = {"PYTHONPATH": str(folder), "TORCHDYNAMO_DISABLE": "1"}
    words = ["python3", "/srv/test/read_spans.py", str(folder)]
    assert (
        box("accelerate").said(*words, env=env).splitlines()[-1] == "249009 32 8 [250099, 250098]"
    )


def test_a_vocabulary_is_trained_on_the_text_and_encodes_as_sentencepiece_does(
    box, make, material, place
):
    """By an image with SentencePiece; every other image reads the tokenizer.json beside it."""
    one = make("accelerate", out="one", new_tokenizer=5000, workers=1, seq_length=32)
    three = make("accelerate", out="three", new_tokenizer=5000, workers=3, seq_length=32)
    assert same_files(one, three) == []
    about = json.loads((one / "data.json").read_text(encoding="utf-8"))
    assert (about["vocabulary"], about["unknown tokens"]) == (5100, 0)
    assert about["end"] == {"token": "</s>", "number": 1}
    kept = place / "trained"
    one.rename(kept)
    words = ["python3", "/srv/test/by_sentencepiece.py", str(kept), str(material / "text.txt")]
    assert box("accelerate").said(*words).splitlines()[-1] == "0 lines differ; 5099"


def test_a_vocabulary_that_the_text_cannot_give_says_how_large_it_may_be(make):
    with pytest.raises(container.DataError, match="no vocabulary of 50,000 tokens") as refused:
        make("accelerate", new_tokenizer=50_000)
    assert re.fullmatch(r"--train-tokenizer \d+ or fewer", refused.value.hint)


def test_what_is_made_is_the_callers(make, monkeypatch):
    """Whoever types it owns the data; as somebody else than root, without any capability."""
    if os.getuid() == 0:
        monkeypatch.setattr(encoding.os, "getuid", lambda: 12345)
        monkeypatch.setattr(encoding.os, "getgid", lambda: 12346)
        made = encoding.Path.mkdir

        def mkdir(path, *given, **named):
            made(path, *given, **named)
            if path.suffix == ".partial":
                os.chown(path, 12345, 12346)

        monkeypatch.setattr(encoding.Path, "mkdir", mkdir)
    out = make("megatron", vocab="vocab.json")
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (out, *out.iterdir())}
    assert owners == {(encoding.os.getuid(), encoding.os.getgid())}
