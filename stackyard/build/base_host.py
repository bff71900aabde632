"""Make a base from this machine's own CUDA and PyTorch, for machines that cannot pull one.

Owns reading the machine and streaming its files into the engine; `build.base_host_files` chooses
the files. The base is for trials on this machine: its label, which every image built on it
inherits, says that it must never be published.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Container, Iterator
from pathlib import Path

from stackyard.build.base_host_files import (
    SKELETON,
    Found,
    HostDistribution,
    Rules,
    left_behind,
    require,
    search_path,
    stamp,
)
from stackyard.build.base_image import free_bytes, running_as_root
from stackyard.build.buildkit import Client
from stackyard.definitions.spec import Base, HostBase
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import CommandError, EngineError, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.system.lockfile import exclusive
from stackyard.system.stream import Note

Say = Callable[[str], None]
STAMP_LABEL = "stackyard.host"
PUBLISH_LABEL = "stackyard.publish"
# Run isolated (-I): no settings or packages of the user's own.
_PROBE = r"""
import importlib.metadata as m, json, os, platform, sys, sysconfig
torch, why, cuda = "", "", ""
try:
    import torch as module
    torch, cuda = str(module.__version__), module.version.cuda or ""
except BaseException as error:
    why = f"{type(error).__name__}: {error}"
both = dict.fromkeys((sys.prefix, sys.base_prefix))
prefixes = [p for p in both if p not in ("/usr", "/usr/local")]
if sys.prefix not in prefixes:
    prefixes += dict.fromkeys(sysconfig.get_path(n) for n in ("purelib", "platlib"))
full = ".".join(map(str, sys.version_info[:3]))
environment = {
    "os_name": os.name, "sys_platform": sys.platform, "platform_machine": platform.machine(),
    "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(), "platform_system": platform.system(),
    "platform_version": platform.version(), "python_full_version": full,
    "python_version": ".".join(full.split(".")[:2]),
    "implementation_name": sys.implementation.name, "implementation_version": full,
}
distributions = [
    {"name": d.metadata["Name"], "version": d.version, "requires": d.requires or [],
     "files": [os.path.normpath(d.locate_file(f)) for f in d.files or ()]}
    for d in m.distributions()
]
print(json.dumps({"version": full, "prefixes": prefixes, "torch": torch, "why_no_torch": why,
                  "cuda": cuda, "environment": environment, "distributions": distributions}))
"""
# The engine may take a tar that ends early for a complete one, so the image is named afterwards.
_IMPORT = r"""
set -uo pipefail
client=$1 skeleton=$2
shift 2
changes=()
for change; do changes+=(--change "$change"); done
# The engine takes no path twice: folders that are carried are not in the skeleton.
id=$(tar --create --file=- --numeric-owner --mode=a-s --no-recursion --null --verbatim-files-from \
  --directory="$skeleton" --files-from="$skeleton/.names" --directory=/ --files-from=/dev/stdin \
  | "$client" import "${changes[@]}" -)
