"""Copy an example to a folder of the user's own, to read, edit and start it.

Owns the content of such a folder. Pure: it makes texts of the example, its files and the hosts.
The copy is an example again (`read_example`), of one size on one kind of device.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from stackyard.definitions.examples import (
    BESIDE,
    Example,
    Plain,
    Where,
    chosen_size,
    job_of,
    require_values,
)
from stackyard.mesh.hosts import Fleet, gpu_indexes, node_names
from stackyard.mesh.jobs import select, start_request
from stackyard.mesh.node import JOBS, MEETING_PORT
from stackyard.mesh.node_plan import NodePlan, StandingPlan
from stackyard.system import template
from stackyard.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CopyRequest:
    """Hold the choices that a copy is made for.

    Attributes:
        device: `cpu` or `cuda`.
        ranks: on each host: CPU ranks, or GPUs where the inventory says only `all`.
        given: values that the user set; they become values of the copy.
        more: arguments that the user added for the program.
        options: words of `invoke run` to repeat, such as `--gpus 0`.
        inventory: the text of hosts.yml; empty where hosts were named otherwise.
        root: where Stackyard is on this machine.
    """

    base: str
    device: str
    ranks: int
    given: Mapping[str, str]
    more: Sequence[str]
    options: Sequence[str]
    inventory: str
    root: str


def specialised(example: Example, request: CopyRequest) -> Example:
    """Return the example for one size and device, with the user's values and arguments built in.

    Raises:
        UsageError: it has no such device, size or value.
    """
    require_values(example, request.given)
    size = chosen_size(example, request.device, request.given)
    device = example.devices[request.device]
    values = {**example.values, **size.values, **device.values}
    given = {name: _kept(value) for name, value in request.given.items() if name != "size"}
    more = tuple(_kept(word) for word in request.more)
    return replace(
        example,
        program=(*example.program, *size.args, *device.args, *more),
        prepare=tuple(step for step in example.prepare if step.unless not in given),
        values={**values, **given},
        devices={
            request.device: replace(device, args=(), values={}, env={**size.env, **device.env})
        },
        sizes={},
        files={place: _folder(place) for place in example.files},
    )


def _kept(text: str) -> str:
    """Double the braces of what a user typed, for it has no placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def _folder(place: str) -> str:
    return f"files/{place.strip('/').replace('/', '-')}"


def example_text(example: Example) -> str:
    """Return the text of an example's file."""
    devices = {name: {"env": dict(size.env)} if size.env else {}
               for name, size in example.devices.items()}  # fmt: skip
    prepare = [{**({"unless": step.unless} if step.unless else {}), "run": list(step.run)}
               for step in example.prepare]  # fmt: skip
    value: dict[str, Any] = {
        "summary": example.summary,
        "note": example.note,
        "launcher": example.launcher,
        "options": dict(example.options),
        "files": dict(example.files),
        "values": dict(example.values),
        "multiple": example.multiple if example.multiple != 1 else None,
        "parallel": list(example.parallel),
        "prepare": prepare,
        "program": list(example.program),
        "devices": devices,
        "plain": _plain_value(example.plain) if example.plain else None,
    }
    kept = {key: part for key, part in value.items() if part or key == "devices"}
    text: str = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _plain_value(plain: Plain) -> dict[str, Any]:
    costs = {}
    for name, cost in plain.costs.items():
        parts = {"args": list(cost.args), "options": dict(cost.options),
                 "values": dict(cost.values)}  # fmt: skip
        costs[name] = {"what": cost.what, **{key: part for key, part in parts.items() if part}}
    return {
        "what": plain.what, "program": plain.program, **({"costs": costs} if costs else {}),
    }  # fmt: skip


