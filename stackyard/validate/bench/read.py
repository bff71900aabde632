"""Read a bench's file and the list of peaks strictly, and report every problem at once.

Owns what `images/<stack>/bench.yml` and `images/bench/peaks.yml` may say. As in
`definitions.read.files`, a wrong value becomes a problem of the mapping being read, never an
exception, until the file is done.
"""

from __future__ import annotations

from pathlib import Path

from stackyard.definitions.document import Mapping, nearest, parse_document
from stackyard.definitions.read.smoke import check_placeholders
from stackyard.launch import LAUNCHERS
from stackyard.system.errors import DefinitionError, Problem
from stackyard.validate.bench.definition import Bench, BenchSize, Model, Peak, Side, Tolerance

PEAKS = "images/bench/peaks.yml"
DIMENSIONS = ("layers", "width", "heads", "inner", "vocabulary", "context")
# OWN is filled in from the size; LATER by `validate.training`, for every launch.
OWN = (*DIMENSIONS, "rows", "batch", "window", "warm")
LATER = ("text", "data", "save", "record", "updates", "ranks")
DEVICES = ("cpu", "cuda")


def load_bench(root: Path, stack: str) -> Bench:
    """Load the bench of a stack.

    Raises:
        DefinitionError: its file is missing or wrong; lists all problems.
    """
    file = f"images/{stack}/bench.yml"
    problems: list[Problem] = []
    top = _open(root, file, problems)
    found = read_bench(top, stack) if top is not None else None
    if found is None or problems:
        raise DefinitionError(problems)
    return found


def load_peaks(root: Path) -> tuple[Peak, ...]:
    """Load the known peaks of GPUs.

    Raises:
        DefinitionError: the file is missing or wrong; lists all problems.
    """
    problems: list[Problem] = []
    top = _open(root, PEAKS, problems)
    found = read_peaks(top) if top is not None else ()
    if problems:
        raise DefinitionError(problems)
    return found


def _open(root: Path, file: str, problems: list[Problem]) -> Mapping | None:
    try:
        text = (root / file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or "") if isinstance(error, OSError) else str(error)
        problems.append(Problem(file=file, line=1, key="", message=f"cannot be read: {said}"))
        return None
    return parse_document(text, file=file, problems=problems)


def read_peaks(top: Mapping) -> tuple[Peak, ...]:
    """Read `images/bench/peaks.yml`."""
    found = []
    for entry in top.mappings("peaks"):
        peak = Peak(
            names=entry.single_lines("names"),
            flops=entry.number("flops"),
            source=entry.text("source"),
        )
        if not peak.names:
            entry.problem("must not be empty: it would fit every GPU", key="names")
        if not peak.flops > 0:
            entry.problem("must be positive", key="flops")
        entry.done()
        found.append(peak)
    top.done()
    return tuple(found)


def read_bench(top: Mapping, stack: str) -> Bench:
    """Read `images/<stack>/bench.yml`."""
    launcher = top.one_of("launcher", LAUNCHERS, "torchrun")
    one = top.mapping("one_rank")
    fused = top.texts("fused", ())
    bench = Bench(
        stack=stack,
        what=top.text("what"),
        unit=top.single_line("unit", "tokens"),
        launcher=launcher,
        one_launcher=one.one_of("launcher", LAUNCHERS) if one else launcher,
        one_args=one.texts("args", ()) if one else (),
        prepare=top.texts("prepare"),
        program=top.texts("program"),
        sides=tuple(_side(item, name, fused) for name, item in top.entries("sides").items()),
        sizes={name: _size(item, name) for name, item in top.entries("sizes").items()},
        start_seconds=_positive(top, "start_seconds", 120),
        stall_seconds=_positive(top, "stall_seconds", 180),
    )
    if one:
        one.done()
    _check_sides(top, bench)
    _check_words(top, bench)
    if set(bench.sizes) != set(DEVICES):
        top.problem(f"has one entry for each of {', '.join(DEVICES)}", key="sizes")
    top.done()
    return bench


