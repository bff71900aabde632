"""Write the command of `accelerate launch` for DeepSpeed, data parallelism or one process.

Every launch names a configuration that is written for it, so a stray default_config.yaml is never
read. It is the user's own, completed (`launch.accelerate_config`), or a generated one. Option
`zero_stage`, for layouts of several ranks, is the ZeRO stage of DeepSpeed; 0 is data parallelism
(DDP) without DeepSpeed. Option `start` is `pdsh` (node 1 runs `accelerate launch`, which starts the
others) or `standard` (every node runs it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stackyard.launch.accelerate_config import DEEPSPEED, AccelerateConfig, Ranks, complete
from stackyard.launch.deepspeed import environment_file, hostfile, inclusion
from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest
from stackyard.system import template

# `accelerate test` starts this module by a launcher of its own, on one machine.
_TEST = ("-m", "accelerate.test_utils.scripts.test_script")


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1, and the configuration that it reads."""
    if request.config is not None:
        return _own(request)
    if len(request.nodes) * request.per_node == 1:
        values: dict[str, object] = {"use_cpu": request.device == "cpu"}
        return _started(request, template.render("runtime/accelerate-one.yaml.j2", values))
    if request.options.get("zero_stage", "0") == "0":
        return _data_parallel(request)
    return _deepspeed(request)


def by_pdsh(config: AccelerateConfig | None, options: Mapping[str, str]) -> bool:
    """Return whether DeepSpeed starts several nodes by pdsh, and chooses the GPUs of each."""
    if config is not None:
        return config.by_pdsh
    standard = options.get("start", "pdsh") == "standard"
    return options.get("zero_stage", "0") != "0" and not standard


def _own(request: LaunchRequest) -> Launch:
    assert request.config is not None
    chosen = _chosen(request) if request.config.kind == DEEPSPEED else {}
    ranks = Ranks(
        nodes=request.nodes, per_node=request.per_node, device=request.device, port=request.port,
        filled=chosen,
    )  # fmt: skip
    text = complete(request.config, ranks)
    return _started(request, text, parallel=request.config.kind != DEEPSPEED)


def _data_parallel(request: LaunchRequest) -> Launch:
    text = template.render("runtime/accelerate-ddp.yaml.j2", _place(request))
    return _started(request, text, parallel=True)


def _place(request: LaunchRequest) -> dict[str, object]:
    return {
        "nodes": len(request.nodes),
        "processes": len(request.nodes) * request.per_node,
        "main_process_ip": request.nodes[0],
        "main_process_port": request.port,
        "use_cpu": request.device == "cpu",
    }


def _deepspeed(request: LaunchRequest) -> Launch:
    chosen = _chosen(request)
    values = {
        **_place(request),
        "standard": len(request.nodes) > 1 and request.options.get("start") == "standard",
        "hostfile": chosen.get("deepspeed_hostfile", ""),
        "include": chosen.get("deepspeed_inclusion_filter", ""),
        "zero_stage": int(request.options["zero_stage"]),
        "machine_rank": 0,
    }
    return _started(request, template.render("runtime/accelerate-deepspeed.yaml.j2", values))


def _chosen(request: LaunchRequest) -> Mapping[str, str]:
    """Return the keys of `deepspeed_config` by which DeepSpeed starts this run's nodes."""
    if len(request.nodes) == 1:
        return {}
    found = {"deepspeed_inclusion_filter": request.include or inclusion(request)}
    if by_pdsh(request.config, request.options):
        found["deepspeed_hostfile"] = f"{request.scratch}/hostfile"
        found["deepspeed_multinode_launcher"] = "pdsh"
    return {name: value for name, value in found.items() if value}


def _started(request: LaunchRequest, text: str, *, parallel: bool = False) -> Launch:
    """Return the launch that reads a configuration.

    Args:
        parallel: ranks are data parallel without DeepSpeed, and several or configured by the user.
    """
    config = f"{request.scratch}/accelerate.yaml"
    files, env = {config: text}, dict(request.env)
    if parallel and request.device == "cpu":
        env = {"ACCELERATE_USE_CPU": "true", **env}
    program = _program(request)
    several = len(request.nodes) > 1
    if several and not by_pdsh(request.config, request.options):
        asked = replace(request, env=env)
        words = ["accelerate", "--config_file", config, *program]
        # `launch` must stand before the numbered option: `accelerate launch --machine_rank=%n ...`.
        found = everywhere(asked, words, ["launch", f"--machine_rank={NUMBER}"])
        return replace(found, files=files, everywhere=True)
    if several:
        hosts, exported = f"{request.scratch}/hostfile", f"{request.scratch}/deepspeed_env"
        files |= {hosts: hostfile(request), exported: environment_file(request)}
        env["DS_ENV_FILE"] = exported
    argv = ("accelerate", "launch", "--config_file", config, *program)
    return Launch(argv=argv, env=env, files=files)


def _program(request: LaunchRequest) -> tuple[str, ...]:
    if request.program[:2] == ("accelerate", "test"):
        return (*_TEST, *request.program[2:])
    if request.program[0].endswith(".py") or request.program[0].startswith("-"):
        return request.program
    return ("--no_python", *request.program)