def plan_of(fleet: Fleet, example: Example, request: CopyRequest) -> StandingPlan:
    """Plan the mesh of a run from the inventory alone.

    Raises:
        UsageError: nothing says how many GPUs a host has, or a host may use none.
    """
    found = []
    for host in fleet.hosts:
        gpus: tuple[int, ...] = ()
        if request.device == "cuda":
            gpus = gpu_indexes(host.gpus) or tuple(range(request.ranks * host.nodes))
            if host.gpus == "none" or not gpus:
                raise UsageError(
                    f"{fleet.source} does not say how many GPUs {host.name} has",
                    hint='--per-node 8, or gpus: "0,1,2,3" in the inventory; --gpus 0: CPU ranks',
                )
        share = len(gpus) // host.nodes
        for number, name in enumerate(node_names(host)):
            own = gpus[number * share : (number + 1) * share]
            found.append(NodePlan(name=name, host=host.name, gpus=own))
    return StandingPlan(run=example.stack, stack=example.stack, base=request.base, image="",
                        nodes=tuple(found))  # fmt: skip


def copied(
    example: Example, files: Mapping[str, bytes], fleet: Fleet, request: CopyRequest
) -> dict[str, bytes]:
    """Return every file of the copy, by its path in the folder.

    Raises:
        UsageError: the example does not fit these hosts.
    """
    own = specialised(example, request)
    plan = plan_of(fleet, own, request)
    selection = select(plan, request.ranks or 1)
    counts = {len(slots) for slots in selection.slots.values()}
    folder = f"{JOBS}/{example.name}"
    where = Where(
        name=example.name, base=request.base, image="", nodes=len(selection.nodes),
        per_node=max(counts), device=request.device, folder=folder, save=f"{folder}/checkpoints",
    )  # fmt: skip
    job = job_of(own, where, files)
    value, launch = start_request(plan, job, selection, MEETING_PORT, 60.0)
    made = {path.rpartition("/")[2]: text for path, text in launch.files.items()}
    steps = [{"what": step["what"], "lines": _lines(step)} for step in value["steps"]]
    corpus = "corpus" in own.values
    texts = {
        "example.yml": example_text(own),
        "hosts.yml": request.inventory or hosts_text(fleet),
        "start.sh": template.render("example/start.sh.j2", {
            "summary": own.summary, "stack": own.stack, "root": request.root,
            "options": "".join(f" {shlex.quote(word)}" for word in request.options),
        }),
        "launch/commands.sh": template.render("example/commands.sh.j2", {
            "first": plan.names[0], "folder": job.folder, "steps": steps,
        }),
        "README.md": template.render("example/README.md.j2", {
            "summary": own.summary, "name": own.name, "stack": own.stack, "note": own.note,
            "ranks": value["shown"]["ranks"], "hosts": [host.name for host in fleet.hosts],
            "device": "GPUs" if request.device == "cuda" else "CPU ranks", "needs": own.ranks,
            "places": sorted(own.files.values()), "made": sorted(made) or ["none"],
            "corpus": corpus and _corpus_words(request.given),
        }),
        **{f"launch/{name}": text for name, text in made.items()},
    }  # fmt: skip
    found = {name: text.encode() for name, text in texts.items()}
    for path, content in files.items():
        place = next(place for place in own.files if path.startswith(f"{place}/"))
        if path.rpartition("/")[2] not in BESIDE:  # every run brings these to its nodes
            found[f"{own.files[place]}/{path.removeprefix(f'{place}/')}"] = content
    return found


def _corpus_words(given: Mapping[str, str]) -> str:
    if "corpus" in given:
        return f"Here it is {given['corpus']}."
    return "Until then a small corpus is made of text that comes with the image."


def _lines(step: Mapping[str, Any]) -> list[str]:
    words = [shlex.quote(word) for word in step["argv"]]
    env = [f"export {name}={shlex.quote(value)}" for name, value in sorted(step["env"].items())]
    return [*env, " ".join(words)]


def hosts_text(fleet: Fleet) -> str:
    """Return the inventory's text for hosts that were named one by one."""
    hosts = {}
    for host in fleet.hosts:
        said = {"address": host.ssh, "user": host.user, "port": host.port, "key": host.key}
        hosts[host.name] = {name: part for name, part in said.items() if part}
    text: str = yaml.safe_dump({"hosts": hosts}, sort_keys=False, allow_unicode=True)
    return text
