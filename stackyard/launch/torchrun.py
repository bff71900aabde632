"""Run torchrun on every node; node 1 hosts the store.

Option `rendezvous` is `static` (each node is given its rank) or `c10d` (the nodes agree on their
ranks). Option `restarts` is how often ranks may be started again.
"""

from __future__ import annotations

from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1; a lone node runs torchrun itself, without ssh."""
    program = request.program
    first, numbered = request.nodes[0], [f"--node-rank={NUMBER}"]
    meeting = [f"--master-addr={first}", f"--master-port={request.port}"]
    if request.options.get("rendezvous", "static") == "c10d":
        numbered = []
        meeting = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={first}:{request.port}",
            f"--rdzv-id={request.port}",
        ]
    if request.options.get("restarts", "0") != "0":
        meeting.append(f"--max-restarts={request.options['restarts']}")
    words = [
        "torchrun",
        f"--nnodes={len(request.nodes)}",
        f"--nproc-per-node={request.per_node}",
        *meeting,
        *([] if program[0].endswith(".py") else ["--no-python"]),
        *program,
    ]
    if len(request.nodes) == 1:
        return Launch(argv=tuple(words), env=dict(request.env))
    return everywhere(request, words, numbered)
