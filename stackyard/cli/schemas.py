"""Make docs/schemas: JSON Schemas of users' files, of reports, and of what `--json` prints.

Owns which schemas there are, and their paths. Each is made from what declares it: the function that
reads a file, the type of a report or answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stackyard.cli.answers import ANSWERS, Error
from stackyard.definitions.document import Mapping as Entry
from stackyard.definitions.file_schema import ANY, file_schema
from stackyard.definitions.project import SETTINGS, SETTINGS_KEYS
from stackyard.definitions.read import baseline, example, failures, files, fix
from stackyard.definitions.schema import Schema, head, value_schema
from stackyard.mesh import hosts
from stackyard.report import bench, certify, prove, records, shapes, trained
from stackyard.scan import audit
from stackyard.scan.secrets import allowed
from stackyard.schedulers import site
from stackyard.validate.bench import read as bench_read

FOLDER = "docs/schemas"
_WIDTH = 100
README = f"{FOLDER}/README.md"


@dataclass(frozen=True, kw_only=True)
class File:
    """Describe one kind of file: its paths, the reader of its top mapping, and its purpose.

    Attributes:
        keys: meanings of keys that are no attributes of what the reader returns.
    """

    pattern: str
    read: Callable[[Entry], object]
    what: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


_APPLIES = {"applies_to": "versions, Python and devices on which the package has the fault"}
FILES: Mapping[str, File] = {
    "common": File(
        pattern="images/common.yml",
        read=files.read_common,
        what="what all stacks share: system packages, environment, and what images leave out",
    ),
    "base": File(
        pattern="images/bases/*.yml",
        read=lambda top: files.read_base(top, ANY),
        what="what a stack stands on: system, Python, PyTorch, CUDA; drivers and GPUs it needs",
    ),
    "stack": File(
        pattern="images/*/stack.yml",
        read=lambda top: files.read_stack(top, ANY),
        what="packages, fixes and the smoke of one stack",
    ),
    "wheel": File(
        pattern="images/wheels/*.yml",
        read=lambda top: files.read_wheel(top, ANY),
        what="a package without a usable wheel, built in a stage of its own",
    ),
    "fix": File(
        pattern="images/fixes/*.yml",
        read=lambda top: fix.read_fix(top, ANY, {}),
        what="one recorded repair: symptom, cause, remedy, witness, and until when it is needed",
        keys=_APPLIES,
    ),
    "limit": File(
        pattern="images/limits/*.yml",
        read=lambda top: fix.read_limit(top, ANY, ()),
        what="what a package cannot do: symptom, cause, what is done instead, witness of both",
        keys=_APPLIES,
    ),
    "failure": File(
        pattern="images/failures/*.yml",
        read=lambda top: failures.read_failure(top, ANY, ()),
        what="a known failure of builds and trainings: how it is recognised, its cause and remedy",
    ),
    "example": File(
        pattern="images/*/examples/*.yml",
        read=lambda top: example.read_top(top, ANY, ANY),
        what="a training that comes with a stack, full size and reduced",
    ),
    "bench": File(
        pattern="images/*/bench.yml",
        read=lambda top: bench_read.read_bench(top, ANY),
        what="what `invoke bench` trains: variants, sizes and bounds",
        keys={
            "one_rank": "launcher and arguments of a single rank, where they differ",
            "fused": "parts that must run fused on every rank on GPUs; a side may name others",
        },
    ),
    "peaks": File(
        pattern="images/bench/peaks.yml",
        read=bench_read.read_peaks,
        what="the peak FLOPs of GPUs, with sources",
        keys={"peaks": "words of the driver's names of a GPU, its FLOPs a second, and the source"},
    ),
    "baselines": File(
        pattern="images/baselines/*.yml",
        read=lambda top: baseline.read_baseline(top, ANY),
        what="what healthy GPUs of one model reach, with the reports that hold it",
    ),
    "accepted": File(
        pattern="images/accepted.yml",
        read=audit.read_top,
        what="known vulnerabilities that a release may have all the same, until a day",
        keys={"accepted": "package, vulnerability, last day and reason of each"},
    ),
    "gate": File(
        pattern="images/gate.yml",
        read=allowed.read_top,
        what="what the search for secrets may find in an image, with the reason",
        keys={"allowed": "kind of secret, path, fingerprints and reason of each"},
    ),
    "hosts": File(
        pattern="hosts.yml",
        read=lambda top: hosts.read_top(top, ANY),
        what="the hosts of a run, and the folders that nodes see",
        keys={"defaults": "what hosts have unless they have their own: user, key, gpus and others"},
    ),
    "site": File(
        pattern="site.yml", read=site.read_top, what="the settings of a Slurm or Kubernetes cluster"
    ),
}
# Title and type.
REPORTS: Mapping[str, tuple[str, Any]] = {
    "smoke": (records.SCHEMA, shapes.SmokeReport),
    "bench": (bench.SCHEMA, shapes.BenchReport),
    "template": (trained.SCHEMA, shapes.TemplateReport),
    "prove": (prove.SCHEMA, shapes.ProveReport),
    "certify": (certify.SCHEMA, shapes.CertifyReport),
    "proofs": ("images/<base>.proofs.json", shapes.Proofs),
    "curve": ("images/<stack>/curve.json", shapes.Curve),
}
_INTRODUCTION = f"""\
# JSON Schemas

