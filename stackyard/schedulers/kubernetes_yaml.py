"""Write manifests as YAML that every parser reads as the same values.

Owns the quoting. It must not know what a manifest means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

# Values written without quotes; all others are quoted. PyYAML would leave `1e3` or `0o17` plain,
# which Kubernetes' parser (YAML 1.2) reads as numbers, and an environment value must be text.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Dumper(yaml.SafeDumper):
    """Write safe YAML without aliases, with lists indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    # YAML 1.1 has further line breaks (U+0085, U+2028, U+2029), which a block does not keep.
    lines = "\n" in value and all(c.isprintable() or c in "\n\t" for c in value)
    style = None if plain else "|" if lines else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(document: Mapping[str, Any], *, comment: str = "") -> str:
    """Write one document with keys in their order; `comment` goes above it as `#` lines."""
    above = "".join(f"# {line}\n" for line in comment.splitlines())
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100_000
    )
    return above + text
