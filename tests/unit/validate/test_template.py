"""A template's plan, figures and verdict: made-up records, and values beside every bound."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from stackyard.definitions.job_source import load_example
from stackyard.definitions.project import ROOT
from stackyard.inside import stackyard_record
from stackyard.inside.stackyard_record import WORK
from stackyard.mesh import certificates
from stackyard.report import trained
from stackyard.system.engine import ExecResult
from stackyard.system.errors import UsageError
from stackyard.validate.checks import verdict
from stackyard.validate.record import WORK_UPDATES, Work
from stackyard.validate.template import judge as judging
from stackyard.validate.template import play
from stackyard.validate.template.figures import TemplateSeen, costs, figures
from stackyard.validate.template.plan import (
    KILLED,
    PLAIN,
    RESUMED,
    WARM,
    as_smoke,
    job,
    launch,
    make_plan,
    measured_after,
    model_of,
)
from tests.unit.templates import PLAN, beside, good, report, with_losses


def outcome(name, seen, plan=PLAN):
    return next(check for check in judging.judge(plan, seen) if check.name == name)


def example(stack="megatron", name="gpt2-345m"):
    return load_example(ROOT, stack, name)


def test_a_whole_schedule_goes_into_the_updates_of_the_run():
    plan = make_plan(example(), "cuda", 2)
    assert (plan.updates, plan.save_at, plan.kill_after, plan.size) == (200, 100, 150, "full")
    assert plan.settings == {
        "updates": "200", "decay_updates": "200", "save_every": "100", "eval_every": "50",
    }  # fmt: skip
    assert plan.evaluations == (50, 100, 150, 200) and plan.kept == (100, 200)
    assert plan.tokens == 2 * 8 * 1024
    fairseq = make_plan(example("fairseq", "gpt2-fsdp"), "cuda", 2)
    assert fairseq.settings["warmup"] == "20" and fairseq.settings["log_every"] == "1"
    assert fairseq.tokens == 2 * 16 * 2 * 1024


def test_what_the_user_sets_comes_before_and_parallel_ranks_are_no_replicas():
    plan = make_plan(example(name="gpt2-345m-3d"), "cuda", 2, given={"pp": "1", "eval_every": "20"})
    assert plan.replicas == 1 and plan.tokens == 8 * 4 * 1024
    assert plan.evaluations[:2] == (20, 40)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"updates": 12}, "--updates must be 16 or more"),
        ({"updates": 42}, "a multiple of 4"),
        ({"given": {"save_every": "5"}}, "--set save_every=... goes with no --example"),
        ({"given": {"batch": "many"}}, "batch must be a whole number, not 'many'"),
        ({"example": example(name="gpt-tp")}, "is a small example, no template"),
        ({"example": example(name="gpt2-345m-tp"), "ranks": 3}, "needs a multiple of 4 ranks"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_before_anything_starts(changes, said):
    values = {"example": example(), "device": "cuda", "ranks": 2, **changes}
    with pytest.raises(UsageError, match=f"(?s){said.replace('.', '[.]')}") as refused:
        make_plan(values.pop("example"), values.pop("device"), values.pop("ranks"), **values)
    assert refused.value.what


def test_both_launches_share_checkpoints_and_only_the_first_is_killed():
    one, other = (job(PLAN, {}, label, "/shared") for label in (KILLED, RESUMED))
    assert (
        "--save=/shared/checkpoints" in one.program
        and "--save=/shared/checkpoints" in other.program
    )
    assert set(one.program) ^ set(other.program) == {
        f"--record=/var/lib/stackyard/jobs/{label}/ranks" for label in (KILLED, RESUMED)
    }
    smoke = as_smoke(PLAN, one)
    plans = [launch(PLAN, smoke, label, "run", "/shared") for label in (KILLED, RESUMED)]
    assert [plan.kill_after for plan in plans] == [30, None]


def test_a_good_training_passes():
    checks = judging.judge(PLAN, good())
    assert [(check.name, check.outcome, check.why) for check in checks] == [
        (name, "passed", "")
        for name in ("launched", "loss", "validated", "resumed", "kept", "plain", "no_strays")
    ]


def test_nothing_is_said_of_a_run_that_did_not_start():
    seen = TemplateSeen(run="r", broken="no engine")
    assert {(check.outcome, check.why) for check in judging.judge(PLAN, seen)} == {
        ("not run", "no engine")
    }


@pytest.mark.parametrize(("last", "word"), [(9.0, "passed"), (9.01, "failed")])
def test_the_loss_must_fall_by_a_tenth(last, word):
    seen = with_losses(good(), RESUMED, {40: last})
    assert outcome("loss", seen).outcome == word


def test_a_loss_that_is_no_number_fails():
    seen = with_losses(good(), RESUMED, {35: float("nan")})
    assert "not finite at update 35" in outcome("loss", seen).why


@pytest.mark.parametrize(
    ("more", "word", "why"),
    [
        ({25: 0.29}, "passed", ""),
        ({25: 0.31}, "failed", "the loss differs by 0.31 at update 25"),
        (dict.fromkeys(range(21, 31), 0.049), "passed", ""),
        (dict.fromkeys(range(21, 31), 0.051), "failed", "the mean loss differs by 0.051"),
    ],
)
def test_resumed_losses_go_on_within_bounds(more, word, why):
    seen = good()
    own = seen.resumed.losses
    found = outcome(
        "resumed", with_losses(seen, RESUMED, {at: own[at] + d for at, d in more.items()})
    )
    assert (found.outcome, found.why) == (word, why)


def test_a_training_that_begins_anew_is_no_resume():
    seen = good()
    ranks = {n: dataclasses.replace(r, loaded=[]) for n, r in seen.resumed.ranks.items()}
    seen = dataclasses.replace(seen, resumed=dataclasses.replace(seen.resumed, ranks=ranks))
    assert "resumed from nothing, not from update 20" in outcome("resumed", seen).why
    again = with_losses(good(), RESUMED, {1: 10.0})
    assert "update 1 was trained again" in outcome("resumed", again).why


def test_a_launch_that_ended_before_it_was_killed_fails():
    seen = good()
    ended = dataclasses.replace(seen.killed, killed=False, code=1)
    seen = dataclasses.replace(seen, killed=ended, resumed=None, names=None)
    assert "was to be killed was not" in outcome("launched", seen).why
    assert outcome("resumed", seen).outcome == outcome("kept", seen).outcome == "not run"


@pytest.mark.parametrize(("last", "word"), [(4.99, "passed"), (5.0, "failed")])
def test_the_validation_loss_must_fall(last, word):
    seen = good()
    for record in seen.resumed.ranks.values():
        record.valid[40] = last
    assert outcome("validated", seen).outcome == word


def test_every_validation_of_the_rules_must_be_there():
    seen = good()
    for record in seen.resumed.ranks.values():
        del record.valid[30]
    for record in seen.killed.ranks.values():
        record.valid.pop(30, None)
    assert outcome("validated", seen).why == "update 30 was not validated"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("latest", "global_step20", "global_step40"), ""),
        (("global_step40",), "the checkpoint of update 20 is missing"),
        (("global_step20", "global_step30", "global_step40"),
         "the checkpoint of update 30 should be gone"),
    ],
)  # fmt: skip
def test_checkpoints_stay_as_the_rules_say(names, why):
    assert outcome("kept", dataclasses.replace(good(), names=names)).why == why


def test_updates_are_read_from_the_names_of_every_stack():
    names = {
        "update-20": 20, "global_step40": 40, "checkpoint_1_45.pt": 45,
        "checkpoint_2_60-shard1.pt": 60, "checkpoint3.pt": None, "checkpoint_last.pt": None,
        "update-20.partial": None, "model": None,
    }  # fmt: skip
    assert {name: judging.update_of(name) for name in names} == names


def test_figures_are_of_the_launch_that_came_to_its_end():
    """Two updates a second, but for a checkpoint of 5 s, which the median does not see."""
    found = figures(PLAN, good())
    assert found.updates_s == pytest.approx(2.0)
    assert found.mean_updates_s == pytest.approx(9 / (9 / 2 + 5))
    assert found.tokens_s == pytest.approx(2 * PLAN.tokens)
    assert found.peak_bytes == 7000
    failed = dataclasses.replace(good(), resumed=dataclasses.replace(good().resumed, code=1))
    assert figures(PLAN, failed).tokens_s is None


def test_the_mfu_is_model_flops_over_the_peak_of_all_gpus():
    half = dataclasses.replace(PLAN, values={**PLAN.values, "precision": "bf16"})
    seen = dataclasses.replace(good(), devices=("NVIDIA H200", "NVIDIA H200"))
    found = report(seen, half)
    multiplied = 2 * (4 * 64**2 + 2 * 64 * 256) + 2048 * 64
    flops = 6 * multiplied + 6 * 2 * 64 * 32
    assert found["model"]["flops_per_token"] == flops
    # As many as both GPUs can: the share is that of the made-up peak.
    assert found["figures"]["mfu"] == pytest.approx(2 * PLAN.tokens * flops / 2e9, abs=1e-4)


def test_what_is_not_known_is_not_run_with_the_reason():
    said = dict(trained.rows(report(good())))
    assert said["MFU"] == "not run: the ranks compute on CPUs: there is no MFU"
    assert said["of a plain loop's speed"].startswith("1.000 (the same GPT-2 in plain PyTorch")
    without = dict(trained.rows(report(dataclasses.replace(good(), plain=None))))
    assert without["of a plain loop's speed"].startswith("not run: it was not run, as the template")
    on_gpus = dataclasses.replace(good(), devices=("NVIDIA H200",))
    assert "it computes in fp32" in dict(trained.rows(report(on_gpus)))["MFU"]
    _, why = model_of(make_plan(example("accelerate", "mt5-zero-3"), "cuda", 2).values)
    assert why == "the formula is that of decoder-only models, and this one has an encoder, too"
    _, why = model_of(make_plan(example("fairseq", "gpt2-fsdp"), "cuda", 2).values)
    assert why == "the template's values do not say its layers, hidden, heads, vocabulary"


def test_the_page_shows_figures_and_curves():
    page = trained.render_page(report(good()))
    assert "gpt2-345m of toy" in page and "updates/s, median" in page and "<polyline" in page


class FakeMesh:
    """A node whose commands end with these codes, by the first word that they hold."""

    shared, lost = "/shared", ""

    def __init__(self, codes=None):
        self.plan = certificates.MeshPlan(run="r", nodes=("node1",), port=1, seconds=1)
        self.codes, self.ran = codes or {}, []

    def put(self, node, files):
        self.ran.append(f"put {sorted(files)[0]}")

    def port(self, usual):
        return usual

    def exec(self, node, words, **_):
        self.ran.append(" ".join(words[:2]))
        output = "global_step20\nglobal_step40\n" if words[0] == "ls" else "why it failed"
        return ExecResult(code=self.codes.get(words[1], 0), output=output)


def played(monkeypatch, mesh, killed, loop=None):
    """Play the template in this mesh, where the first launch and the plain loop end so."""
    plans = []
    ends = {KILLED: killed, RESUMED: good().resumed, PLAIN: loop or good().plain}

    def train(running, smoke, plan, *, port, on_loss):
        plans.append((plan.label, plan.kill_after, port))
        return ends.get(plan.label, beside(1.0))

    monkeypatch.setattr(play.nodes, "running_mesh", lambda *_, **__: contextlib.nullcontext(mesh))
    monkeypatch.setattr(play.nodes, "wait_reachable", lambda _: {})
    monkeypatch.setattr(play.training, "train", train)
    seen = play.run_template(None, "image", PLAN, {"/srv/templates/x.py": b""}, run="r")
    return seen, plans


def test_it_is_prepared_killed_resumed_and_looked_at(monkeypatch):
    mesh = FakeMesh()
    seen, plans = played(monkeypatch, mesh, good().killed)
    assert [label for label, *_ in plans] == [KILLED, RESUMED, PLAIN]
    assert [at for _, at, _ in plans] == [30, None, None]
    assert len({port for *_, port in plans}) == 3
    assert mesh.ran == [
        "put /srv/templates/x.py", "python3 /srv/templates/make_corpus.py",
        "python3 /srv/templates/samples.py", "ls -A",
    ]  # fmt: skip
    assert [check.outcome for check in judging.judge(PLAN, seen)] == ["passed"] * 7
    assert [phase.name for phase in seen.phases] == [
        "start the node", "prepare data", "train killed", "train resumed", "train plain",
        "remove the node",
    ]  # fmt: skip


def test_what_a_plain_loop_is_faster_by_is_looked_for_once(monkeypatch):
    """Without a cost the template stops after the loop's updates, and saves nothing."""
    seen, plans = played(monkeypatch, FakeMesh(), good().killed, beside(0.94))
    assert [(label, at) for label, at, _ in plans[3:]] == [("without-zero", 20)]
    (cost,) = report(seen)["costs"]
    assert (cost["label"], cost["of_plain"]) == ("without-zero", 0.94)
    one = job(PLAN, {}, "without-zero", "/shared")
    assert one.program[-2:] == ("--ds-config=/srv/templates/zero-0.json", "--save-every=0")
    assert "--save=/shared/without-zero" in one.program and as_smoke(PLAN, one).save_at == 0
    _, plans = played(monkeypatch, FakeMesh(), good().killed, beside(0.951))
    assert len(plans) == 3


