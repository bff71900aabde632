"""Plan the route of a parcel from host to host, and make the keys for it.

Owns the tree of hosts and the files of each: certificates of an authority that lives as long as one
pull, a server's configuration that allows nothing but receiving the parcel, and the client's.
Pure but for the randomness of keys; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import SSHCertificateType

from stackyard.definitions.project import INSIDE
from stackyard.mesh import certificates
from stackyard.release.parcel import Parcel, WholeFile

# In a chain every host sends the parcel once; a host that starts a second chain sends it twice.
CHAIN = 32
PRINCIPAL = "stackyard-pull"
SECONDS = 6 * 3600


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Hold one host on the route of a parcel.

    Attributes:
        address, port, user: of the login that the other hosts use.
    """

    name: str
    address: str
    port: int
    user: str


def successors(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the successors of each host: chains of `CHAIN`, whose heads form a chain, too."""
    chains = [list(names[at : at + CHAIN]) for at in range(0, len(names), CHAIN)]
    found: dict[str, tuple[str, ...]] = {}
    for number, chain in enumerate(chains):
        for at, name in enumerate(chain):
            after = chain[at + 1 : at + 2]
            if at == 0 and number + 1 < len(chains):
                after = [chains[number + 1][0], *after]
            found[name] = tuple(after)
    return found


_SERVER = """\
Port {port}
ListenAddress {address}
HostKey @KEYS@/host_key
HostCertificate @KEYS@/host_key-cert.pub
TrustedUserCAKeys @KEYS@/authority.pub
AuthorizedPrincipalsFile @KEYS@/principals
AllowUsers @USER@
StrictModes no
DisableForwarding yes
PermitTTY no
PermitUserRC no
ForceCommand sh @KEYS@/relay.sh receive @KEYS@ $SSH_ORIGINAL_COMMAND
LoginGraceTime 10
ClientAliveInterval 3
ClientAliveCountMax 2
LogLevel ERROR
"""
# Options that restrict logins, with the values that a mesh's nodes have.
HARDENING = (
    "AuthorizedKeysFile", "PermitRootLogin", "PasswordAuthentication",
    "KbdInteractiveAuthentication", "PermitUserEnvironment", "UsePAM", "UseDNS", "PidFile",
)  # fmt: skip
_CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  User {user}
  HostKeyAlias {name}
"""
_EVERY = """\
Host *
  IdentityFile {keys}/user_key
  CertificateFile {keys}/user_key-cert.pub
  IdentitiesOnly yes
  IdentityAgent none
  GlobalKnownHostsFile {keys}/known_hosts
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com
  Ciphers aes128-gcm@openssh.com,chacha20-poly1305@openssh.com
  Compression no
  BatchMode yes
  ConnectTimeout 10
  ServerAliveInterval 5
  ServerAliveCountMax 3
"""


def hardening() -> str:
    """Return the lines of a mesh's sshd_config that apply to a pull's server, too.

    Raises:
        KeyError: the file lacks one of them.
    """
    text = (INSIDE / "sshd_config").read_text(encoding="utf-8")
    said = {line.partition(" ")[0]: line for line in text.splitlines()}
    return "".join(f"{said[option]}\n" for option in HARDENING)


class Keys:
    """Make the keys of one pull; the authority's own key stays in memory."""

    def __init__(self, now: int) -> None:
        self._authority, self._now = certificates.Authority(), now

    def of(self, name: str, address: str, port: int) -> dict[str, bytes]:
        """Return the key files of a host whose server listens on this address and port."""
        host, user = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        kinds = SSHCertificateType
        certify = self._authority.certify
        return {
            "host_key": certificates.private_text(host),
            "host_key-cert.pub": certify(host, kinds.HOST, name, self._now, SECONDS),
            "user_key": certificates.private_text(user),
            "user_key-cert.pub": certify(user, kinds.USER, PRINCIPAL, self._now, SECONDS),
            "authority.pub": self._authority.public + b"\n",
            "principals": f"{PRINCIPAL}\n".encode(),
            "sshd_config": (_SERVER.format(port=port, address=address) + hardening()).encode(),
        }

    def route(self, after: Sequence[Stop], keys: str) -> dict[str, bytes]:
        """Return the files that name a host's successors; `keys` is the folder of its keys."""
        hosts = [
            _CLIENT.format(name=s.name, address=s.address, port=s.port, user=s.user) for s in after
        ]
        names = ",".join(other.name for other in after)
        known = f"@cert-authority {names} ".encode() + self._authority.public + b"\n"
        return {
            "next": "".join(f"{other.name}\n" for other in after).encode(),
            "ssh_config": "".join([*hosts, _EVERY.format(keys=keys)]).encode(),
            "known_hosts": known if after else b"",
        }


def plan(parcel: Parcel, *, in_parts: bool) -> dict[str, bytes]:
    """Return a host's plan: the steps to take as the bytes of a parcel arrive.

    Args:
        in_parts: whether its engine can load some layers before the others.
    """
    steps: list[tuple[int, str]] = []
    for digest, start, size in parcel.places():
        steps.append((start + size, f"sum {digest.removeprefix('sha256:')} {start} {size}"))
    stages = parcel.stages() if in_parts else []
    files = {}
    for number, stage in enumerate(stages):
        files[f"head-{number}"] = stage.head
        words = f"stage {number} {stage.start} {stage.size} {stage.image}"
        steps.append((stage.start + stage.size, words))
    # A layer is checked before the stage that ends with its padding.
    steps.sort(key=lambda step: step[0])
    rest = stages[-1].start + stages[-1].size if stages else parcel.body
    steps.append((parcel.size, f"image {parcel.body} {rest} {parcel.size}"))
    files["plan"] = "".join(f"{words}\n" for _, words in steps).encode()
    return files


def file_plan(parcel: WholeFile, target: str) -> dict[str, bytes]:
    """Return a host's plan for a parcel that is one file, with the path that the file is to have.

    The release's statement does not name the file, so its digest is what the pull's own machine
    saw when it made the file of signed layers.
    """
    step = f"file {parcel.digest.removeprefix('sha256:')} {parcel.size}\n"
    return {"plan": step.encode(), "target": target.encode("utf-8", "surrogateescape")}
