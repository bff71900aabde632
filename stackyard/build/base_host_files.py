"""Choose the files of a machine that make a base, and those that are never copied.

Owns the choice, as rules over paths and over the distributions of one Python. It must not look at
the machine: `build.base_host` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stackyard.definitions.spec import Base, HostBase
from stackyard.system.errors import StackyardError

# Never copied, whatever a definition says: users' files, secrets, identity, logs, the driver and
# the engine.
NEVER = (
    "/home", "/root", "/tmp", "/var/tmp", "/run", "/var/log", "/proc", "/sys", "/dev", "/mnt",
    "/media", "/boot", "/lost+found", "/var/lib/docker", "/var/lib/containerd",
    "/etc/ssh", "/etc/ssl/private", "/etc/shadow*", "/etc/gshadow*", "/etc/machine-id",
    "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/apt", "/etc/sudoers*",
    "/etc/krb5.keytab", "/etc/passwd-", "/etc/group-",
    "/usr/local/nvidia", "/usr/bin/nvidia-*", "/usr/lib/firmware/nvidia",
    "libcuda.so.*", "libcudadebugger.so.*", "libnvidia-*", "libnvcuvid.so*", "libnvoptix.so*",
    ".ssh", ".aws", ".kube", ".docker", ".netrc", "_netrc", ".git-credentials", ".pypirc", ".npmrc",
    ".pip", "pip.conf", "uv.toml", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*",
)  # fmt: skip
# Folders that every root file system has; made empty.
SKELETON = {
    "dev": 0o755, "home": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o555, "root": 0o700,
    "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o1777, "usr/local/bin": 0o755,
    "usr/local/sbin": 0o755, "var/cache": 0o755, "var/log": 0o755, "var/tmp": 0o1777,
}  # fmt: skip
_STANDARD = ("/usr", "/bin", "/sbin")


@dataclass(frozen=True, kw_only=True)
class HostDistribution:
    """Describe one installed distribution, by its metadata.

    Attributes:
        requires: requirements as written, with their markers.
        files: absolute paths of everything it installed.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Describe the python3 of a machine that a base is made of.

    Attributes:
        version: full version of Python.
        prefixes: folders of Python and of the packages installed for it.
        torch: version that torch reports; empty when it cannot be imported.
        why_no_torch: the error of that import.
        cuda: version of CUDA that torch was built for; empty for a CPU build.
        environment: values of requirement markers.
    """

    version: str
    prefixes: tuple[str, ...]
    torch: str
    why_no_torch: str
    cuda: str
    environment: Mapping[str, str]
    distributions: tuple[HostDistribution, ...]


def closure(found: Found, roots: Iterable[str]) -> tuple[set[str], list[str]]:
    """Return the names of the roots and all they require: installed ones, and missing ones."""
    installed: dict[str, HostDistribution] = {}
    for one in found.distributions:
        installed.setdefault(canonicalize_name(one.name), one)
    open_: list[tuple[str, frozenset[str]]] = []
    for root in roots:
        parsed = Requirement(root)
        open_.append((canonicalize_name(parsed.name), frozenset(parsed.extras)))
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_:
        name, extras = step = open_.pop()
        if step in seen:
            continue
        seen.add(step)
        for text in installed[name].requires if name in installed else ():
            need = Requirement(text)
            wanted = [{**found.environment, "extra": extra} for extra in ("", *extras)]
            if need.marker is None or any(need.marker.evaluate(one) for one in wanted):
                open_.append((canonicalize_name(need.name), frozenset(need.extras)))
    names = {name for name, _ in seen}
    return names & set(installed), sorted(names - set(installed))


def left_behind(found: Found, carried: set[str]) -> frozenset[str]:
    """Return the files that belong only to distributions that are not copied."""
    mine: set[str] = set()
    others: set[str] = set()
    met: set[str] = set()
    for one in found.distributions:
        name = canonicalize_name(one.name)
        # Of two distributions with the same name, Python imports the first on its path.
        (mine if name in carried and name not in met else others).update(one.files)
        met.add(name)
    return frozenset(others - mine)


class Rules:
    """Decide for each path on the way down if it is copied."""

    def __init__(self, host: HostBase, behind: Iterable[str]) -> None:
        self._never = _matcher(NEVER)
        self._exclude = _matcher(host.exclude)
        self._keep = _matcher(host.keep)
        self._behind = frozenset(behind)

    def forbidden(self, root: str) -> bool:
        """Say if a path, or one above it, is never copied."""
        path = PurePosixPath(root)
        return any(self._never(str(one)) for one in (path, *path.parents))

    def enters(self, folder: str) -> bool:
        """Say if something below a folder may be copied."""
        return not self._never(folder) and not self._exclude(folder)

    def takes(self, path: str) -> bool:
        """Say if a file or link in an entered folder is copied."""
        if self._never(path) or path in self._behind or _source(path) in self._behind:
            return False
        return self._keep(path) or not self._exclude(path)


def _source(path: str) -> str:
    """Return the source of a bytecode file; any other path unchanged."""
    folder, name = os.path.split(path)
    outer, last = os.path.split(folder)
    bytecode = last == "__pycache__" and name.endswith(".pyc")
    return f"{outer}/{name.partition('.')[0]}.py" if bytecode else path


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test for paths; a pattern without a leading / matches the last name only."""
    whole: list[str] = []
    last: list[str] = []
    for pattern in patterns:
        across = pattern.startswith("/")
        text = re.escape(pattern).replace(r"\*", ".*" if across else "[^/]*")
        (whole if across else last).append(text)
    paths, names = re.compile("|".join(whole) or r"(?!)"), re.compile("|".join(last) or r"(?!)")
    return lambda path: bool(paths.fullmatch(path) or names.fullmatch(path[path.rfind("/") + 1 :]))


