"""Show the state of every host, and how hosts reach each other, for `invoke doctor --hosts`.

Owns the checks between hosts (routes, MTU) and the table's rows. It starts nothing on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stackyard.gpu import doctor, infiniband
from stackyard.mesh import host_health
from stackyard.mesh.hosts import Fleet
from stackyard.mesh.link import Link, cause, on_each, remark
from stackyard.mesh.node import SSH_PORT
from stackyard.mesh.node_plan import SKEW_WARNING, MeshRequest, misfits, usable_gpus
from stackyard.mesh.owner import leftovers
from stackyard.mesh.preflight import Muster, judge
from stackyard.mesh.runs import Reached
from stackyard.mesh.survey import HostFacts, Network, choose_network

COLUMNS = ("host", "engine", "image id", "driver", "GPUs free", "memory", "disk", "clock",
           "interface", "reaches", "port", "health checks", "runs")  # fmt: skip
# `ip route get` for each address, and a ping with the interface's whole MTU, unfragmented.
_ROUTES = """PATH="$PATH:/usr/sbin:/sbin"
size=$1; shift
for at in "$@"; do
    route=$(ip -o route get "$at" 2> /dev/null | head -n 1)
    if ! command -v ping > /dev/null; then ping=unknown
    elif ping -c 1 -W 2 "$at" > /dev/null 2>&1; then
        ping=small; ping -c 1 -W 2 -M 'do' -s "$size" "$at" > /dev/null 2>&1 && ping=whole
    else ping=silent; fi
    printf '%s|%s|%s\\n' "$at" "$ping" "$route"
