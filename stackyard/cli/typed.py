"""Write a request as the command that asks for it, so that a hint can be typed as it stands."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from stackyard.cli.option import Option


def typed(command: str, request: Any, **changes: Any) -> str:
    """Return the command of a request, without options that have their defaults.

    Args:
        changes: values in place of the request's own, by field.
    """
    words = ["invoke", command]
    for field in fields(request):
        value = changes.get(field.name, getattr(request, field.name))
        option = next(one for one in field.type.__metadata__ if isinstance(one, Option))  # type: ignore[union-attr]
        if value == field.default or option.words:
            continue
        flag = [] if option.positional else [f"--{field.name.strip('_').replace('_', '-')}"]
        if isinstance(value, bool):
            words += flag
        else:
            for one in value if isinstance(value, tuple) else (value,):
                words += [*flag, shlex.quote(str(one))]
    return " ".join(words)
