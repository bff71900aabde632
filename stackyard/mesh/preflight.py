"""Check all hosts before a run starts there, and report every problem at once.

Owns the order: log in everywhere, survey everywhere, look for images and runs, test shared
folders; then one plan, or one table of all problems. It starts nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stackyard.build.source.naming import require_labels
from stackyard.mesh import standing, survey
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import HostError, Link, cause, on_each
from stackyard.mesh.node_plan import HostProblem, MeshRequest, StandingPlan, make_plan
from stackyard.mesh.standing import Standing
from stackyard.mesh.survey import HostFacts
from stackyard.system.errors import StackyardError


class NotReady(StackyardError):
    """Report that a run cannot start, with every reason.

    Attributes:
        problems: of all hosts.
    """

    exit_code = 3

    def __init__(self, problems: list[HostProblem]) -> None:
        wrong = [problem for problem in problems if not problem.warning]
        hosts = list(dict.fromkeys(problem.host for problem in wrong))
        lines = []
        for problem in wrong:
            lines.append(f"{problem.host}: {problem.what}")
            if problem.hint:
                lines.append(f"    {problem.hint}")
        super().__init__(
            f"nothing was started: {len(wrong)} problem{'s' if len(wrong) != 1 else ''} on"
            f" {', '.join(hosts)}",
            why="\n".join(lines),
        )
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Muster:
    """Hold the answers of all hosts.

    Attributes:
        engines: each engine's facts about itself (`docker info`).
        failed: hosts that did not answer, or only in part.
        unshared: hosts that do not see the same shared folder, by its place.
    """

    facts: Mapping[str, HostFacts]
    engines: Mapping[str, Mapping[str, object]]
    runs: Mapping[str, Standing]
    failed: Mapping[str, StackyardError] = field(default_factory=dict)
    unshared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def muster(links: Mapping[str, Link], failed: Mapping[str, HostError], fleet: Fleet) -> Muster:
    """Collect from every host that answers all facts that a run depends on."""
    places = [word for place, f in fleet.folders.items() if not f.source.startswith("volume:")
              for word in (place, f.source)]  # fmt: skip

    def ask(link: Link) -> tuple[HostFacts, Mapping[str, object]]:
        info = link.engine.info()
        return look_at(link, str(info.get("DockerRootDir", "/")), *places), info

    found, broken = on_each(links, ask)
    runs, silent = standing.find(links)
    facts = {name: answer[0] for name, answer in found.items()}
    return Muster(
        facts=facts,
        engines={name: answer[1] for name, answer in found.items()},
        runs=runs,
        failed={**failed, **broken, **silent},
        unshared=unshared(links, fleet, facts),
    )


def look_at(link: Link, *words: str) -> HostFacts:
    """Return a host's facts; `words` are the survey's, without any it needs no engine.

    Raises:
        HostError: it does not answer as it should.
    """
    asked = time.time()
    text = link.shell(survey.SCRIPT, *(words or ("/",)))
    facts = survey.parse(text, asked, time.time())
    if facts is None:
        raise HostError(link.host.name, "its shell does not answer as a shell does",
                        why=text[-500:], hint="does its ~/.profile or login shell print or ask"
                        " something?")  # fmt: skip
    return facts


def unshared(
    links: Mapping[str, Link], fleet: Fleet, facts: Mapping[str, HostFacts]
) -> dict[str, tuple[str, ...]]:
    """Return, by shared folder, the hosts that do not see what the first host writes there."""
    found = {}
    for place, folder in fleet.folders.items():
        paths = {name: f.folders[place].path for name, f in facts.items() if place in f.folders}
        there = {name: path for name, path in paths.items() if path}
        if not folder.shared or len(there) < 2:
            continue
        found[place] = _unshared(links, there)
    return found


def _unshared(links: Mapping[str, Link], paths: Mapping[str, str]) -> tuple[str, ...]:
    token = f".stackyard-{secrets.token_hex(8)}"
    first = next(iter(paths))
    try:
        links[first].shell(': > "$1/$2"', paths[first], token)
    except StackyardError:
        return (first,)
    try:
        # A network file system may take a moment to show a new file to others.
        script = (
            'for _ in 1 2 3 4 5 6; do ls "$1" > /dev/null; [ -e "$1/$2" ] && exit 0; sleep 0.5;'
            " done; exit 1"
        )
        others = {name: links[name] for name in paths if name != first}
        _, failed = on_each(others, lambda link: link.shell(script, paths[link.host.name], token))
        return tuple(sorted(failed))
    finally:
        # A host that has just gone is reported by the next request to it.
        with contextlib.suppress(StackyardError):
            links[first].shell('rm -f "$1/$2"', paths[first], token)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Hold what a run would meet on its hosts.

    Attributes:
        plan: None where it cannot start.
        images: id of its image on each host that was asked; empty where the engine lacks it.
    """

    plan: StandingPlan | None
    problems: list[HostProblem]
    images: Mapping[str, str]


def plan_run(
    links: Mapping[str, Link], fleet: Fleet, found: Muster, wanted: MeshRequest
) -> tuple[StandingPlan, list[HostProblem]]:
    """Plan a run on these hosts.

    Args:
        wanted: what the run needs; its images and taken hosts are filled in here.

    Returns:
        The plan, and warnings.

    Raises:
        NotReady: a host has a problem; holds the problems of all hosts.
    """
    judged = judge(links, fleet, found, wanted)
    if judged.plan is None or any(not problem.warning for problem in judged.problems):
        raise NotReady(judged.problems)
    return judged.plan, judged.problems


def judge(links: Mapping[str, Link], fleet: Fleet, found: Muster, wanted: MeshRequest) -> Judged:
    """Return the plan of a run, and every problem and warning of all hosts.

    Args:
        wanted: as for `plan_run`; without a tag no host is asked for an image.
    """
    problems = [
        HostProblem(host=name, what=_what(name, error), hint=error.hint)
        for name, error in found.failed.items()
    ]
    problems += [
        HostProblem(host=name, what=f"{place} ({fleet.folders[place].source}) is said to be shared,"
                    " but it does not show what the first host writes there",
                    hint="mount the same file system on all hosts, or drop `shared: true`")
        for place, names in found.unshared.items() for name in names
    ]  # fmt: skip
    asked = {name: links[name] for name in found.facts} if wanted.tag else {}
    images, silent = on_each(asked, lambda link: _image(link, wanted))
    problems += [
        HostProblem(host=name, what=_what(name, e), hint=e.hint) for name, e in silent.items()
    ]
    standing_run = found.runs.get(wanted.run)
    taken = {}
    if standing_run is not None:
        for node in standing_run.plan.nodes:
            taken[node.host] = f"stack {standing_run.plan.stack}"
    plan, more = make_plan(
        fleet, found.facts, replace(wanted, images=images, taken=taken), int(time.time())
    )
    return Judged(plan=plan, problems=[*problems, *more], images=images)


def _what(name: str, error: StackyardError) -> str:
    text = cause(name, error)
    last = error.why.strip().splitlines()[-1:] if error.why else []
    return f"{text} ({last[0].strip()[:160]})" if last else text


def _image(link: Link, wanted: MeshRequest) -> str:
    info = link.engine.image(wanted.tag)
    if info and wanted.named:
        require_labels(info.labels, wanted.tag, wanted.stack, wanted.base)
    return info.id if info else ""
