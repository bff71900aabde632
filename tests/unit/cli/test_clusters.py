"""Runs on clusters: what is typed to a job, to files, to what is called, shown and exited with."""

import json
import signal
import stat

import pytest
import yaml

from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import ExportRequest, LogsRequest, RunRequest, StatusRequest
from stackyard.cli.steps import clusters, hosts
from stackyard.cli.steps import run as steps
from stackyard.definitions.project import load_project
from stackyard.schedulers import client, request
from stackyard.schedulers.client import State, Submitted
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.kubernetes_state import PodState, RunState
from stackyard.schedulers.request import ClusterArguments, make_cluster_job
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.schedulers.slurm_state import Choice, JobStatus
from stackyard.system import process
from stackyard.system.errors import (
    CommandError,
    DefinitionError,
    EngineError,
    NothingToRunOn,
    StackyardError,
    UsageError,
)
from stackyard.system.image import ImageInfo
from tests.schemas.kubernetes import problems
from tests.schemas.published import refused as unfit
from tests.unit.lines import run, type_line

PROJECT = load_project()
FAR = "registry.example/toy:cpu"


# A line is about a cluster or about hosts


@pytest.fixture
def typed(monkeypatch):
    """Type a line: the steps that it leads to, with their request, and the exit code."""
    calls = []

    def replace(module, name):
        def called(terminal, asked):
            calls.append((module.__name__.rpartition(".")[2], name, asked))
            return {}, 0

        monkeypatch.setattr(module, name, called)

    for name in ("export", "run", "status", "logs", "stop"):
        replace(clusters, name)
        if name != "export":
            replace(steps if name == "run" else hosts, name)
    return lambda line: (type_line(monkeypatch, line), calls)


def given(**changes):
    return ClusterArguments(**{"cluster": "slurm", "stack": "fairseq", **changes})


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("export slurm fairseq --nodes 2 -- a", "clusters"),
        ("run fairseq --on slurm --nodes 2 --example lm-ddp", "clusters"),
        ("run fairseq --nodes 2 --hosts a --lease 5 -- b", "clusters"),
        ("run fairseq --site a -- b", "clusters"),
        ("run fairseq --out a -- b", "clusters"),
        ("run fairseq --runtime pyxis -- b", "clusters"),
        ("run fairseq --example lm-ddp", "run"),
        ("status --on slurm --job 7", "clusters"),
        ("status --job 7", "clusters"),
        ("status", "hosts"),
        ("logs --on kubernetes --job a --site s --follow", "clusters"),
        ("logs --job a", "hosts"),
        ("stop --on slurm --job 7 --json", "clusters"),
        ("stop", "hosts"),
    ],
)
def test_a_line_is_about_a_cluster_or_about_hosts(typed, line, module):
    code, ((called, name, _),) = typed(line)
    assert (code, called, name) == (0, module, line.split()[0])


def test_a_request_is_handed_down_whole():
    asked = RunRequest(
        stack="fairseq", on="slurm", nodes=2, per_node=3, gpus=0, base="cpu", image="i", site="s",
        name="n", example="e", words=("-w",), launcher="l", set="a=1", save="/s", folder="/f",
        runtime="r",
    )  # fmt: skip
    assert clusters.arguments_of(asked, asked.on) == given(
        nodes=2, per_node=3, gpus=0, base="cpu", image="i", site="s", name="n", example="e",
        words=("-w",), launcher="l", settings="a=1", save="/s", folder="/f", runtime="r",
    )  # fmt: skip


def test_options_for_hosts_are_told_from_those_left_alone():
    plain = RunRequest(stack="fairseq")
    assert not any(clusters.only_on_hosts(plain).values())
    asked = RunRequest(
        stack="fairseq", hosts="a", include="a", exclude="b", restarts=1, lease=5.0, overlay=("m",),
        despite=("f",), accelerate_config="a.yaml",
    )  # fmt: skip
    found = clusters.only_on_hosts(asked)
    assert all(found.values()) and sorted(found) == [
        "--accelerate-config", "--despite", "--exclude", "--hosts", "--include", "--lease",
        "--overlay", "--restarts",
    ]  # fmt: skip


