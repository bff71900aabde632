"""Print the result of a command as JSON, or its error with a hint.

Owns the exit codes and the form of errors on both streams. It must not run a command.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stackyard.system.errors import StackyardError

Answer = tuple[Any, int]
EXIT_CODES = {"passed": 0, "failed": 1, "not run": 3}
# 128 + SIGPIPE, as a shell reports it.
READER_GONE = 128 + signal.SIGPIPE


def say_error(error: StackyardError) -> None:
    """Print an error once, to standard error."""
    print(f"error: {error}", file=sys.stderr, flush=True)


def error_value(what: str, why: str = "", hint: str = "") -> dict[str, Any]:
    """Return an error as the JSON of a command."""
    return {"error": {"what": what, "why": why, "hint": hint}}


def say_json(value: Any) -> None:
    """Print the JSON of a command to standard output; escaped where its encoding is not UTF-8."""
    utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    print(json.dumps(value, indent=1, ensure_ascii=not utf8), flush=True)


def typed_json(words: Sequence[str]) -> bool:
    """Return whether a command line that could not be read asks for JSON."""
    before = words[: words.index("--")] if "--" in words else words
    return "--json" in before


def reader_gone() -> bool:
    """Return whether the output's reader has gone; the rest of the output is then discarded."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())
                gone = True
    return gone
