"""What a run's ssh client and launchers are told of its nodes."""

from stackyard.launch.deepspeed import hostfile
from stackyard.launch.request import LaunchRequest
from stackyard.mesh.certificates import MeshPlan, client_config

FILES = ["ssh_config.txt", "hostfile.txt"]
NODES = ("node1", "node2", "node3")


def test_the_clients_configuration_is_what_is_committed(golden):
    plan = MeshPlan(run="sample", nodes=NODES, port=2222, seconds=60)
    golden.check("ssh_config.txt", client_config(plan))


def test_the_hostfile_is_what_is_committed(golden):
    request = LaunchRequest(
        nodes=NODES, port=29500, program=("x",), env={}, folder="/", scratch="/", ssh_port=2222,
        per_node=4,
    )  # fmt: skip
    golden.check("hostfile.txt", hostfile(request))
