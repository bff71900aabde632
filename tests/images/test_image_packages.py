"""Every Python package is the one the locks name, whole, repaired as recorded."""

from __future__ import annotations

import json

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stackyard.build import dockerfile
from stackyard.definitions.project import INSIDE

pytestmark = pytest.mark.engine

INVENTORY = """
import importlib.metadata as m, json
print(json.dumps([[d.metadata["Name"], d.version, d.requires or []] for d in m.distributions()]))
"""
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"


@pytest.fixture(scope="module")
def installed(engine, node):
    """Name, version and requirements of every distribution."""
    done = engine.exec(node.first, ["python3", "-c", INVENTORY], seconds=60)
    assert done.code == 0, done.output
    return json.loads(done.output)


@pytest.fixture(scope="module")
def purelib(said):
    return said(f'python3 -c "{PURELIB}"')


def test_versions_are_the_catalogs_and_nothing_else_is_there(installed, built):
    wanted = {**built.image.provided, **built.image.packages}
    found = [f"{canonicalize_name(name)}=={version}" for name, version, _ in installed]
    assert sorted(found) == sorted(f"{name}=={s.value}" for name, s in wanted.items())


def unmet(installed, python: str) -> list[str]:
    """Requirements of what is installed that are not fulfilled."""
    versions = {canonicalize_name(name): version for name, version, _ in installed}
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": "",
                   "platform_system": "Linux", "sys_platform": "linux"}  # fmt: skip
    wrong = []
    for name, _, requires in installed:
        for text in requires:
            need = Requirement(text)
            if need.marker and not need.marker.evaluate(environment):
                continue
            have = versions.get(canonicalize_name(need.name))
            if have is None or not need.specifier.contains(have, prereleases=True):
                wrong.append(f"{name} needs {text}, found {have}")
    return wrong


def test_every_requirement_is_met(installed, built):
    """What a fix overrides or leaves out is written into the metadata as well."""
    assert unmet(installed, built.image.base.python) == []


def test_a_requirement_that_is_not_met_would_be_seen():
    found = [["a", "1", ["b>=2", "c", 'd; extra == "x"', 'e; sys_platform == "win32"']],
             ["B", "1.9", []]]  # fmt: skip
    assert unmet(found, "3.11") == ["a needs b>=2, found 1.9", "a needs c, found None"]


def apply_again(engine, node, purelib: str, fixes: str, stage: str) -> list[dict[str, str]]:
    program = (INSIDE / "apply_fixes.py").read_text(encoding="utf-8")
    words = ["python3", "-c", program, "/dev/stdin", "--stage", stage, "--root", purelib]
    done = engine.exec(node.first, words, seconds=60, stdin=fixes.encode())
    assert done.code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def digests(said, purelib: str, files: list[str]) -> str:
    return said(f"cd {purelib} && sha256sum {' '.join(sorted(files))}") if files else ""


def test_every_installed_fix_is_in(engine, node, said, purelib, built):
    fixes = dockerfile.fixes_json(built.image.fixes, "installed")
    wanted = [
        (fix["id"], file, outcome)
        for fix in json.loads(fixes)
        for file, outcome in (
            *((rule["file"], "already fixed upstream") for rule in fix["replace"]),
            *((file, "there already") for file in fix.get("add", {})),
        )
    ]
    files = list({file for _, file, _ in wanted})
    before = digests(said, purelib, files)
    answer = apply_again(engine, node, purelib, fixes, "installed")
    assert answer == [{"fix": f, "file": file, "outcome": done} for f, file, done in wanted]
    assert digests(said, purelib, files) == before


def test_every_source_fix_is_in_what_was_built(engine, node, host, said, purelib, built):
    """A sdist's Python files are installed under the same names; its build files are not."""
    checked = 0
    for wheel in built.image.wheels:
        fixes = json.loads(dockerfile.fixes_json(wheel.fixes, "source"))
        for fix in fixes:
            fix["replace"] = [
                r for r in fix["replace"] if host.file(f"{purelib}/{r['file']}").exists
            ]
            checked += len(fix["replace"])
        answer = apply_again(engine, node, purelib, json.dumps(fixes), "source")
        assert {one["outcome"] for one in answer} <= {"already fixed upstream"}
    declared = [r for w in built.image.wheels for f in w.fixes for r in f.remedy.replace]
    assert checked or not [r for r in declared if r.file.endswith(".py")]


def test_a_fix_that_is_not_in_would_be_seen(engine, node, purelib):
    rule = {"file": "torch/version.py", "pattern": "^no such line$", "replacement": "", "count": 1,
            "fixed": "^nor this$"}  # fmt: skip
    fixes = json.dumps([{"id": "none", "stage": "installed", "replace": [rule]}])
    with pytest.raises(AssertionError, match="pattern matched 0 times, expected 1"):
        apply_again(engine, node, purelib, fixes, "installed")
