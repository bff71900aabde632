"""Hosts without hosts: what their GPUs would record, with planted faults."""

from __future__ import annotations

import json
from pathlib import Path

from stackyard.gpu import nccl
from stackyard.gpu.transport import Offer
from stackyard.validate.certify.group import GroupRun
from stackyard.validate.certify.plan import gpu_name
from stackyard.validate.certify.record import read_records

UPDATES = 6
LOGS = Path(__file__).parent.parent / "logs"


def captured(name, *hosts):
    """What NCCL wrote on two H200 of a machine called `vm`, as if it had been on these hosts."""
    text = (LOGS / name).read_text(encoding="utf-8")
    found = [text.replace("\nvm:", f"\n{host}:").replace("vm:", f"{host}:") for host in hosts]
    return nccl.read_log("\n".join(found).splitlines())


def entry(rank, event, **values):
    """A line of a rank's record, as it stands in a job's log."""
    return {"rank": rank, "record": json.dumps({"event": event, **values})}


def steps(rank, *, wrong_from=0, summed_from=0, seconds=0.01, count=UPDATES):
    """The updates of one rank; `local` is wrong from one update on, `shared` from another."""
    found = []
    for number in range(1, count + 1):
        local = "bad" if wrong_from and number >= wrong_from else "l"
        first = min(filter(None, (wrong_from, summed_from)), default=0)
        shared = "bad" if first and number >= first else "s"
        bits = {"local": f"{local}{number}", "shared": f"{shared}{number}"}
        times = {"seconds": seconds, "wait": 0.001}
        found.append(entry(rank, "step", step=number, loss=5.0 - number / 10, **times, **bits))
    return found


class Trainer:
    """Train on groups of hosts that have planted faults.

    Args:
        hosts: number of GPUs by host.
        corrupt: GPUs (`HOST:INDEX`) that compute something else from an update on.
        slow: GPUs whose updates take ten times as long.
        dead: GPUs whose training does not end.
        hangs: hosts that hang in each group of several.
        links: pairs of hosts that exchange data a hundred times slower.
        cut: pairs of hosts whose group hangs.
        sockets: hosts whose GPUs talk to each other over sockets, P2P being off.
    """

    device = "cuda"
    offer = Offer()

    def __init__(self, hosts, *, corrupt=(), slow=(), dead=(), hangs=(), links=(), cut=(),
                 sockets=(), model="NVIDIA H200"):  # fmt: skip
        self.hosts, self.corrupt, self.slow, self.dead = hosts, dict(corrupt), slow, dead
        self.hangs, self.links = hangs, [frozenset(pair) for pair in links]
        self.cut, self.model = [frozenset(pair) for pair in cut], model
        self.sockets, self.rounds = sockets, []

    @property
    def slots(self):
        return {host: tuple(range(count)) for host, count in self.hosts.items()}

    def train(self, groups):
        for one, other in ((a, b) for a in groups for b in groups if a is not b):
            assert not set(one.places) & set(other.places)
        self.rounds.append([sorted({place.host for place in group.places}) for group in groups])
        return [self.run(group) for group in groups]

    def run(self, group):
        places = group.places
        hosts = {place.host for place in places}
        hung = [host for host in self.hangs if host in hosts and len(hosts) > 1]
        hung += [pair for pair in self.cut if pair <= hosts]
        here = {place.name for place in places} if not group.alone else set()
        summed = min((s for name, s in self.corrupt.items() if name in here), default=0)
        entries = []
        for rank, place in enumerate(places):
            entries.append(entry(rank, "start", model=self.model, gpu=f"GPU-{place.name}",
                                 torch="2"))  # fmt: skip
            wrong = self.corrupt.get(place.name, 0)
            pace = 0.1 if place.name in self.slow else 0.01
            own = steps(rank, wrong_from=wrong, summed_from=summed, seconds=pace)
            entries += own[:2] if hung or place.name in self.dead else own
            if hung or place.name in self.dead:
                continue
            entries += [] if group.alone else self.exchanged(rank, places)
            entries.append(entry(rank, "end", step=UPDATES))
        dead = any(place.name in self.dead for place in places)
        return GroupRun(
            places=places, ranks=read_records(entries), code=None if hung or dead else 0,
            hang=f"{hung[0]} never came to all_reduce" if hung else "",
            late=tuple(place for place in places if place.host in hung),
            reason="rank 0 ended: killed" if dead else "",
            nccl=None if group.alone or len(places) < 2 else self.log(sorted(hosts)),
        )  # fmt: skip

    def log(self, hosts):
        bad = [host for host in hosts if host in self.sockets]
        if bad:
            return captured("nccl-over-sockets.two.log", *bad)
        return captured("healthy.nccl.log", *hosts)

    def exchanged(self, rank, places):
        found = []
        for peer, place in enumerate(places):
            pair = frozenset((places[rank].host, place.host))
            if peer != rank and (len(pair) == 1 or (place.index, places[rank].index) == (0, 0)):
                speed = (400.0 if len(pair) == 1 else 40.0) / (100 if pair in self.links else 1)
                found.append(entry(rank, "link", peer=peer, gb_s=speed))
        if rank == 0:
            found.append(entry(0, "allreduce", bytes=2**30, gb_s=330.0))
        return found


def names(count):
    """Names of hosts."""
    return [f"h{number:02}" for number in range(count)]


def gpu(host, index=0):
    """The name of a GPU."""
    return gpu_name(host, index)
