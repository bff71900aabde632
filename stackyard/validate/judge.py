"""The verdict on a smoke: named checks, each with what was measured and what was expected.

Owns every threshold and every sentence of failure. Pure: it sees only what was recorded. A
check that could not be made says so (`not run`) and the verdict then says so too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stackyard.definitions.spec import Smoke
from stackyard.validate.checks import FAILED, NOT_RUN, PASSED, Check, check, not_run, verdict
from stackyard.validate.judge_gpu import GpuObservation, judge_gpu
from stackyard.validate.record import Training

MIN_UPDATES = 40
LOSS_RATIO = 0.7
__all__ = ["FAILED", "NOT_RUN", "PASSED", "Check", "Observation", "judge", "verdict"]
# Set by the shell, sshd or the exec for each process: no part of a node's environment.
_PER_SESSION = {"HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM",
                "USER", "_", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
                "STACKYARD_CONTROL"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything a smoke saw.

    Attributes:
        environment: what every node's containers were started with.
        own: settings of single nodes, beyond those.
        gpu: what only a smoke on GPUs sees; None on CPU ranks.
        recorded: losses of the reference layout as CPU ranks had them, to compare GPUs with.
        reach: answers of the logins that must work, by source and target node.
        refusals: answers of the logins that must not, by name.
        trainings: the uninterrupted training of each layout.
        installed: versions by name, of `python` and `debian`, as found in node 1's image.
        broken: what kept the smoke from going on; empty when it went to its end.
    """

    nodes: tuple[str, ...]
    environment: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...] = ()
    reach: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sessions: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainings: Mapping[str, Training] = field(default_factory=dict)
    killed: Training | None = None
    resumed: Training | None = None
    broken: str = ""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpu: GpuObservation | None = None
    recorded: Mapping[int, float] = field(default_factory=dict)
    installed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def judge(smoke: Smoke, seen: Observation) -> tuple[Check, ...]:
    """All checks, in a fixed order."""
    checks: Sequence[Callable[[Smoke, Observation], Check]] = (
        mesh, world_size, loss_falls, ranks_agree, parity, resume_equal, no_strays,
    )  # fmt: skip
    found = tuple(one(smoke, seen) for one in checks)
    if seen.gpu is None:
        return found
    parts = {layout.name: smoke.fused_of(layout.name) for layout in smoke.layouts}
    return (*found, *judge_gpu(seen.gpu, _all(seen), seen.broken, parts))


def _not_run(name: str, expected: Any, seen: Observation, missing: str) -> Check:
    return not_run(name, expected, seen.broken or missing)


# What a refused login must say, so that it was refused for this reason and no other.
_REFUSALS = {
    "password": "Permission denied (publickey)",
    "foreign_key": "Permission denied (publickey)",
    "other_run": "Permission denied (publickey)",
    "impostor": "Host key verification failed",
    "impostor_by_config": "Host key verification failed",
    "unnamed": "Host key verification failed",
}
_CONTROLS = ("control", "impostor_control")


def mesh(smoke: Smoke, seen: Observation) -> Check:
    """Every pair logs in, sees the same environment as an exec, and strangers are refused."""
    expected = {
        "logins": [f"{a}>{b}" for a, b in seen.pairs],
        "same_environment": True,
        "refused": sorted(_REFUSALS),
    }
    if not seen.reach or not seen.refusals:
        if seen.broken:  # the nodes never became a mesh: that is this check's own failure
            return check("mesh", None, expected, [seen.broken])
        return _not_run("mesh", expected, seen, "no login was tried")
    wrong, logins = [], []
    for a, b in seen.pairs:
        answer = seen.reach.get(a, {}).get(b, {"code": None, "says": "was not tried", "host": ""})
        if answer["code"] == 0 and answer["host"] == b:
            logins.append(f"{a}>{b}")
        else:
            wrong.append(f"{a} cannot log in to {b}: {answer['says'] or answer['host']}")
    differences = _environment_differences(seen)
    wrong += differences
    refused = []
    for name, says in _REFUSALS.items():
        answer = seen.refusals.get(name, {"code": None, "says": "was not tried"})
        if answer["code"] == 255 and says in str(answer["says"]):
            refused.append(name)
        elif answer["code"] == 0:
            wrong.append(f"{name}: the login was let in")
        else:
            wrong.append(f"{name}: failed, but not with {says!r}: {answer['says']}")
    for name in _CONTROLS:
        if seen.refusals.get(name, {}).get("code") != 0:
            says = seen.refusals.get(name, {}).get("says", "was not tried")
            wrong.append(f"{name} should have worked, so the refusals prove nothing: {says}")
    measured = {
        "logins": logins,
        "same_environment": not differences,
        "refused": sorted(refused),
        "said": {name: answer["says"] for name, answer in sorted(seen.refusals.items())},
    }
    return check("mesh", measured, expected, wrong)


