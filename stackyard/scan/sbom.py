"""Write an image's software bill of materials (SBOM): CycloneDX 1.6 in JSON.

Owns the document: which components there are, how they are named, and their dependencies. The
same image gives the same bytes. It must not read an image (`scan.installed` does) nor a clock.

Over 300 lines: one function a part of the SBOM.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import (
    DisjunctiveLicense,
    License,
    LicenseAcknowledgement,
    LicenseExpression,
)
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.spdx import fixup_id, is_expression
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from py_serializable.helpers import XsdDateTime

from stackyard import __version__
from stackyard.definitions.lock import Locked
from stackyard.scan.contents import Contents
from stackyard.scan.installed import DebianPackage, Distribution, Installed, Origin, installed
from stackyard.system.errors import shown

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LONGEST_NAME = 100  # of a licence; anything longer is the text of a licence
_ALLOWED = "the lock allows several files: one of these hashes is of the one installed"


@dataclass(frozen=True, kw_only=True)
class Described:
    """Describe the image that an SBOM is about.

    id: the digest of its configuration (`sha256:...`), as engines name images. created: ISO 8601
    time with its offset. base: a reference; empty when no base is named. base_digest: its digest.
    """

    name: str
    version: str
    id: str
    created: str
    base: str = ""
    base_digest: str = ""
    architecture: str = "amd64"


def sbom(contents: Contents, image: Described, locks: Iterable[Locked]) -> str:
    """Write the SBOM of an image; `locks` are all pins that decided its Python packages.

    Raises ValueError when the image's id or time is malformed.
    """
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", image.id):
        raise ValueError(f"{image.id!r} is not the id of an image")
    there = installed(contents)
    subject = _image(image)
    outer = [_system(there), _base(image), *(_deb(p, there) for p in there.packages)]
    own, inside = _distributions(there, _hashes(locks))
    components = [c for c in outer if c is not None]
    components += [c for d, c in own.items() if not d.owner]
    bom = Bom(
        components=components,
        serial_number=uuid5(NAMESPACE_URL, f"stackyard:{image.id}"),
        metadata=BomMetaData(
            component=subject, timestamp=XsdDateTime.deserialize(_time(image.created)),
            tools=ToolRepository(components=[_tool()]),
        ),
    )  # fmt: skip
    bom.register_dependency(subject, components)
    for distribution, component in own.items():
        needs = [own[other] for other in required(distribution, there, image.architecture)]
        needs += inside.get(distribution.info, [])
        bom.register_dependency(component, needs)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _time(created: str) -> str:
    # Engines write nanoseconds; a time without an offset would be read as this machine's.
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", created):
        raise ValueError(f"{created!r} is not a time with its offset")
    return re.sub(r"(\.\d{6})\d+", r"\1", created)


# Components


def _tool() -> Component:
    return Component(name="stackyard", version=__version__, type=ComponentType.APPLICATION,
                     bom_ref=f"tool:stackyard@{__version__}")  # fmt: skip


def _image(image: Described) -> Component:
    return Component(
        name=image.name, version=image.version, type=ComponentType.CONTAINER,
        bom_ref=f"image:{image.id}", hashes=_digests(image.id),
        properties=_properties({"image-id": image.id, "architecture": image.architecture}),
    )  # fmt: skip


def _base(image: Described) -> Component | None:
    if not image.base:
        return None
    name, _, tag = image.base.partition("@")[0].rpartition(":")
    if not name or "/" in tag:
        name, tag = image.base.partition("@")[0], ""
    return Component(
        name=name, version=tag or None, type=ComponentType.CONTAINER,
        bom_ref=f"base:{image.base_digest or image.base}", hashes=_digests(image.base_digest),
        properties=_properties({"base-digest": image.base_digest}),
    )  # fmt: skip


def _system(there: Installed) -> Component | None:
    system = there.system
    if not system:
        return None
    name, version = system.get("ID", "linux"), system.get("VERSION_ID", "")
    return Component(
        name=name, version=version or None, type=ComponentType.OPERATING_SYSTEM,
        bom_ref=f"os:{_distro(system) or name}", description=system.get("PRETTY_NAME"),
    )  # fmt: skip


def _deb(package: DebianPackage, there: Installed) -> Component:
    # Debian's advisories are about source packages: scanners find them by `upstream`.
    qualifiers = {"arch": package.architecture, "distro": _distro(there.system),
                  "upstream": _upstream(package)}  # fmt: skip
    purl = PackageURL(
        type="deb", namespace=there.system.get("ID", "debian"), name=package.name,
        version=package.version, qualifiers={k: v for k, v in qualifiers.items() if v},
    )  # fmt: skip
    return Component(
        name=package.name, version=package.version, purl=purl, bom_ref=purl.to_string(),
        external_references=_references({ExternalReferenceType.WEBSITE: package.home}),
        properties=_properties({"source-package": package.source}),
    )  # fmt: skip


def _upstream(package: DebianPackage) -> str:
    """Return `SOURCE` or `SOURCE@VERSION`, as dpkg names it where it is not the package's own."""
    match = re.fullmatch(r"(\S+)(?:\s+\((\S+)\))?", package.source)
    return "@".join(filter(None, match.groups())) if match else ""


