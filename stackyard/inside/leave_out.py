"""Remove files that nothing reads from the distributions that this build step installed.

Owns which files go: those that a new distribution's RECORD lists below the root and a pattern
names. Runs in image builds: standard library only. It must not touch a file of a distribution that
was there before, a distribution's own metadata (licences), or anything outside the root.

    python3 leave_out.py --before INVENTORY [--root SITE_PACKAGES] [--keep PATTERN]... PATTERN...

INVENTORY lists what was installed before, one NAME==VERSION a line. A pattern is a path below the
root; `*` and `?` stand for characters of one name, `**` for any number of folders; a folder stands
for everything below it. RECORD loses the removed files too. Nothing changes when a file that stays
imports one that would go.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import posixpath
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path


class StillImported(Exception):
    """Report modules that stay and import one that would go, one line for each."""


@dataclass(frozen=True)
class Distribution:
    """Hold a distribution's RECORD: its lines by path, in their order."""

    record: Path
    lines: dict[str, str]


def compile_patterns(patterns: Sequence[str]) -> re.Pattern[str]:
    """Compile patterns into one expression that matches the paths they name and all paths below."""
    return re.compile("|".join(map(_expression, patterns)) or r"(?!)", re.DOTALL)


def _expression(pattern: str) -> str:
    parts = []
    for name in pattern.split("/"):
        if name == "**":
            parts.append("(?:[^/]+/)*")
            continue
        word = re.escape(name).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append(f"{word}/")
    return f"(?:{''.join(parts)[:-1]}(?:/.*)?)"


def distributions(root: Path, before: set[str]) -> tuple[list[Distribution], set[str]]:
    """Return the new distributions, and the files of those that were there before."""
    new: list[Distribution] = []
    old: set[str] = set()
    for info in sorted(root.glob("*.dist-info")):
        record = info / "RECORD"
        if not record.is_file():
            continue
        text = record.read_bytes().decode("utf-8")
        lines = {
            next(csv.reader([line]))[0]: line for line in text.splitlines(True) if line.strip()
        }
        metadata = PathDistribution(info)
        if f"{metadata.metadata['Name']}=={metadata.version}" in before:
            old |= lines.keys()
        else:
            new.append(Distribution(record=record, lines=lines))
    return new, old


def is_own_file(root: Path, name: str) -> bool:
    """Return whether a recorded path is a file (or a link) below the root under that very name."""
    plain = name == posixpath.normpath(name) and not name.startswith(("/", "../"))
    path = root / name
    if not plain or not os.path.lexists(path) or (path.is_dir() and not path.is_symlink()):
        return False
    return path.parent.resolve() == root.resolve() / posixpath.dirname(name)


def leave_out(
    root: Path, before: set[str], patterns: Sequence[str], keep: Sequence[str]
) -> tuple[int, int]:
    """Remove the files that the patterns name; return how many, and their bytes.

    Raises:
        StillImported: a module that stays imports one that would go; nothing was removed.
    """
    goes, stays = compile_patterns(patterns), compile_patterns(keep)
    new, old = distributions(root, before)
    named = {
        name for one in new for name in one.lines
        if goes.fullmatch(name) and not stays.fullmatch(name) and name not in old
        and not name.partition("/")[0].endswith(".dist-info") and is_own_file(root, name)
    }  # fmt: skip
    wrong = list(_broken_imports(root, {n for one in new for n in one.lines} - named, named))
    if wrong:
        raise StillImported("\n".join(wrong))
    size = sum((root / name).lstat().st_size for name in named)
    for name in named:
        (root / name).unlink()
    for one in new:
        if named & one.lines.keys():
            _rewrite(one.record, "".join(v for k, v in one.lines.items() if k not in named))
    _remove_empty(root, {posixpath.dirname(name) for name in named})
    return len(named), size


def _rewrite(record: Path, text: str) -> None:
    temporary = record.with_name("RECORD.new")
    temporary.write_bytes(text.encode("utf-8"))
    temporary.chmod(record.stat().st_mode)
    os.replace(temporary, record)


def _remove_empty(root: Path, folders: set[str]) -> None:
    """Remove folders that are empty now, and their parents that become empty."""
    wanted = {up for folder in folders for up in _upwards(folder)}
    for folder in sorted(wanted, key=len, reverse=True):
        if not any((root / folder).iterdir()):
            (root / folder).rmdir()


def _upwards(folder: str) -> Iterator[str]:
    """Yield a folder and its parents, without the root."""
    while folder not in ("", "/"):
        yield folder
        folder = posixpath.dirname(folder)


def _broken_imports(root: Path, stay: set[str], go: set[str]) -> Iterator[str]:
    """Yield a message for each import of a module that goes, in a file that stays."""
    modules = {name[: -len(".py")].removesuffix("/__init__") for name in go if name.endswith(".py")}
    folders = {up for name in go for up in _upwards(posixpath.dirname(name))}
    gone = modules | (folders - {up for n in stay for up in _upwards(posixpath.dirname(n))})
    words = {posixpath.basename(path) for path in gone if posixpath.dirname(path) not in gone}
    if not words:
        return
    # Parsing is far slower than searching: parse only files where an import has such a word.
    word = "|".join(map(re.escape, sorted(words)))
    likely = re.compile(
        rf"^[ \t]*(?:from|import)\b[^\n]*?(?:\([^)]*?)?\b(?:{word})\b".encode(), re.M
    )
    for name in sorted(stay):
        if name.endswith(".py") and is_own_file(root, name):
            data = (root / name).read_bytes()
            if likely.search(data):
                found = sorted(gone & set(_imported(name, data)))
                yield from (f"{name} imports {path}, which would be left out" for path in found)


def _imported(name: str, data: bytes) -> Iterator[str]:
    """Yield the modules that a file imports as paths without an ending; none if not Python."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    package = name.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = "/".join([*above, *(node.module or "").split(".")]).strip("/")
            yield from (base, *(f"{base}/{alias.name}".strip("/") for alias in node.names))


def main(argv: Sequence[str]) -> int:
    """Run the command line; return 0 when the files are gone, else 1 after one line a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--keep", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--root", type=Path, default=Path(sysconfig.get_path("purelib")))
    options = parser.parse_args(argv)
    before = set(options.before.read_text(encoding="utf-8").splitlines())
    try:
        files, size = leave_out(options.root, before, options.patterns, options.keep)
    except StillImported as error:
        print(error, file=sys.stderr)
        print("Name it under `except` of `left_out` in images/common.yml.", file=sys.stderr)
        return 1
    print(f"left out: {files} files, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
