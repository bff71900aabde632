"""Render one job as Kubernetes objects: a JobSet or an Indexed Job, its files and its keys.

Owns the objects around the pods and the text of each file. Pure: keys are arguments, and
`kubernetes_client` sends the objects. docs/howto/kubernetes.md explains how pods get their index,
and why a run ends as a whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from stackyard.launch.job import Job
from stackyard.mesh import certificates
from stackyard.mesh.node import SSH_PORT
from stackyard.schedulers.kubernetes_pod import (
    RUN_LABEL,
    files_name,
    keys_name,
    labels,
    pod_template,
)
from stackyard.schedulers.kubernetes_site import KubernetesSite, addresses, check, needs_mesh
from stackyard.schedulers.kubernetes_start import PodScript, start
from stackyard.schedulers.kubernetes_yaml import dump
from stackyard.system.errors import UsageError

# Names of the files that `render` returns, in the order in which they are created.
SECRET_FILE, FILES_FILE, SERVICE_FILE = "secret.yaml", "files.yaml", "service.yaml"
RUN_FILES = {"jobset": "jobset.yaml", "job": "job.yaml"}
# The API server's limit for the data of one ConfigMap or Secret, in bytes.
DATA_LIMIT = 2**20
Keys = Mapping[str, Mapping[str, bytes]]

_CREATE = "Create it with `kubectl create -f`."
_NEVER_APPLY = (
    "Private keys of one run. Create it with `kubectl create -f`, never with `kubectl apply`,\n"
    "which would copy the keys into an annotation."
)

__all__ = ["KubernetesSite", "make_keys", "needs_mesh", "render"]


def make_keys(job: Job, site: KubernetesSite, *, run: str = "", now: int) -> Keys:
    """Make new keys and certificates for a run, by node; none for a run that needs no ssh.

    Args:
        now: seconds since the epoch.
    """
    run = run or job.name
    check(job, site, run)
    if not needs_mesh(job):
        return {}
    plan = certificates.MeshPlan(
        run=run,
        nodes=addresses(job, run, site.kind),
        port=SSH_PORT,
        seconds=site.key_seconds,
    )
    return certificates.node_material(plan, certificates.Authority(), now=now)


def render(
    job: Job, site: KubernetesSite, *, run: str = "", keys: Keys | None = None
) -> dict[str, str]:
    """Render the files of a run, in the order in which they must be created.

    Args:
        run: name of the run and of its objects; the job's own when empty.
        keys: from `make_keys`; a run that needs no ssh takes none.

    Raises:
        UsageError: the job does not fit a cluster; names every reason.
    """
    run = run or job.name
    check(job, site, run)
    if needs_mesh(job) != bool(keys):
        needs = "needs the keys of a mesh" if needs_mesh(job) else "takes no keys: it uses no ssh"
        raise UsageError(f"{run} {needs}", hint="hand over what make_keys gives for the same job")
    begin = start(job, site, run)
    places = _placed(keys or {})
    pods = pod_template(
        job,
        site,
        run,
        env=begin.env,
        files={path: _entry(number) for number, path in enumerate(sorted(job.files))},
        keys={place: _secret_entry(place) for place in places},
    )
    common = _metadata(job, site, run)
    found = {}
    if keys:
        found[SECRET_FILE] = dump(_secret(common, run, places), comment=_NEVER_APPLY)
    found[FILES_FILE] = dump(_files(common, run, job, begin), comment=_CREATE)
    if site.kind == "job":
        found[SERVICE_FILE] = dump(_service(common, run), comment=_CREATE)
        found[RUN_FILES["job"]] = dump(_job(common, run, job, site, pods), comment=_CREATE)
    else:
        found[RUN_FILES["jobset"]] = dump(_jobset(common, run, job, site, pods), comment=_CREATE)
    return found


def _metadata(job: Job, site: KubernetesSite, run: str) -> dict[str, Any]:
    return {"namespace": site.namespace, "labels": labels(job, run)}


def _run_metadata(common: dict[str, Any], run: str, site: KubernetesSite) -> dict[str, Any]:
    return {"name": run, **common, "labels": {**site.labels, **common["labels"]}}


def _jobset(
    common: dict[str, Any], run: str, job: Job, site: KubernetesSite, pods: dict[str, Any]
) -> dict[str, Any]:
    template = {"metadata": {"labels": common["labels"]}, "spec": _job_spec(job, site, pods)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _run_metadata(common, run, site),
        "spec": {
            # JobSet's controller makes a headless Service of this name.
            "network": {"enableDNSHostnames": True, "subdomain": run},
            "failurePolicy": {"maxRestarts": site.restarts},
            "successPolicy": {"operator": "All"},
            "ttlSecondsAfterFinished": site.keep_seconds,
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": template}],
        },
    }


def _job(
    common: dict[str, Any], run: str, job: Job, site: KubernetesSite, pods: dict[str, Any]
) -> dict[str, Any]:
    # Pods have DNS names only with a subdomain; JobSet sets it by itself.
    named = {**pods, "spec": {"subdomain": run, **pods["spec"]}}
    spec = {"ttlSecondsAfterFinished": site.keep_seconds, **_job_spec(job, site, named)}
    metadata = _run_metadata(common, run, site)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _job_spec(job: Job, site: KubernetesSite, pods: dict[str, Any]) -> dict[str, Any]:
    # No pod is replaced, since a running process group cannot take in a new rank: the first pod
    # that fails makes the Job fail, and the other pods are removed.
    deadline = site.deadline_seconds
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": deadline} if deadline is not None else {}),
        "template": pods,
    }


def _service(common: dict[str, Any], run: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": run, **common},
        "spec": {
            "clusterIP": "None",
            # Pods resolve each other's names before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: run},
        },
    }


def _files(common: dict[str, Any], run: str, job: Job, begin: PodScript) -> dict[str, Any]:
    paths = {_entry(number): path for number, path in enumerate(sorted(job.files))}
    contents = {name: job.files[path] for name, path in paths.items()}
    own = {name: text.encode() for name, text in begin.files.items()}
    _fits(
        {**own, **contents},
        {**{name: name for name in own}, **paths},
        "put them on a volume and bind it (pvc:CLAIM/FOLDER), or into the image",
    )
    text = dict(begin.files) | {n: d.decode() for n, d in contents.items() if _is_text(d)}
    other = {n: base64.b64encode(d).decode() for n, d in contents.items() if not _is_text(d)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": files_name(run), **common},
        "immutable": True,
        "data": text,
        **({"binaryData": other} if other else {}),
    }


def _secret(common: dict[str, Any], run: str, places: Mapping[str, bytes]) -> dict[str, Any]:
    entries = {_secret_entry(place): data for place, data in places.items()}
    _fits(entries, {}, "take fewer nodes with more processes each")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": keys_name(run), **common},
        "immutable": True,
        "type": "Opaque",
        "data": {name: base64.b64encode(data).decode() for name, data in entries.items()},
    }


def _placed(keys: Keys) -> dict[str, bytes]:
    """Return every key file once: shared ones by name, the rest as `INDEX/NAME`."""
    materials = list(keys.values())
    shared = {
        name: data
        for name, data in (materials[0].items() if materials else ())
        if all(material.get(name) == data for material in materials)
    }
    own = {
        f"{index}/{name}": data
        for index, material in enumerate(materials)
        for name, data in material.items()
        if name not in shared
    }
    return {**shared, **own}


def _secret_entry(place: str) -> str:
    return place.replace("/", ".")


def _entry(number: int) -> str:
    return f"file.{number}"


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\t" for character in text)


def _fits(entries: Mapping[str, bytes], paths: Mapping[str, str], hint: str) -> None:
    total = sum(map(len, entries.values()))
    if total <= DATA_LIMIT:
        return
    largest = sorted(entries, key=lambda name: len(entries[name]), reverse=True)[:3]
    named = ", ".join(f"{paths.get(name, name)} ({len(entries[name]):,} bytes)" for name in largest)
    raise UsageError(
        f"{total:,} bytes of files are too many for one Kubernetes object, which holds"
        f" {DATA_LIMIT:,}",
        why=f"the largest: {named}",
        hint=hint,
    )