def _environment_differences(seen: Observation) -> list[str]:
    wrong = [
        f"no login from {a} to {b} told its environment"
        for a, b in seen.pairs
        if (a, b) not in seen.sessions
    ]
    for (a, b), session in seen.sessions.items():
        for name, value in {**seen.environment, **seen.own.get(b, {})}.items():
            if name not in _PER_SESSION and session.get(name) != value:
                wrong.append(f"{name} is {session.get(name)!r} in a login from {a} to {b}")
    return wrong


def _all(seen: Observation) -> list[tuple[str, Training]]:
    found = list(seen.trainings.items())
    if seen.killed and seen.killed not in seen.trainings.values():
        found.append((f"{seen.killed.layout}, killed", seen.killed))
    if seen.resumed:
        found.append((f"{seen.resumed.layout}, resumed", seen.resumed))
    return found


def world_size(smoke: Smoke, seen: Observation) -> Check:
    """Every rank took part, and by its own view: launchers can start lone jobs and exit 0."""
    expected = {layout.name: layout.ranks for layout in smoke.layouts}
    if not seen.trainings:
        return _not_run("world_size", expected, seen, "nothing was trained")
    wrong, measured = [], {}
    for name, training in _all(seen):
        views = {f"rank {r.rank}": r.world_size for r in training.ranks.values()}
        measured[name] = views
        for rank in range(training.wanted):
            if rank not in training.ranks:
                node = training.nodes[rank * len(training.nodes) // training.wanted]
                wrong.append(f"{name}: rank {rank} ({node}) never joined")
        hosts = {record.host for record in training.ranks.values()}
        if len(training.ranks) == training.wanted and len(hosts) != len(training.nodes):
            wrong.append(f"{name}: all ranks ran on {', '.join(sorted(hosts))}")
        for view, size in views.items():
            if size != training.wanted:
                wrong.append(f"{name}: {view} sees a world of {size}, not {training.wanted}")
    return check("world_size", measured, expected, wrong)


def loss_falls(smoke: Smoke, seen: Observation) -> Check:
    """Every layout trains to its end, in finite numbers, and learns."""
    expected = {"updates": f">= {MIN_UPDATES}", "last/first": f"<= {LOSS_RATIO}"}
    meshed = bool(seen.reach and seen.refusals)
    if not seen.trainings and not (seen.broken and meshed):
        return _not_run("loss_falls", expected, seen, "nothing was trained")
    wrong, measured = [], {}
    if seen.broken:
        missing = [x.name for x in smoke.layouts if x.name not in seen.trainings]
        wrong.append(f"{', '.join(missing) or 'the resume'} was not trained: {seen.broken}")
    for name, training in seen.trainings.items():
        losses = training.losses
        steps = sorted(losses)
        first, last = (losses[steps[0]], losses[steps[-1]]) if steps else (math.nan, math.nan)
        ratio = last / first if steps and first else math.nan
        measured[name] = {
            "updates": len(steps),
            "first": _finite(first),
            "last": _finite(last),
            "last/first": _finite(round(ratio, 4)),
        }
        wrong += [f"{name}: {reason}" for reason in _unfinished(training, smoke.updates)]
        bad = [(r.rank, r.host, s) for r in training.ranks.values()
               for s, v in sorted(r.losses.items()) if not math.isfinite(v)]  # fmt: skip
        if bad:
            rank, host, step = min(bad, key=lambda entry: entry[2])
            wrong.append(f"{name}: the loss of rank {rank} ({host}) is not finite at update {step}")
        elif len(steps) < MIN_UPDATES:
            wrong.append(f"{name}: {len(steps)} updates")
        elif not ratio <= LOSS_RATIO:
            wrong.append(f"{name}: the loss went from {first:.4f} to {last:.4f} only")
    return check("loss_falls", measured, expected, wrong)


def _finite(value: float) -> float | str:
    """JSON has no NaN: it is written as text."""
    return value if math.isfinite(value) else str(value)


def _unfinished(training: Training, updates: int) -> list[str]:
    """Why a training did not end as it should; names the rank and its node."""
    if training.killed:  # on purpose, and not before every rank had got there
        return [
            f"rank {r.rank} ({r.host}) was killed after update {r.last} already"
            for r in training.ranks.values()
            if r.last < updates
        ]
    wrong = []
    if training.stopped:
        wrong.append(training.stopped)
    elif training.code not in (0, None):
        wrong.append(f"the launcher ended with exit code {training.code}")
    for record in training.ranks.values():
        if record.ended is None:
            wrong.append(f"rank {record.rank} ({record.host}) stopped after update {record.last}")
        elif record.ended != updates:
            wrong.append(f"rank {record.rank} ({record.host}) ended at update {record.ended}")
    return wrong


def ranks_agree(smoke: Smoke, seen: Observation) -> Check:
    """Ranks that hold the same parameters hold the same bits, at every recorded update."""
    expected = "one hash for each update and group of replicated parameters"
    if not seen.trainings:
        return _not_run("ranks_agree", expected, seen, "nothing was trained")
    wrong, measured, compared = [], {}, 0
    for name, training in seen.trainings.items():
        if training.wanted == 1:
            continue
        by_key: dict[tuple[int, str], dict[int, str]] = {}
        for record in training.ranks.values():
            for key, digest in record.params.items():
                by_key.setdefault(key, {})[record.rank] = digest
        shared = {key: hashes for key, hashes in by_key.items() if len(hashes) > 1}
        compared += len(shared)
        measured[name] = {
            "compared": len(shared),
            "last": {f"rank {rank}": digest[:12] for rank, digest in
                     sorted(shared[max(shared)].items())} if shared else {},
        }  # fmt: skip
        for (step, group), hashes in sorted(shared.items()):
            if len(set(hashes.values())) > 1:
                who = ", ".join(f"rank {r} {h[:12]}" for r, h in sorted(hashes.items()))
                wrong.append(f"{name}: parameters ({group}) differ after update {step}: {who}")
                break
    if not compared and not wrong and seen.broken:
        return _not_run("ranks_agree", expected, seen, "")
    if not compared and not wrong:
        wrong.append("no two ranks recorded the same group of parameters")
    return check("ranks_agree", measured, expected, wrong)


def _difference(
    one: Mapping[int, float], other: Mapping[int, float], steps: Sequence[int]
) -> tuple[float, int]:
    """The largest absolute difference over `steps` and where it is; NaN counts as infinite."""
    worst, where = 0.0, 0
    for step in steps:
        gap = abs(one[step] - other[step])
        gap = gap if math.isfinite(gap) else math.inf
        if gap > worst or not where:
            worst, where = gap, step
    return worst, where


def parity(smoke: Smoke, seen: Observation) -> Check:
    """The same global batch gives the same loss in every layout, at every update."""
    limits = {layout.name: smoke.tolerance_of(layout.name) for layout in smoke.layouts}
    expected: dict[str, Any] = {
        "largest_difference": f"<= {smoke.tolerance}",
        "updates": smoke.updates,
        **{name: f"<= {limit}" for name, limit in limits.items() if limit != smoke.tolerance},
    }
    reference = seen.trainings.get(smoke.reference)
    others = {n: t for n, t in seen.trainings.items() if n != smoke.reference}
    if reference is None or not others:
        return _not_run("parity", expected, seen, f"{smoke.reference} or its peers did not train")
    wrong: list[str] = []
    measured: dict[str, Any] = {}
    if seen.recorded:
        wrong += _against_cpu(smoke, reference, seen.recorded, measured)
    for name, training in others.items():
        steps = sorted(set(reference.losses) & set(training.losses))
        worst, where = _difference(reference.losses, training.losses, steps)
        measured[name] = {
            "against": smoke.reference,
            "updates": len(steps),
            "largest_difference": _finite(worst),
            "at_update": where,
        }
        if len(steps) < smoke.updates:
            wrong.append(f"{name}: only {len(steps)} updates to compare with {smoke.reference}")
        if worst > limits[name]:
            wrong.append(f"{name}: loss differs by {worst:.3g} at update {where}")
    return check("parity", measured, expected, wrong)


def _against_cpu(
    smoke: Smoke, reference: Training, recorded: Mapping[int, float], measured: dict[str, Any]
) -> list[str]:
    """GPUs give what CPU ranks gave: the same program, data and seed, in fp32."""
    steps = sorted(set(reference.losses) & set(recorded))
    worst, where = _difference(reference.losses, recorded, steps)
    measured[smoke.reference] = {
        "against": "the curve recorded on CPU ranks",
        "updates": len(steps),
        "largest_difference": _finite(worst),
        "at_update": where,
    }
    if len(steps) < smoke.updates:
        return [f"{smoke.reference}: only {len(steps)} updates to compare with CPU ranks"]
    if worst > smoke.tolerance:
        return [f"{smoke.reference}: loss differs from CPU ranks' by {worst:.3g} at update {where}"]
    return []


def resume_equal(smoke: Smoke, seen: Observation) -> Check:
    """Saved, killed and resumed is the same training as one that was never interrupted."""
    expected = {
        "resumed_from": smoke.save_at,
        "updates": smoke.updates - smoke.save_at,
        "largest_difference": f"<= {smoke.tolerance_of(smoke.resume)}",
    }
    whole = seen.trainings.get(smoke.resume)
    if whole is None or seen.killed is None or seen.resumed is None:
        return _not_run("resume_equal", expected, seen, f"{smoke.resume} was not resumed")
    wrong: list[str] = []
    if not seen.killed.killed:
        said = "; ".join(_unfinished(seen.killed, smoke.updates)) or "it ended before"
        wrong.append(f"the run that was to be killed was not: {said}")
    wrong += _unfinished(seen.resumed, smoke.updates)
    wanted = list(range(smoke.save_at + 1, smoke.updates + 1))
    steps = [s for s in wanted if s in whole.losses and s in seen.resumed.losses]
    worst, where = _difference(whole.losses, seen.resumed.losses, steps)
    loaded = sorted({step for r in seen.resumed.ranks.values() for step in r.loaded})
    if loaded != [smoke.save_at]:
        wrong.append(f"resumed from {loaded or 'nothing'}, not from update {smoke.save_at}")
    early = [step for step in seen.resumed.losses if step <= smoke.save_at]
    if early:
        wrong.append(f"update {min(early)} was trained again")
    if len(steps) < len(wanted):
        wrong.append(f"only {len(steps)} of {len(wanted)} updates to compare")
    if worst > smoke.tolerance_of(smoke.resume):
        wrong.append(f"loss differs by {worst:.3g} at update {where}")
    measured = {
        "layout": smoke.resume,
        "killed_after": max([r.last for r in seen.killed.ranks.values()], default=0),
        "resumed_from": loaded[0] if len(loaded) == 1 else loaded,
        "updates": len(steps),
        "largest_difference": _finite(worst),
        "at_update": where,
    }
    return check("resume_equal", measured, expected, wrong)


def no_strays(smoke: Smoke, seen: Observation) -> Check:
    """However a training ended, nothing of it is left on any node."""
    expected = {"processes_left": 0, "within_seconds": 10}
    if not seen.trainings:
        return _not_run("no_strays", expected, seen, "nothing was trained")
    wrong, count = [], 0
    for name, training in _all(seen):
        for node, found in training.strays.items():
            count += len(found)
            for process in list(found)[:5]:
                wrong.append(f"{name}: {node} still runs {process['pid']}: {process['command']}")
    measured = {"processes_left": count, "trainings": len(_all(seen))}
    return check("no_strays", measured, expected, wrong)
