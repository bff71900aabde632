"""Render one job as a Slurm batch script that carries everything but the image.

Owns the script: srun starts one task on every node, inside the image, and torchrun starts the
ranks, without ssh. `entering` knows how an image is entered. It must not submit anything:
`slurm_client` does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from stackyard.gpu import access
from stackyard.gpu.nccl import READ, SUBSYSTEMS
from stackyard.launch.job import Job
from stackyard.schedulers import entering
from stackyard.schedulers.slurm_site import SlurmSite, check
from stackyard.system import template
from stackyard.system.archive import pack
from stackyard.system.errors import UsageError

SCRIPT = "job.sh"
# Lines of a job's log that say what NCCL used begin so.
NCCL = "stackyard: nccl: "
_GPU_CHECK = (
    "import sys, torch; n = torch.cuda.device_count();"
    " sys.exit(f'{n} GPUs are visible, %d are needed' if n < %d else 0)"
)
# Delimiters of the script's here-documents.
MARKS = ("STACKYARD_NODE", "STACKYARD_FILES", "STACKYARD_ENTER", "STACKYARD_OCI")


def render(job: Job, site: SlurmSite) -> dict[str, str]:
    """Render the files of an export, by name; `sbatch` takes the script.

    Raises:
        UsageError: the job does not fit; names every reason.
    """
    check(job, site)
    values = {
        **head_values(job, site),
        "srun": srun_options(job, site),
        "node": node_script(job, site).rstrip("\n"),
    }
    text = template.render("clusters/slurm.sh.j2", values)
    require_marks(job.name, text, dict.fromkeys(MARKS, 1))
    return {SCRIPT: text}


def head_values(job: Job, site: SlurmSite) -> dict[str, object]:
    """Return the values of the part of a batch script that precedes its first srun."""
    return {
        "name": job.name,
        "stack": job.stack,
        "base": job.base,
        "nodes": job.nodes,
        "per_node": job.per_node,
        "device": job.device,
        "runtime": site.runtime,
        "image": site.image,
        "directives": directives(job, site),
        "entering": "".join(f"{word} " for word in entering.words_before(job, site)),
        "enter": entering.enter_script(job, site) if site.entered else "",
        "oci_config": oci_config(job) if site.runtime == "oci" else "",
    }


def require_marks(name: str, text: str, marks: Mapping[str, int]) -> None:
    """Require that no value ends a part of a batch script early.

    Args:
        marks: how many lines may be only this delimiter.

    Raises:
        UsageError: a value has such a line.
    """
    lines = text.splitlines()
    early = [mark for mark, count in marks.items() if lines.count(mark) > count]
    if early:
        raise UsageError(
            f"{name} cannot run on Slurm: a value has a line that is only {early[0]}",
            why="that line ends a part of the batch script",
            hint="write the value in another way",
        )


def log_name(name: str, job_id: str) -> str:
    """Return the name of a job's log, which Slurm writes in the folder of submission."""
    return f"{name}-{job_id}.log"


def directives(job: Job, site: SlurmSite) -> list[str]:
    """Return the options of the `#SBATCH` lines."""
    words = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--time={site.minutes}",
        f"--output={log_name(job.name, '%j')}",
        "--open-mode=append",
        "--requeue" if site.requeue else "--no-requeue",
    ]
    if site.save_seconds:
        words.append(f"--signal=TERM@{site.save_seconds}")
    if job.device == "cuda":
        kind = f"{site.gpu_type}:" if site.gpu_type else ""
        gpu = "gpu:" if site.gpu_option == "gres" else ""
        words.append(f"--{site.gpu_option}={gpu}{kind}{job.per_node}")
    optional = {
        "partition": site.partition,
        "account": site.account,
        "cpus-per-task": str(site.cpus_per_node or ""),
        "mem": site.memory,
    }
    words += [f"--{name}={value}" for name, value in optional.items() if value]
    return [*words, *site.lines]


def srun_options(job: Job, site: SlurmSite) -> list[str]:
    """Return srun's options: one task on each node, and the first that fails ends all."""
    words = [
        f"--nodes={job.nodes}",
        f"--ntasks={job.nodes}",
        "--ntasks-per-node=1",
        f"--time={site.minutes}",
        "--kill-on-bad-exit=1",
        "--wait=60",
        "--label",
        "--mpi=none",
        "--export=ALL",
    ]
    if site.cpus_per_node:
        # Since Slurm 22.05 srun does not inherit it from sbatch; ranks share the node's CPUs.
        words += [f"--cpus-per-task={site.cpus_per_node}", "--cpu-bind=none"]
    if site.runtime == "pyxis":
        words += entering.pyxis_options(site.image or entering.for_enroot(job.image), job.binds)
    return words


