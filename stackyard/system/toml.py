"""Read TOML on every Python that this package promises.

Owns the choice of the parser: the standard library's from Python 3.11 on, else tomli, its origin.
"""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table that a text holds.

    Raises:
        ValueError: the text is not TOML.
    """
    found: dict[str, Any] = tomllib.loads(text)
    return found
