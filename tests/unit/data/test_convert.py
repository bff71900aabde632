"""`invoke convert` as it is typed, up to what the container is given and what comes back of it."""

import contextlib
import json
from types import SimpleNamespace

import pytest

from stackyard.cli.steps import convert
from stackyard.data import container, conversion, dataset
from stackyard.system.errors import UsageError
from tests.unit.lines import type_line


class Engine:
    """Stand in for an engine: keep the container, and answer as the program in it does."""

    refusal = ""

    def __init__(self):
        self.containers, self.settings = [], []

    def start(self, spec):
        self.containers.append(spec)
        return spec.name

    def exec(self, name, argv, *, seconds, stdin, on_line):
        self.settings.append(json.loads(stdin))
        work = conversion.Path(self.containers[-1].mounts[dataset.WORK])
        (work / "ready").mkdir()
        (work / "ready" / "config.json").write_text("{}")
        on_line("Loading weights: 100 %")
        if self.refusal:
            on_line(self.refusal)
            return SimpleNamespace(code=2, output=self.refusal)
        about = {"class": "GPT2LMHeadModel", "parameters": 7, "vocabulary": 5,
                 "tokenizer": bool(self.settings[-1]["data"])}  # fmt: skip
        on_line(json.dumps({"event": "done", "about": about}))
        return SimpleNamespace(code=0, output="")

    def remove_run(self, label):
        self.containers.append(label)


@pytest.fixture
def engine(monkeypatch):
    found = Engine()
    built = SimpleNamespace(info=SimpleNamespace(id="sha256:made"))
    monkeypatch.setattr(convert, "Engine", lambda: contextlib.nullcontext(found))
    monkeypatch.setattr(
        convert, "Builder", lambda *given: SimpleNamespace(build=lambda stack, base: built)
    )
    monkeypatch.setattr(convert.nodes, "sweep", lambda engine: None)
    monkeypatch.setattr(container.cleanup, "undoing", lambda kind, run: contextlib.nullcontext())
    return found


@pytest.fixture
def words(tmp_path):
    for name in ("save", "made"):
        (tmp_path / name).mkdir()
    return [
        "--checkpoint", f"{tmp_path}/save", "--out", f"{tmp_path}/model", "--base", "cpu",
        "--data", f"{tmp_path}/made",
    ]  # fmt: skip


def test_the_container_sees_the_checkpoint_and_the_caller_gets_the_model(
    engine, words, tmp_path, monkeypatch, capsys
):
    assert type_line(monkeypatch, ["convert", "megatron", *words, "--heads", "16"]) == 0
    (given,) = engine.settings
    spec, _ = engine.containers
    programs = str(container.ROOT / "images" / "data")
    assert spec.binds == {
        "/data/checkpoint": f"{tmp_path}/save", "/data/made": f"{tmp_path}/made",
        dataset.PROGRAMS: programs,
    }  # fmt: skip
    assert (given["checkpoint"]["path"], given["heads"]) == ("/data/checkpoint/", 16)
    assert (tmp_path / "model" / "config.json").is_file()
    assert not list(tmp_path.glob(".model.*"))
    assert "GPT2LMHeadModel, 7 values in fp32, 5 tokens" in capsys.readouterr().out


def test_what_cannot_be_converted_leaves_nothing(engine, words, tmp_path, monkeypatch, capsys):
    engine.refusal = '{"event": "error", "what": "no GPT", "why": "", "hint": ""}'
    assert type_line(monkeypatch, ["convert", "megatron", *words]) == 2
    assert "no GPT" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "save"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["convert", "toy"], "no checkpoints of a stack 'toy'"),
        (["convert", "fairseq"], "--checkpoint is missing"),
        (["convert", "fairseq", "--checkpoint", "/none/x.pt"], "--out is missing"),
        (["convert", "fairseq", "--checkpoint", "/none/x.pt", "--out", "/new"], "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_before_the_engine_is_asked(
    engine, monkeypatch, capsys, line, said
):
    assert type_line(monkeypatch, line) == 2
    assert said in capsys.readouterr().err
    assert not engine.containers


def test_a_checkpoint_is_a_folder_a_file_or_the_name_of_shards(tmp_path):
    (tmp_path / "update-9").mkdir()
    (tmp_path / "last-shard0.pt").touch()
    (tmp_path / "best.pt").touch()
    find = conversion.find_checkpoint
    assert find(f"{tmp_path}/update-9", "megatron") == (tmp_path / "update-9", "")
    # The model's configuration is beside it.
    assert find(f"{tmp_path}/update-9", "accelerate") == (tmp_path, "update-9")
    assert find(f"{tmp_path}/best.pt", "fairseq") == (tmp_path, "best.pt")
    assert find(f"{tmp_path}/last.pt", "fairseq") == (tmp_path, "last.pt")
    with pytest.raises(UsageError, match="does not exist"):
        find(f"{tmp_path}/las.pt", "fairseq")


@pytest.mark.parametrize(
    ("stack", "changed", "said"),
    [
        ("fairseq", {"heads": 4}, "--heads is for megatron"),
        ("megatron", {"config": "c.json"}, "--config is for accelerate"),
        ("accelerate", {"config": "c.json"}, "no such file"),
        ("megatron", {"data": "none"}, "no such folder"),
        ("megatron", {"folder": "a:b"}, "colon"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, stack, changed, said):
    paths = {
        key: tmp_path / value if isinstance(value, str) else value for key, value in changed.items()
    }
    given = {"stack": stack, "folder": tmp_path, "name": "", "typed": "x", **paths}
    with pytest.raises(UsageError, match=said):
        conversion.require(conversion.Request(**given))
