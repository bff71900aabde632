"""Start ranks on every node without a launcher, for programs that form their own process group.

Such a program calls `init_process_group(init_method=...)` itself; see inside/plain_ranks.py. Option
`meet` is `tcp` (a port of the first node) or `file`. Option `meeting` names that file, in a folder
that all nodes share. It must not exist before, and is removed at the end: torch leaves it behind
where a rank is killed.
"""

from __future__ import annotations

from dataclasses import replace

from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest

PROGRAM = "/srv/stackyard/plain_ranks.py"


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1; that node alone needs no ssh."""
    makes: tuple[str, ...] = ()
    if request.options.get("meet", "tcp") == "tcp":
        meeting = f"tcp://{request.nodes[0]}:{request.port}"
    else:
        makes = (request.options["meeting"],)
        meeting = f"file://{makes[0]}"
    nodes = str(len(request.nodes))
    rest = [nodes, str(request.per_node), meeting, *request.program]
    if len(request.nodes) == 1:
        argv = ("python3", PROGRAM, "0", *rest)
        return Launch(argv=argv, env=dict(request.env), makes=makes)
    return replace(everywhere(request, ["python3", *rest], [PROGRAM, NUMBER]), makes=makes)
