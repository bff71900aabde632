"""Make small mistakes on purpose, and check that a fast test notices each of them.

Owns making them, one at a time, in throw-away copies of the project, and the rule of what counts as
noticed. `mutations.yml` lists the mistakes. The tests that own a file run first; all fast tests run
only where those pass.

    benchmarks/run mutations [WORD...]    all, or those of files whose path holds one of the words
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from benchmarks import common
from stackyard.cli.console import Terminal
from stackyard.definitions.project import ROOT
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import CommandError, StackyardError

LIST = Path(__file__).with_name("mutations.yml")
FAST = ("tests/unit", "tests/golden")
# It finds every mutation, as the code of the list is no longer there.
FINDS_ALL = (
    "tests/unit/test_benchmarks.py::test_every_committed_mutation_can_be_made_in_the_code_of_today"
)
AT_ONCE, OWN_SECONDS, ALL_SECONDS = 2, 120.0, 600.0
# Code on which every statement of Stackyard about a training or a release depends.
TRUSTED = (
    "stackyard/validate/judge.py",
    "stackyard/release/verify.py",
    "stackyard/system/signing.py",
)
KILLED, LATE, SURVIVED = "killed by the file's own tests", "killed by another test", "survived"
BROKEN = "cannot be made"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis")


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Hold one mistake (`old` becomes `new` in a file), and its outcome.

    Attributes:
        tests: the tests that own the file.
        survives: why no fast test can notice it; empty where one must.
        by: the test that noticed it.
    """

    file: str
    tests: Sequence[str]
    breaks: str
    old: str
    new: str
    survives: str = ""
    outcome: str = ""
    by: str = ""


def read_list(text: str) -> list[Mutation]:
    """Return the mutations of a list, in its order."""
    return [
        Mutation(file=file, tests=group["tests"], **entry)
        for file, group in yaml.safe_load(text).items()
        for entry in group["mutations"]
    ]


