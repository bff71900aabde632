"""Place the ranks of a run: choose their GPUs, their containers, and what joins these.

Owns the recipes under which NCCL keeps its fast path between containers of one host, those that
fail or fall back to sockets, and the settings of each. It is pure: the caller says what there is.
The recipes were measured on 2 x H200 with NCCL 2.28.9 (docs/howto/gpus.md). P2P needs every GPU
visible in every container, one IPC namespace, and one host id (NVIDIA/nccl#324 and #1781 say why).

Over 300 lines: the placements and what proves each of them sound belong together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stackyard.gpu.infiniband import Adapters
from stackyard.system.errors import NothingToRunOn, UsageError

TOGETHER, SHARED, HOST_NETWORK, ISOLATED = "together", "shared-ipc", "host-network", "isolated"
NAMES = (TOGETHER, SHARED, HOST_NETWORK, ISOLATED)
# Families of transports in NCCL's log, fastest first; what follows a slash there is a detail.
P2P, SHM, NET = "P2P", "SHM", "NET"
MIB = 2**20
# The driver keeps some memory of an idle GPU for itself; another user's process takes more.
IDLE_BYTES = 1024 * MIB
_OWN_GPU_ONLY = (
    "each container sees its own GPU only, so NCCL finds no way between them but sockets: about"
    " 1/100 of NVLink's bandwidth (3 of 330 GB/s on 2 x H200) and two thirds of the training speed"
)


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """Hold a process that has memory of a GPU."""

    pid: int
    bytes: int
    command: str


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Hold one GPU as the driver shows it.

    Attributes:
        index: NVML's number, in PCI order.
        minor: the number of its device node (/dev/nvidia<minor>).
        capability: compute capability, as in (9, 0).
        compute_mode: `default`, or the mode that keeps others from computing on it.
        nvlinks: the number of NVLinks to another GPU, by its index.
        peers: indexes of the GPUs whose memory this one can read.
    """

    index: int
    minor: int
    uuid: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    free_bytes: int
    compute_mode: str = "default"
    mig: bool = False
    processes: tuple[GpuProcess, ...] = ()
    nvlinks: Mapping[int, int] = field(default_factory=dict)
    peers: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class GpuHost:
    """Hold the GPUs of this machine and the driver they run under.

    Attributes:
        driver: the kernel driver's version.
        cuda: the newest CUDA version that the driver itself supports, as in `13.0`.
        infiniband: its InfiniBand and RoCE adapters.
    """

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    infiniband: Adapters = field(default_factory=Adapters)


