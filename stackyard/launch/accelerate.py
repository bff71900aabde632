"""Write the command of `accelerate launch` for DeepSpeed, data parallelism or one process.

The configuration of a DeepSpeed launch is generated and named on the command line, so a stray
default_config.yaml is never read. Option `zero_stage`, for layouts of several ranks, is the ZeRO
stage of DeepSpeed; 0 is data parallelism (DDP) without DeepSpeed. Option `start` is `pdsh`
(node 1 runs `accelerate launch`, which starts the others) or `standard` (every node runs it).
"""

from __future__ import annotations

from dataclasses import replace

from stackyard.launch.deepspeed import environment_file, hostfile, inclusion
from stackyard.launch.everywhere import NUMBER, everywhere
from stackyard.launch.request import Launch, LaunchRequest
from stackyard.system import template


def materialize(request: LaunchRequest) -> Launch:
    """Return the command for node 1, and the configuration that it reads."""
    if len(request.nodes) * request.per_node == 1:
        return _alone(request)
    if request.options.get("zero_stage", "0") == "0":
        return _data_parallel(request)
    return _deepspeed(request)


def _alone(request: LaunchRequest) -> Launch:
    config = f"{request.scratch}/accelerate.yaml"
    values: dict[str, object] = {"use_cpu": request.device == "cpu"}
    text = template.render("runtime/accelerate-one.yaml.j2", values)
    argv = ("accelerate", "launch", "--config_file", config, *request.program)
    return Launch(argv=argv, env=dict(request.env), files={config: text})


def _data_parallel_on_cpu(request: LaunchRequest) -> Launch:
    config = f"{request.scratch}/accelerate.yaml"
    values: dict[str, object] = {
        "nodes": len(request.nodes),
        "processes": len(request.nodes) * request.per_node,
        "main_process_ip": request.nodes[0],
        "main_process_port": request.port,
    }
    text = template.render("runtime/accelerate-ddp.yaml.j2", values)
    env = {"ACCELERATE_USE_CPU": "true", **request.env}
    if len(request.nodes) == 1:
        argv = ("accelerate", "launch", "--config_file", config, *request.program)
        return Launch(argv=argv, env=env, files={config: text})
    asked = replace(request, env=env)
    words = ["accelerate", "--config_file", config, *request.program]
    found = everywhere(asked, words, ["launch", f"--machine_rank={NUMBER}"])
    return replace(found, files={config: text}, everywhere=True)


def _data_parallel(request: LaunchRequest) -> Launch:
    if request.device == "cpu":
        return _data_parallel_on_cpu(request)
    # accelerate starts nothing on other nodes; its documentation says to run it on each node.
    words = [
        "accelerate", "launch",
        "--num_machines", str(len(request.nodes)),
        "--num_processes", str(len(request.nodes) * request.per_node),
        "--main_process_ip", request.nodes[0],
        "--main_process_port", str(request.port),
        "--same_network",
        "--mixed_precision", "no",
        "--dynamo_backend", "no",
        "--multi_gpu",
        *request.program,
    ]  # fmt: skip
    if len(request.nodes) == 1:
        return Launch(argv=tuple(words), env=dict(request.env))
    # `launch` must stand before the numbered option: `accelerate launch --machine_rank=%n ...`.
    first, second, *rest = words
    return everywhere(request, [first, *rest], [second, f"--machine_rank={NUMBER}"])


def _deepspeed(request: LaunchRequest) -> Launch:
    config = f"{request.scratch}/accelerate.yaml"
    hosts, exported = f"{request.scratch}/hostfile", f"{request.scratch}/deepspeed_env"
    several = len(request.nodes) > 1
    standard = several and request.options.get("start") == "standard"
    values: dict[str, object] = {
        "use_cpu": request.device == "cpu",
        "standard": standard,
        "hostfile": hosts if several and not standard else "",
        "include": (request.include or inclusion(request)) if several else "",
        "zero_stage": int(request.options["zero_stage"]),
        "nodes": len(request.nodes),
        "processes": len(request.nodes) * request.per_node,
        "machine_rank": 0,
        "main_process_ip": request.nodes[0],
        "main_process_port": request.port,
    }
    files = {config: template.render("runtime/accelerate-deepspeed.yaml.j2", values)}
    env = dict(request.env)
    if standard:
        words = ["accelerate", "--config_file", config, *request.program]
        found = everywhere(request, words, ["launch", f"--machine_rank={NUMBER}"])
        return replace(found, files=files, everywhere=True)
    if several:
        files |= {hosts: hostfile(request), exported: environment_file(request)}
        env["DS_ENV_FILE"] = exported
    argv = ("accelerate", "launch", "--config_file", config, *request.program)
    return Launch(argv=argv, env=env, files=files)
