"""Text and vocabularies that cannot be, each said with its reason, and nothing half-written."""

import json

import pytest

from stackyard.data import container


def vocabulary(place, **table):
    path = place / "given.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    return {"kind": "words", "path": str(path), "name": "given.json"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": 0, "<|endoftext|>": 1}, "has no '<unk>'"),
        ({"a": 0, "<unk>": 1}, "has no '<|endoftext|>'"),
        ({"<unk>": 0, "<|endoftext|>": 2**31}, "is 2147483648"),
        ({"<unk>": 0, "<|endoftext|>": "1"}, "is '1'"),
        ({"<unk>": 0, "<|endoftext|>": 0}, "share the number 0"),
        ({}, "holds no vocabulary"),
    ],
)
def test_a_vocabulary_that_cannot_be(refused, place, table, said):
    code, error = refused("megatron", tokens=vocabulary(place, **table))
    assert (code, said in error["what"], bool(error["hint"] or error["why"])) in (
        (2, True, True), (2, True, False),
    ), error  # fmt: skip


def test_a_bad_line_found_by_a_worker(refused, place):
    path = place / "bad.txt"
    path.write_bytes(b"a line\n" * 9000 + b"\xff\n" + b"a line\n" * 9000)
    given = {"train": [{"path": str(path), "name": "bad.txt"}]}
    code, error = refused("megatron", inputs=given, workers=2)
    assert code == 2
    assert error["what"].startswith("bad.txt, line 9,001 (byte 63,000) is not utf-8")


def test_splits_that_are_too_small_say_how_small(refused):
    code, error = refused("megatron", split=[999999, 1, 0])
    assert (code, error["what"]) == (2, "valid has no documents")
    assert error["why"].startswith("train 2,400 documents, ")
    code, error = refused("megatron", split=[998, 1, 1], seq_length=1000)
    assert error["what"] == "valid has fewer than one sample of 1,001 tokens"
    assert "valid 3 documents, 18 tokens" in error["why"]


def test_a_full_disk_is_said_and_leaves_nothing(refused):
    code, error = refused("megatron", work="/small")
    assert (code, error["what"]) == (4, "the disk of --out is full")
    assert "No space left" in error["why"]


def test_a_folder_that_only_fairseqs_image_can_read_says_so(refused, material):
    tokens = {"kind": "tokenizer", "path": str(material / "mt5"), "name": "mt5"}
    code, error = refused("megatron", tokens=tokens)
    assert (code, error["what"]) == (2, "mt5 has no tokenizer.json, and this image cannot make one")


def test_what_the_program_says_reaches_whoever_typed(make, material, tmp_path):
    (material / "blank.txt").write_text(" \n\n")
    with pytest.raises(container.DataError, match="train has no documents"):
        make("megatron", vocab="vocab.json", train="blank.txt")
    assert not (tmp_path / "out").exists()


def test_what_is_finished_serves_the_corrected_command(make, tmp_path):
    with pytest.raises(container.DataError, match="valid has no documents"):
        make("megatron", vocab="vocab.json", split=(99999.0, 1.0, 0.0))
    (work,) = tmp_path.glob(".out.*.partial")
    finished = {path: path.stat().st_mtime_ns for path in work.glob("shards/*.json")}
    assert len(finished) > 5
    seen = []
    make("megatron", vocab="vocab.json", split=(90.0, 10.0, 0.0), heard=seen)
    assert f"{len(finished)} kept" in seen
    assert list(tmp_path.glob(".out.*")) == []


def test_a_vocabulary_that_is_refused_leaves_no_folder(make, material, tmp_path):
    (material / "none.json").write_text('{"a": 0}')
    with pytest.raises(container.DataError, match="has no '<unk>'"):
        make("megatron", vocab="none.json")
    assert list(tmp_path.iterdir()) == []
