"""Report the size of an image, and which part of it is waste.

Owns the size report: by layer, by package, and by kind of waste. It must not read layers
(`scan.contents` does) nor decide what a build removes.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackyard.scan.contents import Contents
from stackyard.scan.installed import Distribution, Installed, installed, source_of
from stackyard.system.errors import shown

SHOWN_PACKAGES, SHOWN_EXAMPLES = 20, 5
DUPLICATE_BYTES = 64 * 2**10
_CREATED = 120

_TESTS = re.compile(r"(.*/(?:(?:site|dist)-packages|python3\.\d+)/(?:.*/)?tests?)/.*")
_CACHE = re.compile(
    r"(var/cache|var/lib/apt/lists|tmp|var/tmp|(?:root|home/[^/]+)/\.(?:cache|npm|cargo)"
    r"|(?:.*/)?conda/pkgs|(?:.*/)?__pypackages__/\.cache)/.*"
)
_DOCUMENTS = re.compile(
    r"(usr/(?:local/)?share/(?:locale|doc|man|info|gtk-doc|help)/[^/]+)(?:/.*)?"
)
_STATIC = re.compile(r".*\.a")
_HEADER = re.compile(r"(?:(.*?/include)/)?.*\.(?:h|hh|hpp|hxx|h\+\+|cuh|inl)")

# The meaning of each kind of waste, for the terminal.
KINDS = {
    "hidden": "deleted or replaced by a later layer, but still in the image",
    "duplicates": "the same content again (64 KiB and more)",
    "tests": "tests of packages",
    "caches": "caches and temporary files",
    "static_libraries": "static libraries (*.a)",
    "headers": "C and C++ headers",
    "bytecode": "bytecode that Python will not use: without source, or older than it",
    "documents": "documentation, manuals, translations",
}


@dataclass(frozen=True, kw_only=True)
class LayerSize:
    """Hold a layer's digest, compressed size in bytes, and history entry."""

    digest: str
    compressed: int
    created_by: str = ""


@dataclass(frozen=True, kw_only=True)
class _Waste:
    """Hold one wasted file: its layer, the group it is counted in, its size in bytes."""

    layer: int
    path: str
    group: str
    bytes: int


def size_report(
    contents: Contents, layers: Sequence[LayerSize], base_layers: int
) -> dict[str, Any]:
    """Return all sizes in bytes, ready for JSON; the lowest `base_layers` layers are the base's.

    Kinds of waste overlap; `waste.any` counts each file once. Raises ValueError when `layers` are
    not as many as the contents have.
    """
    there = installed(contents)
    held = [
        {
            "digest": layer.digest, "created_by": shorten(layer.created_by),
            "base": n < base_layers,
            "files": sum(e.kind != "directory" for e in found.files.values()),
            "compressed": layer.compressed, "unpacked": found.size,
        }
        for n, (layer, found) in enumerate(zip(layers, contents.layers, strict=True))
    ]  # fmt: skip
    kinds = {kind: list(found) for kind, found in _kinds(contents).items()}
    once = {(w.layer, w.path): w.bytes for found in kinds.values() for w in found}
    return {
        "layers": held,
        "image": _total(held),
        "over_base": _total([layer for layer in held if not layer["base"]]),
        "visible": sum(file.bytes for file in contents.files.values()),
        "packages": _packages(there),
        "waste": {
            "any": {"bytes": sum(once.values()), "files": len(once)},
            **{kind: _summary(found) for kind, found in kinds.items()},
        },
    }


def shorten(created_by: str) -> str:
    """Return a history entry as one line: the command without the shell around it."""
    text = re.sub(r"\s+", " ", created_by).strip()
    text = re.sub(r"^(RUN )?(\|\d+ .*?)?/bin/(ba)?sh (-\S+ (pipefail )?)*", r"\1", text)
    return shown(text.removesuffix(" # buildkit").removeprefix("#(nop) ").strip(), _CREATED)


