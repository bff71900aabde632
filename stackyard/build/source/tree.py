"""Hash, pack and inspect a source tree.

Owns the content address of a tree, and reading a project's name, requirements and source of its
version without running any of its code. Pure: `build.source.reading` reads the files.
"""

from __future__ import annotations

import ast
import configparser
import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from stackyard.system.toml import parse_toml

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_SCM = re.compile(r"setuptools[-_]scm|hatch-vcs|versioningit|\bpbr\b|poetry-dynamic-versioning")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Hold one file of a tree; `link` is the target of a symbolic link, else empty."""

    data: bytes = b""
    executable: bool = False
    link: str = ""


Tree = Mapping[str, Entry]


def digest(tree: Tree) -> str:
    """Return the content address of a tree: a hash of paths, modes, links and bytes."""
    found = hashlib.sha256()
    for path, entry in sorted(tree.items()):
        kind = "l" if entry.link else "x" if entry.executable else "f"
        inner = hashlib.sha256(entry.link.encode() if entry.link else entry.data).hexdigest()
        found.update(f"{kind} {inner} {path}\0".encode("utf-8", "surrogateescape"))
    return f"sha256:{found.hexdigest()}"


def pack(tree: Tree) -> bytes:
    """Pack a tree like an sdist, below one folder; the same tree gives the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, entry in sorted(tree.items()):
            info = tarfile.TarInfo(f"source/{path}")
            info.mode = 0o755 if entry.executable else 0o644
            # 1980: a wheel is a zip file, which cannot hold an earlier time.
            info.mtime = 315_532_800
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            info.size = 0 if entry.link else len(entry.data)
            archive.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


def leads_out(path: str, link: str) -> bool:
    """Say if a symbolic link at `path` leads out of its tree."""
    if link.startswith("/"):
        return True
    depth = len(PurePosixPath(path).parent.parts)
    for part in PurePosixPath(link).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def is_project(tree: Tree) -> bool:
    """Say if a tree has the files of a Python project that pip can build."""
    return "pyproject.toml" in tree or "setup.py" in tree


def asks_git(tree: Tree) -> bool:
    """Say if a tree's build asks git for the version; a build has no git repository."""
    return any(_SCM.search(text(tree, name)) for name in PROJECT_FILES)


def project_name(tree: Tree) -> str:
    """Return the distribution's name, if a file declares it statically; else empty."""
    named = _project(tree).get("name")
    if isinstance(named, str):
        return named
    config = _config(tree)
    if config.get("metadata", "name", fallback=""):
        return config.get("metadata", "name")
    name = _setup_argument(tree, "name")
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def requirements(tree: Tree) -> tuple[str, ...]:
    """Return the requirements that a file declares statically; a build finds the others."""
    needs = _project(tree).get("dependencies")
    if isinstance(needs, list):
        return tuple(need for need in needs if isinstance(need, str))
    listed = _config(tree).get("options", "install_requires", fallback="")
    if listed:
        return tuple(line.strip() for line in listed.splitlines() if line.strip())
    given = _setup_argument(tree, "install_requires")
    return _strings(given) if given is not None else ()


def text(tree: Tree, path: str) -> str:
    """Return a file as text; empty where there is none."""
    entry = tree.get(path)
    return entry.data.decode("utf-8", errors="replace") if entry else ""


def _project(tree: Tree) -> Mapping[str, Any]:
    """Return pyproject.toml's table `project`; empty where the file is not TOML."""
    try:
        found = parse_toml(text(tree, "pyproject.toml")).get("project")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(node, (ast.List, ast.Tuple)):
        return ()
    return tuple(
        item.value for item in node.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )  # fmt: skip


def _config(tree: Tree) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read_string(text(tree, "setup.cfg"))
    except configparser.Error:
        return configparser.ConfigParser()
    return config


def _setup_argument(tree: Tree, name: str) -> ast.expr | None:
    """Return the keyword argument of that name in setup.py's call of setup()."""
    try:
        parsed = ast.parse(text(tree, "setup.py"))
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(parsed):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called != "setup" and getattr(node.func, "id", "") != "setup":
            continue
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
    return None
