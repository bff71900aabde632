"""Print the Python distributions and Debian packages that are installed here, as one JSON line.

Owns reading them from the image itself. Runs inside containers: standard library only. It must not
judge: without dpkg there are no Debian packages, and a distribution without a name is left out.

    python3 inventory.py  ->  {"python": {name: version}, "debian": {name: version}}
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")


def distributions() -> dict[str, str]:
    """Return the Python distributions on the path by canonical name; the first one found counts."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def debian_packages(status: str) -> dict[str, str]:
    """Return the installed packages in the text of dpkg's status file."""
    found: dict[str, str] = {}
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status|Architecture): (.*)$", block, re.M))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields["Version"]
    return dict(sorted(found.items()))


def main() -> None:
    """Print the inventory as JSON."""
    try:
        status = STATUS.read_text(encoding="utf-8")
    except OSError:
        status = ""
    print(json.dumps({"python": distributions(), "debian": debian_packages(status)}))


if __name__ == "__main__":
    main()