# From arguments to a job


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder to type in, on a machine with neither Slurm nor an engine."""
    monkeypatch.chdir(tmp_path)

    def nothing(*args, **named):
        raise EngineError("no engine")

    def missing(*, file):
        raise NothingToRunOn("scontrol is not on this machine")

    monkeypatch.setattr(request, "Engine", nothing)
    monkeypatch.setattr(request.slurm_client, "detect", missing)
    monkeypatch.setattr(request.time, "strftime", lambda form: "1121-120000")
    return tmp_path


def site(here, text="slurm: {runtime: filesystem}\nkubernetes:\n"):
    (here / "site.yml").write_text(text)


def made(*, away=True, **changes):
    usual = {"example": "lm-ddp", "nodes": 2, "gpus": 0}
    return make_cluster_job(PROJECT, given(**{**usual, **changes}), away=away)


def refused(**changes):
    with pytest.raises(UsageError) as caught:
        made(**changes)
    return str(caught.value)


def test_an_example_becomes_a_job_with_a_fresh_folder_on_every_node(here):
    site(here, "slurm: {runtime: filesystem, binds: {/data: /data}}")
    job = made(settings="updates=7", per_node=3).job
    folder = "/tmp/stackyard-lm-ddp-1121-120000"
    assert (job.name, job.nodes, job.per_node, job.device) == ("lm-ddp-1121-120000", 2, 3, "cpu")
    assert job.image == "stackyard/fairseq:cpu"
    assert job.prepare[0] == ("rm", "-rf", folder)
    assert job.prepare[1][-1] == f"{folder}/data"
    assert {f"{folder}/data/bin", "--max-update=7", f"--save-dir={folder}/checkpoints"} <= set(
        job.program
    )
    assert job.binds == {"/data": "/data"}
    # A pod is new: it has nothing to remove.
    assert made(cluster="kubernetes").job.prepare[0][0] == "python3"


def test_a_command_runs_by_the_stacks_launcher_or_another(here):
    site(here)
    job = made(example="", words=("a.py", "-x"), folder="/code").job
    assert (job.program, job.launcher, job.folder) == (("a.py", "-x"), "torchrun", "/code")
    assert job.name == "fairseq-1121-120000"
    job = made(example="", words=("a",), launcher="accelerate", settings="zero_stage=2").job
    assert (job.launcher, job.options) == ("accelerate", {"zero_stage": "2"})
    assert made(example="", words=("a",), name="mine").job.name == "mine"


def test_another_launcher_leaves_the_examples_options_behind(here):
    site(here)
    assert made().job.options == {"rendezvous": "c10d"}
    job = made(launcher="deepspeed").job
    assert (job.launcher, job.options) == ("deepspeed", {})


@pytest.mark.parametrize(
    ("changes", "base", "per_node"),
    [
        ({"gpus": 16}, "cuda", 8),
        ({"gpus": 16, "per_node": 8}, "cuda", 8),
        ({"gpus": None, "per_node": 4}, "cuda", 4),
        ({"gpus": 0, "per_node": 4}, "cpu", 4),
        ({"gpus": None, "base": "cpu"}, "cpu", 1),
    ],
)
def test_gpus_are_those_of_the_whole_job(here, changes, base, per_node):
    site(here)
    job = made(**changes).job
    assert (job.base, job.per_node, job.device) == (
        base, per_node, "cpu" if base == "cpu" else "cuda",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cluster": ""}, "no cluster is named"),
        ({"cluster": "slrm"}, "did you mean 'slurm'?"),
        ({"nodes": 0}, "say on how many nodes"),
        ({"per_node": 0}, "say on how many nodes"),
        ({"nodes": 3, "gpus": 16}, "3 nodes cannot have equally many each"),
        ({"gpus": 16, "per_node": 2}, "2 nodes cannot have 2 each"),
        ({"gpus": 1, "nodes": 2}, "--gpus 2"),
        ({"gpus": 2, "base": "cpu"}, "base 'cpu' is for cpu ranks, --gpus 2 asks for GPUs"),
        ({"gpus": 0, "base": "ngc"}, "base 'ngc' is for cuda ranks, --gpus 0 asks for CPU ranks"),
        (
            {"others": {"--hosts": "a", "--lease": False, "--overlay": [], "--despite": []}},
            "--hosts: for runs on hosts, not on slu",
        ),
        ({"stack": "fairsek"}, "did you mean 'fairseq'?"),
        ({"example": ""}, "say what is to run"),
        ({"example": "lm-dpp"}, "did you mean 'lm-ddp'?"),
        ({"words": ("a",)}, "'a' is no argument for lm-ddp"),
        ({"launcher": "mpirun"}, "there is no launcher 'mpirun'"),
        ({"settings": "updats=1"}, "did you mean 'updates'?"),
        ({"example": "", "words": ("a",), "settings": "restart=1"}, "no option 'restart'"),
        ({"site": "far.yml"}, "far.yml cannot be read"),
        ({"stack": "megatron", "example": "gpt-3d"}, "needs a multiple of 4 ranks, not 2"),
    ],
)
def test_what_does_not_fit_is_refused(here, changes, said):
    site(here)
    assert said in refused(**changes)


def test_a_site_that_was_named_must_speak_of_its_cluster(here):
    (here / "far.yml").write_text("kubernetes: {namespace: team}")
    assert made(cluster="kubernetes", site="far.yml").site == KubernetesSite(namespace="team")
    assert "far.yml says nothing of slurm" in refused(site="far.yml")
    site(here, "slurm: {runtime: pyxis}")
    assert made(cluster="kubernetes").site == KubernetesSite()


def test_a_wrong_site_is_refused_with_its_lines(here):
    site(here, "slurm:\n  minuts: 3\n")
    with pytest.raises(DefinitionError, match="1 problem") as caught:
        made()
    assert "site.yml:2: slurm.minuts" in caught.value.why


def test_the_runtime_is_found_where_slurm_is(here, monkeypatch):
    monkeypatch.setattr(
        request.slurm_client, "detect", lambda file: Choice(runtime="pyxis", why="srun has it")
    )
    found = made()
    assert found.site.runtime == "pyxis"
    assert "runtime pyxis: srun has it" in found.notes


def test_what_is_typed_of_the_image_stands_above_the_site(here):
    site(here, "slurm: {runtime: pyxis, image: lab/toy, partition: gpu}")
    found = made(runtime="squashfs", image="/images/toy.sqsh").site
    assert found == SlurmSite(runtime="squashfs", image="/images/toy.sqsh", partition="gpu")
    assert made(image=FAR).site.image == "lab/toy", "a reference is the job's"
    assert "did you mean 'squashfs'?" in refused(runtime="squash")
    assert "--runtime: for Slurm" in refused(cluster="kubernetes", runtime="squashfs")


@pytest.mark.parametrize(
    ("image", "file"), [("/a.sqsh", True), ("/a.squashfs", True), ("/a.sif", False), ("/a", False)]
)
def test_a_squashfs_file_is_looked_for_a_runtime_of_its_own(here, monkeypatch, image, file):
    asked = []
    monkeypatch.setattr(
        request.slurm_client, "detect",
        lambda file: asked.append(file) or Choice(runtime="pyxis", why="srun has it"),
    )  # fmt: skip
    made(image=image)
    assert asked == [file]


def test_an_unknown_runtime_is_said_with_what_to_write(here):
    said = refused()
    assert "names no runtime" in said
    assert "slurm: {runtime: pyxis}" in said
    with pytest.raises(NothingToRunOn, match="scontrol"):
        made(away=False)


class Held:
    """An engine that holds one image."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def image(self, reference):
        if reference != "stackyard/fairseq:cpu":
            return None
        env = ("PATH=/opt/bin:/bin", "A=b=c")
        return ImageInfo(id="1", tags=(), labels={}, env=env, size=1, layers=())


