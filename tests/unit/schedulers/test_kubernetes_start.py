"""What a pod does from its start to its end: its script runs in bash, beside stand-ins."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import time

import pytest

from tests.unit.kubernetes_jobs import environment, job, mounted, over_ssh, rendered, script, site
from tests.unit.standins import StandIns

# Where a pod has these folders, the tests have them below $POD.
FOLDERS = ("/etc/stackyard/", "/run/stackyard/", "/usr/local/lib/stackyard/")
# In place of `node.py`: a node that can be reached, until it is told to end.
NODE = """#!/bin/bash
[ "$1" = "$POD/usr/local/lib/stackyard/node.py" ] || exit 64
trap 'kill $!; exit 0' TERM
echo $$ > "$POD/run/stackyard/sshd.pid"
PATH=/usr/bin:/bin command sleep 60 & wait
"""
SSH = """#!/bin/bash
[ "$2" = true ] || exit 64
echo "$1" >> "$PODS/asked"
[ -e "$PODS/$1/run/stackyard/sshd.pid" ] && exit 0
echo "connect to host $1: Connection refused" >&2
exit 255
"""
PDSH = """#!/bin/bash
[ "$1 $2 $3 $4" = "-S -R ssh -w" ] || exit 64
echo "$5" >> "$PODS/told"
for node in ${5//,/ }; do POD=$PODS/$node sh -c "$6" || exit; done
"""
SLEEP = "#!/bin/sh\nPATH=/usr/bin:/bin exec sleep 0.02\n"
# A minute passes at once for a shell that waits for the second pod.
CLOCK = """sleep() {
  if [ "$node" = toy-node-0-1.toy ]; then SECONDS=$((SECONDS + 60)); else command sleep "$@"; fi
}
"""
WORDS = ("train.py", "", "--note=it's $HOME; rm -rf `x` 50%", "$(reboot)", "a\nb", "two  words")


class Pods:
    """Pods of a run, each in a folder of its own that is named as the pod is found."""

    def __init__(self, folder):
        self.folder = folder / "pods"
        self.folder.mkdir()
        self.programs = StandIns(folder)
        for name, text in (("python3", NODE), ("ssh", SSH), ("pdsh", PDSH), ("sleep", SLEEP)):
            self.programs.program(name, text)
        self.launcher("torchrun", "deepspeed", "accelerate", "prepare-it")
        self.started = []

    def launcher(self, *names, code=0):
        """What the image holds; it ends with this code."""
        self.programs.recorder(*names, code=code)

    def calls(self, *names):
        return self.programs.calls(*names)

    def place(self, index):
        """The folder of a pod, named by its address."""
        return self.folder / f"toy-node-0-{index}.toy"

    def start(self, documents, index, **env):
        """Start the pod of this index as its kubelet would."""
        place = self.place(index)
        (place / "run/stackyard").mkdir(parents=True)
        for path, data in mounted(documents, index).items():
            self._project(place, path, data)
        values = {"PATH": self.programs.path, "POD": str(place), "PODS": str(self.folder)}
        (place / "script").write_text(self._inside(script(documents)))
        with (place / "said").open("w") as said:
            pod = subprocess.Popen(
                ["bash", place / "script"], env={**values, **environment(documents, index), **env},
                cwd=place, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(pod)
        return pod

    def _inside(self, text):
        for folder in FOLDERS:
            text = text.replace(folder, f"$POD{folder}")
        return text

    def _project(self, place, path, data):
        """A file as kubelets mount it: a link into a folder beside."""
        file = place / path[1:]
        real = file.parent / "..data" / file.name
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(data)
        real.chmod(0o555 if "/run/" in path else 0o400)
        file.symlink_to(f"..data/{file.name}")

    def run(self, wanted, index=0, where=None, **env):
        """One pod, to its end: its exit code and what it said."""
        pod = self.start(rendered(wanted, where), index, **env)
        return pod.wait(30), (self.place(index) / "said").read_text()

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def close(self):
        for pod in self.started:
            # Its container ends with a pod's script, and everything in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            pod.wait(30)


@pytest.fixture
def pods(tmp_path, allow_processes):
    found = Pods(tmp_path)
    yield found
    found.close()


def until(there, seconds=20):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


# torchrun: every pod starts its ranks


def torchrun(pods, index=0, where=None, **changes):
    """The words that torchrun is started with."""
    code, said = pods.run(job(folder=str(pods.folder), **changes), index, where)
    assert (code, said) == (0, "")
    (call,) = pods.calls("torchrun")
    return call["argv"]


@pytest.mark.parametrize(("index", "keeps"), [(0, 1), (1, 0)])
def test_torchrun_meets_at_the_first_pod_which_keeps_the_rendezvous(pods, index, keeps):
    assert torchrun(pods, index) == [
        "--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=toy",
        "--rdzv-endpoint=toy-node-0-0.toy:29500",
        f"--rdzv-conf=is_host={keeps},join_timeout=900,read_timeout=900",
        f"--local-addr=toy-node-0-{index}.toy", "train.py", "--data=/data",
    ]  # fmt: skip


def test_torchrun_starts_ranks_again_as_often_as_the_job_says(pods):
    assert "--max-restarts=3" in torchrun(pods, options={"restarts": "3"})


def test_pods_of_a_job_are_named_without_a_set(pods):
    found = torchrun(pods, 1, site(kind="job"))
    assert {"--rdzv-endpoint=toy-0.toy:29500", "--local-addr=toy-1.toy"} <= set(found)


def test_a_console_script_is_no_python_file(pods):
    found = torchrun(pods, program=("fairseq-train", "/data"))
    assert found[-3:] == ["--no-python", "fairseq-train", "/data"]


def test_a_lone_pod_meets_nobody(pods):
    found = torchrun(pods, nodes=1)
    assert found[:2] == ["--nnodes=1", "--nproc-per-node=8"]
    assert not [word for word in found if "rdzv" in word or "toy" in word]


def test_how_long_ranks_wait_for_each_other_is_the_clusters_setting(pods):
    found = torchrun(pods, where=site(wait_seconds=60))
    assert "--rdzv-conf=is_host=1,join_timeout=60,read_timeout=60" in found


def test_a_pod_that_does_not_know_its_index_trains_nothing(pods):
    documents = rendered(job(folder=str(pods.folder)))
    lines = script(documents).splitlines()
    documents["files.yaml"]["data"]["start.sh"] = "\n".join(
        [lines[0], "unset STACKYARD_NODE_INDEX", *lines[1:]]
    )
    assert pods.start(documents, 0).wait(30) != 0
    assert pods.calls() == []


def test_accelerate_on_one_pod_finds_its_configuration(pods):
    wanted = job(
        nodes=1, per_node=2, launcher="accelerate", options={"zero_stage": "3"},
        folder=str(pods.folder),
    )  # fmt: skip
    assert pods.run(wanted) == (0, "")
    (call,) = pods.calls("accelerate")
    config = call["argv"][call["argv"].index("--config_file") + 1]
    assert config == f"{pods.place(0)}/run/stackyard/launch/accelerate.yaml"
    assert "zero_stage: 3" in (pods.place(0) / "run/stackyard/launch/accelerate.yaml").read_text()
    assert pods.lines("asked") == []


def test_a_lone_pod_has_what_its_launcher_is_told_by_variables(pods):
    wanted = job(
        nodes=1, per_node=2, device="cpu", launcher="accelerate", options={"zero_stage": "0"},
        folder=str(pods.folder),
    )  # fmt: skip
    assert pods.run(wanted) == (0, "")
    (call,) = pods.calls("accelerate")
    assert call["env"]["ACCELERATE_USE_CPU"] == "true"


# Every kind of run


@pytest.mark.parametrize("make", [job, over_ssh])
def test_words_arrive_as_they_are_in_the_jobs_folder_after_preparing(pods, make):
    folder = pods.folder / "a folder $HOME 'x'"
    steps = (("prepare-it", "two words"), ("touch", "prepared"))
    wanted = make(program=WORDS, folder=str(folder), prepare=steps, env={"V": "$(x) $$ it's"})
    documents = rendered(wanted)
    others = [pods.start(documents, 1)] if make is over_ssh else []
    first = pods.start(documents, 0)
    assert [pod.wait(30) for pod in (first, *others)] == [0] * (1 + len(others))
    prepared, trained = pods.calls("prepare-it"), pods.calls("torchrun", "deepspeed")
    assert [call["argv"] for call in prepared] == [["two words"]] * (1 + len(others))
    assert [call["argv"][-len(WORDS) :] for call in trained] == [list(WORDS)]
    assert {call["folder"] for call in (*prepared, *trained)} == {str(folder)}
    assert {call["env"]["V"] for call in (*prepared, *trained)} == {"$(x) $$ it's"}
    assert pods.calls()[-1] == trained[0]
    assert (folder / "prepared").exists()


@pytest.mark.parametrize("make", [job, over_ssh])
@pytest.mark.parametrize("index", [0, 1])
def test_a_pod_whose_preparing_fails_fails_with_its_code_and_is_never_reached(pods, make, index):
    pods.launcher("prepare-it", code=3)
    wanted = make(folder=str(pods.folder), prepare=(("prepare-it",), ("touch", "later")))
    assert pods.run(wanted, index)[0] == 3
    assert [call["name"] for call in pods.calls()] == ["prepare-it"]
    assert not (pods.folder / "later").exists()
    assert not (pods.place(index) / "run/stackyard/sshd.pid").exists()


def test_the_code_of_a_training_is_its_pods(pods):
    pods.launcher("torchrun", code=7)
    assert pods.run(job(folder=str(pods.folder)), 1)[0] == 7


# Over ssh: the first pod trains on all


def test_the_first_pod_waits_for_all_trains_once_and_ends_the_others(pods):
    documents = rendered(over_ssh(nodes=3, folder=str(pods.folder)))
    first = pods.start(documents, 0)
    late = "toy-node-0-1.toy"
    until(lambda: pods.lines("asked").count(late) > 1)
    assert pods.calls() == []
    others = [pods.start(documents, index) for index in (1, 2)]
    assert [pod.wait(30) for pod in (first, *others)] == [0, 0, 0]
    assert len(pods.calls("deepspeed")) == 1
    assert pods.lines("told") == ["toy-node-0-1.toy,toy-node-0-2.toy"]
    assert (pods.place(0) / "said").read_text() == "3 nodes are reachable and prepared\n"


def test_a_training_that_fails_ends_its_pod_and_leaves_the_others_to_the_cluster(pods):
    pods.launcher("deepspeed", code=7)
    documents = rendered(over_ssh(folder=str(pods.folder)))
    other = pods.start(documents, 1)
    assert pods.start(documents, 0).wait(30) == 7
    assert (pods.lines("told"), other.poll()) == ([], None)


def test_a_pod_that_never_comes_is_named_with_what_ssh_said_of_it(pods):
    (pods.folder / "clock").write_text(CLOCK)
    wanted, where = over_ssh(folder=str(pods.folder)), site(wait_seconds=630)
    code, said = pods.run(wanted, where=where, BASH_ENV=str(pods.folder / "clock"))
    late = "toy-node-0-1.toy"
    assert (code, said) == (
        1,
        f"{late} could not be reached within 630 s: connect to host {late}: Connection refused\n",
    )
    # Once at the start and after each of the eleven minutes that it takes to pass the limit.
    assert pods.lines("asked").count(late) == 12
    assert pods.calls() == []


def test_keys_are_copied_with_nobody_else_able_to_read_them(pods):
    documents = rendered(over_ssh(folder=str(pods.folder)))
    for index in (1, 0):
        pods.start(documents, index)
    until(lambda: pods.calls("deepspeed"))
    for index in (0, 1):
        run = pods.place(index) / "run/stackyard"
        keys = {path.name: path.read_bytes() for path in (run / "mesh").iterdir()}
        assert keys == {
            "known_hosts": b"all nodes", "port": b"2222\n",
            "host_key": f"host {index}".encode(), "user_key": b"u%d" % index,
        }  # fmt: skip
        private = [run / "mesh", run / "launch", *(run / "mesh").iterdir(),
                   *(run / "launch").iterdir()]  # fmt: skip
        assert [p for p in private if p.is_symlink() or stat.S_IMODE(p.stat().st_mode) & 0o77] == []
        assert not (run / "arriving").exists()


def test_what_launchers_read_is_on_every_pod_and_in_no_variable(pods):
    wanted = over_ssh(env={"TOKENS": "$(reboot)"}, folder=str(pods.folder), per_node=2)
    documents = rendered(wanted)
    for index in (1, 0):
        pods.start(documents, index)
    until(lambda: pods.calls("deepspeed"))
    for index in (0, 1):
        launch = pods.place(index) / "run/stackyard/launch"
        assert {path.name: path.read_text() for path in launch.iterdir()} == {
            "hostfile": "toy-node-0-0.toy slots=2\ntoy-node-0-1.toy slots=2\n",
            # Every pod has TOKENS already, and no shell on the way may see it.
            "deepspeed_env": "",
        }
    (call,) = pods.calls("deepspeed")
    launch = pods.place(0) / "run/stackyard/launch"
    assert call["env"]["DS_ENV_FILE"] == str(launch / "deepspeed_env")
    assert call["argv"][:2] == ["--hostfile", str(launch / "hostfile")]
    include = call["argv"][call["argv"].index("--include") + 1]
    assert include == "toy-node-0-0.toy:0,1@toy-node-0-1.toy:0,1"
    assert "TOKENS" not in json.dumps(documents["files.yaml"])
