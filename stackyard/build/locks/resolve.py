"""Resolve versions over the network with uv, and write lock files.

Owns the calls of uv and their inputs. No other module may resolve versions.

Over 300 lines: every input of a resolution, and what each refusal of uv means to a user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stackyard.build.mirrors import CallerSettings
from stackyard.definitions import lock
from stackyard.definitions.lock import Locked
from stackyard.definitions.spec import Base, Fix, Stack, Wheel
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import CommandError, StackyardError
from stackyard.system.image import ImageInfo
from stackyard.system.toml import parse_toml

# In the order of Python's path: of two distributions with the same name, it imports the first.
_INVENTORY = """
import importlib.metadata as m, json, sys
held = [(d.metadata['Name'], d.version) for d in m.distributions()]
print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'held': held}))
"""
# The newest glibc (2.x) that a wheel may need: the oldest one among the bases.
GLIBC = 34


def survey(
    engine: Engine, base: Base, require_space: Callable[[], None]
) -> tuple[str, dict[str, str]]:
    """Return the digest of a pulled base's image, and the distributions inside it.

    Args:
        require_space: called before an image is pulled that the engine does not hold.

    Raises:
        StackyardError: the image cannot be pulled, has no digest, or does not fit the base.
    """
    reference = base.reference
    found = engine.image(reference)
    digest = _digest_of(found, base)
    if found is None:
        require_space()
    if found is None or not digest:
        found = engine.pull(reference)
        digest = _digest_of(found, base)
    if not digest:
        raise StackyardError(
            f"{reference} has no digest, so nobody else could pull the same image",
            why="the engine holds it, but did not get it from its registry",
            hint=f"docker image rm {reference}, then try again where the registry can be reached",
        )
    held = inventory(engine, base, found.id)
    wrong = [
        f"{name}: {base.name} declares {version}, the image holds {held.get(name, 'none')}"
        for name, version in base.provided.items()
        if not _is_version(held.get(name, ""), version)
    ]
    if wrong:
        raise StackyardError(
            f"{reference} does not hold what images/bases/{base.name}.yml says",
            why="\n".join(wrong),
            hint="write the image's versions under `provides`, or name another image",
        )
    return digest, held


def _digest_of(found: ImageInfo | None, base: Base) -> str:
    names = [name.partition("@") for name in (found.digests if found else ())]
    wanted = _short_repository(base.repository)
    return next((digest for place, _, digest in names if _short_repository(place) == wanted), "")


def _short_repository(name: str) -> str:
    """Return a repository as engines list it: without the host and `library/` of Docker Hub."""
    return name.removeprefix("index.").removeprefix("docker.io/").removeprefix("library/")


def _is_version(found: str, declared: str) -> bool:
    try:
        return not declared or Version(found) == Version(declared)
    except InvalidVersion:
        return found == declared


def inventory(engine: Engine, base: Base, reference: str) -> dict[str, str]:
    """Return the distributions inside a base image, read in a container.

    A version that PEP 440 does not allow becomes `0+` with its letters and digits.

    Raises:
        StackyardError: the image cannot be pulled, or its Python is missing or another version.
    """
    found = engine.image(reference) or engine.pull(reference)
    output = engine.run_once(found.id, ["python3", "-c", _INVENTORY], seconds=120)
    # The image's entrypoint may print, too: NVIDIA's looks for drivers.
    line = next((s for s in reversed(output.splitlines()) if s.startswith('{"python"')), "")
    try:
        said = json.loads(line)
    except ValueError as error:
        raise StackyardError(f"no inventory from {reference}", why=output[-500:]) from error
    if said["python"] != base.python:
        raise StackyardError(
            f"{base.reference} has Python {said['python']}, {base.name} declares {base.python}",
            why="wheels are chosen for one version of Python",
            hint=f'write python: "{said["python"]}" in images/bases/{base.name}.yml',
        )
    held: dict[str, str] = {}
    for name, version in said["held"]:
        if name:  # the remains of a removed distribution have no name
            held.setdefault(canonicalize_name(name), _plain_version(str(version)))
    return held


def _plain_version(version: str) -> str:
    try:
        Version(version)
    except InvalidVersion:
        return f"0+{'.'.join(re.findall('[A-Za-z0-9]+', version)) or 'unknown'}"
    return version


def compile_requirements(
    requirements: Iterable[str],
    *,
    base: Base,
    caller: CallerSettings,
    constraints: Mapping[str, str] | None = None,
    preferred: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    exclude: Iterable[str] = (),
    dependencies: bool = True,
    project: Path | None = None,
) -> tuple[Locked, ...]:
    """Resolve requirements for a base's Python and platform, with hashes.

    Args:
        constraints: fixed versions, which the base provides.
        preferred: versions to take where no requirement excludes them.
        overrides: requirements that replace those of dependents.
        exclude: distributions to drop wherever they are required.
        dependencies: false to resolve the requirements alone.
        project: a pyproject.toml whose requirements are resolved as well.

    Raises:
        CommandError: uv found no solution; holds its message.
    """
    with cleanup.folder("lock") as folder:
        never = [f"{package} ; sys_platform == 'never'" for package in exclude]
        texts = {
            "in": "\n".join(requirements),
            "constraints": "\n".join(f"{n}==={v}" for n, v in (constraints or {}).items()),
            "overrides": "\n".join([*overrides, *never]),
        }
        for kind, text in texts.items():
            (folder / f"{kind}.txt").write_text(text + "\n")
        out = folder / "out.txt"
        # uv prefers the versions that it finds in its output file.
        out.write_text("".join(f"{n}=={v}\n" for n, v in (preferred or {}).items()))
        command = [
            uv.find_uv_bin(), "pip", "compile", str(folder / "in.txt"),
            *([str(project)] if project else []), "-o", str(out),
            "--generate-hashes", "--no-annotate", "--no-header", "--quiet",
            "--python-version", base.python, "--python-platform", _platform(base),
            "-c", str(folder / "constraints.txt"), "--overrides", str(folder / "overrides.txt"),
        ]  # fmt: skip
        if not dependencies:
            command.append("--no-deps")
        for wheels in caller.wheel_folders:
            command += ["--find-links", str(wheels)]
        if base.torch_index and not caller.wheel_folders:
            command += ["--extra-index-url", base.torch_index]
            command += ["--index-strategy", "unsafe-best-match"]
        process.run(command, env=_environment(caller, folder), timeout=900)
        return lock.parse_lock(out.read_text())


def find_sdists(locked: Iterable[Locked], base: Base, caller: CallerSettings) -> list[str]:
    """Return the URL of each locked package's sdist on the caller's index.

    Raises:
        CommandError: uv found none; holds its message.
    """
    with cleanup.folder("sdists") as folder:
        pins = "".join(f"{item.name}=={item.version}\n" for item in locked)
        (folder / "in.txt").write_text(pins)
        out = folder / "pylock.toml"
        command = [
            uv.find_uv_bin(), "pip", "compile", str(folder / "in.txt"), "-o", str(out),
            "--format", "pylock.toml", "--no-deps", "--no-binary", ":all:", "--quiet",
            "--python-version", base.python,
        ]  # fmt: skip
        process.run(command, env=_environment(caller, folder), timeout=600)
        packages = parse_toml(out.read_text(encoding="utf-8")).get("packages", [])
        return [one["sdist"]["url"] for one in packages if "url" in one.get("sdist", {})]


def find_newest(
    names: Iterable[str], base: Base, caller: CallerSettings
) -> dict[str, tuple[str, str]]:
    """Find the newest release of each distribution for a base's Python, without constraints.

    Returns:
        By canonical name: the version, and the day when its first file was uploaded (ISO 8601;
        empty where the index does not publish it).

    Raises:
        CommandError: uv found none; holds its message.
    """
    with cleanup.folder("newest") as folder:
        (folder / "in.txt").write_text("".join(f"{name}\n" for name in names))
        out = folder / "pylock.toml"
        command = [
            uv.find_uv_bin(), "pip", "compile", str(folder / "in.txt"), "-o", str(out),
            "--format", "pylock.toml", "--no-deps", "--upgrade", "--quiet",
            "--python-version", base.python, "--python-platform", _platform(base),
        ]  # fmt: skip
        for wheels in caller.wheel_folders:
            command += ["--find-links", str(wheels)]
        process.run(command, env=_environment(caller, folder), timeout=600)
        return _releases(out.read_text(encoding="utf-8"))


def _releases(pylock: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for package in parse_toml(pylock).get("packages", []):
        files = [package.get("sdist", {}), *package.get("wheels", [])]
        days = [str(file["upload-time"])[:10] for file in files if "upload-time" in file]
        if "version" in package:
            name = canonicalize_name(package["name"])
            found[name] = (package["version"], min(days, default=""))
    return found


def machine(base: Base) -> str:
    """Return the base's architecture, as in the names of wheels."""
    return {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[base.platform]


def _platform(base: Base) -> str:
    return f"{machine(base)}-manylinux_2_{GLIBC}"


def _environment(caller: CallerSettings, folder: Path) -> dict[str, str]:
    env = {}
    if "uv.toml" in caller.secrets:
        path = folder / "uv.toml"
        path.write_bytes(caller.secrets["uv.toml"])
        env["UV_CONFIG_FILE"] = str(path)
    return env


def lock_base(base: Base, caller: CallerSettings) -> dict[str, str]:
    """Resolve the lock of the torch layer, which all stacks on a bootstrapped base share."""
    command = f"invoke lock --base {base.name}"
    found = compile_requirements(base.torch, base=base, caller=caller)
    for name, version in lock.other_builds(base, found).items():
        _refuse_build(base, name, version, caller)
    text = lock.render_lock(found, inputs=lock.base_inputs(base), command=command)
    return {lock.base_lock_path(base.name): text}


def _refuse_build(base: Base, name: str, version: str, caller: CallerSettings) -> NoReturn:
    """Refuse a lock with another build than the base names; say where it came from."""
    wheel = f"{name.replace('-', '_')}-{version}-*.whl"
    offered = [str(folder) for folder in caller.wheel_folders if list(folder.glob(wheel))]
    pin = next(word for word in base.torch if canonicalize_name(Requirement(word).name) == name)
    raise StackyardError(
        f"base {base.name} names {pin}, but uv resolved another build: {name} {version}",
        why=f"offered by the wheel folder {', '.join(offered)}" if offered
        else "offered by a package index",
        hint=f"write {pin.replace('==', '===', 1) if '===' not in pin else pin} in"
        f" images/bases/{base.name}.yml, which no other build satisfies",
    )  # fmt: skip


def lock_wheel(
    wheel: Wheel, base: Base, caller: CallerSettings, others: str = ""
) -> dict[str, str]:
    """Lock the sdist of one built package, and what its build needs and the base lacks.

    Args:
        others: the lock as it was just made for other bases; what it holds is taken and kept.

    Raises:
        StackyardError: the bases need different versions, and there is one lock for all.
    """
    before = {item.name: item for item in lock.parse_lock(others)}
    sdist = compile_requirements(
        [f"{wheel.package}=={wheel.version}"], base=base, caller=caller, dependencies=False
    )
    given = base.provided
    wanted = [r for r in wheel.requires if canonicalize_name(Requirement(r).name) not in given]
    needs = compile_requirements(
        wanted, base=base, caller=caller, exclude=given, preferred=lock.versions(before.values())
    )
    found = {item.name: item for item in (*sdist, *needs)}
    for name, item in found.items():
        if name in before and before[name].version != item.version:
            raise StackyardError(
                f"building {wheel.package} needs {name} {item.version} on {base.name}, and"
                f" {before[name].version} on other bases",
                why="one lock serves every base",
                hint=f"name {name} with a version that suits all under `requires` in"
                f" images/wheels/{wheel.package}.yml",
            )
    text = lock.render_lock(
        {**before, **found}.values(), inputs=lock.wheel_inputs(wheel), command=lock.WHEEL_COMMAND
    )
    return {lock.wheel_lock_path(wheel.package): text}


def lock_stack(
    stack: Stack,
    base: Base,
    fixes: Mapping[str, Fix],
    provided: Mapping[str, str],
    caller: CallerSettings,
) -> dict[str, str]:
    """Resolve the stack's lock, without packages that the base provides or that are built."""
    remedies = [fixes[name].remedy for name in stack.fixes]
    stays = {n: v for n, v in provided.items() if n not in base.replaceable}
    if base.bootstrap is not None:
        given, left_out = stays, list[str]()
    else:
        given, left_out = _kept_by_base(stack, base, stays)
    try:
        found = compile_requirements(
            [f"{name}=={version}" for name, version in stack.packages.items()],
            base=base,
            caller=caller,
            constraints=given,
            preferred={n: v for n, v in provided.items() if n not in stays},
            overrides=[o for remedy in remedies for o in remedy.override],
            exclude=[*(e for remedy in remedies for e in remedy.exclude), *left_out],
        )
    except CommandError as error:
        raise _does_not_fit(stack, base, error) if base.pulled else error from error
    built = {canonicalize_name(name) for name in stack.builds}
    kept = [
        item
        for item in found
        if item.name not in stays
        and item.name not in built
        and provided.get(item.name) != item.version
    ]
    text = lock.render_lock(
        kept,
        inputs=lock.stack_inputs(stack, base, fixes),
        command=lock.stack_command(stack.name, base.name),
    )
    return {lock.lock_path(stack.name, base.name): text}


def _does_not_fit(stack: Stack, base: Base, error: CommandError) -> CommandError:
    return CommandError(
        f"the requirements of {stack.name} do not fit the packages in {base.name}",
        code=error.code,
        why=error.why or error.what,
        hint=f"if a version inside the base conflicts: name the package under `replaceable` in"
        f" images/bases/{base.name}.yml if the base does not need it, or take another base",
    )


def _kept_by_base(
    stack: Stack, base: Base, provided: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Split the base's packages into constraints and packages left out of resolution.

    A vendor's own versions (pre-releases, and those with a local part) are on no index, so they
    are left out of the resolution. All others of a pulled base are constraints, so that a conflict
    is found here and not at import. The build asserts that all are unchanged.

    Raises:
        StackyardError: the stack pins one of them to another version.
    """
    pins = {canonicalize_name(name): version for name, version in stack.packages.items()}
    replacing = (
        f"name it under `replaceable` in images/bases/{base.name}.yml, " if base.pulled else ""
    )
    for name in sorted(set(pins) & set(provided)):
        if pins[name] != provided[name]:
            there = provided[name] or "a version of its own"
            raise StackyardError(
                f"{stack.name} wants {name} {pins[name]}, {base.name} provides {there}",
                why="what the base provides is never replaced",
                hint=f"leave {name} out of packages in images/{stack.name}/stack.yml (or pin what"
                f" the base has), {replacing}or take another base",
            )
    kept = {name: provided[name] for name in sorted(set(provided) - set(pins))}
    given = {n: v for n, v in kept.items() if base.pulled and _may_be_on_an_index(v)}
    return given, [name for name in kept if name not in given]


def _may_be_on_an_index(version: str) -> bool:
    parsed = Version(version)
    return not (parsed.local or parsed.is_prerelease)
