"""`--overlay` as it is typed, what it adds to hosts, and what a job must find."""

import json

import pytest

from stackyard.mesh.hosts import Folder
from stackyard.mesh.mounts import (
    Mount,
    differing,
    parse_mount,
    require_there,
    together,
    with_mounts,
)
from stackyard.mesh.node_plan import parse_plan, wrong_host
from stackyard.mesh.survey import FolderFacts
from stackyard.system.errors import UsageError
from tests.unit.machines import facts, fleet, plan, wanted

PACKAGES = ("fairseq", "megatron-core")
DATA = {"/data": Folder(source="volume:data")}
TREE = Mount(package="fairseq", source="/home/me/fairseq", place="/srv/code/fairseq")


def parsed(text, **folders):
    found = parse_mount(text, "fairseq", PACKAGES, fleet("a", folders=folders or DATA))
    return found.package, found.source, found.place


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/home/me/fairseq", ("fairseq", "/home/me/fairseq", "/srv/code/fairseq")),
        ("/home/me/fairseq/", ("fairseq", "/home/me/fairseq", "/srv/code/fairseq")),
        ("~/fairseq:/code", ("fairseq", "~/fairseq", "/code")),
        ("megatron_core=/m", ("megatron-core", "/m", "/srv/code/megatron-core")),
        ("/data/fairseq", ("fairseq", "", "/data/fairseq")),  # the nodes see it anyway
        ("/database", ("fairseq", "/database", "/srv/code/fairseq")),
        ("/data/fairseq:/code", ("fairseq", "/data/fairseq", "/code")),
    ],
)
def test_a_mount_is_a_folder_of_the_hosts_or_of_the_nodes(text, found):
    assert parsed(text) == found


@pytest.mark.parametrize("text", ["fairseq", "../fairseq", "", "/a:code", "/a:/proc", "/a:/run/x",
                                  "/a:/x/../y", "other=/a", "fairseq="])  # fmt: skip
def test_what_is_none_is_refused(text):
    with pytest.raises(UsageError) as refused:
        parsed(text)
    assert refused.value.hint


def test_hosts_get_one_more_folder_that_nodes_cannot_write_to():
    found = with_mounts(fleet("a", folders=DATA), [TREE])
    assert found.folders == {
        **DATA, "/srv/code/fairseq": Folder(source="/home/me/fairseq", read_only=True),
    }  # fmt: skip
    inside = Mount(package="fairseq", source="", place="/data/fairseq")
    assert with_mounts(fleet("a", folders=DATA), [inside]).folders == DATA


def test_two_trees_have_two_places_and_two_packages():
    other = Mount(package="megatron-core", source="/m", place="/srv/code/fairseq")
    with pytest.raises(UsageError, match="there is a folder at /srv/code/fairseq already"):
        with_mounts(fleet("a"), [TREE, other])
    with pytest.raises(UsageError, match="fairseq is named twice"):
        with_mounts(fleet("a"), [TREE, TREE])


def test_a_host_without_the_folder_is_told_what_brings_it():
    hosts = with_mounts(fleet("a"), [TREE])
    here = facts(folders={"/srv/code/fairseq": FolderFacts(path="", kind="", free_bytes=None)})
    (problem,) = wrong_host(hosts, hosts.hosts[0], here, wanted("a"))
    assert problem.what == "it has no folder /home/me/fairseq"
    assert "invoke sync" in problem.hint
    there = facts(folders={"/srv/code/fairseq": FolderFacts(path="/h", kind="", free_bytes=1)})
    assert wrong_host(hosts, hosts.hosts[0], there, wanted("a")) == []


def test_a_mesh_says_which_trees_its_nodes_have():
    found = plan(mounts=(TREE,))
    assert parse_plan(found.text()) == found
    old = json.loads(plan().text())
    del old["mounts"]  # as an earlier version wrote it
    assert parse_plan(json.dumps(old)) == plan()


def test_a_mesh_that_is_up_gets_no_new_folder():
    require_there([TREE], [TREE], "demo", "invoke up fairseq")
    require_there([Mount(package="fairseq", source="", place="/data/x")], [], "demo", "invoke up")
    with pytest.raises(UsageError, match="is up without /home/me/fairseq for fairseq") as refused:
        require_there([TREE], [], "demo", "invoke up fairseq --overlay ...")
    assert refused.value.hint == "invoke down --name demo, then: invoke up fairseq --overlay ..."


def test_a_job_has_the_trees_of_its_mesh_unless_it_names_another():
    inside = Mount(package="fairseq", source="", place="/data/fairseq")
    core = Mount(package="megatron-core", source="/m", place="/srv/code/megatron-core")
    assert together([], [TREE]) == (TREE,)
    assert together([inside], [TREE, core]) == (inside, core)


def test_nodes_with_another_tree_are_named():
    assert differing({"a": "x", "b": "x"}) == []
    assert differing({"a": "x", "b": "y", "c": "x"}) == ["b"]
    assert differing({}) == []
