"""Read the variables that a user sets for a run, and refuse those that cannot be set.

Owns the form of `--env`, what is refused with what to do instead, the precedence of variables, and
the files by which nodes get them. `mesh.hosts` reads those of hosts.yml. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stackyard.launch import settings
from stackyard.launch.job import Job
from stackyard.mesh.node import SCRATCH, SITE
from stackyard.scan.mirror_traces import Caller
from stackyard.scan.secrets.content import CONFIGURATION, SECRET_NAME, Piece, find_all
from stackyard.scan.secrets.rules import SECRETS
from stackyard.system.errors import UsageError, shown

Variables = Mapping[str, Mapping[str, str]]
_SECRET = re.compile(SECRET_NAME, re.IGNORECASE)
_HARMLESS = re.compile(r"(?:/|file:).*|true|false|yes|no|0|1|", re.IGNORECASE)
INSTEAD = (
    "put it into a file that only you can read, in one of hosts.yml's folders, and name that file"
    " (HF_TOKEN_PATH=/data/token); on Kubernetes, a Secret named in env_secrets"
)


def why_not(name: str, value: str) -> str:
    """Return why a user cannot set a variable to this value; empty where that is possible."""
    wrong = settings.why_not(name, value)
    if not wrong and is_secret(name, value):
        return f"it looks like a secret, which command lines and logs would show: {INSTEAD}"
    return wrong


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable has a secret's name, or a value that images must not hold.

    A path or a switch is no secret, whatever its name.
    """
    if _SECRET.fullmatch(name.encode()) and not _HARMLESS.fullmatch(value):
        return True
    piece = Piece(data=f"{name}={value}".encode(), first=True, last=True)
    return any(hit.rule in SECRETS for hit in find_all(piece, CONFIGURATION, Caller()))


def parse(words: Sequence[str]) -> dict[str, str]:
    """Read the values of `--env NAME=VALUE`; a later one replaces an earlier one.

    Raises:
        UsageError: a word is not NAME=VALUE, or a variable cannot be set; no value is shown.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--env: {shown(name)!r} is not NAME=VALUE")
        if wrong := why_not(name, value):
            what, _, hint = wrong.partition(": ")
            raise UsageError(f"--env: {shown(name)} cannot be set", why=what, hint=hint)
        found[name] = value
    return found


def by_node(job: Job, hosts: Variables) -> dict[str, dict[str, str]]:
    """Return the variables that each node's processes get beyond or in place of the job's own.

    The command line precedes a host, and a host what Stackyard fills in. A name that one host sets
    has a value on every node: the job's own where another host says nothing.

    Args:
        hosts: the variables of hosts.yml by node.
    """
    asked = {node: {**own, **job.settings} for node, own in hosts.items()}
    named = {name for variables in asked.values() for name in variables}
    usual = {name: value for name, value in job.env.items() if name in named}
    found = {node: {**usual, **variables} for node, variables in asked.items()}
    for variables in found.values():
        if "PYTHONPATH" in variables:
            given = (job.env.get("PYTHONPATH", ""), variables["PYTHONPATH"])
            variables["PYTHONPATH"] = python_path(*dict.fromkeys(given))
    return found


def python_path(*parts: str) -> str:
    """Return PYTHONPATH with the folder that sends ranks' output to their files first."""
    return ":".join(part for part in (SITE, *parts) if part)


def path_of(job: Job) -> str:
    """Return the path of the file of a node's variables, in memory and private to the job."""
    return f"{SCRATCH}/{job.name}/settings"


def files(job: Job, variables: Variables, *, away: bool = False) -> dict[str, dict[str, bytes]]:
    """Return the file that each node needs, by path; none where node 1 alone is started.

    Args:
        away: a lone node is not node 1.
    """
    if (len(variables) < 2 and not away) or not any(variables.values()):
        return {}
    return {
        node: {path_of(job): settings.file_text(own).encode()} for node, own in variables.items()
    }
