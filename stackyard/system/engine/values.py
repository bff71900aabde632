"""What is asked of an engine and what it holds: containers, images, a finished command.

Values only, and the labels by which everything made here is found again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RUN_LABEL = "stackyard.run"
NODE_LABEL = "stackyard.node"
OWNER_LABEL = "stackyard.owner"
CONTROL = {"STACKYARD_CONTROL": "1"}


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container to start, with the least it needs.

    Attributes:
        network: a network by name, `host`, or `none` (but for itself).
        hosts: addresses by name, beyond what the network itself resolves.
        devices: device nodes of the host.
        requests: devices by driver (`cdi`, `nvidia`) and the ids these understand.
        binds: read-only files of the host, by their place in the container.
        ipc: the IPC namespace: `private`, `shareable`, `host` or `container:ID`.
        limits: resource limits by name; -1 is none.
        mounts: folders of the host, or volumes, that may be written to, by their place.
        fleeting: the engine removes it when its main process ends.
        user: whom its processes are, `UID:GID`; the image's own unless given.
    """

    name: str
    image: str
    hostname: str
    network: str
    env: Mapping[str, str]
    labels: Mapping[str, str]
    volumes: Mapping[str, str]
    capabilities: tuple[str, ...]
    tmpfs: Mapping[str, str]
    shm_bytes: int
    command: tuple[str, ...] | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    requests: tuple[tuple[str, tuple[str, ...]], ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    ipc: str = "private"
    limits: Mapping[str, int] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    fleeting: bool = False
    user: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldImage:
    """An image in an engine's list; `created` in seconds since the epoch."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    labels: Mapping[str, str]
    created: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ContainerInfo:
    """A container that the engine has. `state` is the engine's word: `running`, `exited`, ..."""

    id: str
    name: str
    image: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """A finished exec: exit code and output (both streams, in order)."""

    code: int
    output: str
