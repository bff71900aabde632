"""`invoke data` as it is typed, up to what the container is given and what comes back of it."""

import contextlib
import json
from types import SimpleNamespace

import pytest

from stackyard.cli.steps import data
from stackyard.data import container, dataset
from tests.unit.lines import type_line


class Engine:
    """Stand in for an engine: keep the container, and do what the program in it would have done."""

    code = 0
    said = ""

    def __init__(self):
        self.containers, self.settings = [], []

    def start(self, spec):
        self.containers.append(spec)
        return spec.name

    def exec(self, container, argv, *, seconds, stdin, on_line):
        given = json.loads(stdin)
        self.settings.append(given)
        spec = self.containers[-1]
        on_line('{"event": "progress", "done": 1, "total": 2, "kept": 0, "tokens": 5}')
        if self.said:
            on_line(self.said)
            return SimpleNamespace(code=self.code, output=self.said)
        ready = encoding_folder(spec) / "ready"
        ready.mkdir()
        (ready / "train.bin").write_bytes(b"tokens")
        about = {
            "stack": given["stack"], "splits": {"train": {"documents": 3, "tokens": 5}},
            "vocabulary": 9, "dtype": "uint16", "unknown tokens": 1, "blank lines": 0,
            "bad lines": 0,
        }  # fmt: skip
        if given["folders"]:
            about["folders"] = [f"shard{n}" for n in range(given["folders"])]
        on_line(json.dumps({"event": "done", "about": about, "kept": 0, "shards": 1}))
        return SimpleNamespace(code=0, output="")

    def remove_run(self, label):
        self.containers.append(label)


def encoding_folder(spec):
    return data.Path(spec.mounts[dataset.WORK])


@pytest.fixture
def engine(monkeypatch):
    found = Engine()
    built = SimpleNamespace(info=SimpleNamespace(id="sha256:made"))
    monkeypatch.setattr(data, "Engine", lambda: contextlib.nullcontext(found))
    monkeypatch.setattr(
        data, "Builder", lambda *given: SimpleNamespace(build=lambda stack, base: built)
    )
    monkeypatch.setattr(data.nodes, "sweep", lambda engine: None)
    # The warden that would clean up after a killed command is a process of its own.
    monkeypatch.setattr(container.cleanup, "undoing", lambda kind, run: contextlib.nullcontext())
    return found


@pytest.fixture
def words(tmp_path):
    (tmp_path / "part-0.jsonl.zst").write_bytes(b"compressed")
    (tmp_path / "part-1.jsonl.gz").write_bytes(b"compressed")
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "<|endoftext|>": 1}')
    return [
        "--input", f"{tmp_path}/part-*", "--vocab", f"{tmp_path}/vocab.json",
        "--out", f"{tmp_path}/out", "--workers", "3", "--base", "cpu",
    ]  # fmt: skip


def test_what_is_typed_reaches_the_program_and_its_folder_the_caller(
    engine, words, tmp_path, monkeypatch, capsys
):
    line = ["data", "fairseq", *words, "--shards", "2", "--split", "98,2"]
    assert type_line(monkeypatch, line) == 0
    (given,) = engine.settings
    spec, removed = engine.containers
    assert removed.startswith("stackyard.run=data-")
    names = [f"{tmp_path}/part-0.jsonl.zst", f"{tmp_path}/part-1.jsonl.gz"]
    assert [one["name"] for one in given["inputs"]["train"]] == names
    assert [spec.binds[one["path"]] for one in given["inputs"]["train"]] == names
    assert (given["reading"]["key"], given["folders"], given["workers"]) == ("text", 2, 3)
    assert given["split"] == [98.0, 2.0, 0.0]
    assert (spec.image, spec.network) == ("sha256:made", "none")
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"tokens"
    assert not list(tmp_path.glob(".out.*"))
    said = capsys.readouterr()
    assert "train: 3 documents, 5 tokens" in said.out
    assert f"fairseq-train {tmp_path}/out/shard0:{tmp_path}/out/shard1" in said.err + said.out


def test_a_vocabulary_to_train_reaches_the_program(engine, words, tmp_path, monkeypatch):
    line = [word for word in words if word not in ("--vocab", f"{tmp_path}/vocab.json")]
    line = ["data", "accelerate", *line, "--train-tokenizer", "250000"]
    assert type_line(monkeypatch, line) == 0
    (given,) = engine.settings
    assert given["tokens"] == {
        "kind": "train", "name": "--train-tokenizer 250000", "size": 250_000,
        "path": f"{dataset.WORK}/vocabulary",
    }  # fmt: skip


def test_the_answer_is_json_when_asked(engine, words, monkeypatch, capsys):
    assert type_line(monkeypatch, ["data", "megatron", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["tokens"] == 5


def test_what_the_program_refuses_is_the_commands_error(
    engine, words, tmp_path, monkeypatch, capsys
):
    engine.code = 2
    engine.said = '{"event": "error", "what": "a bad line", "why": "a NUL", "hint": "skip it"}'
    assert type_line(monkeypatch, ["data", "megatron", *words]) == 2
    assert "a bad line" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out.*"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["data", "toy"], "no form of data for a stack 'toy'"),
        (["data", "megatron"], "--input is missing"),
        (["data", "megatron", "--shards", "2"], "--input is missing"),
        (["data", "megatron", "--shards", "0"], "--shards"),
    ],
)
def test_what_cannot_be_is_refused_before_the_engine_is_asked(
    engine, monkeypatch, capsys, line, said
):
    assert type_line(monkeypatch, line) == 2
    assert said in capsys.readouterr().err
    assert not engine.containers
