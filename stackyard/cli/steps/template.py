"""Run `invoke bench --example`, from its arguments to figures on the terminal and a report.

Owns the meaning of its arguments. `validate.template.play` runs the training.
"""

from __future__ import annotations

import datetime
import secrets
import time
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from stackyard.build import host
from stackyard.build.builder import Builder
from stackyard.build.choice import decide
from stackyard.cli.answer import EXIT_CODES, Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.trainings import BenchRequest
from stackyard.cli.steps import bench, diagnose
from stackyard.cli.steps.bench_place import gpus_value
from stackyard.definitions.job_source import (
    example_files,
    load_example,
    parse_settings,
    split_settings,
)
from stackyard.definitions.project import load_project
from stackyard.mesh import nodes
from stackyard.report import pages, records, vouch
from stackyard.report.shapes import TemplateReport
from stackyard.report.trained import render_page, rows, template_report
from stackyard.system.engine import Engine
from stackyard.system.errors import UsageError
from stackyard.validate import gpu_run, smoke
from stackyard.validate.bench.read import load_peaks
from stackyard.validate.template.judge import judge
from stackyard.validate.template.plan import make_plan
from stackyard.validate.template.play import run_template


def template(terminal: Terminal, asked: BenchRequest) -> Answer:
    """Train one template on this machine; the outcome decides the exit code."""
    project = load_project()
    _require_alone(asked)
    typed = f"invoke bench {asked.stack} --example {asked.example}"
    typed += f" --image {asked.image}" if asked.image else ""
    chosen = decide(
        project, asked.stack, asked.base, gpus=asked.gpus, gpus_for="bench", image=asked.image,
        image_here=True, typed=typed,
    )  # fmt: skip
    gpus, (name,), base = chosen.gpus or 0, chosen.stacks, chosen.base.name
    example = load_example(project.root, name, asked.example)
    assert example is not None  # a name is required above
    given, options = split_settings(example, parse_settings(asked.set))
    if options:
        raise UsageError(
            f"--set {next(iter(options))} is an option of the launcher",
            why="a bench leaves the launcher as the template has it",
            hint=f"set values of {example.name} only",
        )
    plan = make_plan(
        example, chosen.device, gpus or bench.CPU_RANKS, updates=asked.updates or 0, given=given
    )
    if gpus:
        host.require_gpus(gpus, typed)
    with Engine() as held:
        gpu_plan = None
        if gpus:
            gpu_plan = gpu_run.make_plan(held, gpus, 1, "", f"{typed} --gpus 0")
            gpu_run.require_fit(gpu_plan, base, project.definitions.bases)
        there = [chosen.there] if chosen.there else None
        (built,) = there or Builder(project, held, terminal.say).build_all([name], base)
        nodes.sweep(held)
        run = f"{name}-{secrets.token_hex(4)}"
        gpu = None
        if gpu_plan:
            gpu = gpu_run.start_run(
                gpu_plan, run, built.info.environment.get("LD_LIBRARY_PATH", "")
            )
        facts, clock = held.facts(), time.monotonic()
        started = datetime.datetime.now(datetime.timezone.utc)
        watcher = smoke.SmokeWatcher(
            phase=lambda text: terminal.say(name, text),
            loss=lambda label, step, loss: terminal.loss(name, label, step, plan.updates, loss),
        )
        files = example_files(project.root, example)
        seen = run_template(held, built.info.id, plan, files, run=run, gpu=gpu, watcher=watcher)
    value = template_report(
        built.image, built.info, plan, seen, judge(plan, seen), peaks=load_peaks(project.root),
        started=started.isoformat(timespec="seconds"), seconds=time.monotonic() - clock,
        host=facts, gpus=gpus_value(gpu), failures=project.definitions.failures.values(),
        made=pages.made_by(project.root),
    )  # fmt: skip
    pages.write(project.root, value, records.path_of_report(value, "json"), render_page(value))
    vouch.write(project.root, value, built.info.layers, Path.home())
    _show(value, terminal)
    terminal.text(f"{name}: {vouch.told(project.root, value)}")
    answer = records.together([value])
    return answer, EXIT_CODES[answer["outcome"]]


def _require_alone(asked: BenchRequest) -> None:
    """Refuse options that are about variants, or about hosts.

    Raises:
        UsageError: one was given, or no template or stack was named.
    """
    if not asked.example:
        raise UsageError("--set is about a template", hint="--example NAME")
    if asked.stack == "all":
        raise UsageError(
            "--example is of one stack", hint=f"invoke bench STACK --example {asked.example}"
        )
    others = {
        "--sides": asked.sides, "--counts": asked.counts, "--rounds": asked.rounds,
        "--hosts": asked.hosts, "--on": asked.on, "--nodes": asked.nodes, "--site": asked.site,
        "--out": asked.out,
    }  # fmt: skip
    given = [name for name, value in others.items() if value]
    if given:
        raise UsageError(
            f"{given[0]} cannot be given with --example",
            why="a template is trained once, on all ranks of one container on this machine",
            hint=f"leave {given[0]} out",
        )


def _show(value: TemplateReport, terminal: Terminal) -> None:
    name = f"{value['stack']}: {value['example']}"
    table = Table(title=f"{name} on {value['base']}", title_justify="left", show_header=False)
    for heading, text in rows(value):
        table.add_row(heading, escape(text))
    terminal.table(table)
    diagnose.show_end(terminal, name, value)
