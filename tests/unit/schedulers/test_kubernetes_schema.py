"""Every manifest fits its kind's published schema, and the schemas catch what does not."""

import copy

import pytest

from tests.schemas.kubernetes import problems
from tests.unit.kubernetes_jobs import job, over_ssh, pod, rendered, site

SITES = {
    "plain": {},
    "full": {
        "namespace": "team", "cpu": "16", "memory": "500Gi", "shm": "64Gi", "restarts": 0,
        "resources": {"rdma/hca": "8"}, "labels": {"kueue.x-k8s.io/queue-name": "research"},
        "node_selector": {"accelerator": "h200"}, "tolerations": ("spot",), "apart": False,
        "pull_secrets": ("registry",), "env_secrets": ("tokens",), "priority": "high",
        "deadline_seconds": 3600,
    },
}  # fmt: skip
JOBS = {
    "torchrun": job(),
    "ssh": over_ssh(),
    "cpu": job(device="cpu", per_node=1),
    "alone": job(nodes=1, per_node=1, launcher="alone"),
    "mounts": job(
        binds={"/data": "/mnt/data", "/shared": "pvc:work/sub", "/other": "pvc:work"},
        files={"/srv/a.py": b"print()\n", "/srv/b.bin": b"\x00\xff"},
        env={"A": "1e3"},
    ),
}
DOCUMENTS = [
    pytest.param(document, id=f"{name}-{kind}-{where}-{file}")
    for name, wanted in JOBS.items()
    for kind in ("jobset", "job")
    for where, values in SITES.items()
    for file, document in rendered(wanted, site(kind=kind, **values)).items()
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_manifest_fits_its_schema(document):
    assert problems(document) == []


def changed(file, change, **site_values):
    documents = copy.deepcopy(rendered(over_ssh(), site(**site_values)))
    change(documents)
    return problems(documents[file])


def spec(documents):
    return documents["jobset.yaml"]["spec"]


CHANGES = {
    "an unknown field of the set": (
        lambda d: spec(d).update(replicas=2), "'replicas' was unexpected"),
    "an unknown field of the network": (
        lambda d: spec(d)["network"].update(enableDNSHostname=True),
        "'enableDNSHostname' was unexpected"),
    "an unknown field of the job": (
        lambda d: spec(d)["replicatedJobs"][0]["template"]["spec"].update(backofLimit=0),
        "'backofLimit' was unexpected"),
    "an unknown field of the pod": (
        lambda d: pod(d).update(hostname_="a"), "'hostname_' was unexpected"),
    "an unknown field of the container": (
        lambda d: pod(d)["containers"][0].update(arg=[]), "'arg' was unexpected"),
    "a wrong type in the set": (
        lambda d: spec(d).update(ttlSecondsAfterFinished="1 day"), "'1 day' is not"),
    "a wrong type in the job": (
        lambda d: spec(d)["replicatedJobs"][0]["template"]["spec"].update(completions="2"),
        "'2' is not"),
    "a wrong type in an environment": (
        lambda d: pod(d)["containers"][0]["env"].append({"name": "A", "value": 1}), "1 is not"),
    "a policy that there is not": (
        lambda d: spec(d)["successPolicy"].update(operator="Most"), "'Most' is not one of"),
    "a missing template": (
        lambda d: spec(d)["replicatedJobs"][0].pop("template"),
        "'template' is a required property"),
    "a missing container": (
        lambda d: pod(d).pop("containers"), "'containers' is a required property"),
    "a missing kind": (lambda d: d["jobset.yaml"].pop("kind"), "'kind' is a required property"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_jobset_is_caught(change, said):
    assert any(said in problem for problem in changed("jobset.yaml", change))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("job.yaml", lambda d: d["job.yaml"]["spec"].update(nodes=2), "'nodes' was unexpected"),
        ("job.yaml", lambda d: d["job.yaml"]["spec"].update(parallelism="2"), "'2' is not"),
        ("job.yaml", lambda d: d["job.yaml"]["spec"].pop("template"), "'template' is a required"),
        ("service.yaml", lambda d: d["service.yaml"]["spec"].update(clusterIp="None"), "clusterIp"),
        ("files.yaml", lambda d: d["files.yaml"]["data"].update(a=1), "1 is not"),
        ("secret.yaml", lambda d: d["secret.yaml"].update(kind="Secrets"), "Couldn't find schema"),
    ],
)
def test_a_wrong_built_in_kind_is_caught(file, change, said):
    assert any(said in problem for problem in changed(file, change, kind="job"))
