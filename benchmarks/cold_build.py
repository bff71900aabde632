"""Cold build of all stacks: `invoke build --base cpu` against hand-written pip Dockerfiles.

Both sides begin with an engine that holds nothing, bootstrap their Debian base, take the torch
wheel from this machine and everything else from the network, and end with the same packages in
the same versions, the same repairs and the same files, which is checked. By hand is measured
twice: the builds typed one after another, and all started at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import common, hand_build
from benchmarks.common import Measured, Panel, Verdict
from benchmarks.private_engine import private_engine
from stackyard import dockerfile, process
from stackyard.console import Terminal
from stackyard.engine import Engine
from stackyard.errors import StackyardError
from stackyard.project import Project, load_project

OURS, SERIAL, AT_ONCE = "stackyard", "by hand", "by hand, at once"
SIDES = (OURS, SERIAL, AT_ONCE)
GOAL = 0.8
INVOKE = Path(sys.prefix) / "bin" / "invoke"
Seconds = dict[str, float]
# What an image holds, read inside it: packages as Python and dpkg see them, files by hash.
_CONTENT = """
import hashlib, importlib.metadata as m, json, pathlib, re, subprocess
names = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() for d in m.distributions()}
query = ["dpkg-query", "-W", "-f", "${Package} ${Installed-Size}\\n"]
listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
paths = [*pathlib.Path("/usr/local/share/stackyard").rglob("*"),
         *pathlib.Path("/usr/local/lib/stackyard").glob("*.py"),
         *(pathlib.Path("/etc/ssh") / name for name in ("sshd_config", "ssh_config"))]
print(json.dumps({"python": {n: m.version(n) for n in sorted(names)},
                  "debian": {n: 1024 * int(kib) for n, kib in map(str.split, sorted(listed))},
                  "files": {str(p): hashlib.sha256(p.read_bytes()).hexdigest()
                            for p in sorted(paths) if p.is_file()}}))
"""


def build_ours(project: Project, engine: Engine, say: Callable[[str], None]) -> Seconds:
    """`invoke build --base cpu`; seconds in all, and of each stack from the common start."""
    started = time.monotonic()
    words = [str(INVOKE), "build", "--base", "cpu", "--json"]
    output = process.run(words, cwd=project.root, timeout=3600, on_line=say).output
    whole = time.monotonic() - started
    return {"all": whole, **{row["stack"]: row["seconds"] for row in built_rows(output)}}


def built_rows(output: str) -> list[dict[str, Any]]:
    """The images that `invoke build --json` reports, from its output with progress before it."""
    rows: list[dict[str, Any]] = json.loads(output[output.rindex("\n{\n") :])["images"]
    return rows


def build_by_hand(project: Project, engine: Engine, say: Callable[[str], None]) -> Seconds:
    """Base, then one Dockerfile after another."""
    return _by_hand(project, engine, say, workers=1)


def build_by_hand_at_once(project: Project, engine: Engine, say: Callable[[str], None]) -> Seconds:
    """Base, then all Dockerfiles at the same time."""
    return _by_hand(project, engine, say, workers=len(project.stacks("all")))


def _by_hand(
    project: Project, engine: Engine, say: Callable[[str], None], *, workers: int
) -> Seconds:
    with hand_build.prepared(project) as hand:
        started = time.monotonic()
        hand_build.ensure_base(engine, project, say)
        base = time.monotonic() - started

        def one(stack: str) -> float:
            begun = time.monotonic()
            hand_build.build_stack(hand, stack, say)
            return time.monotonic() - begun

        stacks = project.stacks("all")
        with ThreadPoolExecutor(workers) as pool:
            each = dict(zip(stacks, pool.map(one, stacks), strict=True))
        return {"all": time.monotonic() - started, "base": base, **each}


def layer_bytes(archive: Path) -> dict[str, int]:
    """Size of each layer by its digest, from an archive that `docker save` wrote."""
    with tarfile.open(archive) as tar:
        manifest = json.load(_member(tar, "manifest.json"))[0]
        digests = json.load(_member(tar, manifest["Config"]))["rootfs"]["diff_ids"]
        sizes = [_followed(tar, name).size for name in manifest["Layers"]]
    return dict(zip(digests, sizes, strict=True))


def _member(tar: tarfile.TarFile, name: str) -> Any:
    found = tar.extractfile(name)
    assert found is not None
    return found


def _followed(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """A member of the archive; older engines write a repeated layer as a link to the first."""
    info = tar.getmember(name)
    if info.issym():
        return tar.getmember(str((Path(name).parent / info.linkname).as_posix()).split("../")[-1])
    return info


def inspect(engine: Engine, tags: Mapping[str, str]) -> dict[str, Any]:
    """Layers of all images together, each counted once, and the content of each."""
    layers: dict[str, int] = {}
    for reference in tags.values():
        with tempfile.TemporaryDirectory(prefix="stackyard-save-") as name:
            engine.save(reference, Path(name) / "image.tar")
            layers |= layer_bytes(Path(name) / "image.tar")
    content = {stack: content_of(engine, tag) for stack, tag in tags.items()}
    return {"bytes": sum(layers.values()), "layers": layers, "content": content}


def content_of(engine: Engine, tag: str) -> dict[str, Any]:
    """Packages and files of an image, as a container of it sees them."""
    output = engine.run_once(tag, ["python3", "-c", _CONTENT], seconds=120)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def missing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What our image holds and the other lacks or has otherwise; the other may hold more."""
    return [
        f"{kind}: {name}: {value}, not {theirs[kind].get(name, 'there')}"
        for kind in ("python", "files")
        for name, value in ours[kind].items()
        if theirs[kind].get(name) != value
    ]


