"""Name users' own code: its location, its revision, and the digest of its content.

Owns the syntax of `--source`, the labels for an image's sources, and the tag of an image built
from them. Pure: `build.source.reading` reads trees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packaging.utils import canonicalize_name

from stackyard.system.errors import UsageError, shown

SOURCES_LABEL = "stackyard.sources"
DESPITE_LABEL = "stackyard.despite"
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.*)", re.DOTALL)
_URL = re.compile(r"(?:git\+)?((?:https?|ssh|git|file)://)(.*)", re.DOTALL)
# user@host:path, as for ssh and git; a plain path has no `@` before its colon.
_SCP = re.compile(r"([A-Za-z0-9._-]+@[A-Za-z0-9._-]+:)([^/@][^@]*|/[^@]*)(?:@(.*))?", re.DOTALL)

_FORMS = {
    "package": r"[A-Za-z0-9][A-Za-z0-9._-]*",
    "commit": r"[0-9a-f]{40}|[0-9a-f]{64}|",
    "digest": r"sha256:[0-9a-f]{64}",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Hold the value of `--source`.

    Attributes:
        package: the distribution that it replaces.
        location: a folder, or the URL of a git repository.
        revision: branch, tag or commit; empty for a folder's present files or a repository's HEAD.
        remote: true if the location is a URL.
    """

    package: str
    location: str
    revision: str
    remote: bool


@dataclass(frozen=True, kw_only=True)
class Source:
    """Describe a tree that an image was, or will be, built from.

    Attributes:
        origin: the repository's URL without credentials; empty where it has none.
        revision: the revision in `--source`.
        commit: full id; empty for a folder that is in no repository.
        dirty: true if tracked files differ from the commit, or untracked files are not ignored.
        digest: sha256 of the content that is built (paths, modes, bytes).
        submodules: `path commit`, `path (not checked out)`, or `path (no submodule: not taken)`.
        version: version for tools that would ask git for it; empty where none does.
        files: number of files.
    """

    package: str
    origin: str
    revision: str
    commit: str
    dirty: bool
    digest: str
    submodules: tuple[str, ...]
    version: str
    files: int

    @property
    def short(self) -> str:
        """Return the part of a tag: the commit (or content's digest), and `-dirty` if it is."""
        plain = self.commit or self.digest.removeprefix("sha256:")
        return plain[:12] + ("-dirty" if self.dirty else "")

    @property
    def says(self) -> str:
        """Return origin, commit and state in one line, for people."""
        where = self.origin or ("a local repository" if self.commit else "a folder without git")
        if not self.commit:
            return f"{where}, content {self.digest[7:19]}"
        return f"{where}, commit {self.commit}" + (
            f" with uncommitted changes (content {self.digest[7:19]})" if self.dirty else ""
        )


def archive_path(package: str) -> str:
    """Return the path of a source in a build's context."""
    return f"sources/{package}.tar.gz"


def split_package(text: str, default: str) -> tuple[str, str]:
    """Split `[PACKAGE=]REST`; `default` is the package where none is named."""
    named = _PACKAGE.fullmatch(text)
    return (named[1], named[2]) if named else (default, text)


def same_package(name: str, known: Iterable[str]) -> str:
    """Return the one of `known` that is the same distribution, as it is written there, or ''."""
    wanted = canonicalize_name(name)
    return next((other for other in known if canonicalize_name(other) == wanted), "")


def parse_asked(text: str, default: str, known: Iterable[str], there: Collection[str]) -> Asked:
    """Parse `[PACKAGE=]PATH_OR_GIT[@REV]`.

    Args:
        default: the package where none is named.
        known: packages of the stack that can be built from source.
        there: the beginnings of the text (see `beginnings`) that are existing folders.

    Raises:
        UsageError: the text does not have this form, or names an unknown package.
    """
    package, location = (default, text) if text in there else split_package(text, default)
    names = list(known)
    found = same_package(package, names)
    if not found:
        raise UsageError(
            f"--source: {shown(package)} is not built from source in this stack",
            why=f"it could be: {', '.join(sorted(names))}",
            hint="--source PACKAGE=PATH_OR_GIT[@REV]; another package needs"
            " images/wheels/PACKAGE.yml, and then invoke lock",
        )
    place, revision, remote = _split(location, there)
    if place.startswith("-") or revision.startswith("-") or not place:
        raise UsageError(f"--source: {shown(location)!r} is no path and no address",
                         hint="--source [PACKAGE=]PATH_OR_GIT[@REV]")  # fmt: skip
    return Asked(package=found, location=place, revision=revision, remote=remote)