@pytest.mark.parametrize(
    ("text", "image", "env"),
    [
        ("{runtime: filesystem}", "", {"PATH": "/opt/bin:/bin", "A": "b=c"}),
        ("{runtime: oci, image: /a}", "", {"PATH": "/opt/bin:/bin", "A": "b=c"}),
        ("{runtime: oci, image: /a, image_env: {PATH: /x}}", "", {"PATH": "/x"}),
        ("{runtime: pyxis}", "", {}),
        ("{runtime: filesystem}", FAR, {}),
    ],
)
def test_a_runtime_that_brings_no_environment_is_given_the_images(
    here, monkeypatch, text, image, env
):
    monkeypatch.setattr(request, "Engine", Held)
    site(here, f"slurm: {text}")
    assert made(image=image).site.image_env == env


def test_an_environment_that_is_not_known_is_told(here):
    site(here)
    assert any("no engine here holds stackyard/fairseq:cpu" in note for note in made().notes)


@pytest.mark.parametrize(
    ("text", "image", "told"),
    [
        ("kubernetes:", "", True),
        ("kubernetes:", "lab/toy:cpu", True),
        ("kubernetes:", FAR, False),
        ("kubernetes:", "localhost/toy", False),
        ("slurm: {runtime: pyxis}", "", True),
        ("slurm: {runtime: pyxis, image: /a.sqsh}", "", False),
        ("slurm: {runtime: filesystem}", "", False),
    ],
)
def test_an_image_that_a_cluster_cannot_pull_is_told(here, text, image, told):
    site(here, text)
    notes = made(cluster=text.partition(":")[0], image=image).notes
    assert any("must be able to pull" in note for note in notes) == told


