"""What a rank says about itself, line by line, and that it is read back the same."""

import importlib.util
import json
import math
import os
import runpy
import socket
import struct
import sys
import types

import pytest

from stackyard.definitions.project import ROOT
from stackyard.inside import stackyard_record
from stackyard.inside.stackyard_record import WORK, Recorder, covered
from stackyard.validate import record


class Tensor:
    """As much of a tensor as hashing asks for."""

    def __init__(self, values, shape=None):
        self.values, self.shape = list(values), shape or (len(values),)

    def detach(self):
        return self

    to = float = contiguous = numpy = lambda self, *_: self

    def tobytes(self):
        return struct.pack(f"{len(self.values)}f", *self.values)


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="gloo", device="cpu")
    yield made
    made._file.close()


def lines(tmp_path):
    text = (tmp_path / "new" / "record" / "rank1.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_rank_begins_with_who_it_is(recorder, tmp_path):
    (start,) = lines(tmp_path)
    assert isinstance(start.pop("time"), float)
    assert start == {
        "event": "start", "rank": 1, "world_size": 2, "host": socket.gethostname(),
        "pid": os.getpid(), "backend": "gloo", "device": "cpu", "gpu": "",
    }  # fmt: skip


def test_every_event_is_on_disk_as_soon_as_it_was_said(recorder, tmp_path):
    recorder.step(1, 2.5)
    assert lines(tmp_path)[-1] | {"time": 0} == {"event": "step", "step": 1, "loss": 2.5, "time": 0}


def test_a_validation_is_recorded_and_is_no_update(recorder, tmp_path):
    recorder.step(20, 2.5)
    recorder.valid(20, 2.75)
    text = (tmp_path / "new" / "record" / "rank1.jsonl").read_text().splitlines()
    assert json.loads(text[-1]) | {"time": 0} == {
        "event": "valid", "step": 20, "loss": 2.75, "time": 0,
    }  # fmt: skip
    ranks = {}
    for line in text:
        record.take_line(ranks, 1, line)
    assert ranks[1].losses == {20: 2.5}


def test_what_was_said_is_what_is_read(recorder, tmp_path):
    recorder.loaded(20)
    recorder.step(21, 2.5)
    recorder.step(22, math.nan)
    recorder.params(22, [("w", Tensor([1, 2]))], group="left")
    recorder.saved(30)
    recorder.end(40)
    ranks = {}
    for line in (tmp_path / "new" / "record" / "rank1.jsonl").read_text().splitlines():
        record.take_line(ranks, 1, line)
    found = ranks[1]
    assert (found.world_size, found.backend, found.pid) == (2, "gloo", os.getpid())
    assert (found.loaded, found.saved, found.ended) == ([20], [30], 40)
    assert found.losses[21] == 2.5 and math.isnan(found.losses[22])
    assert list(found.params) == [(22, "left")]
    assert len(found.params[22, "left"]) == 64


def hashed(recorder, tmp_path, *named):
    recorder.params(1, named)
    return lines(tmp_path)[-1]["sha256"]


def test_the_same_parameters_have_the_same_hash_in_any_order(recorder, tmp_path):
    a, b = ("a", Tensor([1, 2])), ("b", Tensor([3]))
    assert hashed(recorder, tmp_path, a, b) == hashed(recorder, tmp_path, b, a)


@pytest.mark.parametrize(
    "other",
    [
        ("a", Tensor([1, 2.0000002])),
        ("b", Tensor([1, 2])),
        ("a", Tensor([1, 2], shape=(2, 1))),
        ("a", Tensor([-1, 2])),
    ],
)
def test_any_difference_of_name_shape_or_bit_changes_the_hash(recorder, tmp_path, other):
    same = hashed(recorder, tmp_path, ("a", Tensor([1, 2])))
    assert hashed(recorder, tmp_path, other) != same


@pytest.fixture
def board(monkeypatch):
    """A made-up package tensorboard, and what is done with its writer."""
    done = []

    class SummaryWriter:
        def __init__(self, folder):
            done.append(folder)

        def add_scalar(self, *words):
            done.append(words)

        def flush(self):
            done.append("flush")

        def close(self):
            done.append("close")

    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(
            cuda=types.SimpleNamespace(is_available=lambda: False)))  # fmt: skip
    writer = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", writer)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return done


