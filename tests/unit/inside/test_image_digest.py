"""The digest of an image's packages: what changes it, and what a node answers."""

import json

import pytest

from stackyard.inside import image_digest


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Some files of packages, which are this image's."""
    folder = tmp_path / "packages"
    for name, text in {"a/x.py": "1", "a/y.so": "2", "b.py": "3"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(image_digest.sysconfig, "get_paths", lambda: {"purelib": str(folder)})
    return folder


def told(capsys, *words):
    code = image_digest.main(list(words))
    return code, capsys.readouterr().out


def test_bytecode_that_python_writes_later_changes_nothing(packages):
    before = image_digest.digest_of(packages)
    (packages / "a" / "__pycache__").mkdir()
    (packages / "a" / "__pycache__" / "x.cpython-311.pyc").write_text("x")
    (packages / "old.pyc").write_text("x")
    assert image_digest.digest_of(packages) == before


@pytest.mark.parametrize("change", ["content", "name", "more", "link"])
def test_every_other_change_changes_it(packages, change):
    before = image_digest.digest_of(packages)
    if change == "content":
        (packages / "b.py").write_text("4")
    elif change == "name":
        (packages / "b.py").rename(packages / "c.py")
    elif change == "more":
        (packages / "a" / "z.py").touch()
    else:
        (packages / "d.py").symlink_to("b.py")
    assert image_digest.digest_of(packages) != before


def test_a_node_tells_its_facts_and_compares(packages, tmp_path, capsys):
    code, said = told(capsys)
    digest = json.loads(said)["digest"]
    assert code == 0
    folder = tmp_path / "images"
    assert told(capsys, str(folder), digest) == (0, "")
    (path,) = folder.iterdir()
    assert json.loads(path.read_text()) == json.loads(said)
    code, said = told(capsys, str(folder), "0" * 64)
    assert code == 1
    assert f"another image ({digest[:12]}, not 000000000000)" in said
