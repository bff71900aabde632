"""Read and write locks, the resolved and hashed requirements of one stack on one base.

Owns the lock's text format (pip requirements with hashes, so that any tool can install it) and
the digest that ties a lock to the definitions it was made from. It must not resolve anything:
`build.locks.resolve` does, over the network.

These files decide an image's Python packages:
    images/bases/<base>.lock              torch and what it needs, the layer that all stacks share;
                                          of a pulled base its image, and all that is installed
    images/<stack>/<base>.lock            the stack's packages that come as wheels; bases that need
                                          the same share the file of the first by name
    images/wheels/<package>.lock          one package built here: its sdist, and what its build
                                          needs on any base; a base takes what it does not provide
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from packaging.utils import canonicalize_name

from stackyard.definitions.spec import Base, Fix, Stack, Wheel

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)===?([^\s;\\]+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_IMAGE = re.compile(r"^# image: \S+@(sha256:[0-9a-f]{64})$", re.MULTILINE)
_INPUTS = re.compile(r"^# inputs: (sha256:[0-9a-f]{64})$", re.MULTILINE)
# The two lines that begin a stack's lock, and those of further bases that share its file.
_HEAD = re.compile(
    r"# Written by `invoke lock (?P<stack>\S+) --base (?P<base>\S+)`; do not edit\.\n"
    r"# inputs: (?P<inputs>sha256:[0-9a-f]{64})\n"
    r"(?P<others>(?:# inputs on \S+: sha256:[0-9a-f]{64}\n)*)"
)
_OTHER = re.compile(r"# inputs on (\S+): (\S+)")
WHEEL_COMMAND = "invoke lock"


@dataclass(frozen=True, kw_only=True)
class Locked:
    """Hold one resolved distribution."""

    name: str
    version: str
    hashes: tuple[str, ...]


def base_lock_path(base: str) -> str:
    """Return the path of the shared torch layer's lock, from the project's root."""
    return f"images/bases/{base}.lock"


def lock_path(stack: str, base: str) -> str:
    """Return the path of a stack's lock."""
    return f"images/{stack}/{base}.lock"


def wheel_lock_path(package: str) -> str:
    """Return where the lock of a package built here lies; it serves every base."""
    return f"images/wheels/{package}.lock"


@lru_cache(maxsize=64)
def parse_lock(text: str) -> tuple[Locked, ...]:
    """Read requirements with hashes, in the order written; cached, since commands ask often."""
    found: list[Locked] = []
    for block in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text):
        pin = _PIN.match(block.strip())
        if pin:
            hashes = tuple(_HASH.findall(block))
            name = canonicalize_name(pin.group(1))
            found.append(Locked(name=name, version=pin.group(2), hashes=hashes))
    return tuple(found)


def render_lock(locked: Iterable[Locked], *, inputs: str, command: str) -> str:
    """Return the text of a lock file, sorted by name."""
    lines = [f"# Written by `{command}`; do not edit.", f"# inputs: {inputs}"]
    for item in sorted(locked, key=lambda entry: entry.name):
        pin = f"{item.name}=={item.version}"
        lines.append(" \\\n".join([pin, *(f"    --hash={h}" for h in sorted(item.hashes))]))
    return "\n".join(lines) + "\n"


def stack_command(stack: str, base: str) -> str:
    """Return the command that writes a stack's lock on a base."""
    return f"invoke lock {stack} --base {base}"


def _head(stack: str, base: str, inputs: str) -> str:
    return f"# Written by `{stack_command(stack, base)}`; do not edit.\n# inputs: {inputs}\n"


def spread(path: str, text: str) -> dict[str, str]:
    """Return the locks that one file holds, by path: its own, and those of bases that share it."""
    head, folder = _HEAD.match(text), path.rpartition("/")[0]
    if head is None or path != f"{folder}/{head['base']}.lock":
        return {path: text}
    stack, rest = head["stack"], text[head.end() :]
    shared = {head["base"]: head["inputs"], **dict(_OTHER.findall(head["others"]))}
    return {f"{folder}/{base}.lock": _head(stack, base, shared[base]) + rest for base in shared}


def holders(locks: Mapping[str, str]) -> dict[str, str]:
    """Return the path of the file that holds each lock: where packages are the same, one file."""
    first: dict[tuple[str, ...], str] = {}
    found: dict[str, str] = {}
    for path, text in sorted(locks.items()):
        head, folder = _HEAD.match(text), path.rpartition("/")[0]
        # A copied stack's lock names the stack that it was made for.
        same = head is not None and path == f"{folder}/{head['base']}.lock"
        key = (folder, head["stack"], text[head.end() :]) if head and same else (path,)
        found[path] = first.setdefault(key, path)
    return found


