"""The comparison itself: what fails, and that nothing is written unasked."""

import pytest

from tests.golden.conftest import Golden


def test_the_same_text_is_fine(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    Golden(tmp_path, accept=False).check("a.txt", "one\n")
    assert (tmp_path / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("text", ["two\n", "one", "one\n\n", ""])
def test_any_other_text_fails_and_stays_unwritten(tmp_path, text):
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(AssertionError, match=r"a\.txt differs; .* --accept"):
        Golden(tmp_path, accept=False).check("a.txt", text)
    assert (tmp_path / "a.txt").read_text() == "one\n"


def test_a_missing_file_fails_and_stays_missing(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"a\.txt is missing; .* --accept"):
        Golden(tmp_path, accept=False).check("a.txt", "one\n")
    assert list(tmp_path.iterdir()) == []


def test_accepting_writes(tmp_path):
    Golden(tmp_path, accept=True).check("a.txt", "one\n")
    assert (tmp_path / "a.txt").read_text() == "one\n"
