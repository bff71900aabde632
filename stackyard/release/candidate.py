"""Gather all that a release needs from this machine: image, proof, locks, contents, source.

Owns reading these. `release.statement` defines what they mean; `release.publish` uploads them.

Over 300 lines: one function a thing that is gathered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from stackyard import __version__
from stackyard.build import base_image, catalog, mirrors, packages, recipe
from stackyard.build.catalog import ResolvedImage
from stackyard.build.dockerfile import image_tag, render_files
from stackyard.build.source.fork import Fork, fork_of
from stackyard.build.source.naming import require_labels
from stackyard.definitions import lock
from stackyard.definitions.project import Project
from stackyard.release import recipe_record, statement
from stackyard.release.spool import Layer, Saved, Spool
from stackyard.release.statement import NOWHERE, Attached, Origin, Subject
from stackyard.report import evidence
from stackyard.report.records import path_of
from stackyard.report.vouch import Vouched
from stackyard.scan import contents, sbom, sizes
from stackyard.scan.installed import Installed, installed
from stackyard.scan.layer import LayerReader
from stackyard.scan.mirror_traces import Caller, make_caller
from stackyard.scan.oci import digest_of
from stackyard.scan.secrets import gate
from stackyard.scan.secrets.allowed import Allowed, read_allowed
from stackyard.system import process
from stackyard.system.chunks import Reader
from stackyard.system.engine import Engine
from stackyard.system.errors import ReleaseError, StackyardError, UsageError
from stackyard.system.image import ImageInfo

ALLOWED = "images/gate.yml"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Hold an image chosen for release, before its contents are read."""

    image: ResolvedImage
    tag: str
    info: ImageInfo
    subject: Subject
    proof: Mapping[str, Any] | None


def candidate(
    project: Project,
    engine: Engine,
    stack: str,
    base: str,
    *,
    unproven: bool,
    tag: str = "",
    vouched: Sequence[Vouched] = (),
    without_gpus: bool = False,
    instead: Mapping[str, str] | None = None,
) -> Candidate:
    """Return the image of a stack, after checking that it is current, publishable and proven.

    Args:
        tag: an image of the same stack and base to use instead, built from users' own source.
        vouched: evidence to attach to it; a smoke among it proves the image, too.
        without_gpus: publish an image for GPUs without evidence of any.
        instead: what to type for the stack's image on each other base, if that is here.

    Raises:
        UsageError: this machine's engine has no such image.
        ReleaseError: the image may not be published.
    """
    resolved = catalog.resolve(project.definitions, stack, base)
    own, tag = tag, tag or image_tag(stack, base)
    info = engine.image(tag)
    if info is None:
        raise _not_here(project, engine, resolved, tag, instead or {})
    statement.require_publishable(info, tag)
    if own:
        require_labels(info.labels, own, stack, base)
    fork = fork_of(project.definitions, info.labels)
    resolved = fork.image(resolved) if fork else resolved
    statement.require_clean_sources(info, tag, unproven=unproven)
    _require_current(project, resolved, info, tag, fork)
    require_evidence(vouched, info, tag, resolved, without_gpus=without_gpus)
    reports = [*_reports(project.root, stack, base), *(one.evidence.report for one in vouched)]
    # Only the layers of this evidence were compared; `require_saved` compares its image.
    here = [statement.proof_of([one.evidence.report], one.evidence.image_id) for one in vouched]
    proof = statement.proof_of(reports, info.id) or next((one for one in here if one), None)
    if not unproven:
        statement.require_proof(proof, reports, tag, info.id)
    subject = subject_of(resolved)
    if fork:
        # The version names the source, since the image is of no upstream release.
        subject = replace(subject, version=f"src-{fork.short}", own=True)
    return Candidate(image=resolved, tag=tag, info=info, subject=subject, proof=proof)


def _not_here(
    project: Project, engine: Engine, image: ResolvedImage, tag: str, instead: Mapping[str, str]
) -> UsageError:
    """Return the error for an image that this machine's engine lacks."""
    what, stack, base = f"there is no image {tag} here", image.stack.name, image.base.name
    own = image_tag(stack, base)
    if tag != own:
        return UsageError(what, hint="docker images 'stackyard/*' shows what it has")
    gpus = 2 if needs_gpus(image) else 0
    usual = project.default_base if gpus else "cpu"
    smoke = f"invoke smoke {stack}{'' if base == usual else f' --base {base}'} --gpus {gpus}"
    here = [name for name in instead if engine.image(image_tag(stack, name))]
    if not here:
        return UsageError(what, hint=f"{smoke} builds it and sees it train")
    return UsageError(
        what,
        why=f"here: {', '.join(image_tag(stack, name) for name in here)}",
        hint=f"{' or '.join(instead[name] for name in here)}; or first: {smoke}",
    )


