"""Apply `--overlay` of `invoke up` and `invoke run`, from its arguments to a view in every node.

Owns the requests to nodes before a job, and their output. `mesh.mounts` decides the paths of trees.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stackyard.build import catalog
from stackyard.build.source import fit
from stackyard.build.source.fit import own_rules
from stackyard.build.source.fork import fork_of
from stackyard.build.source.naming import same_package
from stackyard.cli.steps.source import all_fixes
from stackyard.definitions.project import INSIDE, Project
from stackyard.definitions.spec import Fix
from stackyard.launch.job import Job
from stackyard.mesh import runs
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import Link, on_each
from stackyard.mesh.mounts import Mount, differing, parse_mount
from stackyard.mesh.node import JOBS
from stackyard.mesh.runs import Reached
from stackyard.mesh.standing import Standing
from stackyard.system.errors import EngineError, MeshError, StackyardError, UsageError
from stackyard.system.process import last_lines

PROGRAMS = ("own_code.py", "apply_fixes.py")
SECONDS = 120
Say = Callable[[str], None]


def parse_all(project: Project, stack: str, texts: Sequence[str], fleet: Fleet) -> list[Mount]:
    """Parse every `--overlay` of a command.

    Raises:
        UsageError: one cannot be parsed.
    """
    found = project.definitions.stacks[stack]
    main = next(iter(found.packages))
    packages = dict.fromkeys([*found.packages, *found.builds])
    return [parse_mount(text, main, packages, fleet) for text in texts]


def lay(
    project: Project,
    hosts: Reached,
    run: Standing,
    job: Job,
    nodes: tuple[str, ...],
    mounts: Sequence[Mount],
    despite: Sequence[str],
    say: Say,
) -> Job:
    """Lay every tree over its package in all nodes; return the job that will use them.

    Raises:
        UsageError: a fix does not fit a tree, or `despite` names a fix of no tree's package.
        MeshError: a tree is missing, or differs between nodes.
    """
    if not mounts:
        if despite:
            raise UsageError("--despite belongs to --overlay, and no tree is mounted",
                             hint="leave it out, or --overlay [PACKAGE=]PATH")  # fmt: skip
        return job
    folder = f"{JOBS}/{job.name}"
    fixes = _fixes(project, hosts, run, nodes[0])
    named = {fix.id: fix.package for fix in fixes}
    for name in despite:
        if name in named and not same_package(named[name], [m.package for m in mounts]):
            what = f"--despite: {name} is a fix of {named[name]}, and no tree stands in for that"
            raise UsageError(what, hint="it stays in the image; leave --despite out")
        if name not in named:
            raise UsageError(f"--despite: the image of {run.plan.run} has no fix {name!r}",
                             hint=f"invoke show {run.plan.stack} lists them")  # fmt: skip
    files = {f"{folder}/own/{name}": (INSIDE / name).read_bytes() for name in PROGRAMS}
    for mount in mounts:
        rules = own_rules([fix for fix in fixes if fix.id not in despite], mount.package)
        files[f"{folder}/own/{mount.package}.json"] = json.dumps(rules).encode()
    runs.deliver(hosts, run, files, nodes)
    told = []
    for mount in mounts:
        asked = _ask(hosts, run, nodes, mount, folder)
        answers = {node: answer for found in asked.values() for node, answer in found.items()}
        said = {node: answers[node] for node in nodes}
        told.append(_judge(said, mount, run, fixes, despite, say))
    path = ":".join(part for part in (f"{folder}/view", job.env.get("PYTHONPATH", "")) if part)
    return replace(job, env={**job.env, "PYTHONPATH": path}, own=tuple(told))


def _fixes(project: Project, hosts: Reached, run: Standing, node: str) -> list[Fix]:
    """Return the fixes in the run's image."""
    info = hosts.links[run.plan.node(node).host].engine.image(run.plan.image)
    image = catalog.resolve(project.definitions, run.plan.stack, run.plan.base)
    fork = fork_of(project.definitions, info.labels) if info else None
    return all_fixes(fork.image(image) if fork else image)


