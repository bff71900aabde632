"""A preparation that is killed leaves no container and no data; the next one goes on from there."""

import json
import re
import signal
import subprocess
import sys

import pytest

from stackyard.definitions.project import ROOT
from tests.shared import until


@pytest.fixture(scope="module")
def begin(stack_images, material):
    text = material / "long.txt"
    text.write_bytes((material / "text.txt").read_bytes() * 20)  # a dozen shards
    words = [
        sys.executable,
        "-m",
        "tests.data.one_run",
        stack_images["megatron"].info.id,
        str(text),
    ]

    def started(out):
        words_ = [*words, str(material / "bpe"), str(out)]
        return subprocess.Popen(
            words_, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return started


@pytest.fixture(scope="module")
def whole(begin, place):
    """The same, never interrupted."""
    child = begin(place / "whole")
    _, said = child.communicate(timeout=120)
    assert child.returncode == 0, said
    return place / "whole"


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.repeat)]
)
def test_killed_and_typed_again(begin, whole, engine, tmp_path, number):
    child = begin(tmp_path / "out")
    until(lambda: len(list(tmp_path.glob(".out.*.partial/shards/*.json"))) > 2, 60)
    assert any(f" {child.pid} " in owner for owner in engine.runs().values())
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == (-number if number == signal.SIGKILL else 130)
    assert not (tmp_path / "out").exists()
    until(lambda: not any(f" {child.pid} " in owner for owner in engine.runs().values()), 30)
    if number == signal.SIGINT:
        assert "the same command goes on from there" in said

    # A shard that was damaged meanwhile is made again, not believed.
    damaged = min(tmp_path.glob(".out.*.partial/shards/*.tokens"))
    damaged.write_bytes(b"\0" + damaged.read_bytes()[1:])
    max(tmp_path.glob(".out.*.partial/shards/*.json")).write_text("null")
    again = begin(tmp_path / "out")
    output, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    # Shown from the first new shard on, which is the damaged one: before the end, too.
    assert re.search(r"(?m)^\d\d? % of \d\.\d MB, [\d.]+ .B/s, \d+ s left, [\d,]+ tokens$", said)
    found = json.loads(output)
    assert 0 < found["kept"] < found["shards"]
    assert list(tmp_path.glob(".out.*")) == []
    for name in ("train.bin", "train.idx"):
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()
