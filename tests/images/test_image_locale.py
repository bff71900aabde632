"""Chinese text is text, for every program that people and scripts use in a node.

Beside each check that could pass by luck stands the same with LC_ALL=C, which must look wrong.
"""

from __future__ import annotations

import shlex

import pytest

pytestmark = pytest.mark.engine
WORDS = "分布式训练"
ESCAPED = r"\345\210\206\345\270\203\345\274\217\350\256\255\347\273\203"
# A pager decides by its terminal what it shows.
ON_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"


@pytest.fixture(scope="module")
def folder(said):
    path = said("mktemp -d")
    said(f"printf '%s\\n' {WORDS} > {path}/{WORDS}.txt")
    yield path
    said(f"rm -r {path}")


def test_the_locale_is_utf8(said):
    assert said("locale charmap") == "UTF-8"
    assert said("locale").splitlines()[0] == "LANG=C.UTF-8"


@pytest.mark.parametrize(("locale", "length"), [("", "5"), ("LC_ALL=C", "15")])
def test_bash_counts_characters(said, locale, length):
    script = shlex.quote(f's={WORDS}; echo "${{#s}}"')
    assert said(f"{locale} bash -c {script}") == length


@pytest.mark.parametrize(("locale", "length"), [("", "5"), ("LC_ALL=C", "15")])
def test_wc_counts_characters(said, locale, length):
    assert said(f"printf %s {WORDS} | {locale} wc -m") == length


@pytest.mark.parametrize(("locale", "name"), [("", WORDS), ("LC_ALL=C", ESCAPED)])
def test_ls_prints_file_names_unescaped(said, folder, locale, name):
    assert said(f"{locale} ls -b {folder}") == f"{name}.txt"


def less(said, locale: str, path: str) -> str:
    script = shlex.quote(ON_A_TERMINAL)
    # The key answers the question whether a "binary file" is to be shown.
    return said(f"echo q | TERM=xterm {locale} timeout 20 python3 -c {script} less -FX {path}")


def test_less_shows_characters(said, folder):
    assert WORDS in less(said, "", f"{folder}/*.txt")


def test_less_would_show_bytes_in_another_locale(said, folder):
    shown = less(said, "LC_ALL=C", f"{folder}/*.txt")
    assert WORDS not in shown
    assert "may be a binary file" in shown


@pytest.mark.parametrize(("locale", "encoding"), [("", "utf-8"), ("LC_ALL=C", "latin1")])
def test_vim_reads_and_writes(said, folder, locale, encoding):
    path = f"{folder}/encoding"
    said(f"{locale} vim -u NONE -es -c 'redir! > {path}' -c 'set encoding?' -c 'redir END' -c 'q!'")
    assert said(f"cat {path}; rm {path}").strip() == f"encoding={encoding}"


def test_vim_changes_one_character_and_keeps_the_others(said, folder):
    path = f"{folder}/changed"
    said(f"cp {folder}/{WORDS}.txt {path}; vim -u NONE -es -c 's/^./合/' -c wq {path}")
    assert said(f"cat {path}; rm {path}") == "合布式训练"


def test_python_opens_files_as_utf8(said, folder):
    code = (
        "import sys, glob; "
        f"f = open(glob.glob('{folder}/*.txt')[0]); "
        "print(sys.getfilesystemencoding(), f.encoding.lower(), sys.stdout.encoding, f.read())"
    )
    assert said(f"python3 -W ignore -c {shlex.quote(code)}").split() == [
        "utf-8",
        "utf-8",
        "utf-8",
        WORDS,
    ]


def test_grep_takes_a_character_for_one(said, folder):
    assert said(f"grep -cE '^.{{5}}$' {folder}/{WORDS}.txt") == "1"
