"""Use a container engine through the docker SDK: images, containers, networks, volumes, exec.

Owns the translation of docker's values and errors; nothing else imports the SDK. Everything made
here carries labels, and is found again by them. It must not build images (the SDK cannot drive
BuildKit; `build.buildkit` does) or know what a stack is.
"""

from __future__ import annotations

from stackyard.system.engine.containers import Containers
from stackyard.system.engine.images import Images
from stackyard.system.engine.values import (
    CONTROL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    ContainerInfo,
    ContainerSpec,
    ExecResult,
    HeldImage,
)

__all__ = [
    "CONTROL",
    "NODE_LABEL",
    "OWNER_LABEL",
    "RUN_LABEL",
    "ContainerInfo",
    "ContainerSpec",
    "Engine",
    "ExecResult",
    "HeldImage",
]


class Engine(Images, Containers):
    """Connect to a container engine that answers.

    Args:
        socket: path of its socket; unless given, DOCKER_HOST or the default one.
        seconds: time limit of each request.

    Raises:
        EngineError: nothing answers there.
    """
