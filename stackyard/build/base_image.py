"""Make the bootstrapped base and the tools image that builds need, each only once.

Owns making them and their content addresses. Both have a tag with the hash of their inputs. An
image gets its tag only when it is complete, so an interruption leaves no broken one. A base is made
from a folder of locked packages (`build.packages`), the first time as in a rebuild.

Over 300 lines: base and tools are what every build starts from, and are made side by side.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

import uv
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from stackyard.build import dockerfile, packages
from stackyard.build.recipe import BASE_LABEL, PACKAGES_LABEL, BaseContent, BaseRecipe
from stackyard.definitions.spec import Base, Common
from stackyard.system import cleanup, process
from stackyard.system.chunks import digest_of_file
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.system.lockfile import exclusive
from stackyard.system.stream import ToolLine

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
_BASE = "stackyard/base:"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Say = Callable[[str], None]


def recipe_key(recipe: BaseRecipe) -> str:
    """Return the content address of a base: a hash of its recipe and of the scripts here."""
    text = json.dumps([asdict(recipe), _CLEAN, _BLANK_SOURCES])
    return hashlib.sha256(text.encode()).hexdigest()


def base_recipe(base: Base, common: Common) -> BaseRecipe:
    """Return what a bootstrapped base is made from."""
    made = base.bootstrap
    assert made is not None
    return BaseRecipe(
        platform=base.platform,
        suite=made.suite,
        packages=tuple(sorted({*made.packages, *common.system})),
        exclude=tuple(sorted(made.exclude)),
        steps=tuple(sorted({*common.build_system, *common.stack_system})),
        texts=tuple(sorted(common.text_packages)),
    )


def base_key(base: Base, common: Common) -> str:
    """Return the content address of a bootstrapped base."""
    return recipe_key(base_recipe(base, common))


def base_reference(base: Base, common: Common) -> str:
    """Return the name under which the engine holds the base."""
    if base.bootstrap is None:
        return base.image
    return f"{base.reference}-{base_key(base, common)[:12]}"


def content(base: Base, common: Common, held: ImageInfo) -> BaseContent:
    """Return what decides the content of a base that the engine holds."""
    digest = held.id if base.pulled else held.chain
    return content_by(base, common, {**held.labels, BASE_LABEL: digest})


def content_by(base: Base, common: Common, labels: Mapping[str, str]) -> BaseContent:
    """Return what decided the content of a base, by the labels of an image that is built on it."""
    key = base_key(base, common) if base.bootstrap is not None else ""
    held = packages.packages_of(labels) if key else ""
    return BaseContent(digest=labels.get(BASE_LABEL, ""), packages=held, key=key)


def ensure_base(
    engine: Engine,
    base: Base,
    common: Common,
    caller: CallerSettings,
    say: Say,
    *,
    fresh: bool = False,
    on_event: Callable[[], None] = lambda: None,
) -> ImageInfo:
    """Return the base image; bootstrap or pull it if the engine does not hold it yet.

    Args:
        fresh: bootstrap it again, even if it exists.
        on_event: called at each event of a pull, which it ends if it raises.

    Raises:
        NothingToRunOn: it is a host base, which is made on demand only.
        StackyardError: it cannot be made or pulled here.
    """
    reference = base_reference(base, common)
    found = engine.image(reference)
    again = fresh and base.bootstrap is not None
    if found is not None and not again and whole(engine, base, found):
        return found
    if base.host is not None:
        raise NothingToRunOn(
            f"base {base.name} has not been made on this machine",
            why="it is a copy of this machine's own files, so it is made only when asked for",
            hint=f"invoke base {base.name}",
        )
    if base.bootstrap is None:
        say(f"pulling {reference}")
        return engine.pull(reference, on_event)
    key = base_key(base, common)[:12]
    with exclusive(f"base-{key}", lambda: say("another command is making the base: waiting")):
        found = before = engine.image(reference)
        if found is None or fresh or not whole(engine, base, found):
            _make_newest(engine, base, common, caller, say)
            # The readable names are what a Dockerfile built by hand takes.
            engine.tag(reference, base.reference)
            found = engine.image(reference)
            assert found is not None
            engine.tag(packages.packages_of(found.labels), dockerfile.packages_name(base))
            _forget_packages(engine, before)
    return found


def whole(engine: Engine, base: Base, held: ImageInfo) -> bool:
    """Return whether the engine holds a bootstrapped base's packages, too."""
    name = packages.packages_of(held.labels) if base.bootstrap is not None else ""
    return not name or engine.image(name) is not None


