"""Key material of a run: who vouches for whom, for how long, and what is never shared."""

import base64

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_identity,
    load_ssh_public_key,
)

from stackyard.mesh import certificates

NOW = 1_800_000_000
PLAN = certificates.MeshPlan(run="toy-1234", nodes=("node1", "node2"), port=2222, seconds=3600)


@pytest.fixture(scope="module")
def authority():
    return certificates.Authority()


@pytest.fixture(scope="module")
def material(authority):
    return certificates.node_material(PLAN, authority, now=NOW)


def line(key):
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def certificate(files, name):
    return load_ssh_public_identity(files[f"{name}-cert.pub"].strip())


def test_every_node_gets_every_file(material):
    assert list(material) == ["node1", "node2"]
    for files in material.values():
        assert sorted(files) == [
            "address", "host_key", "host_key-cert.pub", "known_hosts", "port", "ports",
        "principals",
            "ssh_config", "user_ca.pub", "user_key", "user_key-cert.pub",
        ]  # fmt: skip


def test_no_two_nodes_share_a_private_key(material):
    keys = [files[name] for files in material.values() for name in ("host_key", "user_key")]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("name", "kind", "principals"),
    [
        ("host_key", SSHCertificateType.HOST, [b"node2"]),
        ("user_key", SSHCertificateType.USER, [b"toy-1234"]),
    ],
)
def test_a_certificate_names_one_thing_and_is_signed_by_the_runs_authority(
    material, authority, name, kind, principals
):
    files = material["node2"]
    found = certificate(files, name)
    found.verify_cert_signature()
    assert (found.type, found.valid_principals) == (kind, principals)
    assert line(found.signature_key()) == authority.public
    private = load_ssh_private_key(files[name], password=None)
    assert line(found.public_key()) == line(private.public_key())
    assert found.critical_options == {}


@pytest.mark.parametrize("name", ["host_key", "user_key"])
def test_a_certificate_lasts_as_long_as_the_run_may(material, name):
    found = certificate(material["node1"], name)
    assert (found.valid_after, found.valid_before) == (NOW - 300, NOW + 3600)


def test_a_user_may_have_a_terminal_and_no_forwarding(material):
    assert certificate(material["node1"], "user_key").extensions == {b"permit-pty": b""}
    assert certificate(material["node1"], "host_key").extensions == {}


def test_the_authoritys_private_key_is_in_no_file(material, authority):
    private = [data for files in material.values() for data in files.values()
               if b"PRIVATE KEY" in data]  # fmt: skip
    assert len(private) == 2 * len(PLAN.nodes)  # of each node and of its user
    held = [line(load_ssh_private_key(data, password=None).public_key()) for data in private]
    assert authority.public not in held


def test_known_hosts_trusts_the_authority_for_the_runs_names_only(authority):
    assert certificates.known_hosts(PLAN, authority) == (
        b"@cert-authority node1,[node1]:2222,node2,[node2]:2222 " + authority.public + b"\n"
    )


def test_only_this_runs_principal_is_let_in(material, authority):
    files = material["node1"]
    assert files["principals"] == b"toy-1234\n"
    assert files["user_ca.pub"] == authority.public + b"\n"
    assert files["port"] == b"2222\n"


def test_every_run_has_an_authority_of_its_own(authority):
    assert certificates.Authority().public != authority.public


def test_the_clients_configuration_is_strict_and_names_the_nodes():
    text = certificates.client_config(PLAN)
    assert "Host node1 node2\n" in text
    assert "    Port 2222\n" in text
    assert "    StrictHostKeyChecking yes\n" in text
    assert "    GlobalKnownHostsFile /run/stackyard/mesh/known_hosts\n" in text


def test_strangers_hold_nothing_that_this_runs_authority_signed(authority):
    foreign = certificates.foreign_material(PLAN, "node2", now=NOW)
    assert sorted(foreign) == [
        "foreign_key", "impostor_key", "impostor_key-cert.pub", "other_run_key",
        "other_run_key-cert.pub",
    ]  # fmt: skip
    for name, principal in (("other_run_key", b"toy-1234"), ("impostor_key", b"node2")):
        found = certificate(foreign, name)
        assert found.valid_principals == [principal]
        assert line(found.signature_key()) != authority.public


def test_a_certificate_made_to_name_another_node_is_not_valid(material):
    kind, text = material["node1"]["host_key-cert.pub"].split()
    forged = base64.b64encode(base64.b64decode(text).replace(b"\x05node1", b"\x05node2"))
    found = load_ssh_public_identity(kind + b" " + forged)
    assert found.valid_principals == [b"node2"]
    with pytest.raises(InvalidSignature):
        found.verify_cert_signature()


def test_the_authoritys_key_is_an_ed25519_line(authority):
    assert authority.public.startswith(b"ssh-ed25519 ")
    assert line(load_ssh_public_key(authority.public)) == authority.public


def test_runs_that_share_a_hosts_network_have_loopback_addresses_of_their_own():
    nodes = ("node1", "node2")
    runs = [f"toy-{number}" for number in range(50)]
    found = [tuple(certificates.loopback_addresses(run, nodes).values()) for run in runs]
    assert len(set(found)) == len(runs)
    assert all(len({*addresses}) == 2 for addresses in found)
    # 127.0.0.1 is the host's own, and systemd-resolved listens at 127.0.0.53.
    assert all(address.startswith("127.") for addresses in found for address in addresses)
    assert not any(address.startswith("127.0.") for addresses in found for address in addresses)
    again = certificates.loopback_addresses(runs[0], nodes)
    assert (tuple(again), tuple(again.values())) == (nodes, found[0])


@pytest.mark.parametrize("count", [1, 2, 8])
def test_up_to_8_nodes_every_pair_is_tried(count):
    nodes = [f"n{n}" for n in range(count)]
    assert certificates.pairs(nodes) == tuple((a, b) for a in nodes for b in nodes)


@pytest.mark.parametrize("count", [9, 32, 100])
def test_beyond_8_nodes_work_grows_as_their_number(count):
    nodes = [f"n{n}" for n in range(count)]
    found = certificates.pairs(nodes)
    assert len(found) == len(set(found)) < 3 * count
    assert {("n0", node) for node in nodes} <= set(found)
    assert {(node, "n0") for node in nodes} <= set(found)
    assert {(nodes[n - 1], nodes[n]) for n in range(count)} <= set(found)
