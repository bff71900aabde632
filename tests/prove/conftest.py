"""A small project whose fixes are wrong in every way that a proof has to find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stackyard.definitions import lock
from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT, Project, load_project
from tests.shared import own_name

COPIED = ("images/common.yml", "images/bases/cpu.yml", "images/bases/cpu.lock")

NAME = own_name("tiny")
STACK = """\
name: %s
summary: einops alone
packages: {einops: "%s"}
fixes: [%s]
imports: [einops]
smoke:
  launcher: torchrun
  prepare: ["true"]
  program: [train.py]
  updates: 40
  save_at: 20
  reference: one
  resume: two
  layouts: {one: {ranks: 1}, two: {ranks: 2}}
"""

FIX = """\
id: {id}
package: einops
symptom: einops is as it was released
why: nobody changed it
upstream: none found
applies_to: {{versions: {{einops: "=={version}"}}}}
remedy:
  replace:
    - file: einops/__init__.py
      pattern: '{pattern}'
      replacement: '{replacement}'
      count: 1
      fixed: '{fixed}'
{more}witness:
  command: {command}
  fails_with: '{fails_with}'
remove_when: never
"""

_AUTHOR = "^__author__ = (.*)$"
_REPAIRED = '__author__ = "{id}", \\1'


def _witness(name: str) -> str:
    program = f'import einops; assert "{name}" in einops.__author__, "as released: {name}"'
    return f"[python3, -c, '{program}']"


def fixes(version: str) -> dict[str, str]:
    """By id; each puts its own name before the author, or pretends to."""

    def one(name: str, **changes: str) -> str:
        values = {
            "pattern": _AUTHOR, "replacement": _REPAIRED.format(id=name), "more": "",
            "fixed": name, "command": _witness(name),
            "fails_with": f"AssertionError: as released: {name}", **changes,
        }  # fmt: skip
        return FIX.format(id=name, version=version, **values)

    kept = {"replacement": "__author__ = \\1", "fixed": "^__author__ = "}
    set_ = 'import os; assert "TINY" in os.environ, "TINY is not set"'
    return {
        "tiny-good": one("tiny-good"),
        "tiny-emptied": one("tiny-emptied", **kept),
        "tiny-weakened": one("tiny-weakened", command='["true"]'),
        "tiny-upstream": one(
            "tiny-upstream", pattern="^nowhere$", fixed="^__author__",
            command="[python3, -c, 'import einops; assert einops.__author__']",
        ),
        "tiny-other": one("tiny-other", fails_with="AssertionError: something else"),
        "tiny-environment": one(
            "tiny-environment", **kept, more="  env: {TINY: '1'}\n",
            command=f"[python3, -c, '{set_}']", fails_with="AssertionError: TINY is not set",
        ),
    }  # fmt: skip


def einops() -> lock.Locked:
    """einops as this project has locked it."""
    text = load_project().definitions.locks["images/megatron/cpu.lock"]
    return next(item for item in lock.parse_lock(text) if item.name == "einops")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small project; its images are built on the layers that the others have."""
    root = tmp_path_factory.mktemp("tiny")
    for path in COPIED:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    shutil.copytree(ROOT / "stackyard" / "inside", root / "stackyard" / "inside")
    found = einops()
    declared = fixes(found.version)
    for name, text in declared.items():
        _write(root / f"images/fixes/{name}.yml", text)
    stack = STACK % (NAME, found.version, ", ".join(declared))
    _write(root / f"images/{NAME}/stack.yml", stack)
    loaded = load_definitions(root, locks_required=False)
    inputs = lock.stack_inputs(loaded.stacks[NAME], loaded.bases["cpu"], loaded.fixes)
    made = lock.render_lock([found], inputs=inputs, command=f"invoke lock {NAME}")
    _write(root / f"images/{NAME}/cpu.lock", made)
    return load_project(root)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
