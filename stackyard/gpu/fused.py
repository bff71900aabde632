"""Read the fused parts that ranks report, and say in a sentence which parts did not run.

Owns the states that `images/fixes/files/stackyard_fused.py` writes. It is pure, and does not judge:
smokes, benches and runs decide whether a part that did not run is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNUSED, PARTLY, FELL_BACK = "unused", "partly", "fell back"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Hold the state of one fused part on one rank.

    Attributes:
        state: `off`, `not asked` (the training has nothing for it to do), `unused`, `ran`,
            `partly` (more than a tenth of the calls took the package's own code) or `fell back`.
        why: what kept it from running; empty in the other states.
    """

    state: str
    why: str = ""

    @property
    def lost(self) -> str:
        """Return why an enabled part did not run where it could; empty where nothing is lost."""
        if self.state == FELL_BACK:
            return f"fell back to the package's own code: {self.why}"
        if self.state == PARTLY:
            return f"ran in part only: {self.why}"
        return f"did not run: {self.why}" if self.state == UNUSED else ""


def read_parts(value: Any) -> dict[str, Part]:
    """Read a rank's parts by name.

    Raises:
        KeyError, TypeError, AttributeError: the value is not a rank's report.
    """
    return {
        str(name): Part(state=str(part["state"]), why=str(part["why"]))
        for name, part in value.items()
    }


def warnings(ranks: Mapping[int, Mapping[str, Part]]) -> list[str]:
    """Return one line for each lost part and reason, with the ranks that report it."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, parts in sorted(ranks.items()):
        for name, part in parts.items():
            if part.lost:
                found.setdefault((name, part.lost), []).append(rank)
    return [
        f"the fused part {name!r} {lost} (rank {', '.join(map(str, who))})"
        for (name, lost), who in found.items()
    ]
