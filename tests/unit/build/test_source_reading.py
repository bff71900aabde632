"""Trees out of folders and of real git repositories: what is taken, and what is recorded."""

import os
import subprocess

import pytest

from stackyard.build.source import reading
from stackyard.build.source.naming import Asked
from stackyard.system.errors import StackyardError, UsageError

pytestmark = pytest.mark.usefixtures("allow_processes")
SETUP = "from setuptools import setup\nsetup(name='alpha', version='1')\n"


@pytest.fixture(autouse=True)
def plain_git(monkeypatch, tmp_path):
    """No configuration of whoever runs the tests."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main",
           "-c", "protocol.file.allow=always"]  # fmt: skip
    done = subprocess.run(["git", "-C", str(folder), *who, *words], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def plain(tmp_path):
    folder = tmp_path / "alpha"
    (folder / "alpha").mkdir(parents=True)
    (folder / "setup.py").write_text(SETUP)
    (folder / "alpha" / "__init__.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def repository(plain):
    git(plain, "init", "-q")
    (plain / ".gitignore").write_text("build/\n*.so\n")
    git(plain, "add", ".")
    git(plain, "commit", "-qm", "one")
    return plain


def read(location, revision="", package="alpha", remote=False):
    asked = Asked(package=package, location=str(location), revision=revision, remote=remote)
    said = []
    source, tree = reading.read(asked, "1.0", said.append)
    return source, tree, said


def test_a_clean_tree_is_its_commit(repository):
    git(repository, "remote", "add", "origin", "https://me:secret@h.example/alpha.git")
    source, tree, _ = read(repository)
    assert source.commit == git(repository, "rev-parse", "HEAD")
    assert (source.dirty, source.origin) == (False, "https://h.example/alpha.git")
    assert set(tree) == {".gitignore", "setup.py", "alpha/__init__.py"}
    assert source.files == 3
    assert source.version == ""


def test_what_git_ignores_is_not_taken_and_does_not_make_a_tree_dirty(repository):
    (repository / "build").mkdir()
    (repository / "build" / "big").write_text("x")
    (repository / "alpha" / "fast.so").write_text("x")
    source, tree, _ = read(repository)
    assert not source.dirty
    assert len(tree) == 3


@pytest.mark.parametrize("change", ["edit", "new", "delete", "stage"])
def test_a_change_that_is_in_no_commit_is_taken_and_recorded(repository, change):
    clean, _, _ = read(repository)
    file = repository / "alpha" / "__init__.py"
    if change == "delete":
        file.unlink()
    elif change == "new":
        (repository / "alpha" / "new.py").write_text("y = 2\n")
    else:
        file.write_text("x = 2\n")
        if change == "stage":
            git(repository, "add", "-A")
    source, tree, _ = read(repository)
    assert (source.commit, source.dirty) == (clean.commit, True)
    assert source.digest != clean.digest
    assert ("alpha/__init__.py" in tree) == (change != "delete")
    assert ("alpha/new.py" in tree) == (change == "new")


@pytest.mark.parametrize("revision", ["", "main"])
def test_what_git_says_beside_its_output_is_no_file_and_no_change(
    repository, monkeypatch, revision
):
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TRACE", "1")
    source, tree, _ = read(repository, revision)
    assert (source.commit, source.dirty, source.submodules) == (commit, False, ())
    assert set(tree) == {".gitignore", "setup.py", "alpha/__init__.py"}


def test_a_revision_is_read_whatever_lies_in_the_folder(repository):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "v1")
    (repository / "alpha" / "__init__.py").write_text("x = 2\n")
    git(repository, "commit", "-qam", "two")
    (repository / "alpha" / "__init__.py").write_text("x = 3\n")
    for name in ("v1", first, first[:9]):
        source, tree, _ = read(repository, name)
        assert (source.commit, source.dirty, source.revision) == (first, False, name)
        assert tree["alpha/__init__.py"].data == b"x = 1\n"
    source, tree, _ = read(f"file://{repository}", "main", remote=True)
    assert tree["alpha/__init__.py"].data == b"x = 2\n"
    assert source.origin == ""


def test_a_revision_that_is_not_there_names_those_that_are(repository):
    git(repository, "tag", "v1")
    with pytest.raises(UsageError) as refused:
        read(repository, "v2")
    assert "has no revision 'v2'" in refused.value.what
    assert "v1" in refused.value.why
    assert "main" in refused.value.why


def test_an_address_that_git_cannot_clone_says_what_git_said(tmp_path):
    with pytest.raises(UsageError, match="git cannot clone") as refused:
        read(f"file://{tmp_path}/none", remote=True)
    assert "does not appear to be a git repository" in refused.value.why


def test_a_folder_without_git_is_all_that_is_in_it(plain):
    (plain / "__pycache__").mkdir()
    (plain / "__pycache__" / "x.pyc").write_text("x")
    (plain / "alpha.egg-info").mkdir()
    (plain / "alpha.egg-info" / "PKG-INFO").write_text("x")
    (plain / "run").write_text("x")
    (plain / "run").chmod(0o755)
    source, tree, _ = read(plain)
    assert (source.commit, source.dirty) == ("", False)
    assert set(tree) == {"setup.py", "alpha/__init__.py", "run"}
    assert tree["run"].executable
    before = source.digest
    (plain / "alpha" / "__init__.py").write_text("x = 2\n")
    assert read(plain)[0].digest != before


def test_a_part_of_a_repository_is_read_alone(repository):
    inner = repository / "tools"
    inner.mkdir()
    (inner / "setup.py").write_text(SETUP)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "tools")
    (repository / "alpha" / "__init__.py").write_text("elsewhere\n")
    source, tree, _ = read(inner)
    assert set(tree) == {"setup.py"}
    assert not source.dirty


def test_a_repository_without_a_commit_has_its_content_only(plain):
    git(plain, "init", "-q")
    source, tree, _ = read(plain)
    assert (source.commit, source.dirty, len(tree)) == ("", False, 2)


def test_submodules_are_taken_where_they_are_checked_out_and_stated(repository, tmp_path):
    third = tmp_path / "third"
    third.mkdir()
    git(third, "init", "-q")
    (third / "c.h").write_text("int x;\n")
    git(third, "add", ".")
    git(third, "commit", "-qm", "third")
    git(repository, "submodule", "--quiet", "add", str(third), "third")
    git(repository, "commit", "-qam", "with a submodule")
    source, tree, _ = read(repository)
    assert source.submodules == (f"third {git(third, 'rev-parse', 'HEAD')}",)
    assert tree["third/c.h"].data == b"int x;\n"
    git(repository, "submodule", "--quiet", "deinit", "third")
    source, tree, said = read(repository)
    assert source.submodules == ("third (not checked out)",)
    assert "third/c.h" not in tree
    assert said == ["note: submodule third (not checked out): it is empty in the build"]


def test_a_version_from_git_is_told_to_the_build(repository):
    (repository / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools_scm"]\n')
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "scm")
    commit = git(repository, "rev-parse", "HEAD")
    assert read(repository)[0].version == f"1.0+g{commit[:12]}"
    (repository / "alpha" / "__init__.py").write_text("x = 2\n")
    assert read(repository)[0].version == f"1.0+g{commit[:12]}.dirty"


def test_bad_trees_are_refused_with_one_reason(plain, tmp_path):
    def refused(location, **more):
        with pytest.raises(UsageError) as found:
            read(location, **more)
        assert found.value.hint
        return str(found.value)

    assert "there is no folder" in refused(tmp_path / "none")
    assert "it is a file" in refused(plain / "setup.py")
    assert "is the tree of alpha, not of beta" in refused(plain, package="beta")
    assert "did you mean its folder alpha?" in refused(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no file" in refused(empty)
    (plain / "out").symlink_to("/etc/passwd")
    assert "out leads out of the tree" in refused(plain)


def test_without_git_a_repository_is_not_taken_for_a_folder(repository, monkeypatch, tmp_path):
    monkeypatch.setattr(reading.shutil, "which", lambda name: None)
    for revision in ("", "main"):
        with pytest.raises(UsageError, match="there is no git"):
            read(repository, revision)
    # A folder that is in no repository needs none.
    other = tmp_path / "other"
    other.mkdir()
    (other / "setup.py").write_text(SETUP)
    assert read(other)[0].files == 1


def test_a_file_name_that_cannot_be_read_is_not_left_out_silently(repository):
    (repository / os.fsdecode(b"\xff.py")).write_text("x")
    with pytest.raises(StackyardError, match="name cannot be read"):
        read(repository)


def test_nothing_is_left_of_a_clone(repository, tmp_path, monkeypatch):
    here = tmp_path / "temporary"
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(here))
    read(repository, "main")
    assert list(here.iterdir()) == []


def submodule(folder, inner, place):
    git(folder, "submodule", "--quiet", "add", str(inner), place)
    git(folder, "commit", "-qam", f"with {place}")


def bare_project(folder, name):
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / name).write_text("int x;\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def test_submodules_of_submodules_are_taken_too(repository, tmp_path):
    fourth = bare_project(tmp_path / "fourth", "d.h")
    third = bare_project(tmp_path / "third", "c.h")
    submodule(third, fourth, "deep")
    submodule(repository, third, "third")
    git(repository, "submodule", "--quiet", "update", "--init", "--recursive")
    source, tree, _ = read(repository)
    assert tree["third/deep/d.h"].data == b"int x;\n"
    assert source.submodules == (
        f"third {git(third, 'rev-parse', 'HEAD')}",
        f"third/deep {git(fourth, 'rev-parse', 'HEAD')}",
    )
    git(repository / "third", "submodule", "--quiet", "deinit", "deep")
    source, tree, _ = read(repository)
    assert source.submodules[1] == "third/deep (not checked out)"


def test_a_change_that_git_was_told_not_to_see_makes_a_tree_dirty(repository, tmp_path):
    file = repository / "alpha" / "__init__.py"
    for flag in ("assume-unchanged", "skip-worktree"):
        git(repository, "update-index", f"--{flag}", "alpha/__init__.py")
        file.write_text("x = 2\n")
        assert read(repository)[0].dirty, flag
        file.write_text("x = 1\n")
        git(repository, "update-index", f"--no-{flag}", "alpha/__init__.py")
    submodule(repository, bare_project(tmp_path / "third", "c.h"), "third")
    git(repository, "config", "submodule.third.ignore", "all")
    assert not read(repository)[0].dirty
    (repository / "third" / "c.h").write_text("int y;\n")
    assert read(repository)[0].dirty


def test_the_repository_of_a_hook_that_calls_us_is_not_taken_for_the_source(
    repository, tmp_path, monkeypatch
):
    other = bare_project(tmp_path / "other", "o.h")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    for revision in ("", "HEAD"):
        source, tree, _ = read(repository, revision)
        assert set(tree) == {".gitignore", "setup.py", "alpha/__init__.py"}
        assert not source.dirty


def test_a_tracked_file_behind_a_link_is_not_followed(repository, tmp_path):
    (repository / "more").mkdir()
    (repository / "more" / "secret").write_text("ours")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "more")
    (repository / "more" / "secret").unlink()
    (repository / "more").rmdir()
    (repository / "other").mkdir()
    (repository / "other" / "secret").write_text("elsewhere")
    (repository / "more").symlink_to("other")
    source, tree, _ = read(repository)
    assert source.dirty
    assert tree["more"].link == "other"
    assert "more/secret" not in tree


def test_a_repository_in_the_tree_that_git_does_not_track_is_not_left_out_silently(repository):
    bare_project(repository / "third", "c.h")
    source, tree, said = read(repository)
    assert "third/c.h" not in tree
    assert source.dirty
    assert source.submodules == ("third (no submodule: not taken)",)
    assert said == ["note: repository third (no submodule: not taken)"]
