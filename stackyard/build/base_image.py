"""Make the bootstrapped base and the tools image that builds need, each only once.

Owns making them and their content addresses. Both have a tag with the hash of their inputs. An
image gets its tag only when it is complete, so an interruption leaves no broken one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

import uv
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from stackyard.definitions.spec import Base, Common
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.system.lockfile import exclusive

if TYPE_CHECKING:
    from stackyard.build.bundle import BundleIndex
    from stackyard.build.mirrors import CallerSettings

# Removes what a bootstrap leaves that is not content: identity, keys, caches, logs.
_CLEAN = r"""
set -eu
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname
: > "$1"/etc/machine-id
# Every build step mounts over these two, and makes them where they are missing: /etc gets its time.
: > "$1"/etc/resolv.conf
: > "$1"/etc/hosts
rm -rf "$1"/var/lib/dbus/machine-id "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/apt/lists/* \
  "$1"/var/lib/dpkg/*-old "$1"/tmp/* "$1"/run/* "$1"/root/.cache
mkdir -p "$1"/var/cache/apt/archives/partial "$1"/var/lib/apt/lists/partial "$1"/usr/local/bin
# Nothing here changes users: root in a container that may gain no privileges needs no set-uid.
find "$1" -xdev -type f -perm /6000 -exec chmod a-s {} +
if [ -x "$1"/usr/bin/vim.tiny ] && [ ! -e "$1"/usr/bin/vim ]; then
  ln -s ../../bin/vim.tiny "$1"/usr/local/bin/vim
