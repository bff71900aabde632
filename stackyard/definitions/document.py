"""Read one YAML file strictly, and collect every problem with its line.

Owns the rules for all files: no duplicate keys, no unknown keys, versions are quoted strings.
It must not know stacks, bases or fixes; `definitions.read` does.

Over 300 lines: one class, a method for each kind of value.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from stackyard.system.errors import Problem

_TAG = "tag:yaml.org,2002:"
MAX_DEPTH = 32
_COMPARED = 80  # characters; the time to compare words grows faster than their length
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
T = TypeVar("T")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the closest known word, or all known words if none is close.

    Return `none is known` where there are no words to compare with.
    """
    choices = sorted(choice for choice in known if len(choice) <= _COMPARED)
    close = difflib.get_close_matches(word[:_COMPARED], choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(choices)}" if choices else "none is known"


def pattern_problem(pattern: str) -> str:
    """Return why Python refuses a regular expression or warns of it; empty when it does neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return str(error)
    return ""


class Mapping:
    """Read a YAML mapping through typed getters that collect problems instead of raising.

    Every key that a getter asked for counts as known; `done()` reports the others.
    """

    def __init__(
        self, node: yaml.MappingNode, *, file: str, path: str, problems: list[Problem]
    ) -> None:
        self.file, self.path, self.problems = file, path, problems
        self.line = node.start_mark.line + 1
        self._nodes: dict[str, yaml.Node] = {}
        self._key_lines: dict[str, int] = {}
        self._asked: set[str] = set()
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem("a key must be plain text", line=line)
                continue
            key = str(key_node.value)
            if not key:
                self.problem("a key must not be empty", line=line)
                continue
            if key in self._nodes:
                first = self._key_lines[key]
                self.problem(f"duplicate key, first given on line {first}", key=key, line=line)
                continue
            self._nodes[key], self._key_lines[key] = value, line

    def problem(self, message: str, *, key: str = "", line: int | None = None) -> None:
        """Record a problem at `key` (or at the mapping itself)."""
        dotted = ".".join(part for part in (self.path, key) if part)
        at = line or self._key_lines.get(key, self.line)
        self.problems.append(Problem(file=self.file, line=at, key=dotted, message=message))

    def missing(self, key: str, message: str = "required key is missing") -> None:
        """Record that a key is missing which no getter demands, as of a nested mapping."""
        self.problem(message, key=key)

    def keys(self) -> list[str]:
        """Return the keys as written."""
        return list(self._nodes)

    def has(self, key: str) -> bool:
        """Return whether the key is there and not null; asking makes it a known key."""
        self._asked.add(key)
        node = self._nodes.get(key)
        is_null = isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"
        return node is not None and not is_null

    def text(self, key: str, default: str | None = None) -> str:
        """Read a string; as for all getters, a missing key without default is a problem."""
        return self._read(key, self._as_text, default, "")

    def single_line(self, key: str, default: str | None = None) -> str:
        """Read a string of one line, fit for a line of a Dockerfile."""
        return self._read(key, self._as_line, default, "")

    def word(self, key: str, default: str | None = None) -> str:
        """Read a scalar as it is written, whatever its YAML type; `0` and `0,1` are both text."""
        return self._read(key, self._as_word, default, "")

    def is_mapping(self, key: str) -> bool:
        """Return whether a key holds a mapping."""
        return isinstance(self._nodes.get(key), yaml.MappingNode)

    def integer(self, key: str, default: int | None = None) -> int:
        """Read a whole number."""
        return self._read(key, self._as_integer, default, 0)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Read true or false."""
        return self._read(key, self._as_flag, default, False)

    def number(self, key: str, default: float | None = None) -> float:
        """Read a key whose value is a whole or decimal number."""
        return self._read(key, self._as_number, default, 0.0)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Read a list of strings."""
        return self._read(key, self._as_texts, default, ())

    def single_lines(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Read a list of strings of one line each."""
        return self._read(key, self._as_lines, default, ())

    def env(self, key: str) -> dict[str, str]:
        """Read the variables of an environment, by name; empty when absent."""
        outer = self.mapping(key)
        values = {name: outer.single_line(name) for name in outer.keys()} if outer else {}  # noqa: SIM118
        for name in values:
            if outer and not ENV_NAME.fullmatch(name):
                outer.problem("must be the name of a variable", key=name)
        return values

    def table(self, key: str, default: dict[str, str] | None = None) -> dict[str, str]:
        """Read a mapping of strings to strings."""

        def read(node: yaml.Node, at: str) -> dict[str, str]:
            inner = self._as_mapping(node, at)
            values = {name: inner.text(name) for name in inner.keys()}  # noqa: SIM118
            inner.done()
            return values

        return self._read(key, read, default, {})

    def mapping(self, key: str) -> Mapping | None:
        """Read a nested mapping; None when the key is absent or its value wrong (a problem)."""
        if not self.has(key):
            return None
        return self._read(key, lambda node, at: self._as_mapping(node, at), None, None)

    def mappings(self, key: str) -> list[Mapping]:
        """Read a list of nested mappings; empty when absent."""
        if not self.has(key):
            return []

        def read(node: yaml.Node, at: str) -> list[Mapping]:
            if not isinstance(node, yaml.SequenceNode):
                raise _Wrong("must be a list")
            return [self._as_mapping(n, f"{at}[{i}]") for i, n in enumerate(node.value)]

        return self._read(key, read, None, [])

    def entries(self, key: str) -> dict[str, Mapping]:
        """Read a mapping whose values are mappings, by name; empty when absent."""
        outer = self.mapping(key)
        found: dict[str, Mapping] = {}
        for name in outer.keys() if outer else []:
            inner = outer.mapping(name) if outer else None
            if inner is not None:
                found[name] = inner
        return found

    def one_of(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Read a string that is one of `choices`."""
        known = tuple(choices)
        value = self.text(key, default)
        if value and value not in known:
            self.problem(f"unknown value {value!r}; {nearest(value, known)}", key=key)
        return value

    def done(self) -> None:
        """Report keys that nobody asked for."""
        for key in self._nodes:
            if key not in self._asked:
                self.problem(f"unknown key; {nearest(key, self._asked)}", key=key)

    def _read(
        self, key: str, convert: Callable[[yaml.Node, str], T], default: T | None, blank: T
    ) -> T:
        if not self.has(key):
            if default is None and blank is not None:
                self.missing(key)
                return blank
            return blank if default is None else default
        try:
            return convert(self._nodes[key], key)
        except _Wrong as wrong:
            self.problem(str(wrong), key=key)
            return blank

    def _as_mapping(self, node: yaml.Node, at: str) -> Mapping:
        if not isinstance(node, yaml.MappingNode):
            raise _Wrong("must be a mapping")
        path = ".".join(part for part in (self.path, at) if part)
        return Mapping(node, file=self.file, path=path, problems=self.problems)

    @staticmethod
    def _as_text(node: yaml.Node, at: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _Wrong("must be text")
        if node.tag != _TAG + "str":
            kind = node.tag.removeprefix(_TAG)
            raise _Wrong(f"must be text; YAML reads {node.value} as {kind}: write {node.value!r}")
        return str(node.value)

    @staticmethod
    def _as_word(node: yaml.Node, at: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).isprintable():
            raise _Wrong("must be one word")
        return str(node.value)

    @classmethod
    def _as_line(cls, node: yaml.Node, at: str) -> str:
        text = cls._as_text(node, at)
        if not text.isprintable():
            raise _Wrong(f"must be one line without control characters, not {text!r}")
        return text

    @staticmethod
    def _as_integer(node: yaml.Node, at: str) -> int:
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TAG + "int":
            raise _Wrong("must be a whole number")
        if not _DECIMAL.fullmatch(node.value):
            raise _Wrong("must be a whole number, in at most 18 decimal digits")
        return int(node.value)

    @staticmethod
    def _as_number(node: yaml.Node, at: str) -> float:
        try:
            if not isinstance(node, yaml.ScalarNode) or node.tag == _TAG + "bool":
                raise ValueError
            return float(str(node.value))
        except ValueError:
            raise _Wrong("must be a number") from None

    @staticmethod
    def _as_flag(node: yaml.Node, at: str) -> bool:
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TAG + "bool":
            raise _Wrong("must be true or false")
        return str(node.value).lower() in ("true", "yes", "on")

    @classmethod
    def _as_texts(cls, node: yaml.Node, at: str) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise _Wrong("must be a list")
        return tuple(cls._as_text(item, at) for item in node.value)

    @classmethod
    def _as_lines(cls, node: yaml.Node, at: str) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise _Wrong("must be a list")
        return tuple(cls._as_line(item, at) for item in node.value)


class _Wrong(Exception):
    """Report a value of the wrong kind, which becomes a Problem at its key."""


class _Loader(yaml.CSafeLoader):
    """Parse with libyaml, many times faster than PyYAML's own parser, up to a bound of nesting.

    libyaml's composer recurses in C, so a file that nests too deeply would kill the process.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        """Count a node that is about to be composed, and refuse one that is nested too deeply."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = parent.start_mark if parent is not None else None
            raise ComposerError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=mark)

    def ascend_resolver(self) -> None:
        """Forget a node that has been composed."""
        self._depth -= 1


def parse_document(text: str, *, file: str, problems: list[Problem]) -> Mapping | None:
    """Parse one YAML file into its top mapping; None when it cannot be read at all."""

    def refuse(message: str, line: int = 1) -> None:
        problems.append(Problem(file=file, line=line, key="", message=message))

    try:
        node = yaml.compose(text.removeprefix("\ufeff"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", at {shown!r}" if mark and (shown := _rest_of_line(text, mark.index)) else ""
        line = mark.line + 1 if mark else 1
        refuse(f"not YAML: {error.problem or error.context}{at}", line)
        return None
    except ReaderError as error:
        line = text.count("\n", 0, max(0, text.find(chr(error.character)))) + 1
        refuse(f"not YAML: the character U+{error.character:04X} may not be in it", line)
        return None
    except (yaml.YAMLError, ValueError) as error:
        refuse(f"not YAML: {error}")
        return None
    if not isinstance(node, yaml.MappingNode):
        refuse("must be a mapping of keys to values")
        return None
    return Mapping(node, file=file, path="", problems=problems)


def _rest_of_line(text: str, start: int) -> str:
    return (text[start : start + 30].splitlines() or [""])[0]
