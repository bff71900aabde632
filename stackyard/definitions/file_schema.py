"""Describe files as JSON Schemas (2020-12), out of the functions that read them.

Owns the recorder that a function reads in place of a file, which notes every question. So a schema
says which keys there are, of which kind, which are required, and the words that are allowed; rules
between values are the reader's alone. Pure.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stackyard.definitions.document import ENV_NAME, MAX_DEPTH, Mapping
from stackyard.definitions.schema import Schema, head, words_of

T = TypeVar("T")

# Stands for every key of a mapping whose keys are names that the file chooses.
ANY = "*"
_TEXT: Schema = {"type": "string"}
_LINE: Schema = {"type": "string", "pattern": "^[^\\u0000-\\u001f\\u007f]*$"}
# YAML 1.1 reads 1e-3 as text; the reader takes it as the number it is.
_NUMBER: Schema = {
    "type": ["number", "string"],
    "pattern": "^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$",
}
_WORD: Schema = {"type": ["string", "number", "boolean"]}


@dataclass
class _Shape:
    """Hold what was asked of a mapping: the kinds of each key, and which must be there."""

    keys: dict[str, list[Schema | _Shape]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)

    def add(self, key: str, kind: Schema) -> None:
        """Note a kind of value of a key."""
        kinds = self.keys.setdefault(key, [])
        if kind not in kinds:
            kinds.append(kind)

    def below(self, key: str, *, listed: bool) -> _Shape:
        """Return the shape of a mapping, or of the mappings in a list, under a key."""
        for kind in self.keys.setdefault(key, []):
            inner = kind.get("items") if isinstance(kind, dict) and listed else kind
            if isinstance(inner, _Shape):
                return inner
        made = _Shape()
        self.keys[key].append({"type": "array", "items": made} if listed else made)
        return made


class _Recorder(Mapping):
    """Answer a reader's questions in place of a file, and note them.

    Args:
        shape: where the questions are noted.
        levels: how many levels of mappings are full, this one included; those below are empty.
        nested: whether values that may be mappings or text are mappings.
        edge: gets the mappings that were empty.
    """

    def __init__(self, shape: _Shape, levels: int, edge: list[_Shape], *, nested: bool) -> None:
        self.file = self.path = ""
        self.line = 1
        self.problems = []
        self._shape, self._levels, self._edge, self._nested = shape, levels, edge, nested
        if not levels:
            edge.append(shape)

    def keys(self) -> list[str]:
        """Return the one key that stands for all."""
        return [ANY] if self._levels else []

    def has(self, key: str) -> bool:
        """Return whether this level is full."""
        return self._levels > 0

    def is_mapping(self, key: str) -> bool:
        """Return whether such a value is a mapping this time."""
        return self._nested

    def problem(self, message: str, *, key: str = "", line: int | None = None) -> None:
        """Ignore rules between values."""

    def missing(self, key: str, message: str = "") -> None:
        """Note a key that an empty mapping lacks."""
        if not self._levels:
            self._shape.required.add(key)

    def done(self) -> None:
        """Ignore the end of a mapping: every key is known."""

    def text(self, key: str, default: str | None = None) -> str:
        """Note a string."""
        return self._noted(key, _TEXT, default, "")

    def single_line(self, key: str, default: str | None = None) -> str:
        """Note a string of one line."""
        return self._noted(key, _LINE, default, "")

    def word(self, key: str, default: str | None = None) -> str:
        """Note a scalar."""
        return self._noted(key, _WORD, default, "")

    def integer(self, key: str, default: int | None = None) -> int:
        """Note a whole number."""
        return self._noted(key, {"type": "integer"}, default, 0)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Note true or false."""
        return self._noted(key, {"type": "boolean"}, default, False)

    def number(self, key: str, default: float | None = None) -> float:
        """Note a number."""
        return self._noted(key, _NUMBER, default, 0.0)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Note a list of strings."""
        return self._noted(key, {"type": "array", "items": _TEXT}, default, ())

    def single_lines(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Note a list of strings of one line each."""
        return self._noted(key, {"type": "array", "items": _LINE}, default, ())

    def env(self, key: str) -> dict[str, str]:
        """Note the variables of an environment."""
        names = {"pattern": f"^({ENV_NAME.pattern})$"}
        kind = {"type": "object", "propertyNames": names, "additionalProperties": _LINE}
        return self._noted(key, kind, {}, {})

    def table(self, key: str, default: dict[str, str] | None = None) -> dict[str, str]:
        """Note a mapping of strings to strings."""
        return self._noted(key, {"type": "object", "additionalProperties": _TEXT}, default, {})

    def one_of(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Note a string that is one of `choices`."""
        return self._noted(key, {"enum": list(choices)}, default, "")

    def mapping(self, key: str) -> Mapping | None:
        """Note a nested mapping, and record it unless this level is empty."""
        inner = self._shape.below(key, listed=False)
        return self._recorder(inner) if self._levels else None

    def mappings(self, key: str) -> list[Mapping]:
        """Note a list of mappings, and record one unless this level is empty."""
        inner = self._shape.below(key, listed=True)
        return [self._recorder(inner)] if self._levels else []

    def _recorder(self, shape: _Shape) -> _Recorder:
        return _Recorder(shape, self._levels - 1, self._edge, nested=self._nested)

    def _noted(self, key: str, kind: Schema, default: T | None, blank: T) -> T:
        self._shape.add(key, kind)
        if default is None and (key == ANY or not self._levels):
            self._shape.required.add(key)
        return blank if default is None else default


def file_schema(name: str, title: str, read: Callable[[Mapping], object]) -> Schema:
    """Return the schema of a file that a function reads.

    Where the function returns a dataclass, the words on its attributes describe the keys of the
    same names.
    """
    shape, found = _Shape(), None
    # Full to each depth once: what a mapping requires is asked of it where it is empty, and all
    # above is full.
    for levels in range(MAX_DEPTH):
        edge: list[_Shape] = []
        for nested in (True, False):
            found = read(_Recorder(shape, levels, edge, nested=nested))
        if not edge:
            break
    declared = type(found) if dataclasses.is_dataclass(found) else None
    return {**head(name, title), **_object(shape, declared)}


def _object(shape: _Shape, declared: type | None) -> Schema:
    words, inner = words_of(declared), _inner(declared)
    properties = {}
    others: Schema | bool = False
    for key, kinds in shape.keys.items():
        made = [_kind(kind, inner.get(key)) for kind in kinds]
        if key not in shape.required:
            made = _nullable(made)
        value = made[0] if len(made) == 1 else {"anyOf": made}
        if key == ANY:
            others = value
        else:
            properties[key] = {**value, **words.get(key, {})}
    required = sorted(shape.required - {ANY})
    return {
        "type": "object",
        **({"properties": properties} if properties else {}),
        **({"required": required} if required else {}),
        "additionalProperties": others,
    }


def _kind(kind: Schema | _Shape, declared: type | None) -> Schema:
    if isinstance(kind, _Shape):
        # The entries of a mapping by name are described by what they become.
        by_name = set(kind.keys) == {ANY}
        if by_name and all(isinstance(one, _Shape) for one in kind.keys[ANY]):
            entries = [_kind(one, declared) for one in kind.keys[ANY]]
            return {"type": "object", "additionalProperties": _nullable(entries)[0]}
        return _object(kind, declared)
    if isinstance(kind.get("items"), _Shape):
        return {**kind, "items": _object(kind["items"], declared)}
    return dict(kind)


def _nullable(kinds: Sequence[Schema]) -> list[Schema]:
    """Return kinds of which one also allows null: a key without a value is an absent key."""
    first, *others = kinds
    if "enum" in first:
        return [{"enum": [*first["enum"], None]}, *others]
    given = first["type"] if isinstance(first["type"], list) else [first["type"]]
    return [{**first, "type": [*given, "null"]}, *others]


def _inner(declared: type | None) -> dict[str, type]:
    """Return the dataclass in the type of each field that has one."""
    hints = typing.get_type_hints(declared) if declared else {}
    found = {name: _dataclass_in(hint) for name, hint in hints.items()}
    return {name: one for name, one in found.items() if one is not None}


def _dataclass_in(hint: Any) -> type | None:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    inner = (_dataclass_in(one) for one in typing.get_args(hint))
    return next((one for one in inner if one is not None), None)
