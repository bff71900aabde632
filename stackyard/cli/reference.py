"""Make docs/reference: commands, files and known failures, each from what declares it.

Owns the text of these pages. Pure but for reading the definitions: commands come from their help,
files from their schemas, failures from `images/failures`. `docs/reference/fixes.md` is
`report.prove_page`'s, since its proofs are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stackyard.cli import help as cli_help
from stackyard.cli import schemas
from stackyard.cli.help import Page
from stackyard.cli.program import TOPICS, collection
from stackyard.definitions.load import load_failures
from stackyard.definitions.spec import Failure
from stackyard.report.prove_page import code, plain

FOLDER = "docs/reference"
MADE = "<!-- Made by `scripts/reference --write`; do not edit. -->\n"
_COMMANDS = """\
# Commands

Type a command behind `invoke` in a checkout, or behind `stackyard`, which `pip install -e .` makes.
Several commands may stand on one line; the first one that fails ends it. `-h` behind a command
shows its part of this page.

Shells complete commands, options, stacks and bases:

| shell | line | file |
|---|---|---|
| bash | `eval "$(stackyard --print-completion-script bash)"` | `~/.bashrc` |
| zsh | `eval "$(stackyard --print-completion-script zsh)"` | `~/.zshrc` |
| fish | `stackyard --print-completion-script fish \\| source` | `~/.config/fish/config.fish` |

| exit code | meaning |
|---|---|
| 0 | passed, or done |
| 1 | a check failed |
| 2 | wrong input; nothing was started |
| 3 | nothing to run on (no engine, no GPU), or a check was not run and none failed |
| 4 | the engine, a registry or a build failed |
| 130 | interrupted; everything that the command made is removed, but for a mesh that stood before |
| 141 | the reader of the output has gone |
"""
_FILES = """\
# Files

These files are read strictly: every problem is reported at once, with file, line and the nearest
known key. The schemas are for editors and other tools; rules between values are the reader's own.
"""
_FAILURES = """\
# Failures by symptom

`invoke diagnose train.log` looks for all of these in a log; `invoke run`, smokes and builds do so
by themselves. Search this page for a part of the message that you see.
"""


def reference_files(root: Path) -> dict[str, str]:
    """Return every page as text, by path from the project's root."""
    commands = collection().tasks.values()
    pages = [cli_help.page_of(command) for command in commands]
    return {
        f"{FOLDER}/commands.md": commands_page(pages),
        f"{FOLDER}/files.md": files_page(schemas.schemas()),
        f"{FOLDER}/failures.md": failures_page(load_failures(root).values()),
    }


def commands_page(pages: Sequence[Page]) -> str:
    """Return the page of all commands, by group."""
    parts = [MADE + _COMMANDS]
    for topic in TOPICS:
        group = topic.__name__.rpartition(".")[2]
        own = [page for page in pages if page.group == group]
        rows = [f"| [{page.name}](#invoke-{page.name}) | {_cell(page.summary)} |" for page in own]
        parts.append("\n".join([f"## {group.capitalize()}\n", "| command | |", "|---|---|", *rows]))
        parts += [_command(page) for page in own]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _command(page: Page) -> str:
    schema = f"../schemas/answers/{page.name}.json"
    rows = [*page.words, *page.options[:-1]]  # without -h
    lines = [f"### invoke {page.name}\n", f"{page.summary}\n"]
    lines += [f"{page.details}\n"] if page.details else []
    lines += [f"    {page.usage}\n", "| | |", "|---|---|"]
    lines += [f"| {code(typed)} | {_cell(says)} |" for typed, says in rows]
    lines += ["", *(f"    {example}" for example in page.examples), ""]
    return "\n".join([*lines, f"Schema of its JSON: [{page.name}.json]({schema})."])


def _cell(text: str) -> str:
    """Return text for a table: names in angle brackets are no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def files_page(made: Mapping[str, Any]) -> str:
    """Return the page of users' files: their purpose and keys, those of mappings in them, too."""
    parts = [MADE + _FILES]
    settings = schemas.File(pattern="", read=lambda top: None, what="settings of this checkout")
    for name, one in {"settings": settings, **schemas.FILES}.items():
        path = schemas.path_of(f"files/{name}")
        schema = made[path]
        rows = [
            f"| `{key}` | {_kind(value)} | {'yes' if required else ''} |"
            f" {_cell(value.get('description', '')).removesuffix('.')} |"
            for key, value, required in _keys(schema)
        ]
        what, link = f"{one.what[:1].upper()}{one.what[1:]}", f"../schemas/files/{name}.json"
        parts.append(
            "\n".join([
                f"## `{schema['title']}`\n", f"{what}. Schema: [{name}.json]({link}).\n",
                "| key | kind | required | meaning |", "|---|---|---|---|", *rows,
            ])
        )  # fmt: skip
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _keys(
    schema: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield every key with its schema and whether it is required; below the top, described ones.

    A name that the user chooses is shown as `NAME`.
    """
    required = set(schema.get("required", ()))
    for key, value in schema.get("properties", {}).items():
        if not above or value.get("description"):
            yield f"{above}{key}", value, key in required
        yield from _keys(value, f"{above}{key}.")
        for kind, name in (("items", ""), ("additionalProperties", "NAME.")):
            if isinstance(value.get(kind), dict):
                yield from _keys(value[kind], f"{above}{key}.{name}")


def _kind(value: Mapping[str, Any]) -> str:
    """Return the kind of a key's value in words."""
    if "enum" in value:
        return " or ".join(f"`{one}`" for one in value["enum"] if one is not None)
    kinds = value.get("type", [])
    names = {"object": "mapping", "array": "list", "string": "text", "boolean": "yes or no"}
    listed = [kinds] if isinstance(kinds, str) else kinds
    return ", ".join(names.get(kind, kind) for kind in listed if kind != "null")


def failures_page(failures: Iterable[Failure]) -> str:
    """Return the page of known failures: what is seen, the cause, and what to do."""
    known = sorted(failures, key=lambda failure: failure.id)
    rows = [f"| {_seen(one)} | [{plain(one.title)}](#{one.id}) |" for one in known]
    parts = [
        MADE + _FAILURES,
        "\n".join(["| seen in the log (a pattern) | failure |", "|---|---|", *rows]),
    ]
    for one in known:
        threads = [f"- <{url}>" for url in one.threads]
        parts.append(
            "\n".join([
                f"## {one.id}\n", f"**{plain(one.title)}.** Seen: {_seen(one)}.\n",
                f"Cause: {plain(one.cause)}\n", f"Remedy: {plain(one.remedy)}", "", *threads,
            ])
        )  # fmt: skip
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _seen(one: Failure) -> str:
    patterns = [code(pattern) for pattern in one.any_of]
    every = " and ".join(code(pattern) for pattern in one.all_of)
    return ", or ".join([*patterns, *([every] if every else [])])