def oci_config(job: Job) -> str:
    """Render config.json of the OCI bundle: the user is root inside; all end with PID 1."""
    config: dict[str, object] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["true"],
            "env": [],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            # All nodes share one folder as their root, so each needs a /tmp of its own.
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            *(_bound(folder, folder) for folder in ("/sys", "/dev")),
            *(_bound(file, file) for file in ("/etc/hosts", "/etc/resolv.conf")),
            *(_bound(place, folder) for place, folder in sorted(job.binds.items())),
        ],
        # No network namespace: the network is the node's. Slurm confines the devices.
        "linux": {
            "namespaces": [{"type": "user"}, {"type": "mount"}, {"type": "pid"}],
            # The script replaces these by the ids of the user who submitted.
            "uidMappings": [{"containerID": 0, "hostID": "@uid@", "size": 1}],
            "gidMappings": [{"containerID": 0, "hostID": "@gid@", "size": 1}],
        },
    }
    return json.dumps(config, indent=1)


def _bound(place: str, folder: str) -> dict[str, object]:
    return {"destination": place, "type": "bind", "source": folder, "options": ["rbind"]}


def node_script(job: Job, site: SlurmSite) -> str:
    """Render the script that every node executes inside the image."""
    env = environment(job, site)
    # Where the user asks NCCL to speak, its lines stay in the output.
    quiet = job.device == "cuda" and not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(env)
    values: dict[str, object] = {
        "name": job.name,
        "nodes": job.nodes,
        "device": job.device,
        "env": list(env.items()),
        "nccl": SUBSYSTEMS if quiet else "",
        "nccl_lines": READ,
        "files": sorted(job.files),
        "archive": _archive(job.files),
        "folder": job.folder,
        "prepare": job.prepare,
        "gpu_check": _GPU_CHECK % (job.per_node, job.per_node),
        "join_seconds": site.join_seconds,
        "elastic": is_elastic(job),
        "launcher": launcher_words(job),
        "program": job.program,
    }
    return template.render("clusters/slurm-node.sh.j2", values)


def _archive(files: Mapping[str, bytes]) -> str:
    packed = pack({path.lstrip("/"): data for path, data in files.items()}, mode=0o755)
    return base64.encodebytes(packed).decode().rstrip("\n")


def launcher_words(job: Job) -> list[str]:
    """Return the words before a job's program that start its ranks on each node."""
    return _torchrun(job) if is_elastic(job) else _interpreter(job)


def is_elastic(job: Job) -> bool:
    """Return whether the ranks of a job meet at a rendezvous."""
    return job.launcher not in ("alone", "each")


def _torchrun(job: Job) -> list[str]:
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.per_node}",
        "--rdzv-backend=c10d",
        f"--max-restarts={job.options.get('restarts', '0')}",
        *([] if job.program[0].endswith(".py") else ["--no-python"]),
    ]


def _interpreter(job: Job) -> list[str]:
    return ["python3"] if job.program[0].endswith(".py") else []


def environment(job: Job, site: SlurmSite) -> dict[str, str]:
    """Return the environment of every process, sorted; the job's own variables take precedence.

    Programs of all launchers run under torchrun here, which sets RANK and WORLD_SIZE. The other
    variables that their own launcher would set are added here.
    """
    image = dict(site.image_env)
    if site.runtime == "oci" or site.entered:
        image = {"HOME": "/root", **image}
    # torchrun kills ranks that save for longer after SIGTERM; torch before 2.9 after 30 s always.
    save = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(site.save_seconds)} if site.save_seconds else {}
    found = {"PYTHONUNBUFFERED": "1", **save, **image, **_told(job), **job.env}
    if site.entered and job.device == "cuda" and "LD_LIBRARY_PATH" in found:
        found |= access.library_path(found["LD_LIBRARY_PATH"])
    return dict(sorted(found.items()))


def _told(job: Job) -> dict[str, str]:
    stage = job.options.get("zero_stage", "0")
    if job.launcher not in ("deepspeed", "accelerate"):
        return {}
    zero = job.launcher == "accelerate" and stage != "0"
    if job.launcher == "accelerate" and not zero:
        # Without it, accelerate silently starts a separate training on each CPU rank.
        cpu = {"ACCELERATE_USE_CPU": "true"} if job.device == "cpu" else {}
        return {"ACCELERATE_MIXED_PRECISION": "no", **cpu}
    told = {"DS_ACCELERATOR": job.device}
    if zero:
        # No ACCELERATE_USE_CPU here: it would silently replace DeepSpeed by plain DDP.
        told |= {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage,
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
            "ACCELERATE_MIXED_PRECISION": "no",
        }
    return told