Written by `scripts/schemas --write`, each from what declares it: the function that reads a file, or
the type of a report or answer. A schema says which keys there are, of which kind, which are
required, and the words that are allowed. Rules between values are checked when the file is read.
A key without a value (null) counts as absent.

An editor with a YAML language server checks a file that begins with a line like
`# yaml-language-server: $schema=../../{FOLDER}/files/stack.json`.
"""


def schema_files() -> dict[str, str]:
    """Return every schema and their list as text, by path from the project's root."""
    made = {path: _text(one) + "\n" for path, one in schemas().items()}
    return {**made, README: _readme()}


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON with short values on one line, as people would write it."""
    flat = json.dumps(value)
    if depth + len(flat) <= _WIDTH and depth:
        return flat
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}: {_text(one, depth + 1)}" for key, one in value.items()]
    elif isinstance(value, list):
        inner = [_text(one, depth + 1) for one in value]
    else:
        return flat
    lines = ",".join(f"\n{' ' * (depth + 1)}{line}" for line in inner)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{opening}{lines}\n{' ' * depth}{closing}"


def schemas() -> dict[str, Schema]:
    """Return every schema by its path."""
    made = {"files/settings": _settings()}
    for name, one in FILES.items():
        made[f"files/{name}"] = _described(
            file_schema(f"files/{name}", one.pattern, one.read), one.keys
        )
    for name, (title, declared) in REPORTS.items():
        made[f"reports/{name}"] = value_schema(f"reports/{name}", title, declared)
    for name, declared in ANSWERS.items():
        made[f"answers/{name}"] = value_schema(f"answers/{name}", f"invoke {name} --json", declared)
    made["answers/error"] = value_schema(
        "answers/error", "any command with --json that ends with an error", Error
    )
    return {path_of(name): schema for name, schema in made.items()}


def _described(schema: Schema, words: Mapping[str, str]) -> Schema:
    """Return the schema of a file with the meanings of further keys."""
    properties = {
        key: {**value, **({"description": words[key]} if key in words else {})}
        for key, value in schema["properties"].items()
    }
    return {**schema, "properties": properties}


def path_of(name: str) -> str:
    """Return the path of a schema from the project's root."""
    return f"{FOLDER}/{name}.json"


def _settings() -> Schema:
    keys = {name: {"type": "string", "description": says} for name, says in SETTINGS_KEYS.items()}
    return {
        **head("files/settings", SETTINGS),
        "type": "object",
        "properties": keys,
        "additionalProperties": False,
    }


def _readme() -> str:
    rows = [
        f"| [{path.removeprefix(f'{FOLDER}/')}]({path.removeprefix(f'{FOLDER}/')}) | "
        f"`{schema['title']}` |"
        for path, schema in schemas().items()
    ]
    return "\n".join([_INTRODUCTION, "| schema | of |", "|---|---|", *rows, ""])