def _distro(system: Mapping[str, str]) -> str:
    return "-".join(filter(None, (system.get("ID"), system.get("VERSION_ID"))))


def _distributions(
    there: Installed, hashes: Mapping[tuple[str, str], list[str]]
) -> tuple[dict[Distribution, Component], dict[str, list[Component]]]:
    """Return the components of all distributions, and the vendored ones by their owner's info."""
    purls = {d: _purl(d) for d in there.distributions}
    times = Counter(purl.to_string() for purl in purls.values())
    found: dict[Distribution, Component] = {}
    inside: dict[str, list[Component]] = defaultdict(list)
    for distribution, purl in purls.items():
        reference = purl.to_string()
        # The same distribution in two places: the path makes the reference unique.
        unique = reference if times[reference] == 1 else f"{reference}#{shown(distribution.info)}"
        # A vendored copy is not what a lock pinned.
        key = (distribution.key, _version(distribution.version))
        allowed = [] if distribution.owner else hashes.get(key, [])
        found[distribution] = _python(distribution, purl, unique, allowed)
        if distribution.owner:
            inside[distribution.owner].append(found[distribution])
    for distribution, component in found.items():
        component.components.update(inside.get(distribution.info, []))
    return found, inside


def _python(
    distribution: Distribution, purl: PackageURL, reference: str, allowed: list[str]
) -> Component:
    origin = distribution.origin
    facts = {
        "folder": f"/{distribution.folder}", "layer": str(distribution.layer),
        "installer": distribution.installer,
    }  # fmt: skip
    # The lock's hashes are those of the sdist; a wheel built from it has no known hash.
    if origin:
        facts["source-hashes"] = " ".join(f"sha256:{digest}" for digest in allowed)
    elif len(allowed) > 1:
        facts["hashes"] = _ALLOWED
    if origin:
        facts |= {"origin": f"{origin.kind}: {origin.address}", "origin-commit": origin.commit,
                  "editable": "true" if origin.editable else ""}  # fmt: skip
    links = {ExternalReferenceType.WEBSITE: distribution.home,
             ExternalReferenceType.VCS: distribution.source}  # fmt: skip
    return Component(
        name=distribution.name, version=distribution.version or None, bom_ref=reference, purl=purl,
        hashes=[] if origin else [_sha256(digest) for digest in allowed],
        licenses=licences(distribution), properties=_properties(facts),
        external_references=[*_references(links), *_origin(origin)],
    )  # fmt: skip


def _purl(distribution: Distribution) -> PackageURL:
    origin, qualifiers = distribution.origin, {}
    if origin and "://" in origin.address:
        if origin.commit:
            qualifiers["vcs_url"] = f"{origin.kind}+{origin.address}@{origin.commit}"
        else:
            qualifiers["download_url"] = origin.address
    return PackageURL(type="pypi", name=distribution.key, version=distribution.version or None,
                      qualifiers=qualifiers)  # fmt: skip


