"""No launcher: every node starts its own ranks, which meet by themselves.

Option `meet`: `tcp` (a port of the first node) or `file`, a file on a folder that all nodes share,
named by option `meeting` (it must not be there before: torch removes it at a clean end). For
programs that call `init_process_group(init_method=...)` themselves; see inside/ranks.py.
"""

from __future__ import annotations

from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest

PROGRAM = "/srv/stackyard/ranks.py"


def materialize(request: LaunchRequest) -> Launch:
    """The command for node 1; a lone node needs no ssh."""
    if request.options.get("meet", "tcp") == "tcp":
        meeting = f"tcp://{request.nodes[0]}:{request.port}"
    else:
        meeting = f"file://{request.options['meeting']}"
    nodes = str(len(request.nodes))
    rest = [nodes, str(request.per_node), meeting, *request.program]
    if len(request.nodes) == 1:
        return Launch(argv=("python3", PROGRAM, "0", *rest), env=dict(request.env))
    return everywhere(request, ["python3", *rest], [PROGRAM, NUMBER])
