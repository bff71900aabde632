"""Write the file of a node's own variables, and list the names that are not the user's to set.

Owns the file's form, which shells and `inside/rank_site/sitecustomize.py` read, and the names. It
must not know where a variable was set: `mesh.settings` merges them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

# Names the file for a Python whose launcher would pass variables on a command line.
VARIABLE = "STACKYARD_SETTINGS"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANKS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "DS_ENV_FILE",
)  # fmt: skip
_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


def why_not(name: str, value: str) -> str:
    """Return why a user cannot set a variable to this value; empty where that is possible."""
    if not NAME.fullmatch(name):
        return "it is not the name of a variable"
    if name in _RANKS:
        return "the launcher sets it for each rank, by the hosts and ports of the run"
    if name in _GPUS:
        return "GPUs are chosen by gpus in hosts.yml, and by --include"
    if name.startswith("STACKYARD_"):
        return "it is Stackyard's own"
    if not value.isprintable():
        return "its value must be one line of printable characters"
    return ""


def file_text(variables: Mapping[str, str]) -> str:
    """Return the file: a line `export NAME='VALUE'` for each variable."""
    return "".join(f"export {n}={shlex.quote(v)}\n" for n, v in sorted(variables.items()))
