"""Jobs and clusters that the tests of Kubernetes start from."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from stackyard.launch.job import Job
from stackyard.schedulers.kubernetes import render
from stackyard.schedulers.kubernetes_site import INDEX, KubernetesSite, needs_mesh

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


def mounted(documents: dict[str, dict[str, Any]], index: int) -> dict[str, bytes]:
    """The files that a kubelet mounts into the pod of this index, by their paths there."""
    volumes = {volume["name"]: volume for volume in pod(documents)["volumes"]}
    found = {}
    for mount in container(documents)["volumeMounts"]:
        there = _projected(documents, volumes[mount["name"]])
        part = mount.get("subPathExpr", "").replace(f"$({INDEX})", str(index))
        if "subPath" in mount:
            there = {"": there[mount["subPath"]]} if there else {}
        elif part:
            there = {f"/{p.removeprefix(f'{part}/')}": data for p, data in there.items()
                     if p.startswith(f"{part}/")}  # fmt: skip
        else:
            there = {f"/{path}": data for path, data in there.items()}
        found |= {f"{mount['mountPath']}{path}": data for path, data in there.items()}
    return found


def _projected(documents: dict[str, dict[str, Any]], volume: dict[str, Any]) -> dict[str, bytes]:
    """The files of a volume out of a ConfigMap or a Secret; none of any other."""
    if "configMap" in volume:
        source = documents["files.yaml"]
        assert volume["configMap"]["name"] == source["metadata"]["name"]
        text = {name: data.encode() for name, data in source["data"].items()}
        return text | _decoded(source.get("binaryData", {}))
    if "secret" in volume:
        source = documents["secret.yaml"]
        assert volume["secret"]["secretName"] == source["metadata"]["name"]
        data = _decoded(source["data"])
        return {item["path"]: data[item["key"]] for item in volume["secret"]["items"]}
    return {}


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in data.items()}


def environment(documents: dict[str, dict[str, Any]], index: int) -> dict[str, str]:
    """The environment that a kubelet gives the container of this index."""
    first, *others = container(documents)["env"]
    assert first["name"] == INDEX
    return {INDEX: str(index)} | {o["name"]: o["value"].replace("$$", "$") for o in others}