def mutate(text: str, mutation: Mutation) -> str:
    """Return a file's text with one mutation.

    Raises:
        ValueError: the old text does not occur exactly once, or the new text is not valid Python.
    """
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.old!r} is there {count} times")
    changed = text.replace(mutation.old, mutation.new)
    if mutation.file.endswith(".py"):
        try:
            compile(changed, mutation.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{mutation.new!r} is no Python there: {error}") from error
    return changed


class Copies:
    """Make mutations in throw-away copies of the project, one at a time in each."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._over = folder, threading.Event()
        self._free: queue.Queue[Path] = queue.Queue()

    def make(self) -> None:
        """Copy the project, and check that without a mutation all fast tests pass.

        Raises:
            StackyardError: a test fails, so every mutation would seem to be noticed.
        """
        first = Path(shutil.copytree(ROOT, self._folder / "0", ignore=_LEFT_OUT))
        failed = self._failing(first, FAST, ALL_SECONDS, "-n", str(AT_ONCE))
        if failed:
            raise StackyardError(f"without any mutation {failed} fails")
        self._free.put(first)
        for number in range(1, AT_ONCE):
            self._free.put(Path(shutil.copytree(first, self._folder / str(number))))

    def run(self, mutation: Mutation) -> Mutation:
        """Make a mutation, find the first test that fails, and undo the mutation."""
        place = self._free.get()
        path = place / mutation.file
        kept, text = path.stat(), path.read_text(encoding="utf-8")
        try:
            path.write_text(mutate(text, mutation), encoding="utf-8")
            if by := self._failing(place, mutation.tests, OWN_SECONDS):
                return replace(mutation, outcome=KILLED, by=by)
            by = self._failing(place, FAST, ALL_SECONDS)
            return replace(mutation, outcome=LATE if by else SURVIVED, by=by)
        except ValueError as error:
            return replace(mutation, outcome=BROKEN, by=str(error))
        finally:
            path.write_text(text, encoding="utf-8")
            # Bytecode is matched by its source's time: the restored file keeps its old bytecode.
            os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
            self._free.put(place)

    def stop(self) -> None:
        """End all tests; none is started any more."""
        self._over.set()
        process.stop_all()

    def _failing(self, place: Path, tests: Sequence[str], limit: float, *more: str) -> str:
        """Return the first test that fails; empty when all pass."""
        if self._over.is_set():
            raise StackyardError("interrupted")
        own = self._folder / f"t{place.name}"
        own.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *more,
                 f"--deselect={FINDS_ALL}", f"--basetemp={own / 'b'}", *tests]  # fmt: skip
        # Bytecode of a mutation would be used for the next one of the same length.
        env = {"TMPDIR": str(own), "PYTHONDONTWRITEBYTECODE": "" if more else "1"}
        try:
            done = process.run(words, env=env, cwd=place, timeout=limit, check=False)
        except CommandError:
            return f"tests that do not end in {limit:.0f} s"
        found = _FAILED.search(done.output)
        if done.code not in (0, 1, 2) or (done.code and not found):
            raise StackyardError("the tests did not run", why=process.last_lines(done.output))
        return found[1] if found else ""


def play_all(wanted: Sequence[Mutation], terminal: Terminal) -> Iterator[Mutation]:
    """Run mutations, and report each as soon as its outcome is known."""
    with cleanup.folder("mutations") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies = Copies(folder)
        try:
            terminal.note("all fast tests, without any mutation")
            copies.make()
            work = [pool.submit(copies.run, mutation) for mutation in wanted]
            for number, future in enumerate(as_completed(work), 1):
                done = future.result()
                said = f"{done.file}: {done.breaks}: {done.outcome}"
                terminal.text(f"{number}/{len(work)} {said} {done.by}".rstrip())
                yield done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            copies.stop()
            raise


def table(found: Sequence[Mutation]) -> str:
    """Return a Markdown table by file, and each mutation that was not noticed with its reason."""
    lines = [f"| file | {KILLED} | {LATE} | {SURVIVED} |", "|---|---|---|---|"]
    for file in dict.fromkeys(one.file for one in found):
        outcomes = [one.outcome for one in found if one.file == file]
        counts = [str(outcomes.count(outcome)) for outcome in (KILLED, LATE, SURVIVED)]
        lines.append(f"| {file} | {' | '.join(counts)} |")
    left = [one for one in found if one.outcome in (SURVIVED, BROKEN)]
    told = [f"- {m.file}: {m.breaks}: {m.survives or m.by or 'no reason is given'}" for m in left]
    return "\n".join([*lines, "", f"Not noticed: {len(left)} of {len(found)}.", *told]) + "\n"


def verdicts(found: Sequence[Mutation]) -> list[common.Verdict]:
    """Return the goals of the tests and of the list, with the measured values."""
    left = [one for one in found if one.outcome == SURVIVED]
    wrong = [one for one in found if one.survives and one.outcome in (KILLED, LATE)]
    counts = {
        "survivors of 60": (60 * len(left) / len(found), 5),
        "survivors in judge, verify and signing": (sum(m.file in TRUSTED for m in left), 0),
        "survivors without a reason": (sum(not one.survives for one in left), 0),
        "said to survive, but killed": (len(wrong), 0),
        "not to be made": (sum(one.outcome == BROKEN for one in found), 0),
    }
    return [common.Verdict(what=w, value=value, goal=goal) for w, (value, goal) in counts.items()]


def measure(terminal: Terminal, engine: Engine) -> common.Measured:
    """Run the list."""
    listed = read_list(LIST.read_text(encoding="utf-8"))
    words = sys.argv[1:] or [""]
    wanted = [one for one in listed if any(word in one.file for word in words)]
    places = {(one.file, one.breaks): number for number, one in enumerate(wanted)}
    found = sorted(play_all(wanted, terminal), key=lambda one: places[one.file, one.breaks])
    (common.RESULTS / "mutations.md").write_text(table(found), encoding="utf-8")
    outcomes = [one.outcome for one in found]
    series = {"mutations": [[outcomes.count(x)] for x in (KILLED, LATE, SURVIVED)]}
    return common.Measured(
        title="Small mistakes that fast tests notice",
        runs=[asdict(one) for one in found],
        panels=[common.Panel(title=f"{len(found)} mutations", unit="", series=series,
                             x=[KILLED, LATE, SURVIVED])],
        verdicts=verdicts(found),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(common.main("mutations", measure))
