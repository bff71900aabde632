"""What a pod does from its start to its end."""

import shlex

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
