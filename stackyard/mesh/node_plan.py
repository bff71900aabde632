"""Plan a run over several hosts: its nodes, and their hosts, ports and GPUs.

Owns the decisions, and every reason why a run cannot start, all found before anything is started.
Pure: the facts about hosts (`mesh.survey`) and their images are arguments.

Over 300 lines: every reason against a host stands beside the plan that it prevents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from stackyard.definitions.spec import Base
from stackyard.gpu import doctor, infiniband
from stackyard.gpu.infiniband import Fabric
from stackyard.gpu.placement import Gpu, why_not_usable
from stackyard.mesh.certificates import MeshPlan
from stackyard.mesh.hosts import NAME, Fleet, Host, gpu_indexes, node_names
from stackyard.mesh.mounts import Mount
from stackyard.mesh.node import SSH_PORT
from stackyard.mesh.survey import HostFacts, Network, choose_network
from stackyard.system.errors import UsageError

_PORTS = range(SSH_PORT, SSH_PORT + 2000)
# Less than the five minutes by which certificates are valid early (`mesh.certificates`).
SKEW_SECONDS = 240.0
SKEW_WARNING = 5.0
DISK_BYTES = 2**30
HOST_NETWORK = "host"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """Describe one node: its host, its address, and the resources that it uses.

    Attributes:
        gpus: indexes of the host's GPUs that its ranks use; empty on CPU ranks.
    """

    name: str
    host: str
    address: str = ""
    port: int = SSH_PORT
    interface: str = ""
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StandingPlan:
    """Describe a mesh that runs on hosts until it is taken down.

    Attributes:
        run: its name.
        image: the image's id, the same on all hosts.
        network: `host`, or a network that spans the hosts (an overlay of theirs), by name.
        lease: seconds after which nodes that do not hear node 1 end themselves.
        until: when its certificates end, in seconds since the epoch.
        why: how its network was chosen.
        mounts: users' trees over installed packages.
    """

    run: str
    stack: str
    base: str
    image: str
    nodes: tuple[NodePlan, ...]
    network: str = HOST_NETWORK
    lease: float = 60.0
    until: int = 0
    why: str = ""
    mounts: tuple[Mount, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the nodes' names, in rank order."""
        return tuple(node.name for node in self.nodes)

    def node(self, name: str) -> NodePlan:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def mesh(self, now: int) -> MeshPlan:
        """Return the addresses and ports by which the nodes reach each other."""
        return MeshPlan(
            run=self.run,
            nodes=self.names,
            port=self.nodes[0].port,
            seconds=self.until - now,
            addresses={node.name: node.address for node in self.nodes if node.address},
            ports={node.name: node.port for node in self.nodes},
        )

    def text(self) -> str:
        """Return the plan as the text of a container's label; it holds no secrets."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)


def parse_plan(text: str) -> StandingPlan | None:
    """Read a plan from a container's label; None where this version cannot read it."""
    try:
        value = json.loads(text)
        if value.pop("format") != FORMAT:
            return None
        nodes = tuple(NodePlan(**{**n, "gpus": tuple(n["gpus"])}) for n in value.pop("nodes"))
        mounts = tuple(Mount(**mount) for mount in value.pop("mounts", ()))
        return StandingPlan(nodes=nodes, mounts=mounts, **value)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class HostProblem:
    """Hold a reason why a run cannot use a host, and what to do about it.

    Attributes:
        no_image: the host lacks the image, and nothing else: a pull brings it.
    """

    host: str
    what: str
    hint: str = ""
    warning: bool = False
    no_image: bool = False


