"""torchrun on every node, started from node 1 over the mesh's ssh by pdsh.

Static rendezvous: node 1 hosts the store. `%n` is pdsh's own number of the node, so one command
line serves all of them.
"""

from __future__ import annotations

import shlex

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
    assignments = [f"{name}={value}" for name, value in sorted(request.env.items())]
    # pdsh expands %-sequences of the whole command: ours are doubled, the node's number is not.
    escaped = [word.replace("%", "%%") for word in ["env", *assignments, *words]]
    escaped.insert(escaped.index("torchrun") + 2, "--node-rank=%n")
    remote = f"cd {shlex.quote(request.folder)} && exec {' '.join(map(_quote, escaped))}"
    return Launch(argv=("pdsh", "-b", "-S", "-R", "ssh", "-w", ",".join(request.nodes), remote))


def _quote(word: str) -> str:
    return word if word == "--node-rank=%n" else shlex.quote(word)