fi
"""
_BLANK_SOURCES = r"""
rm -rf "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap
printf '# Empty: name your own package sources here.\n' > "$1"/etc/apt/sources.list
"""
Say = Callable[[str], None]


def base_key(base: Base, common: Common) -> str:
    """Return the content address of a bootstrapped base: a hash of its inputs and scripts."""
    made = base.bootstrap
    assert made is not None
    parts = [made.suite, sorted({*made.packages, *common.system}), sorted(made.exclude)]
    text = json.dumps([*parts, base.platform, _CLEAN, _BLANK_SOURCES])
    return hashlib.sha256(text.encode()).hexdigest()


def base_reference(base: Base, common: Common) -> str:
    """Return the name under which the engine holds the base."""
    if base.bootstrap is None:
        return base.image
    return f"{base.reference}-{base_key(base, common)[:12]}"


def ensure_base(
    engine: Engine,
    base: Base,
    common: Common,
    caller: CallerSettings,
    say: Say,
    *,
    fresh: bool = False,
) -> ImageInfo:
    """Return the base image; bootstrap or pull it if the engine does not hold it yet.

    Args:
        fresh: bootstrap it again, even if it exists.

    Raises:
        NothingToRunOn: it is a host base, which is made on demand only.
        StackyardError: it cannot be made or pulled here.
    """
    reference = base_reference(base, common)
    found = engine.image(reference)
    if found is not None and not (fresh and base.bootstrap is not None):
        return found
    if base.host is not None:
        raise NothingToRunOn(
            f"base {base.name} has not been made on this machine",
            why="it is a copy of this machine's own files, so it is made only when asked for",
            hint=f"invoke base {base.name}",
        )
    if base.bootstrap is None:
        say(f"pulling {reference}")
        return engine.pull(reference)
    key = base_key(base, common)[:12]
    with exclusive(f"base-{key}", lambda: say("another command is making the base: waiting")):
        found = engine.image(reference)
        if found is None or fresh:
            with cleanup.folder("base") as folder:
                root = folder / "root.tar"
                _bootstrap(base, common, caller, root, say)
                say("importing the base")
                engine.import_tar(root, reference, ['CMD ["/bin/bash"]'])
            _keep_the_same(engine, found, reference)
            # The readable name is what a Dockerfile built by hand starts FROM.
            engine.tag(reference, base.reference)
            found = engine.image(reference)
    assert found is not None
    return found


def _keep_the_same(engine: Engine, before: ImageInfo | None, reference: str) -> None:
    """Keep the old image if a new base has the same layers, so images on it stay current."""
    made = engine.image(reference)
    if before is not None and made is not None and before.layers == made.layers:
        engine.tag(before.id, reference)


def _bootstrap(base: Base, common: Common, caller: CallerSettings, out: Path, say: Say) -> None:
    made = base.bootstrap
    assert made is not None
    if not shutil.which("mmdebstrap"):
        raise StackyardError(
            f"base {base.name!r} is bootstrapped with mmdebstrap, which is not installed",
            hint="apt-get install mmdebstrap (Debian, Ubuntu), or make the base on a machine that"
            " has it, and copy the image with docker save and docker load",
        )
    packages = sorted({*made.packages, *common.system})
    command = [
        "mmdebstrap", "--variant=apt", "--mode=auto", f"--include={','.join(packages)}",
        "--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in made.exclude),
    ]  # fmt: skip
    sources = caller.secrets.get("apt.sources")
    with cleanup.folder("sources") as folder:
        mirror: list[str] = []
        command.append(f"--customize-hook={_script(folder / 'clean', _CLEAN)}")
        if sources:
            # The caller's own sources: used here, but not left in the image.
            path = folder / "caller.sources"
            path.write_bytes(sources)
            mirror = [str(path)]
            command.append(f"--customize-hook={_script(folder / 'blank', _BLANK_SOURCES)}")
        say(f"bootstrapping {base.name}: {len(packages)} packages and what they need")
        process.run(
            [*command, made.suite, str(out), *mirror],
            # Its temporary files go into our folder, which is removed in every case.
            env={"SOURCE_DATE_EPOCH": "1", "TMPDIR": str(out.parent)},
            timeout=1200,
            on_line=say,
        )


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def ensure_tools(engine: Engine, caller: CallerSettings, wanted: Iterable[tuple[str, str]]) -> str:
    """Make a small local image with uv and the local wheels that locks name; return its name.

    Args:
        wanted: names and versions in the locks on this base.
    """
    wheels = local_wheels(caller.wheel_folders, set(wanted))
    uv_binary = Path(uv.find_uv_bin())
    # By name, version and size, not by time: all clones must have the same tools image, or
    # BuildKit would build everything again for each clone. The locks' hashes check the contents.
    stamp = [installed_version("uv"), *((p.name, p.stat().st_size) for p in (uv_binary, *wheels))]
    key = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:12]
    reference = f"stackyard/tools:{key}"
    if engine.image(reference) is not None:
        return reference
    with exclusive(f"tools-{key}", lambda: None), cleanup.folder("tools") as folder:
        path = folder / "tools.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(uv_binary, "uv", filter=_plain)
            for wheel in wheels:
                archive.add(wheel, f"wheels/{wheel.name}", filter=_plain)
        engine.import_tar(path, reference, [])
    return reference


def ensure_bundle(engine: Engine, path: Path, manifest: BundleIndex) -> str:
    """Make the tools image of a bundle: uv, wheels, sources and packages; return its name."""
    from stackyard.build import bundle  # what only a build without a network needs

    key = manifest.digest[:12]
    reference = f"stackyard/tools:bundle-{key}"
    if engine.image(reference) is not None:
        return reference
    with exclusive(f"tools-{key}", lambda: None), cleanup.folder("tools") as folder:
        tools = folder / "tools.tar"
        bundle.write_tools(path, tools)
        engine.import_tar(tools, reference, [])
    return reference


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode, member.mtime = 0o755, 0
    return member


def local_wheels(folders: Iterable[Path], wanted: set[tuple[str, str]]) -> list[Path]:
    """Return the wheels in `folders` whose name and version are wanted, sorted by file name."""
    found: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            if (canonicalize_name(name), str(version)) in wanted:
                found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)]


def free_bytes(folder: str) -> int | None:
    """Return the free bytes where the engine keeps its data; None if not on this machine."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def running_as_root() -> bool:
    """Say if this process may install packages and start an engine."""
    return os.geteuid() == 0
