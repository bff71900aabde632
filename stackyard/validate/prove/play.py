"""Run proofs: every witness twice, each in a throw-away container of its own.

Owns the containers and their files. They start from the finished image; where a fix is left out,
`take_back.py` changes the container to what the image would be without the fix. It must not judge:
`validate.prove.judge` does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stackyard.build import dockerfile
from stackyard.build.catalog import ResolvedImage
from stackyard.definitions.project import INSIDE
from stackyard.mesh.node import CAPABILITIES, TMPFS
from stackyard.mesh.nodes import remove
from stackyard.system import cleanup
from stackyard.system.archive import pack
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL, ContainerSpec, Engine
from stackyard.validate.prove import plan
from stackyard.validate.prove.judge import Verdict, Witnessed, judge
from stackyard.validate.prove.plan import Proof

FOLDER = "run/stackyard/prove"
HOSTNAME = "node1"
_GRACE = 120  # seconds for the steps around a witness, on a busy machine


class Exporter(Protocol):
    """Build files from an image's stages and further ones (`build.builder.Builder`)."""

    def export(self, image: ResolvedImage, stages: str, more: Mapping[str, str], out: Path) -> None:
        """Write the files of the last stage to `out`."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Hold the files that leaving out fixes of one image needs.

    Attributes:
        all: the image's fixes, as `apply_fixes.py` reads them.
        files: files that fixes change, as installed, by path below site-packages.
        back: by proof, files of distributions installed without the fix, by path.
    """

    all: str
    files: Mapping[str, bytes]
    back: Mapping[str, Mapping[str, bytes]]


def parts_of(exporter: Exporter, image: ResolvedImage, proofs: Sequence[Proof]) -> Parts:
    """Build everything that the proofs of one image need, without making or tagging an image.

    Raises:
        BuildError: a wheel cannot be built without a fix.
    """
    files: dict[str, bytes] = {}
    back: dict[str, Mapping[str, bytes]] = {}
    with cleanup.folder("prove") as folder:
        if any(p.fixes is not None or p.wheel for p in proofs) and plan.touched(image):
            exporter.export(image, plan.files_stages(image), {}, folder / "taken")
            files = _read(folder / "taken" / "files")
        for number, proof in enumerate(proofs):
            out = folder / str(number)
            if proof.wheel:
                fix = proof.id
                changed = plan.without_fix(image, fix)
                exporter.export(changed, plan.wheel_stages(proof.wheel), {}, out)
            elif proof.back:
                lock = "".join(f"{line}\n" for line in proof.back)
                exporter.export(image, plan.back_stages(), {plan.BACK_LOCK: lock}, out)
            else:
                continue
            back[proof.id] = _read(out / "back")
    return Parts(all=dockerfile.fixes_json(image.fixes, "installed"), files=files, back=back)


def _read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def play(
    engine: Engine,
    image_id: str,
    proofs: Sequence[Proof],
    parts: Parts,
    *,
    run: str,
    workers: int,
    on_verdict: Callable[[Verdict], None],
) -> list[Verdict]:
    """Run every proof; everything of the run is removed however it ends.

    Args:
        workers: containers at the same time.
        on_verdict: called with each verdict, in the order of `proofs`.
    """
    stage = _Stage(engine, image_id, parts, run)
    passing: dict[tuple[str, ...], Future[Witnessed]] = {}
    failing: dict[str, Future[Witnessed | str]] = {}
    found: list[Verdict] = []
    pool = ThreadPoolExecutor(workers)
    cleanup.promise(cleanup.RUN, run)
    try:
        for proof in proofs:
            if proof.with_ not in passing:
                passing[proof.with_] = pool.submit(stage.with_, proof)
            failing[proof.id] = pool.submit(stage.without, proof)
        for proof in proofs:
            verdict = judge(proof, passing[proof.with_].result(), failing[proof.id].result())
            on_verdict(verdict)
            found.append(verdict)
    finally:
        # Interrupted: waiting witnesses never start, and running ones lose their containers.
        stage.closed = True
        pool.shutdown(wait=False, cancel_futures=True)
        if len(found) < len(proofs):
            remove(engine, run)
        pool.shutdown(wait=True)
        remove(engine, run)
        cleanup.kept(cleanup.RUN, run)
    return found


class _Stage:
    """Run the witnesses of one image's proofs in containers."""

    def __init__(self, engine: Engine, image_id: str, parts: Parts, run: str) -> None:
        self._engine, self._image, self._parts, self._run = engine, image_id, parts, run
        self.closed = False

    def with_(self, proof: Proof) -> Witnessed:
        """Run the witness in the unchanged image."""
        container = self._start(proof)
        try:
            return self._witness(container, proof, proof.with_, ())
        finally:
            self._engine.remove_container(container)

    def without(self, proof: Proof) -> Witnessed | str:
        """Run the witness without the fix, or the wrong way; return why if that is impossible."""
        container = self._start(proof)
        try:
            if proof.fixes is not None or proof.wheel:
                wrong = self._take_back(container, proof)
                if wrong:
                    return wrong
            return self._witness(container, proof, proof.without, proof.unset)
        finally:
            self._engine.remove_container(container)

    def _start(self, proof: Proof) -> str:
        spec = ContainerSpec(
            name=f"stackyard-{self._run}-{secrets.token_hex(4)}",
            image=self._image,
            hostname=HOSTNAME,
            network="none",
            env={},
            labels={RUN_LABEL: self._run, OWNER_LABEL: cleanup.owner()},
            volumes={},
            capabilities=CAPABILITIES,
            tmpfs=TMPFS,
            shm_bytes=2**30,
            command=("sleep", f"{2 * proof.witness.seconds + 2 * _GRACE}"),
            hosts={HOSTNAME: "127.0.0.1"},
        )
        container = self._engine.start(spec)
        if self.closed:  # started while the others were removed: nobody waits for its witness
            self._engine.remove_container(container)
        return container

    def _take_back(self, container: str, proof: Proof) -> str:
        kept = self._parts.all if proof.fixes is None else proof.fixes
        programs = ("take_back.py", "apply_fixes.py")
        files = {
            "all.json": self._parts.all.encode(),
            "kept.json": kept.encode(),
            **{name: (INSIDE / name).read_bytes() for name in programs},
            **{f"files/{path}": data for path, data in self._parts.files.items()},
            **{f"back/{path}": data for path, data in self._parts.back.get(proof.id, {}).items()},
        }
        archive = pack({f"{FOLDER}/{path}": data for path, data in files.items()})
        self._engine.exec(container, ["tar", "-x", "-C", "/"], seconds=_GRACE, stdin=archive)
        words = ["python3", f"/{FOLDER}/take_back.py", f"/{FOLDER}"]
        done = self._engine.exec(container, words, seconds=_GRACE)
        return "" if done.code == 0 else done.output.strip() or f"exit code {done.code}"

    def _witness(
        self, container: str, proof: Proof, command: Sequence[str], unset: Sequence[str]
    ) -> Witnessed:
        # One stream keeps the lines in their order.
        merged = ["sh", "-c", 'exec "$@" 2>&1', "witness"]
        words = ["env", *(word for name in unset for word in ("-u", name)), *merged, *command]
        started = time.monotonic()
        done = self._engine.exec(
            container, words, seconds=proof.witness.seconds, folder="/root", control=False
        )
        seconds = time.monotonic() - started
        return Witnessed(code=done.code, output=done.output, seconds=seconds)
