"""Render the Jinja templates of the project.

Owns the rules of rendering (undefined names are errors, shell words are quoted by the `sh`
filter). It must not decide anything: callers hand over finished values by name.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "templates"


@cache
def _environment(folder: Path) -> jinja2.Environment:
    import jinja2  # most commands render nothing

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.j2", "html")),
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["words"] = lambda values: " ".join(shlex.quote(str(v)) for v in values)
    environment.filters["dockerfile"] = _dockerfile_word
    return environment


def _dockerfile_word(value: object) -> str:
    """Quote a value as one double-quoted word of a Dockerfile, in which nothing is expanded."""
    text = str(value)
    for character in ("\\", '"', "$"):
        text = text.replace(character, f"\\{character}")
    return f'"{text}"'


def render(name: str, values: dict[str, object], *, folder: Path = TEMPLATES) -> str:
    """Render the template `name` (relative to `templates/`).

    Raises:
        jinja2.UndefinedError: a template names a value that was not handed over.
    """
    return _environment(folder).get_template(name).render(values)
