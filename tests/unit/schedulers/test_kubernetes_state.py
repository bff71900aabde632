"""What a cluster says of a run, in Stackyard's words."""

import pytest

from stackyard.schedulers.kubernetes_state import PodState, read_run


def run(*conditions):
    listed = [{"type": t, "status": s, "message": f"{t} it is"} for t, s in conditions]
    return {"status": {"conditions": listed}}


def pod(index=0, phase="Running", **status):
    return {
        "metadata": {"name": f"toy-node-0-{index}-abc12"},
        "spec": {"nodeName": f"machine{index}"},
        "status": {"phase": phase, **status},
    }


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([("Completed", "True")], "succeeded"),
        ([("Complete", "True")], "succeeded"),
        ([("Failed", "True")], "failed"),
        ([("FailureTarget", "True")], "failed"),
        ([("Suspended", "True")], "queued"),
        ([("Suspended", "False"), ("Failed", "True")], "failed"),
        ([("StartupPolicyCompleted", "True")], "running"),
        ([("Failed", "False")], "running"),
        ([], "running"),
    ],
)
def test_conditions_are_translated(conditions, state):
    assert read_run("toy", run(*conditions), [pod()]).state == state


def test_what_the_cluster_says_of_a_failure_is_kept():
    assert read_run("toy", run(("Failed", "True")), []).why == "Failed it is"


@pytest.mark.parametrize(
    ("phase", "state"),
    [("Pending", "starting"), ("Running", "running"), ("Succeeded", "running")],
)
def test_a_run_runs_once_one_of_its_pods_does(phase, state):
    assert read_run("toy", {}, []).state == "gone"
    assert read_run("toy", {"kind": "JobSet"}, []).state == "starting"
    found = read_run("toy", {"kind": "JobSet"}, [pod(phase="Pending"), pod(1, phase=phase)])
    assert found.state == state


def test_pods_are_in_the_order_of_their_indexes():
    names = [p.name for p in read_run("toy", run(), [pod(10), pod(2), pod(1)]).pods]
    assert names == ["toy-node-0-1", "toy-node-0-2", "toy-node-0-10"]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"containerStatuses": [{"state": {"waiting": {
            "reason": "ErrImagePull", "message": "not found"}}}]}, "ErrImagePull not found"),
        ({"containerStatuses": [{"state": {"terminated": {
            "reason": "OOMKilled", "exitCode": 137}}}]}, "OOMKilled, exit code 137"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}, ""),
        ({"conditions": [{"type": "PodScheduled", "status": "False",
                          "message": "Insufficient nvidia.com/gpu"}]},
         "Insufficient nvidia.com/gpu"),
        ({"message": "evicted"}, "evicted"),
        ({}, ""),
    ],
)  # fmt: skip
def test_why_a_pod_waits_or_failed_is_told(status, why):
    (found,) = read_run("toy", run(), [pod(**status)]).pods
    assert found == PodState(name="toy-node-0-0", machine="machine0", state="Running", why=why)


def test_a_pod_that_is_nowhere_yet_is_read():
    (found,) = read_run("toy", run(), [{"metadata": {"name": "toy-0-abc12"}}]).pods
    assert found == PodState(name="toy-0", machine="", state="", why="")
