"""One command on every node at the same time, from node 1 over the mesh's ssh by pdsh.

Owns the quoting: pdsh replaces `%n` by its own number of the node, so one line serves all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stackyard.launch.request import Launch, LaunchRequest

NUMBER = "%n"
PDSH_FAN_OUT = 32


def everywhere(request: LaunchRequest, words: Sequence[str], numbered: Sequence[str]) -> Launch:
    """The command for node 1.

    Args:
        words: the command, the same on all nodes.
        numbered: options that hold `NUMBER`, put behind the command's first word(s) as they are:
            they must need no quoting.
    """
    program, *rest = words
    assignments = [f"{name}={value}" for name, value in sorted(request.env.items())]
    # pdsh expands %-sequences of the whole command: all but the node's number are doubled.
    before = [_escaped(word) for word in ["env", *assignments, program]]
    after = [_escaped(word) for word in rest]
    command = " ".join([*before, *numbered, *after])
    remote = f"cd {shlex.quote(request.folder)} && exec {command}"
    # Without -f pdsh starts 32 at a time, and the others' turn would never come.
    fan = ("-f", str(len(request.nodes))) if len(request.nodes) > PDSH_FAN_OUT else ()
    return Launch(
        argv=("pdsh", "-b", "-S", "-R", "ssh", *fan, "-w", ",".join(request.nodes), remote)
    )


def _escaped(word: str) -> str:
    return shlex.quote(word.replace("%", "%%"))
