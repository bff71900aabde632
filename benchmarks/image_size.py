"""Compare sizes of images: by Stackyard, by hand, by hand in one RUN, and by HPCCM's recipe.

Every side builds the same packages in the same versions, with the same repairs and files, which is
checked. Bytes are those of the layers as they are pushed (compressed, by the compressor that
publishes) and unpacked, less those of one bare Debian: every side pays for its system packages.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import cold_build, common, hand_build
from benchmarks.common import Measured, Panel, Verdict
from stackyard.build import catalog, dockerfile
from stackyard.cli.console import Terminal
from stackyard.definitions import lock
from stackyard.definitions.project import Project, load_project
from stackyard.release.spool import Spool
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import StackyardError

OURS, HAND, ONE_RUN, HPCCM = "stackyard", "by hand", "one RUN", "HPCCM"
VARIANTS = {HAND: "by-hand", ONE_RUN: "one-run", HPCCM: "hpccm"}
SIDES = (OURS, *VARIANTS)
GOAL = 0.8
# Limits of compressed bytes above a bare Debian, in MB (10^6): measured, plus 4 %.
BUDGETS = {"accelerate": 251.0, "fairseq": 259.0, "megatron": 232.0}
PLOT_PYTHON = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
RECIPE = Path(__file__).resolve().parent / "hpccm_recipe.py"

# Settings of apt in official Debian images, and the place of the caller's authorities.
_APT = """\
Acquire::https::CAInfo "/run/secrets/ca.pem";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";
"""
_SECRETS = {
    "apt.sources": "/etc/apt/sources.list.d/caller.sources",
    "apt.conf": "/etc/apt/apt.conf.d/99caller",
    "pip.conf": "/etc/pip.conf",
    "ca.pem": "/run/secrets/ca.pem",
}


def one_run(text: str) -> str:
    """Return a hand-written Dockerfile with all its RUN steps made one; the rest in its order."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    steps = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    runs = [step.removeprefix("RUN ") for step in steps if step.startswith("RUN ")]
    mounts = list(dict.fromkeys(word for run in runs for word in run.split() if _is_mount(word)))
    commands = [re.sub(r"^(?:--mount=\S+ +)*", "", run) for run in runs]
    # Each in a subshell, so that no command changes folder or variables of the next.
    whole = "RUN " + " ".join([*mounts, " && ".join(f"( {command} )" for command in commands)])
    last = max(number for number, step in enumerate(steps) if step.startswith("RUN "))
    kept = [step for step in steps[:last] if not step.startswith("RUN ")]
    return "\n".join([*kept, whole, *steps[last + 1 :]]) + "\n"


def _is_mount(word: str) -> bool:
    return word.startswith("--mount=")


def with_secrets(text: str) -> str:
    """Add the caller's package settings to every RUN step: HPCCM's building blocks cannot."""
    mounts = [f"--mount=type=secret,id={n},target={at},mode=0444" for n, at in _SECRETS.items()]
    mounts.append("--mount=type=bind,source=wheels,target=/tmp/wheels")
    return re.sub(r"^RUN ", f"RUN {' '.join(mounts)} ", text, flags=re.MULTILINE)


def ingredients(project: Project, stack: str) -> dict[str, Any]:
    """Return the ingredients of a stack on the cpu base, as input of HPCCM's recipe."""
    image = catalog.resolve(project.definitions, stack, "cpu")
    assert image.base.bootstrap is not None
    system = {*image.common.system, *image.base.bootstrap.packages, *image.common.build_system}
    early = [item for item in image.wheels if not item.wheel.torch]
    late = [item for item in image.wheels if item.wheel.torch]
    requires = {pin for item in early for pin in item.wheel.requires if not pin.startswith("pip==")}
    return {
        "base": hand_build.BASE, "system": sorted({*system, "python3-pip"}),
        "text": list(image.common.text_packages),
        "build_requires": sorted(requires),
        "built_without_torch": [f"{i.wheel.package}=={i.wheel.version}" for i in early],
        "torch": _pins(image.locks[lock.base_lock_path("cpu")]),
        "built": [f"{item.wheel.package}=={item.wheel.version}" for item in late],
        "build_env": {name: value for item in late for name, value in item.env.items()},
        "packages": _pins(image.locks[lock.lock_path(stack, "cpu")]),
        "fixes": hand_build.fixes_path(stack),
        "env": {name: setting.value for name, setting in image.env.items()},
    }  # fmt: skip


def _pins(text: str) -> list[str]:
    return [f"{item.name}=={item.version}" for item in lock.parse_lock(text)]


def hpccm_dockerfile(project: Project, stack: str) -> str:
    """Return the Dockerfile that HPCCM makes of the recipe."""
    made = process.run(
        [str(PLOT_PYTHON), str(RECIPE)], timeout=120,
        stdin=json.dumps(ingredients(project, stack)).encode(),
    ).output  # fmt: skip
    return with_secrets(made[made.index("FROM ") :])


def write_variants(project: Project, hand: hand_build.Hand) -> hand_build.Hand:
    """Write the other Dockerfiles beside the hand-written ones, and the settings they need."""
    for stack in project.stacks("all"):
        written = (hand.folder / hand_build.dockerfile_name(stack)).read_text(encoding="utf-8")
        texts = {ONE_RUN: one_run(written), HPCCM: hpccm_dockerfile(project, stack)}
        for side, text in texts.items():
            path = hand.folder / hand_build.dockerfile_name(stack, VARIANTS[side])
            path.write_text(text, encoding="utf-8")
    conf = hand.folder.parent / "secrets" / "apt.conf"
    conf.write_text(_APT, encoding="utf-8")
    return dataclasses.replace(hand, secrets={**hand.secrets, "apt.conf": conf})


