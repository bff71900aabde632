"""torchrun on every node. Static rendezvous: node 1 hosts the store."""

from __future__ import annotations

from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest


def materialize(request: LaunchRequest) -> Launch:
    """The command for node 1; a lone node runs torchrun itself, without ssh."""
    program = request.program
    words = [
        "torchrun",
        f"--nnodes={len(request.nodes)}",
        f"--nproc-per-node={request.per_node}",
        f"--master-addr={request.nodes[0]}",
        f"--master-port={request.port}",
        *([] if program[0].endswith(".py") else ["--no-python"]),
        *program,
    ]
    if len(request.nodes) == 1:
        return Launch(argv=tuple(words), env=dict(request.env))
    return everywhere(request, words, [f"--node-rank={NUMBER}"])
