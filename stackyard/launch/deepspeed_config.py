"""Hold the DeepSpeed configurations that a job names against its ranks, before it starts.

Owns which words of a program name one, and which contradictions DeepSpeed would find only once all
ranks run. The files are the user's: nothing is written into them. Pure: reading is an argument.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeGuard

from stackyard.launch.job import Job
from stackyard.system.errors import UsageError, shown

MOST_BYTES = 2**20
TRAINER, PLAIN = "--deepspeed", "--deepspeed_config"
_TOTAL = "train_batch_size"
_PARTS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
Read = Callable[[str], bytes | None]


@dataclass(frozen=True, kw_only=True)
class Named:
    """Hold one configuration that a job names.

    Attributes:
        text: its path in the nodes, or the configuration itself.
        by: the option or file that names it.
        data_parallel: every rank has data of its own, so the ranks decide on batch sizes.
    """

    text: str
    by: str
    data_parallel: bool


def named(job: Job) -> Iterator[Named]:
    """Yield the configurations that a job's program and its accelerate configuration name."""
    for word, following in itertools.pairwise([*job.program, ""]):
        name, equals, value = word.partition("=")
        text = value if equals else following
        # `--deepspeed` alone is a switch of DeepSpeed's own, beside --deepspeed_config.
        given = text.endswith(".json") or text.startswith("{")
        if given and name in (TRAINER, PLAIN):
            yield Named(text=text, by=name, data_parallel=name == TRAINER)
    own = job.config.deepspeed.get("deepspeed_config_file") if job.config else None
    if job.config and own:
        yield Named(text=str(own), by=job.config.name, data_parallel=True)


def examine(job: Job, ranks: int, read: Read) -> list[str]:
    """Return warnings about the DeepSpeed configurations that a job names.

    Args:
        read: returns a file of the first node, None where it cannot be read.

    Raises:
        UsageError: a configuration is missing, is not JSON, or contradicts the ranks.
    """
    warnings = []
    for one in named(job):
        values = _values(one, job.folder, read)
        wrong = conflict(values, ranks)
        name = "its configuration" if one.text.startswith("{") else one.text
        if wrong and one.data_parallel and not values.get("tensor_parallel"):
            raise UsageError(f"{name} ({one.by}) contradicts this run", why=wrong)
        if wrong:
            # With model parallelism, fewer ranks than all have data of their own.
            warnings.append(f"{name} ({one.by}): {wrong}, unless the program is model parallel")
    return warnings


def _values(one: Named, folder: str, read: Read) -> Mapping[str, Any]:
    path = "" if one.text.startswith("{") else str(PurePosixPath(folder) / one.text)
    data = read(path) if path else one.text.encode()
    if data is None:
        raise UsageError(
            f"{one.by} names {shown(one.text)}, which the first node cannot read",
            why=f"it would be {shown(path)} there",
            hint="it must be in one of hosts.yml's folders: invoke sync brings it to all hosts",
        )
    try:
        values = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{shown(one.text)} ({one.by}) is not JSON", why=str(error)) from error
    if not isinstance(values, dict):
        raise UsageError(f"{shown(one.text)} ({one.by}) holds no keys")
    return values


def conflict(values: Mapping[str, Any], ranks: int) -> str:
    """Return how batch sizes contradict each other on so many ranks; empty where they do not."""
    total = values.get(_TOTAL)
    if not _whole(total):
        return ""  # absent, or `auto`: the program decides
    given = {name: part for name in _PARTS if _whole(part := values.get(name))}
    product = math.prod(given.values()) * ranks
    said = " x ".join([*(f"{name} {part}" for name, part in given.items()), f"{ranks} ranks"])
    if len(given) == len(_PARTS) and product != total:
        return f"{_TOTAL} is {total}, but {said} make {product}"
    if total % product:
        return f"{_TOTAL} {total} cannot be divided by {said}"
    return ""


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
