"""Render the pod of a run: one container, its mounts and its privileges.

Owns the pod template, which is the same for JobSet and Job. It must not decide how many pods there
are, how they find each other or how they end: `kubernetes` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stackyard.launch.job import Job
from stackyard.mesh.node import CAPABILITIES
from stackyard.schedulers.kubernetes_site import INDEX, KubernetesSite, needs_mesh
from stackyard.schedulers.kubernetes_start import OWN_KEYS, SCRIPT, SHARED_KEYS, SOURCE

CONTAINER = "train"
RUN_LABEL = "stackyard.run"
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_READABLE, _PRIVATE = 0o555, 0o400


def files_name(run: str) -> str:
    """Return the name of a run's ConfigMap."""
    return f"{run}-files"


def keys_name(run: str) -> str:
    """Return the name of a run's Secret."""
    return f"{run}-keys"


def labels(job: Job, run: str) -> dict[str, str]:
    """Return the labels that select all objects of a run."""
    own = {"app.kubernetes.io/managed-by": "stackyard", RUN_LABEL: run}
    return {**own, "stackyard.stack": job.stack, "stackyard.base": job.base}


def pod_template(
    job: Job,
    site: KubernetesSite,
    run: str,
    *,
    env: Mapping[str, str],
    files: Mapping[str, str],
    keys: Mapping[str, str],
) -> dict[str, Any]:
    """Return the template of a run's pods.

    Args:
        files: entries of the ConfigMap that are mounted as single files, by path in the container.
        keys: entries of the Secret by path below the pod's folders: `INDEX/NAME` for what one pod
            may see, `NAME` for what all pods see; empty for a run without ssh.
    """
    mounted = [*_always(job, site, run), *_binds(job), *_keys(run, keys)]
    single = [
        {"name": "run", "mountPath": path, "subPath": entry, "readOnly": True}
        for path, entry in sorted(files.items())
    ]
    volumes = {volume["name"]: volume for volume, _ in mounted}
    mounts = [{"name": volume["name"], **mount} for volume, mount in mounted]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": site.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **_placing(job, site, run),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": CONTAINER,
                "image": job.image,
                "imagePullPolicy": "IfNotPresent",
                # No `command`: the image's entrypoint is an init that ends leftover processes.
                "args": ["bash", f"{SOURCE}/{SCRIPT}"],
                "env": _environment(env),
                **_secret_environment(site),
                "resources": _resources(job, site),
                "securityContext": _security(job),
                "volumeMounts": [*mounts, *single],
            }
        ],
        "volumes": list(volumes.values()),
    }
    return {"metadata": {"labels": labels(job, run)}, "spec": spec}


def _environment(env: Mapping[str, str]) -> list[dict[str, Any]]:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX_ANNOTATION}']"}}
    # Kubernetes expands $(NAME) in values, and $$ stands for $.
    own = [{"name": n, "value": v.replace("$", "$$")} for n, v in sorted(env.items())]
    return [{"name": INDEX, "valueFrom": index}, *own]


def _secret_environment(site: KubernetesSite) -> dict[str, Any]:
    named = [{"secretRef": {"name": name}} for name in site.env_secrets]
    return {"envFrom": named} if named else {}


def _resources(job: Job, site: KubernetesSite) -> dict[str, Any]:
    limits = dict(site.resources)
    if job.device == "cuda":
        limits[site.gpu] = str(job.per_node)
    memory = {"memory": site.memory} if site.memory else {}
    wanted = {"cpu": site.cpu, **memory} if site.cpu else memory
    found = {"limits": {**limits, **memory}, "requests": wanted}
    return {name: values for name, values in found.items() if values}


def _security(job: Job) -> dict[str, Any]:
    added = {"add": list(CAPABILITIES)} if needs_mesh(job) else {}
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
    }


def _placing(job: Job, site: KubernetesSite, run: str) -> dict[str, Any]:
    keys = [*([site.gpu] if job.device == "cuda" else []), *site.tolerations]
    found: dict[str, Any] = {
        "tolerations": [{"key": key, "operator": "Exists"} for key in keys],
        "nodeSelector": dict(site.node_selector),
        "priorityClassName": site.priority,
        "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
    }
    if site.apart and job.nodes > 1:
        term = {
            "labelSelector": {"matchLabels": {RUN_LABEL: run}},
            "topologyKey": "kubernetes.io/hostname",
        }
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        found["affinity"] = {"podAntiAffinity": rule}
    return {name: value for name, value in found.items() if value}


_Mounted = tuple[dict[str, Any], dict[str, Any]]


def _always(job: Job, site: KubernetesSite, run: str) -> list[_Mounted]:
    shm = site.shm or ("8Gi" if job.device == "cuda" else "1Gi")
    memory = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}}
    files = {"name": files_name(run), "defaultMode": _READABLE}
    return [
        (memory, {"mountPath": "/dev/shm"}),
        ({"name": "run", "configMap": files}, {"mountPath": SOURCE, "readOnly": True}),
    ]


def _binds(job: Job) -> list[_Mounted]:
    found: list[_Mounted] = []
    claims: dict[str, str] = {}
    for number, (place, source) in enumerate(sorted(job.binds.items())):
        mount: dict[str, Any] = {"mountPath": place}
        if source.startswith("pvc:"):
            claim, _, inner = source.removeprefix("pvc:").partition("/")
            # One volume for each claim, however many of its folders are mounted.
            name = claims.setdefault(claim, f"bind-{number}")
            volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": claim}}
            mount |= {"subPath": inner} if inner else {}
        else:
            name, volume = f"bind-{number}", {"hostPath": {"path": source, "type": "Directory"}}
        found.append(({"name": name, **volume}, mount))
    return found


def _keys(run: str, keys: Mapping[str, str]) -> list[_Mounted]:
    """Return a node's ssh mounts: a tmpfs for its files, the shared keys, and its own keys.

    One Secret holds all keys, and the kubelet projects it for every pod; the container mounts the
    folder of its own index only, and sees no other. One Secret for each pod would need a pod
    template for each pod, which neither an Indexed Job nor a ReplicatedJob has.
    """
    if not keys:
        return []
    shared = {place: entry for place, entry in keys.items() if "/" not in place}
    own = {place: entry for place, entry in keys.items() if "/" in place}
    memory = {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    return [
        (memory, {"mountPath": "/run"}),
        (_secret("mesh", run, shared), {"mountPath": SHARED_KEYS, "readOnly": True}),
        (
            _secret("node", run, own),
            {"mountPath": OWN_KEYS, "subPathExpr": f"$({INDEX})", "readOnly": True},
        ),
    ]


def _secret(name: str, run: str, places: Mapping[str, str]) -> dict[str, Any]:
    items = [{"key": entry, "path": place} for place, entry in places.items()]
    secret = {"secretName": keys_name(run), "defaultMode": _PRIVATE, "items": items}
    return {"name": name, "secret": secret}
