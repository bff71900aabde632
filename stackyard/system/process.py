"""Run commands of the host with a time limit, and return their output.

Owns host processes: nothing else calls subprocess. It must not interpret what they print.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackyard.system import cleanup
from stackyard.system.errors import CommandError, StackyardError

_RUNNING: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Hold a finished command's exit code and output (both streams, in order)."""

    code: int
    output: str


def last_lines(text: str, count: int = 25) -> str:
    """Return the last `count` lines that are not empty."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def _start(
    argv: Sequence[str],
    *,
    fed: bool,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, with both output streams in one pipe.

    Raises:
        StackyardError: the program does not exist.
    """
    try:
        return subprocess.Popen(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise StackyardError(f"cannot start {argv[0]}: {error.strerror}") from error


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    timeout: float = 600.0,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
) -> Finished:
    """Run a command in its own process group and wait for it.

    Args:
        env: variables added to this process's own environment.
        stdin: bytes fed to standard input; None means an empty input.
        timeout: seconds after which the whole group is killed.
        on_line: called with every line of output as it comes.

    Raises:
        CommandError: the command failed (with `check`) or ran past its limit.
        StackyardError: the program does not exist.
    """
    lines: list[str] = []
    child = _start(argv, fed=stdin is not None, env={**os.environ, **(env or {})}, cwd=cwd)
    _RUNNING.add(child)
    with (
        cleanup.undoing(cleanup.GROUP, f"{child.pid} {cleanup.started_at(child.pid)}"),
        _Alarm(timeout, lambda: _kill(child)) as alarm,
        _feeding(child, stdin),
    ):
        try:
            assert child.stdout is not None
            for raw in child.stdout:
                line = raw.decode("utf-8", errors="replace").rstrip("\n")
                lines.append(line)
                if on_line:
                    on_line(line)
            child.wait()
        except BaseException:
            _kill(child)
            child.wait()
            raise
        finally:
            _RUNNING.discard(child)
            if child.stdout is not None:
                child.stdout.close()
    output = "\n".join(lines)
    if alarm.rang:
        why = last_lines(output)
        raise CommandError(f"{argv[0]} ran past its limit of {timeout:.0f} s", code=124, why=why)
    if check and child.returncode != 0:
        raise CommandError(
            f"command failed with exit code {child.returncode}: {' '.join(argv)[:200]}",
            code=child.returncode,
            why=last_lines(output),
        )
    return Finished(code=child.returncode, output=output)


class Warden:
    """Run a warden (see `system.cleanup`), a process that sees this one end."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "stackyard.system.warden"],
            cwd=Path(__file__).resolve().parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, line: bytes) -> None:
        """Send one line."""
        assert self._child.stdin is not None
        self._child.stdin.write(line)
        self._child.stdin.flush()

    def finish(self) -> None:
        """Close the pipe and wait for the warden to end; it takes time only if work is left."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        self._child.wait()


class Companion:
    """Run a program beside this process until it is ended; it never outlives this process.

    Args:
        on_line: called with every line of its output as it comes.
        held: its input is a pipe that stays open as long as this process lives, not empty.

    Raises:
        StackyardError: the program does not exist.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[str], None] | None = None,
        held: bool = False,
    ) -> None:
        self._said: list[str] = []
        self._on_line = on_line
        self._child = _start(argv, fed=held)
        self._group = f"{self._child.pid} {cleanup.started_at(self._child.pid)}"
        cleanup.promise(cleanup.GROUP, self._group)
        _RUNNING.add(self._child)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            line = raw.decode("utf-8", errors="replace").rstrip()
            self._said = [*self._said[-20:], line]
            if self._on_line:
                self._on_line(line)

    @property
    def running(self) -> bool:
        """Return whether the program still runs."""
        return self._child.poll() is None

    @property
    def said(self) -> str:
        """Return the program's last lines of output."""
        if not self.running:
            self._reader.join(timeout=2)
        return "\n".join(self._said)

    def write(self, data: bytes) -> bool:
        """Write bytes to its held input, as fast as it reads; False when it reads no more."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(data)
            self._child.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def finish(self, seconds: float) -> int | None:
        """Close its held input, and wait at most `seconds` for its end; return its exit code."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        return self._child.poll()

    def end(self) -> None:
        """Kill the program and all processes that it started."""
        _kill(self._child)
        self._child.wait()
        self._reader.join(timeout=2)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _RUNNING.discard(self._child)
        cleanup.kept(cleanup.GROUP, self._group)


def start_daemon(argv: Sequence[str], *, log: Path) -> None:
    """Start a process that outlives this one, its output going to `log`."""
    with log.open("ab") as output:
        subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop_all() -> None:
    """Kill every command that still runs, so that the threads that wait for them go on."""
    for child in list(_RUNNING):
        _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


class _Alarm:
    """Call `action` once after `seconds`, unless the block ends before."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self.rang = False
        self._action = action
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True

    def _ring(self) -> None:
        self.rang = True
        self._action()

    def __enter__(self) -> _Alarm:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class _feeding:
    """Feed bytes to a child's standard input while its output is read."""

    def __init__(self, child: subprocess.Popen[bytes], data: bytes | None) -> None:
        self._child, self._data = child, data
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def _feed(self) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(self._data or b"")
            self._child.stdin.close()
        except OSError:
            pass  # the child is gone; its exit code and output say why
        finally:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def __enter__(self) -> None:
        if self._data is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._data is not None:
            self._thread.join(timeout=5)
