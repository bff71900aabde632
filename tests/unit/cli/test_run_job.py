"""The user's own settings of a run: what is typed, the caller's shell, and a configuration."""

import pytest

from stackyard.cli.options.runs import RunRequest
from stackyard.cli.steps import run as steps
from stackyard.cli.steps import run_job
from stackyard.cli.steps.run_job import own_of
from stackyard.mesh.runs import Reached
from stackyard.system.errors import UsageError
from tests.unit.machines import fleet, node, plan, wanted


def asked(*env, config=""):
    return RunRequest(stack="accelerate", env=env, accelerate_config=str(config))


def test_what_is_typed_precedes_the_shell_of_which_only_nccl_goes_along():
    caller = {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "TORCH_NCCL_BLOCKING_WAIT": "1",
              "NCCL_VERSION": "2.30", "HOME": "/home/me", "HF_TOKEN": "hunter22"}  # fmt: skip
    found = own_of(asked("NCCL_DEBUG=WARN", "A=1"), caller)
    assert found.settings == {
        "NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "TORCH_NCCL_BLOCKING_WAIT": "1", "A": "1",
    }  # fmt: skip
    assert found.caller == ("NCCL_ALGO", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT")
    assert found.config is None


def test_a_variable_of_the_shell_that_nodes_cannot_have_is_refused():
    with pytest.raises(UsageError, match="NCCL_X of your environment cannot go to the nodes"):
        own_of(asked(), {"NCCL_X": "two\nlines"})


def test_a_configuration_is_read_where_the_command_is_typed(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("distributed_type: FSDP\n")
    found = own_of(asked(config=path), {})
    assert found.config is not None and found.config.kind == "FSDP"
    assert found.config.name == str(path)


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path, content):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.yaml cannot be read"):
        own_of(asked(config=path), {})


def test_who_leaves_cannot_start_it_again():
    """It took the running job for a failed one, and ended with an error beside it."""
    given = RunRequest(stack="fairseq", gpus=0, detach=True, restarts=1, example="lm-ddp")
    with pytest.raises(UsageError, match="--restarts does not go with --detach"):
        steps.run(None, given)


def test_a_training_without_a_controller_needs_a_mesh_which_the_hint_starts_as_asked():
    hosts = Reached(fleet=fleet("a"), links={}, failed={})
    given = RunRequest(stack="fairseq", gpus=0, hosts="a,b", detach=True, example="lm-ddp")
    with pytest.raises(UsageError, match="--detach needs one that stays") as caught:
        steps._require_mesh(None, wanted(run="fairseq"), given, hosts)
    assert caught.value.hint == "invoke up fairseq --hosts a,b --gpus 0"


@pytest.mark.parametrize(
    ("names", "left_out"), [("abc", "c:1@b@c"), ("ab", "b")], ids=["standing", "started again"]
)
def test_a_lost_host_that_was_excluded_in_part_does_not_keep_the_others_from_starting(
    names, left_out, monkeypatch
):
    class Selected(Exception):
        pass

    def select(plan, per_node, include, exclude):
        raise Selected(exclude)

    monkeypatch.setattr(run_job, "select", select)
    given = RunRequest(stack="toy", exclude="c:1@b")
    with pytest.raises(Selected, match=f"^{left_out}$"):
        run_job.chosen(plan(*map(node, names)), None, given, {"c"}, own_of(given, {}))
