"""Time a cold build of all stacks: `invoke build --base BASE` against hand-written pip Dockerfiles.

Both sides start with an empty engine, bootstrap their Debian base, take local wheels that the lock
names from this machine and everything else from the network, and end with the same packages in the
same versions, the same repairs, files and environment, which is checked. The side by hand is
measured twice: with the builds typed one after another, and with all started at once. Images on a
GPU base must also keep to limits of size, and are shown beside the sizes of images that others
publish.

Over 300 lines: both sides of the comparison stand in one file, so that a reader can compare them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, hand_build
from benchmarks.common import Measured, Panel, Verdict
from benchmarks.private_engine import private_engine
from stackyard.build import dockerfile
from stackyard.cli.console import Terminal
from stackyard.definitions.project import Project, load_project
from stackyard.release.spool import Layer, Spool
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError

OURS, SERIAL, AT_ONCE = "stackyard", "by hand", "by hand, at once"
SIDES = (OURS, SERIAL, AT_ONCE)
PUBLISHED = "published"
BASES = ("cpu", "cuda")
GOAL = 0.8


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Hold the limits of images on one base, in GB (10^9) unpacked.

    Attributes:
        own: limit of a stack's own layers, above the layers that all stacks share.
    """

    image: float
    layer: float
    own: float


LIMITS = {"cuda": Limits(image=5.6, layer=2.0, own=0.2)}


@dataclass(frozen=True, kw_only=True)
class Published:
    """Hold the size of a published image as a public page states it; not measured here.

    Attributes:
        name: a short name, for pictures.
        gigabytes: unpacked, as `docker images` shows it.
        source: the page.
        date: the page's date.
    """

    name: str
    image: str
    gigabytes: float
    source: str
    date: str
    note: str = ""


# NVIDIA publishes no sizes; these are from people who had its images.
OTHERS = (
    Published(
        name="NVIDIA 2023",
        image="nvcr.io/nvidia/pytorch:23.03-py3",
        gigabytes=20.0,
        source="https://github.com/d4l3k/torchdrive/pull/4",
        date="2023-04-11",
        note="reported by a user, about",
    ),
    Published(
        name="NVIDIA 2024",
        image="nvcr.io/nvidia/pytorch",
        gigabytes=22.0,
        source="https://github.com/hiyouga/LlamaFactory/issues/4974",
        date="2024-07-26",
        note="reported by a user, who names no tag",
    ),
    Published(
        name="AWS 2023",
        image="pytorch-training 2.0.1, gpu, cu118, ec2 (AWS Deep Learning Containers)",
        gigabytes=15.5,
        source="https://github.com/aws/deep-learning-containers/pull/3337",
        date="2023-09-14",
        note="reported by AWS: 20.8 before that change; its SageMaker image 18, before 23.4",
    ),
)
INVOKE = Path(sys.prefix) / "bin" / "invoke"
Seconds = dict[str, float]
# Lists an image's content from inside: packages as Python and dpkg list them, files by hash.
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


def build_ours(project: Project, base: str, engine: Engine, say: Callable[[str], None]) -> Seconds:
    """Run `invoke build`; return seconds in all, and of each stack from the common start."""
    started = time.monotonic()
    words = [str(INVOKE), "build", "--base", base, "--json"]
    output = process.run(words, cwd=project.root, timeout=3600, on_line=say).output
    whole = time.monotonic() - started
    return {"all": whole, **{row["stack"]: row["seconds"] for row in built_rows(output)}}


def built_rows(output: str) -> list[dict[str, Any]]:
    """Return the images that `invoke build --json` reports after its progress lines."""
    rows: list[dict[str, Any]] = json.loads(output[output.rindex("\n{\n") :])["images"]
    return rows


def build_by_hand(
    project: Project, base: str, engine: Engine, say: Callable[[str], None]
) -> Seconds:
    """Build the Debian base, then one Dockerfile after another."""
    return _by_hand(project, base, engine, say, workers=1)


def build_by_hand_at_once(
    project: Project, base: str, engine: Engine, say: Callable[[str], None]
) -> Seconds:
    """Build the Debian base, then all Dockerfiles at the same time."""
    return _by_hand(project, base, engine, say, workers=len(project.stacks("all")))


def _by_hand(
    project: Project, base: str, engine: Engine, say: Callable[[str], None], *, workers: int
) -> Seconds:
    with hand_build.prepared(project, base) as hand:
        started = time.monotonic()
        hand_build.ensure_base(engine, project, say)
        debian = time.monotonic() - started

        def one(stack: str) -> float:
            begun = time.monotonic()
            hand_build.build_stack(hand, stack, say)
            return time.monotonic() - begun

        stacks = project.stacks("all")
        with ThreadPoolExecutor(workers) as pool:
            each = dict(zip(stacks, pool.map(one, stacks), strict=True))
        return {"all": time.monotonic() - started, "base": debian, **each}


