"""Read one file of `images/failures/`: how a known failure is recognised and repaired.

Owns what such a file may say. Every wrong value becomes a problem of the mapping being read. It
must not look at any log: `validate.diagnose` does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from stackyard.definitions import document
from stackyard.definitions.document import nearest
from stackyard.definitions.spec import Failure
from stackyard.system.errors import Problem

FOLDER = "images/failures"
KINDS = ("cause", "consequence", "remark")
STEPS = ("build", "run", "registry")


def read_failure(top: document.Mapping, name: str, known: Collection[str]) -> Failure:
    """Read `images/failures/<name>.yml`; `known` are the ids of all failures."""
    value = Failure(
        id=top.text("id"),
        title=top.text("title"),
        kind=top.one_of("kind", KINDS),
        steps=top.texts("steps"),
        any_of=top.texts("any_of", ()),
        all_of=top.texts("all_of", ()),
        cause=top.text("cause"),
        remedy=top.text("remedy"),
        brings=top.texts("brings", ()),
        threads=top.texts("threads", ()),
    )
    if value.id and value.id != name:
        top.problem(f"must be {name!r}, like its file, not {value.id!r}", key="id")
    for step in value.steps:
        if step not in STEPS:
            top.problem(f"unknown step {step!r}; {nearest(step, STEPS)}", key="steps")
    if not value.steps and top.has("steps"):
        top.problem(f"recognised nowhere: give some of {', '.join(STEPS)}", key="steps")
    if not value.any_of and not value.all_of:
        top.problem("recognises nothing: give any_of or all_of", key="any_of")
    for key, patterns in (("any_of", value.any_of), ("all_of", value.all_of)):
        for pattern in patterns:
            _check_pattern(top, key, pattern)
    for other in value.brings:
        if other not in known or other == name:
            top.problem(f"unknown failure {other!r}; {nearest(other, known)}", key="brings")
    for thread in value.threads:
        if not thread.startswith("https://"):
            top.problem(f"not an address: {thread!r}", key="threads")
    return value


def _check_pattern(top: document.Mapping, key: str, pattern: str) -> None:
    wrong = document.pattern_problem(pattern)
    if wrong:
        top.problem(f"not a regular expression: {pattern!r}: {wrong}", key=key)
    elif re.search(pattern, ""):
        top.problem(f"found in every line: {pattern!r}", key=key)


def check_brings(failures: Mapping[str, Failure]) -> Iterator[Problem]:
    """Yield a problem where `brings` is circular: such failures would hide each other."""
    order = TopologicalSorter(
        {one.id: [other for other in one.brings if other != one.id] for one in failures.values()}
    )
    try:
        order.prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        message = f"is circular: {', '.join(circle)}"
        yield Problem(file=f"{FOLDER}/{circle[0]}.yml", line=1, key="brings", message=message)
