"""Read `images/baselines/<gpu>.yml`: what healthy GPUs of one model reach.

Owns which measurements there are, and which figures of one fit each other. As in
`definitions.read.files`, every wrong value becomes a problem of the mapping being read, never an
exception.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as Table

from stackyard.definitions.document import Mapping
from stackyard.definitions.spec import Baseline, Measure
from stackyard.system.errors import Problem

FOLDER = "images/baselines"
ALLREDUCE, MATMUL, MEMORY, COPY, TOKENS = (
    "allreduce_gb_s", "matmul_bf16_tflop_s", "memory_gb_s", "peer_copy_gb_s", "tokens_s",
)  # fmt: skip
KINDS = (MATMUL, MEMORY, COPY, ALLREDUCE, TOKENS)


def read_baseline(top: Mapping, name: str) -> Baseline:
    """Read one file; every kind of measurement is in it, or named as not measured."""
    measures = tuple(_measure(entry) for entry in top.mappings("measures"))
    missing = top.table("not_measured", {})
    seen: set[tuple[str, int, int]] = set()
    for one in measures:
        key = (one.kind, one.ranks, one.bytes)
        if key in seen:
            top.problem(f"{one.kind} of {one.ranks} ranks is given twice", key="measures")
        seen.add(key)
    for kind in missing:
        if kind not in KINDS:
            top.problem(f"unknown kind {kind!r}; known: {', '.join(KINDS)}", key="not_measured")
    for kind in KINDS:
        there = any(one.kind == kind for one in measures)
        if there == (kind in missing):
            what = "both measured and" if there else "neither measured nor"
            top.problem(f"{kind} is {what} named here", key="not_measured")
    gpus = top.single_lines("gpus")
    if not gpus and top.has("gpus"):
        top.problem("must not be empty: it would fit no GPU", key="gpus")
    return Baseline(name=name, gpus=gpus, measures=measures, not_measured=missing)


def _measure(entry: Mapping) -> Measure:
    one = Measure(
        kind=entry.one_of("kind", KINDS),
        ranks=entry.integer("ranks"),
        bytes=entry.integer("bytes", 0),
        value=entry.number("value"),
        low=entry.number("low"),
        high=entry.number("high"),
        count=entry.integer("count"),
        bound=entry.number("bound"),
        source=entry.single_lines("source"),
        field=entry.single_lines("field"),
    )
    if (one.kind == ALLREDUCE) != (one.bytes > 0):
        entry.problem(f"must be positive for {ALLREDUCE}, and is of no other kind", key="bytes")
    for key, number in (("ranks", one.ranks), ("count", one.count)):
        if entry.has(key) and number < 1:
            entry.problem("must be at least 1", key=key)
    figures = (one.bound, one.low, one.value, one.high)
    # Compared from the positive end, so that a value that is no number (`.nan`) is refused, too.
    if not all(math.isfinite(number) and number > 0 for number in figures):
        entry.problem("bound, low, value and high must be positive numbers", key="value")
    elif not one.low <= one.value <= one.high:
        entry.problem("must lie between low and high", key="value")
    elif one.bound > one.low:
        entry.problem("a GPU that was measured itself would fail: it must not be above low",
                      key="bound")  # fmt: skip
    if not one.source or not one.field:
        entry.problem("must name the reports, and the field in them", key="source")
    entry.done()
    return one


def check_gpus(baselines: Table[str, Baseline]) -> list[Problem]:
    """Return a problem for each GPU that two files name."""
    owners: dict[str, str] = {}
    found = []
    for name, one in baselines.items():
        for gpu in one.gpus:
            first = owners.setdefault(gpu, name)
            if first != name:
                found.append(Problem(file=f"{FOLDER}/{name}.yml", line=1, key="gpus",
                                     message=f"{gpu} is in {FOLDER}/{first}.yml, too"))  # fmt: skip
    return found
