"""Run `invoke prove`, from its arguments to one line per proof, a table, and a report.

Owns the meaning of its arguments, and the output. `validate.prove.play` runs the proofs.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from stackyard.build import catalog
from stackyard.build.builder import Builder, Built
from stackyard.build.choice import decide
from stackyard.cli.answer import EXIT_CODES, Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import ProveRequest
from stackyard.definitions.project import Project, load_project
from stackyard.mesh import nodes
from stackyard.report import junit, records
from stackyard.report.prove import prove_report, record, recorded_path, text
from stackyard.report.prove_page import PAGE, render_page
from stackyard.report.shapes import ProveReport
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError
from stackyard.system.files import replace_texts
from stackyard.validate.prove import plan, play
from stackyard.validate.prove.judge import PROVEN, Verdict

BASE = "cpu"
_WORKERS = 4  # more only compete for memory: a witness is a process that imports torch


def prove(terminal: Terminal, asked: ProveRequest) -> Answer:
    """Prove fixes and limits, or write the page of what is proven."""
    project = load_project()
    if asked.check and not asked.page:
        raise UsageError("--check compares a page", hint="invoke prove --page --check")
    if asked.page and asked.junit:
        raise UsageError(
            "--junit is for proofs, and --page runs none", hint="leave one of them out"
        )
    if asked.page:
        return _page(project, terminal, check=asked.check)
    if asked.junit:
        junit.require_place(Path(asked.junit))
    answer, code = prove_all(
        project, asked.stack, asked.fix, asked.base or BASE, terminal, record_them=asked.record
    )
    if asked.junit:
        junit.write(Path(asked.junit), answer["reports"])
    return answer, code


def prove_all(
    project: Project, stack: str, fix: str, base: str, terminal: Terminal, *, record_them: bool
) -> tuple[dict[str, Any], int]:
    """Prove all fixes and limits of some stacks; return the command's result and exit code.

    Raises:
        UsageError: no fix has that name, or a fix or limit no longer applies anywhere.
    """
    definitions = project.definitions
    plan.require_known(definitions, fix)
    stacks = decide(project, stack, base).stacks
    everywhere = [
        catalog.resolve(definitions, one, other)
        for one in sorted(definitions.stacks)
        for other in sorted(definitions.bases)
    ]
    plan.require_used(definitions, everywhere)
    limits = list(definitions.limits.values())
    names = [
        name
        for name in stacks
        if plan.proofs(catalog.resolve(definitions, name, base), limits, fix)[0]
    ]
    without = [] if fix else [name for name in stacks if name not in names]
    if fix and not names:
        raise UsageError(
            f"{fix} has nothing to prove in {'any stack' if stack == 'all' else stack} on {base}",
            why=_why_nowhere(project, stacks, fix, base),
            hint=f"invoke prove --fix {fix}, or another --base",
        )
    for name in without:
        terminal.text(f"{name}: no fix or limit of it is for {base}: there is nothing to prove")
        elsewhere = plan.proofs(catalog.resolve(definitions, name, base), limits)[1]
        for one, why in elsewhere.items():
            terminal.text(f"{name}: {one} is not for {base}: {why}")
    if not names:
        answer = records.together([])  # not run: nothing was shown
        return answer, EXIT_CODES[answer["outcome"]]
    reports = []
    with Engine() as held:
        builder = Builder(project, held, terminal.say)
        images = builder.build_all(names, base)
        nodes.sweep(held)
        for built in images:
            reports.append(_prove_one(project, held, builder, built, fix, terminal))
    terminal.table(_table(reports))
    for value in reports:
        _explain(value, terminal)
    if record_them:
        played = [(one.image, value) for one, value in zip(images, reports, strict=True)]
        _record(project, base, played, without, terminal, whole=not fix)
    answer = records.together(reports)
    return answer, EXIT_CODES[answer["outcome"]]


def _why_nowhere(project: Project, stacks: Sequence[str], fix: str, base: str) -> str:
    reasons = []
    for name in stacks:
        image = catalog.resolve(project.definitions, name, base)
        elsewhere = plan.proofs(image, project.definitions.limits.values(), fix)[1]
        reasons += [f"{name}: {why}" for why in elsewhere.values()]
    return "; ".join(reasons)


def _prove_one(
    project: Project, held: Engine, builder: Builder, built: Built, fix: str, terminal: Terminal
) -> ProveReport:
    image, name = built.image, built.image.stack.name
    proofs, elsewhere = plan.proofs(image, project.definitions.limits.values(), fix)
    started = datetime.datetime.now(datetime.timezone.utc)
    clock = time.monotonic()
    run_name = f"prove-{name}-{secrets.token_hex(4)}"
    terminal.say(name, f"{len(proofs)} proofs: what fixes touch, as it was installed")
    parts = play.parts_of(builder, image, proofs)

    def judged(verdict: Verdict) -> None:
        said = verdict.symptom if verdict.word == PROVEN else verdict.why
        terminal.done(name, f"{verdict.proof.id}: {verdict.word}: {said[:160]}"
                      f" ({verdict.seconds:.1f} s)")  # fmt: skip

    verdicts = play.play(
        held,
        built.info.id,
        proofs,
        parts,
        run=run_name,
        workers=max(2, min(_WORKERS, os.cpu_count() or 1)),
        on_verdict=judged,
    )
    value = prove_report(
        image,
        built.info,
        verdicts,
        elsewhere,
        run=run_name,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        host=held.facts(),
    )
    if not fix:
        replace_texts(project.root, {records.path_of_report(value, "json"): text(value)})
    return value


def _table(reports: Sequence[ProveReport]) -> Table:
    table = Table(title="proofs", title_justify="left")
    for column in ("stack", "fix or limit", "verdict", "what is seen without it"):
        table.add_column(column, overflow="fold")
    table.add_column("s", justify="right")
    for value in reports:
        for proof in value["proofs"]:
            good = proof["verdict"] == PROVEN
            seconds = proof["with"]["seconds"] + (
                proof["without"]["seconds"] if proof["without"] else 0.0
            )
            said = proof["symptom"] if good else proof["why"]
            word = f"[{'bold green' if good else 'bold red'}]{proof['verdict']}[/]"
            table.add_row(
                value["stack"], escape(proof["id"]), word, escape(said[:120]), f"{seconds:.1f}"
            )
        table.add_section()
        done = sum(proof["verdict"] == PROVEN for proof in value["proofs"])
        table.add_row(
            value["stack"],
            "all",
            f"{done} of {len(value['proofs'])}",
            "",
            f"{value['seconds']:.0f}",
        )
        table.add_section()
    return table


def _explain(value: Mapping[str, Any], terminal: Terminal) -> None:
    for name, reason in value["elsewhere"].items():
        terminal.text(f"{value['stack']}: {name} is not for {value['base']}: {reason}")
    for proof in value["proofs"]:
        if proof["verdict"] != PROVEN:
            said = f"{value['stack']}: {proof['id']}: {proof['verdict']}: {proof['why']}"
            terminal.text(f"{said}\n{proof['last_lines']}")


def _record(
    project: Project,
    base: str,
    played: list[Any],
    without: Collection[str],
    terminal: Terminal,
    *,
    whole: bool,
) -> None:
    path = recorded_path(base)
    kept = {name: one for name, one in recorded(project, base).items() if name not in without}
    found = record(kept, project.definitions, played, whole=whole)
    done = replace_record(project, base, found)
    for written in done:
        terminal.text(f"written: {written}")
    if not done:
        terminal.text(f"{path} and {PAGE} are as they were")


def recorded(project: Project, base: str) -> dict[str, Any]:
    """Return the proofs recorded on a base; empty when there are none."""
    path = project.root / recorded_path(base)
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        hint = "invoke prove --record writes it anew once it is removed"
        raise UsageError(f"{recorded_path(base)} is no JSON", why=str(error), hint=hint) from error
    return found


def replace_record(project: Project, base: str, found: Mapping[str, Any]) -> list[str]:
    """Write recorded proofs and their page; return the paths that changed."""
    files = {recorded_path(base): text(found)}
    if base == BASE:
        files[PAGE] = render_page(project.definitions, found)
    return replace_texts(project.root, files)


def _page(project: Project, terminal: Terminal, *, check: bool) -> tuple[dict[str, Any], int]:
    made = render_page(project.definitions, recorded(project, BASE))
    if not check:
        changed = replace_texts(project.root, {PAGE: made})
    else:
        path = project.root / PAGE
        current = path.read_text(encoding="utf-8") if path.is_file() else ""
        changed = [] if current == made else [PAGE]
    for name in changed:
        terminal.text(f"{'differs' if check else 'written'}: {name}")
    if check and changed:
        terminal.note("the page is not what definitions and proofs say; type: invoke prove --page")
    elif not changed:
        terminal.text(f"{PAGE} is as definitions and proofs say")
    return {"changed": changed}, 1 if check and changed else 0
