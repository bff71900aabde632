"""Describe what an engine starts and holds: containers, images, a finished command.

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
    """Describe a container to start, with the fewest privileges that it needs.

    Attributes:
        network: a network by name, `host`, or `none` (loopback only).
        hosts: addresses by name, beyond what the network itself resolves.
        devices: device nodes of the host.
        requests: devices, as drivers (`cdi`, `nvidia`) and the ids that these understand.
        binds: read-only files of the host, by their place in the container.
        ipc: the IPC namespace: `private`, `shareable`, `host` or `container:ID`.
        limits: resource limits by name; -1 means unlimited.
        mounts: writable folders of the host, or volumes, by their place in the container.
        fleeting: the engine removes it when its main process ends.
        user: `UID:GID` of its processes; unless given, the image's user.
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
    """Describe an image in an engine's list; `created` is in seconds since the epoch."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    labels: Mapping[str, str]
    created: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ContainerInfo:
    """Describe a container of the engine; `state` is its word (`running`, `exited` ...)."""

    id: str
    name: str
    image: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """Hold a finished exec's exit code and output (both streams, in order)."""

    code: int
    output: str