def weigh(engine: Engine, store: Spool, tag: str) -> dict[str, int]:
    """Return the bytes of an image's layers, as they are pushed and unpacked."""
    layers = cold_build.compressed(engine, store, tag)
    return {
        "compressed": sum(layer.size for layer in layers),
        "unpacked": sum(layer.unpacked for layer in layers),
        "layers": len(layers),
    }


def over(weight: Mapping[str, int], base: Mapping[str, int]) -> dict[str, int]:
    """Return an image's bytes beyond those of a bare Debian."""
    return {key: weight[key] - base[key] for key in ("compressed", "unpacked")}


def name_of(side: str, stack: str) -> str:
    """Return the image name of a side."""
    if side == OURS:
        return dockerfile.image_tag(stack, "cpu")
    return hand_build.tag(stack, VARIANTS[side])


def ratio(runs: Sequence[Mapping[str, Any]], side: str, stack: str) -> float:
    """Return compressed bytes of Stackyard's image over another side's, both without the base.

    Raises:
        ValueError: one of them was not measured, or more than once.
    """
    values = []
    for wanted in (OURS, side):
        (found,) = [r for r in runs if (r["side"], r["stack"]) == (wanted, stack)]
        values.append(found["over_base"]["compressed"])
    return float(values[0] / values[1])


def summarise(runs: Sequence[Mapping[str, Any]], stacks: Sequence[str]) -> Measured:
    """Return the pictures and verdicts that follow from the runs."""

    def series(key: str, unit: float) -> dict[str, list[list[float]]]:
        return {
            side: [
                [
                    r["over_base"][key] / unit
                    for r in runs
                    if (r["side"], r["stack"]) == (side, name)
                ]
                for name in stacks
            ]
            for side in SIDES
        }

    packed = series("compressed", 1e6)
    budgets = [
        Verdict(
            what=f"{stack}: MB as pushed, against its budget",
            value=common.middle(packed[OURS][number]),
            goal=BUDGETS[stack],
        )
        for number, stack in enumerate(stacks)
    ]
    ratios = [
        Verdict(
            what=f"bytes as pushed, against {side}, the worst stack",
            value=max(ratio(runs, side, stack) for stack in stacks),
            goal=GOAL,
        )
        for side in VARIANTS
    ]
    limits = [BUDGETS[stack] for stack in stacks]
    return Measured(
        title="Images over a bare Debian, the same packages in the same versions",
        runs=runs,
        panels=[
            Panel(title="as pushed", unit="MB", x=stacks, series=packed, limit=limits),
            Panel(title="unpacked", unit="GB", x=stacks, series=series("unpacked", 1e9)),
        ],
        verdicts=[*budgets, *ratios],
    )


def require_same(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Check that another side's image holds all that Stackyard's does.

    Raises:
        StackyardError: the images differ, so comparing would mean nothing; names the differences.
    """
    wrong = cold_build.missing(ours, theirs)
    if wrong:
        why = "\n".join(wrong[:30])
        raise StackyardError(f"{what} lacks what Stackyard's image holds", why=why)


def measure(terminal: Terminal, engine: Engine) -> Measured:
    """Build every side of every stack, weigh each, and remove the other sides' names."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stackyard-size-") as name:
        project = load_project(common.copy_project(Path(name) / "project"))
        store = Spool(Path(name) / "layers")
        stacks = project.stacks("all")
        say: Callable[[str], None] = lambda line: terminal.say("sizes", line[:200])  # noqa: E731
        mine = [tag for tag in _names(project) if engine.image(tag) is None]
        try:
            cold_build.build_ours(project, "cpu", engine, say)
            hand_build.ensure_base(engine, project, say)
            base = weigh(engine, store, hand_build.BASE)
            with hand_build.prepared(project, "cpu") as hand:
                complete = write_variants(project, hand)
                for stack in stacks:
                    runs += _sides(engine, store, complete, stack, base, say)
        finally:
            for tag in mine:
                engine.remove_image(tag)
        return summarise(runs, stacks)


def _names(project: Project) -> list[str]:
    """Return every name that the other sides give to an image."""
    variants = [hand_build.tag(s, v) for s in project.stacks("all") for v in VARIANTS.values()]
    return list(dict.fromkeys([*variants, *hand_build.names(project)]))


def _sides(
    engine: Engine, store: Spool, hand: hand_build.Hand, stack: str, base: Mapping[str, int],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    runs = []
    ours: dict[str, Any] = {}
    for side in SIDES:
        if side != OURS:
            say(f"{stack}, {side}")
            hand_build.build_stack(hand, stack, say, VARIANTS[side])
        content = cold_build.content_of(engine, name_of(side, stack))
        ours = ours or content
        require_same(ours, content, f"{stack}, {side}")
        weight = weigh(engine, store, name_of(side, stack))
        say(f"{stack}, {side}: {weight['compressed'] / 1e6:.1f} MB as pushed")
        runs.append({
            "side": side, "stack": stack, **weight, "over_base": over(weight, base),
            "content": cold_build.counted({stack: content})[stack],
        })  # fmt: skip
    return runs


if __name__ == "__main__":
    sys.exit(common.main("image_size", measure))
