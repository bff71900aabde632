"""The `deepspeed` launcher with a hostfile: pdsh from node 1.

What it exports to the nodes is written by us: DS_ENV_FILE names a private file with this
launch's own variables, nothing of the caller's environment.
"""

from __future__ import annotations

from stackyard import template
from stackyard.launch.request import Launch, LaunchRequest


def hostfile(request: LaunchRequest) -> str:
    """`node slots=N` lines, in rank order; a node has as many slots as it sees GPUs."""
    seen = max((gpu + 1 for gpus in request.gpus for gpu in gpus), default=request.per_node)
    values: dict[str, object] = {"nodes": request.nodes, "slots": seen}
    return template.render("runtime/hostfile.j2", values)


def inclusion(request: LaunchRequest) -> str:
    """`node1:0@node2:1`: which slots each node uses; empty on CPU ranks.

    DeepSpeed's launcher overwrites CUDA_VISIBLE_DEVICES with the slots it is given, so this is
    what keeps two nodes of one machine on GPUs of their own.
    """
    named = zip(request.nodes, request.gpus, strict=False)
    return "@".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in named)


def environment_file(request: LaunchRequest) -> str:
    """NAME=VALUE lines; the deepspeed launcher refuses blank lines and comments here."""
    return "".join(f"{name}={value}\n" for name, value in sorted(request.env.items()))


def materialize(request: LaunchRequest) -> Launch:
    """The command for node 1."""
    hosts, exported = f"{request.scratch}/hostfile", f"{request.scratch}/deepspeed_env"
    argv = (
        "deepspeed",
        "--hostfile", hosts,
        "--master_addr", request.nodes[0],
        "--master_port", str(request.port),
        "--ssh_port", str(request.ssh_port),
        *(("--include", inclusion(request)) if request.gpus else ()),
        *request.program,
    )  # fmt: skip
    return Launch(
        argv=argv,
        env={**request.env, "DS_ENV_FILE": exported},
        files={hosts: hostfile(request), exported: environment_file(request)},
    )
