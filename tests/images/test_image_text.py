"""The text that smokes train on is real, plain, and comes with its licence."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
FOLDER = "/usr/local/share/stackyard/text"


@pytest.fixture
def text(host, request):
    return host.file(f"{FOLDER}/{request.param}.txt").content.decode("utf-8")


@pytest.mark.parametrize("text", ["zh", "en"], indirect=True)
def test_it_is_plain_lines(text):
    control = {c for c in text if (ord(c) < 32 and c not in "\n\t") or ord(c) == 127}
    assert control == set()
    assert all(line and line == line.lstrip() and line != "%" for line in text.splitlines())
    assert len(text.splitlines()) > 1000


@pytest.mark.parametrize("text", ["zh"], indirect=True)
def test_chinese_is_chinese(text):
    letters = [c for c in text if c.isalpha()]
    chinese = [c for c in letters if "\u4e00" <= c <= "\u9fff"]
    assert len(chinese) > 20_000
    assert len(chinese) / len(letters) > 0.99
    assert "床前" in text and "明月" in text  # Li Bai


@pytest.mark.parametrize("text", ["en"], indirect=True)
def test_english_is_english(text):
    words = text.lower().split()
    assert len(words) > 20_000
    assert words.count("the") / len(words) > 0.02
    assert sum(c.isascii() for c in text) / len(text) > 0.99


@pytest.mark.parametrize("name", ["zh", "en"])
def test_its_licence_lies_beside_it(host, name):
    assert "licen" in host.file(f"{FOLDER}/{name}.copyright").content_string.lower()


def test_nothing_else_lies_there(said):
    wanted = ["en.copyright", "en.txt", "zh.copyright", "zh.txt"]
    assert said(f"ls -A {FOLDER}").split() == wanted
