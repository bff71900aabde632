"""Jobs and sites that the tests of Slurm start from."""

from __future__ import annotations

from typing import Any

from stackyard.launch.job import Job
from stackyard.schedulers.slurm_site import SlurmSite

PLACES = {
    "apptainer": "/images/toy.sif", "enroot": "/images/toy.sqsh", "squashfs": "/images/toy.sqsh",
    "oci": "/images/toy",
}  # fmt: skip


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "toy",
        "stack": "toy",
        "base": "cpu",
        "image": "registry.example/toy:cpu",
        "nodes": 2,
        "per_node": 1,
        "device": "cpu",
        "program": ("train.py", "--data=/data"),
    }
    return Job(**{**values, **changes})


def site(runtime: str = "pyxis", **changes: Any) -> SlurmSite:
    return SlurmSite(**{"runtime": runtime, "image": PLACES.get(runtime, ""), **changes})
