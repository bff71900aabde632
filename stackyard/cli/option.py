"""Describe one option of a command, and the options that many commands have.

Owns their help texts: each stands here once. Modules that declare options have no `from __future__
import annotations`, since text annotations would have to be evaluated before every command.
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Option:
    """Describe one option beside its type: `Annotated[str, Option("...")]`.

    Attributes:
        value: the word that stands for its value in help; the option's name unless given.
        positional: it may be given without its name.
        short: its letter; options have none unless people expect one.
        words: it takes the words after `--`, and has no name of its own.
        least: the smallest number allowed.
    """

    help: str
    value: str = ""
    positional: bool = False
    short: str = ""
    words: bool = False
    least: float | None = None


_BASE = "the image's base, as `invoke list` shows"
_OWN_BASE = "cuda or stackyard.toml's"
_CLUSTER = "a cluster instead of hosts: slurm or kubernetes (docs/howto/slurm.md, kubernetes.md)"
HOSTS = "a file (hosts.yml, hostfile), a node set as in gpu[01-64],train, or ssh:PATTERN"
_JUNIT = "also write one test case a check to this file, as JUnit XML for CI systems"
_KEY = "the ssh key that signs, or FILE.pub where an agent holds it (default: ~/.ssh/id_ed25519)"
_OVERLAY = "your tree over an installed package, by its path on every host; several times"
_OWN_IMAGE = "an image by tag or id, in place of the stack's own (docs/howto/source.md)"
_REPOSITORY = "the repository: REGISTRY[:PORT]/NAME (default: stackyard.toml's)"
_SIGNERS = "whose releases are accepted (default: allowed_signers here, or in ~/.config/stackyard)"

Stack = Annotated[str, Option("a stack's name", positional=True)]
Stacks = Annotated[str, Option("a stack's name, or all", positional=True)]
Base = Annotated[str, Option(f"{_BASE} (default: {_OWN_BASE})")]
# Where --gpus decides, where all ranks are CPU ranks, and where the command's page says which.
GpuBase = Annotated[str, Option(f"{_BASE} (default: cpu with --gpus 0, else {_OWN_BASE})")]
CpuBase = Annotated[str, Option(f"{_BASE} (default: cpu)")]
AnyBase = Annotated[str, Option(_BASE)]
Image = Annotated[str, Option(_OWN_IMAGE)]
Hosts = Annotated[str, Option(f"{HOSTS} (default: hosts.yml here)")]
PlainHosts = Annotated[
    str,
    Option(
        "hosts.yml, a node set as in gpu[01-64], or ssh:PATTERN (default: hosts.yml here; without"
        " it: this machine)"
    ),
]
RunName = Annotated[str, Option("the run's name (default: the stack's)")]
Lease = Annotated[
    float, Option("seconds that a run goes on without being heard of", "SECONDS", least=2)
]
Grace = Annotated[
    float,
    Option("how long a training on hosts may save after SIGTERM or stop", "SECONDS", least=0),
]
On = Annotated[str, Option(_CLUSTER, "CLUSTER")]
Site = Annotated[
    str, Option("with --on: the cluster's settings (default: site.yml, if it is there)", "FILE")
]
Job = Annotated[str, Option("with --on: the job's number on Slurm, its name on Kubernetes")]
Overlays = Annotated[tuple[str, ...], Option(_OVERLAY, "[PACKAGE=]PATH[:PLACE]")]
# The command gives it to its terminal (cli/command.py).
Verbose = Annotated[bool, Option("show every line of the tools that build images")]
Junit = Annotated[str, Option(_JUNIT, "FILE")]
Repository = Annotated[str, Option(_REPOSITORY, "REPOSITORY")]
Signers = Annotated[str, Option(_SIGNERS, "FILE")]
Key = Annotated[str, Option(_KEY, "FILE")]
Words = Annotated[tuple[str, ...], Option("a command, or arguments of an example", words=True)]