def test_a_plain_loop_has_the_templates_arguments_and_torchruns_ranks():
    zero = make_plan(example("accelerate", "gpt2-zero-2"), "cuda", 2)
    one, own = (job(zero, {}, label, "/shared") for label in (PLAIN, RESUMED))
    assert one.launcher == "torchrun" and one.program[0] == "/srv/templates/plain.py"
    assert one.program[-1] == "--only=50"
    assert {word.partition("=")[0] for word in set(own.program[1:]) ^ set(one.program[1:-1])} == {
        "--save", "--record", "--tensorboard",
    }  # fmt: skip
    other = job(zero, {}, "without-zero", "/shared")
    assert other.options == {"zero_stage": "0"} and other.program[-1] == "--zero-stage=0"


def test_without_tensor_parallelism_an_update_has_more_tokens():
    plan = make_plan(example(name="gpt2-345m-tp"), "cuda", 2, given={"tp": "2"})
    changed = plan.changed(plan.costs["without-layout"])
    assert (plan.replicas, changed.replicas) == (1, 2) and changed.tokens == 2 * plan.tokens


@pytest.mark.parametrize(
    ("device", "loop", "costs", "why"),
    [
        ("cpu", beside(0.5), {}, ""),  # no bound on CPU ranks
        ("cpu", beside(1.0, 0.009), {}, ""),
        ("cpu", beside(1.0, 0.011), {}, "its losses differ by 0.011 in the mean"),
        ("cpu", beside(1.0, last=19), {}, "only 19 updates can be compared"),
        ("cuda", beside(0.951), {}, ""),
        ("cuda", beside(0.949), {}, "0.949 of its speed, no part was tried"),
        ("cuda", beside(0.9), {"without-zero": beside(0.9 / 0.951)}, ""),
        (
            "cuda",
            beside(0.9),
            {"without-zero": beside(0.9 / 0.949)},
            "0.900 of its speed, at most 0.949 by leaving out a part",
        ),
    ],
)
def test_a_plain_loop_has_the_same_losses_and_is_hardly_faster(device, loop, costs, why):
    plan = dataclasses.replace(PLAN, device=device)
    seen = dataclasses.replace(good(), plain=loop, costs=costs)
    found = outcome("plain", seen, plan)
    assert why in found.why and found.outcome == ("failed" if why else "passed")


