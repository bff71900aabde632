"""Jobs and clusters that do not fit are refused, with every reason at once."""

import pytest

from stackyard.schedulers.kubernetes_site import OWN_FOLDERS, addresses, check, needs_mesh
from stackyard.system.errors import UsageError
from tests.unit.kubernetes_jobs import job, over_ssh, site


def said(wanted, where=None, run="toy"):
    with pytest.raises(UsageError) as caught:
        check(wanted, where or site(), run)
    assert caught.value.exit_code == 2
    return caught.value.why.splitlines()


def test_good_ones_pass():
    check(job(), site(), "toy")
    check(over_ssh(), site(kind="job"), "toy")
    check(job(binds={"/data": "pvc:a.b/c"}, files={"/datafile": b""}), site(), "a1-b")


@pytest.mark.parametrize("name", ["Toy", "toy_1", "1toy", "-toy", "toy-", "", "to y", "töy", "a.b"])
def test_a_name_that_no_service_may_have_is_refused(name):
    assert any("begin with a letter" in line for line in said(job(), run=name))


@pytest.mark.parametrize(("kind", "fixed"), [("jobset", "-node-0-1-xxxxx"), ("job", "-1-xxxxx")])
def test_names_end_where_names_of_pods_do(kind, fixed):
    longest = "a" * (63 - len(fixed))
    check(job(), site(kind=kind), longest)
    (line,) = said(job(), site(kind=kind), run=f"{longest}a")
    assert "64 characters" in line
    assert "take 1 off" in line


def test_more_pods_need_a_shorter_name():
    name = "a" * 48
    check(job(nodes=10), site(), name)
    assert "take 1 off" in said(job(nodes=11), site(), run=name)[0]


def test_a_job_of_forty_letters_fits_with_a_thousand_pods():
    check(job(nodes=1000), site(), "a" * 40)


JOBS = {
    "image": (job(image="a b"), "image 'a b'"),
    "no image": (job(image=""), "image ''"),
    "digest": (job(image="a@sha256:12"), "image 'a@sha256:12'"),
    "nodes": (job(nodes=0), "both must be at least 1"),
    "ranks": (job(per_node=0), "both must be at least 1"),
    "device": (job(device="tpu"), "device 'tpu'"),
    "program": (job(program=()), "program: empty"),
    "launcher": (job(launcher="mpirun"), "launcher 'mpirun': one of"),
    "alone": (job(launcher="alone"), "starts one process, not 16"),
    "options": (job(launcher="accelerate"), "launcher accelerate needs zero_stage"),
    "variable": (job(env={"A-B": "1"}), "env 'A-B'"),
    "own variable": (job(env={"STACKYARD_NODE_INDEX": "1"}), "env 'STACKYARD_NODE_INDEX'"),
    "line break": (over_ssh(env={"A": "1\n2"}), "env A: its value does not reach other nodes"),
    "folder": (job(folder="work"), "folder 'work'"),
    "place": (job(binds={"data": "/data"}), "bind 'data'"),
    "place up": (job(binds={"/a/../b": "/data"}), "bind '/a/../b'"),
    "place with colon": (job(binds={"/a:b": "/data"}), "bind '/a:b'"),
    "root": (job(binds={"/": "/data"}), "bind '/'"),
    "source": (job(binds={"/data": "data"}), "is neither an absolute path"),
    "source up": (job(binds={"/data": "/a/../etc"}), "is neither an absolute path"),
    "claim": (job(binds={"/data": "pvc:Work"}), "is not pvc:CLAIM"),
    "claim up": (job(binds={"/data": "pvc:work/../x"}), "is not pvc:CLAIM"),
    "no claim": (job(binds={"/data": "pvc:"}), "is not pvc:CLAIM"),
    "file": (job(files={"train.py": b""}), "file 'train.py'"),
    "file in a bind": (job(binds={"/d": "/d"}, files={"/d/a": b""}), "lies in a bind"),
}


@pytest.mark.parametrize(("wanted", "part"), JOBS.values(), ids=JOBS)
def test_a_job_that_does_not_fit_is_refused(wanted, part):
    (line,) = said(wanted)
    assert part in line


@pytest.mark.parametrize("folder", OWN_FOLDERS)
def test_nothing_hides_what_is_the_pods_own(folder):
    assert said(job(binds={folder: "/data"})) and said(job(files={f"{folder}/a": b""}))
    check(job(files={f"{folder}-not": b""}), site(), "toy")


SITES = {
    "kind": (site(kind="pod"), "kind 'pod': one of jobset, job"),
    "namespace": (site(namespace="A"), "namespace 'A'"),
    "long namespace": (site(namespace="a" * 64), "at most 63"),
    "interface": (site(interface="a b"), "interface 'a b'"),
    "cpu": (site(cpu="many"), "cpu 'many': a quantity"),
    "memory": (site(memory="8GB"), "memory '8GB'"),
    "shm": (site(shm="-1"), "shm '-1'"),
    "resource": (site(resources={"a/b": ""}), "resources.a/b ''"),
    "resource name": (site(resources={"a b": "1"}), "'a b': not a name"),
    "label": (site(labels={"a": "b c"}), "label a: 'b c'"),
    "long label": (site(labels={"a": "b" * 64}), "label a"),
    "selector": (site(node_selector={"/": "a"}), "'/': not a name"),
    "secret": (site(pull_secrets=("A",)), "'A': not a name that a Secret"),
    "restarts": (site(kind="job", restarts=1), "only a JobSet starts"),
    "negative": (site(keep_seconds=-1), "none may be negative"),
    "no time": (site(deadline_seconds=0), "lets nothing happen"),
    "no patience": (site(wait_seconds=0), "lets nothing happen"),
}


@pytest.mark.parametrize(("where", "part"), SITES.values(), ids=SITES)
def test_a_cluster_that_cannot_be_is_refused(where, part):
    (line,) = said(job(), where)
    assert part in line


def test_all_reasons_come_at_once_and_say_what_to_do():
    with pytest.raises(UsageError) as caught:
        check(job(image="", nodes=0, device="tpu"), site(), "toy")
    assert "toy cannot run on Kubernetes: 3 problems" in str(caught.value)
    assert "To go on: change the job" in str(caught.value)


def test_control_characters_of_bad_input_do_not_reach_the_terminal():
    with pytest.raises(UsageError) as caught:
        check(job(image="\x1b[2J", env={"\x1b": ""}, binds={"/\x1b": "\x1b"}), site(), "\x1b")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("launcher", "nodes", "mesh"),
    [("torchrun", 2, False), ("deepspeed", 2, True), ("accelerate", 2, True),
     ("deepspeed", 1, False), ("alone", 1, False)],
)  # fmt: skip
def test_ssh_is_for_launchers_that_start_other_nodes(launcher, nodes, mesh):
    assert needs_mesh(job(launcher=launcher, nodes=nodes)) is mesh


def test_addresses_are_in_the_order_of_indexes():
    assert addresses(job(nodes=3), "a", "job") == ("a-0.a", "a-1.a", "a-2.a")
