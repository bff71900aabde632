"""`accelerate launch` on node 1: DeepSpeed through pdsh for several nodes, one process alone.

The configuration file is generated for each launch and named on the command line, so a stray
default_config.yaml is never read. Option `zero_stage` (2 or 3) belongs to layouts of several nodes.
"""

from __future__ import annotations

from stackyard import template
from stackyard.launch.deepspeed import environment_file, hostfile
from stackyard.launch.request import Launch, LaunchRequest


def materialize(request: LaunchRequest) -> Launch:
    """The command for node 1 and the configuration it reads."""
    config = f"{request.scratch}/accelerate.yaml"
    argv = ("accelerate", "launch", "--config_file", config, *request.program)
    if len(request.nodes) == 1:
        values: dict[str, object] = {"use_cpu": request.device == "cpu"}
        text = template.render("runtime/accelerate-one.yaml.j2", values)
        return Launch(argv=argv, env=dict(request.env), files={config: text})
    hosts, exported = f"{request.scratch}/hostfile", f"{request.scratch}/deepspeed_env"
    values = {
        "use_cpu": request.device == "cpu",
        "hostfile": hosts,
        "zero_stage": int(request.options["zero_stage"]),
        "nodes": len(request.nodes),
        "processes": len(request.nodes) * request.per_node,
        "machine_rank": 0,
        "main_process_ip": request.nodes[0],
        "main_process_port": request.port,
    }
    files = {
        config: template.render("runtime/accelerate-deepspeed.yaml.j2", values),
        hosts: hostfile(request),
        exported: environment_file(request),
    }
    return Launch(argv=argv, env={**request.env, "DS_ENV_FILE": exported}, files=files)