def _ask(
    hosts: Reached, run: Standing, nodes: tuple[str, ...], mount: Mount, folder: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """Have every node lay a tree; return the answers by host and node."""
    words = ["python3", f"{folder}/own/own_code.py", mount.package, mount.place, f"{folder}/view",
             f"{folder}/own/{mount.package}.json"]  # fmt: skip

    def one(link: Link) -> dict[str, dict[str, Any]]:
        found = {}
        for node in run.plan.nodes:
            if node.host == link.host.name and node.name in nodes:
                done = link.engine.exec(run.containers[node.name], words, seconds=SECONDS)
                if done.code:
                    raise EngineError(f"{node.name} cannot lay {mount.place}",
                                      why=last_lines(done.output, 5))  # fmt: skip
                found[node.name] = json.loads(done.output.strip().splitlines()[-1])
        return found

    wanted = {n.host for n in run.plan.nodes if n.name in nodes}
    found, failed = on_each({name: hosts.links[name] for name in wanted}, one)
    for error in failed.values():
        raise error
    return found


def _judge(
    said: dict[str, dict[str, Any]],
    mount: Mount,
    run: Standing,
    fixes: Sequence[Fix],
    despite: Sequence[str],
    say: Say,
) -> str:
    """Print each fix's result on a tree; return the record of the tree.

    Raises:
        StackyardError: the tree is missing, differs between nodes, or does not fit.
    """
    for node, answer in said.items():
        if "unfit" in answer:
            wrong = fit.conflict(
                answer["unfit"], fixes, f"{mount.place} ({node})",
                f"invoke run {run.plan.stack} --name {run.plan.run} ...",
            )  # fmt: skip
            raise wrong or StackyardError(answer["unfit"])
        if "wrong" in answer:
            raise MeshError(f"{node}: {answer['wrong']}",
                            hint="--overlay PATH is the folder of the project, on every host;"
                            " invoke sync brings it to all")  # fmt: skip
    others = differing({node: answer["digest"] for node, answer in said.items()})
    first = next(node for node in said if node not in others)
    if others:
        raise MeshError(
            f"{mount.place} on {', '.join(others)} is not the tree that {first} has",
            why=", ".join(f"{n}: {a['files']} files, {a['digest'][7:19]}" for n, a in said.items()),
            hint="invoke sync brings one tree to all hosts (docs/howto/source.md)",
        )
    answer = said[first]
    compiled = (
        f", {len(answer['compiled'])} compiled modules of the image" if answer["compiled"] else ""
    )
    say(f"{mount.package} is {mount.source or mount.place}: {answer['files']} files,"
        f" {answer['digest'][7:19]} on {len(said)} nodes{compiled}")  # fmt: skip
    found = answer["fixes"]
    if found["applied"]:
        count = len(found["applied"])
        fixes_ = f"{count} fix{'es' if count != 1 else ''}"
        lacks = f"{mount.package}: your tree lacks {fixes_} of the image"
        names = ", ".join(found["applied"])
        say(f"{lacks}; the nodes have them in copies, your files are as they were: {names}")
    if found["there"]:
        say(f"{mount.package}: your tree has these repairs already: {', '.join(found['there'])}")
    if found["absent"]:
        say(f"{mount.package}: your tree has none of the files that these fixes repair:"
            f" {', '.join(found['absent'])}")  # fmt: skip
    left = [
        fix.id for fix in fixes if fix.id in despite and same_package(fix.package, [mount.package])
    ]
    if left:
        say(f"{mount.package}: left out: {', '.join(left)}")
    text = f"{mount.package} from {mount.source or mount.place}, content {answer['digest']}"
    return text + (f", without {', '.join(left)}" if left else "")