@pytest.mark.parametrize(
    ("rank", "folder", "wrote"), [(0, "/e", True), (1, "/e", False), (0, "", False)]
)
def test_the_first_rank_writes_event_files_where_a_folder_is_named(
    board, tmp_path, rank, folder, wrote
):
    made = Recorder(str(tmp_path), rank, 2, backend="gloo", tensorboard=folder)
    made.step(1, 2.5)
    made.end(1)
    assert board == (["/e", ("loss", 2.5, 1), "flush", "close"] if wrote else [])


def test_without_the_package_one_rank_says_so_once_and_training_goes_on(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for rank in (0, 1):
        made = Recorder(str(tmp_path), rank, 2, backend="gloo", tensorboard="/e")
        made.step(1, 2.5)
        made.end(1)
    assert capsys.readouterr().out == (
        "no TensorBoard events: the package tensorboard is not installed\n"
    )


@pytest.mark.parametrize(("says", "said"), [(True, "update 1 loss 2.5000\n"), (False, "")])
def test_a_program_that_prints_losses_itself_is_not_repeated(
    tmp_path, monkeypatch, capsys, says, said
):
    monkeypatch.setenv("STACKYARD_LOGS", "/logs")
    made = Recorder(str(tmp_path), 0, 2, backend="gloo", says=says)
    made.step(1, 2.5)
    made.end(1)
    assert capsys.readouterr().out == said


def test_a_second_recorder_of_the_rank_goes_on_in_the_same_file(recorder, tmp_path):
    again = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="gloo")
    again.end(3)
    assert [line["event"] for line in lines(tmp_path)] == ["start", "start", "end"]


class Profile:
    """As much of torch's profiler as is asked for: a kernel, a copy beside it, a range, a call."""

    def __init__(self, activities, schedule):
        self.said = [schedule]

    def start(self):
        self.said.append("start")

    def step(self):
        self.said.append("step")

    def stop(self):
        # One update prepares, three are watched.
        assert self.said == [(0, 1, 4), "start", "step", "step", "step"]

    def events(self):
        def event(start, end, device="GPU", named=False, name="gemm"):
            span = types.SimpleNamespace(start=start, end=end)
            return types.SimpleNamespace(
                time_range=span, device_type=device, is_user_annotation=named, name=name
            )

        sums = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        return [event(0, 40_000), event(30_000, 60_000), event(90_000, 180_000, name=sums),
                event(90_000, 120_000),
                event(0, 900_000, named=True), event(0, 500_000, device="CPU")]  # fmt: skip


@pytest.fixture
def torch_of_gpus(monkeypatch):
    """A torch with as much of GPUs as is asked for; gives the list of waits for them."""
    waits = []
    torch = types.SimpleNamespace(
        profiler=types.SimpleNamespace(
            profile=Profile, ProfilerActivity=types.SimpleNamespace(CUDA="GPU"),
            schedule=lambda wait, warmup, active: (wait, warmup, active),
        ),
        autograd=types.SimpleNamespace(DeviceType=types.SimpleNamespace(CUDA="GPU")),
        cuda=types.SimpleNamespace(
            synchronize=lambda: waits.append(1), is_available=lambda: False,
            get_device_properties=lambda device: types.SimpleNamespace(uuid="1"),
        ),
        is_tensor=lambda value: False,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    return waits


def test_the_gpus_own_work_is_measured_where_a_launch_asks_for_it(
    tmp_path, torch_of_gpus, monkeypatch
):
    monkeypatch.setenv(WORK, "2:3")
    made = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="nccl", device="cuda:0")
    for step in range(1, 8):
        made.step(step, 2.5)
    made.end(7)
    (found,) = [line for line in lines(tmp_path) if line["event"] == "work"]
    assert found["seconds"] == pytest.approx(0.150 / 3)
    assert found["compute"] == pytest.approx(0.090 / 3)
    assert found["communication"] == pytest.approx(0.090 / 3)
    assert len(torch_of_gpus) == 2
    ranks = {}
    record.take_line(ranks, 1, json.dumps(found))
    work = ranks[1].work
    assert (work.seconds, work.compute) == (found["seconds"], found["compute"])
    assert work.wall == found["wall"] > 0
    assert work.communication == found["communication"]


