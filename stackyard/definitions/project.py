"""Load the project: its settings file and its definitions.

Owns `stackyard.toml` and the defaults of the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stackyard.definitions.load import load_definitions, why_unreadable
from stackyard.definitions.spec import Definitions
from stackyard.system.errors import UsageError, shown

ROOT = Path(__file__).resolve().parent.parent.parent
# Programs that run in containers and build steps.
INSIDE = ROOT / "stackyard" / "inside"
SETTINGS = "stackyard.toml"
# Each is text.
SETTINGS_KEYS = {
    "default_base": "the base that commands use where --base is not given",
    "registry": "the repository of releases: REGISTRY[:PORT]/NAME",
}


@dataclass(frozen=True, kw_only=True)
class Project:
    """Hold a loaded project.

    Attributes:
        registry: the default registry of releases; empty for none.
    """

    root: Path
    definitions: Definitions
    default_base: str
    registry: str = ""

    def stacks(self, name: str) -> list[str]:
        """Return the stacks that a name on the command line means; `all` means every stack."""
        return sorted(self.definitions.stacks) if name == "all" else [name]


def parse_settings(text: str) -> dict[str, str]:
    """Read the `key = "value"` lines of stackyard.toml.

    Raises:
        UsageError: a key is unknown, or a line has another syntax.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        body = line.split("#", 1)[0].strip()
        if not body:
            continue
        key, equals, value = (part.strip() for part in body.partition("="))
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        if key not in SETTINGS_KEYS or not equals or not quoted:
            hint = 'settings are: default_base = "cuda", registry = "registry.example:5000/name"'
            raise UsageError(
                f"{SETTINGS}:{number}: not understood: {shown(line.strip())}", hint=hint
            )
        found[key] = value[1:-1]
    return found


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
    )