def _origin(origin: Origin | None) -> list[ExternalReference]:
    if origin is None or not (origin.sha256 or "://" in origin.address):
        return []
    kind = ExternalReferenceType.VCS if origin.commit else ExternalReferenceType.DISTRIBUTION
    hashes = [_sha256(origin.sha256)] if origin.sha256 else []
    return [ExternalReference(type=kind, url=XsUri(origin.address), hashes=hashes)]


def _references(links: Mapping[ExternalReferenceType, str]) -> list[ExternalReference]:
    return [ExternalReference(type=kind, url=XsUri(url)) for kind, url in links.items() if url]


def _properties(facts: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"stackyard:{k}", value=shown(v, 2000)) for k, v in facts.items() if v]


def _digests(digest: str) -> list[HashType]:
    known = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
    return [_sha256(known.group(1))] if known else []


def _sha256(content: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=content)


# Licences, hashes, relations


def licences(distribution: Distribution) -> list[License]:
    """Return the licences that a distribution declares: valid SPDX, or else a name."""
    declared = LicenseAcknowledgement.DECLARED
    said = [distribution.expression or distribution.licence]
    text = "\n" in said[0] or len(said[0]) > _LONGEST_NAME
    if not said[0] or text:
        first = next(iter(said[0].strip().splitlines()), "").strip()[:_LONGEST_NAME]
        said = list(distribution.classifiers) or [first]
    found: list[License] = []
    for word in dict.fromkeys(filter(None, said)):
        known = fixup_id(word)
        if known:
            found.append(DisjunctiveLicense(id=known, acknowledgement=declared))
        elif len(said) == 1 and is_expression(word):
            found.append(LicenseExpression(word, acknowledgement=declared))
        else:
            found.append(DisjunctiveLicense(name=word, acknowledgement=declared))
    return found


def licence_expression(contents: Contents, names: Iterable[str]) -> str:
    """Return the licences of some packages as one SPDX expression.

    Empty unless each of them declares a licence that SPDX knows.
    """
    wanted, said = {canonicalize_name(name) for name in names}, set()
    there = [d for d in installed(contents).distributions if d.key in wanted and not d.owner]
    for distribution in there:
        for licence in licences(distribution):
            if isinstance(licence, LicenseExpression):
                simple = " " not in licence.value
                said.add(licence.value if simple else f"({licence.value})")
            elif licence.id:
                said.add(licence.id)
            else:
                return ""
        if not licences(distribution):
            return ""
    return " AND ".join(sorted(said)) if wanted <= {d.key for d in there} else ""


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def _hashes(locks: Iterable[Locked]) -> dict[tuple[str, str], list[str]]:
    """Return the SHA-256 digests (hexadecimal) that locks allow, by name and version."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pin in locks:
        key = (canonicalize_name(pin.name), _version(pin.version))
        found[key] |= {text.removeprefix("sha256:") for text in pin.hashes}
    return {key: sorted(hashes) for key, hashes in found.items()}


def required(distribution: Distribution, there: Installed, architecture: str) -> list[Distribution]:
    """Return the installed distributions that a distribution requires, without its extras.

    Of several with the same name, take the one in the same folder, else all of them.
    """
    environment = _environment(there.python(distribution), architecture)
    found: list[Distribution] = []
    for text in distribution.requires:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        if need.marker and not need.marker.evaluate(environment):
            continue
        name = canonicalize_name(need.name)
        named = [d for d in there.distributions if d.key == name and d != distribution]
        near = [d for d in named if d.folder == distribution.folder]
        found += near or [d for d in named if not d.owner]
    return list(dict.fromkeys(found))


def _environment(python: str, architecture: str) -> dict[str, str]:
    """Return every variable of markers, so that none is taken from this machine."""
    return {
        "implementation_name": "cpython", "implementation_version": f"{python}.0",
        "os_name": "posix", "platform_machine": _MACHINES.get(architecture, architecture),
        "platform_python_implementation": "CPython", "platform_release": "",
        "platform_system": "Linux", "platform_version": "", "python_full_version": f"{python}.0",
        "python_version": python, "sys_platform": "linux", "extra": "",
    }  # fmt: skip
