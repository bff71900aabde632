"""Send a rank's output to a file of its own; every Python of a job imports this module first.

Owns where a rank writes and how its end is recorded: launchers mix the lines of all ranks, and pdsh
holds back text without a line break (progress bars). Files below STACKYARD_LOGS, by rank:
`rankN.log` its output; `rankN.json` its PID and number; `rankN.end` `ok`, or how it failed, missing
when it was killed. Processes that a rank starts write to the same file. Fused parts write
`rankN.fused`, and NCCL logs to a file of each process below STACKYARD_NCCL_LOGS (pdsh would expand
the `%h` of NCCL's own names). A file that STACKYARD_SETTINGS names holds the user's variables on this node: DeepSpeed
would put them on a command line.
"""

import atexit
import contextlib
import json
import os
import shlex
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _take_over(folder: str, rank: int) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    base = os.path.join(folder, f"rank{rank}")
    log = os.open(f"{base}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ["STACKYARD_RANK_PID"] = str(os.getpid())
    for old in ("end", "fused"):  # of the rank that this one takes the place of
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{base}.{old}")
    _write(f"{base}.json", json.dumps({"rank": rank, "pid": os.getpid(),
                                       "world_size": os.environ.get("WORLD_SIZE", "")}))  # fmt: skip
    _tell_the_end(f"{base}.end")
    _answer_with_stacks(f"{base}.stack")
    # torch's flight recorder writes its file when something is written to its pipe.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", os.path.join(folder, "flight-pipe-"))
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", os.path.join(folder, "flight-"))


def _answer_with_stacks(path: str) -> None:
    """Have a signal write the stacks of all threads, also where C code waits or holds the GIL."""
    with contextlib.suppress(ImportError, ValueError, RuntimeError):
        import faulthandler
        import signal

        file = open(path, "wb")  # faulthandler keeps it
        faulthandler.register(signal.SIGRTMIN + 5, file=file, all_threads=True)


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def _tell_the_end(path: str) -> None:
    me, end = os.getpid(), ["ok"]
    shown = sys.excepthook

    def failed(kind: type, error: BaseException, trace: object) -> None:
        end[0] = f"{kind.__name__}: {error}"[:500]
        shown(kind, error, trace)  # type: ignore[arg-type]

    sys.excepthook = failed
    # Forks of a rank run their own exits: only the rank itself has an end to tell.
    atexit.register(lambda: _write(path, end[0]) if os.getpid() == me else None)


def _hidden() -> None:
    """Run the sitecustomize that this one hides: the distribution's, or the image's."""
    for entry in sys.path:
        path = os.path.join(entry, "sitecustomize.py")
        if entry and os.path.abspath(entry) != _HERE and os.path.isfile(path):
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec")
            exec(code, {"__name__": "sitecustomize", "__file__": path})
            return


def _take_settings(path: str) -> None:
    """Set the variables of a file of `export NAME='VALUE'` lines, once in a tree of processes."""
    try:
        with open(path, encoding="utf-8") as file:
            words = shlex.split(file.read())
    except OSError as error:
        raise SystemExit(f"the variables of this node cannot be read: {error}") from error
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            os.environ[name] = value


# Gone from the environment first: what a program changes afterwards must stay in its children.
_settings = os.environ.pop("STACKYARD_SETTINGS", "")
if _settings:
    _take_settings(_settings)
_nccl = os.environ.get("STACKYARD_NCCL_LOGS", "")
if _nccl:
    os.environ["NCCL_DEBUG_FILE"] = f"{_nccl}/nccl.{os.uname().nodename}.{os.getpid()}"
_folder, _rank = os.environ.get("STACKYARD_LOGS", ""), os.environ.get("RANK", "")
if _folder and _rank.isdecimal() and not os.environ.get("STACKYARD_RANK_PID"):
    # A full disk is no reason for a training not to start: its words stay with its launcher's.
    with contextlib.suppress(OSError):
        _take_over(_folder, int(_rank))
_hidden()
