"""`--source` as it is typed, and sources as labels have them."""

import dataclasses

import pytest

from stackyard.build.source import naming
from stackyard.build.source.naming import Source, beginnings, clean_address, parse_asked
from stackyard.system.errors import UsageError

KNOWN = ("alpha", "beta-tools")
COMMIT = "0123456789abcdef" * 2 + "01234567"
ONE = Source(
    package="alpha", origin="https://host.example/me/alpha.git", revision="main", commit=COMMIT,
    dirty=False, digest="sha256:" + "c" * 64, submodules=("third fee1",), version="", files=7,
)  # fmt: skip


def asked(text, *there):
    found = parse_asked(text, "alpha", KNOWN, there)
    return found.package, found.location, found.revision, found.remote


@pytest.mark.parametrize(
    ("text", "there", "found"),
    [
        ("/home/me/alpha", ["/home/me/alpha"], ("alpha", "/home/me/alpha", "", False)),
        ("/home/me/alpha@v1", ["/home/me/alpha"], ("alpha", "/home/me/alpha", "v1", False)),
        ("/a@b", ["/a@b", "/a"], ("alpha", "/a@b", "", False)),
        ("/a@b@v1", ["/a@b"], ("alpha", "/a@b", "v1", False)),
        ("/a@feature/x@y", ["/a"], ("alpha", "/a", "feature/x@y", False)),
        ("beta_tools=../b", ["../b"], ("beta-tools", "../b", "", False)),
        ("alpha=x", ["alpha=x"], ("alpha", "alpha=x", "", False)),  # a folder of that name
        ("https://h.example/me/a.git", [], ("alpha", "https://h.example/me/a.git", "", True)),
        ("https://h.example/me/a.git@feature/x", [],
         ("alpha", "https://h.example/me/a.git", "feature/x", True)),
        ("git+https://h.example/a@v1", [], ("alpha", "https://h.example/a", "v1", True)),
        ("ssh://git@h.example:22/me/a.git@v1", [],
         ("alpha", "ssh://git@h.example:22/me/a.git", "v1", True)),
        ("git@h.example:me/a.git", [], ("alpha", "git@h.example:me/a.git", "", True)),
        ("git@h.example:me/a.git@v1", [], ("alpha", "git@h.example:me/a.git", "v1", True)),
        ("beta-tools=git@h.example:b@dev", [], ("beta-tools", "git@h.example:b", "dev", True)),
        ("/nowhere", [], ("alpha", "/nowhere", "", False)),
    ],
)  # fmt: skip
def test_a_source_is_a_folder_or_an_address_with_a_revision(text, there, found):
    assert asked(text, *there) == found
    assert [part for part in there if part not in beginnings(text)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gamma=/x", "gamma is not built from source in this stack"),
        ("https://me:secret@h.example/a", "the address holds a password or token"),
        ("https://token@h.example/a", "the address holds a password or token"),
        ("https://h.example/a@--upload-pack=x", "is no path and no address"),
        ("--upload-pack=x", "is no path and no address"),
        ("alpha=", "is no path and no address"),
        ("-x", "is no path and no address"),
    ],
)
def test_what_is_none_is_refused_with_what_could_be_typed(text, said):
    with pytest.raises(UsageError) as refused:
        asked(text)
    assert said in refused.value.what
    assert "secret" not in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("address", "clean"),
    [
        ("https://me:secret@h.example/a.git\n", "https://h.example/a.git"),
        ("https://token@h.example/a.git", "https://h.example/a.git"),
        ("ssh://git@h.example/a", "ssh://git@h.example/a"),
        ("ssh://me:secret@h.example/a", "ssh://h.example/a"),
        ("git@h.example:me/a.git", "git@h.example:me/a.git"),
        ("https://h.example/a.git?private_token=secret#x", "https://h.example/a.git"),
        ("https://h.example?token=secret", "https://h.example"),
        ("/home/me/a", ""),
        ("file:///home/me/a", ""),
        ("../a", ""),
    ],
)
def test_an_origin_has_no_credentials_and_no_path_of_this_machine(address, clean):
    assert clean_address(address) == clean


def test_a_label_says_all_of_a_source():
    labels = {naming.SOURCES_LABEL: naming.sources_text([ONE]), naming.DESPITE_LABEL: "a-b,c"}
    assert naming.sources_of(labels) == (ONE,)
    assert naming.despite_of(labels) == ("a-b", "c")
    assert naming.sources_of({}) == naming.despite_of({}) == ()


@pytest.mark.parametrize(
    "changed",
    [{"commit": "../../../../x"}, {"commit": "--x"}, {"commit": 7}, {"digest": "../../../x"},
     {"digest": "sha256:../../x"}, {"package": "../x"}, {"files": "many"}, {"dirty": "no"},
     {"origin": ["x"]}],
)  # fmt: skip
def test_a_label_of_somebodys_image_names_no_other_place(changed):
    """Records lie in files that are named by it, releases in tags."""
    text = naming.sources_text([dataclasses.replace(ONE, **changed)])
    with pytest.raises(UsageError, match="cannot be read"):
        naming.sources_of({naming.SOURCES_LABEL: text})


@pytest.mark.parametrize("text", ["{", "[1]", '[{"package": "a"}]', "7"])
def test_a_label_of_another_kind_is_refused(text):
    with pytest.raises(UsageError):
        naming.sources_of({naming.SOURCES_LABEL: text})


def test_a_tag_says_commit_and_changes():
    assert ONE.short == "0123456789ab"
    dirty = dataclasses.replace(ONE, dirty=True)
    assert dirty.short == "0123456789ab-dirty"
    assert "uncommitted changes (content cccccccccccc)" in dirty.says
    folder = dataclasses.replace(ONE, commit="", origin="")
    assert folder.short == "cccccccccccc"
    assert folder.says == "a folder without git, content cccccccccccc"


LABELS = {"stackyard.stack": "toy", "stackyard.base": "cpu"}


@pytest.mark.parametrize(("stack", "base"), [("toy", "cpu"), ("all", ""), ("toy", "")])
def test_an_image_of_the_stack_and_base_is_taken(stack, base):
    naming.require_labels(LABELS, "mine:1", stack, base)


@pytest.mark.parametrize(
    ("labels", "stack", "base", "said"),
    [
        (LABELS, "other", "", "is toy on cpu, not other"),
        (LABELS, "toy", "ngc", "is toy on cpu, not toy on ngc"),
        ({}, "all", "", "was not built by stackyard"),
        ({"stackyard.stack": "toy"}, "toy", "", "was not built by stackyard"),
    ],
)
def test_an_image_of_another_is_refused(labels, stack, base, said):
    with pytest.raises(UsageError, match=said):
        naming.require_labels(labels, "mine:1", stack, base)
