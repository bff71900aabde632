"""Hold the request to a launcher and its answer, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.launch.accelerate_config import AccelerateConfig


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """Hold one training to start.

    Attributes:
        nodes: node names in rank order; the first one starts everything and hosts rendezvous.
        port: rendezvous port on the first node.
        program: what runs on every node: a Python file or a console script, then its arguments.
        env: environment of every training process, beyond the container's own.
        ssh_port: the port of the nodes' sshd; 0 where the ssh configuration names each node's.
        folder: working directory, the same on every node.
        scratch: folder on node 1 for generated files; private to this launch.
        device: `cpu` or `cuda`.
        options: the layout's own options for this launcher.
        per_node: training processes on each node.
        include: nodes and slots that take part, in DeepSpeed's syntax; empty for what `gpus` says.
        gpus: indexes of the GPUs that each node's processes take, among those that the node sees,
            in node order; empty on CPU ranks.
        settings: a file on every node with the user's variables there (`launch.settings`); empty
            where there are none, or where `env` holds them.
        config: the user's own accelerate configuration.
        away: node 1 of the mesh takes no part; a lone node is then started from there by ssh
            (`launch.launched`).
    """

    nodes: tuple[str, ...]
    port: int
    program: tuple[str, ...]
    env: Mapping[str, str]
    folder: str
    scratch: str
    ssh_port: int
    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    per_node: int = 1
    gpus: tuple[tuple[int, ...], ...] = ()
    include: str = ""
    settings: str = ""
    config: AccelerateConfig | None = None
    away: bool = False


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Hold what to run on node 1: the files to write first, then one command.

    Attributes:
        everywhere: whether every node needs the files, not only node 1.
        makes: files on storage that nodes share, which the ranks make and nobody keeps. None may
            exist before; the supervisor removes them when nothing of the job runs any more.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    everywhere: bool = False
    makes: tuple[str, ...] = ()

    def step(self, what: str, argv: Sequence[str] = ()) -> dict[str, Any]:
        """Return the step of a request to the supervisor; `argv` replaces the launch's command."""
        files = {} if self.everywhere else dict(self.files)
        words = list(argv or self.argv)
        return {"what": what, "argv": words, "env": dict(self.env), "files": files,
                "makes": list(self.makes)}  # fmt: skip
