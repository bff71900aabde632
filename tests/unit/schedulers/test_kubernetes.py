"""A job as Kubernetes objects: pods, files, keys, and what becomes of a run that fails."""

import base64
import dataclasses

import pytest

from stackyard.mesh.node import CAPABILITIES
from stackyard.schedulers import kubernetes
from stackyard.schedulers.kubernetes import make_keys, render
from stackyard.schedulers.kubernetes_site import STARTING
from stackyard.system.errors import UsageError
from tests.unit.kubernetes_jobs import (
    IMAGE,
    container,
    job,
    job_spec,
    keys,
    over_ssh,
    pod,
    rendered,
    site,
)


def mounts(documents):
    return {mount["mountPath"]: mount for mount in container(documents)["volumeMounts"]}


def volume(documents, name):
    (found,) = [v for v in pod(documents)["volumes"] if v["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


def environment(documents):
    return {v["name"]: v.get("value") for v in container(documents)["env"]}


# What is made


def test_files_come_in_the_order_in_which_they_are_to_be_created():
    assert list(rendered(job())) == ["files.yaml", "jobset.yaml"]
    assert list(rendered(over_ssh())) == ["secret.yaml", "files.yaml", "jobset.yaml"]
    assert list(rendered(over_ssh(), site(kind="job"))) == [
        "secret.yaml",
        "files.yaml",
        "service.yaml",
        "job.yaml",
    ]


def test_the_same_job_gives_the_same_text():
    assert render(job(), site()) == render(job(), site())
    assert render(over_ssh(), site(), keys=keys()) == render(over_ssh(), site(), keys=keys())


def test_everything_of_a_run_has_its_label_and_namespace():
    documents = rendered(over_ssh(), site(kind="job", namespace="team"))
    for document in [*documents.values(), job_spec(documents)["template"]]:
        assert document["metadata"]["labels"]["stackyard.run"] == "toy"
    assert {d["metadata"]["namespace"] for d in documents.values()} == {"team"}


def test_a_run_may_have_a_name_of_its_own():
    texts = render(job(), site(), run="toy-2")
    assert all("toy-2" in text for text in texts.values())


def test_labels_of_the_cluster_are_the_runs_and_do_not_hide_its_own():
    documents = rendered(job(), site(labels={"queue": "q", "stackyard.run": "x"}))
    labels = documents["jobset.yaml"]["metadata"]["labels"]
    assert (labels["queue"], labels["stackyard.run"]) == ("q", "toy")


# One pod for each node, one rank for each GPU


def test_there_is_one_pod_for_each_node():
    spec = job_spec(rendered(job(nodes=3)))
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)


def test_gpus_are_limits():
    limits = container(rendered(job(per_node=4)))["resources"]
    assert limits == {"limits": {"nvidia.com/gpu": "4"}}
    assert "resources" in container(rendered(job(device="cpu")))
    assert container(rendered(job(device="cpu")))["resources"] == {}


def test_what_a_pod_takes_beside_is_the_clusters_setting():
    where = site(cpu="8", memory="64Gi", resources={"rdma/hca": "1"})
    assert container(rendered(job(per_node=1), where))["resources"] == {
        "limits": {"rdma/hca": "1", "nvidia.com/gpu": "1", "memory": "64Gi"},
        "requests": {"cpu": "8", "memory": "64Gi"},
    }


def test_the_taint_of_machines_with_gpus_does_not_matter_to_jobs_on_gpus():
    assert pod(rendered(job()))["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert "tolerations" not in pod(rendered(job(device="cpu")))


def test_pods_lie_on_different_machines_unless_the_cluster_says_otherwise():
    (rule,) = pod(rendered(job()))["affinity"]["podAntiAffinity"].values()
    assert rule[0]["labelSelector"]["matchLabels"] == {"stackyard.run": "toy"}
    assert "affinity" not in pod(rendered(job(), site(apart=False)))
    assert "affinity" not in pod(rendered(job(nodes=1)))


@pytest.mark.parametrize(("device", "size"), [("cuda", "8Gi"), ("cpu", "1Gi")])
def test_shared_memory_is_memory_of_a_size(device, size):
    documents = rendered(job(device=device))
    assert mounts(documents)["/dev/shm"]["name"] == "shm"
    assert volume(documents, "shm") == {"emptyDir": {"medium": "Memory", "sizeLimit": size}}
    asked = rendered(job(device=device), site(shm="2Gi"))
    assert volume(asked, "shm")["emptyDir"]["sizeLimit"] == "2Gi"


def test_the_image_is_taken_by_its_digest():
    assert container(rendered(job()))["image"] == IMAGE


# A run ends as a whole


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_one_pod_that_fails_fails_the_run(kind):
    documents = rendered(over_ssh(), site(kind=kind))
    assert job_spec(documents)["backoffLimit"] == 0
    assert pod(documents)["restartPolicy"] == "Never"
    assert pod(documents)["terminationGracePeriodSeconds"] == 10


def test_a_set_starts_again_as_a_whole_or_not_at_all():
    spec = rendered(job())["jobset.yaml"]["spec"]
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert spec["successPolicy"] == {"operator": "All"}
    again = rendered(job(), site(restarts=2))["jobset.yaml"]["spec"]
    assert again["failurePolicy"] == {"maxRestarts": 2}


@pytest.mark.parametrize(("kind", "file"), [("jobset", "jobset.yaml"), ("job", "job.yaml")])
def test_a_finished_run_is_removed_after_its_time(kind, file):
    documents = rendered(job(), site(kind=kind, keep_seconds=60))
    assert documents[file]["spec"]["ttlSecondsAfterFinished"] == 60


def test_a_run_has_a_limit_only_when_it_is_given_one():
    assert "activeDeadlineSeconds" not in job_spec(rendered(job()))
    assert job_spec(rendered(job(), site(deadline_seconds=60)))["activeDeadlineSeconds"] == 60


# What a pod may do


def test_a_pod_may_nothing_more_than_any_program():
    documents = rendered(job())
    assert container(documents)["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(documents)["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod(documents)["automountServiceAccountToken"] is False
    assert pod(documents)["enableServiceLinks"] is False


def test_a_pod_with_sshd_has_what_sshd_needs_and_no_more():
    capabilities = container(rendered(over_ssh()))["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": list(CAPABILITIES)}


# Environment, files, binds


def test_values_reach_the_program_as_they_are():
    # Kubernetes replaces $(NAME), and makes one $ of two.
    found = environment(rendered(job(env={"A": "$(PATH) $$ $x", "B": "1e3"})))
    assert (found["A"], found["B"]) == ("$$(PATH) $$$$ $$x", "1e3")


def test_sockets_use_the_interface_of_pods_unless_the_job_says_otherwise():
    found = environment(rendered(job()))
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    other = environment(rendered(job(env={"NCCL_SOCKET_IFNAME": "net1"}), site(interface="net2")))
    assert (other["NCCL_SOCKET_IFNAME"], other["GLOO_SOCKET_IFNAME"]) == ("net1", "net2")
    assert "NCCL_SOCKET_IFNAME" not in environment(rendered(job(device="cpu")))


def test_tokens_come_from_secrets_that_are_there():
    found = container(rendered(job(), site(env_secrets=("tokens",))))
    assert found["envFrom"] == [{"secretRef": {"name": "tokens"}}]


def test_files_are_mounted_by_themselves_and_keep_every_byte():
    files = {"/srv/b.py": b"print('\xc3\xa9')\n", "/srv/a.bin": b"\x00\xff", "/srv/c": b"a\r\n"}
    documents = rendered(job(files=files))
    found = documents["files.yaml"]
    for path, data in files.items():
        mount = mounts(documents)[path]
        assert (mount["name"], mount["readOnly"]) == ("run", True)
        entry = mount["subPath"]
        text = found["data"].get(entry)
        held = text.encode() if text else base64.b64decode(found["binaryData"][entry])
        assert held == data


def test_binds_are_folders_of_the_machines_or_claims():
    binds = {"/data": "/mnt/data", "/a": "pvc:work/one/two", "/b": "pvc:work", "/c": "pvc:other"}
    documents = rendered(job(binds=binds))
    found = mounts(documents)
    host = volume(documents, found["/data"]["name"])
    assert host == {"hostPath": {"path": "/mnt/data", "type": "Directory"}}
    assert found["/a"]["name"] == found["/b"]["name"] != found["/c"]["name"]
    claim = volume(documents, found["/a"]["name"])
    assert claim == {"persistentVolumeClaim": {"claimName": "work"}}
    assert (found["/a"]["subPath"], "subPath" in found["/b"]) == ("one/two", False)


def test_files_of_exactly_a_mebibyte_fit_and_one_byte_more_does_not():
    script = len(rendered(job(files={"/a": b""}))["files.yaml"]["data"]["start.sh"].encode())
    room = 2**20 - script
    rendered(job(files={"/a": b"x" * room}))
    with pytest.raises(UsageError) as caught:
        rendered(job(files={"/a/large": b"x" * room, "/a/small": b"y"}))
    assert "1,048,577 bytes of files are too many" in str(caught.value)
    assert "/a/large" in str(caught.value)
    assert "pvc:CLAIM/FOLDER" in str(caught.value)


# Keys


def test_every_pod_sees_its_own_keys_only():
    documents = rendered(over_ssh())
    own = mounts(documents)["/etc/stackyard/node"]
    assert own["subPathExpr"] == "$(STACKYARD_NODE_INDEX)"
    items = volume(documents, own["name"])["secret"]["items"]
    assert {item["path"] for item in items} == {
        "0/host_key", "0/user_key", "1/host_key", "1/user_key"
    }  # fmt: skip
    shared = volume(documents, mounts(documents)["/etc/stackyard/mesh"]["name"])["secret"]
    assert {item["path"] for item in shared["items"]} == {"known_hosts", "port"}
    data = documents["secret.yaml"]["data"]
    for item in [*items, *shared["items"]]:
        index, _, name = item["path"].rpartition("/")
        assert base64.b64decode(data[item["key"]]) == keys()[f"node{index or 0}"][name]
    assert len(data) == len(items) + len(shared["items"])


def test_keys_are_files_that_only_root_reads_and_stay_in_memory():
    documents = rendered(over_ssh())
    for place in ("/etc/stackyard/node", "/etc/stackyard/mesh"):
        secret = volume(documents, mounts(documents)[place]["name"])["secret"]
        assert secret["defaultMode"] == 0o400
        assert mounts(documents)[place]["readOnly"] is True
    memory = volume(documents, mounts(documents)["/run"]["name"])
    assert memory["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_keys_are_in_the_secret_and_nowhere_else(kind):
    wanted, where = over_ssh(), site(kind=kind)
    made = make_keys(wanted, where, now=1_800_000_000)
    texts = render(wanted, where, keys=made)
    private = [data for files in made.values() for n, data in files.items() if n.endswith("_key")]
    assert len(private) == 4
    for data in private:
        held = base64.b64encode(data).decode()
        line = data.decode().splitlines()[1]
        assert [name for name, text in texts.items() if held in text] == ["secret.yaml"]
        assert [name for name, text in texts.items() if line in text] == []


@pytest.mark.parametrize(("kind", "first"), [("jobset", "toy-node-0-0.toy"), ("job", "toy-0.toy")])
def test_keys_name_pods_as_dns_does(kind, first):
    wanted = over_ssh(nodes=3)
    made = make_keys(wanted, site(kind=kind), now=1_800_000_000)
    assert next(iter(made)) == first
    assert len(made) == 3
    assert f"Host {' '.join(made)}\n" in made[first]["ssh_config"].decode()


def test_a_run_without_ssh_has_no_keys():
    assert make_keys(job(), site(), now=0) == {}
    assert make_keys(over_ssh(nodes=1), site(), now=0) == {}
    assert "/run" not in mounts(rendered(job()))


def test_keys_that_do_not_fit_the_job_are_refused():
    with pytest.raises(UsageError, match="needs the keys of a mesh"):
        render(over_ssh(), site())
    with pytest.raises(UsageError, match="takes no keys"):
        render(job(), site(), keys=keys())


def test_a_mesh_that_no_secret_holds_is_refused():
    large = {f"node{n}": {"host_key": bytes(2000) + b"%d" % n} for n in range(600)}
    with pytest.raises(UsageError, match="fewer nodes"):
        render(over_ssh(nodes=600), site(), keys=large)


def test_the_secret_says_how_it_must_not_be_created():
    text = render(over_ssh(), site(), keys=keys())["secret.yaml"]
    assert "never with `kubectl apply`" in text.partition("apiVersion")[0]


# How pods find each other


def test_the_controller_of_a_set_makes_its_service():
    spec = rendered(job())["jobset.yaml"]["spec"]
    assert spec["network"] == {"enableDNSHostnames": True, "subdomain": "toy"}


def test_a_job_has_a_service_of_its_own_that_names_pods_before_they_are_ready():
    documents = rendered(job(), site(kind="job"))
    assert documents["service.yaml"]["metadata"]["name"] == "toy" == pod(documents)["subdomain"]
    assert documents["service.yaml"]["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"stackyard.run": "toy"},
    }


@pytest.mark.parametrize("launcher", STARTING)
def test_every_launcher_is_rendered(launcher):
    one = launcher == "alone"
    wanted = job(launcher=launcher, nodes=1 if one else 2, per_node=1, options={"zero_stage": "2"})
    assert container(rendered(wanted))["args"] == ["bash", "/etc/stackyard/run/start.sh"]


def test_nothing_in_a_job_is_changed():
    wanted = job(files={"/a": b"a"}, env={"A": "a"})
    before = dataclasses.asdict(wanted)
    kubernetes.render(wanted, site())
    assert dataclasses.asdict(wanted) == before
