"""Which files of a machine make a base: what is carried, and what never is.

Owns the choice, as rules over paths and over the distributions of one Python. It must not look at
the machine: `build.base_host` does, and asks here.
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

# Whatever a definition allows: people's files, secrets, identity, logs, the driver, the engine.
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
    """One installed distribution of a Python, by its metadata.

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
    """The python3 of a machine that a base is made of.

    Attributes:
        version: of Python, in full.
        prefixes: where it and what is installed for it lie.
        torch: what torch says its version is; empty when it cannot be imported.
        why_no_torch: what was said then.
        cuda: CUDA that this torch was built for; empty for a CPU build.
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
    """Canonical names of the roots and of all they require, and those that are not installed."""
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
    """Files of distributions that are not carried, and that no carried one has as well."""
    mine: set[str] = set()
    others: set[str] = set()
    met: set[str] = set()
    for one in found.distributions:
        name = canonicalize_name(one.name)
        # Of two of one name the first on the path is the one that is imported.
        (mine if name in carried and name not in met else others).update(one.files)
        met.add(name)
    return frozenset(others - mine)


class Rules:
    """What is carried, asked path by path on the way down."""

    def __init__(self, host: HostBase, behind: Iterable[str]) -> None:
        self._never = _matcher(NEVER)
        self._exclude = _matcher(host.exclude)
        self._keep = _matcher(host.keep)
        self._behind = frozenset(behind)

    def forbidden(self, root: str) -> bool:
        """Whether a path lies at or below one that is never carried."""
        path = PurePosixPath(root)
        return any(self._never(str(one)) for one in (path, *path.parents))

    def enters(self, folder: str) -> bool:
        """Whether something below a folder may be carried."""
        return not self._never(folder) and not self._exclude(folder)

    def takes(self, path: str) -> bool:
        """Whether a file or link is carried, out of a folder that was entered."""
        if self._never(path) or path in self._behind or _source(path) in self._behind:
            return False
        return self._keep(path) or not self._exclude(path)


def _source(path: str) -> str:
    """The module whose bytecode a file is; the file itself when it is none."""
    folder, name = os.path.split(path)
    outer, last = os.path.split(folder)
    bytecode = last == "__pycache__" and name.endswith(".pyc")
    return f"{outer}/{name.partition('.')[0]}.py" if bytecode else path


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a path fits: patterns from / on as a whole, others by its last name."""
    whole: list[str] = []
    last: list[str] = []
    for pattern in patterns:
        across = pattern.startswith("/")
        text = re.escape(pattern).replace(r"\*", ".*" if across else "[^/]*")
        (whole if across else last).append(text)
    paths, names = re.compile("|".join(whole) or r"(?!)"), re.compile("|".join(last) or r"(?!)")
    return lambda path: bool(paths.fullmatch(path) or names.fullmatch(path[path.rfind("/") + 1 :]))


def search_path(path: str, roots: Iterable[str]) -> str:
    """PATH of the image: what of the caller's PATH is carried, in its order."""
    inside = (*_STANDARD, *roots)
    kept = [
        folder
        for folder in dict.fromkeys(path.split(os.pathsep))
        if any(folder == root or folder.startswith(f"{root}/") for root in inside)
    ]
    return os.pathsep.join(kept)


def version_fits(have: str, declared: str) -> bool:
    """Whether a version is what `provides` declares, which may say less: `2.5` for 2.5.1."""
    return not declared or have == declared or have.startswith((f"{declared}.", f"{declared}+"))


def require(base: Base, found: Found) -> set[str]:
    """See that a machine's Python is what the base declares; the distributions to carry, by name.

    Raises:
        StackyardError: it has no torch, another Python, or lacks what the base provides.
    """
    assert base.host is not None
    if not found.torch:
        raise StackyardError(
            "python3, the first on PATH, has no torch that can be imported",
            why=found.why_no_torch,
            hint="put the Python that has it first on PATH (activate its environment), then again",
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
                why="files of people, temporary files and the system's state are never carried",
                hint="make its environment elsewhere, such as /opt",
            )
    carried, missing = closure(found, (*base.host.distributions, *base.provided))
    wrong = [f"{name} is declared or required, and not installed" for name in missing]
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
    """Content address of a host base: its definition, and what was found here."""
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
