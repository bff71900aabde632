"""Jobs and clusters that the tests of Kubernetes start from."""

from __future__ import annotations

from typing import Any

import yaml

from stackyard.clusters.kubernetes import render
from stackyard.clusters.kubernetes_site import KubernetesSite, needs_mesh
from stackyard.job import Job

IMAGE = f"registry.example/stackyard/toy@sha256:{'0' * 64}"
SHARED = {"known_hosts": b"all nodes", "port": b"2222\n"}


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "toy",
        "stack": "toy",
        "base": "cpu",
        "image": IMAGE,
        "nodes": 2,
        "per_node": 8,
        "device": "cuda",
        "program": ("train.py", "--data=/data"),
    }
    return Job(**{**values, **changes})


def over_ssh(**changes: Any) -> Job:
    return job(**{"launcher": "deepspeed", **changes})


def site(**changes: Any) -> KubernetesSite:
    return KubernetesSite(**changes)


def keys(nodes: int = 2) -> dict[str, dict[str, bytes]]:
    """Made-up material: what all nodes have, and what each alone has."""
    return {
        f"node{index}": {**SHARED, "host_key": f"host {index}".encode(), "user_key": b"u%d" % index}
        for index in range(nodes)
    }


def rendered(wanted: Job, where: KubernetesSite | None = None) -> dict[str, dict[str, Any]]:
    """The documents of a run, by file."""
    made = keys(wanted.nodes) if needs_mesh(wanted) else None
    texts = render(wanted, where or site(), keys=made)
    return {name: yaml.safe_load(text) for name, text in texts.items()}


def job_spec(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The Job's spec, whichever object makes it."""
    if "job.yaml" in documents:
        return documents["job.yaml"]["spec"]
    return documents["jobset.yaml"]["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return job_spec(documents)["template"]["spec"]


def container(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (only,) = pod(documents)["containers"]
    return only


def script(documents: dict[str, dict[str, Any]]) -> str:
    return documents["files.yaml"]["data"]["start.sh"]
