"""Run a bench: start one container, make the data, run every turn, and remove everything.

Owns the order of phases. Containers, launches and time limits are those of a smoke (`nodes`,
`training`). It must not judge: `validate.bench.judge` does.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stackyard.definitions.spec import Smoke
from stackyard.mesh import certificates, nodes
from stackyard.mesh.node import MEETING_PORT, SSH_PORT
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, MeshError
from stackyard.validate import smoke, training
from stackyard.validate.bench.plan import BenchPlan, Turn, as_smoke
from stackyard.validate.bench.result import Played, Seen
from stackyard.validate.gpu_run import GpuRun, GpuWatch
from stackyard.validate.training_log import TrainingPlan

NODE = "node1"
# Folder that all stacks' benches use: the clock, the made-up text, the plain loop.
COMMON = "bench"


@dataclass(kw_only=True)
class BenchWatcher:
    """Report the progress of a bench.

    Attributes:
        played: called with the trainings that ran at the same time.
        so_far: called with all results so far whenever there are more, as the rest may never come.
    """

    phase: Callable[[str], None] = lambda name: None
    loss: Callable[[Turn, int, float], None] = lambda turn, step, loss: None
    played: Callable[[Sequence[Played]], None] = lambda group: None
    so_far: Callable[[Seen], None] = lambda seen: None


@dataclass
class Phases:
    """Time the phases of a bench, and report each to its watcher."""

    watcher: BenchWatcher
    kept: smoke.Phases = field(default_factory=smoke.Phases)

    @contextlib.contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Time one phase."""
        self.watcher.phase(name)
        with self.kept.timed(name):
            yield


def files(root: Path, stack: str) -> dict[str, bytes]:
    """Return the files beside the programs of a stack's bench, by relative path.

    They include the stack's smoke; of files with the same name, the bench's own is taken.
    """
    images = root / "images"
    shared = smoke.workload_files(images / COMMON)
    return {
        **smoke.workload_files(images / stack / "smoke"),
        **{path: data for path, data in shared.items() if path.endswith(".py")},
        **smoke.workload_files(images / stack / COMMON),
    }


def settings(
    image: str, plan: BenchPlan, beside: Mapping[str, bytes], gpu: GpuRun | None
) -> nodes.NodeSettings:
    """Return the container's settings; the sides' own environments come with their launches."""
    return smoke.node_settings(image, neutral(plan), beside, gpu)


def neutral(plan: BenchPlan) -> Smoke:
    """Return a training of a bench without any side's own environment."""
    return replace(as_smoke(plan, plan.sides[0], 1), env={})


def run_bench(
    engine: Engine,
    plan: BenchPlan,
    node: nodes.NodeSettings,
    *,
    run: str,
    gpu: GpuRun | None = None,
    watcher: BenchWatcher | None = None,
) -> Seen:
    """Run every turn in one container of this machine, as `bench_in` does."""
    made = certificates.MeshPlan(
        run=run, nodes=(NODE,), port=SSH_PORT, seconds=smoke.MESH_SECONDS, addresses={}
    )
    started = nodes.running_mesh(engine, made, node, now=int(time.time()))
    return bench_in(started, plan, run=run, gpu=gpu, watcher=watcher)


def bench_in(
    started: contextlib.AbstractContextManager[nodes.Mesh],
    plan: BenchPlan,
    *,
    run: str,
    gpu: GpuWatch | None = None,
    watcher: BenchWatcher | None = None,
) -> Seen:
    """Run every turn in a mesh; everything of the run is removed however it ends.

    Turns of one group of `plan` run at the same time. A side that fails on a number of ranks does
    not run on that number again; the others go on.

    Raises:
        KeyboardInterrupt, SystemExit: after everything was removed.
    """
    watcher = watcher or BenchWatcher()
    phases = Phases(watcher)
    seen = Seen(run=run)
    with contextlib.ExitStack() as stack:
        try:
            with phases.one("start the node"):
                running = stack.enter_context(started)
                names = [g.name for g in gpu.observed().placement.gpus] if gpu else []
                seen = replace(seen, devices=tuple(names))
                nodes.wait_reachable(running)
            with phases.one("prepare data"):
                training.prepare(running, as_smoke(plan, plan.sides[0], 1))
            # Step by step: earlier results stay, also if the engine refuses in the middle.
            for more in _play_all(running, plan, seen, phases, gpu):
                seen = more
        except (MeshError, EngineError) as error:
            seen = replace(seen, broken=": ".join(part for part in (error.what, error.why) if part))
        if gpu and seen.played:
            with phases.one("memory freed"):
                seen = replace(seen, gpu=gpu.freed(None))
        with phases.one("remove the node"):
            stack.close()
    return replace(seen, phases=tuple(phases.kept.found))


