"""Describe a Slurm cluster, and check that a job fits it.

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

RUNTIMES = ("pyxis", "enroot", "apptainer", "squashfs", "oci", "filesystem")
GPU_OPTIONS = ("gres", "gpus-per-node")
# Programs of the first three run under torchrun, which sets RANK and WORLD_SIZE as their launcher
# would; the others start no ranks. `plain` would need a node's index, hidden in Slurm's containers.
STARTING = ("torchrun", "deepspeed", "accelerate", "alone", "each")
# Options of sbatch that the rendered script sets itself, and their aliases.
OWN_OPTIONS = (
    "job-name", "nodes", "ntasks", "ntasks-per-node", "time", "output", "error", "open-mode",
    "requeue", "no-requeue", "partition", "account", "mem", "cpus-per-task", "array", "export",
    "export-file", "chdir", "wrap", "container", "input", "get-user-env", *GPU_OPTIONS,
)  # fmt: skip
# Mount points for an image in the job's own mount namespace; every Linux has them.
_TOPS = ("/mnt", "/media", "/srv", "/opt")
# Slurm's default limit for a batch script, which it keeps in its own state, is 4 MiB.
FILES_LIMIT = 2 * 2**20

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
# Values without a blank, quote, backslash or `#`, which sbatch would interpret.
_VALUE = re.compile(r"[A-Za-z0-9_.@+:/][-A-Za-z0-9_.,@+:=/%]*")
_LINE = re.compile(r"--([a-z][-a-z]*)(=[-A-Za-z0-9_.,@+:=/%\[\]()*&|!]+)?")
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
_IMAGE = re.compile(r"[A-Za-z0-9./][-A-Za-z0-9._:/#@+]*")


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """Hold the settings of a Slurm cluster.

    Attributes:
        runtime: how a node enters the image. `pyxis`: NVIDIA's plugin of srun. `enroot`,
            `apptainer`. `squashfs`: a file of `invoke pull --as squashfs`, entered without
            privileges. `oci`: Slurm's own `--container`. `filesystem`: the nodes' own file system
            is the image's, or, where `image` is given, an unpacked image entered without
            privileges.
        image: where the image is. `pyxis`: a reference or path for enroot, empty for the job's
            own reference. `enroot` and `squashfs`: a squashfs file. `apptainer`: a .sif or
            squashfs file. `oci` and `filesystem`: the folder of the unpacked image, as all nodes
            see it; with `filesystem` empty for the nodes' own.
        image_env: the image's own environment, PATH included, which `oci` and `filesystem` do not
            set by themselves.
        partition: Slurm's partition; empty for the cluster's default.
        account: Slurm's account; empty for the user's default.
        minutes: time limit of the whole job.
        gpu_option: sbatch's option that requests GPUs: `gres` or `gpus-per-node`.
        gpu_type: type of the GPUs, such as h100; empty for any.
        cpus_per_node: CPUs on each node; 0 for the cluster's default.
        memory: memory on each node, as Slurm writes it (`64G`; `0`: all of it).
        join_seconds: how long nodes wait for each other; includes their preparation.
        save_seconds: ranks get SIGTERM this long before the time limit, and after any SIGTERM they
            have this long to save; 0: no signal before the limit, and 30 s after others.
        requeue: Slurm starts the job again after it was preempted or lost a node.
        lines: further options of sbatch, such as `--constraint=ib`.
    """

    runtime: str
    image: str = ""
    image_env: Mapping[str, str] = field(default_factory=dict)
    partition: str = ""
    account: str = ""
    minutes: int = 60
    gpu_option: str = "gres"
    gpu_type: str = ""
    cpus_per_node: int = 0
    memory: str = ""
    join_seconds: int = 900
    save_seconds: int = 0
    requeue: bool = False
    lines: tuple[str, ...] = ()

    @property
    def entered(self) -> bool:
        """Say if our own script makes an image the job's root, without privileges."""
        return self.runtime in ("filesystem", "squashfs") and bool(self.image)


def check(job: Job, site: SlurmSite) -> None:
    """Refuse a job that Slurm would refuse or run differently from what is meant.

    Raises:
        UsageError: with every problem found.
    """
    found = [
        *_site(site),
        *_image(site, job),
        *_shape(job),
        *_values(job, site),
        *_places(job, site),
    ]
    refuse(job.name, "Slurm", found)


