"""Collect where the ranks of a job on this node are, while they live.

Owns how a rank is asked without new capabilities: by a signal whose handler writes its Python stack
(`rank_site/sitecustomize.py` registers it), by NCCL's RAS port, and by the pipe of torch's flight
recorder. It must not say what the answers mean: `hang.py` does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import strays  # type: ignore[import-not-found]  # it lies beside this file

# As in rank_site/sitecustomize.py. A real-time signal that no library is known to use.
SIGNAL = signal.SIGRTMIN + 5
ANSWER_SECONDS = 2.0
RAS_SECONDS = 6.0
RAS_BYTES = 16 * 1024
FRAMES = 100  # as many as faulthandler writes
# Prefixes of the flight recorder's pipe and file, in the folder of the ranks.
PIPE, FLIGHT = "flight-pipe-", "flight-"
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_THREAD = re.compile(r"(?:Current t|T)hread 0x", re.MULTILINE)
Value = dict[str, object]


def collect(ranks: Mapping[int, int], folder: Path) -> list[Value]:
    """Return what each live rank answers: its stack, and its open collectives.

    Args:
        ranks: ranks by PID.
        folder: holds the files of ranks.
    """
    living = {pid: rank for pid, rank in ranks.items() if strays.running(pid)}
    before = {rank: _size(folder / f"rank{rank}.stack") for rank in living.values()}
    awaited: dict[Path, int] = {}
    for pid, rank in living.items():
        if catches(pid, SIGNAL):
            awaited[folder / f"rank{rank}.stack"] = before[rank]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGNAL)
        if _ask_flight(folder, rank):
            awaited[folder / f"{FLIGHT}{rank}"] = 0
    _wait(awaited)
    found = []
    for pid, rank in living.items():
        found.append({
            "rank": rank, "pid": pid, "stopped": strays.stopped(pid),
            "stack": stack(_text(folder / f"rank{rank}.stack", before[rank])),
            "open": _open_collectives(folder / f"{FLIGHT}{rank}"),
        })  # fmt: skip
    ras = _ras(living)
    if ras and found:
        found[0]["ras"] = ras
    return found


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; without one the signal would end it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        mask = next(line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:"))
        return bool(int(mask, 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _wait(sizes: Mapping[Path, int]) -> None:
    """Wait until all files have grown and rest, or the time for an answer is over."""
    end = time.monotonic() + ANSWER_SECONDS
    last: dict[Path, int] = {}
    while time.monotonic() < end:
        now = {path: _size(path) for path in sizes}
        if now == last and all(now[path] > size for path, size in sizes.items()):
            return
        last = now
        time.sleep(0.1)


def _text(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read(256 * 1024).decode("utf-8", errors="replace")
    return ""


def stack(text: str) -> list[list[object]]:
    """Return the frames of the main thread as file, line and function, the innermost first.

    faulthandler writes the main thread last.
    """
    threads = _THREAD.split(text)[1:]
    frames = _FRAME.findall(threads[-1]) if threads else []
    return [[file, int(line), function] for file, line, function in frames[:FRAMES]]


def _environment(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return {}


def _ras(living: Mapping[int, int]) -> str:
    """Return the status that NCCL's RAS gives of the whole job; empty where nobody uses NCCL.

    One rank of a node is asked: RAS itself asks the others. Ranks on GPUs have an address of their
    job's own (`mesh/node.py`); at NCCL's default another job may answer.
    """
    for pid in living:
        with contextlib.suppress(OSError):
            if "libnccl" not in Path(f"/proc/{pid}/maps").read_text():
                continue
        env = _environment(pid)
        if env.get("NCCL_RAS_ENABLE") == "0":
            continue
        host, _, port = env.get("NCCL_RAS_ADDR", "").rpartition(":")
        if port.isdecimal() and (said := _ask_ras(host.strip("[]"), int(port))):
            return said
    return ""


def _ask_ras(host: str, port: int) -> str:
    said = b""
    end = time.monotonic() + RAS_SECONDS
    at = (host or "localhost", port)
    with contextlib.suppress(OSError), socket.create_connection(at, timeout=1.0) as connection:
        connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 3\nVERBOSE STATUS\n")
        while len(said) < RAS_BYTES and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            data = connection.recv(4096)
            if not data:
                break
            said += data
    return said.decode("utf-8", errors="replace")[:RAS_BYTES]


def _ask_flight(folder: Path, rank: int) -> bool:
    """Have torch's flight recorder of a rank write its file; return False where there is none."""
    with contextlib.suppress(OSError):
        pipe = os.open(folder / f"{PIPE}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        try:
            (folder / f"{FLIGHT}{rank}").unlink(missing_ok=True)
            return os.write(pipe, b"1\n") > 0
        finally:
            os.close(pipe)
    return False


class _Plain(pickle.Unpickler):
    """Read plain values only: a flight record has no others."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def _open_collectives(path: Path) -> list[Value]:
    """Return the collectives of a flight record that have not ended; empty without a record."""
    with contextlib.suppress(Exception), path.open("rb") as file:
        return _unfinished(file)
    return []


def _unfinished(file: IO[bytes]) -> list[Value]:
    entries = _Plain(file).load()["entries"]
    found = [
        {"name": str(entry["profiling_name"]), "number": int(entry["collective_seq_id"]),
         "state": str(entry["state"])}
        for entry in entries if entry["state"] != "completed"
    ]  # fmt: skip
    return found[:3]
