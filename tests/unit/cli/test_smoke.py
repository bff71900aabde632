"""`invoke smoke`: which numbers make one, and what is told of its checks; `--junit`."""

import contextlib
import dataclasses
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from stackyard.build import catalog, host
from stackyard.build.builder import Builder, Built
from stackyard.cli import console
from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.options.trainings import BenchRequest, ProveRequest, SmokeRequest
from stackyard.cli.steps import certify, prove, smoke, smoke_slurm
from stackyard.definitions.project import load_project
from stackyard.mesh.preflight import NotReady
from stackyard.report import smokes
from stackyard.schedulers.request import slurm_site
from stackyard.system import process
from stackyard.system.errors import EngineError, NothingToRunOn, StackyardError, UsageError
from tests.unit import reports, samples, slurm_smokes
from tests.unit.report import test_certify
from tests.unit.report.test_junit import PROOFS


def ended(*outcomes, device="cpu", seconds=83.4, busy="", activate="", **more):
    made = [
        {**reports.good(), "stack": f"toy{n}", "outcome": one, **more}
        for n, one in enumerate(outcomes)
    ]
    return smoke.last_lines(made, seconds, device, busy, activate)


def test_a_failure_whose_cause_is_known_is_not_blamed_on_a_busy_machine():
    for kind, lines in (("cause", 1), ("consequence", 2)):
        assert len(ended("failed", busy="load 12", diagnoses=[{"kind": kind}])) == lines


def test_where_invoke_is_not_on_the_path_the_next_step_says_how_to_bring_it_there():
    first = ended("passed", activate=str(Path.cwd() / ".venv/bin/activate"))[1]
    assert first.startswith("next: . .venv/bin/activate, then invoke smoke toy0 --gpus 2")


def test_a_failure_on_a_busy_machine_says_so():
    # Three smokes at a load of 12 on 2 CPUs: two did not join within their 90 s.
    load = "load 12.0 on 2 CPUs"
    assert ended("failed", "passed", busy=load)[-1].startswith(
        f"other programs took this machine's CPUs ({load}):"
    )
    assert ended("failed") == ended("failed", busy="")
    assert ended("passed", busy=load) == ended("passed")


def test_the_last_lines_say_the_verdict_the_page_and_what_to_type_next():
    assert (
        ended("passed")[0] == "1 of 1 stack passed in 1 min 23 s; page: reports/toy0/cpu/smoke.html"
    )
    verdict, following = ended("passed", "passed", seconds=59.6)
    assert verdict == "2 of 2 stacks passed in 1 min 0 s; page: reports/index.html"
    assert following == (
        "next: invoke smoke --gpus 2 (on a GPU host), or docs/tutorials: own-stack.md,"
        " two-hosts.md, publish-pull.md"
    )
    assert ended("passed", device="cuda")[1] == "next: invoke publish toy0 --to REGISTRY/NAME"


def test_the_last_line_of_a_failure_names_the_failed_page():
    assert ended("passed", "failed", seconds=5.0) == [
        "1 of 2 stacks passed in 5 s; page: reports/toy1/cpu/smoke.html"
    ]


def test_the_last_line_says_of_how_many_a_check_was_not_run():
    assert ended("passed", "not run", seconds=5.0)[0].startswith(
        "1 of 2 stacks passed, 1 not run, in 5 s;"
    )


@pytest.mark.parametrize(
    ("gpus", "nodes", "kind", "what", "hint"),
    [
        (0, 3, UsageError, "a CPU smoke runs on 2 nodes, not on 3", "invoke smoke --gpus 0"),
        (2, 2, NothingToRunOn, "2 GPUs are wanted, none found on this machine",
         "run it where the GPUs are, or on CPU ranks: invoke smoke --gpus 0"),
    ],
)  # fmt: skip
def test_a_smoke_that_cannot_be_is_refused_with_what_to_type(
    monkeypatch, gpus, nodes, kind, what, hint
):
    monkeypatch.setattr(host, "gpu_count", lambda: 0)
    with pytest.raises(kind) as caught:
        smoke.node_count(gpus, nodes, "", "invoke smoke")
        host.require_gpus(gpus, "invoke smoke")
    assert (caught.value.what, caught.value.hint) == (what, hint)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"site": "s.yml", "out": "x"}, "--site and --out: only for a smoke on Slurm",
         "invoke smoke toy --on slurm"),
        ({"on": "kubernetes"}, "a smoke runs on Slurm, not on kubernetes",
         "invoke smoke toy --on slurm, or --hosts"),
        ({"on": "slurm", "hosts": "h.yml", "placement": "x"},
         "--hosts and --placement cannot be given with --on slurm", "invoke smoke toy --on slurm"),
    ],
)  # fmt: skip
def test_options_of_another_place_are_refused(options, what, hint):
    with pytest.raises(UsageError) as caught:
        smoke_slurm.require_fit(SmokeRequest(stack="toy", **options), "invoke smoke toy")
    assert (caught.value.what, caught.value.hint) == (what, hint)