@pytest.mark.parametrize(
    ("text", "save", "told"),
    [
        ("slurm: {runtime: filesystem}", "", True),
        ("slurm: {runtime: filesystem}", "/shared/a", False),
        ("slurm: {runtime: pyxis}", "/shared/a", True),
        ("slurm: {runtime: pyxis, binds: {/shared: /nfs}}", "/shared/a", False),
        ("slurm: {runtime: pyxis, binds: {/shared: /nfs}}", "/shared2", True),
        ("kubernetes: {binds: {/shared: pvc:work}}", "/shared", False),
        ("kubernetes:", "", True),
    ],
)
def test_checkpoints_that_would_be_lost_are_told(here, text, save, told):
    site(here, text)
    notes = made(cluster=text.partition(":")[0], save=save).notes
    assert any(note.startswith("checkpoints go to") for note in notes) == told


# Files


class Warden:
    """Keeps what it was told, in place of a process."""

    said: list = []  # noqa: RUF012

    def send(self, line):
        self.said.append(json.loads(line))

    def finish(self):
        pass


@pytest.fixture
def quiet(monkeypatch):
    """No process is started for what is to be undone."""
    monkeypatch.setattr(Warden, "said", [])
    monkeypatch.setattr(process, "Warden", Warden)


def exported(capsys, cluster, **changes):
    usual = {"stack": "fairseq", "cluster": cluster, "example": "lm-ddp", "nodes": 2, "gpus": 0}
    asked = ExportRequest(**{**usual, "out": "out", **changes})
    code = run(clusters.export, asked, as_json=True)
    value = json.loads(capsys.readouterr().out)
    assert unfit("answers/error" if code else "answers/export", value) == []
    return code, value


