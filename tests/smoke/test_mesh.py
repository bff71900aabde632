"""The mesh as it must be, and each of its promises shown to be noticed when it is broken."""

from __future__ import annotations

import dataclasses
import secrets
import time

import pytest

from stackyard.mesh import certificates, nodes
from stackyard.system.errors import MeshError, StackyardError
from stackyard.validate.judge_mesh import mesh as judge_mesh
from stackyard.validate.outcome import Observation
from tests.leftovers import labelled
from tests.shared import inside, until


def now():
    return int(time.time())


def own_plan(names=("node1", "node2"), seconds=60):
    run = f"test-{secrets.token_hex(4)}"
    return certificates.MeshPlan(run=run, nodes=names, port=2222, seconds=seconds)


def observe(running, settings, image_env, refusals=None):
    reach = nodes.wait_reachable(running)
    sessions = {
        (source, target): nodes.session_environment(answer["environment"])
        for source, answers in reach.items()
        for target, answer in answers.items()
        if answer["environment"]
    }
    return Observation(
        nodes=running.plan.nodes,
        environment={**image_env, **settings.env},
        pairs=certificates.pairs(running.plan.nodes),
        reach=reach,
        sessions=sessions,
        refusals=refusals if refusals is not None else nodes.try_refusals(running, now=now()),
    )


def on(running, node, script):
    done = running.engine.exec(running.containers[node], ["bash", "-ec", script], seconds=20)
    assert done.code == 0, done.output


def reload_sshd(running, node, edit):
    """Change a node's sshd_config and let the listening sshd read it again."""
    running.talk.wait_joined(running.plan.nodes)
    on(running, node, f"{edit}; kill -HUP $(cat /run/stackyard/sshd.pid)")
    container = running.containers[node]

    def listens_again():
        _, restarted, later = running.engine.container_log(container).rpartition("SIGHUP")
        return restarted and "Server listening on ::" in later

    until(listens_again, 20)


def test_a_mesh_passes(shared_mesh, settings, image_env, example):
    result = judge_mesh(example, observe(shared_mesh, settings, image_env))
    assert (result.outcome, result.why) == ("passed", "")
    assert len(result.measured["logins"]) == 4
    assert result.measured["refused"] == sorted(
        ["foreign_key", "impostor", "impostor_by_config", "other_run", "password", "unnamed"]
    )


