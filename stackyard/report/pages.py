"""Write the record and the page of a run, and the index of all pages in `reports/`.

Owns where they lie and what a record says of the command that made it. `report.page`,
`report.bench_page`, `report.trained` and `report.certify` render the pages.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stackyard import __version__
from stackyard.report.shapes import MadeValue
from stackyard.system import process, template
from stackyard.system.errors import StackyardError
from stackyard.system.files import replace_texts

FOLDER = "reports"
INDEX = f"{FOLDER}/index.html"
KINDS = ("smoke", "bench", "template", "certify")


def made_by(root: Path, argv: Sequence[str] = ()) -> MadeValue:
    """Return the command (this process's own unless given), version and commit of a report.

    Neither values of variables nor folders of the caller are shown: reports are published.
    """
    found = revision(root)
    program, *words = argv or sys.argv
    return {
        "command": shlex.join([Path(program).name, *_shown(words)]),
        "version": __version__,
        "commit": found.get("commit", ""),
        "dirty": found.get("dirty") == "yes",
    }


def revision(root: Path) -> dict[str, str]:
    """Return the project's commit and whether changes are uncommitted; empty without git."""
    try:
        commit = process.run(["git", "-C", str(root), "rev-parse", "HEAD"], timeout=20).output
        changed = process.run(["git", "-C", str(root), "status", "--porcelain"], timeout=60).output
    except StackyardError:
        return {}
    return {"commit": commit.strip(), "dirty": "yes" if changed.strip() else "no"}


def _shown(words: Iterable[str]) -> list[str]:
    """Return words of a command without values of variables and without folders."""
    shown, variable = [], False
    for word in words:
        option, sign, value = word.partition("=")
        if variable or option == "--env":
            text = value if option == "--env" else word
            text = f"{text.partition('=')[0]}=..."
            shown.append(f"--env={text}" if option == "--env" and sign else text if sign else word)
        elif sign and option.startswith("--"):
            shown.append(f"{option}={_name(value)}")
        else:
            shown.append(_name(word))
        variable = word == "--env"
    return shown


def _name(word: str) -> str:
    return Path(word).name if word.startswith(("/", "~", "../")) else word


def write(root: Path, value: Mapping[str, Any], path: str, page: str) -> None:
    """Write a record and its page, each as a whole, and the index of all pages.

    Args:
        path: of the record, from the project's root, ending in `.json`.
        page: HTML of the record's page.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    replace_texts(root, {path: text, path.removesuffix("json") + "html": page})
    replace_texts(root, {INDEX: render_index(root / FOLDER)})


def render_index(folder: Path, kinds: Sequence[str] = KINDS) -> str:
    """Return the page that names every report below a folder, the newest first."""
    rows = [row for path in folder.rglob("*.json") if (row := _row(folder, path, kinds))]
    rows.sort(key=lambda row: (row["started"], row["page"]), reverse=True)
    return template.render("index.html.j2", {"rows": rows})


def _row(folder: Path, path: Path, kinds: Sequence[str]) -> dict[str, str] | None:
    """Return what the index shows of a file; None where it is no report with a page."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] not in kinds:
            return None
        gpus = value.get("gpus") or {}
        names = [gpu["name"] for gpu in gpus.get("devices", ())]
        if value.get("device") == "cuda":  # a certification
            names = [gpu["model"] for host in value["hosts"] for gpu in host["gpus"]]
        counts = Counter(names)
        where = [f"{number} x {name}" for name, number in sorted(counts.items())] or ["CPU ranks"]
        return {
            "page": path.relative_to(folder).with_suffix(".html").as_posix(),
            "kind": value["kind"], "of": f"{value['stack']} on {value['base']}",
            "outcome": value["outcome"], "started": value["started"],
            "seconds": f"{value['seconds']:,.1f}", "where": ", ".join(where),
            "command": value.get("made", {}).get("command", ""),
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None  # written by hand, by another program, or just being replaced
