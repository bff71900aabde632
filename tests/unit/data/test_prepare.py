"""The corpus that fairseq's smoke and templates make of the bundled text."""

import runpy
import subprocess

import pytest

from stackyard.definitions.project import ROOT


@pytest.mark.parametrize(("more", "times"), [([], 1), (["--repeat", "3"], 3)])
def test_only_the_training_text_is_repeated(more, times, tmp_path, monkeypatch):
    for name in ("zh", "en"):
        text = "".join(f"{name} {number}\n" for number in range(30))
        (tmp_path / f"{name}.txt").write_text(text)
    words = ["prepare.py", "--text", str(tmp_path), "--data", str(tmp_path / "data"), *more]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    runpy.run_path(str(ROOT / "images/fairseq/smoke/prepare.py"), run_name="__main__")
    train, valid = ((tmp_path / f"data/{name}.txt").read_text() for name in ("train", "valid"))
    assert len(valid.splitlines()) == 40
    assert train == times * "".join(f"z h ▁ {n}\ne n ▁ {n}\n" for n in ("2 0", "2 1", "2 2", "2 3",
        "2 4", "2 5", "2 6", "2 7", "2 8", "2 9"))  # fmt: skip
