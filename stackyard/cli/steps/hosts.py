"""Run `invoke status`, `logs`, `sync`, `stop`, `down` and `doctor --hosts`.

Owns finding the hosts and the run that a command means. `cli.steps.run` starts runs, `mesh.runs`
takes the steps, `cli.run_view` draws.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stackyard.build.choice import decide
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import (
    DoctorRequest,
    LogsRequest,
    StatusRequest,
    StopRequest,
    SyncRequest,
)
from stackyard.cli.run_view import RunView, hosts_table, runs_table
from stackyard.definitions.project import load_project
from stackyard.gpu import transport
from stackyard.gpu.transport import PathValue
from stackyard.mesh import runs, standing
from stackyard.mesh import sync as syncing
from stackyard.mesh.host_table import inspect
from stackyard.mesh.hosts import Fleet, expand, from_names, matching, read_inventory
from stackyard.mesh.link import cause, remark
from stackyard.mesh.node_plan import MeshRequest, StandingPlan
from stackyard.mesh.preflight import muster
from stackyard.mesh.runs import Ended, Follower, Reached, RunWatcher, reached
from stackyard.mesh.standing import Standing
from stackyard.mesh.supervisor import Talk
from stackyard.system.errors import StackyardError, UsageError, shown

HOSTS_FILE = "hosts.yml"


def load_fleet(given: str) -> Fleet:
    """Load hosts from a file, a node set, names by comma, or `ssh:PATTERN` of ~/.ssh/config.

    Raises:
        UsageError: no inventory was named or found.
        DefinitionError: the inventory is invalid.
    """
    name = given or HOSTS_FILE
    if name.startswith("ssh:"):
        config = Path("~/.ssh/config").expanduser()
        text = config.read_text(encoding="utf-8") if config.is_file() else ""
        found = matching(text, name[4:])
        if not found:
            raise UsageError(f"~/.ssh/config has no host like {shown(name[4:])}")
        return from_names(found, name)
    path = Path(name)
    if path.is_file():
        try:
            return read_inventory(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read", why=str(error)) from error
    if not given or "/" in given or given.endswith((".yml", ".yaml")):
        raise _no_hosts(path, f"there is no {shown(name)}", "it says which machines there are")
    try:
        names = expand(given)
    except UsageError as error:
        what = f"--hosts {shown(given)!r} is neither a file nor a node set"
        raise _no_hosts(path, what, error.why or error.what) from error
    return from_names(names, "--hosts")


def _no_hosts(path: Path, what: str, why: str) -> UsageError:
    """Return the error for hosts that are neither a file nor a node set; it names files near."""
    try:
        files = [one.name for one in path.parent.iterdir() if one.is_file()]
    except OSError:
        files = []
    near = difflib.get_close_matches(path.name, files, n=1, cutoff=0.7)
    hint = f"did you mean {str(path.with_name(near[0]))!r}? Or " if near else ""
    return UsageError(
        what,
        why=why,
        hint=f"{hint}write a hosts.yml (docs/howto/hosts.md), or name hosts:"
        " --hosts 'gpu[01-04],train'",
    )


def status(terminal: Terminal, asked: StatusRequest) -> Answer:
    """Run `invoke status`: show every run on the hosts, and its job."""
    with reached(load_fleet(asked.hosts)) as hosts:
        rows, silent = rows_of(hosts, asked.name)
    for host, error in silent.items():
        terminal.note(remark(host, cause(host, error), error.hint))
    answered = len(hosts.links.keys() - silent.keys())
    if rows:
        terminal.table(runs_table(rows))
    elif answered:
        terminal.text(f"no run is on {answered} hosts")
    else:
        terminal.text("no host answers: which runs there are is not known")
    return {"runs": rows, "silent": sorted(silent)}, 0 if answered else 1


def rows_of(hosts: Reached, name: str) -> tuple[list[dict[str, Any]], dict[str, StackyardError]]:
    """Return the rows of a run, or of all, and the errors of hosts that do not answer."""
    there, silent = standing.find(hosts.links)
    rows = [row(run, _state(hosts, run)) for known, run in there.items() if name in ("", known)]
    return rows, {**hosts.failed, **silent}


def _state(hosts: Reached, run: Standing) -> Mapping[str, Any]:
    try:
        talk = standing.connect(hosts.links, run)
    except StackyardError as error:
        return {"error": str(error.what)}
    try:
        return talk.ask("state", "state", 10)
    except StackyardError as error:
        return {"error": error.what}
    finally:
        talk.close()


def plan_value(plan: StandingPlan) -> dict[str, Any]:
    """Return a plan as JSON."""
    value: dict[str, Any] = json.loads(plan.text())
    return value


def row(run: Standing, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run as a row of the table; `state` is its supervisor's answer."""
    jobs: Sequence[Mapping[str, Any]] = (state or {}).get("jobs", [])
    return {
        "run": run.plan.run,
        "stack": run.plan.stack,
        "base": run.plan.base,
        "image": run.plan.image,
        "nodes": [node.name for node in run.plan.nodes],
        "hosts": sorted({node.host for node in run.plan.nodes}),
        "missing": list(run.missing),
        "lost": dict((state or {}).get("lost", {})),
        "error": (state or {}).get("error", ""),
        "until": run.plan.until,
        "jobs": [dict(job) for job in jobs],
    }


