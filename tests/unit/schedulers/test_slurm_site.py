"""Which jobs and sites are refused before anything is rendered, and with which words."""

import pytest

from stackyard.schedulers.slurm_site import FILES_LIMIT, OWN_OPTIONS, RUNTIMES, check
from stackyard.system.errors import UsageError
from tests.unit.slurm_jobs import job, site


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_plain_job_fits_every_runtime(runtime):
    check(job(), site(runtime))


def refused(wanted, where):
    with pytest.raises(UsageError) as caught:
        check(wanted, where)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Toy"}, "name 'Toy'"),
        ({"name": "toy job"}, "name 'toy job'"),
        ({"name": "toy\n#SBATCH --uid=0"}, "name 'toy"),
        ({"name": "x" * 41}, "at most 40"),
        ({"nodes": 0}, "0 nodes with 1 processes"),
        ({"per_node": 0}, "2 nodes with 0 processes"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"program": ()}, "program and prepare"),
        ({"prepare": ((),)}, "program and prepare"),
        ({"program": ("train.py", "a\0b")}, "NUL byte"),
        ({"launcher": "mpirun"}, "launcher 'mpirun'"),
        ({"launcher": "plain"}, "launcher 'plain'"),
        ({"launcher": "alone"}, "starts one process, not 2"),
        ({"launcher": "accelerate"}, "needs zero_stage"),
        ({"launcher": "accelerate", "options": {"zero_stage": "4; rm"}}, "zero_stage '4; rm'"),
        ({"options": {"restarts": "-1"}}, "restarts '-1'"),
        ({"env": {"A B": "x"}}, "env 'A B'"),
        ({"env": {"A;reboot": "x"}}, "env 'A;reboot'"),
        ({"env": {"A": "x\0"}}, "env A"),
        ({"folder": "work"}, "folder 'work'"),
        ({"folder": "/a/../b"}, "folder '/a/../b'"),
        ({"files": {"train.py": b""}}, "file 'train.py'"),
        ({"files": {"/a/../../etc/passwd": b""}}, "file '/a/../../etc/passwd'"),
        ({"files": {"/a": bytes(FILES_LIMIT + 1)}}, "carries at most"),
        ({"binds": {"/data": "data"}}, "bind 'data'"),
        ({"binds": {"/data": "/x:/etc"}}, "bind '/x:/etc'"),
        ({"binds": {"/da,ta": "/x"}}, "bind '/da,ta'"),
        ({"binds": {"/": "/x"}}, "bind '/'"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(changes, says):
    error = refused(job(**changes), site())
    assert says in error.why
    assert error.what.endswith("cannot run on Slurm: 1 problem")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runtime": "docker"}, "runtime 'docker'"),
        ({"partition": "a b"}, "partition 'a b'"),
        ({"partition": "-x"}, "partition '-x'"),
        ({"partition": "x #y"}, "partition 'x #y'"),
        ({"account": "lab\n#SBATCH --uid=0"}, "account 'lab"),
        ({"gpu_type": "h100'"}, "gpu_type"),
        ({"gpu_option": "gpus"}, "gpu_option 'gpus'"),
        ({"memory": "lots"}, "memory 'lots'"),
        ({"minutes": 0}, "minutes and join_seconds"),
        ({"join_seconds": 0}, "minutes and join_seconds"),
        ({"cpus_per_node": -1}, "cpus_per_node"),
        ({"save_seconds": -1}, "save_seconds"),
        ({"save_seconds": 60, "minutes": 1}, "save_seconds"),
        ({"save_seconds": 60, "lines": ("--signal=USR1@9",)}, "save_seconds sets the signal"),
        ({"lines": ("--constraint=a b",)}, "line '--constraint=a b'"),
        ({"lines": ("--comment=a\n#SBATCH -n9",)}, "line '--comment=a"),
        ({"lines": ("-n9",)}, "line '-n9'"),
        ({"lines": ("--comment='x'",)}, "line"),
        ({"lines": ("--comment=#x",)}, "line"),
        ({"lines": ("--nodes=9",)}, "--nodes is set by the job itself"),
        ({"image": "a b"}, "image 'a b'"),
        ({"image": "--uid=0"}, "image '--uid=0'"),
        ({"image_env": {"A-B": "x"}}, "env 'A-B'"),
        ({"runtime": "apptainer"}, "needs the image's path"),
        ({"runtime": "squashfs"}, "needs the image's path"),
        ({"runtime": "enroot", "image": "toy.sqsh"}, "an absolute path"),
        ({"runtime": "apptainer", "image": "toy.sif"}, "an absolute path"),
        ({"runtime": "oci", "image": "/images/a,b"}, "an absolute path"),
        ({"runtime": "filesystem", "image": "/"}, "an absolute path"),
    ],
)
def test_a_site_that_slurm_would_misread_is_refused(changes, says):
    assert says in refused(job(), site(**{"image": "", **changes})).why


def test_every_problem_is_said_at_once():
    error = refused(job(name="Toy", nodes=0), site(partition="a b"))
    assert error.what == "Toy cannot run on Slurm: 3 problems"
    assert len(error.why.splitlines()) == 3


def test_a_long_or_hostile_value_is_shown_short_and_plain():
    error = refused(job(name="\x1b[31m" + "x" * 1000), site())
    assert "\x1b" not in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("option", OWN_OPTIONS)
def test_no_line_can_set_again_what_the_script_sets(option):
    assert f"--{option} is set by the job" in refused(job(), site(lines=(f"--{option}=1",))).why


def test_what_sites_ask_for_is_let_through():
    lines = ("--constraint=ib&h100", "--exclusive", "--qos=long", "--mail-user=a@example.org",
             "--exclude=node[1-3,7]", "--signal=B:USR1@60")  # fmt: skip
    check(job(), site(lines=lines, partition="gpu,gpu-long", account="lab.x", memory="64G"))


def test_on_the_nodes_own_file_system_a_bind_can_only_be_the_folder_itself():
    check(job(binds={"/data": "/data"}), site("filesystem"))
    assert "nothing can be mounted" in refused(job(binds={"/data": "/x"}), site("filesystem")).why
    check(job(binds={"/data": "/x"}), site("filesystem", image="/images/toy"))


def test_an_unpacked_image_needs_a_folder_that_may_be_hidden():
    binds = {"/a": "/mnt/a", "/b": "/media/b", "/c": "/srv"}
    check(job(binds=binds), site("filesystem", image="/images/toy"))
    error = refused(job(binds=binds), site("filesystem", image="/opt/toy"))
    assert "must hold nothing that the job needs" in error.why