def files(locks: Mapping[str, str]) -> dict[str, str]:
    """Return the files that hold some locks, by path; the opposite of `spread`."""
    found: dict[str, str] = {}
    for path, holder in holders(locks).items():
        head = _HEAD.match(locks[path])
        if path == holder or head is None:
            found[path] = locks[path]
            continue
        own = _HEAD.match(found[holder])
        assert own is not None
        line = f"# inputs on {head['base']}: {head['inputs']}\n"
        found[holder] = found[holder][: own.end()] + line + found[holder][own.end() :]
    return found


def locked_inputs(text: str) -> str:
    """Return the digest of the definitions that a lock was made from; empty if it has none."""
    match = _INPUTS.search(text)
    return match.group(1) if match else ""


def without(text: str, names: Collection[str]) -> str:
    """Return a lock's text without some distributions (by canonical name), else unchanged."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.rstrip("\n"))
    pins = [(_PIN.match(block), block) for block in blocks]
    kept = [b for pin, b in pins if not pin or canonicalize_name(pin.group(1)) not in names]
    return "\n".join(kept) + "\n"


def some_of(text: str, names: Collection[str]) -> tuple[Locked, ...]:
    """Return the distributions of a lock that have one of these canonical names."""
    return tuple(item for item in parse_lock(text) if item.name in names)


def extended(text: str, before: str) -> str:
    """Return a built package's lock with what an earlier one of the same inputs holds besides.

    So it keeps what only bases need that were not asked now.
    """
    inputs = locked_inputs(text)
    if locked_inputs(before) != inputs:
        return text
    held = {item.name: item for item in (*parse_lock(before), *parse_lock(text))}
    return render_lock(held.values(), inputs=inputs, command=WHEEL_COMMAND)


def versions(locked: Iterable[Locked]) -> dict[str, str]:
    """Return versions by canonical name."""
    return {item.name: item.version for item in locked}


def other_builds(base: Base, locked: Iterable[Locked]) -> dict[str, str]:
    """Return versions in a lock that are other builds than the base names, by canonical name.

    By PEP 440 also 2.13.0+cpu, another build, satisfies `torch==2.13.0`.
    """
    wanted, found = versions(parse_lock("\n".join(base.torch))), versions(locked)
    return {name: found[name] for name in wanted if name in found and found[name] != wanted[name]}


def base_inputs(base: Base) -> str:
    """Return the digest of everything of a base that decides locks on it."""
    decided: dict[str, object] = {
        "python": base.python, "platform": base.platform, "torch": base.torch,
    }  # fmt: skip
    if base.host is not None:
        # What a pulled base provides is read from the image when a lock is made.
        decided["provides"] = sorted(base.provided.items())
    return _digest(decided)


def pulled_inputs(base: Base) -> str:
    """Return the digest of everything declared that decides which image a pulled base is."""
    return _digest({"base": base_inputs(base), "reference": base.reference})


def render_pulled(base: Base, digest: str, held: Mapping[str, str]) -> str:
    """Return the text of a pulled base's lock.

    Args:
        digest: digest of the image that the base's reference names.
        held: versions of the distributions inside that image, by canonical name.
    """
    locked = [Locked(name=name, version=version, hashes=()) for name, version in held.items()]
    text = render_lock(
        locked, inputs=pulled_inputs(base), command=f"invoke lock --base {base.name}"
    )
    first, second, *rest = text.split("\n")
    return "\n".join([first, second, f"# image: {base.repository}@{digest}", *rest])


def locked_digest(text: str) -> str:
    """Return the digest of the image in a pulled base's lock; empty where it names none."""
    match = _IMAGE.search(text)
    return match.group(1) if match else ""


def pinned(base: Base, locks: Mapping[str, str]) -> Base:
    """Return a base with the image digest that its lock records."""
    digest = locked_digest(locks.get(base_lock_path(base.name), "")) if base.pulled else ""
    return replace(base, digest=digest)


def wheel_inputs(wheel: Wheel) -> str:
    """Return the digest of what decides a built package's lock: its version and requirements.

    No base is part of it: requirements are exact, and hashes are those of all files of a release.
    """
    return _digest({"pin": f"{wheel.package}=={wheel.version}", "requires": wheel.requires})


def stack_inputs(stack: Stack, base: Base, fixes: Mapping[str, Fix]) -> str:
    """Return the digest of all that decides a stack's lock; on a pulled base its image, too."""
    of_image = {"digest": base.digest, "replaceable": base.replaceable} if base.pulled else {}
    remedies = [fixes[name].remedy for name in stack.fixes if name in fixes]
    return _digest(
        {
            "base": base_inputs(base),
            "reference": base.reference if base.bootstrap is None else "",
            "packages": dict(sorted(stack.packages.items())),
            "builds": sorted(stack.builds),
            "override": sorted(o for remedy in remedies for o in remedy.override),
            "exclude": sorted(e for remedy in remedies for e in remedy.exclude),
            **of_image,
        }
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=list)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
