"""Run one command on all nodes at the same time, by pdsh from node 1 over the mesh's ssh.

Owns the quoting. pdsh replaces `%n` by its own number of the node, so one line serves all nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from stackyard.launch.request import Launch, LaunchRequest

NUMBER = "%n"
PDSH_FAN_OUT = 32


def everywhere(request: LaunchRequest, words: Sequence[str], numbered: Sequence[str]) -> Launch:
    """Return the command for node 1.

    Args:
        words: the command, the same on all nodes.
        numbered: options that hold `NUMBER`, put behind the command's first word without quotes;
            they must need none.
    """
    program, *rest = words
    assignments = [f"{name}={value}" for name, value in sorted(request.env.items())]
    # pdsh expands %-sequences of the whole command: all but the node's number are doubled.
    before = [_escaped(word) for word in ["env", *assignments, program]]
    after = [_escaped(word) for word in rest]
    command = " ".join([*before, *numbered, *after])
    # A node's own variables are in a file: a command line is seen by every user of the host.
    own = f". {shlex.quote(request.settings)} && " if request.settings else ""
    remote = f"cd {shlex.quote(request.folder)} && {own}exec {command}"
    # Without -f pdsh runs on 32 nodes at a time, and these would wait for the others for ever.
    fan = ("-f", str(len(request.nodes))) if len(request.nodes) > PDSH_FAN_OUT else ()
    return Launch(
        argv=("pdsh", "-b", "-S", "-R", "ssh", *fan, "-w", ",".join(request.nodes), remote)
    )


def elsewhere(request: LaunchRequest, launch: Launch) -> Launch:
    """Return the launch of a lone node, started on that node in place of node 1 of the mesh."""
    found = everywhere(replace(request, env=launch.env), launch.argv, [])
    return replace(found, files=launch.files, everywhere=True, makes=launch.makes)


def _escaped(word: str) -> str:
    return shlex.quote(word.replace("%", "%%"))
