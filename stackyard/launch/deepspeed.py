"""Write the command of the `deepspeed` launcher, which starts the nodes of a hostfile by pdsh.

The launcher exports to the nodes what the file named by DS_ENV_FILE holds: this launch's own
variables, and nothing of the caller's environment. It puts them on a command line, so the user's
variables go by a file that each node has (`launch.settings`). With option `ssh: no` every node runs
`deepspeed --no_ssh` for its own ranks.
"""

from __future__ import annotations

import re
from dataclasses import replace

from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest
from stackyard.launch.settings import VARIABLE
from stackyard.system import template


def hostfile(request: LaunchRequest) -> str:
    """Return `node slots=N` lines in rank order; a node has a slot for each GPU that it sees."""
    seen = max((gpu + 1 for gpus in request.gpus for gpu in gpus), default=request.per_node)
    values: dict[str, object] = {"nodes": request.nodes, "slots": seen}
    return template.render("runtime/hostfile.j2", values)


def inclusion(request: LaunchRequest) -> str:
    """Return the slots that each node uses, as in `node1:0@node2:1`; empty on CPU ranks.

    DeepSpeed's launcher overwrites CUDA_VISIBLE_DEVICES with the slots it is given, so only this
    keeps two nodes of one machine on GPUs of their own.
    """
    named = zip(request.nodes, request.gpus, strict=False)
    return "@".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in named)


def environment_file(request: LaunchRequest) -> str:
    """Return NAME=VALUE lines; the deepspeed launcher refuses blank lines and comments here.

    The launcher puts each value between double quotes into a line for the nodes' shells, so
    characters that are special there are escaped.
    """
    own = {VARIABLE: request.settings} if request.settings else {}
    exported = {**request.env, **own}
    return "".join(f"{n}={_quoted(value)}\n" for n, value in sorted(exported.items()))


def _quoted(value: str) -> str:
    return re.sub(r'([$`"\\])', r"\\\1", value)


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1."""
    hosts, exported = f"{request.scratch}/hostfile", f"{request.scratch}/deepspeed_env"
    words = (
        "--hostfile", hosts,
        "--master_addr", request.nodes[0],
        "--master_port", str(request.port),
    )  # fmt: skip
    included = request.include or (inclusion(request) if request.gpus else "")
    chosen = ("--include", included) if included else ()
    if request.options.get("ssh") == "no" and len(request.nodes) > 1:
        started = ["deepspeed", *words, *chosen, *request.program]
        found = everywhere(request, started, ["--no_ssh", f"--node_rank={NUMBER}"])
        return replace(found, files={hosts: hostfile(request)}, everywhere=True)
    port = ("--ssh_port", str(request.ssh_port)) if request.ssh_port else ()
    argv = ("deepspeed", *words, *port, *chosen, *request.program)
    return Launch(
        argv=argv,
        env={**request.env, "DS_ENV_FILE": exported},
        files={hosts: hostfile(request), exported: environment_file(request)},
    )
