"""Make the key material of one run: its authority, and the files for every node.

Owns the ssh certificates and the files a node receives. The authority's private key stays in
the controller's memory: no file, image, environment variable or label ever holds it. Pure but
for the randomness of key generation; the clock is an argument. Formats: OpenSSH PROTOCOL.certkeys
and sshd(8) known_hosts (`@cert-authority`), through the `cryptography` library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
)

from stackyard.system import template

FOLDER = "/run/stackyard/mesh"
# Clocks of hosts differ a little: a certificate is valid from a moment before it was made.
_SKEW_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class MeshPlan:
    """Hold the nodes of a run, and how they reach each other.

    Attributes:
        run: the run's name; user certificates are bound to it as principal.
        port: where every node's sshd listens.
        seconds: how long certificates last.
        addresses: of each node, where the network does not resolve names itself (the host's);
            every sshd then listens on its own address only.
        ports: of nodes whose sshd does not listen on `port`, as nodes share a host's network.
    """

    run: str
    nodes: tuple[str, ...]
    port: int
    seconds: int
    addresses: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)

    def port_of(self, node: str) -> int:
        """Return the port that a node's sshd listens on."""
        return self.ports.get(node, self.port)


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def private_text(key: Ed25519PrivateKey) -> bytes:
    """Return a private key in OpenSSH's format."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


class Authority:
    """Hold the certificate authority of one run."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    @property
    def public(self) -> bytes:
        """Return the authority's public key, one line."""
        return _public(self._key)

    def certify(
        self, key: Ed25519PrivateKey, kind: SSHCertificateType, name: str, now: int, seconds: int
    ) -> bytes:
        """Return a certificate for `key` whose only principal is `name`.

        Args:
            now: seconds since the epoch.
            seconds: validity from now on.
        """
        builder = (
            SSHCertificateBuilder()
            .public_key(key.public_key())
            .type(kind)
            .key_id(f"stackyard:{name}".encode())
            .valid_principals([name.encode()])
            .valid_after(now - _SKEW_SECONDS)
            .valid_before(now + seconds)
        )
        if kind is SSHCertificateType.USER:
            builder = builder.add_extension(b"permit-pty", b"")
        return builder.sign(self._key).public_bytes() + b"\n"


def loopback_addresses(run: str, nodes: Sequence[str]) -> dict[str, str]:
    """Return loopback addresses for the nodes of a run that shares the host's network.

    No other machine reaches them, and runs on one host have different ones.
    """
    digest = hashlib.sha256(run.encode()).digest()
    prefix = f"127.{64 + digest[0] % 128}.{digest[1]}"
    return {node: f"{prefix}.{number + 1}" for number, node in enumerate(nodes)}


def known_hosts(plan: MeshPlan, authority: Authority) -> bytes:
    """Return the known_hosts line that trusts this authority's certificates for the nodes."""
    names = [f"{name},[{name}]:{plan.port_of(name)}" for name in plan.nodes]
    return b"@cert-authority " + ",".join(names).encode() + b" " + authority.public + b"\n"


def client_config(plan: MeshPlan) -> str:
    """Return the ssh client's configuration for this run's nodes."""
    groups: dict[int, list[str]] = {}
    for node in plan.nodes:
        groups.setdefault(plan.port_of(node), []).append(node)
    values: dict[str, object] = {"groups": groups, "folder": FOLDER}
    return template.render("runtime/ssh_config.j2", values)


def node_material(
    plan: MeshPlan, authority: Authority, *, now: int
) -> Mapping[str, Mapping[str, bytes]]:
    """Return the files of every node, by node and file name; each node has keys of its own."""
    return {node: _material_of(node, plan, authority, now) for node in plan.nodes}


def _material_of(node: str, plan: MeshPlan, authority: Authority, now: int) -> dict[str, bytes]:
    host, user = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    kinds = SSHCertificateType
    return {
        "host_key": private_text(host),
        "host_key-cert.pub": authority.certify(host, kinds.HOST, node, now, plan.seconds),
        "user_key": private_text(user),
        "user_key-cert.pub": authority.certify(user, kinds.USER, plan.run, now, plan.seconds),
        "user_ca.pub": authority.public + b"\n",
        "known_hosts": known_hosts(plan, authority),
        "principals": f"{plan.run}\n".encode(),
        "ssh_config": client_config(plan).encode(),
        "port": f"{plan.port_of(node)}\n".encode(),
        "ports": "".join(f"{name} {port}\n" for name, port in sorted(plan.ports.items())).encode(),
        "address": f"{plan.addresses.get(node, '')}\n".encode(),
    }


def foreign_material(plan: MeshPlan, node: str, *, now: int) -> Mapping[str, bytes]:
    """Return keys that a mesh must refuse, to show that it does.

    `foreign_key` has no certificate; `other_run_key` has another run's, for the same principal;
    `impostor_key` has a host certificate for `node` from another authority.
    """
    stranger, user, host = (Ed25519PrivateKey.generate() for _ in range(3))
    other, kinds = Authority(), SSHCertificateType
    return {
        "foreign_key": private_text(stranger),
        "other_run_key": private_text(user),
        "other_run_key-cert.pub": other.certify(user, kinds.USER, plan.run, now, plan.seconds),
        "impostor_key": private_text(host),
        "impostor_key-cert.pub": other.certify(host, kinds.HOST, node, now, plan.seconds),
    }


def pairs(nodes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs (source, target) of nodes whose login is tried.

    Up to 8 nodes these are all pairs. With more, the number grows as N: the first node to every
    other, every other to the first and to its neighbour.
    """
    if len(nodes) <= 8:
        return tuple((a, b) for a in nodes for b in nodes)
    first, count = nodes[0], len(nodes)
    star = [(first, node) for node in nodes] + [(node, first) for node in nodes[1:]]
    ring = [(nodes[i], nodes[(i + 1) % count]) for i in range(count)]
    return tuple(dict.fromkeys([*star, *ring]))
