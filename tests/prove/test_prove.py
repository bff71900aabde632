"""Fixes and limits prove themselves, and what does not is found.

That every one of them was proven as it is now the records say, which a fast test compares. Here
one of each kind is proven again, and, with the marker `repeat`, all of them.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys

import pytest

from stackyard.build import catalog
from stackyard.build.builder import Builder
from stackyard.cli.console import Terminal
from stackyard.cli.steps import prove
from stackyard.definitions.project import ROOT, load_project
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL
from stackyard.validate.prove import plan, play
from tests.prove.conftest import NAME
from tests.shared import until

pytestmark = pytest.mark.engine

INTERRUPTED = "megatron-scheduler-samples"
WANTED = {
    "tiny-good": "proven",
    "tiny-emptied": "not repaired",
    "tiny-weakened": "stale",
    "tiny-upstream": "stale",
    "tiny-other": "other symptom",
    "tiny-environment": "proven",
}


def test_what_does_not_prove_itself_is_found(project, engine):
    try:
        with cleanup.guarded(_Nobody), Terminal(json=True) as terminal:
            answer, code = prove.prove_all(project, "all", "", "cpu", terminal, record_them=True)
    finally:
        engine.remove_image(f"stackyard/{NAME}:cpu")
    (report,) = answer["reports"]
    assert {proof["id"]: proof["verdict"] for proof in report["proofs"]} == WANTED
    assert (answer["outcome"], code) == ("failed", 1)
    assert engine.containers(f"stackyard.run={report['run']}") == []
    # Only what is proven is recorded.
    recorded = json.loads((project.root / "images/cpu.proofs.json").read_text())[NAME]
    assert sorted(recorded) == ["tiny-environment", "tiny-good"]
    assert recorded["tiny-good"]["failed"] == "AssertionError: as released: tiny-good"
    assert "tiny-good" in (project.root / "docs/reference/fixes.md").read_text()


class _Nobody:
    """No warden: the test removes what it makes."""

    def send(self, line: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


def kinds(proof: plan.Proof, fixes) -> set[str]:
    """How a fix is left out, or that there is none: each takes another way through the program.

    Text that is taken back and a variable that is unset are the small project's.
    """
    if proof.kind == "limit":
        return {"limit"}
    found = {
        "one place": "#" in proof.id,
        "wheel built without": bool(proof.wheel),
        "other versions installed": bool(proof.back),
        "module removed": bool(fixes[proof.id.partition("#")[0]].remedy.add),
    }
    return {kind for kind, is_so in found.items() if is_so}


def quickest_of_each_kind(project) -> dict[str, set[str]]:
    """By stack the proofs that are to be seen here: of each kind the one that took least."""
    definitions, recorded = project.definitions, prove.recorded(project, "cpu")
    found: dict[str, tuple[float, str, str]] = {}
    for stack in sorted(definitions.stacks):
        image = catalog.resolve(definitions, stack, "cpu")
        for proof in plan.proofs(image, definitions.limits.values())[0]:
            took = (recorded[stack][proof.id]["seconds"], stack, proof.id)
            for kind in kinds(proof, definitions.fixes):
                found[kind] = min(took, found.get(kind, took))
    assert len(found) == 5, found
    chosen: dict[str, set[str]] = {}
    for _, stack, proof_id in found.values():
        chosen.setdefault(stack, set()).add(proof_id)
    return chosen


def test_one_fix_or_limit_of_each_kind_proves_itself(engine, stack_images):
    project = load_project()
    builder = Builder(project, engine, lambda stack, text: None)
    wrong = []
    for stack, ids in quickest_of_each_kind(project).items():
        built = stack_images[stack]
        every, _ = plan.proofs(built.image, project.definitions.limits.values())
        proofs = [proof for proof in every if proof.id in ids]
        verdicts = play.play(
            engine,
            built.info.id,
            proofs,
            play.parts_of(builder, built.image, proofs),
            run=f"prove-{secrets.token_hex(4)}",
            workers=2,
            on_verdict=lambda verdict: None,
        )
        assert {verdict.proof.id for verdict in verdicts} == ids
        wrong += [(v.proof.id, v.word, v.why) for v in verdicts if v.word != "proven"]
    assert wrong == []


@pytest.mark.repeat
def test_every_fix_and_limit_of_every_stack_proves_itself():
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "prove", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    wrong = [
        (report["stack"], proof["id"], proof["verdict"], proof["why"], proof["last_lines"])
        for report in answer.get("reports", [])
        for proof in report["proofs"]
        if proof["verdict"] != "proven"
    ]
    assert wrong == []
    assert (done.returncode, answer["outcome"]) == (0, "passed"), answer.get("error")
    assert {report["stack"] for report in answer["reports"]} == set(
        load_project().definitions.stacks
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_proving_leaves_nothing(engine, number):
    before = set(_ours(engine))
    proving = subprocess.Popen(
        [sys.executable, "-m", "invoke", "prove", "megatron", "--fix", INTERRUPTED],
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: set(_ours(engine)) - before or proving.poll() is not None, 90)
        assert set(_ours(engine)) - before, "it ended before it began"
        os.kill(proving.pid, number)
        code = proving.wait(timeout=60)
    finally:
        proving.kill()
        proving.wait()
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    until(lambda: set(_ours(engine)) <= before, 90)


def _ours(engine):
    return [c.name for c in engine.containers(OWNER_LABEL) if "prove-megatron" in c.name]
