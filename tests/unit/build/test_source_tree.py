"""A tree's address and archive, and what it says of itself without being run."""

import io
import tarfile

import pytest

from stackyard.build.source import tree as source_tree
from stackyard.build.source.tree import Entry

TREE = {
    "setup.py": Entry(data=b"from setuptools import setup\nsetup(name='alpha')\n"),
    "run.sh": Entry(data=b"true\n", executable=True),
    "alpha/__init__.py": Entry(data=b""),
    "link": Entry(link="alpha"),
}


def project(**files):
    names = {"setup": "setup.py", "config": "setup.cfg", "project": "pyproject.toml"}
    return {names[key]: Entry(data=text.encode()) for key, text in files.items()}


def test_the_digest_is_of_paths_modes_links_and_bytes():
    found = {source_tree.digest(TREE)}
    for path, entry in {
        "run.sh": Entry(data=b"true\n"),
        "alpha/__init__.py": Entry(data=b"x"),
        "link": Entry(link="beta"),
        "new": Entry(),
    }.items():
        found.add(source_tree.digest({**TREE, path: entry}))
    found.add(source_tree.digest({k: v for k, v in TREE.items() if k != "link"}))
    assert len(found) == 6
    assert source_tree.digest(dict(reversed(TREE.items()))) == source_tree.digest(TREE)


def test_the_archive_is_the_same_for_the_same_tree():
    packed = source_tree.pack(TREE)
    assert packed == source_tree.pack(dict(reversed(TREE.items())))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert set(members) == {f"source/{path}" for path in TREE}
    assert members["source/run.sh"].mode == 0o755
    assert members["source/setup.py"].mode == 0o644
    assert members["source/link"].linkname == "alpha"


@pytest.mark.parametrize(
    ("path", "link", "out"),
    [
        ("a", "b", False), ("a/b", "../c", False), ("a", "../c", True), ("a/b", "../../c", True),
        ("a", "/etc/passwd", True), ("a", "x/../../y", True), ("a/b", "x/../../y", False),
    ],
)  # fmt: skip
def test_a_link_that_leads_out_is_seen(path, link, out):
    assert source_tree.leads_out(path, link) is out


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        (project(project='[build-system]\nname = "no"\n[project]\nname = "alpha"\n'), "alpha"),
        (project(project='project.name = "alpha"'), "alpha"),
        (project(project="[ project ] # ours\nname = 'alpha'"), "alpha"),
        (project(project='[project]\nname = "alpha'), ""),
        (project(project='project = "alpha"'), ""),
        (project(project="[project]\nname = 3"), ""),
        (project(config="[metadata]\nname = alpha\n"), "alpha"),
        (project(setup="import setuptools\nsetuptools.setup(name='alpha')"), "alpha"),
        (project(setup="def go():\n    setup(version=v(), name='alpha')\nExt(name='x')"), "alpha"),
        (project(setup="setup(name=found())"), ""),
        (project(setup="def ("), ""),
        (project(config="no ini"), ""),
        ({}, ""),
    ],
)
def test_a_name_is_read_where_it_is_plain(tree, name):
    assert source_tree.project_name(tree) == name


@pytest.mark.parametrize(
    "tree",
    [
        project(project='[project]\ndependencies = ["x>=1", "y[z]; os_name == \'a\'"]\n'),
        project(project="[project]\ndependencies = [\n  'x>=1', # a\n  \"y[z]; os_name == 'a'\"\n"
                        "]\n[project.optional-dependencies]\ndev = [\"no\"]\n"),
        project(project="[project]\ndependencies = ['x>=1',\n[3], 3,"
                        " \"\"\"y[z]; os_name == 'a'\"\"\"]"),
        project(config="[options]\ninstall_requires =\n  x>=1\n  y[z]; os_name == 'a'\n"),
        project(setup="setup(install_requires=['x>=1', \"y[z]; os_name == 'a'\"])"),
    ],
)  # fmt: skip
def test_requirements_are_read_where_they_are_plain(tree):
    assert source_tree.requirements(tree) == ("x>=1", "y[z]; os_name == 'a'")


def test_requirements_that_only_a_build_knows_are_none():
    assert source_tree.requirements(project(setup="setup(install_requires=read())")) == ()


def test_who_asks_git_for_a_version_is_seen():
    assert source_tree.asks_git(project(project='requires = ["setuptools_scm>=8"]'))
    assert source_tree.asks_git(project(config="[options]\nsetup_requires = pbr\n"))
    assert not source_tree.asks_git(TREE)
