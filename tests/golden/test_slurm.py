"""One job as a batch script for each runtime, whole."""

import dataclasses

import pytest

from stackyard.launch.job import Job
from stackyard.schedulers import entering, slurm
from stackyard.schedulers.slurm_site import SlurmSite
from tests.golden.conftest import HERE

SITES = {
    "pyxis": SlurmSite(
        runtime="pyxis", partition="gpu", account="lab", minutes=240, gpu_type="h100",
        cpus_per_node=64, memory="0", lines=("--constraint=ib&h100", "--exclusive"),
    ),
    "apptainer": SlurmSite(
        runtime="apptainer", image="/images/toy.sif", gpu_option="gpus-per-node",
    ),
    "enroot": SlurmSite(runtime="enroot", image="/images/toy.sqsh"),
    "squashfs": SlurmSite(runtime="squashfs", image="/images/toy.sqsh"),
    "oci": SlurmSite(runtime="oci", image="/images/toy", image_env={"PATH": "/opt/bin:/bin"}),
    "filesystem": SlurmSite(runtime="filesystem"),
    "unpacked": SlurmSite(
        runtime="filesystem", image="/images/toy", image_env={"PATH": "/opt/bin:/bin"}
    ),
}  # fmt: skip
FILES = [f"slurm-{name}.sh" for name in SITES]


def sample(name):
    gpus = name in ("pyxis", "apptainer", "enroot", "squashfs")
    return Job(
        name="toy-ddp",
        stack="toy",
        base="ngc" if gpus else "cpu",
        image="registry.example/toy:cpu",
        nodes=2,
        per_node=8 if gpus else 1,
        device="cuda" if gpus else "cpu",
        prepare=(("python3", "/srv/toy/prepare.py", "--note=two words, it's $HOME"),),
        program=("toy-train", "--data=/data", "--note=50%\nof it"),
        env={"GREETING": "it's a $HOME"},
        folder="/srv/toy",
        binds={"/data": "/data"},
        files={"/srv/toy/prepare.py": b"print('prepared')\n", "/srv/toy/a b.bin": bytes(range(9))},
    )


def parts(name):
    """The script, and what it holds as text for other shells."""
    job, site = sample(name), SITES[name]
    yield slurm.render(job, site)[slurm.SCRIPT]
    yield slurm.render(dataclasses.replace(job, nodes=1), site)[slurm.SCRIPT]
    yield f"#!/bin/bash\n{slurm.node_script(job, site)}"
    if site.entered:
        yield f"#!/bin/bash\n{entering.enter_script(job, site)}"


@pytest.mark.parametrize("name", SITES)
def test_a_batch_script_is_what_is_committed(golden, name):
    golden.check(f"slurm-{name}.sh", slurm.render(sample(name), SITES[name])[slurm.SCRIPT])


def test_no_committed_script_is_left_over():
    assert {path.name for path in HERE.glob("slurm-*")} == set(FILES)