def inspect(engine: Engine, tags: Mapping[str, str]) -> dict[str, Any]:
    """Weigh the images by stack, and read the content of each."""
    with tempfile.TemporaryDirectory(prefix="stackyard-layers-") as name:
        store = Spool(Path(name))
        # Compressed as `invoke publish` does it, as it is pulled.
        layers = {stack: compressed(engine, store, tag) for stack, tag in tags.items()}
    content = {stack: content_of(engine, tag) for stack, tag in tags.items()}
    return {**weighed(layers), "content": content}


def compressed(engine: Engine, store: Spool, tag: str) -> tuple[Layer, ...]:
    """Return an image's layers, compressed once for all images of the store."""
    info = engine.image(tag)
    return store.save(engine.saved(tag), {}, diff_ids=info.layers if info else ()).layers


def weighed(images: Mapping[str, Sequence[Layer]]) -> dict[str, Any]:
    """Return bytes of all images together, each layer counted once, and of each image.

    `bytes` are unpacked; `own_bytes` those of the layers above what all images share.
    """
    distinct = {layer.diff_id: layer for layers in images.values() for layer in layers}
    together = zip(*images.values(), strict=False)
    alike = itertools.takewhile(lambda same: len({layer.diff_id for layer in same}) == 1, together)
    shared = len(list(alike))
    return {
        "bytes": sum(layer.unpacked for layer in distinct.values()),
        "layers": {name: layer.unpacked for name, layer in distinct.items()},
        "pulled": {name: layer.size for name, layer in distinct.items()},
        "images": {
            stack: {
                "bytes": sum(layer.unpacked for layer in layers),
                "pulled_bytes": sum(layer.size for layer in layers),
                "largest_layer": max(layer.unpacked for layer in layers),
                "own_bytes": sum(layer.unpacked for layer in layers[shared:]),
                "layers": [layer.diff_id for layer in layers],
            }
            for stack, layers in images.items()
        },
    }


def content_of(engine: Engine, tag: str) -> dict[str, Any]:
    """Return packages and files of an image, as a container sees them, and its environment."""
    output = engine.run_once(tag, ["python3", "-c", _CONTENT], seconds=120)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    info = engine.image(tag)
    assert info is not None
    return {**found, "env": dict(entry.split("=", 1) for entry in info.env)}


def missing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """List what the first image holds and the second lacks or has in another form."""
    return [
        f"{kind}: {name}: {value}, not {theirs[kind].get(name, 'there')}"
        for kind, held in ours.items()
        for name, value in held.items()
        if theirs[kind].get(name) != value
    ]


