"""How node 1 starts one training process on every node of a mesh.

Owns the request, the answer, and the table of launchers; each launcher is one module with one
pure function. It must not run anything: `stackyard.training` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stackyard.launch import accelerate, alone, deepspeed, each, plain, torchrun
from stackyard.launch.request import Launch, LaunchRequest

Launcher = Callable[[LaunchRequest], Launch]

LAUNCHERS: Mapping[str, Launcher] = {
    "alone": alone.materialize,
    "torchrun": torchrun.materialize,
    "deepspeed": deepspeed.materialize,
    "accelerate": accelerate.materialize,
    "plain": plain.materialize,
    "each": each.materialize,
}

# What a layout may give each launcher, beside the program's own arguments; all are required.
OPTIONS: Mapping[str, tuple[str, ...]] = {"accelerate": ("zero_stage",)}

__all__ = ["LAUNCHERS", "OPTIONS", "Launch", "LaunchRequest", "Launcher"]
