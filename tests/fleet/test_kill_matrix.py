"""However a run over hosts ends, nothing of it is left once its lease is over."""

import secrets

import pytest

from tests.fleet import matrix


@pytest.mark.parametrize(
    ("stack", "target"),
    [(stack, target) for stack, targets in matrix.CHOSEN.items() for target in targets],
)
def test_nothing_is_left(yard, stack, target):
    cell = matrix.play(yard, stack, target)
    assert cell.seconds is not None, f"left: {cell.left}; it said: {cell.said}"
    assert cell.code != 0
    if target != "controller":
        assert cell.code == 1, cell.said


def test_another_run_on_the_same_hosts_is_not_touched(yard):
    """The host's own run trains on while its neighbour loses a container and is removed."""
    other = f"other-{secrets.token_hex(3)}"
    yard.invoke("up", "fairseq", "--gpus", "0", "--name", other)
    yard.invoke("run", "fairseq", "--name", other, "--example", "lm-ddp", "--detach", "--set",
                "updates=100000")  # fmt: skip
    run = matrix.Attached(yard, "megatron", f"cell-{secrets.token_hex(3)}")
    try:
        run.wait_training()
        matrix.struck(yard, run, "container")
        assert run.wait(60) == 1
    finally:
        run.close()
    mine = [line for host in yard.hosts.values() for line in host.containers()]
    assert sorted(mine) == sorted(f"stackyard-{other}-{name}" for name in yard.hosts)
    assert all(len(host.ranks()) == 1 for host in yard.hosts.values())
    yard.invoke("down", "--name", other)
