"""Taking a fix back in a container: from what was installed, with the image's own fix step."""

import json
import sys
from pathlib import Path

import pytest

from stackyard.inside import apply_fixes
from tests.unit.inside.test_leave_out import install

sys.modules.setdefault("apply_fixes", apply_fixes)
from stackyard.inside import take_back  # noqa: E402  # it finds apply_fixes beside it
from stackyard.inside.take_back import CannotTakeBack  # noqa: E402


def fix(name, old, new, **changes):
    rule = {"file": "alpha/a.py", "pattern": f"^{old}$", "replacement": new, "count": 1,
            "fixed": f"^{new}$"}  # fmt: skip
    return {"id": name, "stage": "installed", "replace": [rule], **changes}


ONE, TWO = fix("one", "a", "A"), fix("two", "b", "B", add={"alpha/new.py": "x = 1\n"})
ON_ONE = fix("on-one", "A", "AA")


@pytest.fixture
def places(tmp_path):
    """The packages of a finished image, and the folder that says what is to be taken back."""
    root, folder = tmp_path / "site", tmp_path / "prove"
    install(root, "alpha", {"alpha/__init__.py": "", "alpha/a.py": "a\nb\n"})
    (folder / "files" / "alpha").mkdir(parents=True)
    (folder / "files" / "alpha" / "a.py").write_text("a\nb\n")
    return root, folder


def finish(places, every, kept):
    root, folder = places
    apply_fixes.apply_all(every, "installed", root)
    (folder / "all.json").write_text(json.dumps(every))
    (folder / "kept.json").write_text(json.dumps(kept))


def text(root: Path, name="a.py"):
    return (root / "alpha" / name).read_text()


def test_one_fix_is_gone_and_the_other_is_there(places):
    finish(places, [ONE, TWO], [TWO])
    root, folder = places
    assert text(root) == "A\nB\n"
    take_back.take_back(folder, root)
    assert text(root) == "a\nB\n" and text(root, "new.py") == "x = 1\n"


def test_an_added_module_goes_with_its_fix(places):
    finish(places, [ONE, TWO], [ONE])
    root, folder = places
    take_back.take_back(folder, root)
    assert text(root) == "A\nb\n" and not (root / "alpha" / "new.py").exists()


def test_an_image_that_its_fixes_do_not_make_is_refused(places):
    finish(places, [ONE, TWO], [TWO])
    root, folder = places
    (root / "alpha" / "a.py").write_text("A\nB\nmore\n")
    with pytest.raises(CannotTakeBack, match=r"does not make the image's own alpha/a\.py"):
        take_back.take_back(folder, root)


def test_a_fix_that_another_needs_cannot_be_left_out_alone(places):
    finish(places, [ONE, ON_ONE], [ON_ONE])
    root, folder = places
    with pytest.raises(CannotTakeBack, match="the other fixes need this one: fix on-one"):
        take_back.take_back(folder, root)


def test_a_distribution_is_put_in_the_place_of_another_version(places):
    finish(places, [ONE], [ONE])
    root, folder = places
    install(root, "Some.Thing", {"thing/__init__.py": "v = 2", "thing/new.py": ""}, version="2.0")
    install(folder / "back", "some_thing", {"thing/__init__.py": "v = 1"})
    take_back.take_back(folder, root)
    assert (root / "thing" / "__init__.py").read_text() == "v = 1"
    assert not (root / "thing" / "new.py").exists()
    assert sorted(p.name for p in root.glob("*.dist-info")) == [
        "alpha-1.0.dist-info", "some_thing-1.0.dist-info",
    ]  # fmt: skip


def test_the_reason_is_said_on_the_command_line(places, capsys, monkeypatch):
    finish(places, [ONE, ON_ONE], [ON_ONE])
    root, folder = places
    monkeypatch.setattr(take_back.sysconfig, "get_path", lambda name: str(root))
    assert take_back.main([str(folder)]) == 1
    assert "need this one" in capsys.readouterr().err
