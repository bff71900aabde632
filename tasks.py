"""Collect the commands for invoke, in a checkout. `invoke --list` shows them.

Each is declared once, in `stackyard/cli/`: images, proof, runs, releases, tools.
"""

import sys

# invoke turns bytecode off for the tasks' sake; without it every command compiles the package.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from stackyard.cli.program import collection  # noqa: E402

namespace = collection()
