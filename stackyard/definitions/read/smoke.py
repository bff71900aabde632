"""Read a stack's smoke, the training that judges it on CPU ranks and on GPUs.

Owns the section `smoke` of a stack file and its rules. As in `definitions.read.files`, every wrong
value becomes a problem of the mapping being read, never an exception.
"""

from __future__ import annotations

import string

from stackyard.definitions.document import Mapping, nearest
from stackyard.definitions.spec import SMOKE_GPUS, SMOKE_GPUS_WORDS, Layout, Smoke
from stackyard.launch import LAUNCHERS, OPTIONS

PLACEHOLDERS = ("text", "data", "save", "record", "updates", "horizon", "save_at", "ranks",
                "gpus", "gpus/2")  # fmt: skip
RANKS = 2
MODEL_PARALLEL = (
    "fairseq's --model-parallel-size needs a Megatron submodule of 2020 that its package does not"
    " contain and that no longer imports (torch._six, apex); use --ddp-backend=fully_sharded with"
    " --checkpoint-activations"
)


def read_smoke(top: Mapping) -> tuple[Smoke, Smoke | None]:
    """Read the smokes on CPU ranks and on GPUs; values of the first are the second's defaults."""
    entry = top.mapping("smoke")
    if entry is None:
        top.missing("smoke")
        return blank_smoke(), None
    smoke = _smoke(entry, entry, "cpu")
    gpus = entry.mapping("gpus")
    gpu_smoke = None
    if gpus is not None:
        gpu_smoke = _smoke(entry, gpus, "cuda", smoke)
        gpus.done()
    entry.done()
    return smoke, gpu_smoke


def blank_smoke() -> Smoke:
    """Return a stand-in for a smoke that could not be read, fit only to find more problems."""
    return Smoke(
        launcher="", env={}, prepare=(), program=(), updates=0, save_at=0, reference="",
        resume="", tolerance=0.0, start_seconds=0, stall_seconds=0, layouts=(),
    )  # fmt: skip


def _smoke(whole: Mapping, entry: Mapping, device: str, other: Smoke | None = None) -> Smoke:
    """Read a smoke from `entry`, with the values of `other` as defaults.

    Launcher, data and program are the same on both devices, so `whole` declares them.
    """
    if other is None:
        launcher = whole.one_of("launcher", LAUNCHERS)
        prepare, program = whole.texts("prepare"), whole.texts("program")
    else:
        launcher, prepare, program = other.launcher, other.prepare, other.program
    layouts = tuple(
        _layout(item, name, launcher, device) for name, item in entry.entries("layouts").items()
    )
    smoke = Smoke(
        launcher=launcher,
        env=entry.env("env"),
        prepare=prepare,
        program=program,
        args=entry.texts("args", ()),
        updates=entry.integer("updates", other.updates if other else 40),
        save_at=entry.integer("save_at", other.save_at if other else 20),
        reference=entry.text("reference", other.reference if other else None),
        resume=entry.text("resume", other.resume if other else None),
        tolerance=entry.number("tolerance", other.tolerance if other else 1e-3),
        start_seconds=entry.integer("start_seconds", other.start_seconds if other else 90),
        stall_seconds=entry.integer("stall_seconds", other.stall_seconds if other else 60),
        layouts=layouts,
        device=device,
        fused=entry.texts("fused", ()) if other else (),
    )
    _check_smoke(entry, smoke)
    return smoke


def _layout(entry: Mapping, name: str, launcher: str, device: str) -> Layout:
    layout = Layout(
        name=name,
        ranks=entry.integer("ranks"),
        args=entry.texts("args", ()),
        launcher=entry.one_of("launcher", LAUNCHERS, launcher),
        options=entry.table("options", {}),
        tolerance=entry.number("tolerance") if entry.has("tolerance") else None,
        fused=entry.texts("fused", ()) if device == "cuda" and entry.has("fused") else None,
        grows=entry.flag("grows", False) if device == "cuda" else False,
    )
    wanted = OPTIONS.get(layout.launcher, ()) if layout.ranks > 1 else ()
    if set(layout.options) != set(wanted):
        say = f"exactly {', '.join(wanted)}" if wanted else "none"
        entry.problem(f"{layout.launcher} with {layout.ranks} ranks takes {say}", key="options")
    if layout.grows and layout.ranks not in SMOKE_GPUS:
        entry.problem(f"must be {SMOKE_GPUS_WORDS}, as it grows", key="ranks")
    elif not layout.grows and not 1 <= layout.ranks <= RANKS:
        entry.problem("must be 1 or 2", key="ranks")
    if layout.launcher == "alone" and layout.ranks != 1:
        entry.problem("`alone` starts one process: the layout must have 1 rank", key="launcher")
    if layout.tolerance is not None:
        _check_tolerance(entry, layout.tolerance)
    check_placeholders(entry, "args", layout.args)
    entry.done()
    return layout


def _check_smoke(entry: Mapping, smoke: Smoke) -> None:
    names = [layout.name for layout in smoke.layouts]
    for key, name in (("reference", smoke.reference), ("resume", smoke.resume)):
        if name and name not in names:
            entry.problem(f"unknown layout {name!r}; {nearest(name, names)}", key=key)
    for layout in smoke.layouts:
        if layout.name == smoke.reference and layout.ranks != 1:
            entry.problem(f"{layout.name!r} must have 1 rank", key="reference")
        if layout.name == smoke.resume and layout.ranks > RANKS:
            entry.problem(f"{layout.name!r} must fit {RANKS} ranks", key="resume")
    if smoke.updates < 40:
        entry.problem("a smoke has at least 40 updates", key="updates")
    if not 0 < smoke.save_at < smoke.updates:
        entry.problem("must lie between 0 and updates", key="save_at")
    for key, seconds in (
        ("start_seconds", smoke.start_seconds),
        ("stall_seconds", smoke.stall_seconds),
    ):
        if seconds < 1:
            entry.problem("must be at least 1", key=key)
    _check_tolerance(entry, smoke.tolerance)
    _check_model_parallel(entry, smoke)
    for key, argv in (("prepare", smoke.prepare), ("program", smoke.program), ("args", smoke.args)):
        check_placeholders(entry, key, argv)


def _check_model_parallel(entry: Mapping, smoke: Smoke) -> None:
    """Refuse fairseq's own tensor parallelism, which cannot be built any more."""
    words = [*smoke.program, *smoke.args, *(w for layout in smoke.layouts for w in layout.args)]
    if smoke.program[:1] != ("fairseq-train",):
        return
    if any(word.split("=")[0] == "--model-parallel-size" for word in words):
        entry.problem(MODEL_PARALLEL, key="program")


def _check_tolerance(entry: Mapping, value: float) -> None:
    if not 0 < value <= 0.1:
        entry.problem("must lie between 0 and 0.1", key="tolerance")


def check_placeholders(
    entry: Mapping, key: str, argv: tuple[str, ...], known: tuple[str, ...] = PLACEHOLDERS
) -> None:
    """Note every placeholder in a command that nothing fills in."""
    for word in argv:
        try:
            fields = [f for _, f, _, _ in string.Formatter().parse(word) if f is not None]
        except ValueError as error:
            entry.problem(f"{word!r}: {error}", key=key)
            continue
        for name in fields:
            if name not in known:
                entry.problem(f"unknown {{{name}}}; {nearest(name, known)}", key=key)
