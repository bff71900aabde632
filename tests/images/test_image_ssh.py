"""sshd of a node takes its configuration, and what is in effect is strict."""

from __future__ import annotations

import pytest

from stackyard import nodes
from stackyard.mesh import FOLDER

pytestmark = pytest.mark.engine


def settings(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, value)
    return found


@pytest.fixture(scope="module")
def server(said):
    return settings(said("/usr/sbin/sshd -T"))


@pytest.fixture(scope="module")
def client(said):
    return settings(said("ssh -G node-1"))


def test_sshd_accepts_its_configuration(said):
    assert said("/usr/sbin/sshd -t 2>&1") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "2222"),
        ("passwordauthentication", "no"),
        ("kbdinteractiveauthentication", "no"),
        ("hostbasedauthentication", "no"),
        ("gssapiauthentication", "no"),
        ("pubkeyauthentication", "yes"),
        ("authenticationmethods", "publickey"),
        ("permitemptypasswords", "no"),
        ("permitrootlogin", "without-password"),
        ("permituserenvironment", "no"),
        ("authorizedkeysfile", "none"),
        ("authorizedkeyscommand", "none"),
        ("authorizedprincipalsfile", f"{FOLDER}/principals"),
        ("trustedusercakeys", f"{FOLDER}/user_ca.pub"),
        ("hostkey", f"{FOLDER}/host_key"),
        ("hostcertificate", f"{FOLDER}/host_key-cert.pub"),
        ("usepam", "no"),
        ("usedns", "no"),
        ("x11forwarding", "no"),
        ("allowtcpforwarding", "no"),
        ("allowagentforwarding", "no"),
        ("kexalgorithms", "curve25519-sha256"),
        ("casignaturealgorithms", "ssh-ed25519"),
        ("maxstartups", "256:30:1024"),
    ],
)
def test_in_effect_at_the_server(server, name, value):
    assert server[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "2222"),
        ("user", "root"),
        ("stricthostkeychecking", "true"),
        ("identitiesonly", "yes"),
        ("identityfile", f"{FOLDER}/user_key"),
        ("globalknownhostsfile", f"{FOLDER}/known_hosts"),
        ("userknownhostsfile", "/dev/null"),
        ("hostkeyalgorithms", "ssh-ed25519-cert-v01@openssh.com"),
        ("passwordauthentication", "no"),
        ("updatehostkeys", "false"),
    ],
)
def test_in_effect_at_the_client(client, name, value):
    assert client[name] == value


def test_keys_are_in_memory_and_for_root_only(said):
    assert said(f"stat -f -c %T {FOLDER}") == "tmpfs"
    assert said(f"stat -c %a {FOLDER} {FOLDER}/host_key {FOLDER}/user_key").split() == [
        "700",
        "600",
        "600",
    ]


def test_the_listening_sshd_is_the_node_program(said):
    pid = said("cat /run/stackyard/sshd.pid")
    assert said(f"cat /proc/{pid}/comm") == "sshd"
    assert said(f"ps -o ppid= -p {pid}").strip() == "1"


def test_a_login_sees_the_images_environment(node, built):
    answer = nodes.wait_reachable(node)["node-1"]["node-1"]
    assert answer["code"] == 0, answer["says"]
    seen = nodes.session_environment(answer["environment"])
    wanted = dict(entry.split("=", 1) for entry in built.info.env)
    assert {name: seen.get(name) for name in wanted} == wanted


def test_without_material_sshd_has_no_key_to_start_with(engine, built):
    script = "mkdir -p /run/sshd; /usr/sbin/sshd -t 2>&1 || true"
    said = engine.run_once(built.info.id, ["sh", "-c", script], seconds=20)
    assert "no hostkeys available" in said