def working(seconds):
    return seconds and Work(wall=1.0, seconds=seconds, compute=seconds, communication=0.0)


@pytest.mark.parametrize(
    ("work", "share", "word"),
    [
        ((0.2, 0.473), 0.9514, "passed"),
        ((0.475, 0.2), 0.9474, "failed"),
        ((None, None), 0, "failed"),
    ],
)
def test_a_template_whose_gpus_wait_for_the_host_is_as_fast_as_they_are(work, share, word):
    """A plain loop's update takes 0.45 s, the template's 0.5 s; of that its busiest GPU works."""
    plan, seen = dataclasses.replace(PLAN, device="cuda"), good()
    ranks = {
        number: dataclasses.replace(rank, work=working(work[number]))
        for number, rank in seen.killed.ranks.items()
    }
    killed = dataclasses.replace(seen.killed, ranks=ranks)
    seen = dataclasses.replace(seen, killed=killed, plain=beside(0.9))
    assert outcome("plain", seen, plan).outcome == word
    costs = report(seen, plan)["costs"]
    assert [(one["label"], one["of_plain"]) for one in costs] == (
        [("host", share)] if share else []
    )
    fast = dataclasses.replace(seen, plain=beside(0.951))
    assert report(fast, plan)["costs"] == []


def test_a_template_of_less_than_half_of_the_loops_speed_is_not_explained_by_its_host():
    plan, seen = dataclasses.replace(PLAN, device="cuda"), good()
    ranks = {
        n: dataclasses.replace(rank, work=working(0.001)) for n, rank in seen.killed.ranks.items()
    }
    seen = dataclasses.replace(seen, killed=dataclasses.replace(seen.killed, ranks=ranks))
    for share, word in ((0.51, "passed"), (0.49, "failed")):
        there = dataclasses.replace(seen, plain=beside(share))
        assert outcome("plain", there, plan).outcome == word