def _make_newest(
    engine: Engine, base: Base, common: Common, caller: CallerSettings, say: Say
) -> None:
    """Make a base from the newest packages of the caller's sources, and lock those."""
    require_mmdebstrap(f"base {base.name!r}")
    recipe = base_recipe(base, common)
    with cleanup.folder("newest") as folder:
        say(f"fetching {len(recipe.packages)} packages and what they need")
        locked = folder / "packages"
        packages.collect(
            locked, platform=recipe.platform, install=(*recipe.packages, *recipe.steps),
            download=recipe.texts, sources=packages.sources_of(recipe.suite, caller),
        )  # fmt: skip
        make_base(engine, recipe, locked, base_reference(base, common), say)


def make_base(
    engine: Engine, recipe: BaseRecipe, locked: Path, reference: str, say: Say, held: str = ""
) -> None:
    """Make a base from a folder of locked packages, and have the engine hold both.

    Args:
        held: name for the packages; unless given, one by their index.
    """
    digest = digest_of_file(locked / packages.INDEX)
    with ThreadPoolExecutor(1) as beside, cleanup.folder("base") as folder:
        name = held or packages.reference(digest)
        holding = None if engine.image(name) else beside.submit(packages.hold, engine, locked, name)
        root = folder / "root.tar"
        _bootstrap(recipe, locked, root, say)
        if holding is not None:
            holding.result()
        say("importing the base")
        changes = ['CMD ["/bin/bash"]', f"LABEL {PACKAGES_LABEL}={digest}"]
        engine.import_tar(root, reference, changes)


def _forget_packages(engine: Engine, before: ImageInfo | None) -> None:
    """Remove the packages of the base that was there before, unless a base has them still."""
    name = packages.packages_of(before.labels) if before is not None else ""
    if not name:
        return
    bases = (i for i in engine.held_images() if any(_BASE in tag for tag in i.tags))
    if name not in {packages.packages_of(one.labels) for one in bases}:
        engine.remove_image(name)


def require_mmdebstrap(what: str) -> None:
    """Require mmdebstrap on this machine.

    Raises:
        StackyardError: it is not installed.
    """
    if not shutil.which("mmdebstrap"):
        raise StackyardError(
            f"{what} is bootstrapped with mmdebstrap, which is not installed",
            hint="apt-get install mmdebstrap (Debian, Ubuntu), or make the base on a machine that"
            " has it, and copy the image with docker save and docker load",
        )


def _bootstrap(recipe: BaseRecipe, locked: Path, out: Path, say: Say) -> None:
    # The variables are the same on every machine: the caller's would reach the packages' scripts.
    # With PYTHONDONTWRITEBYTECODE, for one, they leave other bytecode. Temporary files go into our
    # folder, which is removed in every case.
    variables = {"PATH": _PATH, "SOURCE_DATE_EPOCH": "1", "TMPDIR": str(out.parent)}
    command = [
        "env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items()),
        shutil.which("mmdebstrap") or "mmdebstrap", "--variant=apt", "--mode=auto",
        f"--include={','.join(recipe.packages)}",
        "--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
        "--dpkgopt=force-unsafe-io",
        # _CLEAN does it. By then apt's configuration is gone, so mmdebstrap's own cleaning would be
        # of this machine's package lists, or fail without root.
        "--skip=cleanup/apt",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.exclude),
    ]  # fmt: skip
    with cleanup.folder("hooks") as folder:
        _let_others_read(locked)
        for one in (folder, locked.parent, out.parent):
            one.chmod(one.stat().st_mode | 0o011)
        # The folder is used here, but not left in the image.
        command.append(f"--customize-hook={_script(folder / 'clean', _CLEAN)}")
        command.append(f"--customize-hook={_script(folder / 'blank', _BLANK_SOURCES)}")
        say(f"bootstrapping from {recipe.suite}")
        process.run(
            [*command, recipe.suite, str(out), packages.source_line(locked)],
            timeout=1200,
            on_line=lambda line: say(ToolLine(line)),
        )


def _let_others_read(folder: Path) -> None:
    """Let other users read a folder of packages.

    Without root, mmdebstrap works in a user namespace, whose root is another user here.
    """
    folder.chmod(folder.stat().st_mode | 0o055)
    for path in folder.iterdir():
        path.chmod(path.stat().st_mode | 0o044)


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
    stamp = [uv_version(), *((p.name, p.stat().st_size) for p in (uv_binary, *wheels))]
    key = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:12]
    reference = f"stackyard/tools:{key}"
    if engine.image(reference) is not None:
        return reference
    with exclusive(f"tools-{key}", lambda: None), cleanup.folder("tools") as folder:
        if engine.image(reference) is not None:
            return reference
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
        if engine.image(reference) is not None:
            return reference
        tools = folder / "tools.tar"
        bundle.write_tools(path, tools)
        engine.import_tar(tools, reference, [])
    return reference


def uv_version() -> str:
    """Return the version of the uv that builds here get."""
    return installed_version("uv")


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
