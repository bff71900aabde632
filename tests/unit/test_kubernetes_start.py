"""What a pod does from its start to its end."""

import os
import shlex
import shutil
import subprocess

import pytest

from tests.unit.kubernetes_jobs import job, over_ssh, rendered, script, site


def words(text, begin):
    """The words of the command that begins so, over its continued lines."""
    lines = text.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if line.startswith(begin)]
    return shlex.split(line)


def placed(text, part):
    assert text.count(part) == 1, f"{part!r} is {text.count(part)} times in\n{text}"
    return text.index(part)


def test_torchrun_meets_at_the_first_pod():
    found = words(script(rendered(job())), "exec torchrun")
    assert "--nnodes=2" in found
    assert "--nproc-per-node=8" in found
    assert "--rdzv-backend=c10d" in found
    assert "--rdzv-endpoint=toy-node-0-0.toy:29500" in found
    assert "--local-addr=toy-node-0-$STACKYARD_NODE_INDEX.toy" in found
    assert "--rdzv-conf=is_host=$host,join_timeout=900,read_timeout=900" in found
    assert found[-2:] == ["train.py", "--data=/data"]


def test_torchrun_starts_ranks_again_as_often_as_the_job_says():
    assert "--max-restarts" not in script(rendered(job()))
    found = words(script(rendered(job(options={"restarts": "3"}))), "exec torchrun")
    assert "--max-restarts=3" in found


def test_pods_of_a_job_are_named_without_a_set():
    found = words(script(rendered(job(), site(kind="job"))), "exec torchrun")
    assert "--rdzv-endpoint=toy-0.toy:29500" in found
    assert "--local-addr=toy-$STACKYARD_NODE_INDEX.toy" in found


def test_a_console_script_is_no_python_file():
    found = words(script(rendered(job(program=("fairseq-train", "/data")))), "exec torchrun")
    assert found[-3:] == ["--no-python", "fairseq-train", "/data"]


def test_a_lone_pod_meets_nobody():
    text = script(rendered(job(nodes=1)))
    assert "rdzv" not in text
    assert words(text, "exec torchrun")[2:4] == ["--nnodes=1", "--nproc-per-node=8"]


@pytest.mark.parametrize("make", [job, over_ssh])
def test_words_stay_words(make):
    program = ("train.py", "--note=it's $HOME; rm -rf `x` 50%", "$(reboot)", "a\nb")
    text = script(rendered(make(program=program, prepare=(("echo", "two words"),))))
    begin = "exec torchrun" if make is job else "deepspeed"
    # The word with a line break ends the line that `words` looks at: shlex reads the whole script.
    assert set(program) <= set(shlex.split(text[text.index(f"\n{begin}") :], comments=True))
    assert "\necho 'two words'\n" in text


@pytest.mark.parametrize("make", [job, over_ssh])
def test_preparing_comes_before_training_in_the_jobs_folder(make):
    wanted = make(folder="/srv/my work", prepare=(("first",), ("second",)))
    text = script(rendered(wanted))
    training = "exec torchrun" if make is job else "\ndeepspeed "
    order = ["cd '/srv/my work'", "\nfirst\n", "\nsecond\n", training]
    assert [placed(text, part) for part in order] == sorted(placed(text, part) for part in order)


def test_a_node_is_reachable_only_when_it_is_prepared():
    text = script(rendered(over_ssh(prepare=(("prepare-it",),))))
    assert placed(text, "\nprepare-it\n") < placed(text, "exec python3 /usr/local/lib/stackyard")


def test_the_first_pod_waits_for_all_starts_the_training_and_ends_the_others():
    text = script(rendered(over_ssh(nodes=3)))
    wait = "for node in toy-node-0-0.toy toy-node-0-1.toy toy-node-0-2.toy; do"
    end = 'pdsh -S -R ssh -w toy-node-0-1.toy,toy-node-0-2.toy "$end"'
    assert placed(text, wait) < placed(text, "\ndeepspeed --hostfile") < placed(text, end)
    assert text.endswith(f"{end}\n")


def test_keys_are_copied_with_nobody_else_able_to_read_them():
    text = script(rendered(over_ssh()))
    assert placed(text, "umask 077") < placed(text, "cp --dereference /etc/stackyard/mesh/*")
    assert "/run/stackyard/arriving /run/stackyard/mesh" in text


def test_what_launchers_read_comes_with_the_script():
    documents = rendered(over_ssh(env={"TOKENS": "$(reboot)"}))
    data = documents["files.yaml"]["data"]
    assert data["launch.hostfile"] == "toy-node-0-0.toy slots=8\ntoy-node-0-1.toy slots=8\n"
    text = script(documents)
    for name in ("hostfile", "deepspeed_env"):
        copied = f"cp /etc/stackyard/run/launch.{name} /run/stackyard/launch/{name}\n"
        assert placed(text, "umask 077") < placed(text, copied)
    assert "export DS_ENV_FILE=/run/stackyard/launch/deepspeed_env\n" in text
    # Every pod has it already, and no shell on the way may see it.
    assert not [name for name, part in data.items() if "TOKENS" in part]


def test_every_pod_has_what_launchers_read():
    # Some launchers are started on each pod and read it there.
    text = script(rendered(over_ssh()))
    assert placed(text, "/launch.hostfile ") < placed(text, 'if [ "$STACKYARD_NODE_INDEX" != 0 ]')


def test_all_gpus_of_a_pod_are_used():
    found = words(script(rendered(over_ssh(per_node=2))), "deepspeed")
    include = found[found.index("--include") + 1]
    assert include == "toy-node-0-0.toy:0,1@toy-node-0-1.toy:0,1"