@dataclass(frozen=True, kw_only=True)
class NodePlacement:
    """Hold what one container gets.

    Attributes:
        takes: indexes, among the visible GPUs, of those that its ranks compute on.
        ipc: `private`, `shareable`, `first` (joins the first node's) or `host`.
        env: settings of this node, beyond those that all nodes have.
    """

    visible: tuple[Gpu, ...]
    takes: tuple[int, ...]
    ipc: str
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Hold where a run's ranks go.

    Attributes:
        network: `bridge` (a network of the run's own) or `host`.
        transport: the best of `P2P`, `SHM` and `NET` that NCCL can choose here.
        why: one sentence for people that says what was chosen, and what for.
        warnings: what is slow or risky about it.
    """

    name: str
    network: str
    nodes: tuple[NodePlacement, ...]
    transport: str
    env: Mapping[str, str]
    why: str
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return every GPU that a rank computes on, in rank order."""
        return tuple(node.visible[index] for node in self.nodes for index in node.takes)


def choose_gpus(host: GpuHost, wanted: int, allowed: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Choose free GPUs for a run, in PCI order.

    Args:
        allowed: indexes or UUIDs that the caller may use (CUDA_VISIBLE_DEVICES); None for all.

    Raises:
        NothingToRunOn: too few are allowed and free; says why each of the others is not.
    """
    refused: dict[int, str] = {}
    if allowed is not None:
        # CUDA sees none of those that follow a word which names no GPU.
        allowed = tuple(itertools.takewhile(
            lambda word: any(_named(gpu, (word,)) for gpu in host.gpus), allowed
        ))  # fmt: skip
    for gpu in host.gpus:
        if allowed is not None and not _named(gpu, allowed):
            refused[gpu.index] = "CUDA_VISIBLE_DEVICES leaves it out"
        else:
            busy = why_not_usable(gpu)
            if busy:
                refused[gpu.index] = busy
    free = [gpu for gpu in host.gpus if gpu.index not in refused]
    if len(free) >= wanted:
        return tuple(_best_joined(free, wanted))
    reasons = [f"GPU {index} ({host.gpus[index].name}): {why}" for index, why in refused.items()]
    raise NothingToRunOn(
        f"{wanted} GPUs are wanted, {len(free)} of {len(host.gpus)} can be used",
        why="\n".join(reasons) or f"this machine has {len(host.gpus)}",
        hint="end what holds them (`invoke doctor` lists it), or ask for fewer: --gpus"
        f" {len(free)}; on CPU ranks: --gpus 0",
    )


def why_not_usable(gpu: Gpu) -> str:
    """Return why no run may be placed on a GPU; empty when one may."""
    if gpu.mig:
        return "it is split by MIG, and NCCL does not join slices"
    if gpu.compute_mode != "default":
        return f"its compute mode is {gpu.compute_mode}"
    if gpu.processes:
        shown = ", ".join(
            f"{p.pid} ({p.command or 'not visible from here'}, {p.bytes // MIB} MiB)"
            for p in gpu.processes[:3]
        )
        return f"processes hold it: {shown}"
    used = gpu.memory_bytes - gpu.free_bytes
    if used > IDLE_BYTES:
        return f"{used // MIB} MiB of it are in use, by processes not visible from here"
    return ""


def _named(gpu: Gpu, allowed: Sequence[str]) -> bool:
    return any(word == str(gpu.index) or gpu.uuid.startswith(word) for word in allowed if word)


def _best_joined(free: Sequence[Gpu], wanted: int) -> list[Gpu]:
    """Return the GPUs with the most NVLinks among themselves; the first ones of equal groups."""
    best: list[Gpu] = []
    for start in range(len(free)):
        group = [free[start]]
        others = [gpu for gpu in free if gpu is not free[start]]
        while len(group) < wanted and others:
            nearest = max(others, key=lambda gpu: sum(gpu.nvlinks.get(g.index, 0) for g in group))
            others.remove(nearest)
            group.append(nearest)
        if len(group) == wanted and (not best or _links(group) > _links(best)):
            best = sorted(group, key=lambda gpu: gpu.index)
    return best


def _links(group: Sequence[Gpu]) -> int:
    return sum(a.nvlinks.get(b.index, 0) for a in group for b in group)


def place(
    gpus: Sequence[Gpu], nodes: int, *, name: str = "", infiniband: bool = False, run: str
) -> Placement:
    """Put GPUs into containers of one host.

    Args:
        nodes: number of containers; the GPUs are spread over them evenly.
        name: name of a recipe; empty for the best one.
        run: the run's name, which becomes part of the host id.

    Raises:
        UsageError: the GPUs cannot be spread like that, or the recipe does not fit; says why.
    """
    if nodes < 1 or len(gpus) % nodes:
        raise UsageError(
            f"{len(gpus)} GPUs cannot be spread over {nodes} nodes evenly",
            hint="let --gpus be a multiple of --nodes",
        )
    name = name or (TOGETHER if nodes == 1 else SHARED)
    if name not in NAMES:
        raise UsageError(f"there is no placement {name!r}", why=f"known: {', '.join(NAMES)}")
    if (name == TOGETHER) != (nodes == 1):
        raise UsageError(
            f"placement {name!r} does not fit {nodes} node{'s' if nodes > 1 else ''}",
            why=f"{TOGETHER!r} is one container with all GPUs, the others are several",
        )
    share = len(gpus) // nodes
    makers = {
        TOGETHER: _together, SHARED: _shared, HOST_NETWORK: _host_network, ISOLATED: _isolated,
    }  # fmt: skip
    return makers[name](tuple(gpus), share, infiniband, run)


def best_transport(gpus: Sequence[Gpu]) -> str:
    """Return the slowest transport that is right between GPUs that all ranks see, `P2P` or `SHM`.

    Without NVLinks it is `SHM`: across CPU host bridges NCCL takes no peer access of PCIe, although
    the driver allows it (NCCL_P2P_LEVEL, whose default is PXB).
    """
    pairs = [(a, b) for a in gpus for b in gpus if a is not b]
    joined = all(b.index in a.peers and a.nvlinks.get(b.index) for a, b in pairs)
    return P2P if joined else SHM


def _together(gpus: tuple[Gpu, ...], share: int, infiniband: bool, run: str) -> Placement:
    node = NodePlacement(visible=gpus, takes=tuple(range(len(gpus))), ipc="private", env={})
    return Placement(
        name=TOGETHER,
        network="bridge",
        nodes=(node,),
        transport=best_transport(gpus),
        env=_ORDER,
        why=f"one container with {len(gpus)} GPUs: {_path(gpus)} between its processes",
    )


_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _shared(gpus: tuple[Gpu, ...], share: int, infiniband: bool, run: str) -> Placement:
    return Placement(
        name=SHARED,
        network="bridge",
        nodes=_split(gpus, share, ("shareable", "first")),
        transport=best_transport(gpus),
        # cuMem handles travel over abstract sockets, which do not leave a network namespace. With
        # cuMem off NCCL uses CUDA IPC, which needs only the common IPC namespace.
        env={**_ORDER, "NCCL_HOSTID": f"stackyard-{run}", "NCCL_CUMEM_ENABLE": "0"},
        why="containers with networks of their own that see every GPU and share one IPC namespace:"
        f" {_path(gpus)} between them, by CUDA IPC",
    )


def _host_network(gpus: tuple[Gpu, ...], share: int, infiniband: bool, run: str) -> Placement:
    return Placement(
        name=HOST_NETWORK,
        network="host",
        nodes=_split(gpus, share, ("host", "host")),
        transport=best_transport(gpus),
        env={**_ORDER, "NCCL_HOSTID": f"stackyard-{run}"},
        why=f"containers on the host's network and IPC that see every GPU: {_path(gpus)} between"
        " them, by cuMem",
        warnings=("the containers see the host's network and its shared memory",),
    )


def _isolated(gpus: tuple[Gpu, ...], share: int, infiniband: bool, run: str) -> Placement:
    nodes = tuple(
        NodePlacement(
            visible=gpus[start : start + share], takes=tuple(range(share)), ipc="private", env={}
        )
        for start in range(0, len(gpus), share)
    )
    net = {"NCCL_NET": "IB"} if infiniband else {}
    return Placement(
        name=ISOLATED,
        network="bridge",
        nodes=nodes,
        transport=NET,
        env={**_ORDER, **net},
        why="containers as docker starts them by default: GPU, network and IPC of their own",
        warnings=(_OWN_GPU_ONLY,),
    )


def _split(gpus: tuple[Gpu, ...], share: int, ipc: tuple[str, str]) -> tuple[NodePlacement, ...]:
    """Give every node all GPUs, and name its own in CUDA_VISIBLE_DEVICES."""
    nodes = []
    for start in range(0, len(gpus), share):
        takes = tuple(range(start, start + share))
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, takes))}
        nodes.append(
            NodePlacement(visible=gpus, takes=takes, ipc=ipc[0] if not start else ipc[1], env=env)
        )
    return tuple(nodes)


def _path(gpus: Sequence[Gpu]) -> str:
    if len(gpus) < 2:
        return "nothing"
    links = [a.nvlinks.get(b.index, 0) for a in gpus for b in gpus if a is not b]
    if min(links):
        return f"NVLink (at least {min(links)} links a pair)"
    if all(b.index in a.peers for a in gpus for b in gpus if a is not b):
        return "PCIe peer access or host memory, as NCCL chooses"
    return "host memory (no peer access)"


def environment_of(placement: Placement) -> dict[str, str]:
    """Return the variables that every node of a placement has."""
    interface = "lo" if placement.network == "host" else "eth0"
    return {**placement.env, "NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}


def require_sound(placement: Placement, env: Mapping[str, str]) -> tuple[str, ...]:
    """Compare a placement, with the caller's variables over its own, with what was measured.

    Args:
        env: the final environment of the nodes.

    Returns:
        Warnings that say why it would be slow.

    Raises:
        UsageError: NCCL fails under it, at its start or at the first collective; names the reason.
    """
    if len(placement.nodes) < 2:
        return _switched_off(env)
    sees_all = all(len(node.visible) == len(placement.gpus) for node in placement.nodes)
    shares_ipc = all(node.ipc != "private" for node in placement.nodes)
    one_host = bool(env.get("NCCL_HOSTID")) or placement.network == "host"
    by_sockets = env.get("NCCL_CUMEM_ENABLE", "1") != "0"
    failure = ""
    if one_host and not sees_all and (shares_ipc or placement.network == "host"):
        failure = (
            "NCCL takes the containers for one host and picks P2P, but each sees its own GPU only:"
            " CUDA refuses the peer's (invalid argument, invalid device ordinal)"
        )
    elif one_host and shares_ipc and by_sockets and placement.network == "bridge":
        failure = (
            "NCCL picks P2P by cuMem, whose handles travel over abstract sockets, and these do not"
            " leave a container's network: connection refused"
        )
    if failure:
        raise UsageError(
            f"placement {placement.name!r} with these settings fails",
            why=failure,
            hint="leave NCCL_HOSTID and NCCL_CUMEM_ENABLE to Stackyard (unset them), or"
            f" --placement {SHARED}",
        )
    if not (sees_all and shares_ipc and one_host) and placement.transport != NET:
        return ("NCCL falls back to sockets: " + _OWN_GPU_ONLY, *_switched_off(env))
    return _switched_off(env)


def _switched_off(env: Mapping[str, str]) -> tuple[str, ...]:
    said = {
        "NCCL_P2P_DISABLE": "NCCL_P2P_DISABLE=1 keeps NCCL off NVLink",
        "NCCL_SHM_DISABLE": "NCCL_SHM_DISABLE=1 keeps NCCL off shared memory",
    }
    return tuple(why for name, why in said.items() if env.get(name, "0") not in ("0", ""))