def beginnings(text: str) -> list[str]:
    """Return every part of `--source`'s text that may be a folder: whole, or up to an `@`."""
    named = _PACKAGE.fullmatch(text)
    found = [text]
    for whole in (text, *((named[2],) if named else ())):
        found += [whole, *(whole[: match.start()] for match in re.finditer("@", whole))]
    return list(dict.fromkeys(part for part in found if part))


def _split(location: str, there: Collection[str]) -> tuple[str, str, bool]:
    """Return location and revision, and true if the location is a URL."""
    url = _URL.fullmatch(location)
    if url:
        host, slash, path = url[2].partition("/")
        path, _, revision = path.partition("@")
        userinfo = host.rpartition("@")[0]
        if ":" in userinfo or (userinfo and url[1].startswith("http")):
            raise UsageError(
                "--source: the address holds a password or token",
                why="every user of this machine can see a command's arguments",
                hint="leave it out; git asks its credential helper, or take an ssh address",
            )
        return f"{url[1]}{host}{slash}{path}", revision, True
    if location in there:
        return location, "", False
    for match in re.finditer("@", location):
        if location[: match.start()] in there:
            return location[: match.start()], location[match.end() :], False
    scp = _SCP.fullmatch(location)
    if scp:
        return f"{scp[1]}{scp[2]}", scp[3] or "", True
    return location, "", False


def clean_address(address: str) -> str:
    """Return a repository's URL without credentials; empty for a local path."""
    url = _URL.fullmatch(address.strip())
    if url:
        host, slash, path = url[2].partition("/")
        if url[1] == "file://":
            return ""
        user, _, place = host.rpartition("@")
        keep = user if url[1] == "ssh://" and ":" not in user else ""
        clean = f"{url[1]}{f'{keep}@' if keep else ''}{place}{slash}{path}"
        return re.split("[?#]", clean)[0]  # some hosts take a token in the query
    return address.strip() if _SCP.fullmatch(address.strip()) else ""


def sources_text(sources: Iterable[Source]) -> str:
    """Return sources as the text of an image's label."""
    return json.dumps([asdict(source) for source in sources], sort_keys=True)


def sources_of(labels: Mapping[str, str]) -> tuple[Source, ...]:
    """Return the sources that an image was built from; none for a stack's own image.

    Raises:
        UsageError: its label is not one that this version writes.
    """
    try:
        found = json.loads(labels.get(SOURCES_LABEL) or "[]")
        return tuple(_checked(**{**s, "submodules": tuple(s["submodules"])}) for s in found)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the label {SOURCES_LABEL} cannot be read", why=str(error)) from error


def _checked(**given: Any) -> Source:
    """Check a source from a label: anyone may have written it, and paths are made from it."""
    kinds = {"files": int, "dirty": bool, "submodules": tuple}
    wrong = [name for name, value in given.items() if type(value) is not kinds.get(name, str)]
    wrong += [name for name, form in _FORMS.items() if not re.fullmatch(form, str(given[name]))]
    wrong += ["submodules"] * any(type(text) is not str for text in given["submodules"])
    if wrong:
        raise ValueError(f"{wrong[0]} is {shown(repr(given[wrong[0]]))}")
    return Source(**given)


def despite_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fixes that an image was built without, from its label."""
    return tuple(name for name in labels.get(DESPITE_LABEL, "").split(",") if name)


def require_labels(labels: Mapping[str, str], reference: str, stack: str, base: str) -> None:
    """Require an image whose labels name a stack and a base.

    Raises:
        UsageError: it has no such labels, or other ones.
    """
    found = labels.get("stackyard.stack", ""), labels.get("stackyard.base", "")
    if not all(found):
        raise UsageError(f"--image: {shown(reference)} was not built by stackyard",
                         why="it has no labels stackyard.stack and stackyard.base",
                         hint="invoke build STACK --source ... makes such an image")  # fmt: skip
    if stack not in ("all", "", found[0]) or base not in ("", found[1]):
        wanted = f"{stack} on {base}" if base else stack
        raise UsageError(
            f"--image: {shown(reference)} is {found[0]} on {found[1]}, not {wanted}",
            hint=f"name the stack {found[0]} and --base {found[1]}, or another image",
        )