@dataclass(frozen=True, kw_only=True)
class MeshRequest:
    """Hold what a run needs of its hosts.

    Attributes:
        images: id of the stack's image on each host; empty where the engine lacks it.
        tag: the image's local name.
        device: `cpu` or `cuda`.
        keep_seconds: how long certificates last.
        named: the user named the image, whose labels must then match the stack and base.
        mounts: users' trees over installed packages.
        bases: all bases by name, to compare what images on them need with drivers and GPUs.
    """

    run: str
    stack: str
    base: str
    tag: str
    device: str
    images: Mapping[str, str]
    network: str = HOST_NETWORK
    lease: float = 60.0
    keep_seconds: int = 7 * 86400
    taken: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    mounts: tuple[Mount, ...] = ()
    bases: Mapping[str, Base] = field(default_factory=dict)


def require_name(run: str) -> str:
    """Return `run` if it can be a run's name.

    Raises:
        UsageError: it cannot.
    """
    if not NAME.fullmatch(run):
        raise UsageError(
            f"{run[:80]!r} cannot be a run's name",
            why="it is part of container names: lower-case letters, digits and `-`, at most 40",
            hint="--name my-run",
        )
    return run


def make_plan(
    fleet: Fleet, facts: Mapping[str, HostFacts], wanted: MeshRequest, now: int
) -> tuple[StandingPlan | None, list[HostProblem]]:
    """Plan a run; return the plan, or None where it cannot start, and all problems.

    A host that did not answer is only in `fleet`: there is no plan then, and the caller has the
    reason.
    """
    problems = [
        *_wrong_images(wanted),
        *(p for host in fleet.hosts if host.name in facts
          for p in wrong_host(fleet, host, facts[host.name], wanted)),
    ]  # fmt: skip
    network, unreachable = choose_network(facts, {h.name: h.interface for h in fleet.hosts})
    if wanted.network == HOST_NETWORK:
        problems += [HostProblem(host=host, what=what) for host, what in unreachable]
    problems += _same_address(network)
    answered = all(host.name in facts and host.name in wanted.images for host in fleet.hosts)
    if not answered or any(not problem.warning for problem in problems):
        return None, problems
    nodes = _nodes(fleet, facts, wanted, network)
    plan = StandingPlan(
        run=wanted.run,
        stack=wanted.stack,
        base=wanted.base,
        image=next(iter(wanted.images.values())),
        nodes=nodes,
        network=wanted.network,
        lease=wanted.lease,
        until=now + wanted.keep_seconds,
        why=network.why if wanted.network == HOST_NETWORK else f"network {wanted.network}",
        mounts=wanted.mounts,
    )
    return plan, problems


def _nodes(
    fleet: Fleet, facts: Mapping[str, HostFacts], wanted: MeshRequest, network: Network
) -> tuple[NodePlan, ...]:
    port = free_port({host.name: (facts[host.name], host.nodes) for host in fleet.hosts})
    found = []
    for host in fleet.hosts:
        gpus = [g.index for g in usable_gpus(host, facts[host.name])[0]]
        share = len(gpus) // host.nodes if wanted.device == "cuda" else 0
        for number, name in enumerate(node_names(host)):
            node = NodePlan(
                name=name, host=host.name, gpus=tuple(gpus[number * share : (number + 1) * share])
            )
            if wanted.network == HOST_NETWORK:
                chosen = network.chosen[host.name]
                node = replace(
                    node, address=chosen.address, port=port + number, interface=chosen.name
                )
            found.append(node)
    return tuple(found)


def free_port(hosts: Mapping[str, tuple[HostFacts, int]]) -> int:
    """Return the first port from which every host has a free port in a row for each of its nodes.

    Raises:
        UsageError: there is none.
    """
    for port in _PORTS:
        if all(not facts.ports & set(range(port, port + count)) for facts, count in hosts.values()):
            return port
    raise UsageError(
        f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free on all hosts",
        hint="take down runs that are over: invoke status, invoke down",
    )