@pytest.mark.usefixtures("quiet")
def test_an_export_for_slurm_is_one_script(here, capsys):
    site(here)
    code, value = exported(capsys, "slurm")
    assert (code, value["files"], value["folder"]) == (0, ["job.sh"], str(here / "out"))
    assert value["type"][0] == f"in {here / 'out'}: sbatch job.sh"
    text = (here / "out" / "job.sh").read_text()
    assert "#SBATCH --nodes=2" in text
    assert "fairseq-train" in text
    assert sorted(path.name for path in here.iterdir()) == ["out", "site.yml"]
    assert [sign for sign, *_ in Warden.said] == ["+", "-"]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", ["jobset", "job"])
@pytest.mark.parametrize(
    ("stack", "example"),
    [("fairseq", "lm-ddp"), ("megatron", "gpt-tp"), ("accelerate", "llama-zero3")],
)
def test_an_export_for_kubernetes_fits_the_schemas(here, capsys, stack, example, kind):
    site(here, f"kubernetes: {{kind: {kind}, binds: {{/data: pvc:work}}}}")
    code, value = exported(capsys, "kubernetes", stack=stack, example=example, image=FAR)
    assert code == 0
    documents = [yaml.safe_load((here / "out" / name).read_text()) for name in value["files"]]
    assert [problems(document) for document in documents] == [[]] * len(documents)
    assert str(here / "out") in value["type"][0]


@pytest.mark.usefixtures("quiet")
def test_keys_are_written_for_their_owner_alone(here, capsys):
    site(here)
    exported(capsys, "kubernetes", stack="megatron", example="gpt-tp")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (here / "out").iterdir()}
    assert modes.pop("secret.yaml") == 0o600
    assert set(modes.values()) == {0o644}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("cluster", ["slurm", "kubernetes"])
def test_what_is_there_already_is_left_as_it_is(here, capsys, cluster):
    site(here)
    (here / "out").mkdir()
    (here / "out" / "mine").write_text("a")
    code, value = exported(capsys, cluster)
    assert code == 2
    assert "does not exist yet" in value["error"]["hint"]
    assert [path.name for path in (here / "out").iterdir()] == ["mine"]
    assert sorted(path.name for path in here.iterdir()) == ["out", "site.yml"]


@pytest.mark.usefixtures("quiet")
def test_an_export_that_fails_half_way_leaves_nothing(here, capsys, monkeypatch):
    site(here)

    def full(folder, files):
        (folder / "job.sh").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client, "_write", full)
    code, value = exported(capsys, "slurm")
    assert (code, value["error"]["what"].endswith("No space left on device")) == (2, True)
    assert [path.name for path in here.iterdir()] == ["site.yml"]


# A run from its submission to its end


class Fake:
    """A cluster that says what it is told to, and keeps what it was asked."""

    def __init__(self, state="done", lines=(), error=None, during=None, folder=None):
        self.end, self.lines, self.error = State(job="7", state=state), lines, error
        self.during, self.folder, self.asked = during, folder, []

    def submit(self, job, folder):
        self.asked.append(("submit", job.name, folder))
        if self.during:
            signal.raise_signal(self.during)
        self.asked.append("submitted")
        return Submitted(job="7", folder=self.folder)

    def follow(self, job, nodes, line, say):
        self.asked.append(("follow", job, nodes))
        for text in self.lines:
            line("0", text)
        if self.error:
            raise self.error
        return self.end

    def cancel(self, job):
        self.asked.append(("cancel", job))
        return State(job=job, state="cancelled")


@pytest.fixture
def ran(here, quiet, monkeypatch, capsys):
    """Run an example on a fake cluster: exit code, value, and what was said beside it."""
    site(here)

    def run_one(fake, *, detach=False, as_json=True):
        monkeypatch.setattr(clusters, "cluster_of", lambda site: fake)
        asked = RunRequest(
            stack="fairseq", on="slurm", example="lm-ddp", nodes=2, gpus=0, name="a", detach=detach
        )
        code = run(clusters.run, asked, as_json=as_json)
        out, err = capsys.readouterr()
        if as_json:
            assert unfit("answers/run" if code < 2 else "answers/error", json.loads(out)) == []
        return code, json.loads(out) if as_json else out, err

    return run_one


