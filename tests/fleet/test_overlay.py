"""A run over a network that spans the hosts, where their own network is not to be used."""

from __future__ import annotations

import json

import pytest

from tests.fleet.test_runs import losses


@pytest.fixture
def overlay(yard):
    """Two of the hosts as a Swarm with an attachable overlay network; taken apart afterwards."""
    study, train = yard.hosts["study"], yard.hosts["train"]
    study.run("docker", "swarm", "init", "--advertise-addr", study.address)
    try:
        token = study.run("docker", "swarm", "join-token", "-q", "worker")
        train.run("docker", "swarm", "join", "--token", token, f"{study.address}:2377")
        study.run("docker", "network", "create", "-d", "overlay", "--attachable", "span")
        yield "span"
    finally:
        for host in (train, study):
            host.run("docker", "swarm", "leave", "--force", check=False)


@pytest.mark.repeat  # which network is taken is shown in tests/unit/mesh
def test_a_training_runs_over_an_overlay_network(yard, overlay):
    two = yard.only("study", "train")
    up = two.invoke("up", "fairseq", "--gpus", "0", "--network", overlay, "--json")
    assert json.loads(up.stdout)["network"] == overlay
    done = two.invoke("run", "fairseq", "--example", "lm-ddp")
    found = losses(done.stdout)
    assert found[-1] < 0.85 * found[0]
    two.invoke("down")