def _play_all(
    running: nodes.Mesh, plan: BenchPlan, seen: Seen, phases: Phases, gpu: GpuWatch | None
) -> Iterator[Seen]:
    """Run every turn in a mesh; yield the results so far, whenever there are more."""
    smokes = {
        (side.name, ranks): as_smoke(plan, side, ranks)
        for side in plan.sides
        for ranks in plan.counts
    }
    ports = itertools.count(MEETING_PORT)

    def train(group: Sequence[Turn]) -> tuple[Played, ...]:
        one = smokes[group[0].side, group[0].ranks]
        starts = [start(plan, one, turn, running, running.port(next(ports)), gpu) for turn in group]
        return _play(running, group, starts, phases.watcher)

    return in_turn(plan, seen, phases, train, lambda: running.lost)


def in_turn(
    plan: BenchPlan,
    seen: Seen,
    phases: Phases,
    train: Callable[[Sequence[Turn]], tuple[Played, ...]],
    lost: Callable[[], str],
) -> Iterator[Seen]:
    """Run the groups of a bench in their order; yield the results so far, whenever there are more.

    Args:
        train: runs one group to its end.
        lost: says why nothing can run any more; empty while it can.
    """

    def told(more: Seen) -> Seen:
        phases.watcher.so_far(replace(more, phases=tuple(phases.kept.found)))
        return more

    failed: dict[tuple[str, int], str] = {}
    for group in plan.groups():
        first = group[0]
        key = first.side, first.ranks
        if key in failed:
            why = f"{failed[key]} failed"
            seen = told(replace(seen, left_out={**seen.left_out, **dict.fromkeys(group, why)}))
            yield seen
            continue
        beside = f", {len(group)} at once" if len(group) > 1 else ""
        with phases.one(f"train {first.name}{beside}"):
            found = train(group)
        phases.watcher.played(found)
        seen = told(replace(seen, played=(*seen.played, *found)))
        yield seen
        if why := lost():
            yield told(replace(seen, broken=why))
            return
        if any(played.training.failed for played in found):
            failed[key] = first.name


def _play(
    running: nodes.Mesh,
    group: Sequence[Turn],
    starts: Sequence[training.Start],
    watcher: BenchWatcher,
) -> tuple[Played, ...]:
    turns = {turn.label: turn for turn in group}
    trained = training.train_all(
        running, starts, on_loss=lambda label, step, loss: watcher.loss(turns[label], step, loss)
    )
    return tuple(Played(turn=t, training=one) for t, one in zip(group, trained, strict=True))


def start(
    plan: BenchPlan,
    one: Smoke,
    turn: Turn,
    running: nodes.Mesh,
    port: int,
    gpu: GpuWatch | None = None,
) -> training.Start:
    """Return the launch of one training: on its own GPUs, with a port and folders of its own."""
    taken = plan.gpus(turn)
    launched = launch(plan, one, turn, running.plan.nodes, running.shared)
    takes = gpu.takes(len(launched.nodes), launched.per_node) if gpu and plan.nodes > 1 else ()
    # A lone rank's threads would take all cores, and so would those beside it: each gets one
    # thread, as torchrun gives each of several ranks.
    threads = {"OMP_NUM_THREADS": "1"} if turn.groups > 1 else {}
    own = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, taken))} if taken else {}
    one = replace(one, env={**threads, **one.env, **own})
    launched = replace(launched, run=running.plan.run, gpus=(taken,) if taken else takes)
    return training.Start(smoke=one, plan=launched, port=port)


def launch(
    plan: BenchPlan, one: Smoke, turn: Turn, names: Sequence[str], shared: str
) -> TrainingPlan:
    """Return where one training runs: on which nodes, and in which folders.

    Args:
        names: of all nodes; `shared` is the folder that they share.
    """
    used, per_node = plan.spread(turn.ranks, names)
    return TrainingPlan(
        layout=one.layouts[0],
        label=turn.label,
        save=f"{shared}/checkpoints/{turn.label}",
        shared=shared,
        nodes=used,
        per_node=per_node,
    )