def _site(site: SlurmSite) -> Iterator[str]:
    if site.runtime not in RUNTIMES:
        yield f"runtime {shown(site.runtime)!r}: one of {', '.join(RUNTIMES)}"
    if site.gpu_option not in GPU_OPTIONS:
        yield f"gpu_option {shown(site.gpu_option)!r}: one of {', '.join(GPU_OPTIONS)}"
    for name in ("partition", "account", "gpu_type"):
        value = getattr(site, name)
        if value and not _VALUE.fullmatch(value):
            yield f"{name} {shown(value)!r}: letters, digits and _.,@+:=/%- only"
    if site.memory and not _MEMORY.fullmatch(site.memory):
        yield f"memory {shown(site.memory)!r}: a number with K, M, G or T, such as 64G"
    if site.minutes < 1 or site.join_seconds < 1 or site.cpus_per_node < 0:
        yield "minutes and join_seconds must be at least 1, cpus_per_node at least 0"
    if site.save_seconds and not 0 < site.save_seconds < min(site.minutes * 60, 65536):
        yield "save_seconds must be 0 or more, less than the minutes and less than 65536"
    for line in site.lines:
        match = _LINE.fullmatch(line)
        if not match:
            yield f"line {shown(line)!r}: one option --name or --name=value, no blanks or quotes"
        elif match.group(1) in OWN_OPTIONS:
            yield f"line {shown(line)!r}: --{match.group(1)} is set by the job itself"
        elif match.group(1) == "signal" and site.save_seconds:
            yield f"line {shown(line)!r}: save_seconds sets the signal"


def _image(site: SlurmSite, job: Job) -> Iterator[str]:
    if site.runtime == "pyxis":
        if not _IMAGE.fullmatch(site.image or job.image):
            yield f"image {shown(site.image or job.image)!r}: a reference or path for enroot"
    elif site.runtime == "filesystem" and not site.image:
        return
    elif not site.image:
        yield (
            f"image: the runtime {shown(site.runtime)} needs the image's path on the nodes, in"
            " site.yml or by --image"
        )
    elif not is_absolute(site.image) or site.image == "/" or not _IMAGE.fullmatch(site.image):
        yield f"image {shown(site.image)!r}: an absolute path of letters, digits and ._+@-"


def _shape(job: Job) -> Iterator[str]:
    if not _NAME.fullmatch(job.name):
        yield f"name {shown(job.name)!r}: lower-case letters, digits and `-`, at most 40 characters"
    yield from shape(job, STARTING)
    if not job.program or not all(job.prepare):
        yield "program and prepare: none may be empty; name a Python file or a console script"
    if not job.options.get("restarts", "0").isdecimal():
        yield f"options: restarts {shown(job.options['restarts'])!r}: a number"
    stage = job.options.get("zero_stage", "0")
    if stage not in ("0", "1", "2", "3"):
        yield f"options: zero_stage {shown(stage)!r}: 0 to 3"


def _values(job: Job, site: SlurmSite) -> Iterator[str]:
    for name, value in [*site.image_env.items(), *job.env.items()]:
        if not VARIABLE.fullmatch(name):
            yield f"env {shown(name)!r}: not a name that a variable may have"
        elif "\0" in value:
            yield f"env {name}: its value holds a NUL byte"
    words = (*job.program, *(word for command in job.prepare for word in command))
    if any("\0" in word for word in words):
        yield "program and prepare: no word may hold a NUL byte"
    size = sum(map(len, job.files.values()))
    if size > FILES_LIMIT:
        yield f"files: {size} bytes; the script carries at most {FILES_LIMIT}: mount a folder"


def _places(job: Job, site: SlurmSite) -> Iterator[str]:
    if site.entered and not free_places(job, site):
        yield f"binds: one of {', '.join(_TOPS)} must hold nothing that the job needs"
    for path in job.files:
        if not is_absolute(path) or path == "/":
            yield f"file {shown(path)!r}: an absolute path without `..`"
    for place, folder in job.binds.items():
        wrong = [path for path in (place, folder) if not is_absolute(path) or set(path) & set(",:")]
        for path in wrong:
            yield f"bind {shown(path)!r}: an absolute path without `..`, comma or colon"
        if place == "/":
            yield "bind '/': the root is the image's"
        elif site.runtime == "filesystem" and not site.image and place != folder and not wrong:
            yield (
                f"bind {shown(place)!r}: on the nodes' own file system nothing can be mounted; it"
                f" must be {shown(folder)!r} itself"
            )


def free_places(job: Job, site: SlurmSite) -> list[str]:
    """Return the folders of a node that the job does not need, so that a mount may hide them."""
    used = [f"{path}/" for path in (site.image, *job.binds.values())]
    return [top for top in _TOPS if not any(path.startswith(f"{top}/") for path in used)]