def without_zero(share, work, slow=0, whole=0.6):
    """A template of 0.6 of the loop's speed, and without ZeRO of this one, whose GPUs work so long.

    Its updates take twice the time up to number `slow`.
    """
    found = beside(whole / share)
    ranks = {
        number: dataclasses.replace(
            rank, work=working(work), times={at: rank.times[min(at, slow)] + rank.times[at]
                                             for at in rank.times} if slow else rank.times,
        )
        for number, rank in found.ranks.items()
    }  # fmt: skip
    without = {"without-zero": dataclasses.replace(found, ranks=ranks)}
    return dataclasses.replace(good(), plain=beside(whole), costs=without)


@pytest.mark.parametrize(
    ("share", "work", "costs", "word"),
    [
        (0.8, 0.315, [("without-zero", 0.8), ("without-zero-host", 0.9524)], "passed"),
        (0.8, 0.317, [("without-zero", 0.8), ("without-zero-host", 0.9464)], "failed"),
        (0.51, 0.3, [("without-zero", 0.51), ("without-zero-host", 1.0)], "passed"),
        (0.49, 0.3, [("without-zero", 0.49), ("without-zero-host", 1.0)], "failed"),
        (0.96, 0.2, [("without-zero", 0.96)], "passed"),
        (0.94, None, [("without-zero", 0.94)], "failed"),
    ],
)
def test_a_part_and_the_host_may_cost_the_rest_together(share, work, costs, word):
    plan, seen = dataclasses.replace(PLAN, device="cuda"), without_zero(share, work)
    assert outcome("plain", seen, plan).outcome == word
    found = report(seen, plan)["costs"]
    assert [(one["label"], one["of_plain"]) for one in found] == costs
    both = "with DeepSpeed's optimizer in half precision in place of ZeRO-1, whose checkpoints"
    assert all(one["what"].startswith(both) for one in found)
    assert [one["what"].endswith(trained.NO_WAIT) for one in found] == [False, True][: len(found)]