def _side(entry: Mapping, name: str, fused: tuple[str, ...]) -> Side:
    side = Side(
        name=name,
        what=entry.single_line("what"),
        program=entry.texts("program", ()),
        args=entry.texts("args", ()),
        env=entry.env("env"),
        against=entry.single_line("against", ""),
        asked=entry.flag("asked", False),
        fused=entry.texts("fused", fused),
    )
    entry.done()
    return side


def _size(entry: Mapping, device: str) -> BenchSize:
    model = entry.mapping("model")
    if model is None:
        entry.missing("model")
    numbers = {name: _positive(model, name) if model else 0 for name in DIMENSIONS}
    tolerance, wider = _tolerances(entry)
    size = BenchSize(
        device=device,
        what=entry.single_line("what"),
        model=Model(**numbers),
        rows=_positive(entry, "rows"),
        batch=_positive(entry, "batch"),
        updates=_positive(entry, "updates"),
        warm=_positive(entry, "warm"),
        window=_positive(entry, "window"),
        args=entry.texts("args", ()),
        env=entry.env("env"),
        tolerance=tolerance,
        wider=wider,
    )
    if model:
        if size.model.heads and size.model.width % size.model.heads:
            model.problem("must divide width", key="heads")
        model.done()
    wrong = counting_problem(size.updates, size.warm, size.window)
    if wrong:
        entry.problem(wrong, key="updates")
    entry.done()
    return size


def counting_problem(updates: int, warm: int, window: int) -> str:
    """Return why these numbers leave no update to count; empty if they leave some."""
    if not window or updates % window or warm % window:
        return f"updates and warm must be multiples of the window ({window})"
    if updates < warm + window:
        return f"at least {warm + window} are needed: {warm} of them are not counted"
    return ""


def _tolerances(size: Mapping) -> tuple[Tolerance, dict[str, Tolerance]]:
    """Read the tolerance of all sides, and those of some sides."""
    entry = size.mapping("same_loss")
    if entry is None:
        size.missing("same_loss")
        return Tolerance(curve=0.0, end=0.0), {}
    wider = {name: _tolerance(item) for name, item in entry.entries("sides").items()}
    return _tolerance(entry), wider


def _tolerance(entry: Mapping) -> Tolerance:
    found = Tolerance(curve=entry.number("curve"), end=entry.number("end"))
    for key, value in (("curve", found.curve), ("end", found.end)):
        if not 0 < value <= 1:
            entry.problem("must lie between 0 and 1", key=key)
    entry.done()
    return found


def _positive(entry: Mapping, key: str, default: int | None = None) -> int:
    value = entry.integer(key, default)
    if entry.has(key) and value < 1:
        entry.problem("must be at least 1", key=key)
    return value


def _check_sides(top: Mapping, bench: Bench) -> None:
    names = [side.name for side in bench.sides]
    if not names:
        top.problem("at least one side is needed", key="sides")
        return
    first = bench.sides[0]
    if first.asked or first.against:
        top.problem(f"{first.name!r} is the first: others are held against it", key="sides")
    for side in bench.sides:
        if not side.name.replace("-", "").isalnum() or not side.name.islower():
            top.problem(f"{side.name!r}: lower-case letters, digits and dashes", key="sides")
        if side.against and side.against not in names:
            top.problem(
                f"unknown side {side.against!r}; {nearest(side.against, names)}", key="sides"
            )
    for size in bench.sizes.values():
        for name in sorted(set(size.wider) - set(names)):
            where = f"sizes.{size.device}.same_loss.sides"
            top.problem(f"unknown side {name!r}; {nearest(name, names)}", key=where)


def _check_words(top: Mapping, bench: Bench) -> None:
    """Check that every placeholder is known, and that the program is not empty."""
    words = {"prepare": bench.prepare, "program": bench.program, "one_rank": bench.one_args}
    words |= {f"sides.{s.name}": (*s.program, *s.args) for s in bench.sides}
    words |= {f"sizes.{name}": size.args for name, size in bench.sizes.items()}
    if top.has("program") and not bench.program:
        top.problem("must not be empty", key="program")
    for key, argv in words.items():
        check_placeholders(top, key, argv, (*OWN, *LATER))
