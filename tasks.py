"""The commands, as invoke tasks: arguments in, one call, an exit code. `invoke --list` shows them.

What they do is in `stackyard.cli`; nothing is decided here.
"""

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from stackyard import cli, positional

positional.install()
for _name in ("build", "lock", "render", "smoke"):
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
    _exit(cli.list_images(as_json=json))


@task(positional=["stack"], help={"stack": "a stack's name", "base": BASE, "json": JSON})
def show(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """The plan of one image: every value and where it came from."""
    _exit(cli.show(stack, base, as_json=json))


@task(
    positional=["stack"],
    help={"stack": STACK, "check": "compare only; fail when a file differs", "json": JSON},
)
def render(c: Context, stack: str, check: bool = False, json: bool = False) -> None:
    """Write the Dockerfiles from the definitions and templates."""
    _exit(cli.render(stack, check=check, as_json=json))


@task(positional=["stack"], help={"stack": STACK, "base": BASE, "json": JSON})
def lock(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """Resolve versions over the network and write the locks (base cpu unless given)."""
    _exit(cli.lock(stack, base, as_json=json))


@task(
    positional=["stack"],
    help={"stack": STACK, "base": BASE, "again": "build even if nothing changed", "json": JSON},
)
def build(c: Context, stack: str, base: str = "", again: bool = False, json: bool = False) -> None:
    """Build an image; does nothing when its recipe has not changed."""
    base = base or positional.on_this_line("smoke", "base") or ""
    if not base and positional.on_this_line("smoke", "gpus") == 0:
        base = "cpu"
    _exit(cli.build(stack, base, again=again, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "gpus": "GPUs of the whole run; 0 trains on CPU ranks",
        "nodes": "containers of the run",
        "json": JSON,
    },
)
def smoke(
    c: Context, stack: str, base: str = "", gpus: int = -1, nodes: int = 2, json: bool = False
) -> None:
    """Train for real in a mesh of containers and judge it by named checks."""
    _exit(cli.smoke(stack, base, gpus, nodes, as_json=json))


@task(help={"json": JSON})
def engine(c: Context, json: bool = False) -> None:
    """Find a container engine; on Debian or Ubuntu as root, install and start one."""
    _exit(cli.engine(as_json=json))
