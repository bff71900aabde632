"""Render the script that each pod of a run executes, and the files that it reads.

Owns the script and its rendezvous. It must not know manifests: `kubernetes_pod` mounts the paths
named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import basename

from stackyard.launch import LAUNCHERS, Launch, LaunchRequest
from stackyard.launch.job import Job
from stackyard.mesh import node
from stackyard.schedulers.kubernetes_site import KubernetesSite, addresses, host_stem, needs_mesh
from stackyard.system import template

SOURCE = "/etc/stackyard/run"
SHARED_KEYS = "/etc/stackyard/mesh"
OWN_KEYS = "/etc/stackyard/node"
SCRIPT = "start.sh"


@dataclass(frozen=True, kw_only=True)
class PodScript:
    """Hold the files and the environment of a run's pods.

    Attributes:
        files: texts by name, the script among them; all are mounted in `SOURCE`.
        env: environment of every pod.
    """

    files: Mapping[str, str]
    env: Mapping[str, str]


def environment(job: Job, site: KubernetesSite) -> dict[str, str]:
    """Return the environment of every pod; the job's own variables take precedence.

    NCCL and gloo get an explicit interface, since pods with further networks (for RDMA) have
    several, and sockets often do not connect over the others.
    """
    found = {"GLOO_SOCKET_IFNAME": site.interface}
    if job.device == "cuda":
        found["NCCL_SOCKET_IFNAME"] = f"={site.interface}"  # `=`: exact name, not a prefix
    return {**found, **job.env}


def start(job: Job, site: KubernetesSite, run: str) -> PodScript:
    """Render the script and the launcher's files."""
    env = environment(job, site)
    rendezvous = job.launcher == "torchrun" and job.nodes > 1
    launch = Launch(argv=()) if rendezvous else _launch(job, site, run)
    names = {f"launch.{basename(path)}": path for path in launch.files}
    values: dict[str, object] = {
        "run": run,
        "mesh": needs_mesh(job),
        "rendezvous": rendezvous,
        "nodes": addresses(job, run, site.kind),
        "stem": host_stem(run, site.kind),
        "per_node": job.per_node,
        "port": node.MEETING_PORT,
        "wait": site.wait_seconds,
        "restarts": job.options.get("restarts", "0"),
        "folder": job.folder,
        "prepare": job.prepare,
        "program": _command(job.program),
        "argv": launch.argv,
        "env": dict(sorted(launch.env.items())),
        "launch_files": sorted(names.items()),
        "scratch": node.SCRATCH,
        "source": SOURCE,
        "shared_keys": SHARED_KEYS,
        "own_keys": OWN_KEYS,
        "node_program": node.NODE_PROGRAM,
    }
    script = template.render("clusters/kubernetes-start.sh.j2", values)
    files = {name: launch.files[path] for name, path in sorted(names.items())}
    return PodScript(files={SCRIPT: script, **files}, env=env)


def _command(program: tuple[str, ...]) -> tuple[str, ...]:
    return program if program[0].endswith(".py") else ("--no-python", *program)


def _launch(job: Job, site: KubernetesSite, run: str) -> Launch:
    gpus = (tuple(range(job.per_node)),) * job.nodes if job.device == "cuda" else ()
    nodes = addresses(job, run, site.kind) if job.nodes > 1 else ("localhost",)
    request = LaunchRequest(
        nodes=nodes,
        port=node.MEETING_PORT,
        program=job.program,
        # Pods and their ssh sessions have the environment already. Launchers that pass values on
        # do so through a shell, which would expand a `$` in them.
        env={},
        folder=job.folder,
        scratch=node.SCRATCH,
        ssh_port=node.SSH_PORT,
        device=job.device,
        options=job.options,
        per_node=job.per_node,
        gpus=gpus,
    )
    return LAUNCHERS[job.launcher](request)
