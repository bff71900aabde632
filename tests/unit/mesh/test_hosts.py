"""Inventories: hosts.yml, deepspeed hostfiles, names out of an ssh configuration."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stackyard.mesh.hosts import (
    MAX_HOSTS,
    Folder,
    Host,
    expand,
    from_names,
    gpu_indexes,
    is_hostfile,
    matching,
    node_names,
    read_inventory,
)
from stackyard.mesh.sync import place_of
from stackyard.system.errors import DefinitionError, UsageError
from tests.unit.definitions.test_fuzz_definitions import FEW, examples
from tests.unit.fuzzing import DOCUMENTS, broken_lines, broken_structure

WHOLE = """\
defaults:
  user: me
  port: 2022
hosts:
  study:
    address: 10.0.0.1
    gpus: 0,1
  train:
    address: gpu-2.lab.example
    port: 22
    interface: eth1
    nodes: 2
    engine: /run/user/1000/docker.sock
    key: ~/.ssh/lab
    ssh_config: /home/me/lab.conf
  depot:
folders:
  /shared: {path: /mnt/nfs/shared, shared: true}
  /data: ~/data
  /cache: volume:cache
"""
HOSTFILE = """\
# the machines of the lab
study slots=4

me@Train.Lab slots = 2   # borrowed
10.0.0.3 slots=1
"""


def read(text):
    return read_inventory(text, "hosts.yml")


def problems(text):
    with pytest.raises(DefinitionError) as caught:
        read(text)
    return [str(problem).removeprefix("hosts.yml:") for problem in caught.value.problems]


def host(**entry):
    return yaml.safe_dump({"hosts": {"a": entry}})


# hosts.yml


def test_a_hosts_variables_precede_those_of_all_and_are_the_text_that_stands_there():
    text = """\
defaults: {env: {OMP_NUM_THREADS: 8, NCCL_DEBUG: WARN}}
hosts:
  study: {env: {NCCL_DEBUG: INFO, NCCL_IB_DISABLE: 1, FLAG: no}}
  train:
"""
    study, train = read(text).hosts
    assert study.env == {
        "OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1", "FLAG": "no",
    }  # fmt: skip
    assert train.env == {"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MASTER_ADDR", "10.0.0.1", "cannot be set: the launcher sets it"),
        ("CUDA_VISIBLE_DEVICES", "0", "cannot be set: GPUs are chosen"),
        ("A-B", "1", "not the name of a variable"),
        ("HF_TOKEN", "abcdefgh", "looks like a secret"),
    ],
)
def test_a_variable_that_cannot_be_set_is_named_where_it_stands(name, value, said):
    (found,) = problems(host(env={name: value}))
    assert said in found and name in found
    assert "abcdefgh" not in found


def test_all_hosts_variables_are_refused_once():
    text = "defaults: {env: {RANK: 0}}\nhosts: {a: , b: }\n"
    assert len(problems(text)) == 1


def test_a_whole_inventory_is_read():
    fleet = read(WHOLE)
    study, train, depot = fleet.hosts
    assert (study.ssh, study.user, study.port, study.gpus) == ("10.0.0.1", "me", 2022, "0,1")
    assert (train.ssh, train.port, train.interface, train.nodes) == (
        "gpu-2.lab.example", 22, "eth1", 2,
    )  # fmt: skip
    assert (train.engine, train.key, train.config) == (
        "/run/user/1000/docker.sock", "~/.ssh/lab", "/home/me/lab.conf",
    )  # fmt: skip
    assert (depot.ssh, depot.port, depot.gpus, depot.engine) == (
        "depot", 2022, "all", "/var/run/docker.sock",
    )  # fmt: skip
    assert fleet.folders == {
        "/shared": Folder(source="/mnt/nfs/shared", shared=True),
        "/data": Folder(source="~/data"),
        "/cache": Folder(source="volume:cache"),
    }


def test_a_host_without_anything_else_is_what_ssh_calls_so():
    (found,) = read("hosts: {study: }").hosts
    assert (found.name, found.ssh, found.user, found.port, found.nodes) == (
        "study", "study", "", 0, 1,
    )  # fmt: skip


def test_every_problem_is_told_at_once_with_its_line():
    text = """\
