"""Render the page of all fixes and limits: symptom, cause, remedy and recorded proof of each.

Owns the text of `docs/reference/fixes.md`. Pure: it turns definitions and recorded proofs into
Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stackyard.definitions.spec import Definitions, Fix, Limit, Remedy
from stackyard.system import template

PAGE = "docs/reference/fixes.md"
_SPECIAL = re.compile(r"([\\*{}\[\]<>|#~$]|(?<!\w)_|_(?!\w))")


def render_page(definitions: Definitions, recorded: Mapping[str, Any]) -> str:
    """Return the page; `recorded` holds proofs by stack and id, as in `images/cpu.proofs.json`."""
    fixes = sorted(definitions.fixes.values(), key=lambda fix: (fix.package, fix.id))
    limits = sorted(definitions.limits.values(), key=lambda limit: (limit.package, limit.id))
    values: dict[str, object] = {
        "fixes": [_fix_value(fix, definitions, recorded) for fix in fixes],
        "limits": [_limit_value(limit, recorded) for limit in limits],
    }
    return template.render("fixes.md.j2", values)


def _fix_value(fix: Fix, definitions: Definitions, recorded: Mapping[str, Any]) -> dict[str, Any]:
    wheels = {w.package for w in definitions.wheels.values() if fix.id in w.fixes}
    stacks = sorted(
        stack.name
        for stack in definitions.stacks.values()
        if fix.id in stack.fixes or wheels & set(stack.builds)
    )
    return {**_value(fix, stacks, recorded), "remedy": list(_remedy_lines(fix.remedy))}


def _limit_value(limit: Limit, recorded: Mapping[str, Any]) -> dict[str, Any]:
    return {**_value(limit, sorted(limit.stacks), recorded), "remedy": [plain(limit.instead)]}


def _value(one: Fix | Limit, stacks: list[str], recorded: Mapping[str, Any]) -> dict[str, Any]:
    upstream = one.upstream if one.upstream.startswith("https://") else plain(one.upstream)
    return {
        "id": one.id,
        "package": plain(one.package),
        "symptom": plain(one.symptom),
        "why": plain(one.why),
        "upstream": upstream,
        "applies": plain(", ".join(_applies(one))),
        "stacks": ", ".join(stacks),
        "proofs": list(_proofs(one.id, recorded)),
        "remove_when": plain(one.remove_when),
    }


def _applies(one: Fix | Limit) -> Iterator[str]:
    yield from (f"{name} {specifier}" for name, specifier in one.versions.items())
    if one.python:
        yield f"Python {one.python}"
    if len(one.devices) == 1:
        yield f"only {one.devices[0]}"


def _remedy_lines(remedy: Remedy) -> Iterator[str]:
    counts: dict[str, int] = {}
    for rule in remedy.replace:
        counts[rule.file] = counts.get(rule.file, 0) + rule.count
    where = "sources, before they are built" if remedy.stage == "source" else "installed files"
    for file, count in counts.items():
        yield f"{count} replacement{'s' if count > 1 else ''} in {code(file)} ({where})"
    for file in remedy.add:
        yield f"adds {code(file)}"
    for name, value in remedy.env.items():
        yield f"the image's environment: {code(f'{name}={value}')}"
    for name, value in remedy.build_env.items():
        yield f"the build of its wheel: {code(f'{name}={value}')}"
    if remedy.override:
        yield f"locked, whatever its metadata asks for: {_codes(remedy.override)}"
    if remedy.exclude:
        yield f"not installed, although asked for: {_codes(remedy.exclude)}"


def _proofs(name: str, recorded: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for stack, proofs in sorted(recorded.items()):
        for proof_id, entry in sorted(proofs.items()):
            if proof_id.partition("#")[0] != name:
                continue
            number = proof_id.partition("#")[2]
            yield {
                "stack": stack,
                "place": f"replacement {number} alone" if number else "",
                "failed": code(entry["failed"]),
                "versions": plain(", ".join(f"{n} {v}" for n, v in entry["versions"].items())),
                "recorded": entry["recorded"],
            }


def plain(text: str) -> str:
    """Return text as one line, with Markdown's special characters escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as Markdown code that is valid in a table, too."""
    body = " ".join(text.split()).replace("|", "\\|")
    marks = "``" if "`" in body else "`"
    return f"{marks} {body} {marks}" if "`" in body else f"{marks}{body}{marks}"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(code(text) for text in texts)