def test_what_a_part_costs_may_be_more_than_the_host_explains():
    """Below half of the loop's speed as it is, above it without the part."""
    plan, seen = dataclasses.replace(PLAN, device="cuda"), without_zero(0.84, 0.18, whole=0.36)
    assert outcome("plain", seen, plan).outcome == "passed"


def test_work_that_fills_an_update_tells_nothing_of_waits():
    plan = dataclasses.replace(PLAN, device="cuda")
    for work, count in ((0.374, 2), (0.376, 1)):  # an update takes 0.375 s
        assert len(report(without_zero(0.8, work), plan)["costs"]) == count


def test_without_waits_and_a_layout_an_update_has_more_tokens():
    plan = make_plan(example(name="gpt2-345m-tp"), "cuda", 2, updates=40, given={"tp": "2"})
    seen = without_zero(0.25, 1.0)  # an update of the loop takes 0.3 s, of this one 1.2 s
    seen = dataclasses.replace(seen, costs={"without-layout": seen.costs["without-zero"]})
    shares = {label: share for label, (_, share) in costs(plan, seen).items()}
    assert shares == pytest.approx({"without-layout": 0.5, "without-layout-host": 0.6})


def test_updates_that_are_watched_do_not_count_in_the_speed_without_a_part():
    plan = dataclasses.replace(PLAN, device="cuda")
    assert measured_after(plan) + WORK_UPDATES == 14
    seen = without_zero(0.8, None, slow=17)
    assert report(seen, plan)["costs"][0]["of_plain"] == 0.8
    assert report(without_zero(0.8, None, slow=18), plan)["costs"][0]["of_plain"] == 0.4