def test_a_node_sees_of_the_machine_what_is_the_runs_and_no_more(shared_mesh):
    made_by_the_kernel = {"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}
    for container in shared_mesh.containers.values():
        mounts = {m.path: m for m in inside(container).mount_point.get_mountpoints()}
        real = {path for path, m in mounts.items() if m.filesystem not in made_by_the_kernel}
        assert real == {"/", nodes.SHARED, "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
        assert {"nosuid", "nodev", "noexec"} <= set(mounts["/run"].options)
        assert f"size={2**20}k" in mounts["/dev/shm"].options


def test_a_node_knows_its_own_address_as_an_ipv6_socket_has_it(shared_mesh):
    """What torch asks at each launch: no server that could keep it waiting is asked."""
    asked = "import socket; print(*socket.getnameinfo(('::ffff:127.0.0.1', 1, 0, 0), 0))"
    container = next(iter(shared_mesh.containers.values()))
    assert inside(container).run(f'python3 -c "{asked}"').stdout == "localhost4 1\n"


# Four faults of one mesh, none of which makes the mark of another.
SSHD = "/etc/ssh/sshd_config"
BROKEN = {
    "passwords switched on": (
        "node2",
        "sed -i -e 's/^PasswordAuthentication no/PasswordAuthentication yes/'"
        f" -e '/^AuthenticationMethods/d' -e 's/^PermitRootLogin .*/PermitRootLogin yes/' {SSHD};"
        " echo root:secret | chpasswd",
        "password: failed, but not with 'Permission denied (publickey)'",
    ),
    "a foreign key that is let in": (
        "node2",
        "printf '#!/bin/sh\\necho \"$1 $2\"\\n' > /usr/local/bin/anybody;"
        " chmod 755 /usr/local/bin/anybody;"
        " sed -i 's,^AuthorizedKeysFile none,AuthorizedKeysCommand /usr/local/bin/anybody %t %k"
        f"\\nAuthorizedKeysCommandUser root,' {SSHD}",
        "foreign_key: the login was let in",
    ),
    "an environment that logins do not see": (
        "node2",
        "sed -i '/^SetEnv/d' /run/stackyard/mesh/sshd.conf",
        "GLOO_SOCKET_IFNAME is None in a login from node1 to node2",
    ),
    "host checking switched off": (
        "node1",
        "sed -i -e 's/StrictHostKeyChecking yes/StrictHostKeyChecking no/'"
        " -e '/GlobalKnownHostsFile/d' -e '/HostKeyAlgorithms/d' /run/stackyard/mesh/ssh_config",
        "impostor_by_config: the login was let in",
    ),
}


@pytest.fixture(scope="module")
def broken(engine, settings, image_env, example):
    """What is said of a mesh with all of these faults."""
    plan = own_plan(seconds=3600)
    with nodes.running_mesh(engine, plan, settings, now=now()) as running:
        for node in plan.nodes:
            reload_sshd(running, node, "; ".join(e for at, e, _ in BROKEN.values() if at == node))
        return judge_mesh(example, observe(running, settings, image_env))


@pytest.mark.parametrize("said", [said for *_, said in BROKEN.values()], ids=BROKEN)
def test_what_is_broken_is_noticed(broken, said):
    assert broken.outcome == "failed"
    assert said in broken.why


@pytest.fixture
def one_authority(monkeypatch):
    """One authority for every run, as a site-wide key would be."""
    made = certificates.Authority()
    monkeypatch.setattr(certificates, "Authority", lambda: made)


def test_an_authority_shared_by_runs_is_noticed(
    one_authority, make_mesh, settings, image_env, example
):
    result = judge_mesh(example, observe(make_mesh(), settings, image_env))
    assert result.outcome == "failed"
    assert "other_run: the login was let in" in result.why
    assert "impostor: the login was let in" in result.why


def test_a_node_without_sshd_is_named(make_mesh, settings):
    running = make_mesh()
    running.engine.kill(running.containers["node2"])
    with pytest.raises(MeshError, match=r"node2 (is not running|is gone|cannot be logged in to)"):
        nodes.wait_reachable(running)


def test_certificates_end(engine, settings):
    """Made an hour ago for 60 s: nobody gets in any more."""
    plan = own_plan()
    with (
        nodes.running_mesh(engine, plan, settings, now=now() - 3600) as running,
        pytest.raises(MeshError, match=r"node2 cannot be logged in to .*(expired|denied|failed)"),
    ):
        nodes.wait_reachable(running)


def test_a_mesh_that_fails_to_start_leaves_nothing(engine, settings):
    broken = dataclasses.replace(settings, image="stackyard/base:cpu")
    plan = own_plan()
    with (
        pytest.raises(StackyardError, match=r"node\d did not take its keys|in \w+"),
        nodes.running_mesh(engine, plan, broken, now=now()),
    ):
        pass
    assert labelled(engine, nodes.run_label(plan.run)) == []


@pytest.mark.repeat  # two nodes do above
def test_eight_nodes_reach_each_other_and_leave_nothing(engine, settings):
    names = tuple(f"node{number}" for number in range(1, 9))
    plan = own_plan(names, 600)
    label = nodes.run_label(plan.run)
    with nodes.running_mesh(engine, plan, settings, now=now()) as running:
        reach = nodes.wait_reachable(running)
        assert len(labelled(engine, label)) == 8 + 2  # a network and a volume
    assert labelled(engine, label) == []
    assert sum(answer["code"] == 0 for row in reach.values() for answer in row.values()) == 64


def test_no_key_is_in_a_layer_label_environment_or_argument(shared_mesh):
    api = shared_mesh.engine._api
    for container in shared_mesh.containers.values():
        text = str(api.inspect_container(container))
        assert "PRIVATE KEY" not in text
        changed = [entry["Path"] for entry in api.diff(container) or []]
        assert not [path for path in changed if "key" in path or path.startswith("/etc/ssh")]
