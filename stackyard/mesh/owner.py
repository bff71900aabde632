"""Own the folder of a pull on a host: its keys and its server go with it, whatever ends the pull.

Owns `owner.sh`, the program that does so on the host, and what broken pulls left there.
"""

from __future__ import annotations

from pathlib import Path

from stackyard.mesh.link import Link

SCRIPT = Path(__file__).with_suffix(".sh")
OWNER = SCRIPT.read_text(encoding="utf-8")
# A host that hears nothing from the pull for so long ends its part: its keys and its server go.
LEASE_SECONDS = 6


def own_words(count: int, parcel: str, socket: str) -> tuple[str, ...]:
    """Return the command that owns a pull's folder on a host, and reads `count` bytes for it."""
    started = f'{OWNER}own "$@"'
    return ("sh", "-c", started, "sh", str(LEASE_SECONDS), str(count), parcel, socket)


def sweep(link: Link) -> None:
    """Remove what broken pulls left on a host: their keys, and the servers that used them.

    Raises:
        HostError: the host does not answer.
    """
    link.shell(f"{OWNER}sweep\n")


def leftovers(link: Link) -> list[str]:
    """List the folders on a host that broken pulls left, with keys in them.

    Raises:
        HostError: the host does not answer.
    """
    return link.shell(f"{OWNER}left\n").splitlines()