def require_evidence(
    vouched: Sequence[Vouched],
    info: ImageInfo,
    tag: str,
    image: ResolvedImage,
    *,
    without_gpus: bool,
) -> None:
    """Check that evidence has these layers, passed, and ran on GPUs if the image is for GPUs.

    The engine's id of an image need not be its configuration's digest (containerd's image store),
    so `require_saved` compares that digest once the image is read.

    Raises:
        ReleaseError: a piece fails a check, or none ran on GPUs.
    """
    for one in vouched:
        if one.evidence.diff_ids != info.layers:
            evidence.require_image(one.evidence, one.name, info.id, info.layers)
        evidence.require_passed(one.evidence, one.name)
    if needs_gpus(image):
        found = [one.evidence for one in vouched]
        names = image.stack.name, image.base.name
        evidence.require_on_gpus(found, tag, *names, without=without_gpus)


def require_saved(vouched: Sequence[Vouched], saved: Saved) -> None:
    """Check that evidence has the configuration and layers of the saved image.

    Raises:
        ReleaseError: a piece is of another image.
    """
    layers = [layer.diff_id for layer in saved.layers]
    for one in vouched:
        evidence.require_image(one.evidence, one.name, digest_of(saved.config), layers)


def needs_gpus(image: ResolvedImage) -> bool:
    """Return whether an image is for GPUs."""
    return image.base.device == "cuda"


def subject_of(image: ResolvedImage) -> Subject:
    """Return the subject of an image's release; its version is the stack's first package's."""
    first = next(iter(image.stack.packages))
    found = image.packages.get(first)
    version = found.value if found else image.stack.packages[first]
    return Subject(
        stack=image.stack.name, version=version, base_name=image.base.name,
        base_release=base_release(image.base.name, image.base.reference),
    )  # fmt: skip


def base_release(name: str, reference: str) -> str:
    """Return a base's part of a tag: `ngc25.12` for nvcr.io/nvidia/pytorch:25.12-py3, or `cpu`."""
    version = re.match(r"[0-9]+(\.[0-9]+)+", reference.rpartition(":")[2])
    letters = re.match(r"[a-z]+", name)
    return f"{letters[0]}{version[0]}" if version and letters else name


def _require_current(
    project: Project, image: ResolvedImage, info: ImageInfo, tag: str, fork: Fork | None
) -> None:
    """Check that the image was built from the current definitions and locks."""
    made = _plan(project, image, info, fork)
    if info.labels.get(recipe.RECIPE_LABEL) != made.recipe:
        stack, base = image.stack.name, image.base.name
        raise ReleaseError(
            f"{tag} was built from other definitions than these",
            why="its release would say what is not so",
            hint=f"invoke build {stack} --base {base}, then smoke it, then publish",
        )


def _plan(
    project: Project, image: ResolvedImage, info: ImageInfo, fork: Fork | None
) -> recipe.BuildPlan:
    """Return the plan of an image by the current definitions and locks."""
    files = recipe.context_files(project.root, image)
    files = fork.files(image, files) if fork else files
    made = recipe.make_plan(
        image, files, base_image=base_image.base_reference(image.base, image.common),
        content=base_image.content_by(image.base, image.common, info.labels),
    )  # fmt: skip
    return fork.plan(made) if fork else made