def logs(terminal: Terminal, asked: LogsRequest) -> Answer:
    """Run `invoke logs`: print a job's output so far, and with `--follow` until it ends."""
    with reached(load_fleet(asked.hosts)) as hosts:
        run_ = _only_run(hosts, asked.name)
        talk = standing.connect(hosts.links, run_)
        try:
            state = talk.ask("state", "state")
            jobs = [j["name"] for j in state["jobs"]]
            if not jobs or (asked.job and asked.job not in jobs):
                raise UsageError(f"run {run_.plan.run} has no job {asked.job}".rstrip(),
                                 why=f"there: {', '.join(jobs) or 'none'}")  # fmt: skip
            chosen = asked.job or jobs[-1]
            with RunView(run_.plan, chosen, terminal, everything=True) as view:
                watcher = RunWatcher(line=view.line, bar=view.bar, note=terminal.note)
                follower = Follower(hosts=hosts, run=run_, talk=talk, job=chosen, lease=60,
                                    watcher=watcher, attached=False)  # fmt: skip
                terminal.interrupted = "the job goes on"
                value = follower.follow() if asked.follow else _replay(talk, chosen, view)
        finally:
            talk.close()
        taken: list[PathValue] = []
        warned: list[str] = []
        if value.job.get("state") == "ended" and any(node.gpus for node in run_.plan.nodes):
            taken, warned = runs.transport_of(hosts, run_, run_.plan.names, chosen)
    for line in [*(f"NCCL: {transport.words(path)}" for path in taken), *warned]:
        terminal.text(f"{chosen}: {line}")
    lines = view.kept if terminal.json else None
    return {"job": value.job, "lines": lines, "transport": taken, "warnings": warned}, 0


def _replay(talk: Talk, job: str, view: RunView) -> Ended:
    """Show the output so far."""
    size = int(talk.ask("follow", "following", job=job, **{"from": 0})["size"])
    for event in talk.events(10.0) if size else ():
        if event["event"] == "log":
            for entry in event["lines"]:
                view.line(entry)
            if event["next"] >= size:
                break
        elif event["event"] == "ended":
            return Ended(job=event["job"])
    return Ended(job={"name": job, "state": "running"})


def _only_run(hosts: Reached, name: str) -> Standing:
    there, _ = standing.find(hosts.links)
    if name:
        return runs.find(hosts, name)
    if len(there) != 1:
        raise UsageError(
            f"{'several runs are' if there else 'no run is'} on these hosts",
            why=f"there: {', '.join(there)}" if there else "",
            hint="--name NAME" if there else "invoke up STACK",
        )
    return next(iter(there.values()))


