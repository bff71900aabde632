"""Read what is installed in an image: its system, Debian packages and Python distributions.

Owns reading their metadata (os-release, dpkg's status and lists, dist-info and egg-info) from an
image's contents, and finding each file's owner. It must not judge sizes or write documents.

Over 300 lines: one reader for each kind of package.
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import SplitResult, urlsplit, urlunsplit

from packaging.direct_url import DirectUrl, DirectUrlValidationError
from packaging.metadata import RawMetadata, parse_email
from packaging.utils import canonicalize_name

from stackyard.scan.contents import Contents

_METADATA = re.compile(
    r"(?P<info>(?P<stem>.*)\.(?:dist|egg)-info)(?:/(?:METADATA|PKG-INFO|RECORD))?"
)
_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages")
_BYTECODE = re.compile(r"(?P<folder>.*/)__pycache__/(?P<module>[^/]+?)\.[^./]+(?:\.opt-\d)?\.pyc")
_VERSIONED = re.compile(r"(?:.*/)?python(3\.\d+)/.*")
# Well-known labels of a project's source, without punctuation.
_SOURCE = ("source", "repository", "sourcecode", "github")
_PYTHON = re.compile(r"(?:.*/)?bin/python(3\.\d+)")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Hold the source of a distribution that is not from an index (PEP 610).

    kind: wheel, folder, or the version control's name. address: a URL without a user's name, or
    the name alone of a file or folder of the machine that built. commit, sha256: may be empty.
    """

    kind: str
    address: str
    commit: str = ""
    sha256: str = ""
    editable: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)  # a key of many tables: hashed by identity
class Distribution:
    """Describe one Python distribution.

    info: the path of its dist-info (or egg-info). owner: the `info` of the distribution that
    vendors this one; empty for those installed by themselves. record: paths of its files.
    expression, licence: License-Expression and License. classifiers: its licence classifiers.
    """

    name: str
    version: str
    info: str
    layer: int
    expression: str = ""
    licence: str = ""
    classifiers: tuple[str, ...] = ()
    home: str = ""
    source: str = ""
    requires: tuple[str, ...] = ()
    installer: str = ""
    origin: Origin | None = None
    record: tuple[str, ...] = ()
    owner: str = ""

    @property
    def folder(self) -> str:
        """Return the folder that it is imported from."""
        return posixpath.dirname(self.info)

    @property
    def key(self) -> str:
        """Return its canonical name, as indexes compare names."""
        return canonicalize_name(self.name)


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """Describe one package that dpkg installed; `source` is the package it was built from."""

    name: str
    version: str
    architecture: str
    source: str = ""
    home: str = ""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Hold os-release's fields, and packages and distributions, sorted by name."""

    contents: Contents
    system: Mapping[str, str]
    packages: tuple[DebianPackage, ...]
    distributions: tuple[Distribution, ...]

    @cached_property
    def owners(self) -> Mapping[str, Distribution | DebianPackage]:
        """Return the package or the distribution that owns each file, by the file's real path.

        Bytecode that no package lists belongs to its source's owner.
        """
        found: dict[str, Distribution | DebianPackage] = {}
        for package in self.packages:
            for path in _listed(self.contents, package):
                found[path] = package
        for distribution in self.distributions:
            if not distribution.owner:
                found |= dict.fromkeys(distribution.record, distribution)
        for path in self.contents.files:
            whose = found.get(source_of(path)) if path.endswith(".pyc") else None
            if whose is not None:
                found.setdefault(path, whose)
        return found

    def python(self, distribution: Distribution) -> str:
        """Return the Python version (3.x) a distribution is installed for; 3 if unknown."""
        versioned = _VERSIONED.fullmatch(distribution.info)
        if versioned:
            return versioned.group(1)
        programs = (_PYTHON.fullmatch(path) for path in self.contents.files)
        minors = [int(match.group(1).partition(".")[2]) for match in programs if match]
        return f"3.{max(minors)}" if minors else "3"


def installed(contents: Contents) -> Installed:
    """Read the metadata of everything that is installed."""
    return Installed(
        contents=contents,
        system=os_release(contents),
        packages=tuple(
            sorted(set(_packages(contents)), key=lambda p: (p.name, p.architecture, p.version))
        ),
        distributions=_distributions(contents),
    )


def source_of(path: str) -> str:
    """Return the path of the source of bytecode, in a `__pycache__` or beside the source."""
    cached = _BYTECODE.fullmatch(path)
    return f"{cached['folder']}{cached['module']}.py" if cached else path.removesuffix("c")


def os_release(contents: Contents) -> dict[str, str]:
    """Return the fields of os-release; empty where there is none."""
    text = contents.text("etc/os-release") or contents.text("usr/lib/os-release") or ""
    fields = {}
    for line in text.splitlines():
        key, sign, value = line.strip().partition("=")
        if sign and not key.startswith("#"):
            try:
                fields[key] = "".join(shlex.split(value))
            except ValueError:
                fields[key] = value.strip("'\"")
    return fields


# Debian packages


def _packages(contents: Contents) -> Iterator[DebianPackage]:
    for path, text in contents.texts.items():
        if path != "var/lib/dpkg/status" and not path.startswith("var/lib/dpkg/status.d/"):
            continue
        for stanza in re.split(r"\n[ \t]*\n", text):
            fields = dict(_fields(stanza))
            name, version = fields.get("package"), fields.get("version")
            # Distroless images write no Status: every package with a file there is installed.
            if name and version and fields.get("status", "installed").split()[-1:] == ["installed"]:
                yield DebianPackage(
                    name=name,
                    version=version,
                    architecture=fields.get("architecture", ""),
                    source=fields.get("source", ""),
                    home=public_url(fields.get("homepage", "")),
                )


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    for line in stanza.splitlines():
        key, colon, value = line.partition(":")
        if colon and key and not key[0].isspace():
            yield key.lower(), value.strip()


