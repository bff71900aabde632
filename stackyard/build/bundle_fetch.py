"""Fetching what a bundle holds, where there is a network: wheels, sources, Debian packages.

Owns the commands of pip and apt that do it, for the base's Python and platform and never for this
machine's. Everything is checked on the way: Python packages by the locks' hashes, system packages
by their distribution's signatures. It must not decide what is needed: locks and definitions do.
"""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from stackyard.build import bundle
from stackyard.build.bundle import BundleIndex
from stackyard.build.catalog import ResolvedImage
from stackyard.build.locks import resolve
from stackyard.build.mirrors import CallerSettings, bare
from stackyard.definitions import lock
from stackyard.definitions.lock import Locked
from stackyard.definitions.spec import Base
from stackyard.system import cleanup, process
from stackyard.system.errors import StackyardError

Say = Callable[[str], None]


def make(
    root: Path, images: list[ResolvedImage], out: Path, caller: CallerSettings, say: Say
) -> BundleIndex:
    """Fetch what several images of one base are built from, and pack it.

    Args:
        root: the project.
        out: where the bundle is to lie; replaced whole.

    Raises:
        StackyardError: something cannot be fetched; says what.
    """
    base = images[0].base
    with cleanup.folder("bundle") as folder:
        for name in bundle.FOLDERS:
            (folder / name).mkdir()
        env = pip_environment(caller, folder)
        texts = {path: text for image in images for path, text in image.locks.items()}
        sources = {path: texts.pop(path) for path in _sdist_locks(images) & set(texts)}
        for path, text in sorted(texts.items()):
            if lock.parse_lock(text):
                say(f"fetching what {path} names")
                command = wheel_command(base, root / path, folder / "wheels", caller)
                process.run(command, env=env, timeout=1200)
        say("fetching sources")
        locked = [item for _, text in sorted(sources.items()) for item in lock.parse_lock(text)]
        _fetch_sdists(base, locked, folder / "sdists", caller)
        say("fetching what Stackyard itself needs")
        _fetch_tool(root, base, folder, caller, env)
        names = bundle.packages(images)
        say(f"fetching {len(names)} packages of {base.unpack}")
        _fetch_packages(base, names, folder, caller)
        say("packing")
        return bundle.write(out, folder, images)


def _sdist_locks(images: list[ResolvedImage]) -> set[str]:
    return {
        lock.wheel_lock_path(resolved.wheel.package, image.base.name)
        for image in images
        for resolved in image.wheels
    }


def pip_environment(caller: CallerSettings, folder: Path) -> dict[str, str]:
    """pip's settings: the caller's own, and its index when only uv was told of it."""
    if "pip.conf" not in caller.secrets:
        return {}
    path = folder / "pip.conf"
    path.touch(mode=0o600)
    path.write_bytes(caller.secrets["pip.conf"])
    return {"PIP_CONFIG_FILE": str(path)}


def wheel_command(base: Base, requirements: Path, out: Path, caller: CallerSettings) -> list[str]:
    """The command that fetches locked wheels for a base's Python and platform."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    for wheels in caller.wheel_folders:
        words += ["--find-links", str(wheels)]
    words += ["--dest", str(out), "--requirement", str(requirements)]
    words += ["--only-binary=:all:", "--implementation=cp", f"--python-version={base.python}"]
    return [*words, *(f"--platform={name}" for name in platforms(base))]


def platforms(base: Base) -> list[str]:
    """Platform tags of wheels that run on a base, the newest glibc first (pip compares exactly)."""
    machine = resolve.machine(base)
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(resolve.GLIBC, 4, -1)]
    old = [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [*newer, *old, f"linux_{machine}"]


def _fetch_sdists(base: Base, locked: list[Locked], out: Path, caller: CallerSettings) -> None:
    """Sources by their address: pip would run every package's setup.py to look at it."""
    addresses = resolve.find_sdists(locked, base, caller) if locked else []
    wanted = {digest: item for item in locked for digest in item.hashes}
    for address in addresses:
        data = download(address, caller)
        item = wanted.get("sha256:" + hashlib.sha256(data).hexdigest())
        if item is None:
            raise StackyardError(f"{bare(address)} has a hash that no lock names")
        locked.remove(item)
        (out / PurePosixPath(unquote(urlsplit(address).path)).name).write_bytes(data)
    if locked:
        names = ", ".join(f"{item.name} {item.version}" for item in locked)
        raise StackyardError(f"no sources found of {names}")


def download(address: str, caller: CallerSettings) -> bytes:
    """The content behind an address, with the caller's certificates, proxies and index password.

    Raises:
        StackyardError: it cannot be had.
    """
    certificates = caller.secrets.get("ca.pem", b"").decode()
    context = ssl.create_default_context(cadata=certificates or None)
    request = Request(address, headers=authorization(address, caller))
    try:
        with urlopen(request, context=context, timeout=120) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise StackyardError(f"cannot fetch {bare(address)}", why=str(error)) from error
    return data


def authorization(address: str, caller: CallerSettings) -> dict[str, str]:
    """The header for an address on the host of an index that the caller named with a password."""
    host = re.escape(urlsplit(address).netloc.rpartition("@")[2])
    settings = caller.secrets.get("uv.toml", b"").decode()
    found = re.search(rf'//([^/@"\s]+)@{host}/', settings)
    if found is None:
        return {}
    word = base64.b64encode(unquote(found.group(1)).encode()).decode()
    return {"Authorization": f"Basic {word}"}


def _fetch_tool(
    root: Path, base: Base, folder: Path, caller: CallerSettings, env: dict[str, str]
) -> None:
    """What the machine without a network needs to run this project, as the project locks it."""
    pinned = lock.parse_lock((root / "requirements.lock").read_text(encoding="utf-8"))
    found = resolve.compile_requirements(
        [],
        base=base,
        caller=caller,
        constraints=lock.versions(pinned),
        project=root / "pyproject.toml",
    )
    requirements = folder / "tool" / "requirements.lock"
    text = lock.render_lock(found, inputs=lock.base_inputs(base), command="invoke bundle")
    requirements.write_text(text, encoding="utf-8")
    process.run(wheel_command(base, requirements, folder / "tool", caller), env=env, timeout=1200)


def _fetch_packages(
    base: Base, names: tuple[str, ...], folder: Path, caller: CallerSettings
) -> None:
    if "apt.sources" not in caller.secrets:
        raise StackyardError(
            f"there are no package sources of {base.unpack} here",
            why="they are taken from a machine that runs it, or from STACKYARD_APT_SOURCES",
            hint=f"make the bundle on {base.unpack}, or name a deb822 .sources file of it:"
            " STACKYARD_APT_SOURCES=FILE invoke bundle ...",
        )
    sources = folder / "sources"
    sources.mkdir()
    (sources / "caller.sources").write_bytes(caller.secrets["apt.sources"])
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    process.run(apt_command(base, folder, "update"), timeout=300)
    process.run(apt_command(base, folder, "download", *names), cwd=folder / "debs", timeout=600)


def apt_command(base: Base, folder: Path, *words: str) -> list[str]:
    """apt-get with sources, lists and architecture of its own: nothing of this machine's counts."""
    architecture = base.platform.rpartition("/")[2]
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Dir::State::Lists": f"{folder}/apt/lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": f"{folder}/apt/cache",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": f"{folder}/sources",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["apt-get", "-qq", *flags, *words]
