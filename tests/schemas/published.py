"""Values held against the schemas of docs/schemas."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from stackyard.cli.schemas import path_of
from stackyard.definitions.project import ROOT

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


@functools.cache
def validator(name: str) -> Draft202012Validator:
    import jsonschema

    schema = json.loads((ROOT / path_of(name)).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def refused(name: str, value: Any) -> list[str]:
    """What a schema (`files/stack`, `answers/list`) holds against a value, as JSON returns it."""
    value = json.loads(json.dumps(value, default=str))
    return [error.message for error in validator(name).iter_errors(value)]
