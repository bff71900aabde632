"""The project's one settings file, and which stacks a name means."""

import pytest

from stackyard.definitions.project import ROOT, Project, load_project, parse_settings
from stackyard.system.errors import UsageError
from tests.unit import samples


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a comment\n\n", {}),
        ('default_base = "cpu"\n', {"default_base": "cpu"}),
        ('default_base="cpu" # why\n', {"default_base": "cpu"}),
        ("registry = 'a:1/b' # why", {"registry": "a:1/b"}),
        ('registry = "a:1/#b"', {"registry": "a:1/#b"}),
    ],
)
def test_settings_are_read(text, found):
    assert parse_settings(text) == found


@pytest.mark.parametrize(
    "line",
    [
        'base = "cpu"', "default_base = cpu", "default_base", "[default_base]",
        'default_base = "cpu', 'default_base = "', "default_base = 3",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_line(line):
    with pytest.raises(UsageError) as caught:
        parse_settings(f"# first\n{line}\n")
    assert caught.value.what == f"stackyard.toml:2: not understood: {line}"
    assert caught.value.hint.startswith('settings are: default_base = "cuda", registry = ')


@pytest.mark.parametrize(
    "url", ["git@git.example:team/yard", "https://me:secret@git.example/yard", "ftp://a", ""]
)
def test_a_source_that_is_no_public_url_is_refused(url):
    assert parse_settings('source = "https://git.example/yard"')["source"]
    with pytest.raises(UsageError, match="source is no URL of a public place"):
        parse_settings(f'source = "{url}"')


def test_all_means_every_stack_and_a_name_itself():
    stacks = {name: samples.stack(name=name) for name in ("toy", "ball")}
    found = Project(root=ROOT, definitions=samples.definitions(stacks=stacks), default_base="cpu")
    assert found.stacks("all") == ["ball", "toy"]
    assert found.stacks("toy") == ["toy"]


def test_a_project_without_settings_has_the_shipped_default(tmp_path):
    samples.Tree(tmp_path)
    assert load_project(tmp_path).default_base == "cuda"
    (tmp_path / "stackyard.toml").write_text('default_base = "cpu"\n')
    assert load_project(tmp_path).default_base == "cpu"


def test_this_projects_default_base_is_declared():
    found = load_project(locks_required=False)
    assert found.root == ROOT
    assert found.default_base in found.definitions.bases


@pytest.mark.parametrize("content", [b"default_base = \xff", None])
def test_settings_that_cannot_be_read_are_refused(tmp_path, content):
    samples.Tree(tmp_path)
    path = tmp_path / "stackyard.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=r"stackyard\.toml: cannot be read"):
        load_project(tmp_path)


def test_settings_may_begin_with_a_byte_order_mark(tmp_path):
    samples.Tree(tmp_path)
    (tmp_path / "stackyard.toml").write_bytes(b'\xef\xbb\xbfdefault_base = "cpu"')
    assert load_project(tmp_path).default_base == "cpu"
