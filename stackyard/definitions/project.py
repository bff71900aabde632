"""Load the project: its settings file and its definitions.

Owns `stackyard.toml` and the defaults of the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stackyard.definitions.load import load_definitions, why_unreadable
from stackyard.definitions.spec import Definitions
from stackyard.system.errors import UsageError, shown
from stackyard.system.toml import parse_toml

ROOT = Path(__file__).resolve().parent.parent.parent
# Programs that run in containers and build steps.
INSIDE = ROOT / "stackyard" / "inside"
SETTINGS = "stackyard.toml"
# Each is text.
SETTINGS_KEYS = {
    "default_base": "the base that commands use where --base is not given",
    "registry": "the repository of releases: REGISTRY[:PORT]/NAME",
    "source": "the public URL of this project's source",
}
_PUBLIC = re.compile(r"https?://[^\s@]*")


@dataclass(frozen=True, kw_only=True)
class Project:
    """Hold a loaded project.

    Attributes:
        registry: the default registry of releases; empty for none.
        source: where the project's source is published, a URL; empty for nowhere.
    """

    root: Path
    definitions: Definitions
    default_base: str
    registry: str = ""
    source: str = ""

    def stacks(self, name: str) -> list[str]:
        """Return the stacks that a name on the command line means; `all` means every stack."""
        return sorted(self.definitions.stacks) if name == "all" else [name]


def parse_settings(text: str) -> dict[str, str]:
    """Read the text of stackyard.toml: settings, each a string.

    Raises:
        UsageError: it is not TOML, a key is unknown, a value is no string, or `source` is no public
            URL.
    """
    lines = text.splitlines()
    try:
        found = parse_toml(text)
    except ValueError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise _not_understood(lines, int(at[1]) if at else len(lines), str(error)) from error
    for key, value in found.items():
        if key not in SETTINGS_KEYS or not isinstance(value, str):
            at_key = (n for n, line in enumerate(lines, 1) if key in line.partition("=")[0])
            raise _not_understood(lines, next(at_key, 1), "")
    if not _PUBLIC.fullmatch(found.get("source", "https://")):
        raise UsageError(
            f"{SETTINGS}: source is no URL of a public place: {shown(found['source'])}",
            why="every release shows it",
            hint='source = "https://git.example/team/stackyard", without a user or password',
        )
    return found


def _not_understood(lines: list[str], number: int, why: str) -> UsageError:
    line = shown(lines[number - 1].strip()) if 0 < number <= len(lines) else ""
    hint = (
        'settings are: default_base = "cuda", registry = "registry.example:5000/name",'
        ' source = "https://git.example/name"'
    )
    return UsageError(f"{SETTINGS}:{number}: not understood: {line}", why=shown(why), hint=hint)


def _settings_text(root: Path) -> str:
    try:
        return (root / SETTINGS).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{SETTINGS}: cannot be read", why=why_unreadable(error)) from error


def load_project(root: Path = ROOT, *, locks_required: bool = True) -> Project:
    """Load the settings and every definition.

    Raises:
        DefinitionError: there are problems; holds those of all files.
        UsageError: stackyard.toml is wrong or cannot be read.
    """
    settings = parse_settings(_settings_text(root))
    return Project(
        root=root,
        definitions=load_definitions(root, locks_required=locks_required),
        default_base=settings.get("default_base", "cuda"),
        registry=settings.get("registry", ""),
        source=settings.get("source", ""),
    )
