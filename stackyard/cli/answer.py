"""Say what a command came to: a result, an exit code, or an error with what to type.

Owns the exit codes and the form of errors on both streams. It must not run a command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from stackyard.system.errors import StackyardError

Answer = tuple[Any, int]
EXIT_CODES = {"passed": 0, "failed": 1, "not run": 3}


def say_error(error: StackyardError) -> None:
    """Print an error once, to standard error."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def error_value(what: str, why: str = "", hint: str = "") -> dict[str, Any]:
    """Return an error as the JSON of a command."""
    return {"error": {"what": what, "why": why, "hint": hint}}


def say_json(value: Any) -> None:
    """Print the JSON of a command to standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False), flush=True)


def typed_json(words: Sequence[str]) -> bool:
    """Return whether a command line that could not be read asks for JSON."""
    before = words[: words.index("--")] if "--" in words else words
    return "--json" in before