def _reports(root: Path, stack: str, base: str) -> Iterable[dict[str, Any]]:
    for path in sorted((root / "reports" / stack / base).glob("smoke*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            yield value


@dataclass(frozen=True, kw_only=True)
class Read:
    """Hold an image and the results of all readers, which share one pass over it.

    Attributes:
        findings: of the gate that searches for secrets.
        attached: the files to attach to it.
        sizes: the size report.
        installed: its packages.
        origin: where the image comes from.
    """

    saved: Saved
    findings: Sequence[gate.Finding]
    attached: Sequence[Attached]
    sizes: Mapping[str, Any]
    created: str
    installed: Installed
    origin: Origin = NOWHERE


def read(
    project: Project, engine: Engine, store: Spool, found: Candidate, say: Callable[[str], None]
) -> Read:
    """Read an image from the engine: compress, search and list it in one pass.

    Raises:
        EngineError: the engine does not return the whole image.
    """
    caller, allowed = _caller(project, found.image), load_allowed(project.root)
    say(f"reading {found.info.size / 1e9:.2f} GB: compressing, searching for secrets, listing")

    def searched(number: int) -> Reader:
        return lambda stream: gate.scan_layer(stream, caller, allowed)

    def listed(number: int) -> Reader:
        def one(stream: IO[bytes]) -> Any:
            return LayerReader(number).read(stream)

        return one

    saved = store.save(
        engine.saved(found.info.id), {"gate": searched, "contents": listed},
        diff_ids=found.info.layers,
    )  # fmt: skip
    config = json.loads(saved.config)
    findings = [finding for layer in saved.read["gate"] for finding in layer]
    findings += gate.scan_config(config, caller, allowed)
    created = _seconds(str(config.get("created", "")))
    merged = contents.merge(saved.read["contents"])
    report = _sizes(engine, found, saved, merged, config)
    return Read(saved=saved, findings=findings, sizes=report, created=created,
                installed=installed(merged), origin=_origin(project, found.image, merged),
                attached=_attached(project, found, merged, report, created))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rebuildable:
    """Hold all from which others build an image again.

    Attributes:
        files: its recipe, and the index of its Debian packages.
        packages: these packages, a file of the spool.
    """

    files: Sequence[Attached] = ()
    packages: Layer | None = None

    @property
    def locks(self) -> dict[str, str]:
        """Return the digest of the index, by its title."""
        kind = recipe_record.INDEX
        return {one.title: digest_of(one.data) for one in self.files if one.media_type == kind}


def rebuildable(
    project: Project, engine: Engine, store: Spool, found: Candidate, origin: Origin,
    say: Callable[[str], None],
) -> Rebuildable:  # fmt: skip
    """Return what others need to build an image again; nothing where a release cannot carry it.

    A release does not pass users' own source on. Of a pulled base nobody knows the packages of
    build steps.
    """
    image = found.image
    name = packages.packages_of(found.info.labels)
    held = engine.image(name) if name else None
    if held is None or image.base.bootstrap is None or found.subject.own:
        return Rebuildable()
    say(f"reading its Debian packages, {held.size / 1e6:.0f} MB")
    saved = store.save(
        engine.saved(held.id), {"index": lambda number: packages.index_of}, diff_ids=held.layers
    )
    made, base = _plan(project, image, found.info, None), image.base
    recipe_ = base_image.base_recipe(base, image.common)
    record = recipe_record.Record(
        stack=image.stack.name, base_name=base.name, distribution=base.distribution,
        base=recipe_, base_key=base_image.recipe_key(recipe_), dockerfile=made.dockerfile,
        context=dict(sorted(made.context.items())),
        builder={"stackyard": __version__, "uv": base_image.uv_version(),
                 "commit": origin.revision},
    )  # fmt: skip
    files = [
        Attached(title="recipe.json", media_type=recipe_record.RECIPE,
                 data=recipe_record.record_text(record)),
        Attached(title=packages.INDEX, media_type=recipe_record.INDEX,
                 data=saved.read["index"][0].encode()),
    ]  # fmt: skip
    return Rebuildable(files=files, packages=saved.layers[0])


def _origin(project: Project, image: ResolvedImage, merged: contents.Contents) -> Origin:
    held = lock.holders(project.definitions.locks)
    paths = {*recipe.INSIDE, *(held[path] for path in image.locks), *render_files(image)}
    return Origin(
        revision=revision_of(project.root, paths), source=project.source,
        base_name=base_image.base_reference(image.base, image.common),
        licences=sbom.licence_expression(merged, image.stack.packages),
    )  # fmt: skip


def revision_of(root: Path, paths: Iterable[str]) -> str:
    """Return the commit that last changed some files; empty if they have changes in no commit.

    Unlike HEAD it stays as long as they do: the same image keeps its annotations and its digest.
    """
    git, files = ["git", "-C", str(root)], ["--", *sorted(paths)]
    try:
        changed = process.run([*git, "status", "--porcelain", *files], timeout=60).output
        if changed.strip():
            return ""
        return process.run([*git, "log", "-1", "--format=%H", *files], timeout=60).output.strip()
    except StackyardError:
        return ""


def _seconds(created: str) -> str:
    """Convert an engine's time (nanoseconds) to ISO 8601 in seconds, UTC."""
    try:
        moment = datetime.fromisoformat(re.sub(r"\.[0-9]+", "", created).replace("Z", "+00:00"))
    except ValueError:
        moment = datetime.fromtimestamp(0, timezone.utc)
    return moment.astimezone(timezone.utc).isoformat()


def _caller(project: Project, image: ResolvedImage) -> Caller:
    definitions = project.definitions
    own = [
        *(base.torch_index for base in definitions.bases.values()),
        *(base.reference for base in definitions.bases.values()),
    ]
    return make_caller(mirrors.collect(os.environ, distribution=image.base.distribution), own)


def load_allowed(root: Path) -> Allowed:
    """Read the gate's list of known strings that are no secrets.

    Raises:
        DefinitionError: the list is invalid.
    """
    return read_allowed((root / ALLOWED).read_text(encoding="utf-8"), ALLOWED)


def _sizes(
    engine: Engine, found: Candidate, saved: Saved, merged: contents.Contents,
    config: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    steps = [str(entry.get("created_by", "")) for entry in config.get("history", [])
             if not entry.get("empty_layer")]  # fmt: skip
    layers = [
        sizes.LayerSize(digest=layer.digest, compressed=layer.size,
                        created_by=steps[number] if number < len(steps) else "")
        for number, layer in enumerate(saved.layers)
    ]  # fmt: skip
    base = engine.image(base_image.base_reference(found.image.base, found.image.common))
    below = base.layers if base is not None else ()
    same = 0
    for layer, other in zip(saved.layers, below, strict=False):
        if layer.diff_id != other:
            break
        same += 1
    return sizes.size_report(merged, layers, same)


def _attached(
    project: Project, found: Candidate, merged: contents.Contents, report: Mapping[str, Any],
    created: str,
) -> list[Attached]:  # fmt: skip
    image, info = found.image, found.info
    pins = [item for text in image.locks.values() for item in lock.parse_lock(text)]
    bill = sbom.sbom(
        merged,
        sbom.Described(
            name=f"stackyard/{image.stack.name}", version=found.subject.version, id=info.id,
            created=created, base=image.base.reference or image.base.name,
            base_digest=info.labels.get("stackyard.base.digest", ""),
        ),
        pins,
    )  # fmt: skip
    files = [Attached(title="sbom.cdx.json", media_type=statement.SBOM, data=bill.encode())]
    if found.proof is not None:
        data = json.dumps(found.proof, indent=1, ensure_ascii=False).encode()
        files.append(Attached(title="smoke.json", media_type=statement.REPORT, data=data))
    proofs = fix_proofs(project.root, image, info.id)
    if proofs is not None:
        files.append(Attached(title="prove.json", media_type=statement.REPORT, data=proofs))
    for path in sorted(image.locks):
        data = project.definitions.locks[path].encode()
        files.append(Attached(title=path, media_type=statement.LOCK, data=data))
    data = json.dumps(report, indent=1, ensure_ascii=False).encode()
    return [*files, Attached(title="sizes.json", media_type=statement.SIZES, data=data)]


def fix_proofs(root: Path, image: ResolvedImage, image_id: str) -> bytes | None:
    """Return the report of `invoke prove` that passed on this exact image; None without one."""
    path = root / path_of(image.stack.name, image.base.name, "prove", "json")
    try:
        data = path.read_bytes()
        value = json.loads(data)
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or value.get("outcome") != "passed":
        return None
    proven = value.get("image")
    return data if isinstance(proven, dict) and proven.get("id") == image_id else None


def lock_digests(project: Project, image: ResolvedImage) -> dict[str, str]:
    """Return the digest of every lock of an image, by file."""
    locks = project.definitions.locks
    return {path: digest_of(locks[path].encode()) for path in image.locks}


def builder_of(engine: Engine) -> dict[str, str]:
    """Return the versions of the tools that make a release."""
    return {"stackyard": __version__, "engine": engine.version}
