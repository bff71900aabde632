"""sshd of a node takes its configuration, and what is in effect is strict."""

from __future__ import annotations

import pytest

from stackyard.mesh import nodes
from stackyard.mesh.certificates import FOLDER

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


def test_keys_are_in_memory_and_for_root_only(host):
    """In /run, which is memory with nothing mounted over it."""
    above = [m for m in host.mount_point.get_mountpoints() if f"{FOLDER}/".startswith(f"{m.path}/")]
    assert [(m.path, m.filesystem) for m in above] == [("/run", "tmpfs")]
    for path, mode in (
        (FOLDER, 0o700),
        (f"{FOLDER}/host_key", 0o600),
        (f"{FOLDER}/user_key", 0o600),
    ):
        assert (host.file(path).mode, host.file(path).user) == (mode, "root"), path


def test_sshd_is_the_node_program_and_listens_alone(host):
    (sshd,) = host.process.filter(comm="sshd", ppid=1, user="root")
    assert host.file("/run/stackyard/sshd.pid").content_string == str(sshd.pid)
    listening = host.socket.get_listening_sockets()
    # The engine's own name server has its sockets in every container.
    assert {one for one in listening if "://127.0.0.11:" not in one} == {
        "tcp://0.0.0.0:2222",
        "tcp://:::2222",
        "unix:///run/stackyard/supervisor.sock",
    }
    assert host.file("/run/stackyard/supervisor.sock").mode == 0o600


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
