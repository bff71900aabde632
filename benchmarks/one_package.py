"""Time a change of one package of one stack until its image is built, against a build by hand.

Each case is a package in another version, in a copy of the project: only its line in `stack.yml`
and its entry in the lock change. Stackyard's side is `invoke build --base cpu` for all stacks,
which has to find out by itself that two of them are unchanged; by hand is the one Dockerfile that a
person knows must be built. The engine's images get their names back at the end, and new images are
removed (but BuildKit's own cache stays, as after any build).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, hand_build
from benchmarks.cold_build import INVOKE, built_rows
from benchmarks.common import Measured, Panel, Verdict
from stackyard.build import buildkit, dockerfile
from stackyard.cli.console import Terminal
from stackyard.definitions import lock
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError

OURS, BY_HAND = "stackyard", "by hand"
GOAL = 20.0
_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Hold a package of a stack and the versions it is changed to, one after another."""

    stack: str
    package: str
    versions: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the case's name for people."""
        return f"{self.stack}: {self.package}"


CASES = (
    Case(stack="megatron", package="einops", versions=("0.8.1", "0.8.0", "0.7.0")),
    Case(stack="fairseq", package="regex", versions=("2026.7.10", "2026.1.14", "2025.11.3")),
)


def with_pin(stack_yml: str, package: str, version: str) -> str:
    """Return the text of a `stack.yml` with one package pinned to a version."""
    line = f'  {package}: "{version}"'
    declared = re.compile(rf"^  {re.escape(package)}: .*$", re.MULTILINE)
    if declared.search(stack_yml):
        return declared.sub(line, stack_yml)
    return re.sub(r"^packages:$", f"packages:\n{line}", stack_yml, count=1, flags=re.MULTILINE)


def with_entry(old: str, new: str, package: str, command: str) -> str:
    """Return the old lock with one package's entry, and its inputs, from a new lock.

    Raises:
        StackyardError: the new lock does not hold the package.
    """
    entries = {item.name: item for item in lock.parse_lock(old)}
    found = [item for item in lock.parse_lock(new) if item.name == package]
    if not found:
        raise StackyardError(f"{package} is not in the lock that was made for it")
    entries[package] = found[0]
    return lock.render_lock(entries.values(), inputs=lock.locked_inputs(new), command=command)


def _copy_images(origin: Path, copy: Path) -> None:
    """Copy the definitions with the stacks' locks on cpu alone: the others would become stale."""
    shutil.copytree(origin / "images", copy / "images", dirs_exist_ok=True)
    for own in (copy / "images").glob("*/*.lock"):
        path = own.relative_to(copy).as_posix()
        if own.name == "cpu.lock":
            own.write_text(lock.spread(path, own.read_text("utf-8"))[path], "utf-8")
        elif own.parent.name not in ("bases", "wheels"):
            own.unlink()


def edit_copy(origin: Path, copy: Path, case: Case, version: str, mark: str) -> None:
    """Copy the project with one package of one stack changed; `mark` is a comment."""
    _copy_images(origin, copy)
    declared = copy / "images" / case.stack / "stack.yml"
    pinned = with_pin(declared.read_text(encoding="utf-8"), case.package, version)
    path = lock.lock_path(case.stack, "cpu")
    declared.write_text(pinned, encoding="utf-8")
    process.run([str(INVOKE), "lock", case.stack, "--base", "cpu"], cwd=copy, timeout=900)
    resolved = (copy / path).read_text(encoding="utf-8")
    # A new resolution may have moved other packages, too, and only one must change.
    _copy_images(origin, copy)
    declared.write_text(pinned, encoding="utf-8")
    command = f"invoke lock {case.stack} --base cpu"
    old = (origin / path).read_text(encoding="utf-8")
    changed = with_entry(old, resolved, case.package, command)
    (copy / path).write_text(f"{changed}# {mark}\n", encoding="utf-8")


def build_ours(copy: Path) -> tuple[float, list[dict[str, Any]]]:
    """Run `invoke build --base cpu` in the copy; return its seconds and report of each image."""
    started = time.monotonic()
    words = [str(INVOKE), "build", "--base", "cpu", "--json"]
    output = process.run(words, cwd=copy, timeout=3600).output
    return time.monotonic() - started, built_rows(output)


def require_only(stack: str, rows: Sequence[Mapping[str, Any]], before: Mapping[str, str]) -> None:
    """Check that one stack was built, and every other image is unchanged.

    Raises:
        StackyardError: another image was built or changed, or nothing was; names them.
    """
    wrong = [
        f"{row['stack']}: {'built' if row['made'] else 'not built'}, image {row['image'][:19]}"
        for row in rows
        if row["made"] != (row["stack"] == stack)
        or (row["image"] == before[row["stack"]]) != (row["stack"] != stack)
    ]
    if wrong:
        raise StackyardError(f"the build did not change {stack} alone", why="\n".join(wrong))


def require_version(engine: Engine, image: str, case: Case, version: str) -> None:
    """Check that an image holds the version that was asked for.

    Raises:
        StackyardError: it holds another one.
    """
    words = ["python3", "-c", _VERSION, case.package]
    found = engine.run_once(image, words, seconds=60).strip()
    if found != version:
        raise StackyardError(f"{image[:19]} holds {case.package} {found}, not {version}")