def usable_gpus(host: Host, facts: HostFacts) -> tuple[list[Gpu], dict[int, str]]:
    """Return a host's GPUs for a run, and by index the reasons against other ones."""
    if host.gpus == "none":
        return [], {}
    named = gpu_indexes(host.gpus)
    asked = [g for g in facts.gpus if host.gpus == "all" or g.index in named]
    refused = {gpu.index: why for gpu in asked if (why := why_not_usable(gpu))}
    there = {gpu.index for gpu in facts.gpus}
    refused |= {i: f"there is none: it has {len(there)}" for i in named if i not in there}
    return [gpu for gpu in asked if gpu.index not in refused], refused


def _wrong_images(wanted: MeshRequest) -> list[HostProblem]:
    held = {image for image in wanted.images.values() if image}
    found = [
        HostProblem(host=host, what=f"it does not hold {wanted.tag}", no_image=True,
                    hint=f"invoke pull {wanted.stack} --base {wanted.base} --hosts ... brings a"
                    f" release to all; or docker save {wanted.tag} | ssh {host} docker load")
        for host, image in wanted.images.items() if not image
    ]  # fmt: skip
    if len(held) > 1:
        first = next(image for image in wanted.images.values() if image)
        found += [
            HostProblem(
                host=host,
                what=f"its {wanted.tag} is another image ({image[7:19]}, not {first[7:19]})",
                hint="every host must hold the same: invoke pull brings one release to all, or"
                " docker save on one, docker load on the others",
            )
            for host, image in wanted.images.items()
            if image and image != first
        ]
    return found


def wrong_host(
    fleet: Fleet, host: Host, facts: HostFacts, wanted: MeshRequest
) -> list[HostProblem]:
    """Return the problems of one host for this run."""

    def wrong(what: str, hint: str = "", *, warning: bool = False) -> HostProblem:
        return HostProblem(host=host.name, what=what, hint=hint, warning=warning)

    found = []
    if host.name in wanted.taken:
        found.append(wrong(f"run {wanted.run!r} is on it already ({wanted.taken[host.name]})",
                           f"invoke down --name {wanted.run}, or another --name"))  # fmt: skip
    skew = facts.skew or 0.0  # without a clock, certificates decide
    off = abs(skew) - facts.skew_error
    direction = "ahead of" if skew > 0 else "behind"
    if off > SKEW_SECONDS:
        found.append(wrong(f"its clock is {off:.0f} s {direction} this machine's",
                           "set it (chrony, timedatectl set-ntp true): certificates would not be"
                           " valid there"))  # fmt: skip
    elif off > SKEW_WARNING:
        found.append(wrong(f"its clock is {off:.0f} s {direction} this machine's", warning=True))
    if facts.engine_free_bytes is not None and facts.engine_free_bytes < DISK_BYTES:
        found.append(
            wrong(
                f"its disk is full: {facts.engine_free_bytes / 2**20:.0f} MiB are free"
                " where the engine keeps containers",
                "docker system df there",
            )
        )
    found += _wrong_folders(fleet, host, facts)
    if wanted.device == "cuda":
        found += [*_wrong_gpus(host, facts), *misfits(host, facts, wanted.base, wanted.bases)]
    return found


def _wrong_folders(fleet: Fleet, host: Host, facts: HostFacts) -> list[HostProblem]:
    found = []
    for place, folder in fleet.folders.items():
        seen = facts.folders.get(place)
        if seen is None or folder.source.startswith("volume:"):
            continue
        if not seen.path and folder.read_only:
            found.append(HostProblem(host=host.name, what=f"it has no folder {folder.source}",
                                     hint="--overlay is a folder of every host: clone it there, or"
                                     " bring it with invoke sync"))  # fmt: skip
        elif folder.read_only:
            continue
        elif not seen.path:
            found.append(HostProblem(host=host.name, what=f"it has no folder {folder.source}",
                                     hint=f"mkdir -p {folder.source} there; it is {place} in the"
                                     " nodes"))  # fmt: skip
        elif seen.free_bytes is not None and seen.free_bytes < DISK_BYTES:
            found.append(HostProblem(host=host.name, warning=True,
                                     what=f"{folder.source} has {seen.free_bytes / 2**20:.0f} MiB"
                                     " free"))  # fmt: skip
    return found


