"""Configure Sphinx for `make docs`: pages as GitHub shows them, with the index as their tree."""

import os
import re
from typing import Any

project = "Stackyard"
extensions = ["myst_parser"]
source_suffix = ".md"
master_doc = "index"
exclude_patterns = ["requirements.*"]
html_theme = "furo"
html_title = "Stackyard"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
# `--base` is no dash.
smartquotes = False
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+\.md)(#[^)\s]*)?\)")


def trees(text: str) -> str:
    """Return a hidden tree of pages for each section of the index; a page is in one of them.

    Pages have the names by which the index first links them.
    """
    there: set[str] = set()
    made = []
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        named = {m[2]: m[1] for m in reversed([*_LINK.finditer(body)]) if m[2] not in there}
        pages = [
            name for name in dict.fromkeys(m[2] for m in _LINK.finditer(body)) if name in named
        ]
        there |= set(pages)
        lines = "\n".join(f"{named[name]} <{name.removesuffix('.md')}>" for name in pages)
        made.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    return "\n\n".join(made)


def without_links_outside(text: str, folder: str) -> str:
    """Return a page without links to files outside docs/, which are no pages here."""

    def one(match: re.Match[str]) -> str:
        outside = os.path.normpath(f"{folder}/{match[2]}").startswith("..")
        return match[1] if outside else match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)", one, text)


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Change a page's text before Sphinx reads it."""
    tree = f"\n\n{trees(source[0])}" if name == master_doc else ""
    source[0] = without_links_outside(source[0], os.path.dirname(name) or ".") + tree  # noqa: PTH120


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", prepare)
