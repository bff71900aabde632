"""Apply recorded source fixes to an unpacked tree and check the number of matches.

Owns the rule of what "applied" means: a pattern matched exactly as often as recorded, or not
at all while the record's `fixed` pattern shows that upstream (or an earlier pass) has repaired
it already. Any other count fails the build. Runs in image builds: standard library only.
It must not fetch, install or execute anything.

    python3 apply_fixes.py FIXES.json --stage installed --root SITE_PACKAGES [--only ID...]

FIXES.json is a list of objects: {"id", "stage", "replace": [{"file", "pattern", "replacement",
"count", "fixed"}], "add": {file: text}}; an empty file (/dev/null) holds no fix. Paths are relative
to the root; patterns are multi-line `re` patterns; "add" may be missing. A rule with "own" is for
the users' own tree, whose version may differ, so a text that a release has several times may occur
more or fewer times. Nothing is written until every pattern and file of every fix has been checked.

Answers are one JSON object a line, {"fix", "file", "outcome"}: on standard output each change (`applied`, `added`,
`already fixed upstream`, `there already`), or with exit code 1 on standard error each misfit, and what to do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any


class FixMismatch(Exception):
    """Report fixes that do not fit the tree.

    Attributes:
        problems: an answer for each file of each fix that does not fit; empty for a lone pattern.
    """

    def __init__(self, said: str, problems: list[dict[str, str]] | None = None) -> None:
        super().__init__(said)
        self.problems = problems or []


def apply_one(text: str, rule: dict[str, Any]) -> tuple[str, str]:
    """Return the new text and its outcome (`applied` or `already fixed upstream`)."""
    found = len(re.findall(rule["pattern"], text, flags=re.MULTILINE))
    if found == rule["count"] or (found and rule.get("own") and rule["count"] > 1):
        if is_done(text, rule):
            return text, "already fixed upstream"
        return replaced(text, rule), "applied"
    if found == 0 and is_fixed(text, rule):
        return text, "already fixed upstream"
    raise FixMismatch(f"pattern matched {found} times, expected {rule['count']}")


def replaced(text: str, rule: dict[str, Any]) -> str:
    """Return the text with every match replaced."""
    new = re.sub(rule["pattern"], rule["replacement"], text, flags=re.MULTILINE)
    if not is_fixed(new, rule):
        raise FixMismatch("after the replacement its own `fixed` pattern does not match")
    return new


def is_fixed(text: str, rule: dict[str, Any]) -> bool:
    """Return whether a text holds what the rule makes of it."""
    return bool(re.search(rule["fixed"], text, flags=re.MULTILINE))


def is_done(text: str, rule: dict[str, Any]) -> bool:
    """Return whether a text is repaired although the pattern still matches it.

    A replacement that keeps the matched line, and adds another one, matches its own pattern.
    """
    if not is_fixed(text, rule):
        return False
    new = re.sub(rule["pattern"], rule["replacement"], text, flags=re.MULTILINE)
    found = re.findall(rule["pattern"], new, flags=re.MULTILINE)
    return len(found) == len(re.findall(rule["pattern"], text, flags=re.MULTILINE))


def chosen(fixes: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Return the fixes of these ids, in their own order; all of them where none is named.

    Raises:
        FixMismatch: naming every id that no fix has.
    """
    unknown = [name for name in names if all(fix["id"] != name for fix in fixes)]
    if unknown:
        problems = [
            {"fix": name, "file": "", "outcome": "not in the file of fixes"} for name in unknown
        ]
        raise FixMismatch(lines(problems), problems)
    return [fix for fix in fixes if not names or fix["id"] in names]


def apply_all(fixes: list[dict[str, Any]], stage: str, root: Path) -> list[dict[str, str]]:
    """Apply every fix of `stage` below `root`; return an answer for each file.

    Raises:
        FixMismatch: naming every fix that does not fit; nothing is written then.
    """
    texts: dict[Path, str] = {}
    said: list[dict[str, str]] = []
    wrong: list[dict[str, str]] = []
    for fix in fixes:
        if fix["stage"] != stage:
            continue
        for rule in fix["replace"]:
            path = place(root, rule)
            try:
                text = texts[path] if path in texts else path.read_text(encoding="utf-8")
                texts[path], outcome = apply_one(text, rule)
                said.append(answer(fix, rule["file"], outcome))
            except FileNotFoundError:
                wrong.append(answer(fix, rule["file"], "no such file"))
            except FixMismatch as error:
                wrong.append(answer(fix, rule["file"], str(error)))
        for name, text in fix.get("add", {}).items():
            try:
                said.append(answer(fix, name, check_new(root / name, text)))
                texts[root / name] = text
            except FixMismatch as error:
                wrong.append(answer(fix, name, str(error)))
    if wrong:
        raise FixMismatch(lines(wrong), wrong)
    for path, text in texts.items():
        temporary = path.with_name(path.name + ".fixing")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(path.stat().st_mode if path.exists() else 0o644)
        os.replace(temporary, path)
    return said


def answer(fix: dict[str, Any], file: str, outcome: str) -> dict[str, str]:
    """Return the outcome of a fix in one file."""
    return {"fix": fix["id"], "file": file, "outcome": outcome}


def lines(answers: list[dict[str, str]]) -> str:
    """Return answers as text, one JSON object a line."""
    return "\n".join(json.dumps(one) for one in answers)


def place(root: Path, rule: dict[str, Any]) -> Path:
    """Return a rule's file; metadata of the users' own tree is found by its package's name."""
    folder, slash, rest = str(rule["file"]).partition(".dist-info/")
    if rule.get("own") and slash:
        found = sorted(root.glob(f"{folder.split('-')[0]}-*.dist-info"))
        if len(found) == 1:
            return found[0] / rest
    return root / str(rule["file"])


def check_new(path: Path, text: str) -> str:
    """Check that a module can be added: its package exists, and no other file has its name."""
    if not path.parent.is_dir():
        raise FixMismatch("its package is not there")
    if not path.exists():
        return "added"
    if path.read_text(encoding="utf-8") != text:
        raise FixMismatch("the package has a file of that name")
    return "there already"


def main(argv: list[str]) -> int:
    """Run the command line; return 0 when every fix fits, else 1 after an answer a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("fixes", type=Path)
    parser.add_argument("--stage", choices=("source", "installed"), required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[], metavar="ID")
    options = parser.parse_args(argv)
    try:
        fixes = chosen(json.loads(options.fixes.read_text() or "[]"), options.only)
        said = apply_all(fixes, options.stage, options.root)
    except FixMismatch as error:
        print(error, file=sys.stderr)
        print(
            "A recorded fix no longer fits the installed version: look at the file named above,\n"
            "then change the fix's pattern or `applies_to` under images/fixes/.",
            file=sys.stderr,
        )
        return 1
    if said:
        print(lines(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