def _listed(contents: Contents, package: DebianPackage) -> Iterator[str]:
    """Yield the real paths of a package's files."""
    names = (package.name, f"{package.name}:{package.architecture}")
    for name in names:
        for line in contents.texts.get(f"var/lib/dpkg/info/{name}.list", "").splitlines():
            folder, _, file = line.strip("/").rpartition("/")
            path = posixpath.join(contents.real(folder), file)
            held = contents.files.get(path)
            if held is not None and held.entry.kind != "directory":
                yield path


# Python distributions


def _distributions(contents: Contents) -> tuple[Distribution, ...]:
    infos: dict[str, list[str]] = {}
    for path in contents.texts:
        match = _METADATA.fullmatch(path)
        if match:
            infos.setdefault(match["info"], []).append(path)
    found = [_distribution(contents, info, paths) for info, paths in infos.items()]
    outer = [d for d in found if _SITE.fullmatch(d.folder)]
    owners = {path: d.info for d in outer for path in d.record}
    # Outside of site-packages, a dist-info is a vendored copy or was installed with --target; an
    # egg-info is what a build left beside its sources.
    inner = [
        replace(d, owner=next((owners[p] for p in infos[d.info] if p in owners), ""))
        for d in found
        if not _SITE.fullmatch(d.folder)
    ]
    inner = [d for d in inner if d.owner or d.info.endswith(".dist-info")]
    return tuple(sorted(outer + inner, key=lambda d: (d.key, d.version, d.info)))


def _distribution(contents: Contents, info: str, paths: list[str]) -> Distribution:
    head = next((p for p in paths if not p.endswith("/RECORD")), "")
    # Fields that are not as the standard says are left out, as pip leaves them out.
    fields, _ = parse_email(contents.texts.get(head, ""))
    name, _, version = posixpath.basename(info).rpartition(".")[0].partition("-")
    links = dict(_links(fields))
    return Distribution(
        name=_said(fields.get("name")) or name or posixpath.basename(info),
        version=_said(fields.get("version")) or version.partition("-")[0],
        info=info,
        layer=contents.files[paths[0]].layer,
        expression=_said(fields.get("license_expression")),
        licence=_said(fields.get("license")),
        classifiers=tuple(
            text.rpartition("::")[2].strip()
            for text in fields.get("classifiers", [])
            if text.startswith("License ::") and text != "License :: OSI Approved"
        ),
        home=public_url(_said(fields.get("home_page"))) or links.get("homepage", ""),
        source=next((links[label] for label in _SOURCE if label in links), ""),
        requires=tuple(" ".join(text.split()) for text in fields.get("requires_dist", [])),
        installer=contents.texts.get(f"{info}/INSTALLER", "").strip(),
        origin=_origin(contents.texts.get(f"{info}/direct_url.json", "")),
        record=tuple(_record(contents, info)),
    )


def _said(value: str | None) -> str:
    text = (value or "").strip()
    return "" if text.upper() == "UNKNOWN" else text


def _links(fields: RawMetadata) -> Iterator[tuple[str, str]]:
    """Yield public addresses by label, each label as the standard compares them (PEP 753)."""
    for label, address in fields.get("project_urls", {}).items():
        url = public_url(address.strip())
        if url:
            yield re.sub(r"[\s!-/:-@\[-`{-~]", "", label).lower(), url


def _record(contents: Contents, info: str) -> Iterator[str]:
    """Yield the paths in a distribution's RECORD that exist."""
    folder = posixpath.dirname(info)
    text = contents.texts.get(f"{info}/RECORD", "")
    try:
        for row in csv.reader(text.splitlines()):
            path = posixpath.normpath(posixpath.join("/", folder, row[0]))[1:] if row else ""
            if path in contents.files:
                yield path
    except csv.Error:
        return


def _origin(text: str) -> Origin | None:
    try:
        found = DirectUrl.from_dict(json.loads(text))
        url = urlsplit(found.url)
    except (ValueError, TypeError, AttributeError, DirectUrlValidationError):
        return None
    address = _address(url)
    if found.vcs_info:
        return Origin(kind=found.vcs_info.vcs, address=address, commit=found.vcs_info.commit_id)
    if found.dir_info:
        return Origin(kind="folder", address=address, editable=bool(found.dir_info.editable))
    digest = (found.archive_info.hashes or {}).get("sha256", "") if found.archive_info else ""
    return Origin(kind="wheel" if url.path.endswith(".whl") else "file", address=address,
                  sha256=digest if re.fullmatch(r"[0-9a-f]{64}", digest) else "")  # fmt: skip


def _address(url: SplitResult) -> str:
    """Return a URL without user, query and fragment; of a local one, the last name alone."""
    if url.scheme == "file" or not url.netloc:
        return posixpath.basename(url.path.rstrip("/"))
    host = url.netloc.rpartition("@")[2]
    return urlunsplit((url.scheme, host, url.path, "", ""))


def public_url(text: str) -> str:
    """Return a web address without user, query and fragment; empty for anything else."""
    try:
        url = urlsplit(text)
    except ValueError:
        return ""
    odd = re.search(r"[\s<>\"{}|\\^`\[\]]", text)
    return _address(url) if url.scheme in ("http", "https") and url.netloc and not odd else ""