def test_a_run_is_submitted_and_followed_to_its_end(ran):
    fake = Fake(lines=["loss=3"])
    code, value, _ = ran(fake)
    assert (code, value["outcome"], value["state"]) == (0, "passed", "done")
    assert (value["job"], value["name"], value["nodes"]) == ("7", "a", 2)
    assert fake.asked == [("submit", "a", ""), "submitted", ("follow", "7", 2)]
    code, out, _ = ran(Fake(lines=["loss=3"]), as_json=False)
    assert (code, out) == (0, "0 | loss=3\n7 is done\n")


@pytest.mark.parametrize("state", ["failed", "cancelled", "gone"])
def test_a_run_that_did_not_end_well_fails(ran, state):
    code, value, _ = ran(Fake(state))
    assert (code, value["outcome"], value["state"]) == (1, "failed", state)


def test_a_known_failure_is_named(ran):
    lines = ["OSError: [Errno 28] No space left on device"]
    code, value, _ = ran(Fake("failed", lines=lines))
    assert (code, [one["id"] for one in value["diagnoses"]]) == (1, ["disk-full"])


def test_ctrl_c_cancels_and_leaves_nothing(ran, here):
    folder = here / "a"
    folder.mkdir()
    (folder / "job.sh").write_text("")
    fake = Fake(error=KeyboardInterrupt(), folder=folder)
    assert ran(fake)[0] == 130
    assert fake.asked[-1] == ("cancel", "7")
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_submitting_waits_until_the_job_can_be_cancelled(ran, number):
    fake = Fake(during=number)
    assert ran(fake)[0] == 130
    assert fake.asked == [("submit", "a", ""), "submitted", ("cancel", "7")]


def test_a_job_that_goes_on_without_us_is_not_ended(ran):
    fake = Fake(error=StackyardError("slurmctld does not answer"))
    code, _, err = ran(fake)
    assert code == 4
    assert "cancel" not in [asked[0] for asked in fake.asked]
    assert "invoke stop --on slurm --job 7 ends it" in err


def test_a_detached_run_is_not_followed(ran):
    fake = Fake()
    code, value, _ = ran(fake, detach=True)
    assert (code, value["outcome"], value["job"]) == (0, "running", "7")
    assert fake.asked == [("submit", "a", ""), "submitted"]
    assert "invoke logs --on slurm --job 7 --follow" in ran(Fake(), detach=True, as_json=False)[1]


# The two clusters


def job_status(state, reason=""):
    return JobStatus(
        job_id="7", state=state, slurm=state.upper(), code=0 if state == "done" else None,
        reason=reason, nodes="node[1-2]", log="/a/x-7.log",
    )  # fmt: skip


@pytest.fixture
def slurm(monkeypatch):
    """Slurm's client, answering in turn; and the cluster that asks it."""
    monkeypatch.setattr(client, "POLL_SECONDS", 0.0)

    def answering(*states, said=()):
        left = list(states)

        def logs(job, follow, on_line):
            for text in said:
                on_line(text)
            return left[-1]

        def status(job, patience=0.0):
            return left.pop(0) if len(left) > 1 else left[0]

        for name, called in (("status", status), ("logs", logs), ("cancel", status)):
            monkeypatch.setattr(client.slurm_client, name, called)
        return client.SlurmCluster(SlurmSite(runtime="pyxis"))

    return answering


def followed(cluster, nodes=2):
    lines, said = [], []
    state = cluster.follow("7", nodes, lambda *line: lines.append(line), said.append)
    return state, lines, said


