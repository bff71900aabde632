"""Open what was published: the repository, its accepted signers, and its releases with evidence.

Owns `invoke releases`, and what all commands that read releases share. It must not import what only
a publication needs: those commands would wait for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.release_view import refusal_lines, release_table
from stackyard.definitions.project import Project, load_project
from stackyard.release import statement as release
from stackyard.release import verify
from stackyard.release.credentials import find_login
from stackyard.release.registry import Registry
from stackyard.scan import oci
from stackyard.system.errors import StackyardError, UsageError

SIGNERS = "allowed_signers"


def open_registry(project: Project, given: str, flag: str) -> Registry:
    """Open the given repository, or the project's, with the user's login.

    Raises:
        UsageError: neither names one.
    """
    text = given or project.registry
    if not text:
        raise UsageError(
            "no registry was named",
            hint=f'{flag} registry.example:5000/team/stackyard, or registry = "..." in'
            " stackyard.toml",
        )
    repository = oci.parse_repository(text)
    return Registry(repository, find_login(repository.host))


def signer_name() -> str:
    """Return the name of this user's key in its printed line."""
    return f"{os.environ.get('USER') or 'publisher'}@{os.uname().nodename}"


def find_signers(given: str) -> Path:
    """Return the allowed-signers file: the given one, the project's, or the user's own."""
    if given:
        return Path(given)
    own = Path.home() / ".config" / "stackyard" / SIGNERS
    return Path(SIGNERS) if Path(SIGNERS).is_file() or not own.is_file() else own


def releases(terminal: Terminal, from_: str, signers: str) -> Answer:
    """Run `invoke releases --from REGISTRY/NAME`: list releases, and verify each."""
    project = load_project()
    allowed = find_signers(signers)
    rows = []
    with open_registry(project, from_, "--from") as registry:
        tags = registry.tags()
        for tag in sorted(tags):
            if not release.is_release_tag(tag):
                continue
            terminal.say("releases", tag)
            rows.append(_row(registry, tag, allowed))
    if rows:
        terminal.table(release_table(rows))
        for line in refusal_lines(rows):
            terminal.note(line)
    else:
        terminal.text(f"{registry.repository} holds no release")
    return {"repository": str(registry.repository), "releases": rows}, 0


def _row(registry: Registry, tag: str, signers: Path) -> dict[str, Any]:
    try:
        found = verify.verify_release(registry, tag, signers)
        seen = seen_value(registry, found, signers)
    except StackyardError as error:
        why = "; ".join(filter(None, (error.what, error.why.strip(), error.hint)))
        return {"name": tag, "believed": False, "why": why}
    entry = found.release
    return {
        "name": tag, "believed": True, "signer": found.signer, "created": entry.created,
        "proven": entry.proven, "digest": entry.digest, "bytes": entry.size, "why": "",
        "attested": list(found.attested),
        **seen,
    }  # fmt: skip


def seen_value(registry: Registry, found: verify.Verified, signers: Path) -> dict[str, Any]:
    """Return the evidence of a release as JSON: what it needs, and what was verified."""
    beside = verify.evidence_beside(registry, found, signers)
    return {
        "needs_gpus": found.release.needs_gpus,
        "evidence": [one.value() for one in beside.believed],
        "evidence_refused": list(beside.refused),
    }
