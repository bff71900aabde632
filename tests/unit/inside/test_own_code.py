"""A user's tree over an installed package: links, compiled modules, repaired copies."""

import importlib
import json
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from stackyard.inside import apply_fixes

sys.modules.setdefault("apply_fixes", apply_fixes)
own_code = importlib.import_module("stackyard.inside.own_code")
FAST = f"alpha/data/fast{EXTENSION_SUFFIXES[0]}"


def write(folder, **files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """alpha, as it is installed: compiled, repaired, with examples in the package."""
    folder = tmp_path / "site"
    files = {"alpha/__init__.py": "new\n", FAST: "compiled", "alpha_cli.py": "c\n",
             "alpha/examples/e.py": "new\n", "alpha/data/__init__.py": ""}  # fmt: skip
    info = "alpha-1.2.0.dist-info"
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/METADATA", "../../bin/alpha"])
    write(folder, **files, **{f"{info}/METADATA": "Name: alpha\nVersion: 1.2.0\n",
                              f"{info}/RECORD": record})  # fmt: skip
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def tree(tmp_path):
    """alpha, as its user has it."""
    folder = tmp_path / "tree"
    write(folder, **{"alpha/__init__.py": "old\n", "alpha/mine.py": "m = 1\n",
                     "alpha/data/__init__.py": "", "alpha_cli.py": "mine\n",
                     "examples/e.py": "old\n", ".git/config": "x",
                     "alpha/__pycache__/a.pyc": "x"})  # fmt: skip
    return folder


def fix(file="alpha/__init__.py", name="alpha-old", **more):
    rule = {"file": file, "pattern": "^old$", "replacement": "new", "count": 1, "fixed": "^new$",
            "own": True}  # fmt: skip
    return {"id": name, "stage": "installed", "replace": [rule], **more}


def laid(tmp_path, tree, *fixes):
    (tmp_path / "fixes.json").write_text(json.dumps(list(fixes)))
    out = tmp_path / "view"
    return out, own_code.main("alpha", str(tree), str(out), str(tmp_path / "fixes.json"))


def test_the_view_has_the_trees_files_and_the_images_compiled_modules(tmp_path, site, tree):
    out, said = laid(tmp_path, tree)
    assert (out / "alpha/mine.py").resolve() == tree / "alpha/mine.py"
    assert (out / "alpha_cli.py").read_text() == "mine\n"
    assert (out / FAST).resolve() == site / FAST
    # The build puts them into the package.
    assert (out / "alpha/examples/e.py").resolve() == tree / "examples/e.py"
    assert not list(out.rglob("*.pyc"))
    assert said["compiled"] == [FAST]
    assert (said["files"], said["left"]) == (5, [])


def test_an_edit_shows_without_anything_being_laid_again(tmp_path, site, tree):
    out, before = laid(tmp_path, tree)
    (tree / "alpha/mine.py").write_text("m = 2\n")
    assert (out / "alpha/mine.py").read_text() == "m = 2\n"
    (tmp_path / "later").mkdir()
    _, after = laid(tmp_path / "later", tree)
    assert after["digest"] != before["digest"]


def test_what_the_user_compiled_is_the_users(tmp_path, site, tree):
    write(tree, **{FAST: "mine"})
    out, said = laid(tmp_path, tree)
    assert (out / FAST).read_text() == "mine"
    assert said["compiled"] == []


def test_fixes_are_applied_to_copies_and_the_tree_is_as_it_was(tmp_path, site, tree):
    # A module beside the packages would fit every tree.
    absent = {**fix("alpha/gone.py", "alpha-gone"), "add": {"beside.py": "b = 1\n"}}
    metadata = fix("alpha-1.2.0.dist-info/METADATA", "alpha-needs")
    more = {**fix(name="alpha-more"), "replace": [], "add": {"alpha/extra.py": "e = 1\n"}}
    (tree / "alpha/same.py").write_text("s = 1\n")
    added = {"alpha/same.py": "s = 1\n", "beside.py": "b = 1\n"}
    same = {**fix(name="alpha-same"), "replace": [], "add": added}
    out, said = laid(tmp_path, tree, fix(), absent, metadata, more, same)
    assert said["fixes"] == {"applied": ["alpha-old", "alpha-more"], "there": ["alpha-same"],
                             "absent": ["alpha-gone"]}  # fmt: skip
    assert not (out / "beside.py").exists()
    assert (out / "alpha/__init__.py").read_text() == "new\n"
    assert (out / "alpha/extra.py").read_text() == "e = 1\n"
    assert (tree / "alpha/__init__.py").read_text() == "old\n"
    assert not (tree / "alpha/extra.py").exists()


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path, site, tree):
    write(tree, **{"elsewhere/f.py": "old\n"})
    (tree / "alpha/linked").symlink_to("../elsewhere")
    out, _ = laid(tmp_path, tree, fix("alpha/linked/f.py"))
    assert (out / "alpha/linked/f.py").read_text() == "new\n"
    assert (tree / "elsewhere/f.py").read_text() == "old\n"


def test_links_in_a_circle_end(tmp_path, site, tree):
    (tree / "alpha/round").symlink_to(".")
    assert laid(tmp_path, tree)[1]["files"] == 5


def test_what_is_no_file_is_passed_over(tmp_path, site, tree):
    """An editor's lock is a link to nowhere; a pipe would be waited for."""
    (tree / "alpha/.#mine.py").symlink_to("me@here.1234:5678")
    os.mkfifo(tree / "alpha/pipe")
    out, said = laid(tmp_path, tree)
    assert said["files"] == 5
    assert not (out / "alpha/pipe").is_symlink()
    assert not (out / "alpha/.#mine.py").is_symlink()


def test_a_repair_that_is_there_is_said(tmp_path, site, tree):
    (tree / "alpha/__init__.py").write_text("new\n")
    assert laid(tmp_path, tree, fix())[1]["fixes"]["there"] == ["alpha-old"]


def test_a_fix_that_conflicts_is_said_and_nothing_is_written(tmp_path, site, tree):
    (tree / "alpha/__init__.py").write_text("odd\n")
    out, said = laid(tmp_path, tree, fix(), fix("alpha/examples/e.py", "alpha-e"))
    assert json.loads(said["unfit"]) == {
        "fix": "alpha-old", "file": "alpha/__init__.py",
        "outcome": "pattern matched 0 times, expected 1",
    }  # fmt: skip
    assert (out / "alpha/examples/e.py").read_text() == "old\n"


def test_a_tree_below_src_is_found(tmp_path, site):
    tree = tmp_path / "tree"
    write(tree, **{"src/alpha/__init__.py": "x\n"})
    out, said = laid(tmp_path, tree)
    assert said["root"] == str(tree / "src")
    assert said["left"] == ["alpha_cli.py"]
    assert (out / FAST).exists()


def test_a_tree_of_another_kind_is_refused(tmp_path, site, tree):
    (tmp_path / "empty").mkdir()
    assert (
        "has none of alpha's modules (alpha, alpha_cli.py)"
        in laid(tmp_path, tmp_path / "empty")[1]["wrong"]
    )
    assert "there is no folder" in laid(tmp_path, tmp_path / "none")[1]["wrong"]
    assert "is not installed" in own_code.main("nothing-of-this", str(tree), "x", "y")["wrong"]