defaults: {port: 99999, usr: me}
hosts:
  Study: {gpus: first}
  b: {nodes: 0}
  c: {address: -oProxyCommand=x, interface: "e th"}
  d: {address: b, user: "-x", engine: docker.sock}
folders: {data: /srv, /code: srv}
more: 1
"""
    assert problems(text) == [
        "1: defaults.port: must be a port, 1 to 65535",
        "1: defaults.usr: unknown key; did you mean 'user'?",
        "3: hosts.Study: a host's name has lower-case letters, digits and `-`",
        "3: hosts.Study.gpus: must be all, none, or indexes as in 0,1",
        "4: hosts.b.nodes: must be 1 to 64",
        "5: hosts.c.address: must be an address or a name that ssh knows",
        "5: hosts.c.interface: must be an interface or auto",
        "6: hosts.d.engine: must be the path of the engine's socket",
        "6: hosts.d.user: must be a user's name",
        "7: folders./code: must be an absolute path on the hosts, or volume:NAME",
        "7: folders.data: must be an absolute path inside the nodes",
        "8: more: unknown key; known: defaults, folders, hosts",
    ]


@pytest.mark.parametrize("text", ["hosts: {}", "hosts:", "folders: {/a: /b}", "{}", "defaults: {}"])
def test_an_inventory_without_hosts_is_refused(text):
    assert problems(text) == ["1: hosts: no host is named in it"]


def test_that_no_host_is_named_is_told_beside_other_problems():
    found = problems("defaults: {port: -1}")
    assert len(found) == 2
    assert "1: hosts: no host is named in it" in found


@pytest.mark.parametrize("text", ["hosts: [a, b]", "hosts: a", "hosts: {a: b}", "- a", "a", ""])
def test_what_is_no_mapping_of_hosts_is_refused_once(text):
    assert len(problems(text)) == 1


def test_a_host_given_twice_is_refused_with_both_lines():
    assert problems("hosts:\n  a:\n  b:\n  a:\n") == [
        "4: hosts.a: duplicate key, first given on line 2"
    ]


def test_one_machine_under_two_names_is_refused_at_the_second():
    text = "hosts:\n  a: {address: 10.0.0.1}\n  b:\n  c: {address: 10.0.0.1}\n"
    (found,) = problems(text)
    assert found.startswith("4: hosts.c: is the same machine as 'a' (10.0.0.1)")
    assert "nodes: N" in found


def test_two_engines_of_one_machine_are_two_hosts():
    text = "hosts: {a: {address: x}, b: {address: x, engine: /run/other.sock}}"
    assert len(read(text).hosts) == 2


def test_hosts_whose_nodes_would_share_a_name_are_refused():
    assert problems("hosts:\n  a-2:\n  a: {nodes: 2}\n") == [
        "2: hosts.a-2: has the name of a node of 'a': one of them needs another"
    ]


def test_a_host_with_several_nodes_numbers_them():
    a, b = read("hosts: {a: {nodes: 2}, b: }").hosts
    assert (node_names(a), node_names(b)) == (("a-1", "a-2"), ("b",))


@pytest.mark.parametrize(
    ("written", "gpus"),
    [("0", "0"), ("0,1", "0,1"), ("'3'", "3"), ("all", "all"), ("none", "none"), ("7,0", "7,0")],
)
def test_gpus_are_all_none_or_indexes_quoted_or_not(written, gpus):
    (found,) = read(f"hosts: {{a: {{gpus: '{written}'}}}}".replace("''", "'")).hosts
    assert found.gpus == gpus


@pytest.mark.parametrize("written", ["''", "some", "0,", "0,0", "-1", "0-3", "1.5", "'0 1'"])
def test_gpus_that_are_no_indexes_are_refused(written):
    (found,) = problems(f"hosts:\n  a:\n    gpus: {written}\n")
    assert found == "3: hosts.a.gpus: must be all, none, or indexes as in 0,1"


def test_indexes_are_told_from_other_words():
    assert gpu_indexes("0,2,11") == (0, 2, 11)
    assert [gpu_indexes(text) for text in ("", "all", "1,1", "a,1", "²")] == [()] * 5


@pytest.mark.parametrize(
    "place",
    ["data", "/", "//", "/run", "/run/stackyard", "/proc/", "/sys/x", "/a:b", "/a/../run", "/a/.",
     "/a\n/b", "/a "],
)  # fmt: skip
def test_a_folder_where_nodes_cannot_have_one_is_refused(place):
    text = yaml.safe_dump({"hosts": {"a": None}, "folders": {place: "/srv"}})
    assert any("must be an absolute path inside the nodes" in found for found in problems(text))


@pytest.mark.parametrize("source", ["srv", "./srv", "/a:b", "volume:", "volume:-x", "~other", ""])
def test_a_folder_that_hosts_cannot_have_is_refused(source):
    text = yaml.safe_dump({"hosts": {"a": None}, "folders": {"/data": source}})
    (found,) = problems(text)
    assert "must be an absolute path on the hosts, or volume:NAME" in found


def test_hosts_are_chosen_by_name_in_the_order_asked_for():
    fleet = read(WHOLE)
    assert [h.name for h in fleet.only(["train", "study", "train"]).hosts] == ["train", "study"]
    with pytest.raises(UsageError) as caught:
        fleet.only(["study", "nobody"])
    assert "has no host 'nobody'" in str(caught.value)
    assert "one of: study, train, depot" in str(caught.value)


# deepspeed hostfiles


def test_a_hostfile_is_read_with_comments_and_blank_lines():
    assert is_hostfile(HOSTFILE)
    found = [(h.name, h.ssh, h.user, h.gpus) for h in read(HOSTFILE).hosts]
    assert found == [
        ("study", "study", "", "0,1,2,3"),
        ("train-lab", "Train.Lab", "me", "0,1"),
        ("10-0-0-3", "10.0.0.3", "", "0"),
    ]


def test_every_bad_line_of_a_hostfile_is_told_at_once():
    good, wrong = "a slots=2\n", "b\na slots=1\nc slots=0\nd slots=two\n-oX=y slots=1\n"
    text = f"{good}{wrong}@ slots=1\ne;f slots=1\n"
    assert problems(text) == [
        "2: not understood: 'b'; a line is: name slots=N",
        "3: duplicate host 'a', first given on line 1",
        "4: slots must be 1 to 256",
        "5: not understood: 'd slots=two'; a line is: name slots=N",
        "6: '-oX=y' is no address or name that ssh knows",
        "7: '@' is no address or name that ssh knows",
        "8: 'e;f' is no address or name that ssh knows",
    ]


def test_hosts_that_would_be_nodes_of_one_name_are_duplicates():
    assert problems("gpu.1 slots=1\nGPU-1 slots=1\n") == [
        "2: duplicate host 'GPU-1', first given on line 1"
    ]


def test_a_hostfile_of_comments_names_no_host():
    assert problems("# a slots=2\n") == ["1: must be a mapping of keys to values"]


# --hosts and ssh patterns


def test_hosts_are_named_one_by_one():
    found = from_names(["study", "me@10.0.0.2", "GPU_3"], "--hosts").hosts
    assert [(h.name, h.ssh, h.user) for h in found] == [
        ("study", "study", ""), ("10-0-0-2", "10.0.0.2", "me"), ("gpu-3", "GPU_3", ""),
    ]  # fmt: skip


def test_every_bad_name_is_told_at_once_and_always_in_the_same_order():
    with pytest.raises(DefinitionError) as caught:
        from_names(["a", "", "b", "-v", "b", "-x@c", "a", "d e"], "--hosts")
    assert [problem.message for problem in caught.value.problems] == [
        "'' is no address or name that ssh knows",
        "'-v' is no address or name that ssh knows",
        "'-x@c' is no address or name that ssh knows",
        "'d e' is no address or name that ssh knows",
        "duplicate host 'a'",
        "duplicate host 'b'",
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-03]", ["gpu01", "gpu02", "gpu03"]),
        ("gpu[1-4,7]", ["gpu1", "gpu2", "gpu3", "gpu4", "gpu7"]),
        ("a[1-2],b", ["a1", "a2", "b"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("gpu[1-4]!gpu3", ["gpu1", "gpu2", "gpu4"]),
        ("me@10.0.0.[1-2]", ["me@10.0.0.1", "me@10.0.0.2"]),
        ("train, study", ["train", "study"]),
    ],
)
def test_a_node_set_names_its_hosts_by_number_and_names_by_comma_stay_in_order(text, names):
    assert expand(text) == names


def test_hosts_of_a_node_set_take_their_settings_from_ssh_itself():
    assert from_names(expand("GPU[01-02]"), "--hosts").hosts == (
        Host(name="gpu01", ssh="GPU01"), Host(name="gpu02", ssh="GPU02"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("gpu[01-", "'gpu[01-' is no node set", "missing bracket"),
        ("gpu[3-1]", "'gpu[3-1]' is no node set", "bad range"),
        ("a[1-2],,b", "'a[1-2],,b' is no node set", "missing nodeset operand"),
        ("a[1-2]!a[1-2]", "'a[1-2]!a[1-2]' names no hosts", ""),
        (f"a[0-{MAX_HOSTS}]", f"names {MAX_HOSTS + 1} hosts", "at most"),
        ("a[1-2],@gpus", "'@gpus' is a group", "not looked up"),
        ("a[1-9999999999]", "names too many hosts", "at most"),
    ],
)
def test_what_is_no_node_set_is_refused_at_once(text, what, why):
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert what in caught.value.what and why in caught.value.why


CONFIG = """\
Host gpu1 gpu2 !gpu3 gpu*
    HostName 10.0.0.1