def _wrong_gpus(host: Host, facts: HostFacts) -> list[HostProblem]:
    if host.gpus == "none":
        return [HostProblem(host=host.name, what="it is to use no GPUs (gpus: none)",
                            hint="--gpus 0 runs on CPU ranks")]  # fmt: skip
    if facts.driver is None:
        return [HostProblem(host=host.name, what="no NVIDIA driver is loaded on it",
                            hint="--gpus 0 runs on CPU ranks")]  # fmt: skip
    usable, refused = usable_gpus(host, facts)
    asked = bool(gpu_indexes(host.gpus))
    found = [
        HostProblem(host=host.name, what=f"GPU {index}: {why}", warning=not asked)
        for index, why in refused.items()
    ]
    if not usable and not asked:
        found.append(HostProblem(host=host.name, what="none of its GPUs can be used"))
    if usable and len(usable) % host.nodes:
        found.append(HostProblem(host=host.name, what=f"{len(usable)} GPUs cannot be spread over"
                                 f" {host.nodes} nodes evenly"))  # fmt: skip
    return found


def misfits(
    host: Host, facts: HostFacts, base: str, bases: Mapping[str, Base]
) -> list[HostProblem]:
    """Return why images on a base do not run on a host's GPUs, and which base does."""
    if facts.driver is None or base not in bases:
        return []
    version, (usable, _) = facts.driver.version, usable_gpus(host, facts)
    hint = doctor.advice(version, usable, bases.values())
    return [
        HostProblem(host=host.name, what=f"base {base} {reason}", hint=hint)
        for reason in doctor.misfits(version, usable, bases[base])
    ]


def _same_address(network: Network) -> list[HostProblem]:
    seen: dict[str, str] = {}
    found = []
    for host, interface in network.chosen.items():
        if interface.address in seen:
            what = f"it has the address of {seen[interface.address]} ({interface.address})"
            found.append(HostProblem(host=host, what=f"{what}: one machine under two names, or a"
                                     " network that does not join the hosts"))  # fmt: skip
        seen.setdefault(interface.address, host)
    return found


def visible(plan: StandingPlan, node: NodePlan) -> tuple[int, ...]:
    """Return a node's GPUs as its container numbers them, from 0 over all that it sees.

    Nodes of one host see the GPUs of all of them (`placement` gives the reason).
    """
    seen = sorted({gpu for o in plan.nodes if o.host == node.host for gpu in o.gpus})
    return tuple(seen.index(gpu) for gpu in node.gpus)


def fabric_of(plan: StandingPlan, facts: Mapping[str, HostFacts]) -> Fabric:
    """Choose the InfiniBand or RoCE ports that the plan's hosts use between them.

    RoCE belongs to a network namespace: nodes on a network of their own do not have the host's.
    """
    used = {node.host for node in plan.nodes if node.gpus}
    on_host = plan.network == HOST_NETWORK
    subnets = {host: [i.subnet for i in facts[host].interfaces] for host in used if on_host}
    return infiniband.choose({host: facts[host].infiniband for host in used}, subnets)


def node_environment(
    plan: StandingPlan, facts: Mapping[str, HostFacts], node: NodePlan
) -> dict[str, str]:
    """Return the environment variables that name a node's network interface and GPUs."""
    name = node.interface or "eth0"
    env = {"GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    alone = sum(other.host == node.host for other in plan.nodes) == 1
    if node.gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env |= fabric_of(plan, facts).settings(node.host)
        if not alone:
            # Nodes of one host see all of its GPUs, so NCCL needs one host id (`placement`).
            env["NCCL_HOSTID"] = f"stackyard-{plan.run}-{node.host}"
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible(plan, node)))
    return env
