"""Run the command of one step of a training on the first node, and read its output.

Owns that process and the files of a step: those that a launcher reads, and those that ranks make
and nobody keeps. `supervisor.py` decides where the output goes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

# Text without a line break is passed on in pieces of this length.
LINE_BYTES = 4000
READ_BYTES = 64 * 1024
# Reads after the command has ended: a pipe holds less. Processes that keep writing are left alone.
LAST_READS = 32
# A command that was killed is gone within this, unless it cannot be killed.
REAP_SECONDS = 0.2


def write_files(files: Mapping[str, str]) -> None:
    """Write files that a launcher reads, readable by their owner only."""
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(target, "w", encoding="utf-8") as file:
            file.write(text)


def absent(paths: Iterable[object]) -> list[Path]:
    """Return the paths of files that ranks will make.

    Raises:
        FileExistsError: one of them is there already.
    """
    found = [Path(str(path)) for path in paths]
    for path in found:
        if path.exists():
            raise FileExistsError(f"{path} exists already: remove it, or name another")
    return found


def remove_files(paths: Iterable[Path]) -> list[str]:
    """Remove files that ranks made; return a sentence on each that stays."""
    stays = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            stays.append(f"{path} is left behind: {error.strerror}")
    return stays


class StepProcess:
    """Run a command in a process group of its own.

    Args:
        say: called with each line of its output that is not empty.
        over: called once when it has ended, where the kernel can report that.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        over: Callable[[], None],
    ) -> None:
        self._selector, self._say, self._over, self._rest = selector, say, over, b""
        self._child = subprocess.Popen(
            list(words), cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._child.stdout is not None
        self._output = self._child.stdout
        os.set_blocking(self._output.fileno(), False)
        selector.register(self._output, selectors.EVENT_READ, self._hear)
        self._end: int | None = None
        with contextlib.suppress(OSError):  # without it, the owner's clock has to ask
            self._end = os.pidfd_open(self._child.pid)
            selector.register(self._end, selectors.EVENT_READ, self._ended)

    def _ended(self) -> None:
        if self._end is not None:
            self._forget_end()
            self._over()

    def _forget_end(self) -> None:
        if self._end is not None:
            self._selector.unregister(self._end)
            os.close(self._end)
            self._end = None

    def _hear(self) -> None:
        if self._output.closed:
            return
        data = self._read()
        if data is not None:
            self._take(data)
            if not data:
                self._close()

    def _read(self) -> bytes | None:
        try:
            return os.read(self._output.fileno(), READ_BYTES)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        for line in lines:
            self._tell(line)

    def _tell(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip()
        if text:
            self._say(text)

    def _close(self) -> None:
        if not self._output.closed:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._output)
            self._output.close()
            last, self._rest = self._rest, b""
            self._tell(last)

    def poll(self) -> int | None:
        """Return the command's exit code; None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """Kill the command's process group (SIGKILL), unless the command has ended."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def finish(self) -> None:
        """Read the last output, though its children may hold the pipe open, and forget the command.

        It has ended, or could not be killed (a process that waits for a disk), and is left alone.
        """
        for _ in range(LAST_READS):
            if self._output.closed or not (data := self._read()):
                break
            self._take(data)
        self._close()
        self._forget_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(REAP_SECONDS)
