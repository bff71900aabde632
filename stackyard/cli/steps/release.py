"""Run `invoke publish` and `bundle --images`, from their arguments to the output.

Owns the meaning of their arguments. `release.publish` and `airgap` take the steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.images import BundleRequest
from stackyard.cli.options.releases import PublishRequest
from stackyard.cli.steps import audit
from stackyard.cli.steps.published import SIGNERS, find_signers, open_registry, signer_name
from stackyard.cli.typed import typed
from stackyard.definitions.project import load_project
from stackyard.release import airgap, candidate, verify
from stackyard.release import statement as release
from stackyard.release.layer_source import LayerSource
from stackyard.release.publish import Published, Publisher, PublishPlan, require_clean
from stackyard.release.spool import Spool, cache_folder
from stackyard.report import pages, vouch
from stackyard.scan.audit import Audit, require_fixed
from stackyard.scan.sizes import size_lines
from stackyard.system import plain_signing, signing
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError


def publish(terminal: Terminal, given: PublishRequest) -> Answer:
    """Run `invoke publish STACK --to REGISTRY/NAME [--evidence F ...] [--image TAG_OR_ID]`."""
    project = load_project()
    chosen = decide(project, given.stack, given.base)
    name, base_name = chosen.stack, chosen.base.name
    path = signing.find_key(given.key, Path.home())
    line = signing.signer_line(path, signer_name())
    vouched = vouch.load(given.evidence, find_signers(given.signers), line)
    started = time.monotonic()

    def say(text: str) -> None:
        terminal.say(name, text)

    with open_registry(project, given.to, "--to") as registry, Engine() as engine:
        found = candidate.candidate(
            project, engine, name, base_name, unproven=given.unproven, tag=given.image,
            vouched=vouched, without_gpus=given.without_gpu_evidence,
            instead={base: typed("publish", given, base=base)
                     for base in project.definitions.bases if base != base_name},
        )  # fmt: skip
        registry.tags()  # fails early without access
        store = Spool(cache_folder(os.environ))
        read = candidate.read(project, engine, store, found, say)
        candidate.require_saved(vouched, read.saved)
        require_clean(read.findings, found.tag)
        audited = audit.audited(project, found.image.base, read.installed, say)
        require_fixed(audited, found.tag)
        beside = candidate.rebuildable(project, engine, store, found, read.origin, say)
        wanted = PublishPlan(
            subject=found.subject, info=found.info, created=read.created, proof=found.proof,
            attached=[*read.attached, *beside.files], packages=beside.packages,
            locks={**candidate.lock_digests(project, found.image), **beside.locks},
            key=path, builder=candidate.builder_of(engine),
            source=pages.revision(project.root), origin=read.origin,
            needs_gpus=candidate.needs_gpus(found.image), evidence=vouched,
            agent=plain_signing.agent_at(os.environ.get("SSH_AUTH_SOCK", "")),
            audit=audited.value(),
        )  # fmt: skip
        done = Publisher(registry, store, say).publish(read.saved, wanted)
        store.forget_old()
    for text in size_lines(read.sizes):
        terminal.text(text)
    for text in _reservations(wanted, audited, done):
        terminal.note(text)
    for one in vouched:
        terminal.text(f"evidence: {vouch.words(one)}")
    for part in audited.parts:
        if not part.why:
            terminal.text(f"vulnerabilities, {part.name}: {part.outcome}, {part.packages} packages")
    place = f"{registry.repository}:{done.name}"
    known = " (it was there already)" if done.again else ""
    terminal.text(f"{place} is released{known}: {done.digest}")
    terminal.text(f"everybody who accepts it needs this line in {SIGNERS}:\n{line}")
    seconds = round(time.monotonic() - started, 2)
    more = {"repository": str(registry.repository), "sizes": read.sizes, "signer": line,
            "needs_gpus": wanted.needs_gpus, "seen_on": wanted.seen_on,
            "evidence": [one.value() for one in vouched], "audit": audited.value()}  # fmt: skip
    return {**asdict(done), **more, "proven": bool(found.proof), "seconds": seconds}, 0


def _reservations(wanted: PublishPlan, audited: Audit, done: Published) -> Iterator[str]:
    """Yield what a release lacks, each as a text for its publisher."""
    if not wanted.proof:
        yield "it was published as unproven: its statement says so"
    if wanted.needs_gpus and not wanted.seen_on:
        yield "it was published without evidence of GPUs: its statement says so"
    if not wanted.packages:
        yield "nobody can rebuild it: it carries no recipe and no Debian packages"
    for part in audited.parts:
        if part.why:
            yield f"vulnerabilities, {part.name}: {part.outcome}: {part.why}"
    if done.unsigned:
        yield (
            f"{', '.join(done.unsigned)}: without a signature of its own, which this key cannot"
            " make; the release's signature covers it (docs/howto/releases.md)"
        )


def carry(terminal: Terminal, given: BundleRequest) -> Answer:
    """Run `invoke bundle STACK --images`: write releases for a site without a network."""
    project = load_project()
    chosen = decide(project, given.stack, given.base)
    folder = Path(given.out or "stackyard-images")
    signers = find_signers(given.signers)
    if given.release and len(chosen.stacks) > 1:
        raise UsageError(
            "--release names one release: say which stack it is of",
            hint=f"invoke bundle STACK --images --release {given.release}",
        )
    made = []
    with open_registry(project, given.from_, "--from") as registry:
        for name in chosen.stacks:
            reference = given.release or release.latest_tag(name, chosen.base.name)
            instead = {
                release.latest_tag(name, base): typed("bundle", given, base=base)
                for base in project.definitions.bases if not given.release
            }  # fmt: skip
            found = verify.verify_release(registry, reference, signers, instead)
            sizes = {str(e["digest"]): int(e["size"]) for e in found.release.layers}
            source = LayerSource(registry, cache_folder(os.environ), sizes)
            airgap.write_release(
                folder, registry, source, found, signers,
                lambda text, name=name: terminal.say(name, text),  # type: ignore[misc]
            )  # fmt: skip
            made.append({"release": found.release.name, "signer": found.signer,
                         "bytes": found.release.size})  # fmt: skip
    size = airgap.carried_bytes(folder)
    terminal.text(f"{folder} holds {', '.join(str(m['release']) for m in made)}, images of"
                  f" {size / 1e6:,.0f} MB; there: sh install.sh ALLOWED_SIGNERS"
                  f" (needs docker or podman)")  # fmt: skip
    return {"folder": str(folder), "bytes": size, "releases": made}, 0
