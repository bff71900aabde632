"""A bench on Slurm: what its job runs, what is seen of its nodes, its report."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from stackyard.build.builder import Built
from stackyard.build.catalog import resolve
from stackyard.cli.console import Terminal
from stackyard.cli.steps import bench as command
from stackyard.cli.steps.bench_place import on_slurm
from stackyard.report import pages
from stackyard.report.bench_page import render_page
from stackyard.validate import slurm_plan
from stackyard.validate.bench import slurm
from stackyard.validate.bench.judge import judge
from stackyard.validate.bench.play import BenchWatcher
from stackyard.validate.slurm_follower import Follower
from tests.schemas.published import refused
from tests.unit import benches, reports, samples, slurm_smokes

PLAN = benches.plan(2, nodes=2, rounds=1)
TURNS = {turn.label: turn for turn in PLAN.turns()}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Nodes that wrote what those of a good bench write."""
    found = slurm_smokes.Nodes(tmp_path)
    found.state = slurm_smokes.state("COMPLETED", "done")
    for label, turn in TURNS.items():
        found.over(label)
        for host in slurm_smokes.HOSTS:
            found.left(label, host)
        trained(found, label, turn)
    found.served(monkeypatch)
    return found


def trained(nodes, label, turn):
    for number, rank in benches.training(turn).ranks.items():
        events = [{"event": "start", "world_size": turn.ranks, "host": slurm_smokes.HOSTS[number],
                   "pid": 7, "backend": "gloo", "device": "cpu"}]  # fmt: skip
        for step, window in rank.windows.items():
            events.append({
                "event": "window", "step": step, "loss": rank.losses[step],
                "seconds": window.seconds, "tokens": window.tokens, "updates": [0.1] * 10,
                "peak_bytes": 0, "time": 9.0,
            })  # fmt: skip
        events.append({"event": "end", "step": benches.UPDATES})
        text = "".join(f"{json.dumps(one)}\n" for one in events)
        nodes.write(f"records/{label}/rank{number}.jsonl", text)


def run(nodes, plan=PLAN, **watched):
    follower = Follower(slurm_smokes.bench(nodes.folder, plan), "17")
    return slurm.run(follower, plan, BenchWatcher(**watched))


def outcomes(seen, plan=PLAN):
    return {check.name: (check.outcome, check.why) for check in judge(plan, seen)}


# What the job runs


def test_every_turn_is_a_step_on_the_nodes_that_it_fills_with_its_sides_own_environment(tmp_path):
    found = slurm_plan.steps(slurm_smokes.bench(tmp_path, PLAN))
    assert [step.label for step in found] == ["image", "data", *TURNS]
    stock, _, over_both, _ = found[2:]
    assert (stock.job.nodes, over_both.job.nodes) == (1, 2)
    assert (stock.job.launcher, over_both.job.launcher) == ("alone", "torchrun")
    assert [step.job.env.get("FUSED") for step in found[2:]] == ["0", None, "0", None]
    assert [step.kin for step in found[2:]] == ["stock-1", "ours-1", "stock-2", "ours-2"]
    assert stock.job.program[1] == f"--record={tmp_path}/records/stock-1-1"


# What is seen and judged


def test_a_good_bench_passes_every_check(nodes):
    played = []
    seen = run(nodes, played=played.append)
    assert set(outcomes(seen).values()) == {("passed", "")}
    assert [one.turn.label for one in seen.played] == list(TURNS)
    assert [one.turn.label for (one,) in played] == list(TURNS)
    assert [phase.name for phase in seen.phases][:3] == [
        "wait for nodes", "look at nodes", "prepare data",
    ]  # fmt: skip


