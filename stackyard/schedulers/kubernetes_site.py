"""Describe a Kubernetes cluster, and check that a job fits it.

Owns the cluster's settings, and every reason to refuse a job before it is rendered. It must not
render or talk to a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stackyard.launch.job import Job
from stackyard.schedulers.fitting import VARIABLE, is_absolute, refuse, shape
from stackyard.system.errors import shown

KINDS = ("jobset", "job")
# Launchers that start ranks here; those of `OVER_SSH` log in from the first pod to the others.
OVER_SSH = ("deepspeed", "accelerate")
STARTING = ("alone", "torchrun", *OVER_SSH)
# The limit for names of objects and hosts; Kubernetes adds `-` and five characters to a pod's name.
NAME_LIMIT = 63
POD_SUFFIX = 6
# Folders that the pod itself needs: nothing of a job may be mounted there or hide them.
OWN_FOLDERS = ("/etc/stackyard", "/run", "/dev", "/proc", "/sys", "/usr/local/lib/stackyard")
INDEX = "STACKYARD_NODE_INDEX"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DOTTED = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_KEY = re.compile(rf"({_DOTTED.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_INTERFACE = re.compile(r"[A-Za-z0-9._-]{1,15}")


@dataclass(frozen=True, kw_only=True)
class KubernetesSite:
    """Hold the settings of a cluster.

    Attributes:
        namespace: namespace of all objects of a run.
        context: context of the kubeconfig; empty for the current one.
        kind: `jobset`, or `job` (an Indexed Job and a Service) where JobSet is not installed.
        gpu: name of the resource that stands for one GPU.
        resources: further resources of each pod, such as `rdma/hca: "1"`.
        cpu: CPUs that each pod requests; empty for the cluster's default.
        memory: memory that each pod requests and may use, /dev/shm included; empty: no limit.
        shm: size of /dev/shm; empty for 8Gi with GPUs and 1Gi without.
        labels: further labels of the run, such as a queue's.
        node_selector: labels of the machines that may run pods.
        tolerations: keys of taints that pods tolerate.
        pull_secrets: Secrets with the registry's credentials.
        env_secrets: Secrets whose entries become environment variables: tokens belong there, not
            into a job's own `env`.
        priority: name of a PriorityClass.
        interface: network interface of a pod; container runtimes name it eth0.
        apart: run no two pods of a run on one machine.
        restarts: how often a failed run starts again as a whole (`jobset` only).
        deadline_seconds: time limit of a run; None for no limit.
        keep_seconds: time until a finished run is removed with all its objects.
        grace_seconds: time between SIGTERM and SIGKILL of a pod.
        wait_seconds: how long pods wait for each other; includes the time to pull images.
        key_seconds: lifetime of a mesh's certificates; ssh logins happen at a run's start.
    """

    namespace: str = "default"
    context: str = ""
    kind: str = "jobset"
    gpu: str = "nvidia.com/gpu"
    resources: Mapping[str, str] = field(default_factory=dict)
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    env_secrets: tuple[str, ...] = ()
    priority: str = ""
    interface: str = "eth0"
    apart: bool = True
    restarts: int = 0
    deadline_seconds: int | None = None
    keep_seconds: int = 86_400
    grace_seconds: int = 10
    wait_seconds: int = 900
    key_seconds: int = 7 * 86_400


def needs_mesh(job: Job) -> bool:
    """Say if the first pod starts the training on the others, over ssh."""
    return job.nodes > 1 and job.launcher in OVER_SSH


def host_stem(run: str, kind: str) -> str:
    """Return the start of pods' host names; `-` and the pod's index follow."""
    return f"{run}-node-0" if kind == "jobset" else run


def addresses(job: Job, run: str, kind: str) -> tuple[str, ...]:
    """Return the pods' DNS names, by index, as pods of the same namespace resolve them."""
    return tuple(f"{host_stem(run, kind)}-{index}.{run}" for index in range(job.nodes))


def check(job: Job, site: KubernetesSite, run: str) -> None:
    """Refuse a job that the cluster would refuse or run differently from what is meant.

    Raises:
        UsageError: with every problem found.
    """
    found = [*_site(site), *_names(job, site, run), *_shape(job, site), *_mounts(job)]
    refuse(run, "Kubernetes", found)


