"""Made-up hosts, what they say about themselves, and plans of runs on them."""

from __future__ import annotations

from typing import Any

from stackyard.gpu.access import DriverFiles
from stackyard.gpu.placement import MIB, Gpu
from stackyard.mesh.hosts import Fleet, Host
from stackyard.mesh.node_plan import MeshRequest, NodePlan, StandingPlan
from stackyard.mesh.survey import HostFacts, Interface

NOW = 1_700_000_000
IMAGE = "sha256:" + "0123456789ab" * 5


def interface(name: str = "eth0", address: str = "10.0.0.1", **changes: Any) -> Interface:
    subnet = f"{address.rpartition('.')[0]}.0/24"
    values = {"name": name, "address": address, "subnet": subnet, "mtu": 1500, "speed": 1000}
    return Interface(**{**values, **changes})


def facts(name: str = "a", number: int = 1, **changes: Any) -> HostFacts:
    """What a host says that nothing is wrong with, `number` being the end of its address."""
    address = f"10.0.0.{number}"
    values: dict[str, Any] = {
        "name": name,
        "skew": 0.0,
        "skew_error": 0.1,
        "reached": address,
        "interfaces": (interface("lo", "127.0.0.1", speed=0), interface("eth0", address)),
        "ports": frozenset({22}),
        "memory_bytes": 2**34,
        "engine_free_bytes": 2**36,
    }
    return HostFacts(**{**values, **changes})


def gpu(index: int, **changes: Any) -> Gpu:
    values = {
        "index": index,
        "minor": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H200",
        "capability": (9, 0),
        "memory_bytes": 140_000 * MIB,
        "free_bytes": 140_000 * MIB,
    }
    return Gpu(**{**values, **changes})


def gpu_facts(name: str = "a", number: int = 1, count: int = 2, **changes: Any) -> HostFacts:
    driver = DriverFiles(version="580.159.04", nodes=(), libraries={})
    gpus = tuple(gpu(index) for index in range(count))
    return facts(name, number, **{"driver": driver, "gpus": gpus, **changes})


def fleet(*hosts: Host | str, **changes: Any) -> Fleet:
    found = tuple(Host(name=h, ssh=h) if isinstance(h, str) else h for h in hosts)
    return Fleet(source="hosts.yml", hosts=found, **changes)


def wanted(*hosts: str, **changes: Any) -> MeshRequest:
    values: dict[str, Any] = {
        "run": "demo",
        "stack": "fairseq",
        "base": "cpu",
        "tag": "stackyard/fairseq:cpu",
        "device": "cpu",
        "images": dict.fromkeys(hosts, IMAGE),
    }
    return MeshRequest(**{**values, **changes})


def node(name: str, host: str = "", **changes: Any) -> NodePlan:
    return NodePlan(name=name, host=host or name, **changes)


def plan(*nodes: NodePlan, **changes: Any) -> StandingPlan:
    values: dict[str, Any] = {
        "run": "demo", "stack": "fairseq", "base": "cpu", "image": IMAGE,
        "nodes": nodes or (node("a", address="10.0.0.1"), node("b", address="10.0.0.2")),
        "until": NOW + 3600,
    }  # fmt: skip
    return StandingPlan(**{**values, **changes})
