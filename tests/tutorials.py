"""Tutorials as tests read them: marked command blocks, what is typed, and what is shown."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from stackyard.definitions.project import ROOT

FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
_BLOCK = re.compile(r"^(?:<!-- ([^\n]+?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run: numbers, times, digests.
_VARIES = re.compile(r"[0-9a-f]{12,64}|[0-9][0-9.,]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typed:
    """One typed command of a console block, and the lines shown below it."""

    page: str
    mark: str
    words: str
    shown: str


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Every fenced block: the mark above it, its language, its content."""
    return [(mark or "", language, body) for mark, language, body in _BLOCK.findall(text)]


def commands(path: Path) -> list[Typed]:
    """Every command of a page's console blocks, in order."""
    found = []
    for mark, language, body in blocks(path.read_text(encoding="utf-8")):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            words, _, shown = part.partition("\n")
            found.append(Typed(page=path.name, mark=mark, words=words, shown=shown))
    return found


def of_engine(page: str) -> list[Typed]:
    """The commands of a page that a test with an engine types."""
    return [one for one in commands(FOLDER / page) if one.mark == "engine"]


def missing(shown: str, said: str) -> list[str]:
    """Lines that a tutorial shows and a command did not say; figures may differ, `...` is any."""
    wanted = [line.strip() for line in shown.splitlines() if line.strip() not in ("", "...")]
    there = {_form(line) for line in said.splitlines()}
    return [line for line in wanted if _form(line) not in there]


def _form(line: str) -> str:
    return " ".join(_VARIES.sub("0", line).split())
