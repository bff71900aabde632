"""SIGTERM in a rank: noticed, and agreed on with the other ranks."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from stackyard.inside.stackyard_stop import StopSignal


@pytest.fixture
def stop():
    before = signal.getsignal(signal.SIGTERM)
    yield StopSignal()
    signal.signal(signal.SIGTERM, before)


def test_a_signal_is_noticed_and_ends_nothing(stop):
    assert not stop.agreed()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked and stop.agreed()


class Torch:
    """A process group whose other ranks have flags of their own."""

    def __init__(self, others, ready=True):
        self.others, self.reduced = others, []
        self.distributed = SimpleNamespace(
            is_initialized=lambda: ready, all_reduce=self._reduce,
            ReduceOp=SimpleNamespace(MAX="max"),
        )  # fmt: skip

    def tensor(self, values, device):
        return SimpleNamespace(values=values, device=device, item=lambda: self.reduced[-1])

    def _reduce(self, flag, op):
        assert (op, flag.device) == ("max", "cuda:1")
        self.reduced.append(max([*flag.values, *self.others]))


@pytest.mark.parametrize(
    ("own", "others", "agreed"), [(False, [0.0], False), (False, [1.0], True), (True, [0.0], True)]
)
def test_a_rank_ends_where_any_rank_was_signalled(stop, monkeypatch, own, others, agreed):
    monkeypatch.setitem(sys.modules, "torch", Torch(others))
    stop.asked = own
    assert stop.agreed("cuda:1") == stop.asked == agreed


def test_a_process_without_a_group_decides_alone(stop, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch([1.0], ready=False))
    assert not stop.agreed()