def ids(engine: Engine, names: Sequence[str]) -> dict[str, str | None]:
    """Return the image id of each name; None where there is none."""
    found = {name: engine.image(name) for name in names}
    return {name: info.id if info else None for name, info in found.items()}


@contextlib.contextmanager
def names_restored(engine: Engine, client: str, names: Sequence[str]) -> Iterator[set[str]]:
    """Give the images their names back at the end, and remove those put into the yielded set."""
    before = ids(engine, names)
    made: set[str] = set()
    try:
        yield made
    finally:
        for name, was in before.items():
            if was is None:
                process.run([client, "rmi", name], check=False)
            else:
                engine.tag(was, name)
        for image in made - set(before.values()):
            process.run([client, "rmi", image], check=False)


class _Sides:
    """Build the two sides of one run, on the caller's own engine."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        hand: hand_build.Hand,
        made: set[str],
    ) -> None:
        self._engine, self._hand, self._made = engine, hand, made
        self._origin = common.copy_project(folder / "origin")
        self._copy = common.copy_project(folder / "copy")
        self._base = load_project(self._origin).definitions.bases["cpu"]

    def edit(self, case: Case, version: str) -> None:
        """Change one package of one stack in the copy, for both sides."""
        # A new mark each time: the layer cache of an earlier benchmark cannot be used.
        mark = f"benchmark {secrets.token_hex(8)}"
        edit_copy(self._origin, self._copy, case, version, mark)
        hand_build.write_requirements(
            self._copy, self._base, self._hand.folder, [case.stack], mark=mark
        )

    def ours(self, case: Case, version: str) -> float:
        """Build after the edit, and check that only the one stack was built, as edited."""
        # Right before, all images are those of the unchanged project.
        _, current = build_ours(self._origin)
        before = {row["stack"]: row["image"] for row in current}
        seconds, rows = build_ours(self._copy)
        self._made |= {row["image"] for row in (*current, *rows) if row["made"]}
        require_only(case.stack, rows, before)
        image = next(row["image"] for row in rows if row["stack"] == case.stack)
        require_version(self._engine, image, case, version)
        return seconds

    def build_hand(self, case: Case) -> float:
        """Build the one hand-written Dockerfile; return the seconds it took."""
        started = time.monotonic()
        hand_build.build_stack(self._hand, case.stack, lambda step: None)
        seconds = time.monotonic() - started
        self._made.add(self._hand_image(case))
        return seconds

    def by_hand(self, case: Case, version: str) -> float:
        """Build by hand after the edit, and check that the image is as edited."""
        seconds = self.build_hand(case)
        require_version(self._engine, self._hand_image(case), case, version)
        return seconds

    def _hand_image(self, case: Case) -> str:
        info = self._engine.image(hand_build.tag(case.stack))
        assert info is not None
        return info.id


def run_case(case: Case, sides: _Sides, terminal: Terminal) -> list[dict[str, Any]]:
    """Measure every version of one case, both sides of each right after each other."""
    terminal.say(case.stack, "building by hand as it is before the change")
    sides.build_hand(case)
    runs = []
    for number, version in enumerate(case.versions):
        terminal.say(case.stack, f"changing {case.package} to {version}")
        sides.edit(case, version)
        both = {OURS: sides.ours, BY_HAND: sides.by_hand}
        for side in both if number % 2 == 0 else reversed(both):
            seconds = both[side](case, version)
            terminal.done(side, f"{case.name} {version}: {seconds:.1f} s")
            run = {"side": side, "case": case.name, "version": version, "seconds": seconds}
            runs.append(run)
    return runs


def summarise(runs: Sequence[Mapping[str, Any]], cases: Sequence[Case]) -> Measured:
    """Return the picture and the verdicts that follow from the runs."""

    def values(side: str, case: Case) -> list[float]:
        return [r["seconds"] for r in runs if r["side"] == side and r["case"] == case.name]

    return Measured(
        title="One package of one stack in another version, until the image is there",
        runs=runs,
        panels=[
            Panel(
                title="wall time", unit="s", x=[case.name for case in cases],
                series={side: [values(side, case) for case in cases] for side in (OURS, BY_HAND)},
                limit=[GOAL for _ in cases],
            )
        ],
        verdicts=[
            Verdict(
                what=f"seconds to rebuild, {case.name}",
                value=common.middle(values(OURS, case)),
                goal=GOAL,
            )
            for case in cases
        ],
    )  # fmt: skip


def measure(cases: Sequence[Case]) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark; both sides are brought up to date first, outside the clock."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        project = load_project(ROOT)
        client = buildkit.find_client(os.environ.get("PATH", "")).path
        names = [dockerfile.image_tag(stack, "cpu") for stack in project.stacks("all")]
        names += hand_build.names(project)
        with contextlib.ExitStack() as held:
            made = held.enter_context(names_restored(engine, client, names))
            hand = held.enter_context(hand_build.prepared(project, "cpu"))
            hand_build.ensure_base(engine, project, lambda text: terminal.say(BY_HAND, text))
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="stackyard-copy-"))
            sides = _Sides(engine, Path(folder), hand, made)
            runs = [run for case in cases for run in run_case(case, sides, terminal)]
            return summarise(runs, cases)

    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(common.main("one_package", measure(CASES[: _arguments().cases])))
