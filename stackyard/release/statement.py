"""Write and read a release's tags and statement, and check that an image may become a release.

Owns names of tags, the statement (docs/howto/releases.md) and provenance. Pure: data of images,
reports and registries are arguments.

Over 300 lines: a release's statement is written and read here, and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stackyard.build.source.naming import despite_of, sources_of
from stackyard.scan.oci import Descriptor, is_digest, text_of
from stackyard.system.errors import ReleaseError
from stackyard.system.image import ImageInfo

SCHEMA = "stackyard.release/1"
STATEMENT = "application/vnd.stackyard.release.v1+json"
SIGNATURE = "application/vnd.stackyard.signature.v1.sshsig"
PROVENANCE = "application/vnd.in-toto+json"
SBOM = "application/vnd.cyclonedx+json"
REPORT = "application/vnd.stackyard.report.v1+json"
LOCK = "application/vnd.stackyard.lock.v1+text"
SIZES = "application/vnd.stackyard.sizes.v1+json"
BUILD_TYPE = "https://stackyard.example/build/v1"
# SLSA asks for a URI that names the build platform; the versions stand beside it.
BUILDER = "https://stackyard.example/builder/v1"
NEVER = "never"


def latest_tag(stack: str, base: str, *, own: bool = False) -> str:
    """Return the tag that moves to the newest release of a stack on a base."""
    return f"{stack}-{base}-{'src-' if own else ''}latest"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Identify the stack, version and base of a release.

    Attributes:
        version: of the stack's first package.
        base_name: as in the definitions.
        base_release: the base with its version, as in tags.
        own: built from users' own source, for which another `latest` tag moves.
    """

    stack: str
    version: str
    base_name: str
    base_release: str
    own: bool = False

    @property
    def prefix(self) -> str:
        """Return the prefix of all revisions' tags."""
        version = re.sub(r"[^A-Za-z0-9._-]", "_", self.version)
        return f"{self.stack}-{version}-{self.base_release}"

    @property
    def latest(self) -> str:
        """Return the moving tag of this stack on this base; users' own source has another."""
        return latest_tag(self.stack, self.base_name, own=self.own)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Hold where an image comes from, as OCI's standard annotations state it; empty if unknown.

    Attributes:
        revision: the commit that last changed what the image is built from.
        source: URL of the project's published source.
        base_name: the reference of the base.
        licences: of the packages that the stack names, as an SPDX expression.
    """

    revision: str = ""
    source: str = ""
    base_name: str = ""
    licences: str = ""


NOWHERE = Origin()


@dataclass(frozen=True, kw_only=True)
class Attached:
    """Hold a file that is attached to an image in the registry."""

    title: str
    media_type: str
    data: bytes


def revisions(subject: Subject, tags: Iterable[str]) -> dict[int, set[str]]:
    """Return the claims on every revision that exists or is about to be made, by its number.

    A claim is the tag `<prefix>-rN-<12 hex digits of the image's digest>`, put before `...-rN`.
    """
    form = re.compile(rf"{re.escape(subject.prefix)}-r([1-9][0-9]{{0,5}})(?:-([0-9a-f]{{12}}))?")
    found: dict[int, set[str]] = {}
    for tag in tags:
        match = form.fullmatch(tag)
        if match:
            claims = found.setdefault(int(match.group(1)), set())
            claims |= {match.group(2)} if match.group(2) else set()
    return found


def is_release_tag(tag: str) -> bool:
    """Return whether a tag names a release, not a claim, a list of artifacts or `latest`."""
    return bool(re.search(r"-r[1-9][0-9]{0,5}$", tag))


def claim_tag(subject: Subject, number: int, digest: str) -> str:
    """Return the tag by which a publisher claims a revision for this image."""
    return f"{subject.prefix}-r{number}-{digest.removeprefix('sha256:')[:12]}"


def revision_tag(subject: Subject, number: int) -> str:
    """Return a release's tag."""
    return f"{subject.prefix}-r{number}"


def later_revision(name: str, tags: Iterable[str]) -> str:
    """Return the tag of the last revision after that of `name`; empty when there is none."""
    prefix, _, number = name.rpartition("-r")
    form = re.compile(rf"{re.escape(prefix)}-r([1-9][0-9]{{0,5}})")
    found = [int(match[1]) for tag in tags if (match := form.fullmatch(tag))]
    last = max(found, default=0)
    return f"{prefix}-r{last}" if number.isdecimal() and last > int(number) else ""


def next_revision(found: Mapping[int, Collection[str]], digest: str) -> int:
    """Return the number for an image: one that it alone has claimed, or the next free one."""
    own = digest.removeprefix("sha256:")[:12]
    claimed = [number for number, claims in found.items() if set(claims) == {own}]
    return max(claimed) if claimed else max(found, default=0) + 1


