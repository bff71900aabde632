"""Stand-ins for programs that a script finds on PATH: they write down how they were called."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_RECORDER = """#!{python} -IS
import json, os, sys
place, name = os.path.split(os.path.realpath(__file__))
call = {{"name": name, "argv": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd()}}
call["stdin"] = sys.stdin.read() if {reads} else None
with open(os.path.join(place, "..", "calls"), "a") as file:
    file.write(json.dumps(call) + "\\n")
sys.exit({code})
"""


class StandIns:
    """A folder of programs, and what was called of them.

    Attributes:
        path: PATH of a script that is to find them before anything else.
    """

    def __init__(self, folder: Path) -> None:
        self._bin, self._calls = folder / "bin", folder / "calls"
        self._bin.mkdir()
        self.path = f"{self._bin}:{os.environ['PATH']}"

    def program(self, name: str, text: str) -> None:
        """Put a program with this text on PATH."""
        (self._bin / name).write_text(text)
        (self._bin / name).chmod(0o755)

    def recorder(self, *names: str, code: int = 0, reads: bool = False) -> None:
        """Put programs on PATH that write down their call and end with `code`.

        Args:
            reads: its whole standard input, too.
        """
        for name in names:
            text = _RECORDER.format(python=sys.executable, code=code, reads=reads)
            self.program(name, text)

    def calls(self, *names: str) -> list[dict[str, Any]]:
        """The calls of these recorders in their order; of all when none is named."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call for call in map(json.loads, lines) if not names or call["name"] in names]