@pytest.mark.parametrize("request_", [SmokeRequest, BenchRequest])
def test_only_on_slurm_is_a_path_an_image_of_the_nodes(request_):
    assert smoke_slurm.on_nodes(request_(on="slurm", image="/shared/x.sqsh"))
    assert not smoke_slurm.on_nodes(request_(on="slurm", image="toy:1"))
    assert not smoke_slurm.on_nodes(request_(image="/shared/x.sqsh"))


def test_a_site_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.yml cannot be read"):
        slurm_site(str(tmp_path / "nowhere.yml"), "", "stackyard/toy:cpu")


class Slurm:
    """What becomes of a submitted job."""

    def __init__(self, monkeypatch, number="17"):
        self.cancelled, self.number = [], number
        monkeypatch.setattr(smoke_slurm.slurm_client, "submit", self.submit)
        monkeypatch.setattr(smoke_slurm.slurm_client, "cancel", self.cancelled.append)

    def submit(self, folder):
        self.files = {path.name for path in folder.rglob("*") if path.is_file()}
        if not self.number:
            raise StackyardError("refused")
        return self.number


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, NotReady])
def test_a_submitted_smoke_is_cancelled_and_its_folder_removed_however_it_ends(
    tmp_path, monkeypatch, error
):
    slurm, plan = Slurm(monkeypatch), slurm_smokes.plan(tmp_path / "job")
    problem = error([]) if error is NotReady else error and error()
    with (
        contextlib.suppress(KeyboardInterrupt, NotReady),
        smoke_slurm.submitted(plan, console.Terminal()) as job,
    ):
        assert (job, plan.folder.is_dir()) == ("17", True)
        assert {"job.sh", "train.py", "image_digest.py", "stackyard_record.py"} == slurm.files
        if problem:
            raise problem
    assert (slurm.cancelled, plan.folder.exists()) == (["17"], False)


def test_a_smoke_that_slurm_refuses_leaves_no_folder(tmp_path, monkeypatch):
    slurm, plan = Slurm(monkeypatch, number=""), slurm_smokes.plan(tmp_path / "job")
    with (
        pytest.raises(StackyardError, match="refused"),
        smoke_slurm.submitted(plan, console.Terminal()),
    ):
        pass
    assert (slurm.cancelled, plan.folder.exists()) == ([], False)


def test_a_smoke_on_cpu_ranks_may_begin():
    assert smoke.node_count(0, None, "", "invoke smoke") == 2


@pytest.mark.parametrize(
    ("gpus", "nodes", "placement", "what"),
    [
        (0, None, "isolated", "--placement is about GPUs"),
        (6, None, "", "a smoke runs on 2, 4 or 8 GPUs, not on 6"),
        (1, None, "", "a smoke runs on 2, 4 or 8 GPUs, not on 1"),
    ],
)
def test_numbers_that_fit_no_smoke_are_refused(gpus, nodes, placement, what):
    with pytest.raises(UsageError) as caught:
        smoke.node_count(gpus, nodes, placement, "invoke smoke")
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("gpus", "nodes", "count"), [(2, None, 1), (2, 1, 1), (2, 2, 2), (0, 2, 2), (8, 4, 4)]
)
def test_a_smoke_on_gpus_has_one_container_unless_told_otherwise(gpus, nodes, count):
    assert smoke.node_count(gpus, nodes, "", "invoke smoke") == count


def test_a_stack_without_a_smoke_on_gpus_is_named():
    project = load_project(locks_required=False)
    stack = dataclasses.replace(project.definitions.stacks["fairseq"], gpu_smoke=None)
    definitions = dataclasses.replace(project.definitions, stacks={"fairseq": stack})
    project = dataclasses.replace(project, definitions=definitions)
    with pytest.raises(UsageError, match="fairseq has no smoke on GPUs"):
        smoke.require_smokes(project, ["fairseq"], "cuda")


def test_a_stack_whose_layouts_do_not_grow_is_named():
    project = load_project(locks_required=False)
    stack = project.definitions.stacks["fairseq"]
    layouts = tuple(dataclasses.replace(one, grows=False) for one in stack.gpu_smoke.layouts)
    fixed = dataclasses.replace(stack.gpu_smoke, layouts=layouts)
    stack = dataclasses.replace(stack, gpu_smoke=fixed)
    definitions = dataclasses.replace(project.definitions, stacks={"fairseq": stack})
    project = dataclasses.replace(project, definitions=definitions)
    smoke.require_smokes(project, ["fairseq"], "cuda", 2)
    with pytest.raises(UsageError, match="the smoke of fairseq runs on 2 GPUs, not on 4"):
        smoke.require_smokes(project, ["fairseq"], "cuda", 4)


