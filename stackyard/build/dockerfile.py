"""Render the files that build a resolved image: its Dockerfile and its fixes.

Owns the values of the template, which itself owns the order of layers. It must not know the
engine, the caller's settings or the clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from packaging.utils import canonicalize_name

from stackyard.build.catalog import ResolvedImage, ResolvedWheel
from stackyard.build.source.naming import archive_path
from stackyard.definitions import lock
from stackyard.definitions.spec import Base, Fix
from stackyard.system import template

UV_VERSION = "0.13.9"
TOOLS = f"ghcr.io/astral-sh/uv:{UV_VERSION}"
_SHELL = ("/bin/bash", "-euo", "pipefail", "-c")
# NVIDIA's images set BASH_ENV: bash reads that file before every script, and it fails under -eu.
_PULLED_SHELL = ("/usr/bin/env", "-u", "BASH_ENV", *_SHELL)
SECRETS = ("ca.pem", "uv.toml", "pip.conf", "apt.sources")


def image_tag(stack: str, base: str) -> str:
    """Return the image's local name."""
    return f"stackyard/{stack}:{base}"


def packages_name(base: Base) -> str:
    """Return the readable name of a base's packages; empty where steps use package sources."""
    return f"stackyard/packages:{base.name}" if base.bootstrap is not None else ""


def dockerfile_path(stack: str, base: str) -> str:
    """Return the path of the rendered Dockerfile from the project's root."""
    return f"images/{stack}/{base}.Dockerfile"


def render_files(image: ResolvedImage) -> dict[str, str]:
    """Return every rendered file of one image, by path from the project's root.

    A stack's fixes are one file for all bases; the Dockerfile names those that it applies.
    """
    stack, base = image.stack.name, image.base.name
    own = frozenset(canonicalize_name(w.wheel.package) for w in image.wheels if w.source)
    files = {dockerfile_path(stack, base): template.render("Dockerfile.j2", _values(image))}
    if applied(image.declared, "installed"):
        files[fixes_path(stack)] = fixes_json(image.declared, "installed", own)
    for wheel in image.wheels:
        if applied(wheel.fixes, "source"):
            files[wheel_fixes_path(wheel, base)] = fixes_json(wheel.fixes, "source", own)
    return files


def fixes_path(stack: str) -> str:
    """Return where a stack's fixes of installed packages lie, as data for `apply_fixes.py`."""
    return f"images/{stack}/fixes.json"


def wheel_fixes_path(wheel: ResolvedWheel, base: str) -> str:
    """Return where the fixes lie that are applied to one sdist before its build, if there are."""
    return f"images/wheels/{wheel.wheel.package}.{base}.fixes.json"


def _values(image: ResolvedImage) -> dict[str, object]:
    stack, base = image.stack.name, image.base.name
    return {
        "stack": stack,
        "base": image.base,
        "tag": image_tag(stack, base),
        "tools": TOOLS,
        "packages": packages_name(image.base),
        "secrets": SECRETS,
        "text_packages": image.common.text_packages,
        "build_system": image.build_system,
        "system": image.system,
        # Packages of another distribution are unpacked, with the dependencies that the base lacks.
        "install_system": "unpack_system" if image.base.unpack else "apt_install",
        "unpack_with": image.base.unpack_with if image.base.unpack else (),
        "shell": _PULLED_SHELL if image.base.pulled else _SHELL,
        "replaced": image.replaced,
        "provided": [f"{n}=={v}" if v else n for n, v in sorted(image.base.provided.items())],
        "lock": lock.lock_path(stack, base),
        "fixes": fixes_path(stack),
        "applied": applied(image.fixes, "installed"),
        "wheels": [_wheel_values(wheel, image) for wheel in image.wheels],
        "left_out": [entry.path for entry in image.common.left_out],
        "kept": [path for entry in image.common.left_out for path in entry.kept],
        "imports": image.stack.imports,
        "own": _own(image),
        "env": {name: setting.value for name, setting in image.env.items()},
        "entrypoint": image.base.entrypoint,
    }


def _wheel_values(resolved: ResolvedWheel, image: ResolvedImage) -> dict[str, object]:
    wheel, base = resolved.wheel, image.base
    # A base's own torch is in every stage; one from a layer is mounted for the wheels that need it.
    lent = wheel.torch and bool(base.torch)
    site = f"/usr/local/lib/python{base.python}/dist-packages" if lent else ""
    env = {"TORCH_SITE": site} if lent else {}
    if not wheel.torch and not base.torch:
        env = {"HIDE_TORCH": "1"}
    return {
        "package": wheel.package,
        "compiler": wheel.compiler,
        "torch_site": site,
        "lock": lock.wheel_lock_path(wheel.package),
        "pin": canonicalize_name(wheel.package),
        "needs": resolved.needs,
        "fixes": wheel_fixes_path(resolved, base.name) if applied(resolved.fixes, "source") else "",
        "env": {**resolved.env, **env},
        "source": archive_path(wheel.package) if resolved.source else "",
    }


def _own(image: ResolvedImage) -> list[str]:
    """Return the packages built from users' sources, and those that fixes replace or drop."""
    packages = [w.wheel.package for w in image.wheels if w.source]
    if not packages:
        return []
    return [",".join(packages), ",".join(sorted(replaced_requirements(image.fixes)))]


def replaced_requirements(fixes: Iterable[Fix]) -> set[str]:
    """Return the distributions whose requirements fixes override or exclude."""
    remedies = [fix.remedy for fix in fixes]
    named = [*(o for r in remedies for o in r.override), *(e for r in remedies for e in r.exclude)]
    return {canonicalize_name(re.split(r"[^A-Za-z0-9._-]", name)[0]) for name in named}


def applied(fixes: Iterable[Fix], stage: str) -> list[str]:
    """Return the ids of the fixes that are work for `apply_fixes.py` in a stage."""
    return [fix.id for fix in fixes if _is_work(fix, stage)]


def _is_work(fix: Fix, stage: str) -> bool:
    return bool(fix.remedy.replace or fix.remedy.add) and fix.remedy.stage == stage


def fixes_json(fixes: Iterable[Fix], stage: str, own: Collection[str] = ()) -> str:
    """Return the fixes of a stage as JSON for `apply_fixes.py`.

    Args:
        own: packages from the users' own trees, where a fix need not match as in a release.
    """
    found = [
        {
            "id": fix.id,
            "stage": fix.remedy.stage,
            "replace": [
                {
                    "file": rule.file,
                    "pattern": rule.pattern,
                    "replacement": rule.replacement,
                    "count": rule.count,
                    "fixed": rule.fixed,
                    **({"own": True} if canonicalize_name(fix.package) in own else {}),
                }
                for rule in fix.remedy.replace
            ],
            **({"add": dict(fix.remedy.add)} if fix.remedy.add else {}),
        }
        for fix in fixes
        if _is_work(fix, stage)
    ]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
