"""Write how a node enters an image: command lines by runtime, and the script for namespaces.

Owns these texts. Pure. Those of pyxis, enroot and apptainer were never run here; `SEEN` says which
were. The script enters an unpacked image or a squashfs file with nothing but `unshare` and `mount`
(and squashfuse), since the mount must be made in a namespace that ends with the job: bubblewrap and
crun begin only when a root is there, and what is mounted before them stays when they are killed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackyard.gpu import access
from stackyard.launch.job import Job
from stackyard.schedulers.slurm_site import SlurmSite, free_places
from stackyard.system import template

SEEN = ("squashfs", "oci", "filesystem")
PYXIS = (
    "--no-container-mount-home", "--no-container-entrypoint", "--container-writable",
    "--container-remap-root",
)  # fmt: skip
_APPTAINER = ("apptainer", "exec", "--cleanenv", "--no-home", "--writable-tmpfs", "--fakeroot")
_ENROOT = ("enroot", "start", "--root", "--rw")
# Which GPUs there are, Slurm decides; enroot's hook looks at the container's own variables.
_ENROOT_GPUS = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")
# squashfuse must end with the job, however that ends: as a process of a namespace whose first
# process is the job's, which the kernel kills with `unshare`.
_ENDING = ("--pid", "--fork", "--kill-child")


@dataclass(frozen=True, kw_only=True)
class Line:
    """Hold a command line, and whether it was ever run."""

    text: str
    seen: bool


def for_enroot(reference: str) -> str:
    """Return a reference for enroot: `#` after the registry, or it would take Docker Hub."""
    registry, slash, rest = reference.partition("/")
    named = slash and ({".", ":"} & set(registry) or registry == "localhost")
    return f"{registry}#{rest}" if named else reference


def pyxis_options(image: str, binds: Mapping[str, str]) -> list[str]:
    """Return srun's options for pyxis."""
    words = [f"--container-image={image}", *PYXIS]
    return [*words, f"--container-mounts={_mounts(binds)}"] if binds else words


def _apptainer(image: str, binds: Mapping[str, str], *, gpus: bool) -> list[str]:
    bound = ["--bind", _mounts(binds)] if binds else []
    return [*_APPTAINER, *(["--nv"] if gpus else []), *bound, image]


def _enroot(image: str, binds: Mapping[str, str], *, gpus: bool) -> list[str]:
    told = [word for pair in _ENROOT_GPUS if gpus for word in ("--env", pair)]
    mounts = [f"{folder}:{place}:none:x-create=auto,rbind" for place, folder in _sorted(binds)]
    return [*_ENROOT, *told, *(word for one in mounts for word in ("--mount", one)), image]


def _sorted(binds: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return sorted(binds.items())


def _mounts(binds: Mapping[str, str]) -> str:
    return ",".join(f"{folder}:{place}" for place, folder in _sorted(binds))


def words_before(job: Job, site: SlurmSite) -> list[str]:
    """Return the quoted shell words before `bash` that make the image its root."""
    gpus = job.device == "cuda"
    if site.runtime in ("apptainer", "enroot"):
        make = _apptainer if site.runtime == "apptainer" else _enroot
        return [shlex.quote(word) for word in make(site.image, job.binds, gpus=gpus)]
    if site.entered:
        ending = _ENDING if site.runtime == "squashfs" else ()
        return [*_NAMESPACES, *ending, "bash", "-c", '"$enter"', "enter"]
    return []


def enter_script(job: Job, site: SlurmSite) -> str:
    """Render the script that makes an image the root of a process, in its namespaces."""
    values: dict[str, object] = {
        "image": site.image,
        "place": free_places(job, site)[0],
        "squashfs": site.runtime == "squashfs",
        "binds": _sorted(job.binds),
        "gpus": job.device == "cuda",
        "libraries": access.LIBRARIES,
        "required": access.REQUIRED,
        "wanted": [*access.REQUIRED, *access.OPTIONAL],
    }
    return template.render("clusters/slurm-enter.sh.j2", values).rstrip("\n")


def by_hand(path: str, stack: str, base: str, *, gpus: bool) -> dict[str, Line]:
    """Return a command line for each runtime that starts a squashfs file."""
    run = ["invoke", "run", stack, "--base", base, "--on", "slurm", "--image", path, "--nodes", "2"]
    words = {
        "squashfs": [*run, "--runtime", "squashfs", "--", "COMMAND"],
        "pyxis": ["srun", *pyxis_options(path, {}), "COMMAND"],
        "enroot": [*_enroot(path, {}, gpus=gpus), "COMMAND"],
        "apptainer": [*_apptainer(path, {}, gpus=gpus), "COMMAND"],
    }
    return {name: Line(text=shlex.join(line), seen=name in SEEN) for name, line in words.items()}