def require_publishable(info: ImageInfo, name: str) -> None:
    """Check that an image is not marked as never to leave the machine that made it.

    Raises:
        ReleaseError: the image is marked so.
    """
    if info.labels.get("stackyard.publish") == NEVER:
        raise ReleaseError(
            f"{name} is never published",
            why="it holds files of the machine it was made on, for trials there; nobody may pass"
            " those on, and nobody else could use them",
            hint="build the stack on a base made of public packages: invoke build STACK",
        )


def require_clean_sources(info: ImageInfo, name: str, *, unproven: bool) -> None:
    """Check that the users' source that an image was built from is committed.

    Raises:
        ReleaseError: nobody could rebuild the image from its release's statement.
    """
    for source in sources_of(info.labels):
        if unproven or (source.commit and not source.dirty):
            continue
        raise ReleaseError(
            f"{name} was built from source of {source.package} that is in no commit",
            why=f"it is of {source.says}: nobody can have that tree by what the release would say",
            hint="commit, build again with --source, smoke it with --image, then publish;"
            " --unproven publishes it and says so in the release",
        )


def sources_value(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the users' sources of an image, as a release states them."""
    return [asdict(source) for source in sources_of(labels)]


def proof_of(reports: Sequence[Mapping[str, Any]], image_id: str) -> Mapping[str, Any] | None:
    """Return the newest passed smoke of exactly this image; one on GPUs before those on CPU ranks.

    A smoke names its ranks where they are not what the base is for.
    """
    fitting = [
        report
        for report in reports
        if report.get("kind") == "smoke"
        and report.get("outcome") == "passed"
        and isinstance(report.get("image"), dict)
        and report["image"].get("id") == image_id
    ]
    return max(
        fitting,
        key=lambda report: ("ranks" not in report, str(report.get("started", ""))),
        default=None,
    )


def require_proof(
    proof: Mapping[str, Any] | None, reports: Sequence[Mapping[str, Any]], name: str, image_id: str
) -> None:
    """Check that an image has passed a smoke.

    Raises:
        ReleaseError: it has not; names the reports that exist instead.
    """
    if proof is not None:
        return
    told = [
        f"the smoke of {report.get('started', 'an unknown time')} {report.get('outcome')}"
        f" for image {str(report.get('image', {}).get('id', ''))[7:19]}"
        for report in reports
        if report.get("kind") == "smoke"
    ]
    raise ReleaseError(
        f"{name} (image {image_id[7:19]}) has passed no smoke",
        why="; ".join(told) or "there is no smoke report for it at all",
        hint="invoke smoke STACK, then publish; --unproven publishes it and says so in the release",
    )


def image_annotations(
    subject: Subject, info: ImageInfo, created: str, origin: Origin
) -> dict[str, str]:
    """Return the annotations of an image's manifest: the same for the same image and origin."""
    given = {
        "org.opencontainers.image.title": f"stackyard/{subject.stack}",
        "org.opencontainers.image.version": subject.version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.revision": origin.revision,
        "org.opencontainers.image.source": origin.source,
        "org.opencontainers.image.licenses": origin.licences,
        "org.opencontainers.image.base.name": origin.base_name,
        "org.opencontainers.image.base.digest": info.labels.get("stackyard.base.digest", ""),
        "stackyard.stack": subject.stack,
        "stackyard.base": subject.base_name,
        "stackyard.recipe": info.labels.get("stackyard.recipe", ""),
        "stackyard.image-id": info.id,
    }
    return {key: value for key, value in given.items() if value}


def statement(
    subject: Subject,
    *,
    name: str,
    repository: str,
    image: Descriptor,
    image_id: str,
    layers: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    proof: Mapping[str, Any] | None,
    artifacts: Sequence[Descriptor],
    created: str,
    builder: Mapping[str, str],
    needs_gpus: bool = False,
    seen_on: Sequence[str] = (),
    audit: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the statement to sign, which holds everything a release claims.

    Args:
        name: the release's tag.
        needs_gpus: the image is for GPUs.
        seen_on: GPUs on which the image has trained, by its evidence.
        audit: what was known of vulnerabilities at the time of the release.
        layers: each with digest, diff_id, size, unpacked.
        artifacts: the files attached to the image, as blobs.
        created: UTC time in ISO 8601.
    """
    own = sources_value(labels)
    value = {
        "schema": SCHEMA,
        "name": name,
        "repository": repository,
        "stack": subject.stack,
        "version": subject.version,
        "base": subject.base_name,
        "created": created,
        "image": {
            "digest": image.digest,
            "size": image.size,
            "id": image_id,
            "recipe": labels.get("stackyard.recipe", ""),
            "base_digest": labels.get("stackyard.base.digest", ""),
            "fixes": fixes_of(labels),
            "layers": [dict(layer) for layer in layers],
            **({"sources": own, "despite": list(despite_of(labels))} if own else {}),
        },
        "proven": proof is not None,
        "proof": _proof_value(proof) if proof is not None else None,
        "needs_gpus": needs_gpus,
        "seen_on": list(seen_on),
        **({"audit": dict(audit)} if audit is not None else {}),
        "artifacts": [artifact.value() for artifact in artifacts],
        "builder": dict(builder),
    }
    return text_of(value)


def _proof_value(proof: Mapping[str, Any]) -> dict[str, Any]:
    checks = [check for check in proof.get("checks", []) if isinstance(check, dict)]
    return {
        "kind": proof["kind"],
        "outcome": proof["outcome"],
        "started": proof.get("started", ""),
        "run": proof.get("run", ""),
        "checks": [check.get("name", "") for check in checks if check.get("outcome") == "passed"],
        "host": proof.get("host", {}),
        **({"gpus": proof["gpus"].get("devices", [])} if "gpus" in proof else {}),
    }


def provenance(
    subject: Subject,
    *,
    labels: Mapping[str, str],
    locks: Mapping[str, str],
    source: Mapping[str, str],
    builder: Mapping[str, str],
    place: str = "",
) -> dict[str, Any]:
    """Return an image's provenance, as SLSA's predicate (v1).

    Args:
        locks: digests of the locks, by file.
        source: the project's revision, where known.
        place: URL of the project's published source; empty for none.
    """
    base_digest = _sha256(labels.get("stackyard.base.digest", ""))
    materials: list[dict[str, Any]] = [{"name": f"base {subject.base_name}", "digest": base_digest}]
    materials += [{"name": file, "digest": _sha256(found)} for file, found in sorted(locks.items())]
    if source.get("commit"):
        found = {"uri": f"git+{place}"} if place else {}
        materials.append({"name": "source", **found, "digest": {"gitCommit": source["commit"]}})
    own = sources_of(labels)
    for one in own:
        # A commit identifies the built tree only if nothing was changed; the digest always does.
        commit = {"gitCommit": one.commit} if one.commit and not one.dirty else {}
        uri = {"uri": f"git+{one.origin}"} if one.origin else {}
        digest_ = {"sha256": one.digest.removeprefix("sha256:"), **commit}
        materials.append({"name": f"source of {one.package}", **uri, "digest": digest_})
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"stack": subject.stack, "base": subject.base_name},
            "internalParameters": {
                "recipe": labels.get("stackyard.recipe", ""),
                "fixes": fixes_of(labels),
                "uncommitted_changes": source.get("dirty", "unknown"),
                **(
                    {"sources": sources_value(labels), "despite": list(despite_of(labels))}
                    if own
                    else {}
                ),
            },
            "resolvedDependencies": [m for m in materials if m["digest"]],
        },
        "runDetails": {"builder": {"id": BUILDER, "version": dict(builder)}},
    }


def fixes_of(labels: Mapping[str, str]) -> list[str]:
    """Return the names of the fixes that an image has."""
    return [fix for fix in labels.get("stackyard.fixes", "").split(",") if fix]


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")} if is_digest(digest) else {}


@dataclass(frozen=True, kw_only=True)
class Release:
    """Hold a statement as read; its attributes are those of `statement`."""

    name: str
    stack: str
    base: str
    version: str
    created: str
    proven: bool
    digest: str
    image_id: str
    layers: tuple[Mapping[str, Any], ...]
    value: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Return the compressed size of all layers in bytes."""
        return sum(int(layer["size"]) for layer in self.layers)

    @property
    def needs_gpus(self) -> bool:
        """Return whether it states that it is for GPUs; releases made before evidence do not."""
        return self.value.get("needs_gpus") is True

    @property
    def seen_on_gpus(self) -> bool:
        """Return whether it was published with evidence of GPUs."""
        return bool(self.value.get("seen_on"))

    @property
    def own(self) -> bool:
        """Return whether it was built from users' own source."""
        return bool(self.value["image"].get("sources"))

    @property
    def local_name(self) -> str:
        """Return its name in a local engine; users' own source never gets the stack's name."""
        tag = f"stackyard/{self.stack}:{self.base}"
        return f"{tag}-{self.version}" if self.own else tag


def read_statement(data: bytes) -> Release:
    """Read a statement; the caller has verified its signature.

    Raises:
        ReleaseError: the data is no statement, or one of another schema.
    """
    try:
        value = json.loads(data)
        if value["schema"] != SCHEMA:
            raise ReleaseError(f"a release of another form: {value['schema']!r}",
                               hint="a newer stackyard may read it")  # fmt: skip
        image = value["image"]
        layers = tuple(image["layers"])
        for layer in layers:
            if not is_digest(layer["digest"]) or not is_digest(layer["diff_id"]):
                raise ValueError("a layer without digests")
            if not isinstance(layer["size"], int) or not isinstance(layer["unpacked"], int):
                raise ValueError("a layer without sizes")
        if not is_digest(image["digest"]) or not is_digest(image["id"]):
            raise ValueError("an image without digests")
        return Release(
            name=str(value["name"]), stack=str(value["stack"]), base=str(value["base"]),
            version=str(value["version"]), created=str(value["created"]),
            proven=value["proven"] is True, digest=image["digest"], image_id=image["id"],
            layers=layers, value=value,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ReleaseError("a release's statement cannot be read", why=repr(error)) from error