def _total(layers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found = list(layers)
    return {key: sum(layer[key] for layer in found) for key in ("compressed", "unpacked", "files")}


def _packages(there: Installed) -> dict[str, Any]:
    """Return the size of each kind of package, the largest packages, and what none owns."""
    weights: dict[Any, list[int]] = defaultdict(list)
    for path, file in there.contents.files.items():
        if file.entry.kind != "directory":
            weights[there.owners.get(path)].append(file.bytes)
    nobody = weights.pop(None, [])
    python = {w: sizes for w, sizes in weights.items() if isinstance(w, Distribution)}
    debian = {w: sizes for w, sizes in weights.items() if w not in python}
    return {
        "python": _largest_packages(python),
        "debian": _largest_packages(debian),
        "unowned": {"bytes": sum(nobody), "files": len(nobody)},
    }


def _largest_packages(weights: Mapping[Any, list[int]]) -> dict[str, Any]:
    rows = [
        {"name": who.name, "version": who.version, "bytes": sum(sizes), "files": len(sizes)}
        for who, sizes in weights.items()
    ]
    rows.sort(key=lambda row: (-row["bytes"], row["name"], row["version"]))
    total = sum(row["bytes"] for row in rows)
    return {"bytes": total, "packages": len(rows), "largest": rows[:SHOWN_PACKAGES]}


# Waste


def _kinds(contents: Contents) -> dict[str, Iterable[_Waste]]:
    return {
        "hidden": _hidden(contents),
        "duplicates": _duplicates(contents),
        "tests": _named(contents, _TESTS),
        "caches": _named(contents, _CACHE),
        "static_libraries": _named(contents, _STATIC),
        "headers": _named(contents, _HEADER),
        "bytecode": _bytecode(contents),
        "documents": _named(contents, _DOCUMENTS),
    }


def _hidden(contents: Contents) -> Iterator[_Waste]:
    """Yield the files of layers that no container sees."""
    live = {(file.layer, file.origin) for file in contents.files.values()}
    for number, layer in enumerate(contents.layers):
        for path, entry in layer.files.items():
            if entry.kind == "file" and (number, path) not in live:
                yield _Waste(layer=number, path=path, group=path, bytes=entry.size)


def _duplicates(contents: Contents) -> Iterator[_Waste]:
    """Yield all copies but the first, each grouped under the first one's path."""
    first: dict[str, str] = {}
    for path, file in contents.files.items():
        if file.bytes >= DUPLICATE_BYTES:
            kept = first.setdefault(file.entry.sha256, path)
            if kept != path:
                yield _Waste(layer=file.layer, path=path, group=kept, bytes=file.bytes)


def _named(contents: Contents, pattern: re.Pattern[str]) -> Iterator[_Waste]:
    """Yield the files that match, grouped by the pattern's folder, or else by path."""
    for path, file in contents.files.items():
        match = pattern.fullmatch(path) if file.bytes else None
        if match:
            group = (match.group(1) if match.groups() else "") or path
            yield _Waste(layer=file.layer, path=path, group=group, bytes=file.bytes)


def _bytecode(contents: Contents) -> Iterator[_Waste]:
    for path, file in contents.files.items():
        if path.endswith(".pyc") and file.bytes and _unused(contents, path):
            group = posixpath.dirname(path)
            yield _Waste(layer=file.layer, path=path, group=group, bytes=file.bytes)


def _unused(contents: Contents, path: str) -> bool:
    """Say if Python ignores bytecode: it has no source, or the source has changed."""
    source = contents.files.get(source_of(path))
    cached = posixpath.basename(posixpath.dirname(path)) == "__pycache__"
    if source is None:
        return cached  # in the source's folder, Python imports bytecode without a source
    made_of = contents.files[path].entry.source
    now = (source.entry.mtime & 0xFFFFFFFF, source.entry.size & 0xFFFFFFFF)
    return not cached or (made_of is not None and made_of != now)


def _summary(found: Sequence[_Waste]) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for waste in found:
        sizes[waste.group] += waste.bytes
    times = Counter(waste.group for waste in found)
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_EXAMPLES]
    return {
        "bytes": sum(sizes.values()),
        "files": len(found),
        "largest": [
            {"path": shown("/" + path, 400), "bytes": size, "files": times[path]}
            for path, size in largest
        ],
    }


# For a terminal


def size_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report as a plain table, at most 100 columns wide."""
    lines = [f"{'compressed':>12}  {'unpacked':>12}  {'files':>7}  layer"]
    lines += [
        _layer_line(layer, ("base: " if layer["base"] else "") + layer["created_by"])
        for layer in report["layers"]
    ]
    lines += [
        _layer_line(report["image"], "all"),
        _layer_line(report["over_base"], "over the base"),
    ]
    for title, kind in (("Python distributions", "python"), ("Debian packages", "debian")):
        found = report["packages"][kind]
        lines += ["", f"{_mb(found['bytes'])}  {title} ({found['packages']})"]
        lines += [
            f"{_mb(row['bytes'])}  {row['files']:>7}  {row['name']} {row['version']}"
            for row in found["largest"]
        ]
    nobody, any_ = report["packages"]["unowned"], report["waste"]["any"]
    lines += ["", f"{_mb(nobody['bytes'])}  {nobody['files']:>7}  of no package"]
    lines += [
        "",
        f"{_mb(any_['bytes'])}  {any_['files']:>7}  could be left out; by kind (overlapping)",
    ]
    for kind, meaning in KINDS.items():
        found = report["waste"][kind]
        lines.append(f"{_mb(found['bytes'])}  {found['files']:>7}  {meaning}")
        lines += [
            f"{_mb(row['bytes'])}  {row['files']:>7}      {_cut(row['path'])}"
            for row in found["largest"]
        ]
    return [line[:100].rstrip() for line in lines]


def _layer_line(layer: Mapping[str, Any], words: str) -> str:
    sizes = f"{_mb(layer['compressed'])}  {_mb(layer['unpacked'])}"
    return f"{sizes}  {layer['files']:>7}  {words}"


def _cut(path: str) -> str:
    """Shorten a path to 70 columns; its end says more than its beginning."""
    return path if len(path) <= 70 else f"...{path[-67:]}"


def _mb(size: int) -> str:
    """Format bytes as MB (10^6 bytes), or as kB below 100 kB, in 12 columns."""
    return f"{size / 1e6:>9,.1f} MB" if size >= 100_000 else f"{size / 1e3:>9,.1f} kB"
