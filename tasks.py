"""The commands, as invoke tasks: arguments in, one call, an exit code. `invoke --list` shows them.

What they do is in `stackyard.cli`; nothing is decided here. Each task imports it itself, so that
`invoke --list` and `--help` do not wait for it.
"""

import sys

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from stackyard import positional

# invoke turns bytecode off for the tasks' sake; without it every command compiles the package.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
positional.install()
for _name in ("build", "bundle", "lock", "render", "smoke"):
    positional.default(_name, "stack", "all")

STACK = "a stack's name, or all"
BASE = "the base to build on (see `invoke list`)"
JSON = "print the result as JSON, and nothing else, to standard output"


def _exit(code: int) -> None:
    if code:
        raise Exit(code=code)


@task(name="list", help={"json": JSON})
def list_(c: Context, json: bool = False) -> None:
    """Stacks and bases, what is built and what is proven."""
    from stackyard import cli

    _exit(cli.list_images(as_json=json))


@task(positional=["stack"], help={"stack": "a stack's name", "base": BASE, "json": JSON})
def show(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """The plan of one image: every value and where it came from."""
    from stackyard import cli

    _exit(cli.show(stack, base, as_json=json))


@task(
    positional=["stack"],
    help={"stack": STACK, "check": "compare only; fail when a file differs", "json": JSON},
)
def render(c: Context, stack: str, check: bool = False, json: bool = False) -> None:
    """Write the Dockerfiles from the definitions and templates."""
    from stackyard import cli

    _exit(cli.render(stack, check=check, as_json=json))


@task(positional=["stack"], help={"stack": STACK, "base": BASE, "json": JSON})
def lock(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """Resolve versions over the network and write the locks (on every base that has some)."""
    from stackyard import cli

    _exit(cli.lock(stack, base, as_json=json))


@task(positional=["name"], help={"name": "a base's name (see `invoke list`)", "json": JSON})
def base(c: Context, name: str, json: bool = False) -> None:
    """Make or pull a base; does nothing when it is as it would be made now."""
    from stackyard import cli

    _exit(cli.base(name, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "out": "the file to write (stackyard-BASE.bundle.tar here unless given)",
        "json": JSON,
    },
)
def bundle(c: Context, stack: str, base: str = "", out: str = "", json: bool = False) -> None:
    """Fetch what builds on a base need into one file, for a machine without a network."""
    from stackyard import cli

    _exit(cli.bundle(stack, base, out, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "again": "build even if nothing changed",
        "offline": "a bundle to build from, without a network",
        "json": JSON,
    },
)
def build(
    c: Context,
    stack: str,
    base: str = "",
    again: bool = False,
    offline: str = "",
    json: bool = False,
) -> None:
    """Build an image; does nothing when its recipe has not changed."""
    from stackyard import cli

    base = base or positional.on_this_line("smoke", "base") or ""
    if not base and positional.on_this_line("smoke", "gpus") == 0:
        base = "cpu"
    _exit(cli.build(stack, base, again=again, offline=offline, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "gpus": "GPUs of the whole run; 0 trains on CPU ranks",
        "nodes": "containers of the run (1 with GPUs, 2 on CPU ranks)",
        "placement": "how several containers share a host's GPUs (docs/gpus.md); the best one",
        "json": JSON,
    },
)
def smoke(
    c: Context,
    stack: str,
    base: str = "",
    gpus: int = -1,
    nodes: int = 0,
    placement: str = "",
    json: bool = False,
) -> None:
    """Train for real in a mesh of containers and judge it by named checks."""
    from stackyard import cli_smoke

    _exit(cli_smoke.smoke(stack, base, gpus, nodes, placement, as_json=json))


@task(positional=["file"], help={"file": "a log, or - for standard input", "json": JSON})
def diagnose(c: Context, file: str, json: bool = False) -> None:
    """Name the known failure that a log shows, its cause and what to do about it."""
    from stackyard import cli

    _exit(cli.diagnose(file, as_json=json))


@task(help={"json": JSON})
def doctor(c: Context, json: bool = False) -> None:
    """Look at this machine: engine, GPUs, driver, and what a run on it would meet."""
    from stackyard import cli_doctor

    _exit(cli_doctor.examine(as_json=json))


@task(help={"json": JSON})
def engine(c: Context, json: bool = False) -> None:
    """Find a container engine; on Debian or Ubuntu as root, install and start one."""
    from stackyard import cli

    _exit(cli.engine(as_json=json))
