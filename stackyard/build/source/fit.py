"""Check that users' own code fits an image: its requirements the lock, and the fixes its text.

Owns the checks before a build, which itself decides, and the errors for a build's refusals. Pure:
trees, images and a program's output are arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stackyard.build import dockerfile
from stackyard.build.catalog import ResolvedImage, Setting
from stackyard.build.source import tree as source_tree
from stackyard.build.source.naming import Source, same_package
from stackyard.build.source.tree import Tree
from stackyard.definitions import lock
from stackyard.definitions.spec import Fix
from stackyard.system.errors import UsageError

# Folders of a project's tree that may hold its packages (in an image: site-packages).
ROOTS = ("", "src/", "python/", "lib/")
_APPLIED, _THERE = "applied", "already fixed upstream"


def require_met(source: Source, tree: Tree, image: ResolvedImage) -> None:
    """Check that the image holds the requirements that a tree declares statically.

    Raises:
        UsageError: it does not; names every unmet requirement.
    """
    held = {**image.provided, **image.packages}
    less = dockerfile.replaced_requirements(image.fixes)
    wrong = [
        said
        for text in source_tree.requirements(tree)
        if (said := _unmet(text, held, image.base.python, less))
    ]
    if wrong:
        raise unmet(source.package, wrong, image)


def unmet(package: str, wrong: Sequence[str], image: ResolvedImage) -> UsageError:
    """Return the error for requirements that the lock does not hold."""
    stack, base = image.stack.name, image.base.name
    return UsageError(
        f"{package}: your tree requires what {lock.lock_path(stack, base)} does not hold",
        why="\n".join(wrong),
        hint=f"add it to `packages` in images/{stack}/stack.yml (with its version), then: invoke"
        f" lock {stack} --base {base}; or relax the requirement in your tree",
    )


def _unmet(text: str, held: Mapping[str, Setting], python: str, less: Iterable[str]) -> str:
    """Return why a requirement is not met; empty if it is, or if only a build can find out."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return ""
    name = canonicalize_name(wanted.name)
    marks = {"python_version": python, "python_full_version": f"{python}.0", "extra": "",
             "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # fmt: skip
    if name in less or (wanted.marker and not wanted.marker.evaluate(marks)):
        return ""
    found = held.get(name)
    if found is None:
        return f"{text}: not there"
    version = found.value
    # The version of a host's own package may be short (`2.5`), and that of a source is unknown.
    known = re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    if known and not wanted.specifier.contains(version, prereleases=True):
        return f"{text}: {version} is there ({found.source})"
    return ""


def own_rules(fixes: Iterable[Fix], package: str) -> list[dict[str, Any]]:
    """Return a package's fixes of both stages for a user's tree, as `apply_fixes.py` reads them.

    Builds and trees mounted in nodes both start from these.
    """
    mine = [fix for fix in fixes if same_package(fix.package, [package])]
    own = {canonicalize_name(package)}
    texts = [dockerfile.fixes_json(mine, stage, own) for stage in ("source", "installed")]
    return [fix for text in texts for fix in json.loads(text)]


def fix_rules(fixes: Iterable[Fix], package: str, tree: Tree) -> tuple[str, str]:
    """Return the part of a package's fixes that can be checked on its tree alone.

    Returns:
        Rules as JSON for `apply_fixes.py`, all of stage `installed`; and the folder of the tree
        that corresponds to site-packages.
    """
    found = own_rules(fixes, package)
    files = {r["file"] for fix in found if fix["stage"] == "installed" for r in fix["replace"]}
    root = max(ROOTS, key=lambda place: sum(place + file in tree for file in files))
    rules = []
    for fix in found:
        here = "" if fix["stage"] == "source" else root
        kept = [{**r, "file": here + r["file"]} for r in fix["replace"] if here + r["file"] in tree]
        # A module that a fix adds at the top of site-packages belongs to no package's tree.
        added = {
            here + name: text
            for name, text in fix.get("add", {}).items()
            if "/" in name and any(path.startswith(folder_of(here + name)) for path in tree)
        }
        if kept or added:
            rules.append({**fix, "stage": "installed", "replace": kept, "add": added})
    return json.dumps(rules), root


def files_of(rules: str) -> list[str]:
    """Return the files that rules change or add."""
    found = json.loads(rules)
    replaced = [rule["file"] for fix in found for rule in fix["replace"]]
    return list(dict.fromkeys([*replaced, *(name for fix in found for name in fix["add"])]))


def folder_of(path: str) -> str:
    """Return the folder of a file, with a slash at its end; empty at the top."""
    folder, slash, _ = path.rpartition("/")
    return folder + slash


def answers(output: str) -> dict[str, dict[str, str]]:
    """Read the answers of `apply_fixes.py` among other lines: by fix, by file, the outcome.

    Of several outcomes of one file, a change counts.
    """
    found: dict[str, dict[str, str]] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line) if line.lstrip().startswith('{"fix": ') else {}
        except ValueError:
            continue  # cut by what shows a build
        if {"fix", "file", "outcome"} <= said.keys():
            files = found.setdefault(said["fix"], {})
            if files.get(said["file"], _THERE) == _THERE:
                files[said["file"]] = said["outcome"]
    return found


def there_already(said: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the fixes that a tree has already, in all files that were checked."""
    return sorted(
        fix for fix, files in said.items()
        if files and all(words in (_THERE, "there already") for words in files.values())
    )  # fmt: skip


def conflict(output: str, fixes: Iterable[Fix], source: str, typed: str) -> UsageError | None:
    """Return the error for a tree that fixes do not fit; None if the output shows no conflict.

    Args:
        fixes: the fixes that were applied.
        output: the output of `apply_fixes.py`, or of a build that ran it.
        source: the tree's name for people.
        typed: the command, to which the hint adds `--despite`.
    """
    known = {fix.id: fix for fix in fixes}
    good = (_APPLIED, _THERE, "added", "there already")
    wrong = {
        (fix, file): words
        for fix, files in answers(output).items() if fix in known
        for file, words in files.items() if words not in good
    }  # fmt: skip
    if not wrong:
        return None
    names = list(dict.fromkeys(fix for fix, _ in wrong))
    lines = []
    for (fix, file), words in wrong.items():
        lines.append(f"fix {fix} ({known[fix].symptom.split(': ')[0].strip()[:100]})")
        lines.append(f"  {file}: {words}, and the repaired text is not there either"
                     if "matched" in words else f"  {file}: {words}")  # fmt: skip
        # The program does not say which of a file's patterns did not match.
        rules = [rule for rule in known[fix].remedy.replace if file.endswith(rule.file)]
        for rule in rules if "matched" in words else ():
            lines.append(f"    pattern:  {_line(rule.pattern)}")
            lines.append(f"    repaired: {_line(rule.fixed)}")
    several = "es" if len(names) > 1 else ""
    leave = " ".join(f"--despite {name}" for name in names)
    return UsageError(
        f"{len(names)} fix{several} of this stack {'do' if several else 'does'} not fit {source}",
        why="\n".join(lines),
        hint=f"repair it there in your tree, so that the repaired text is found, or leave the"
        f" fix{several} out, which is recorded: {typed} {leave}",
    )


def missing(output: str) -> list[str]:
    """Return the unmet requirements that a build's last step lists."""
    found = re.findall(r"^The package .\S+. requires .([^`']+).?, but (.*)$", output, re.MULTILINE)
    return [f"{wanted}: {why.replace('`', '')}" for wanted, why in found]


def _line(text: str) -> str:
    plain = text.replace("\n", "\\n").strip()
    return plain if len(plain) <= 120 else f"{plain[:120]}..."