def test_a_job_of_slurm_is_waited_for_and_its_lines_are_told_apart(slurm):
    waiting = job_status("waiting", "Resources")
    states = [waiting, waiting, job_status("running"), job_status("done")]
    state, lines, said = followed(slurm(*states, said=["stackyard: x", "0: a", "1: ", "10: b: c"]))
    assert (state.state, state.code, state.log) == ("done", 0, "/a/x-7.log")
    assert lines == [("", "stackyard: x"), ("0", "a"), ("1", ""), ("10", "b: c")]
    assert said == [
        "is waiting; WAITING (Resources); node[1-2]", "is running; RUNNING; node[1-2]",
    ]  # fmt: skip


def test_a_folder_is_made_for_slurm_and_goes_when_slurm_refuses(here, quiet, monkeypatch):
    site(here)
    job, cluster = made().job, client.SlurmCluster(SlurmSite(runtime="pyxis"))
    monkeypatch.setattr(client.slurm_client, "submit", lambda folder: f"in {folder.name}")
    submitted = cluster.submit(job, "")
    assert submitted == Submitted(job=f"in {job.name}", folder=here / job.name)
    assert [path.name for path in submitted.folder.iterdir()] == ["job.sh"]

    def refuse(folder):
        raise CommandError("no", code=1)

    monkeypatch.setattr(client.slurm_client, "submit", refuse)
    with pytest.raises(CommandError):
        cluster.submit(job, "other")
    assert not (here / "other").exists()
    with pytest.raises(UsageError, match="cannot be made"):
        cluster.submit(job, "")
    assert submitted.folder.exists()


def run_state(state, *pods):
    made = (PodState(name=f"p-{i}", machine="", state=s, why="") for i, s in enumerate(pods))
    return RunState(run="7", state=state, why="", pods=tuple(made))


@pytest.fixture
def kubernetes(monkeypatch):
    """kubectl's part, answering in turn; and the cluster that asks it."""
    monkeypatch.setattr(client, "POLL_SECONDS", 0.0)

    def answering(*states, error=None):
        left, asked = list(states), []

        def logs(site, run, on_line, *, pods, follow=False):
            asked.append((pods, follow, len(left)))
            on_line("p-0", "a")
            if error:
                raise error

        kubectl = client.kubernetes_client
        monkeypatch.setattr(kubectl, "status", lambda site, run: left.pop(0))
        monkeypatch.setattr(kubectl, "logs", logs)
        return client.KubernetesCluster(KubernetesSite()), asked

    return answering


def test_pods_are_listened_to_when_all_have_started(kubernetes):
    cluster, asked = kubernetes(
        run_state("queued"), run_state("starting", "Pending", "Pending"),
        run_state("running", "Running", "Pending"), run_state("running", "Running", "Running"),
        run_state("running", "Succeeded", "Running"), run_state("succeeded", "Succeeded"),
    )  # fmt: skip
    state, lines, said = followed(cluster)
    assert (state.state, lines) == ("done", [("p-0", "a")])
    assert asked == [(2, True, 2)]
    assert said[:2] == ["is waiting", "is waiting; p-0 Pending; p-1 Pending"]


def test_a_run_that_failed_before_it_was_whole_gives_what_it_said(kubernetes):
    cluster, asked = kubernetes(
        run_state("running", "Failed", "Pending"), run_state("failed", "Failed"),
        run_state("failed", "Failed"),
    )  # fmt: skip
    state, lines, _ = followed(cluster)
    assert (state.state, lines, asked) == ("failed", [("p-0", "a")], [(2, False, 1)])


def test_a_run_goes_on_without_its_words(kubernetes):
    error = CommandError("kubectl", code=1, why="connection reset")
    cluster, _ = kubernetes(
        run_state("running", "Running", "Running"), run_state("succeeded"), error=error
    )
    state, _, said = followed(cluster)
    assert state.state == "done"
    assert "its output cannot be shown: connection reset" in said