def test_a_profiler_that_sees_nothing_measures_nothing(
    tmp_path, torch_of_gpus, monkeypatch, capsys
):
    monkeypatch.setattr(Profile, "events", lambda self: [])
    monkeypatch.setenv(WORK, "2:3")
    made = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="nccl", device="cuda:0")
    for step in range(1, 8):
        made.step(step, 2.5)
    made.end(7)
    assert "saw nothing that the GPU ran" in capsys.readouterr().err
    assert "work" not in [line["event"] for line in lines(tmp_path)]


def test_a_bench_watches_the_updates_after_its_last_window(tmp_path, torch_of_gpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "stackyard_record", stackyard_record)
    monkeypatch.setenv("STACKYARD_BENCH_WINDOW", "10")
    monkeypatch.setenv(WORK, "21:3")
    made = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="nccl", device="cuda:0")
    windows = runpy.run_path(str(ROOT / "images/bench/windows.py"))["Windows"](made)
    for step in range(1, 25):
        windows.update(step, 3.0, 1.0, 5.0)
    made.end(24)
    found = lines(tmp_path)
    assert [line["event"] for line in found] == ["start", "window", "window", "work", "end"]
    assert [line["tokens"] for line in found[1:3]] == [50.0, 50.0]


def test_a_profiler_that_fails_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    properties = types.SimpleNamespace(uuid="1")
    cuda = types.SimpleNamespace(
        is_available=lambda: False, get_device_properties=lambda device: properties
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setenv(WORK, "2:3")
    made = Recorder(str(tmp_path / "new" / "record"), 1, 2, backend="nccl", device="cuda:0")
    for step in range(1, 8):
        made.step(step, 2.5)
    made.end(7)
    events = [line["event"] for line in lines(tmp_path)]
    assert events == ["start", *["step"] * 7, "end"]
    assert capsys.readouterr().err.count("the GPU's work is not measured") == 1


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(1, 3), (2, 4)], 3), ([(5, 6), (1, 9), (2, 3)], 8), ([(1, 2), (2, 3), (7, 8)], 3)],
)
def test_spans_that_overlap_count_once(spans, length):
    assert covered(spans) == length


def test_fused_parts_are_told_when_they_change(recorder, tmp_path, monkeypatch):
    recorder.step(1, 2.5)
    ledger = types.SimpleNamespace(said={"layer": {"state": "ran", "why": ""}})
    ledger.states = lambda: dict(ledger.said)
    monkeypatch.setitem(sys.modules, "stackyard_fused", ledger)
    recorder.step(2, 2.5)
    recorder.window(2, 2.5, seconds=1.0, tokens=1.0, peak_bytes=0, updates=[0.25, 0.75])
    ledger.said = {"layer": {"state": "fell back", "why": "no compiler"}}
    recorder.end(3)
    found = lines(tmp_path)
    assert [line["event"] for line in found] == [
        "start", "step", "step", "fused", "window", "fused", "end",
    ]  # fmt: skip
    assert found[4]["updates"] == [0.25, 0.75]
    assert found[5]["parts"] == ledger.said