done"""


def inspect(hosts: Reached, found: Muster, wanted: MeshRequest) -> dict[str, Any]:
    """Return the table's rows, remarks for people, and whether a run could start.

    A host that lacks the image does not count against that, since a pull brings it.

    Args:
        wanted: the run to look for obstacles to; without a tag it is of no stack, and then a base
            that does not fit a host's GPUs is a remark only.
    """
    fleet, tag = hosts.fleet, wanted.tag
    network, _ = choose_network(found.facts, {h.name: h.interface for h in fleet.hosts})
    judged = judge(hosts.links, fleet, found, wanted)
    images = judged.images
    routes = _routes(hosts, network)
    health = host_health.examine({name: hosts.links[name] for name in found.facts}, found.facts)
    rows, remarks = [], []
    for host in fleet.hosts:
        error = found.failed.get(host.name)
        if host.name not in found.facts:
            what = cause(host.name, error) if error else "does not answer"
            rows.append({"host": host.name, "engine": what})
            continue
        row = _row(host.name, found, network, images.get(host.name, ""), routes, tag, fleet)
        rows.append({**row, "health checks": host_health.summary(health[host.name])})
    unfit = [] if tag else [
        problem for host in fleet.hosts if host.name in found.facts
        for problem in misfits(host, found.facts[host.name], wanted.base, wanted.bases)
    ]  # fmt: skip
    remarks += [remark(one.host, one.what, one.hint) for one in (*judged.problems, *unfit)]
    left, _ = on_each({name: hosts.links[name] for name in found.facts}, leftovers)
    remarks += [f"{name}: a broken pull left keys in {folder}: the next `invoke pull` removes"
                " it" for name, folders in left.items() for folder in folders]  # fmt: skip
    if network.why:
        remarks.append(f"network between nodes: {network.why}")
    remarks += _adapters(found.facts)
    remarks += host_health.remarks(health)
    remarks += _pair_remarks(routes)
    ready = all(problem.warning or problem.no_image for problem in judged.problems)
    ready = ready and all(doctor.worst(one) != doctor.WRONG for one in health.values())
    return {"columns": COLUMNS, "hosts": rows, "remarks": remarks, "ready": ready,
            "pairs": routes,
            "health": {name: [asdict(f) for f in one] for name, one in health.items()}}  # fmt: skip


def _row(
    name: str, found: Muster, network: Network, image: str, routes: Mapping[str, Any], tag: str,
    fleet: Fleet,
) -> dict[str, str]:  # fmt: skip
    facts, engine = found.facts[name], found.engines[name]
    host = next(h for h in fleet.hosts if h.name == name)
    usable, refused = usable_gpus(host, facts)
    total = len(usable) + len(refused)
    chosen = network.chosen.get(name)
    rate = f", {chosen.speed} Mbit/s" if chosen and chosen.speed else ""
    mine = [run for run, r in found.runs.items() if any(n.host == name for n in r.plan.nodes)]
    return {
        "host": name,
        "engine": f"{engine.get('ServerVersion', '?')}",
        "image id": (image[7:19] if image else "not held") if tag else "",
        "driver": facts.driver.version if facts.driver else "none",
        "GPUs free": f"{len(usable)} of {total}" if total else "none",
        "memory": f"{facts.memory_bytes / 2**30:.0f} GiB",
        "disk": "?" if (free := facts.engine_free_bytes) is None else f"{free / 2**30:.0f} GiB",
        "clock": _clock(facts),
        "interface": f"{chosen.name} {chosen.address}{rate}, MTU {chosen.mtu}"
        if chosen
        else "none",
        "reaches": _summary(routes.get(name, {})),
        "port": f"{SSH_PORT} {'taken' if SSH_PORT in facts.ports else 'free'}",
        "runs": ", ".join(mine),
    }


def _clock(facts: HostFacts) -> str:
    if facts.skew is None:
        return "?"
    off = abs(facts.skew) - facts.skew_error > SKEW_WARNING
    return f"{facts.skew:+.1f} s" if off else "ok"


def _adapters(facts: Mapping[str, HostFacts]) -> list[str]:
    """Return remarks on each host's InfiniBand and RoCE ports, and on NCCL's choice of them."""
    with_ports = {name: found.infiniband for name, found in facts.items() if found.infiniband.ports}
    found = [
        remark(name, finding.what, finding.hint)
        for name, one in with_ports.items()
        for finding in doctor.adapters(one)
    ]
    if with_ports and len(facts) > 1:
        subnets = {name: [i.subnet for i in one.interfaces] for name, one in facts.items()}
        fabric = infiniband.choose({n: one.infiniband for n, one in facts.items()}, subnets)
        found.append(f"NCCL between hosts: {fabric.why}")
    return found


def _routes(hosts: Reached, network: Network) -> dict[str, dict[str, dict[str, str]]]:
    """Return the route from each host to each other host, by both names."""
    addresses = {name: i.address for name, i in network.chosen.items()}

    def ask(link: Link) -> dict[str, dict[str, str]]:
        mine = network.chosen[link.host.name]
        others = {name: at for name, at in addresses.items() if name != link.host.name}
        # The headers of IPv4 and ICMP take 28 bytes of a packet.
        said = link.shell(_ROUTES, str(max(0, mine.mtu - 28)), *others.values(), seconds=60)
        lines = {p[0]: p for p in (line.split("|", 2) for line in said.splitlines()) if len(p) == 3}
        return {name: _route(lines[at], mine.name) for name, at in others.items() if at in lines}

    answers, _ = on_each({n: hosts.links[n] for n in addresses if n in hosts.links}, ask)
    return answers


def _route(parts: list[str], interface: str) -> dict[str, str]:
    words = parts[2].split()
    device = words[words.index("dev") + 1] if "dev" in words[:-1] else ""
    via = words[words.index("via") + 1] if "via" in words[:-1] else ""
    return {"device": device, "via": via, "ping": parts[1],
            "other_interface": device if device != interface else ""}  # fmt: skip


def _summary(routes: Mapping[str, Mapping[str, str]]) -> str:
    bad = [
        name for name, r in routes.items() if r["ping"] in ("silent", "small") or not r["device"]
    ]
    if not routes:
        return ""
    return f"not {', '.join(bad)}" if bad else "all others"


def _pair_remarks(routes: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    found = []
    for name, others in routes.items():
        for other, route in others.items():
            if not route["device"]:
                found.append(f"{name} has no route to {other}")
            elif route["other_interface"]:
                found.append(f"{name} reaches {other} by {route['other_interface']}, not by the"
                             " chosen interface: name it by `interface:`")  # fmt: skip
            elif route["ping"] == "small":
                found.append(f"{name} to {other}: packets of the whole MTU are lost on the way;"
                             " the same MTU must hold on all hosts and switches")  # fmt: skip
            elif route["ping"] == "silent":
                found.append(f"{name} to {other}: no answer to a ping (it may be filtered)")
    return found