def test_a_side_that_failed_is_left_out_on_as_many_ranks_and_the_others_go_on(nodes):
    plan = dataclasses.replace(PLAN, rounds=2)
    for label, turn in {turn.label: turn for turn in plan.turns()}.items():
        if turn.round == 2 and turn.side == "ours":
            nodes.over(label)
            trained(nodes, label, turn)
    nodes.over("stock-1-1", 1)
    nodes.over("stock-2-1", 1)
    seen = run(nodes, plan)
    assert {turn.label: why for turn, why in seen.left_out.items()} == {
        "stock-1-2": "stock-1-1 failed", "stock-2-2": "stock-2-1 failed",
    }  # fmt: skip
    assert [one.turn.label for one in seen.played if not one.training.failed] == [
        "ours-1-1", "ours-2-1", "ours-1-2", "ours-2-2",
    ]  # fmt: skip


def test_a_job_that_slurm_ends_is_named_and_what_was_played_stays(nodes):
    for label in ("stock-2-1", "ours-2-1"):
        (nodes.folder / "ended" / label).unlink()
    nodes.state = slurm_smokes.state("TIMEOUT", "failed", "TimeLimit")
    told = []
    seen = run(nodes, so_far=told.append)
    assert seen.broken == "job 17 is TIMEOUT (TimeLimit)"
    assert [one.turn.label for one in seen.played] == ["stock-1-1", "ours-1-1", "stock-2-1"]
    assert told[-1].played == seen.played
    assert outcomes(seen)["trained"][0] == "failed"


def test_data_that_could_not_be_made_fails_the_bench_with_its_last_lines(nodes):
    nodes.over("data", 3)
    nodes.write("logs/data", "0: no space left\n")
    verdict, why = outcomes(run(nodes))["trained"]
    assert verdict == "failed"
    assert "data ended with exit code 3" in why and "no space left" in why


# The report


def reported(nodes, monkeypatch, plan):
    monkeypatch.setenv("HOME", str(nodes.folder))  # no key of the developer's signs it
    monkeypatch.setattr(command, "load_peaks", lambda root: ())
    monkeypatch.setattr(pages, "revision", lambda root: {})
    image = resolve(samples.definitions(), "toy", "cpu")
    built = Built(image=image, tag="toy:cpu", info=reports.INFO, seconds=0.0, made=False)
    project = SimpleNamespace(root=nodes.folder, definitions=samples.definitions())
    place = on_slurm(Follower(slurm_smokes.bench(nodes.folder, plan), "17"), plan)
    return command._bench_one(project, built, plan, place, Terminal(live=False))


def test_the_report_names_job_nodes_and_image_and_takes_no_other_ones_place(nodes, monkeypatch):
    value = reported(nodes, monkeypatch, PLAN)
    assert value["slurm"] == {"job": "17", "runtime": "filesystem"}
    assert [host["name"] for host in value["hosts"]["hosts"]] == ["node1", "node2"]
    assert {host["image"] for host in value["hosts"]["hosts"]} == {"sha256:1"}
    assert (value["outcome"], value["host"]["cpus"]) == ("passed", "2")
    assert (nodes.folder / "reports/toy/cpu/bench-slurm.json").is_file()
    assert refused("reports/bench", value) == []


def test_gpus_of_the_nodes_are_in_the_report_and_on_its_page(nodes, monkeypatch):
    for number, host in enumerate(slurm_smokes.HOSTS, 1):
        nodes.write(f"facts/{host}", slurm_smokes.gpu_survey(host, number, 10))
        nodes.write(f"facts-after/{host}", slurm_smokes.gpu_survey(host, number, 10 + number * 50))
    value = reported(nodes, monkeypatch, benches.plan(2, nodes=2, rounds=1, device="cuda"))
    assert (value["gpus"]["placement"], value["gpus"]["driver"]) == ("slurm", "580.95.05")
    freed = next(check for check in value["checks"] if check["name"] == "freed")
    assert freed["why"].endswith("100 MiB are still held on GPU-2")
    assert "0: NVIDIA H200, 0: NVIDIA H200; driver 580.95.05</dd>" in render_page(value)