def test_accelerate_on_one_pod_finds_its_configuration():
    wanted = job(nodes=1, per_node=2, launcher="accelerate", options={"zero_stage": "3"})
    text = script(rendered(wanted))
    assert placed(text, "mkdir -p /run/stackyard/launch\n") < placed(text, "cp /etc/stackyard/run")
    assert "ssh" not in text


def test_how_long_pods_wait_for_each_other_is_the_clusters_setting():
    assert "SECONDS + 60" in script(rendered(over_ssh(), site(wait_seconds=60)))
    assert "join_timeout=60,read_timeout=60" in script(rendered(job(), site(wait_seconds=60)))


# The script in a real shell: what it waits for, in which order, and how it ends

FAKE = """#!/bin/sh
echo "$(basename "$0")${*:+ $*}" >> "$SAID"
case $(basename "$0") in
ssh) n=$(grep -c "^ssh $1" "$SAID"); [ "$n" -gt "${LATE:-0}" ] ;;
deepspeed|torchrun) exit "${CODE:-0}" ;;
esac
"""


class Pod:
    """A pod: its programs are stand-ins that say with which words they were started."""

    def __init__(self, folder):
        self.folder, self.said = folder, folder / "said"
        (folder / "bin").mkdir()
        for name in ("ssh", "sleep", "pdsh", "python3", "deepspeed", "torchrun", "first", "second"):
            (folder / "bin" / name).write_text(FAKE)
            (folder / "bin" / name).chmod(0o755)
        for name in ("mesh", "node", "run"):
            (folder / "etc" / name).mkdir(parents=True)
            (folder / "etc" / name / f"of-{name}").write_text(name)

    def run(self, wanted, index, before="", **env):
        """The exit code, what it printed, and the programs that it started."""
        documents = rendered(wanted)
        for name, text in documents["files.yaml"]["data"].items():
            (self.folder / "etc" / "run" / name).write_text(text)
        text = script(documents).replace("/etc/stackyard", f"{self.folder}/etc")
        text = text.replace("/run/stackyard", f"{self.folder}/run")
        self.said.write_text("")
        own = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SAID": str(self.said),
               "STACKYARD_NODE_INDEX": index}  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", before + text], env={**os.environ, **own, **env},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        return done.returncode, done.stdout + done.stderr, self.said.read_text().splitlines()


@pytest.fixture
def shell(tmp_path, allow_processes):
    return Pod(tmp_path)


PREPARE = (("first", "two words"), ("second",))


@pytest.mark.parametrize(("index", "keeps"), [("0", "1"), ("1", "0")])
def test_each_pod_prepares_and_then_becomes_torchrun(shell, tmp_path, index, keeps):
    wanted = job(prepare=PREPARE, folder=str(tmp_path / "my work"))
    code, said, started = shell.run(wanted, index)
    assert code == 0, said
    assert [words.partition(" --")[0] for words in started] == [
        "first two words", "second", "torchrun",
    ]  # fmt: skip
    assert f"is_host={keeps}," in started[-1]
    assert f"--local-addr=toy-node-0-{index}.toy " in started[-1]
    assert started[-1].endswith("train.py --data=/data")


@pytest.mark.parametrize("late", [0, 2])
def test_the_first_pod_trains_when_all_are_reachable_and_then_ends_them(shell, tmp_path, late):
    wanted = over_ssh(nodes=3, prepare=PREPARE, folder=str(tmp_path / "work"))
    code, said, started = shell.run(wanted, "0", LATE=str(late))
    assert code == 0 and "3 nodes are reachable and prepared" in said
    # Its own sshd starts beside what follows.
    order = [words.split()[0] for words in started if not words.startswith("python3")]
    asked = (["ssh"] + ["sleep", "ssh"] * late) * 3
    assert order == ["first", "second", *asked, "deepspeed", "pdsh"]
    names = [words.split()[1] for words in started if words.startswith("ssh")]
    assert list(dict.fromkeys(names)) == [f"toy-node-0-{n}.toy" for n in range(3)]
    assert "-w toy-node-0-1.toy,toy-node-0-2.toy" in started[-1]


def test_the_other_pods_wait_to_be_told(shell, tmp_path):
    code, said, started = shell.run(over_ssh(folder=str(tmp_path / "work")), "1")
    assert (code, len(started)) == (0, 1), said
    assert started[0].startswith("python3 /usr/local/lib/stackyard/node.py")


@pytest.mark.parametrize("make", [job, over_ssh])
def test_a_training_that_fails_fails_its_pod_and_ends_no_other(shell, tmp_path, make):
    code, _, started = shell.run(make(folder=str(tmp_path / "work")), "0", CODE="3")
    assert code == 3
    assert not [words for words in started if words.startswith("pdsh")]


@pytest.mark.parametrize("make", [job, over_ssh])
def test_a_pod_that_cannot_prepare_does_not_train(shell, tmp_path, make):
    wanted = make(prepare=(("false",),), folder=str(tmp_path / "work"))
    assert shell.run(wanted, "0")[::2] == (1, [])


def test_a_pod_that_is_never_reachable_ends_the_first_with_its_name(shell, tmp_path):
    # The shell's own clock, which goes on by a sleep only.
    clock = "sleep() { SECONDS=$((SECONDS + 400)); }\n"
    wanted = over_ssh(folder=str(tmp_path / "work"))
    code, said, started = shell.run(wanted, "0", clock, LATE="99")
    assert code == 1 and "toy-node-0-0.toy could not be reached within 900 s" in said
    names = [words.split()[0] for words in started if not words.startswith("python3")]
    assert names == ["ssh"] * 4
