"""Read the user's own settings of `invoke run` on hosts, beside those of hosts.yml.

Owns which of the caller's variables go along, and reading a configuration. What they may say is
decided by `mesh.settings` and `launch.accelerate_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stackyard.cli.options.runs import RunRequest
from stackyard.gpu import gpus
from stackyard.launch import accelerate_config
from stackyard.launch.accelerate_config import AccelerateConfig
from stackyard.mesh import settings
from stackyard.system.errors import UsageError, shown


@dataclass(frozen=True, kw_only=True)
class Own:
    """Hold the user's own settings of a run, beside those of hosts.yml.

    Attributes:
        settings: variables by name: typed ones, and NCCL's of the caller.
        caller: names of the variables taken from the caller's environment.
    """

    settings: Mapping[str, str]
    caller: tuple[str, ...] = ()
    config: AccelerateConfig | None = None


def own_of(arguments: RunRequest, caller: Mapping[str, str]) -> Own:
    """Return the user's settings, out of what was typed and the environment of the command.

    Raises:
        UsageError: a variable cannot be set, or the configuration cannot be read or used.
    """
    found = gpus.caller_settings(caller)
    wrong = [name for name, value in found.items() if settings.why_not(name, value)]
    if wrong:
        what = f"{', '.join(wrong)} of your environment cannot go to the nodes"
        raise UsageError(what, why=settings.why_not(wrong[0], found[wrong[0]]), hint="unset it")
    path = arguments.accelerate_config
    text = ""
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{shown(path)} cannot be read", why=str(error)) from error
    return Own(
        settings={**found, **settings.parse(arguments.env)},
        caller=tuple(sorted(found)),
        config=accelerate_config.parse(text, path) if path else None,
    )
