"""Run `invoke build` for stacks as their definitions state.

Owns the output; `build.builder` builds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stackyard.build.builder import Builder, Built
from stackyard.build.choice import decide
from stackyard.cli import parser
from stackyard.cli.console import Terminal
from stackyard.cli.options.images import BuildRequest
from stackyard.definitions.project import load_project
from stackyard.system.engine import Engine

if TYPE_CHECKING:
    from stackyard.cli import answers


def build(terminal: Terminal, asked: BuildRequest) -> tuple[answers.BuiltImages, int]:
    """Build the stacks that were asked for; current images stay."""
    project = load_project()
    base = asked.base or base_of_smoke()
    chosen = decide(project, asked.stack, base)
    bundle = Path(asked.offline) if asked.offline else None
    with Engine() as held:
        builder = Builder(project, held, terminal.say, bundle, fresh=asked.no_cache)
        images = builder.build_all(list(chosen.stacks), chosen.base.name, again=asked.force)
        return {"images": [_row(built, terminal) for built in images]}, 0


def base_of_smoke() -> str:
    """Return the base of a smoke on the same line, so that the build makes its image."""
    on_cpu = parser.on_this_line("smoke", "gpus") == 0
    return parser.on_this_line("smoke", "base") or ("cpu" if on_cpu else "")


def _row(built: Built, terminal: Terminal) -> answers.BuiltRow:
    name = built.image.stack.name
    made = f"built in {built.seconds:.1f} s" if built.made else "is current"
    terminal.done(name, f"{built.tag} {made} ({built.info.size / 1e9:.2f} GB)")
    return {
        "stack": name,
        "base": built.image.base.name,
        "image": built.info.id,
        "tags": list(built.info.tags),
        "made": built.made,
        "seconds": round(built.seconds, 2),
        "size_bytes": built.info.size,
    }
