"""Start a node's ranks of a training whose `init_method` is tcp:// or file://.

Owns their environment (the one torchrun gives) and their end: a rank that fails ends the others.

    plain_ranks.py NODE NODES PER_NODE INIT_METHOD PROGRAM ...

A program that ends in `.py` is run by this Python. INIT_METHOD reaches the ranks as
STACKYARD_INIT_METHOD, and as MASTER_ADDR and MASTER_PORT where it is tcp://HOST:PORT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit


def environment(node: int, nodes: int, per_node: int, local: int, init: str) -> dict[str, str]:
    """Return the environment of one rank."""
    meeting = urlsplit(init)
    found = {
        "RANK": str(node * per_node + local),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "STACKYARD_INIT_METHOD": init,
    }
    if meeting.scheme == "tcp":
        found |= {"MASTER_ADDR": str(meeting.hostname), "MASTER_PORT": str(meeting.port)}
    return found


def main(words: Sequence[str]) -> int:
    """Start the ranks and wait for them; return the first failure's exit code, or 0."""
    node, nodes, per_node = (int(word) for word in words[:3])
    init, program = words[3], list(words[4:])
    argv = [sys.executable, *program] if program[0].endswith(".py") else program
    ranks = [
        subprocess.Popen(argv, env={**os.environ, **environment(node, nodes, per_node, n, init)})
        for n in range(per_node)
    ]
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
            # A signal is reported as shells do: 128 and its number.
            return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 0
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) < 6:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1:]))
