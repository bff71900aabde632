"""Run `invoke audit`: what is known of vulnerabilities in an image's packages.

Owns the order of its steps, which `invoke publish` takes, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone

from stackyard.build import mirrors
from stackyard.build.choice import decide
from stackyard.build.dockerfile import image_tag
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.definitions.project import Project, load_project
from stackyard.definitions.spec import Base
from stackyard.release.spool import Spool, cache_folder
from stackyard.scan import advisories, contents
from stackyard.scan.audit import ACCEPTED, PASSED, Audit, judge, read_accepted
from stackyard.scan.installed import Installed, installed
from stackyard.scan.layer import LayerReader
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError


def audit(terminal: Terminal, stack: str, base: str, image: str) -> Answer:
    """Run `invoke audit STACK [--image TAG_OR_ID]`."""
    project = load_project()
    chosen = decide(project, stack, base)
    tag = image or image_tag(chosen.stack, chosen.base.name)

    def say(text: str) -> None:
        terminal.say(chosen.stack, text)

    with Engine() as engine:
        info = engine.image(tag)
        if info is None:
            raise UsageError(
                f"there is no image {tag} here",
                hint=f"invoke build {chosen.stack} --base {chosen.base.name}",
            )
        say(f"reading {info.size / 1e9:.2f} GB")
        readers = {"contents": lambda number: LayerReader(number).read}
        store = Spool(cache_folder(os.environ))
        saved = store.save(engine.saved(info.id), readers, diff_ids=info.layers)
    found = audited(project, chosen.base, installed(contents.merge(saved.read["contents"])), say)
    show(terminal, found)
    return {"image": {"tag": tag, "id": info.id}, **found.value()}, int(found.outcome != PASSED)


def audited(project: Project, base: Base, there: Installed, say: Callable[[str], None]) -> Audit:
    """Ask all indexes about an image's packages, and judge the answers.

    Raises:
        DefinitionError: the list of accepted vulnerabilities is invalid.
    """
    accepted = read_accepted((project.root / ACCEPTED).read_text(encoding="utf-8"))
    say(f"looking {len(there.distributions)} Python and {len(there.packages)} system packages up")
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    parts = (
        advisories.python_part(there.distributions),
        advisories.system_part(there.packages, base, caller),
    )
    return judge(parts, accepted, datetime.now(timezone.utc).date())


def show(terminal: Terminal, found: Audit) -> None:
    """Show every finding, then each index's outcome."""
    for part in found.parts:
        for one in part.findings:
            terminal.text(f"{'!' if one.blocks else ' '} {one}")
        for name in part.skipped:
            terminal.note(f"{name} has no version that an index knows")
        why = f": {part.why}" if part.why else f", {part.packages} packages looked up"
        terminal.text(f"{part.name}: {part.outcome}{why}")
