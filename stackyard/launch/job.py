"""Hold a user's training as one value: its program, its nodes, its files and its launcher.

Every way of running it (hosts over ssh, Slurm, Kubernetes) takes the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stackyard.launch.accelerate_config import AccelerateConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """Hold a training that is ready to start; nothing in it is decided later.

    Attributes:
        name: lower-case letters, digits and `-`, at most 40 characters.
        image: reference of the image that all nodes run.
        nodes: how many nodes take part.
        per_node: training processes on each node: one for each GPU, or CPU ranks.
        device: `cpu` or `cuda`.
        program: the training, the same on all nodes: a Python file or a console script, then its
            arguments.
        prepare: commands that run on every node, one after another, before the training; each must
            succeed on all nodes. They write node-local files, or the same ones everywhere.
        env: environment of every process, beyond the image's own.
        folder: working directory inside the containers.
        binds: folders of the machines by their place in the containers.
        files: small files given to every node before anything runs, by absolute path.
        launcher: a name in `stackyard.launch.LAUNCHERS`; where a scheduler starts the processes,
            it decides which environment and rendezvous these get.
        options: the launcher's options.
        settings: the user's variables, typed or of the caller's shell, in place of `env`'s and of
            the hosts' own.
        config: the user's own accelerate configuration.
        own: users' source trees that replace installed packages, as they are recorded.
        updates: how many updates it makes, by its example; None where that is not known.
    """

    name: str
    stack: str
    base: str
    image: str
    nodes: int
    per_node: int
    device: str
    program: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/root"
    binds: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    launcher: str = "torchrun"
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    config: AccelerateConfig | None = None
    own: tuple[str, ...] = ()
    updates: int | None = None

    @property
    def ranks(self) -> int:
        """Return the number of training processes on all nodes."""
        return self.nodes * self.per_node
