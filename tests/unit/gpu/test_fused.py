"""Fused parts: their ledger, compiling with a way back, and what is said of those that are lost."""

import collections
import importlib.util
import json
import os
import sys
import types

import pytest

from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import RunRequest
from stackyard.cli.steps import run
from stackyard.definitions.project import ROOT
from stackyard.gpu import fused
from stackyard.mesh.runs import Ended

FILES = ROOT / "images" / "fixes" / "files"


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, FILES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.delenv("STACKYARD_FUSED", raising=False)
    return load("ledger_on_trial", "stackyard_fused.py")


# The ledger


@pytest.mark.parametrize(
    ("setting", "on"),
    [(None, "ab"), ("1", "ab"), ("0", ""), ("", ""), ("a", "a"), (" b , c", "b"), ("0,1", "ab")],
)
def test_the_switch_names_the_parts_that_are_on(ledger, monkeypatch, setting, on):
    if setting is not None:
        monkeypatch.setenv("STACKYARD_FUSED", setting)
    assert "".join(name for name in "ab" if ledger.part(name).on) == on
    assert {one["state"] for n, one in ledger.states().items() if n not in on} <= {"off"}


def test_a_part_is_the_same_for_everybody(ledger):
    assert ledger.part("a") is ledger.part("a")


@pytest.mark.parametrize(
    ("calls", "state", "why"),
    [
        ("", "not asked", ""),
        ("u", "unused", "padded"),
        ("ur", "ran", ""),
        ("ru", "ran", ""),
        ("rf", "fell back", "no compiler"),
        ("fru", "fell back", "no compiler"),
        ("r" + 19 * "u", "ran", ""),
        ("r" + 20 * "u", "partly", "padded"),
        (180 * "r" + 20 * "u", "ran", ""),
        (179 * "r" + 20 * "u" + 99 * "r", "partly", "padded"),
        ("r" + 20 * "u" + "f", "fell back", "no compiler"),
    ],
)
def test_a_fallback_is_for_good_and_a_few_odd_calls_are_no_loss(ledger, calls, state, why):
    one = ledger.part("a")
    for call in calls:
        {
            "r": one.ran,
            "u": lambda: one.unused("padded"),
            "f": lambda: one.fell_back("no compiler"),
        }[call]()
    assert ledger.states() == {"a": {"state": state, "why": why}}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("no compiler\n\nSet X=1 for more"), "RuntimeError: no compiler"),
        (ValueError("it raised:\n  no compiler\nmore"), "ValueError: it raised: no compiler"),
        (KeyError(), "KeyError: "),
        (RuntimeError("x" * 900), "RuntimeError: " + "x" * 486),
    ],
)  # fmt: skip
def test_the_reason_is_the_exceptions_first_line_that_says_something(ledger, error, why):
    one = ledger.part("a")
    one.fell_back(error)
    assert one.why == why


def test_in_a_run_every_change_is_on_disk(ledger, monkeypatch, tmp_path):
    one, path = ledger.part("a"), tmp_path / "rank3.fused"
    for name, value in (("STACKYARD_LOGS", str(tmp_path)), ("RANK", "3")):
        monkeypatch.setenv(name, value)
    one.unused("padded")
    assert not path.exists()  # a process that a rank started
    monkeypatch.setenv("STACKYARD_RANK_PID", str(os.getpid()))
    one.ran()
    assert json.loads(path.read_text()) == {"a": {"state": "ran", "why": ""}}
    one.fell_back("no compiler")
    assert json.loads(path.read_text())["a"]["state"] == "fell back"
    monkeypatch.setenv("STACKYARD_LOGS", str(tmp_path / "full"))
    ledger.part("b").ran()  # a folder that cannot be written is no reason to stop


# Compiling


class Tensor:
    def __init__(self, *shape):
        self.shape, self.unknown = shape, []


class OutOfMemory(Exception):
    pass


@pytest.fixture
def torch(monkeypatch):
    """As much of torch as compiling asks for: a graph for each size that is not unknown."""
    counters = collections.defaultdict(collections.Counter)
    made = types.ModuleType("torch")
    made.cuda = types.SimpleNamespace(OutOfMemoryError=OutOfMemory)
    made.fails, made.graphs = None, set()

    def compiled(function, fullgraph):
        assert fullgraph

        def call(tensor):
            if made.fails:
                raise made.fails
            made.graphs.add(
                tuple(0 if d in tensor.unknown else size for d, size in enumerate(tensor.shape))
            )
            counters["stats"]["unique_graphs"] = 0 if made.disabled else len(made.graphs)
            return function(tensor)

        return call

    made.compile, made.disabled = compiled, False
    made._dynamo = types.ModuleType("torch._dynamo")
    made._dynamo.maybe_mark_dynamic = lambda tensor, dim: tensor.unknown.append(dim)
    utils = types.ModuleType("torch._dynamo.utils")
    utils.counters = counters
    for name, module in (("", made), ("._dynamo", made._dynamo), ("._dynamo.utils", utils)):
        monkeypatch.setitem(sys.modules, f"torch{name}", module)
    return made


@pytest.fixture
def compiled(torch, ledger):
    module = load("fused_on_trial", "fairseq/fused.py")
    calls = []
    made = module.Compiled(
        ledger.part("a"), "a", lambda x: calls.append(x.shape) or "value", varying=((0, 0), (0, 1))
    )
    made.calls = calls
    return made


def test_batches_of_every_size_share_a_graph_and_a_lone_one_is_not_compiled(torch, compiled):
    for shape in ((8, 4, 2), (8, 3, 2), (5, 4, 2), (8, 1, 2), (1, 1, 2)):
        assert compiled(Tensor(*shape)) == "value"
    assert torch.graphs == {(0, 0, 2)} and len(compiled.calls) == 5
    assert compiled.part.state == "ran"