def require_same(runs: Sequence[Mapping[str, Any]]) -> None:
    """See that every image by hand holds all that ours of the same stack does, once ours is there.

    Raises:
        StackyardError: naming what differs; the comparison would mean nothing.
    """
    ours = next((run["content"] for run in runs if run["side"] == OURS), None)
    if ours is None:
        return
    wrong = [
        f"{run['side']}, {stack}: {line}"
        for run in runs
        for stack, content in run["content"].items()
        for line in missing(ours[stack], content)
    ]
    if wrong:
        why = "\n".join(wrong[:30])
        raise StackyardError("the two sides did not build the same content", why=why)


_BUILDS: dict[str, Callable[[Project, Engine, Callable[[str], None]], Seconds]] = {
    OURS: build_ours,
    SERIAL: build_by_hand,
    AT_ONCE: build_by_hand_at_once,
}


def run_side(side: str, project: Project, beside: Path, terminal: Terminal) -> dict[str, Any]:
    """One cold build of one side, in an engine of its own."""
    with private_engine(beside) as engine:
        seconds = _BUILDS[side](project, engine, lambda line: terminal.say(side, line[:200]))
        terminal.done(side, f"built in {seconds['all']:.1f} s; looking at the images")
        name = dockerfile.image_tag if side == OURS else lambda stack, base: hand_build.tag(stack)
        tags = {stack: name(stack, "cpu") for stack in project.stacks("all")}
        return {"side": side, "seconds": seconds, **inspect(engine, tags)}


def summarise(runs: Sequence[Mapping[str, Any]], stacks: Sequence[str]) -> Measured:
    """The pictures and verdicts that follow from the runs."""

    def values(side: str, what: str) -> list[float]:
        found = [run["seconds"] for run in runs if run["side"] == side]
        return [seconds[what] for seconds in found if what in seconds]

    sizes = {side: [run["bytes"] / 1e9 for run in runs if run["side"] == side] for side in SIDES}
    places = ["all", *stacks]
    time_ratio = common.median_ratio(values(OURS, "all"), values(SERIAL, "all"))
    at_once = common.median_ratio(values(OURS, "all"), values(AT_ONCE, "all"))
    size_ratio = common.median_ratio(sizes[OURS], sizes[SERIAL])
    return Measured(
        title="Cold build of three stacks, bootstrap of the base included",
        runs=[{**run, "content": counted(run["content"])} for run in runs],
        panels=[
            Panel(
                title="wall time", unit="s", x=places,
                series={side: [values(side, place) for place in places] for side in SIDES},
            ),
            Panel(
                title="distinct layers of three images", unit="GB", x=["bytes"],
                series={side: [sizes[side]] for side in (OURS, SERIAL)},
            ),
        ],
        verdicts=[
            Verdict(what="time of a cold build, against by hand", value=time_ratio, goal=GOAL),
            Verdict(what="the same, against by hand all at once", value=at_once, goal=GOAL),
            Verdict(what="bytes of distinct layers, against by hand", value=size_ratio, goal=GOAL),
        ],
    )  # fmt: skip


def counted(content: Mapping[str, Any]) -> dict[str, Any]:
    """How many packages each image holds, what Debian's say they take, and Python's versions."""
    return {
        stack: {
            "debian_packages": len(found["debian"]),
            "debian_bytes": sum(found["debian"].values()),
            "python_packages": len(found["python"]),
            "python": found["python"],
        }
        for stack, found in content.items()
    }


def measure(rounds: int, sides: Sequence[str]) -> Callable[[Terminal, Engine], Measured]:
    """The benchmark; every second round goes through the sides in the other order."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        beside = Path(engine.data_folder()).parent
        runs: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="stackyard-copy-") as name:
            project = load_project(common.copy_project(Path(name) / "project"))
            for number in range(rounds):
                for side in sides if number % 2 == 0 else list(reversed(sides)):
                    runs.append({"round": number, **run_side(side, project, beside, terminal)})
                    require_same(runs)
            return summarise(runs, project.stacks("all"))

    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="how often each side is built")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(common.main("cold_build", measure(_arguments().rounds, SIDES)))
