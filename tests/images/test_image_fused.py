"""In fairseq's image a batch of another size is not compiled again; no fused part goes silently."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

# Only fairseq has parts that are compiled.
pytestmark = [pytest.mark.engine, pytest.mark.parametrize("built", ["fairseq"], indirect=True)]
PROGRAM = Path(__file__).with_name("count_graphs.py").read_text(encoding="utf-8")


@pytest.fixture
def counted(said):
    """Train in the image, with an argument and settings; return what the program found."""

    def run(argument: str = "", settings: str = "") -> dict:
        command = f"{settings} python3 -c {shlex.quote(PROGRAM)} {argument} 2> /dev/null"
        return json.loads(said(command).splitlines()[-1])

    return run


def test_only_the_first_batch_is_compiled(counted):
    found = counted()
    first, *others = found["batches"]
    assert first["graphs"] > 0
    assert [batch["graphs"] for batch in others] == [0] * len(others)
    assert max(batch["off"] for batch in found["batches"]) < 1e-5
    assert found["states"] == {"layer": ["ran", ""], "loss": ["ran", ""]}


def test_a_batch_of_a_seldom_size_is_not_compiled_whatever_torch_knows_of_sizes(counted):
    found = counted("seldom")
    assert [batch["graphs"] > 0 for batch in found["batches"]] == [True] + [False] * 4
    assert max(batch["off"] for batch in found["batches"]) < 1e-5
    assert found["states"] == {"layer": ["ran", ""], "loss": ["ran", ""]}


@pytest.mark.repeat  # shows why, not that
def test_without_unknown_sizes_batches_would_be_compiled_again_until_nothing_is_fused(counted):
    found = counted("fixed")
    assert sum(batch["graphs"] for batch in found["batches"][1:]) > 3
    state, why = found["states"]["layer"]
    assert (state, why.split(":")[0]) == ("fell back", "FailOnRecompileLimitHit")


@pytest.mark.repeat  # the fast tests judge what a switch made
def test_a_switch_that_compiles_nothing_is_seen(counted):
    found = counted(settings="TORCHDYNAMO_DISABLE=1")
    for state, why in found["states"].values():
        assert state == "fell back"
        assert why == "torch.compile compiled nothing (TORCHDYNAMO_DISABLE switches it off)"