def require_same(runs: Sequence[Mapping[str, Any]]) -> None:
    """Check that each image by hand holds all that Stackyard's of the same stack holds.

    Nothing is checked while Stackyard's side has not been built.

    Raises:
        StackyardError: the images differ, so comparing would mean nothing; names the differences.
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


_BUILDS: dict[str, Callable[[Project, str, Engine, Callable[[str], None]], Seconds]] = {
    OURS: build_ours,
    SERIAL: build_by_hand,
    AT_ONCE: build_by_hand_at_once,
}


def run_side(
    side: str, project: Project, base: str, beside: Path, terminal: Terminal
) -> dict[str, Any]:
    """Build one side cold, in an engine of its own, and inspect its images."""
    with private_engine(beside) as engine:
        seconds = _BUILDS[side](project, base, engine, lambda line: terminal.say(side, line[:200]))
        terminal.done(side, f"built in {seconds['all']:.1f} s; looking at the images")
        tags = {
            stack: dockerfile.image_tag(stack, base) if side == OURS else hand_build.tag(stack)
            for stack in project.stacks("all")
        }
        return {"side": side, "seconds": seconds, **inspect(engine, tags)}


def summarise(runs: Sequence[Mapping[str, Any]], stacks: Sequence[str], base: str) -> Measured:
    """Return the pictures and verdicts that follow from the runs."""

    def values(side: str, what: str) -> list[float]:
        found = [run["seconds"] for run in runs if run["side"] == side]
        return [seconds[what] for seconds in found if what in seconds]

    sizes = {side: [run["bytes"] / 1e9 for run in runs if run["side"] == side] for side in SIDES}
    places = ["all", *stacks]
    time_ratio = common.median_ratio(values(OURS, "all"), values(SERIAL, "all"))
    at_once = common.median_ratio(values(OURS, "all"), values(AT_ONCE, "all"))
    size_ratio = common.median_ratio(sizes[OURS], sizes[SERIAL])
    return Measured(
        title=f"Cold build of three stacks on {base}, bootstrap of the base included",
        runs=[
            *({**run, "content": counted(run["content"])} for run in runs),
            *({"side": PUBLISHED, **asdict(other)} for other in others_beside(base)),
        ],
        panels=[
            Panel(
                title="wall time", unit="s", x=places,
                series={side: [values(side, place) for place in places] for side in SIDES},
            ),
            Panel(
                title="distinct layers of three images", unit="GB", x=["bytes"],
                series={side: [sizes[side]] for side in (OURS, SERIAL)},
            ),
            *image_panels(runs, stacks, base),
        ],
        verdicts=[
            Verdict(what="time of a cold build, against by hand", value=time_ratio, goal=GOAL),
            Verdict(what="the same, against by hand all at once", value=at_once, goal=GOAL),
            Verdict(what="bytes of distinct layers, against by hand", value=size_ratio, goal=GOAL),
            *limit_verdicts(runs, base),
        ],
    )  # fmt: skip


def others_beside(base: str) -> tuple[Published, ...]:
    """Return the published images to show beside those on a base."""
    return OTHERS if base in LIMITS else ()


def image_panels(
    runs: Sequence[Mapping[str, Any]], stacks: Sequence[str], base: str
) -> list[Panel]:
    """Draw the size of each image; only where others' images are shown beside."""
    if base not in LIMITS:
        return []

    def gigabytes(key: str) -> dict[str, list[list[float]]]:
        return {
            side: [
                [run["images"][stack][key] / 1e9 for run in runs if run["side"] == side]
                for stack in stacks
            ]
            for side in SIDES
        }

    others = others_beside(base)
    unpacked = {side: [*found, *([] for _ in others)] for side, found in gigabytes("bytes").items()}
    published = [*([] for _ in stacks), *([other.gigabytes] for other in others)]
    return [
        Panel(
            title="one image, unpacked", unit="GB", x=[*stacks, *(o.name for o in others)],
            series={**unpacked, PUBLISHED: published},
            limit=[*(LIMITS[base].image for _ in stacks), *(None for _ in others)],
        ),
        Panel(title="one image, as pulled", unit="GB", x=stacks, series=gigabytes("pulled_bytes")),
    ]  # fmt: skip


def limit_verdicts(runs: Sequence[Mapping[str, Any]], base: str) -> list[Verdict]:
    """Judge the largest of Stackyard's images against the limits of its base, if it has any.

    Raises:
        ValueError: Stackyard's side was not measured.
    """
    if base not in LIMITS:
        return []
    limits = LIMITS[base]
    images = [image for run in runs if run["side"] == OURS for image in run["images"].values()]

    def largest(what: str, key: str, goal: float) -> Verdict:
        value = max(image[key] / 1e9 for image in images)
        return Verdict(what=f"{what}, in GB, the largest", value=value, goal=goal)

    return [
        largest("image", "bytes", limits.image),
        largest("layer", "largest_layer", limits.layer),
        largest("what a stack adds to what all share", "own_bytes", limits.own),
    ]


def counted(content: Mapping[str, Any]) -> dict[str, Any]:
    """Count the packages of each image and the bytes of Debian's; list Python's with versions."""
    return {
        stack: {
            "debian_packages": len(found["debian"]),
            "debian_bytes": sum(found["debian"].values()),
            "python_packages": len(found["python"]),
            "python": found["python"],
        }
        for stack, found in content.items()
    }


def measure(rounds: int, sides: Sequence[str], base: str) -> Callable[[Terminal, Engine], Measured]:
    """Return the benchmark; every second round runs the sides in the other order."""

    def measured(terminal: Terminal, engine: Engine) -> Measured:
        beside = Path(engine.data_folder()).parent
        runs: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="stackyard-copy-") as name:
            project = load_project(common.copy_project(Path(name) / "project"))
            for number in range(rounds):
                for side in sides if number % 2 == 0 else list(reversed(sides)):
                    run = run_side(side, project, base, beside, terminal)
                    runs.append({"round": number, **run})
                    require_same(runs)
            return summarise(runs, project.stacks("all"), base)

    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="how often each side is built")
    parser.add_argument("--base", choices=BASES, default="cpu", help="what the stacks lie on")
    return parser.parse_args()


def result_name(base: str) -> str:
    """Return the name of a base's result; that of `cpu` is older than the choice."""
    return "cold_build" if base == "cpu" else f"cold_build_{base}"


if __name__ == "__main__":
    given = _arguments()
    sys.exit(common.main(result_name(given.base), measure(given.rounds, SIDES, given.base)))
