"""Programs of nodes import what lies beside them by their own names: here these are known, too."""

import importlib
import sys

# Each after those that it imports itself.
for name in ("strays", "line", "step", "job", "client", "members", "stacks", "hang", "watched"):
    sys.modules.setdefault(name, importlib.import_module(f"stackyard.inside.{name}"))

from stackyard.inside import agent, hang, line, stacks, supervisor, watched  # noqa: E402

__all__ = ["agent", "hang", "line", "stacks", "supervisor", "watched"]