host=gpu4
Host = "gpu5"
HostName gpu6
Match host gpu7
Host other gpu1
# Host gpu8
"""


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("gpu*", ["gpu1", "gpu2", "gpu4", "gpu5"]), ("other", ["other"]),
     ("gpu[12]", ["gpu1", "gpu2"]), ("nobody", []), ("GPU1", [])],
)  # fmt: skip
def test_names_of_an_ssh_configuration_match_a_pattern(pattern, names):
    assert matching(CONFIG, pattern) == names


# Anything else


def answered(text):
    """Every text is read, or refused with its file and lines that it has."""
    try:
        fleet = read(text)
    except DefinitionError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.file == "hosts.yml" and problem.message
            assert 1 <= problem.line <= len(text.splitlines()) + 1
            assert str(problem).isprintable()
        return
    names = [node for host in fleet.hosts for node in node_names(host)]
    assert names and len(set(names)) == len(names)
    assert not any(h.ssh.startswith("-") or h.user.startswith("-") for h in fleet.hosts)


@examples(FEW)
@given(st.one_of(st.text(max_size=200), st.sampled_from(DOCUMENTS)))
def test_any_text_is_read_or_refused_with_its_place(text):
    answered(text)


@examples(FEW)
@given(broken_lines(WHOLE))
def test_a_broken_inventory_is_read_or_refused_with_its_place(text):
    answered(text)


@examples(FEW)
@given(broken_lines(HOSTFILE))
def test_a_broken_hostfile_is_read_or_refused_with_its_place(text):
    answered(text)


@examples(FEW)
@given(broken_structure(yaml.safe_load(WHOLE)))
def test_an_inventory_may_hold_any_values(text):
    answered(text)


def test_a_path_in_no_folder_of_the_hosts_names_the_nearest_folder():
    hosts = read_inventory("hosts: {a: {}}\nfolders: {/data: ~/data, /shared: /mnt}\n", "hosts.yml")
    assert place_of(hosts, "/data/code") == ("/data", False)
    for path, why in (("/dat", "did you mean '/data'?"), ("/x", "known: /data, /shared")):
        with pytest.raises(UsageError, match="is in no folder of the hosts") as caught:
            place_of(hosts, path)
        assert caught.value.why.startswith(f"{why}\n")
