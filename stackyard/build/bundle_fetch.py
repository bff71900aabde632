"""Fetch the content of a bundle, where there is a network: wheels, sources, Debian packages.

Owns the commands of pip, for the base's Python and platform and not this machine's.
Everything is verified: Python packages by the locks' hashes, system packages by their
distribution's signatures. It must not decide what is needed: locks and definitions do.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth

from stackyard.build import bundle
from stackyard.build.bundle import BundleIndex
from stackyard.build.catalog import ResolvedImage
from stackyard.build.locks import resolve
from stackyard.build.mirrors import CallerSettings, bare
from stackyard.build.packages import apt_command, prepare
from stackyard.definitions import compat, lock
from stackyard.definitions.lock import Locked
from stackyard.definitions.spec import Base
from stackyard.system import cleanup, process
from stackyard.system.errors import StackyardError
from stackyard.system.toml import parse_toml
from stackyard.system.transport import Session, closed_on_error, content

# Of a package's source: bytes, and how many seconds it may be silent or late.
LONGEST = 2**30
SILENT_SECONDS = 120.0
Say = Callable[[str], None]


def make(
    root: Path, images: list[ResolvedImage], out: Path, caller: CallerSettings, say: Say
) -> BundleIndex:
    """Fetch all that several images of one base are built from, and pack it.

    Args:
        root: the project's root.
        out: path of the bundle; replaced atomically.

    Raises:
        StackyardError: something cannot be fetched; says what.
    """
    base = images[0].base
    with cleanup.folder("bundle") as folder:
        for name in bundle.FOLDERS:
            (folder / name).mkdir()
        env = pip_environment(caller, folder)
        wanted = folder / "wanted.lock"
        for path, text in sorted(_wheel_locks(images).items()):
            if lock.parse_lock(text):
                say(f"fetching what {path} names")
                wanted.write_text(text, encoding="utf-8")
                command = wheel_command(base, wanted, folder / "wheels", caller)
                process.run(command, env=env, timeout=1200)
        say("fetching sources")
        _fetch_sdists(base, _sdists(images), folder / "sdists", caller)
        say("fetching what Stackyard itself needs")
        _fetch_tool(root, base, folder, caller, env)
        names = bundle.packages(images)
        say(f"fetching {len(names)} packages of {base.unpack}")
        _fetch_packages(base, names, folder, caller)
        say("packing")
        return bundle.write(out, folder, images)


def _wheel_locks(images: list[ResolvedImage]) -> dict[str, str]:
    """Return the locks by path, those of packages built here without what is not installed."""
    found = {path: text for image in images for path, text in image.locks.items()}
    for path, (_, needs) in _built(images).items():
        text = found[path]
        others = {item.name for item in lock.parse_lock(text)} - set(needs)
        found[path] = lock.without(text, others)
    return found


def _sdists(images: list[ResolvedImage]) -> list[Locked]:
    locks = {path: text for image in images for path, text in image.locks.items()}
    return [
        item
        for path, (package, _) in sorted(_built(images).items())
        for item in lock.some_of(locks[path], {package})
    ]


def _built(images: list[ResolvedImage]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the packages built here by their lock's path: the name, and what the build needs."""
    return {
        lock.wheel_lock_path(built.wheel.package): (
            compat.canonical(built.wheel.package),
            built.needs,
        )
        for image in images
        for built in image.wheels
    }


def pip_environment(caller: CallerSettings, folder: Path) -> dict[str, str]:
    """Return the environment that gives pip the caller's index, also if only uv has it."""
    if "pip.conf" not in caller.secrets:
        return {}
    path = folder / "pip.conf"
    path.touch(mode=0o600)
    path.write_bytes(caller.secrets["pip.conf"])
    return {"PIP_CONFIG_FILE": str(path)}


def wheel_command(base: Base, requirements: Path, out: Path, caller: CallerSettings) -> list[str]:
    """Return the command that fetches locked wheels for a base's Python and platform."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    for wheels in caller.wheel_folders:
        words += ["--find-links", str(wheels)]
    words += ["--dest", str(out), "--requirement", str(requirements)]
    words += ["--only-binary=:all:", "--implementation=cp", f"--python-version={base.python}"]
    return [*words, *(f"--platform={name}" for name in platforms(base))]


def platforms(base: Base) -> list[str]:
    """Return all platform tags of a base, the newest glibc first: pip compares tags exactly."""
    machine = resolve.machine(base)
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(resolve.GLIBC, 4, -1)]
    old = [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [*newer, *old, f"linux_{machine}"]


def _fetch_sdists(base: Base, locked: list[Locked], out: Path, caller: CallerSettings) -> None:
    """Fetch sources by their URL; `pip download` would run the setup.py of every package."""
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
    """Download a URL with the caller's certificates, proxies and index password.

    Raises:
        StackyardError: it cannot be downloaded, is too long or comes too slowly.
    """
    certificates = caller.secrets.get("ca.pem", b"")
    known = login(address, caller)
    with cleanup.folder("download") as folder:
        path = folder / "ca.pem"
        path.write_bytes(certificates)
        try:
            with Session() as session:
                # Redirected to another host, the session leaves the password out.
                answer = session.get(
                    address, auth=HTTPBasicAuth(*known) if known else get_netrc_auth(address),
                    timeout=SILENT_SECONDS, verify=str(path) if certificates else True, stream=True,
                )  # fmt: skip
                with closed_on_error(answer):
                    answer.raise_for_status()
                data = content(answer, LONGEST, SILENT_SECONDS)
        except requests.exceptions.RequestException as error:
            why = bare(str(error))
            raise StackyardError(f"cannot fetch {bare(address)}", why=why) from error
    if len(data) > LONGEST:
        why = f"it is longer than {LONGEST / 2**20:.0f} MiB"
        raise StackyardError(f"cannot fetch {bare(address)}", why=why)
    return data


def login(address: str, caller: CallerSettings) -> tuple[bytes, bytes] | None:
    """Return user and password for the host of an index that has them; else None."""
    host = urlsplit(address).netloc.rpartition("@")[2]
    settings = parse_toml(caller.secrets.get("uv.toml", b"").decode())
    for index in settings.get("index", []):
        there = urlsplit(index["url"])
        words, at, name = there.netloc.rpartition("@")
        if at and name == host:
            user, _, password = words.partition(":")
            return unquote(user).encode(), unquote(password).encode()
    return None


def _fetch_tool(
    root: Path, base: Base, folder: Path, caller: CallerSettings, env: dict[str, str]
) -> None:
    """Fetch the project's own requirements, as locked, for the machine without a network."""
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
            why="they come from a machine that runs it, or from STACKYARD_APT_SOURCES",
            hint=f"make the bundle on {base.unpack}, or name a deb822 .sources file of it:"
            " STACKYARD_APT_SOURCES=FILE invoke bundle ...",
        )
    prepare(folder, caller.secrets["apt.sources"])
    process.run(apt_command(base.platform, folder, "update"), timeout=300)
    command = apt_command(base.platform, folder, "download", *names)
    process.run(command, cwd=folder / "debs", timeout=600)