def sync(terminal: Terminal, asked: SyncRequest) -> Answer:
    """Run `invoke sync SOURCE... --to FOLDER`, or `--back PATH --to DIR`."""
    sources = [asked.source, *asked.more]
    if not asked.to or (asked.back and len(sources) != 1):
        raise UsageError("say what to copy and where", hint="invoke sync code --to /code, or"
                         " invoke sync /shared/run1 --back --to results")  # fmt: skip
    started = time.monotonic()
    with reached(load_fleet(asked.hosts)) as hosts:
        run_ = _only_run(hosts, asked.name)
        if asked.back:
            chosen = [word for word in asked.include.split(",") if word]
            done = syncing.back(hosts.links, hosts.fleet, run_, sources[0], Path(asked.to),
                                nodes=chosen, checksum=asked.checksum)  # fmt: skip
        else:
            paths = [Path(source) for source in sources]
            done = syncing.bring(
                hosts.links, hosts.fleet, run_, paths, asked.to,
                checksum=asked.checksum, delete=asked.delete,
                say=lambda text: terminal.say("sync", text),
            )  # fmt: skip
    for copy in done:
        terminal.text(f"{copy.source} to {copy.target}: {copy.files} files,"
                      f" {copy.bytes / 1e6:.2f} MB, {copy.seconds:.1f} s")  # fmt: skip
    seconds = round(time.monotonic() - started, 2)
    return {"copies": [asdict(copy) for copy in done], "seconds": seconds}, 0


def stop(terminal: Terminal, asked: StopRequest) -> Answer:
    """Run `invoke stop`: end the job in a mesh, and keep the mesh."""
    grace = 0.0 if asked.now else asked.grace
    with reached(load_fleet(asked.hosts)) as hosts:
        run_ = _only_run(hosts, asked.name)
        talk = standing.connect(hosts.links, run_)
        try:
            jobs = [j for j in talk.ask("state", "state")["jobs"] if j["state"] != "ended"]
            if not jobs:
                terminal.text(f"nothing runs in {run_.plan.run}")
                return {"stopped": "", "reason": ""}, 0
            name = str(jobs[-1]["name"])
            record = runs.end_job(talk, name, "it was stopped", grace)
        finally:
            talk.close()
    reason = str(record["reason"]) if record else "nothing was heard of it: its lease ends it"
    terminal.text(f"{name} is stopped on every node: {reason}")
    return {"stopped": name, "reason": reason}, 0


def down(terminal: Terminal, hosts_: str, name: str, *, everything: bool) -> Answer:
    """Run `invoke down`: remove a run, or with `--all` every run on the hosts."""
    with reached(load_fleet(hosts_)) as hosts:
        there, _ = standing.find(hosts.links)
        all_ = everything or not (name or there)
        chosen = list(there.values()) if all_ else [_only_run(hosts, name)]
        removed: list[str] = []
        failed: dict[str, StackyardError] = {}
        for run_ in chosen:
            gone, broken = runs.down(hosts, run_)
            removed += gone
            failed |= broken
            terminal.text(f"{run_.plan.run} is down: {len(gone)} containers removed")
        if not chosen:
            terminal.text("no run is on these hosts: nothing to remove")
    for host, error in failed.items():
        terminal.text(
            f"{host} could not be asked, and its node ends by itself: {cause(host, error)}"
        )
    return {"removed": removed, "failed": sorted(failed)}, 1 if failed else 0


def doctor(terminal: Terminal, asked: DoctorRequest) -> Answer:
    """Run `invoke doctor --hosts FILE`: show every host in one table."""
    project = load_project(locks_required=False)
    fleet = load_fleet(asked.hosts)
    chosen = decide(
        project, asked.stack or "all", asked.base, gpus=asked.gpus, cpu_ranks_anywhere=True,
        typed="invoke doctor --hosts FILE",
    )  # fmt: skip
    named = bool(asked.stack)
    # A run without a name is up nowhere; without a stack it is one that every host could take.
    wanted = MeshRequest(
        run="", stack=asked.stack, base=chosen.base.name, tag=chosen.tag if named else "",
        device=chosen.device if named else "cpu", images={}, bases=project.definitions.bases,
    )  # fmt: skip
    with reached(fleet) as hosts:
        found = muster(hosts.links, hosts.failed, fleet)
        answer = inspect(hosts, found, wanted)
    table, same = hosts_table(answer)
    terminal.table(table)
    for line in filter(None, (same, *answer["remarks"])):
        terminal.text(line)
    return answer, 0 if answer["ready"] else 1