def search_path(path: str, roots: Iterable[str]) -> str:
    """Return the image's PATH: the folders of the caller's PATH that are copied, in order."""
    inside = (*_STANDARD, *roots)
    kept = [
        folder
        for folder in dict.fromkeys(path.split(os.pathsep))
        if any(folder == root or folder.startswith(f"{root}/") for root in inside)
    ]
    return os.pathsep.join(kept)


def version_fits(have: str, declared: str) -> bool:
    """Say if a version is the declared one, which may be shorter: `2.5` fits 2.5.1."""
    return not declared or have == declared or have.startswith((f"{declared}.", f"{declared}+"))


def require(base: Base, found: Found) -> set[str]:
    """Require the Python that a base declares; return the names of the distributions to copy.

    Raises:
        StackyardError: there is no torch, the version is another one, or distributions that the
            base provides are missing.
    """
    assert base.host is not None
    if not found.torch:
        raise StackyardError(
            "python3, the first on PATH, has no torch that can be imported",
            why=found.why_no_torch,
            hint="put the Python that has it first on PATH (activate its environment)",
        )
    file = f"images/bases/{base.name}.yml"
    if not found.version.startswith(f"{base.python}."):
        raise StackyardError(
            f"python3, the first on PATH, is {found.version}; {base.name} is declared for"
            f" {base.python}",
            why="wheels of the stacks are locked for one version of Python",
            hint=f"put a Python {base.python} with torch first on PATH, or change python in {file}"
            " and lock again where there is a network",
        )
    rules = Rules(base.host, ())
    for prefix in found.prefixes:
        if rules.forbidden(prefix):
            raise StackyardError(
                f"python3, the first on PATH, lies in {prefix}",
                why="users' files, temporary files and the system's state are never copied",
                hint="make its environment elsewhere, such as in /opt",
            )
    carried, missing = closure(found, (*base.host.distributions, *base.provided))
    wrong = [f"{name} is declared or required, but not installed" for name in missing]
    versions: dict[str, str] = {
        canonicalize_name(one.name): one.version for one in reversed(found.distributions)
    }
    for name, declared in base.provided.items():
        if name in carried and not version_fits(versions[name], declared):
            wrong.append(f"{name} {declared} is declared, {versions[name]} is installed")
    if wrong:
        raise StackyardError(
            f"python3, the first on PATH, is not what {file} declares",
            why="\n".join(wrong),
            hint=f"correct provides and host.distributions in {file}, then: invoke lock --base"
            f" {base.name} (needs a network)",
        )
    return carried


def stamp(base: Base, found: Found, carried: Iterable[str], path: str) -> str:
    """Return the content address of a host base: a hash of its definition and of what was found."""
    assert base.host is not None
    names = set(carried)
    parts = {
        "host": asdict(base.host),
        "never": NEVER,
        "skeleton": SKELETON,
        "env": dict(base.env),
        "path": path,
        "python": [found.version, *found.prefixes],
        "torch": [found.torch, found.cuda],
        "distributions": sorted(
            f"{one.name}=={one.version}"
            for one in found.distributions
            if canonicalize_name(one.name) in names
        ),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