def test_the_gpus_work_is_measured_in_launches_whose_speed_does_not_count(monkeypatch):
    plan = make_plan(example(), "cuda", 2)
    measured = [label for label in (KILLED, RESUMED, PLAIN, *plan.costs)
                if WORK in job(plan, {}, label, "/shared").env]  # fmt: skip
    assert measured == [KILLED, *plan.costs]
    assert WORK not in job(PLAN, {}, KILLED, "/shared").env
    monkeypatch.setenv(WORK, job(plan, {}, KILLED, "/shared").env[WORK])
    assert stackyard_record._measured() == (measured_after(plan), WORK_UPDATES) == (10, 3)


@pytest.mark.parametrize(
    ("updates", "after"), [(16, 0), (20, 11), (24, 13), (40, 11), (44, 12), (48, 13), (200, 10)]
)
def test_no_validation_and_no_checkpoint_is_measured_as_work(updates, after):
    plan = make_plan(example(), "cuda", 2, updates=updates)
    assert measured_after(plan) == after
    if after:
        span = set(range(after, after + WORK_UPDATES))
        assert after >= WARM and max(span) < min(plan.kill_after, plan.beside - 2)
        assert not span & {*plan.evaluations, plan.save_at}


def test_a_later_checkpoint_of_all_ranks_is_gone_on_from():
    """fairseq also saves at the end of an epoch."""

    def changed(training, **more):
        ranks = {n: dataclasses.replace(r, **more) for n, r in training.ranks.items()}
        return dataclasses.replace(training, ranks=ranks)

    seen = good()
    seen = dataclasses.replace(seen, killed=changed(seen.killed, saved=[20, 25]))
    assert "resumed from [20], not from update 25" in outcome("resumed", seen).why
    losses = {at: loss for at, loss in seen.resumed.losses.items() if at > 25}
    later = changed(seen.resumed, loaded=[25], losses=losses)
    found = outcome("resumed", dataclasses.replace(seen, resumed=later))
    assert (found.outcome, found.measured["updates"]) == ("passed", 5)
    # A part that not all ranks completed is no checkpoint.
    one = {0: seen.killed.ranks[0], 1: dataclasses.replace(seen.killed.ranks[1], saved=[20])}
    half = dataclasses.replace(seen, killed=dataclasses.replace(seen.killed, ranks=one))
    assert outcome("resumed", half).outcome == "passed"


def test_a_launch_that_failed_is_not_resumed(monkeypatch):
    failed = dataclasses.replace(good().killed, killed=False, code=1)
    seen, plans = played(monkeypatch, FakeMesh(), failed)
    assert len(plans) == 1 and seen.resumed is None and seen.names is None
    assert verdict(judging.judge(PLAN, seen)) == "failed"


def test_data_that_cannot_be_prepared_are_named(monkeypatch):
    mesh = FakeMesh({"/srv/templates/samples.py": 3})
    seen, plans = played(monkeypatch, mesh, good().killed)
    assert plans == [] and "failed with exit code 3" in seen.broken
    assert seen.broken.endswith("why it failed")
    assert verdict(judging.judge(PLAN, seen)) == "not run"
