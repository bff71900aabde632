"""However a run over hosts ends, nothing of it is left once its lease is over."""

import secrets
import time

import pytest

from tests.fleet import matrix

pytestmark = pytest.mark.bounded
CELLS = [
    pytest.param(stack, target, marks=() if (stack, target) in matrix.FIRST else pytest.mark.repeat)
    for stack in matrix.EXAMPLES
    for target in matrix.TARGETS
]


@pytest.mark.parametrize(("stack", "target"), CELLS)
def test_nothing_is_left(yard, stack, target):
    assert matrix.play(yard, stack, target).wrong == []


@pytest.mark.repeat  # one cell of the matrix is above
def test_a_lost_container_ends_its_run_and_no_other_on_the_same_hosts(yard):
    """The hosts' own run trains on while its neighbour loses a container and is removed."""
    other = f"other-{secrets.token_hex(3)}"
    yard.invoke("up", "fairseq", "--gpus", "0", "--name", other)
    yard.invoke("run", "fairseq", "--name", other, "--example", "lm-ddp", "--detach", "--set",
                "updates=100000")  # fmt: skip
    names = sorted(f"stackyard-{other}-{name}" for name in yard.hosts)
    run = matrix.Attached(yard, "megatron", f"cell-{secrets.token_hex(3)}")
    try:
        run.wait_training()
        matrix.struck(yard, run, "container")
        struck = time.monotonic()
        while sorted(there := [n for h in yard.hosts.values() for n in h.containers()]) != names:
            assert time.monotonic() - struck < matrix.ALLOWED_SECONDS, (there, run.said)
            time.sleep(0.1)
        assert run.wait(60) == 1
    finally:
        run.close()
    assert all(len(host.ranks()) == 1 for host in yard.hosts.values())
    yard.invoke("down", "--name", other)