def test_a_smoke_whose_program_is_missing_is_refused_before_the_build(tmp_path):
    project = load_project(locks_required=False)
    smoke.require_smokes(project, list(project.definitions.stacks), "cpu")
    elsewhere = dataclasses.replace(project, root=tmp_path)
    folder = tmp_path / "images/megatron/smoke"
    folder.mkdir(parents=True)
    for name in ("prepare.py", "train.py"):
        with pytest.raises(UsageError, match=f"images/megatron/smoke/{name} is missing") as caught:
            smoke.require_smokes(elsewhere, ["megatron"], "cpu")
        assert f"names it as /srv/smoke/{name}" in caught.value.why
        (folder / name).write_text("")
    smoke.require_smokes(elsewhere, ["megatron"], "cpu")


def test_a_smoke_explains_what_it_recognised_under_its_checks(capsys):
    value = reports.BROKEN["recognised"]()
    with console.Terminal(live=False) as terminal:
        smoke._explain(value, terminal)
    said = capsys.readouterr().out
    assert "toy: loss_falls failed" in said
    assert "toy: recognised: a GPU is out of memory [oom]" in said
    assert said.index("loss_falls failed") < said.index("recognised") < said.index("last lines")


def test_a_smoke_says_which_check_does_not_apply_and_why(capsys):
    value = {**reports.good(), "not_applicable": {"mesh": "there is no ssh"}}
    with console.Terminal(live=False) as terminal:
        smoke._explain(value, terminal)
    assert "toy: mesh does not apply: there is no ssh" in capsys.readouterr().out


def test_the_checks_of_a_smoke_go_to_the_file_that_junit_names(monkeypatch, tmp_path):
    monkeypatch.setattr(smoke, "Engine", contextlib.nullcontext)
    monkeypatch.setattr(smoke, "_smoke_each", lambda *given: [reports.BROKEN["failed"]()])
    monkeypatch.setattr(smoke.vouch, "told", lambda root, value: "no evidence")
    path = tmp_path / "results.xml"
    with console.Terminal(live=False) as terminal:
        asked = SmokeRequest(stack="fairseq", gpus=0, junit=str(path))
        assert smoke.smoke(terminal, asked)[1] == 1
    assert '<testcase classname="toy" name="loss_falls"' in path.read_text(encoding="utf-8")


def test_proofs_go_to_the_file_that_junit_names(monkeypatch, tmp_path):
    answer = {"outcome": "failed", "reports": [PROOFS]}
    monkeypatch.setattr(prove, "prove_all", lambda *given, **named: (answer, 1))
    path = tmp_path / "results.xml"
    with console.Terminal(live=False) as terminal:
        assert prove.prove(terminal, ProveRequest(junit=str(path)))[1] == 1
    assert '<testcase classname="toy" name="bad"' in path.read_text(encoding="utf-8")


def test_a_stack_without_fixes_has_nothing_to_prove_and_no_image_is_built_for_it(
    monkeypatch, tmp_path, capsys
):
    tree = samples.Tree(tmp_path)
    mine = samples.FILES["images/toy/stack.yml"].replace("name: toy", "name: mine")
    for old, new in (('  beta: "3.0"\n', ""), ("builds: [beta]\n", ""), ("-old]", "-far]")):
        mine = mine.replace(old, new)
    tree.write("images/mine/stack.yml", mine)
    far = samples.FILES["images/fixes/alpha-old.yml"].replace("id: alpha-old", "id: alpha-far")
    tree.write("images/fixes/alpha-far.yml", far.replace("devices: [cpu]", "devices: [cuda]"))
    monkeypatch.setattr(prove.plan, "require_used", lambda *_: None)
    monkeypatch.setattr(prove, "Engine", None)
    project = load_project(tree.root, locks_required=False)
    with console.Terminal(live=False) as terminal:
        answer, code = prove.prove_all(project, "mine", "", "cpu", terminal, record_them=True)
    assert (answer, code) == ({"outcome": "not run", "reports": []}, 3)
    assert capsys.readouterr().out.splitlines() == [
        "mine: no fix or limit of it is for cpu: there is nothing to prove",
        "mine: alpha-far is not for cpu: only for cuda",
    ]


