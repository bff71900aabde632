"""Turn a job into the exact command of its launcher: torchrun, deepspeed, accelerate or another.

Owns the request, the answer, and the table of launchers; each launcher is one module with one
pure function. `plain` starts ranks without a launcher, `alone` one process, `each` a command on
every node. Ranks must have RANK in their environment when Python starts: logs, their ends and
orphans are found by it. `STARTING` in `schedulers/slurm_site.py` and `kubernetes_site.py` names the
launchers that schedulers start; `mesh/jobs.py` starts all of them. It must not run anything: over
hosts the supervisor does, in a smoke `validate.training`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from stackyard.launch import accelerate, alone, deepspeed, each, plain, torchrun
from stackyard.launch.everywhere import elsewhere
from stackyard.launch.request import Launch, LaunchRequest
from stackyard.system.errors import shown

Launcher = Callable[[LaunchRequest], Launch]

LAUNCHERS: Mapping[str, Launcher] = {
    "alone": alone.materialize,
    "torchrun": torchrun.materialize,
    "deepspeed": deepspeed.materialize,
    "accelerate": accelerate.materialize,
    "plain": plain.materialize,
    "each": each.materialize,
}

# Options that a layout must give a launcher, beside the program's own arguments.
OPTIONS: Mapping[str, tuple[str, ...]] = {"accelerate": ("zero_stage",)}

# Options that a job may give a launcher: a pattern of the values, and its text for people.
CHOICES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "torchrun": {
        "rendezvous": ("static|c10d", "static or c10d"),
        "restarts": ("[0-9]{1,3}", "a number below 1000"),
    },
    "deepspeed": {"ssh": ("yes|no", "yes or no")},
    "accelerate": {
        "zero_stage": ("[0-3]", "0 to 3"),
        "start": ("pdsh|standard", "pdsh or standard"),
    },
    "plain": {
        "meet": ("tcp|file", "tcp or file"),
        "meeting": ("/.+", "an absolute path"),
    },
}


def launched(launcher: str, request: LaunchRequest) -> Launch:
    """Return a launcher's command for node 1, which starts a lone other node by ssh."""
    launch = LAUNCHERS[launcher](request)
    lone = len(request.nodes) == 1
    return elsewhere(request, launch) if request.away and lone else launch


def wrong_options(launcher: str, options: Mapping[str, str]) -> list[str]:
    """Return a sentence for each option of a job that its launcher refuses."""
    known = CHOICES.get(launcher, {})
    found = []
    for name, value in options.items():
        if name not in known:
            there = ", ".join(known) or "none"
            found.append(f"there is no option {shown(name)!r}; known: {there}")
        elif not re.fullmatch(known[name][0], value, re.ASCII):
            found.append(f"option {name} must be {known[name][1]}, not {shown(value)!r}")
    return found


__all__ = [
    "CHOICES",
    "LAUNCHERS",
    "OPTIONS",
    "Launch",
    "LaunchRequest",
    "Launcher",
    "launched",
    "wrong_options",
]
