"""Read key `left_out` of `images/common.yml`: files of packages that images leave out.

Owns which patterns may be written; `inside/leave_out.py` owns their meaning. As in
`definitions.read.files`, every wrong value becomes a problem of the mapping being read, never an
exception.
"""

from __future__ import annotations

import re
from collections import Counter

from stackyard.definitions.document import Mapping
from stackyard.definitions.spec import LeftOut

_NAME = re.compile(r"\*\*|[A-Za-z0-9._+*?][A-Za-z0-9._+*?-]*")
_WORD = re.compile(r"[A-Za-z0-9]")


def read_left_out(top: Mapping) -> tuple[LeftOut, ...]:
    """Read every entry; none where the key is absent."""
    found = []
    for entry in top.mappings("left_out"):
        value = LeftOut(
            path=entry.single_line("path"), why=entry.text("why"), kept=entry.table("except", {})
        )
        for key, path in (("path", value.path), *(("except", path) for path in value.kept)):
            wrong = path_problem(path) if path or entry.has(key) else ""
            if wrong:
                entry.problem(f"{path!r}: {wrong}", key=key)
        for key, reason in (("why", value.why), *(("except", why) for why in value.kept.values())):
            if entry.has(key) and not reason.strip():
                entry.problem("a reason must not be empty", key=key)
        entry.done()
        found.append(value)
    for path, times in Counter(entry.path for entry in found).items():
        if path and times > 1:
            top.problem(f"{path!r} is named {times} times", key="left_out")
    return tuple(found)


def path_problem(path: str) -> str:
    """Return why a pattern does not name something below the packages' folder; empty if it does."""
    if path.startswith("/") or ".." in path.split("/"):
        return "must be below the folder of the Python packages"
    for name in path.split("/"):
        if name in ("", ".") or not _NAME.fullmatch(name) or ("**" in name and name != "**"):
            return "must be names between slashes, with * and ? inside a name, ** for any folders"
    if not _WORD.search(path.rpartition("/")[2]):
        return "must end in a name: wildcards alone would leave out everything below"
    return ""
