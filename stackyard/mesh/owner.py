"""Remove a pull's folder on a host with its keys and its server, however the pull ends.

Owns `owner.sh`, the program that does so on the host, and what broken pulls left there.
"""

from __future__ import annotations

from pathlib import Path

from stackyard.mesh.link import Link

SCRIPT = Path(__file__).with_suffix(".sh")
OWNER = SCRIPT.read_text(encoding="utf-8")
# After this time without data from the pull, a host removes its keys and ends its server.
LEASE_SECONDS = 6


def own_words(count: int, parcel: str, socket: str) -> tuple[str, ...]:
    """Return the command that keeps a pull's folder on a host; it reads `count` bytes for it."""
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
