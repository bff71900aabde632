"""Describe JSON values as JSON Schemas (2020-12), out of the types that declare them.

Owns the translation of types, and what all schemas have in common. Pure.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HOME = "https://stackyard.example/schemas"
Schema = dict[str, Any]

_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def head(name: str, title: str) -> Schema:
    """Return what every schema begins with."""
    return {"$schema": DIALECT, "$id": f"{HOME}/{name}.json", "title": title}


def words_of(declared: type | None) -> dict[str, Schema]:
    """Return descriptions of a class's attributes, from its docstring and those of its bases."""
    words: dict[str, str] = {}
    for one in reversed(declared.__mro__ if declared else ()):
        _, _, listed = inspect.cleandoc(vars(one).get("__doc__") or "").partition("Attributes:\n")
        words |= dict(re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE))
    return {name: {"description": " ".join(text.split())} for name, text in words.items()}


def value_schema(name: str, title: str, declared: Any) -> Schema:
    """Return the schema of a JSON value of a declared type.

    Types are those of JSON, lists, mappings, unions, literals, dataclasses and TypedDicts. A type
    with an annotation is described by that: `Annotated[list[Any], tuple[int, str]]`.
    """
    parts: dict[str, Schema] = {}
    schema = _typed(declared, parts)
    return {**head(name, title), **schema, **({"$defs": parts} if parts else {})}


def _typed(hint: Any, parts: dict[str, Schema]) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _typed(arguments[1], parts)
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_typed(one, parts) for one in arguments]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_typed(one, parts) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _typed(arguments[0], parts)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _typed(arguments[1], parts)}
    return _part(hint, parts)


def _part(declared: Any, parts: dict[str, Schema]) -> Schema:
    """Return a reference to a declared class, which becomes a part of the schema."""
    name = declared.__name__
    if name not in parts:
        parts[name] = {}  # a part may be in itself
        fields = typing.get_type_hints(declared, include_extras=True)
        required = getattr(declared, "__required_keys__", fields)
        words = words_of(declared)
        parts[name] = {
            "type": "object",
            "properties": {
                key: {**_typed(one, parts), **words.get(key, {})} for key, one in fields.items()
            },
            "required": sorted(key for key in fields if key in required),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}