code=$?
if [ $code = 0 ]; then echo "$id"; exit; fi
if [ -n "$id" ]; then "$client" image rm "$id"; fi
exit $code
"""


def ensure(engine: Engine, base: Base, find: Callable[[], Client], say: Say) -> ImageInfo:
    """Return the host base; make it unless the engine holds one from the same files.

    Raises:
        StackyardError: this machine does not fit the base, or its files cannot be read.
        EngineError: the engine has too little space, or refuses the image.
    """
    _require_machine(base)
    found = probe()
    carried = require(base, found)
    _require_given(base, say)
    path = search_path(os.environ.get("PATH", ""), found.prefixes)
    key = stamp(base, found, carried, path)
    with exclusive(f"base-{base.name}", lambda: say("another command is making it: waiting")):
        held = engine.image(base.reference)
        if held is not None and held.labels.get(STAMP_LABEL) == key:
            return held
        if held is not None:
            say("the existing base was made from other files; images on it keep it")
        rules = Rules(_host(base), left_behind(found, carried))
        names, size = collect(base, found, rules)
        say(f"importing {len(names)} files, {size / 1e9:.1f} GB; torch {found.torch}")
        _require_space(engine, size)
        env = {**base.env, "PATH": path}
        changes = [f"ENV {name}={_quoted(value)}" for name, value in sorted(env.items())]
        changes += [f"LABEL {STAMP_LABEL}={key}", f"LABEL {PUBLISH_LABEL}=never"]
        engine.tag(_import(find(), names, [*changes, 'CMD ["/bin/bash"]']), base.reference)
    made = engine.image(base.reference)
    assert made is not None
    return made


def _host(base: Base) -> HostBase:
    assert base.host is not None
    return base.host


def _require_machine(base: Base) -> None:
    here = os.uname()
    wanted = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[base.platform]
    if (here.sysname, here.machine) != ("Linux", wanted):
        raise StackyardError(
            f"{base.name} is for {base.platform}; this machine is {here.sysname} {here.machine}",
            hint="make it on the machine whose files it should hold",
        )
    if not running_as_root():
        raise StackyardError(
            f"{base.name} is made from files of this machine that only root can read",
            why=f"this is user id {os.geteuid()}",
            hint=f"sudo --preserve-env=PATH env PATH=$PATH invoke base {base.name}",
        )


def _require_given(base: Base, say: Say, info: Path = Path("/var/lib/dpkg/info")) -> None:
    """Require the system packages that a base is declared to have.

    Programs of them that were removed by hand are only reported: a build may not need them.
    """
    missing = []
    for package in base.given_system:
        found = [path for path in info.glob("*.list") if path.stem.partition(":")[0] == package]
        if not found:
            missing.append(package)
            continue
        names = [Path(name) for name in found[0].read_text(encoding="utf-8").splitlines()]
        programs = [name for name in names if name.parent.name in ("bin", "sbin")]
        gone = [str(name) for name in programs if not name.exists()]
        if gone:
            say(Note(f"{package} is installed, but {' '.join(gone)} was removed"))
    if missing:
        raise StackyardError(
            f"this machine lacks packages that {base.name} is declared to have:"
            f" {' '.join(missing)}",
            why="packages of given_system are neither unpacked nor installed",
            hint=f"take them out of given_system in images/bases/{base.name}.yml, so that they are"
            " unpacked like the others, and make the bundle again",
        )


def probe() -> Found:
    """Describe the first python3 on PATH, and the distributions that it has.

    Raises:
        StackyardError: there is none, or it does not answer.
    """
    try:
        said = process.run(["python3", "-I", "-c", _PROBE], timeout=180)
    except StackyardError as error:
        hint = "put the Python that has torch first on PATH, then try again"
        raise StackyardError("python3 does not answer", why=str(error), hint=hint) from error
    values = json.loads(said.output.splitlines()[-1])
    distributions = tuple(
        HostDistribution(
            name=one["name"],
            version=one["version"],
            requires=tuple(one["requires"]),
            files=tuple(one["files"]),
        )
        for one in values.pop("distributions")
    )
    prefixes = tuple(values.pop("prefixes"))
    return Found(**values, prefixes=prefixes, distributions=distributions)


def collect(base: Base, found: Found, rules: Rules) -> tuple[list[str], int]:
    """Return the paths to copy, folders before their contents, and their size in bytes."""
    names: dict[str, None] = {}
    size = 0
    for pattern in (*_host(base).paths, *found.prefixes):
        for root in sorted(Path("/").glob(pattern[1:])):
            real = root.parent.resolve() / root.name
            for path, weight in () if rules.forbidden(str(real)) else _walk(real, rules):
                if path not in names:
                    names.update(dict.fromkeys((*_folders(path, names), path)))
                    size += weight
    return list(names), size


def _folders(path: str, known: Container[str]) -> list[str]:
    """Return the folders above a path that are not in `known`, outermost first."""
    found: list[str] = []
    folder = path.rpartition("/")[0]
    while folder and folder not in known:
        found.append(folder)
        folder = folder.rpartition("/")[0]
    return found[::-1]


def _walk(root: Path, rules: Rules) -> Iterator[tuple[str, int]]:
    """Yield files and links at and below a path, on its file system, with their size in bytes."""
    start = root.lstat()
    if not stat.S_ISDIR(start.st_mode):
        if rules.takes(str(root)):
            yield str(root), start.st_size
        return
    open_ = [str(root)] if rules.enters(str(root)) else []
    while open_:
        with os.scandir(open_.pop()) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            about = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                if about.st_dev == start.st_dev and rules.enters(entry.path):
                    open_.append(entry.path)
            elif (entry.is_symlink() or entry.is_file()) and rules.takes(entry.path):
                yield entry.path, about.st_size


def _require_space(engine: Engine, size: int) -> None:
    folder = engine.data_folder()
    free = free_bytes(folder)
    if free is not None and free < size * 1.1:
        raise EngineError(
            f"the base takes {size / 2**30:.1f} GiB, {free / 2**30:.1f} are free in {folder}",
            hint="make room there, or leave more out: host.exclude in its definition",
        )


def _import(client: Client, names: list[str], changes: list[str]) -> str:
    """Stream files of this machine into the engine; return the id of the image."""
    listed = b"".join(os.fsencode(name[1:]) + b"\0" for name in names)
    with cleanup.folder("skeleton") as folder:
        missing = _make_skeleton(folder, set(names))
        (folder / ".names").write_bytes(b"".join(name.encode() + b"\0" for name in missing))
        command = ["bash", "-c", _IMPORT, "import", client.path, str(folder), *changes]
        try:
            said = process.run(command, stdin=listed, timeout=3600)
        except CommandError as error:
            raise EngineError(
                "this machine's files could not be imported",
                why=error.why,
                hint="if a file changed while it was read, try again; if there is no space, make"
                " room where the engine keeps its data",
            ) from error
    return said.output.splitlines()[-1]


def _make_skeleton(folder: Path, known: Container[str]) -> list[str]:
    """Make the folders that every root has; return the names of those that are not copied."""
    found: dict[str, None] = {}
    for name in SKELETON:
        found.update(dict.fromkeys(n[1:] for n in (*_folders(f"/{name}", ()), f"/{name}")))
    for name in found:
        (folder / name).mkdir()
        (folder / name).chmod(SKELETON.get(name, 0o755))
    return [name for name in found if f"/{name}" not in known]


def _quoted(value: str) -> str:
    for character in ("\\", '"', "$"):
        value = value.replace(character, f"\\{character}")
    return f'"{value}"'