def test_what_a_certification_found_goes_to_the_file_that_junit_names(monkeypatch, tmp_path):
    value = test_certify.record(test_certify.KINDS["dead"])
    seen = certify._Seen(found=None, health={}, unused={}, image="")
    path = tmp_path / "results.xml"
    hosts = SimpleNamespace(links={})
    monkeypatch.setattr(certify, "reached", lambda fleet: contextlib.nullcontext(hosts))
    monkeypatch.setattr(certify, "_on_hosts", lambda *given: seen)
    monkeypatch.setattr(certify.report, "certify_report", lambda *given, **named: dict(value))
    monkeypatch.setattr(
        certify, "pages", SimpleNamespace(made_by=lambda root: {}, write=lambda *given: None)
    )
    with console.Terminal(live=False) as terminal:
        asked = CertifyRequest(stack="accelerate", hosts="a,b", gpus=0, junit=str(path))
        assert certify.certify(terminal, asked)[1] == 1
    assert '<testsuite name="certify accelerate on cuda"' in path.read_text(encoding="utf-8")


SLOW, QUICK = "megatron", "fairseq"


class Machine:
    """An engine of two cores whose builds and smokes are made up here."""

    def __init__(self, monkeypatch):
        self.project = load_project(locks_required=False)
        # Set by a smoke's first phase, by its nodes' removal, and when builds are stopped.
        self.begun, self.removed, self.stopped = (threading.Event() for _ in range(3))
        self.smoked, self.watchers = [], []
        self.build, self.phase = lambda stack: 0.0, lambda: None
        monkeypatch.setattr(smoke, "Builder", lambda *given: Fake(self))
        monkeypatch.setattr(smoke.nodes, "sweep", lambda engine: {})
        monkeypatch.setattr(smokes.nodes, "remove", lambda *given: self.removed.set())
        monkeypatch.setattr(smokes.smoke, "run_smoke", self._run)
        monkeypatch.setattr(smokes, "_keep", lambda *given: None)
        monkeypatch.setattr(process, "stop_all", self.stopped.set)

    def facts(self):
        return {"cpus": "2", "memory_gib": "64"}

    def _run(self, *given, run, watcher, **named):
        self.watchers.append(watcher)
        watcher.phase("start nodes")
        self.smoked.append(run.partition("-")[0])
        self.begun.set()
        self.phase()
        return reports.outcome(samples.observation())

    def smoke(self, terminal):
        return smoke._smoke_each(self.project, self, [SLOW, QUICK], "cpu", 2, None, terminal)


class Fake(Builder):
    """A builder whose builds take as long as its machine says."""

    def __init__(self, machine):
        self._machine, self._interrupted = machine, threading.Event()

    def build(self, stack, base, *, again=False, fork=None):
        seconds = self._machine.build(stack)
        image = catalog.resolve(self._machine.project.definitions, stack, base)
        return Built(image=image, tag=stack, info=reports.INFO, seconds=seconds, made=True)


@pytest.fixture
def machine(monkeypatch):
    before = set(threading.enumerate())
    yield Machine(monkeypatch)
    # An interrupt does not wait for smokes; what they still do belongs to this test.
    for thread in set(threading.enumerate()) - before:
        thread.join(30)


def test_a_stacks_smoke_starts_when_its_own_image_is_there(machine, capsys):
    def build(stack):
        if stack == SLOW:
            assert machine.begun.wait(30), "no smoke began before the slow build's end"
            return 9.0
        return 1.0

    machine.build = build
    with console.Terminal(live=False) as terminal:
        slow, quick = machine.smoke(terminal)
    assert (slow["stack"], quick["stack"]) == (SLOW, QUICK)
    assert (slow["build_seconds"], quick["build_seconds"]) == (9.0, 1.0)
    assert [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "fairseq: image built in 1.0 s", "fairseq: start nodes",
        "megatron: image built in 9.0 s", "megatron: start nodes",
    ]  # fmt: skip


def test_the_error_of_a_build_comes_when_the_smokes_that_run_have_ended(machine):
    def build(stack):
        if stack == SLOW:
            assert machine.begun.wait(30)
            raise EngineError("no space")
        return 1.0

    machine.build = build
    with console.Terminal(live=False) as terminal, pytest.raises(EngineError, match="no space"):
        machine.smoke(terminal)
    assert machine.smoked == [QUICK]
    assert not machine.removed.is_set()


def test_an_interrupt_during_a_build_ends_builds_and_smokes(machine):
    def build(stack):
        assert stack == QUICK or machine.stopped.wait(30), "the build was not stopped"
        return 1.0

    def phase():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert machine.removed.wait(30), "the smoke was not ended"

    machine.build, machine.phase = build, phase
    with console.Terminal(live=False) as terminal, pytest.raises(KeyboardInterrupt):
        machine.smoke(terminal)
    assert machine.stopped.is_set() and machine.removed.is_set()
    assert machine.smoked == [QUICK] and machine.watchers[0].stop.is_set()
