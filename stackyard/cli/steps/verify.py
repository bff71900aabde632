"""Run `invoke verify`, from its arguments to the output.

Owns the words on the terminal and the exit code. `release.verify` checks what is signed,
`release.rebuild` builds again and compares.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stackyard import __version__
from stackyard.build import base_image, mirrors
from stackyard.build.buildkit import find_client
from stackyard.cli.console import Terminal
from stackyard.cli.options.releases import VerifyRequest
from stackyard.cli.release_view import seen_lines
from stackyard.cli.steps.published import find_signers, open_registry, seen_value
from stackyard.definitions.project import load_project
from stackyard.release import rebuild
from stackyard.release import verify as verifying
from stackyard.release.rebuild import Means, Rebuilt
from stackyard.release.registry import Registry
from stackyard.release.spool import Spool, cache_folder
from stackyard.release.verify import Verified
from stackyard.scan.difference import difference_lines
from stackyard.system.engine import Engine

if TYPE_CHECKING:
    from stackyard.cli import answers


def verify(terminal: Terminal, given: VerifyRequest) -> tuple[answers.VerifiedRelease, int]:
    """Run `invoke verify RELEASE [--rebuild]`; exit code 1 where a rebuilt file differs."""
    project = load_project()
    signers = find_signers(given.signers)
    with open_registry(project, given.from_, "--from") as registry:
        found = verifying.verify_release(registry, given.release, signers)
        entry = found.release
        attested = f", with {', '.join(found.attested)}" if found.attested else ""
        terminal.text(f"{entry.name}: signed by {found.signer}{attested}")
        seen = seen_value(registry, found, signers)
        for why in seen["evidence_refused"]:
            terminal.note(f"{entry.name}: {why}")
        for text in seen_lines(seen):
            terminal.text(f"{entry.name}: {text}")
        rebuilt = _rebuild(terminal, registry, found) if given.rebuild else None
    value: answers.VerifiedRelease = {
        "repository": str(registry.repository), "release": entry.name, "digest": entry.digest,
        "signer": found.signer, "created": entry.created, "proven": entry.proven,
        "attested": list(found.attested), "needs_gpus": seen["needs_gpus"],
        "evidence": seen["evidence"], "evidence_refused": seen["evidence_refused"],
        "rebuilt": rebuilt,
    }  # fmt: skip
    return value, int(rebuilt is not None and rebuilt["outcome"] != "passed")


def _rebuild(terminal: Terminal, registry: Registry, found: Verified) -> answers.RebuiltValue:
    name = found.release.name
    started = time.monotonic()
    client = find_client(os.environ.get("PATH", ""))
    store = Spool(cache_folder(os.environ))
    with Engine() as engine:
        means = Means(engine=engine, client=client, caller_of=_caller, store=store)
        done = rebuild.rebuild(registry, found, means, lambda text: terminal.say(name, text))
    store.forget_old()
    for text in _lines(name, done):
        terminal.text(text)
    return {
        "outcome": "failed" if done.differences else "passed",
        "differences": [
            {"path": one.path, "what": list(one.what), "package": one.package}
            for one in done.differences
        ],
        "files": done.files, "packages": done.packages, "packages_from": done.packages_from,
        "built_by": done.record.built_by, "rebuilt_by": _rebuilt_by(),
        "seconds": round(time.monotonic() - started, 2),
    }  # fmt: skip


def _caller(distribution: str) -> mirrors.CallerSettings:
    return mirrors.collect(os.environ, distribution=distribution)


def _rebuilt_by() -> str:
    """Return which Stackyard builds here, for people."""
    return f"Stackyard {__version__}, uv {base_image.uv_version()}"


def _lines(name: str, done: Rebuilt) -> Iterator[str]:
    """Yield the result of a rebuild for people."""
    source = "carried by the release" if done.packages_from == "release" else "from package sources"
    made = f"{done.files:,} files, from {done.packages} Debian packages {source}"
    if not done.differences:
        yield f"{name}: built again from scratch, no file differs ({made})"
        return
    yield f"{name}: built again from scratch, {len(done.differences)} differences ({made})"
    yield from difference_lines(done.differences)
    record = done.record
    if record.base_key != base_image.recipe_key(record.base):
        yield "bases are made in another way by this Stackyard than by the one that released"
    commit = record.builder.get("commit", "")
    hint = f"; to build as it did: git checkout {commit}" if commit else ""
    yield f"released by {record.built_by}; built again by {_rebuilt_by()}{hint}"
