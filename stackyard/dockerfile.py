"""A resolved image to the files that build it: Dockerfile and recorded fixes, as text.

Owns what goes into the templates; the order of layers is the template's. It must not know where
the engine, the caller's settings or the clock are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from stackyard import lock, template
from stackyard.catalog import ResolvedImage, ResolvedWheel
from stackyard.spec import Fix

UV_VERSION = "0.13.8"
TOOLS = f"ghcr.io/astral-sh/uv:{UV_VERSION}"
SECRETS = ("ca.pem", "uv.toml", "pip.conf", "apt.sources")


def image_tag(stack: str, base: str) -> str:
    """The image's local name."""
    return f"stackyard/{stack}:{base}"


def dockerfile_path(stack: str, base: str) -> str:
    """Where the rendered Dockerfile lies, from the project's root."""
    return f"images/{stack}/{base}.Dockerfile"


def render_files(image: ResolvedImage) -> dict[str, str]:
    """Every rendered file of one image, by path from the project's root."""
    stack, base = image.stack.name, image.base.name
    files = {
        dockerfile_path(stack, base): template.render("Dockerfile.j2", _values(image)),
        fixes_path(stack, base): fixes_json(image.fixes, "installed"),
    }
    for wheel in image.wheels:
        files[wheel_fixes_path(wheel, base)] = fixes_json(wheel.fixes, "source")
    return files


def fixes_path(stack: str, base: str) -> str:
    """Where the fixes applied to the installed packages lie, as data for `apply_fixes.py`."""
    return f"images/{stack}/{base}.fixes.json"


def wheel_fixes_path(wheel: ResolvedWheel, base: str) -> str:
    """Where the fixes applied to one sdist before its build lie."""
    return f"images/wheels/{wheel.wheel.package}.{base}.fixes.json"


def _values(image: ResolvedImage) -> dict[str, object]:
    stack, base = image.stack.name, image.base.name
    return {
        "stack": stack,
        "base": image.base,
        "tag": image_tag(stack, base),
        "tools": TOOLS,
        "secrets": SECRETS,
        "text_packages": image.common.text_packages,
        "build_system": image.build_system,
        "system": image.system,
        # Packages of another distribution are unpacked, with what they need and the base lacks.
        "install_system": "unpack_system" if image.base.unpack else "apt_install",
        "unpack_with": image.base.unpack_with if image.base.unpack else (),
        "provided": [f"{n}=={v}" if v else n for n, v in sorted(image.base.provided.items())],
        "lock": lock.lock_path(stack, base),
        "fixes": fixes_path(stack, base),
        "wheels": [_wheel_values(wheel, image) for wheel in image.wheels],
        "left_out": [entry.path for entry in image.common.left_out],
        "kept": [path for entry in image.common.left_out for path in entry.kept],
        "imports": image.stack.imports,
        "env": {name: setting.value for name, setting in image.env.items()},
        "entrypoint": image.base.entrypoint,
    }


def _wheel_values(resolved: ResolvedWheel, image: ResolvedImage) -> dict[str, object]:
    wheel, base = resolved.wheel, image.base
    # A base's own torch is there in every stage; a layer's is lent to the wheels that want it.
    lent = wheel.torch and bool(base.torch)
    site = f"/usr/local/lib/python{base.python}/dist-packages" if lent else ""
    env = {"TORCH_SITE": site} if lent else {}
    if not wheel.torch and not base.torch:
        env = {"HIDE_TORCH": "1"}
    return {
        "package": wheel.package,
        "compiler": wheel.compiler,
        "torch_site": site,
        "lock": lock.wheel_lock_path(wheel.package, base.name),
        "build_lock": lock.wheel_lock_path(wheel.package, base.name, "build"),
        "fixes": wheel_fixes_path(resolved, base.name),
        "env": {**resolved.env, **env},
    }


def fixes_json(fixes: Iterable[Fix], stage: str) -> str:
    """What `apply_fixes.py` reads: the replacements and new modules of a stage's fixes."""
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
                }
                for rule in fix.remedy.replace
            ],
            **({"add": dict(fix.remedy.add)} if fix.remedy.add else {}),
        }
        for fix in fixes
        if (fix.remedy.replace or fix.remedy.add) and fix.remedy.stage == stage
    ]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
