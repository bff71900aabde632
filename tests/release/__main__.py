"""Run a registry and two emulated hosts until interrupted, to try releases by hand.

python -m tests.release FOLDER      then, in another shell: . FOLDER/env

FOLDER/env names the repository ($REPOSITORY), the hosts ($HOSTS), the publisher's key ($KEY) and
whose releases are accepted ($SIGNERS), and logs docker and invoke in to the registry.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.fleet import emulated
from tests.release.conftest import TWO, Site, make_publisher
from tests.release.registry import registry


def serve(folder: Path) -> None:
    """Start everything, say where it is, and wait."""
    place = folder / "hosts"
    place.mkdir(parents=True)
    with emulated.hosts(TWO, [], place) as found:
        yard = emulated.Yard(folder=place, hosts={host.name: host for host in found})
        with registry(folder / "registry", yard.network) as running:
            site = Site(folder=folder / "publisher", registry=running, yard=yard, cache=folder)
            site.folder.mkdir()
            make_publisher(site)
            settings = {
                "REPOSITORY": site.place, "HOSTS": yard.inventory, "KEY": site.key,
                "SIGNERS": site.signers, "DOCKER_CONFIG": site.logins,
            }  # fmt: skip
            lines = [f"export {name}='{value}'\n" for name, value in settings.items()]
            (folder / "env").write_text("".join(lines))
            print(f". {folder / 'env'}", flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    serve(Path(sys.argv[1]).resolve())
