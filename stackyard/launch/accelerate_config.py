"""Complete a user's own accelerate configuration with the hosts, ports and ranks of a run.

Owns which keys are Stackyard's and which are the user's, and every conflict between the two. Pure:
`launch.accelerate` writes the result, `mesh.jobs` refuses conflicts before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from stackyard.system.errors import UsageError, shown

DEEPSPEED = "DEEPSPEED"
# Of accelerate's distributed types, those that its images can start.
TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", DEEPSPEED, "FSDP", "MEGATRON_LM")
STARTS = ("pdsh", "standard")
# Defaults for DeepSpeed without a file of its own; with one, accelerate refuses these keys.
ZERO = {
    "zero3_init_flag": False,
    "offload_optimizer_device": "none",
    "offload_param_device": "none",
}
_CHOSEN = ("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
_REPLACED = ("main_process_ip", "main_process_port", "machine_rank")


@dataclass(frozen=True, kw_only=True)
class AccelerateConfig:
    """Hold a user's accelerate configuration.

    Attributes:
        name: the file, as the user named it.
    """

    name: str
    values: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Return its distributed type."""
        return str(self.values["distributed_type"])

    @property
    def deepspeed(self) -> Mapping[str, Any]:
        """Return its section about DeepSpeed; empty where it has none."""
        found: Mapping[str, Any] = self.values.get("deepspeed_config") or {}
        return found

    @property
    def by_pdsh(self) -> bool:
        """Return whether DeepSpeed starts the other nodes by pdsh."""
        chosen = self.deepspeed.get("deepspeed_multinode_launcher") or STARTS[0]
        return self.kind == DEEPSPEED and chosen == STARTS[0]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Hold what a run decides about its ranks.

    Attributes:
        nodes: node names in rank order.
        per_node: ranks on each node.
        port: rendezvous port on the first node.
        filled: keys of `deepspeed_config` that name this run's nodes and slots.
    """

    nodes: tuple[str, ...]
    per_node: int
    device: str
    port: int = 0
    filled: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of ranks on all nodes."""
        return len(self.nodes) * self.per_node


def parse(text: str, name: str) -> AccelerateConfig:
    """Read an accelerate configuration (YAML, or JSON, which is YAML too).

    Raises:
        UsageError: it is no configuration of a training that Stackyard can start.
    """
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{name} is not YAML", why=" ".join(str(error).split())[:300]) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{name} is not an accelerate configuration",
                         why="it must hold keys, as `accelerate config` writes them")  # fmt: skip
    wrong = list(_wrong(values))
    if wrong:
        raise UsageError(f"{name} cannot be used", why="\n".join(wrong),
                         hint="docs/howto/hosts.md says what Stackyard fills in")  # fmt: skip
    return AccelerateConfig(name=name, values=values)


def _wrong(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a configuration, wherever it runs."""
    found = []
    kind, place = values.get("distributed_type"), values.get("compute_environment")
    if kind not in TYPES:
        found.append(f"distributed_type must be one of {', '.join(TYPES)}, not {shown(str(kind))}")
    if place not in (None, "LOCAL_MACHINE"):
        found.append(f"compute_environment must be LOCAL_MACHINE, not {shown(str(place))}")
    if values.get("mpirun_config"):
        found.append("mpirun_config: ranks are started by pdsh and torch, not by MPI")
    if values.get("gpu_ids") not in (None, "all"):
        found.append("gpu_ids must be all: GPUs are chosen by gpus in hosts.yml and --include")
    section = values.get("deepspeed_config") or {}
    if not isinstance(section, dict):
        return [*found, "deepspeed_config must hold keys"]
    chosen = section.get("deepspeed_multinode_launcher")
    if chosen not in (None, *STARTS):
        found.append(f"deepspeed_multinode_launcher must be pdsh or standard, not {chosen}")
    found += [f"{key}: hosts are chosen by hosts.yml, --include and --exclude"
              for key in _CHOSEN if section.get(key) is not None]  # fmt: skip
    return found


def conflicts(config: AccelerateConfig, ranks: Ranks) -> list[str]:
    """Return where a configuration contradicts the run that it is for."""
    values = config.values
    counts = {"num_machines": len(ranks.nodes), "num_processes": ranks.count}
    found = [
        f"{key} is {values[key]}, but this run has {count}: leave the line out, or choose other"
        " hosts, --gpus, --per-node or --include"
        for key, count in counts.items()
        if values.get(key) not in (None, count)
    ]
    if ranks.device == "cuda" and values.get("use_cpu"):
        found.append("use_cpu is true, but this run is on GPUs: --gpus 0 runs on CPU ranks")
    if ranks.device == "cuda" and config.kind == "MULTI_CPU":
        found.append("distributed_type is MULTI_CPU, but this run is on GPUs")
    if config.kind == "NO" and ranks.count > 1:
        found.append(
            f"distributed_type is NO, which starts {len(ranks.nodes)} separate trainings on this"
            f" run's {ranks.count} ranks: MULTI_GPU, FSDP or DEEPSPEED starts one"
        )
    return found


def replaced(config: AccelerateConfig, ranks: Ranks) -> list[str]:
    """Return a sentence for each of the user's lines that gives way to the run's own value."""
    values = config.values
    names = [key for key in _REPLACED if values.get(key) is not None]
    if ranks.device == "cpu" and values.get("use_cpu") is False:
        names.append("use_cpu")
    return [f"{config.name}: {', '.join(names)}: this run's own values are used"] if names else []


def complete(config: AccelerateConfig, ranks: Ranks) -> str:
    """Return the text of a configuration with everything that the run decides."""
    several = len(ranks.nodes) > 1
    backend = str(config.values.get("rdzv_backend") or "static")
    # accelerate starts torch's launcher on CPU ranks for this type only.
    kind = "MULTI_GPU" if config.kind == "MULTI_CPU" and ranks.count > 1 else config.kind
    values = {
        **config.values,
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": len(ranks.nodes),
        "num_processes": ranks.count,
        "main_process_ip": ranks.nodes[0],
        "main_process_port": ranks.port,
        "rdzv_backend": backend,
        # Only a static rendezvous reads the address apart from the port.
        "same_network": backend == "static",
        "use_cpu": ranks.device == "cpu",
    }
    values.pop("machine_rank", None)
    if not several or config.by_pdsh:
        values["machine_rank"] = 0  # otherwise each node is given its own
    if config.kind == DEEPSPEED:
        usual = {} if config.deepspeed.get("deepspeed_config_file") else ZERO
        values["deepspeed_config"] = {**usual, **config.deepspeed, **ranks.filled}
    head = f"# {config.name}, completed with this run's hosts, ports and ranks.\n"
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return head + text