def test_a_run_that_somebody_removed_is_gone(kubernetes):
    cluster, asked = kubernetes(run_state("gone"))
    assert (followed(cluster)[0].state, asked) == ("gone", [])
    with pytest.raises(UsageError, match="there is no run 7"):
        kubernetes(run_state("gone"))[0].logs("7", lambda *line: None, follow=False)


def test_a_run_on_kubernetes_writes_nothing_here(here, monkeypatch):
    site(here)
    given_ = {}
    monkeypatch.setattr(
        client.kubernetes_client, "submit", lambda site, files: given_.update(files) or "n"
    )
    cluster = client.KubernetesCluster(KubernetesSite())
    job = made(cluster="kubernetes", stack="megatron", example="gpt-tp").job
    assert cluster.submit(job, "") == Submitted(job=job.name, note="n")
    assert list(given_) == ["secret.yaml", "files.yaml", "jobset.yaml"]
    assert [path.name for path in here.iterdir()] == ["site.yml"]
    with pytest.raises(UsageError, match="--out"):
        cluster.submit(job, "a")


# Looking at a job, and ending it


def asked(on="slurm", job="7"):
    return StatusRequest(on=on, job=job)


def test_a_job_is_looked_at_and_listened_to_and_stopped(here, slurm, capsys):
    slurm(job_status("done"), said=["0: a"])
    assert run(clusters.status, asked()) == 0
    assert capsys.readouterr().out == (
        "7 is done (DONE), exit code 0; its log: /a/x-7.log\n  node[1-2]\n"
    )
    assert run(clusters.logs, LogsRequest(on="slurm", job="7"), as_json=True) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["lines"] == [{"node": "0", "text": "a"}] and unfit("answers/logs", value) == []
    slurm(job_status("cancelled"))
    assert run(clusters.stop, asked(), as_json=True) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["state"] == "cancelled" and unfit("answers/stop", value) == []


def test_a_clusters_job_is_not_watched_and_what_shows_it_is_named(here, slurm, capsys):
    slurm(job_status("running"))
    watched = StatusRequest(on="slurm", job="7", watch=True)
    assert run(clusters.status, watched, as_json=True) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"] == "--watch is for runs on hosts"
    assert error["hint"].startswith("invoke logs --on slurm --job 7 --follow")


@pytest.mark.parametrize(("on", "job"), [("slurm", ""), ("", "7"), ("lsf", "7")])
def test_a_job_must_be_named_with_its_cluster(here, on, job):
    calls = [
        run(clusters.status, asked(on, job)),
        run(clusters.logs, LogsRequest(on=on, job=job)),
        run(clusters.stop, asked(on, job)),
    ]
    assert calls == [2, 2, 2]


def test_variables_that_are_typed_replace_those_of_an_example(here):
    site(here)
    found = made(env=("OMP_NUM_THREADS=3", "MINE=x y")).job.env
    assert (found["OMP_NUM_THREADS"], found["MINE"]) == ("3", "x y")
    with pytest.raises(UsageError, match="MASTER_PORT cannot be set"):
        made(env=("MASTER_PORT=1",))


def test_what_nodes_tell_of_nccl_is_kept_for_the_end_and_not_shown(capsys):
    lines = clusters.Lines(Terminal(live=False))
    lines("0", "loss 3")
    for line in ("NET/Socket : Using [0]eth0:10.0.0.1<0>",
                 "Channel 00/0 : 0[0] -> 1[0] via NET/Socket/0"):  # fmt: skip
        lines("0", f"stackyard: nccl: node1:9:9 [0] NCCL INFO {line}")
    assert capsys.readouterr().out == "0 | loss 3\n"
    assert [kept["text"] for kept in lines.kept] == ["loss 3"]
    assert lines.transport.taken == {"node1": ("NET/Socket/0",)}