def _names(job: Job, site: KubernetesSite, run: str) -> Iterator[str]:
    if not _LABEL.fullmatch(run) or not run[0].isalpha():
        yield (
            f"name {shown(run)!r}: a Service gets this name, so it must be lower-case"
            " letters, digits and `-`, begin with a letter and end with a letter or digit"
        )
    longest = len(f"{host_stem(run, site.kind)}-{job.nodes - 1}") + POD_SUFFIX
    if longest > NAME_LIMIT:
        yield (
            f"name {shown(run)!r}: pods would have names of {longest} characters, and Kubernetes"
            f" allows {NAME_LIMIT}: take {longest - NAME_LIMIT} off"
        )
    if not _IMAGE.fullmatch(job.image):
        yield f"image {shown(job.image)!r}: type a reference such as registry.example/name:tag"
    for name, value in job.env.items():
        if not VARIABLE.fullmatch(name) or name == INDEX:
            yield f"env {shown(name)!r}: not a name that a variable may have here"
        elif "\0" in value or (needs_mesh(job) and "\n" in value):
            yield f"env {name}: its value does not reach other nodes: it has a line break or NUL"


def _shape(job: Job, site: KubernetesSite) -> Iterator[str]:
    yield from shape(job, STARTING)
    if not job.program:
        yield "program: empty; name a Python file or a console script"
    if site.restarts and site.kind == "job":
        yield "restarts: only a JobSet starts a run again as a whole; set kind to jobset"


def _site(site: KubernetesSite) -> Iterator[str]:
    if site.kind not in KINDS:
        yield f"kind {shown(site.kind)!r}: one of {', '.join(KINDS)}"
    if not _LABEL.fullmatch(site.namespace) or len(site.namespace) > NAME_LIMIT:
        yield f"namespace {shown(site.namespace)!r}: lower-case letters, digits and `-`, at most 63"
    if not _INTERFACE.fullmatch(site.interface):
        yield f"interface {shown(site.interface)!r}: a name such as eth0"
    quantities = {"cpu": site.cpu, "memory": site.memory, "shm": site.shm}
    quantities |= {f"resources.{name}": value for name, value in site.resources.items()}
    for name, value in quantities.items():
        if not _QUANTITY.fullmatch(value) and (value or "." in name):
            yield f"{shown(name)} {shown(value)!r}: a quantity such as 8, 500m or 16Gi"
    for name in (site.gpu, *site.resources, *site.tolerations, *site.labels, *site.node_selector):
        if not _KEY.fullmatch(name):
            yield f"{shown(name)!r}: not a name that a resource, taint or label may have"
    for name, value in {**site.labels, **site.node_selector}.items():
        if not _VALUE.fullmatch(value):
            yield f"label {shown(name)}: {shown(value)!r}: up to 63 of letters, digits and -_."
    for name in (*site.pull_secrets, *site.env_secrets, *filter(None, [site.priority])):
        if not _DOTTED.fullmatch(name):
            yield f"{shown(name)!r}: not a name that a Secret or PriorityClass may have"
    numbers = (site.restarts, site.keep_seconds, site.grace_seconds)
    if min(*numbers, site.wait_seconds - 1, site.key_seconds - 1) < 0 or site.deadline_seconds == 0:
        yield "seconds and restarts: none may be negative, and a limit of 0 s lets nothing happen"


def _mounts(job: Job) -> Iterator[str]:
    for place, source in job.binds.items():
        if not is_absolute(place) or ":" in place or _below(place, OWN_FOLDERS) or place == "/":
            yield f"bind {shown(place)!r}: an absolute path outside of {', '.join(OWN_FOLDERS)}"
        claim, _, inner = source.removeprefix("pvc:").partition("/")
        if source.startswith("pvc:"):
            if not _DOTTED.fullmatch(claim) or (inner and not is_absolute(f"/{inner}")):
                yield f"bind {shown(place)}: {shown(source)!r} is not pvc:CLAIM or pvc:CLAIM/FOLDER"
        elif not is_absolute(source):
            yield (
                f"bind {shown(place)}: {shown(source)!r} is neither an absolute path of the"
                " machines nor pvc:CLAIM[/FOLDER]"
            )
    for path in job.files:
        if not is_absolute(path) or ":" in path or _below(path, OWN_FOLDERS):
            yield f"file {shown(path)!r}: an absolute path outside of {', '.join(OWN_FOLDERS)}"
        elif _below(path, tuple(job.binds)):
            yield (
                f"file {shown(path)!r}: lies in a bind, where mounting it would leave an empty"
                " file behind on the storage; put it beside"
            )


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
