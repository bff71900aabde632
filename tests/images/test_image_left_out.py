"""What `left_out` names is in no image, and the packages' own records say so."""

from __future__ import annotations

import json
import shlex

import pytest

from stackyard.definitions.project import INSIDE

pytestmark = pytest.mark.engine

RECORDED = """
import importlib.metadata as m, json, os
files = [(str(f), f.locate()) for d in m.distributions() for f in d.files or ()]
print(json.dumps({"recorded": len(files), "lost": [n for n, at in files if not os.path.lexists(at)],
                  "tests": [n for n, at in files if "/tests/" in n]}))
"""
MODULES = ["torch.testing", "numpy.testing", "sympy.testing", "networkx", "mpmath.tests.runtests"]


@pytest.fixture(scope="module")
def recorded(said):
    return json.loads(said(f"python3 -c '{RECORDED}'"))


def test_every_file_that_a_package_records_is_there(recorded):
    assert recorded["recorded"] > 10_000
    assert recorded["lost"] == []


def test_of_the_tests_only_what_is_kept_is_recorded(recorded, built):
    kept = {path for entry in built.image.common.left_out for path in entry.kept}
    there = {path for path in recorded["tests"] if not path.partition("/")[0].endswith("-info")}
    assert there == {path for path in kept if "/tests/" in path}


def again(engine, node, words: list[str]) -> str:
    program = (INSIDE / "leave_out.py").read_text(encoding="utf-8")
    command = ["python3", "-c", program, "--before", "/dev/null", *words]
    done = engine.exec(node.first, command, seconds=100)
    assert done.code == 0, done.output
    return str(done.output).strip()


def test_leaving_out_again_finds_nothing(engine, node, built):
    entries = built.image.common.left_out
    keep = [word for entry in entries for path in entry.kept for word in ("--keep", path)]
    words = [*(entry.path for entry in entries), *keep]
    assert again(engine, node, words) == "left out: 0 files, 0.0 MB"


def test_what_was_not_left_out_would_be_found(engine, node, said):
    said("cp -r $(python3 -c 'import sympy; print(sympy.__path__[0])') /dev/shm/sympy")
    said("cp -r $(python3 -c 'import sympy; print(sympy.__path__[0])')-*.dist-info /dev/shm/")
    words = ["sympy/benchmarks", "--root", "/dev/shm"]
    assert not again(engine, node, words).startswith("left out: 0 files")


def test_what_is_near_what_was_left_out_is_imported_and_works(said):
    """A tensor is shared through a program that was kept beside the ones that were not."""
    program = (
        f"import importlib; [importlib.import_module(name) for name in {MODULES}];"
        ' import torch; torch.multiprocessing.set_sharing_strategy("file_system");'
        " print(torch.ones(3).share_memory_())"
    )
    assert (
        said(f"python3 -W error::ImportWarning -c {shlex.quote(program)}") == "tensor([1., 1., 1.])"
    )