def test_where_every_batch_is_lone_it_is_compiled_so(torch, compiled):
    for shape in ((8, 1, 2), (5, 1, 2)):
        assert compiled(Tensor(*shape)) == "value"
    assert torch.graphs == {(0, 1, 2)}


def test_what_cannot_be_compiled_says_so_once_and_is_never_tried_again(torch, compiled, caplog):
    torch.fails = RuntimeError("Failed to find C compiler\nSet CC")
    assert compiled(Tensor(8, 4)) is None
    torch.fails = None
    assert compiled(Tensor(8, 4)) is None and compiled.calls == []
    assert (compiled.part.state, compiled.part.why) == (
        "fell back",
        "RuntimeError: Failed to find C compiler",
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_full_gpu_is_no_fallback(torch, compiled):
    torch.fails = OutOfMemory()
    with pytest.raises(OutOfMemory):
        compiled(Tensor(8, 4))
    assert compiled.part.state == "not asked"


def test_a_switch_of_torch_that_compiles_nothing_is_a_fallback(torch, compiled):
    torch.disabled = True
    assert compiled(Tensor(8, 4)) == "value"  # computed, though not fused
    assert compiled(Tensor(8, 4)) is None
    assert compiled.part.state == "fell back" and "TORCHDYNAMO_DISABLE" in compiled.part.why


# Lists of tensors


class Leaf:
    """As much of a tensor as a list of them asks for."""

    layout, device, is_cuda = "strided", "cuda:0", True

    def __init__(self, dtype="fp32", device="cuda:0"):
        self.dtype, self.device, self.data = dtype, device, self

    def numel(self):
        return 4

    def mul_(self, factor):
        return self

    def copy_(self, source):
        return self

    def detach(self):
        return self

    def to(self, where):
        return self

    def norm(self, kind):
        return 2.0


@pytest.fixture
def lists(monkeypatch, ledger):
    made, deepspeed = types.ModuleType("torch"), types.ModuleType("deepspeed.accelerator")
    made.float16, made.bfloat16, made.float32, made.strided = "fp16", "bf16", "fp32", "strided"
    made.is_tensor = lambda value: isinstance(value, Leaf)
    made._foreach_copy_ = made._foreach_mul_ = lambda *given: None
    accelerator = types.SimpleNamespace(
        on_accelerator=lambda tensor: True, current_device_name=lambda: "cuda:0"
    )
    deepspeed.get_accelerator = lambda: accelerator
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.accelerator", deepspeed)
    monkeypatch.setitem(sys.modules, "stackyard_fused", ledger)
    return load("lists_on_trial", "deepspeed/runtime/fused_update.py")


@pytest.mark.parametrize(
    ("call", "part", "state", "why"),
    [
        (lambda f: f.copy([Leaf()], [Leaf()]), "copies", "ran", ""),
        (lambda f: f.copy([Leaf()], [Leaf("fp64")]), "copies", "unused", "fp64"),
        (lambda f: f.copy([Leaf(), Leaf(device="cpu")], [Leaf()] * 2), "copies", "unused", "one"),
        (lambda f: f.scale([Leaf()], 0.5), "copies", "ran", ""),
        (lambda f: f.scale([Leaf("bf16")], Leaf()), "copies", "not asked", ""),
        (lambda f: f.norms([Leaf()], 1.0, "fp32"), "norms", "unused", "by the 1.0-norm"),
        (lambda f: f.copy([], []), "copies", "not asked", ""),
    ],
)
def test_a_call_is_noted_once_all_its_lists_were_looked_at(lists, ledger, call, part, state, why):
    call(lists)
    found = ledger.states()[part]
    assert found["state"] == state and why in found["why"]


# What is said


def job(*parts):
    return {"ranks": {str(rank): {"fused": found} for rank, found in enumerate(parts)}}


FELL = {"state": "fell back", "why": "no compiler"}


def test_a_run_warns_of_each_part_that_is_lost_with_its_reason_and_ranks():
    ran, unused = {"state": "ran", "why": ""}, {"state": "unused", "why": "padded"}
    found = run.fused_warnings(job({"a": FELL, "b": ran}, {"a": FELL, "b": unused}))
    assert found == [
        "the fused part 'a' fell back to the package's own code: no compiler (rank 0, 1)",
        "the fused part 'b' did not run: padded (rank 1)",
    ]


@pytest.mark.parametrize(
    "value", [{}, {"ranks": {"0": {"node": "a"}}}, job({"a": None}), job([]), job(None)]
)
def test_what_is_no_word_of_a_rank_is_no_warning(value):
    assert run.fused_warnings(value) == []


def test_only_what_is_on_and_could_run_is_lost():
    states = ("off", "not asked", "ran", "unused", "partly", "fell back")
    lost = {state: fused.Part(state=state).lost for state in states}
    assert [state for state, said in lost.items() if said] == ["unused", "partly", "fell back"]


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_says_it_in_its_summary_and_in_json(capsys, code):
    ended = Ended(job={"name": "demo", "code": code, "reason": "it broke" if code else "",
                       "started": 1.0, "ended": 3.0, **job({"a": FELL})})  # fmt: skip
    value, exit_code = run._conclude(
        ended, RunRequest(stack="toy"), Terminal(json=False, live=False)
    )
    warning = "the fused part 'a' fell back to the package's own code: no compiler (rank 0)"
    assert (value["warnings"], exit_code) == ([warning], code)
    said = capsys.readouterr()
    assert f"demo: warning: {warning}" in said.out + said.err
