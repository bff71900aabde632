"""How GPUs get into a container, and what is said when the driver is not whole."""

import pytest

from stackyard.gpu import access, gpus
from stackyard.gpu.access import CDI, DEVICES, RUNTIME, DriverFiles
from stackyard.gpu.placement import place
from stackyard.system.errors import NothingToRunOn
from tests.unit.gpu.test_placement import pair

DRIVER = DriverFiles(
    version="580.159.04",
    nodes=("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidia1",
           "/dev/nvidiactl"),
    libraries={
        name: f"/usr/lib/x86_64-linux-gnu/{name.split('.so')[0]}.so.580.159.04"
        for name in access.REQUIRED
    },
    programs={"nvidia-smi": "/usr/bin/nvidia-smi"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("info", "kinds", "way"),
    [
        ({"Runtimes": {"runc": {}}}, (), DEVICES),
        ({}, (), DEVICES),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, (), RUNTIME),
        ({"Runtimes": {"nvidia": {}}, "CDISpecDirs": ["/etc/cdi"]}, ("nvidia.com/gpu",), CDI),
        ({"Runtimes": {"nvidia": {}}, "CDISpecDirs": ["/etc/cdi"]}, ("other/gpu",), RUNTIME),
        # Specifications are there, but the engine is too old to read them.
        ({"Runtimes": {"runc": {}}}, ("nvidia.com/gpu",), DEVICES),
    ],
)
def test_what_the_host_has_is_used_and_nothing_is_needed(info, kinds, way):
    assert access.choose_way(info, kinds) == way
    assert access.explain(way)


def test_a_container_gets_the_device_nodes_of_its_gpus_and_the_drivers_libraries():
    found = access.access(DEVICES, pair()[1:], DRIVER, "/usr/local/cuda/lib64")
    assert found.devices == (
        "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
    )  # fmt: skip
    for name in ("libcuda.so.1", "libcuda.so"):  # the loader's name, and the linker's
        assert found.binds[f"/usr/local/nvidia/lib64/{name}"].endswith("libcuda.so.580.159.04")
    assert found.binds["/usr/local/nvidia/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert found.env == {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/cuda/lib64",
        "TRITON_LIBCUDA_PATH": "/usr/local/nvidia/lib64",
    }


def test_a_library_path_that_has_the_drivers_place_stays_as_it_is():
    path = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert "LD_LIBRARY_PATH" not in access.access(DEVICES, pair(), DRIVER, path).env


def test_toolkits_are_asked_for_gpus_by_uuid():
    assert access.access(CDI, pair(), DRIVER, "").requests == (
        ("cdi", ("nvidia.com/gpu=GPU-00000000", "nvidia.com/gpu=GPU-00000001")),
    )
    found = access.access(RUNTIME, pair()[:1], DRIVER, "")
    assert found.requests == (("nvidia", ("GPU-00000000",)),)
    assert found.env == {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes": DRIVER.nodes[1:]}, "/dev/nvidia-uvm is not there"),
        ({"nodes": tuple(n for n in DRIVER.nodes if n != "/dev/nvidia1")},
         "/dev/nvidia1 is not there"),
        ({"libraries": {n: p for n, p in DRIVER.libraries.items() if "cuda" not in n}},
         "libcuda.so.1 is not where the loader looks"),
        ({"version": "580.160.01"}, "libcuda.so.1 is of driver 580.159.04, the kernel module is"
         " 580.160.01"),
    ],
)  # fmt: skip
def test_what_the_driver_lacks_is_named(changes, why):
    broken = DriverFiles(**{**vars(DRIVER), **changes})
    with pytest.raises(NothingToRunOn) as caught:
        access.access(DEVICES, pair(), broken, "")
    assert why in caught.value.why


def test_each_node_has_its_own_settings_and_the_callers_go_over_all():
    placed = place(pair(), 2, run="r")
    one, other = access.hardware(placed, DEVICES, DRIVER, "", {"NCCL_NVLS_ENABLE": "0"})
    assert (one.ipc, other.ipc) == ("shareable", "first")
    assert (one.env["CUDA_VISIBLE_DEVICES"], other.env["CUDA_VISIBLE_DEVICES"]) == ("0", "1")
    assert one.env["NCCL_NVLS_ENABLE"] == other.env["NCCL_NVLS_ENABLE"] == "0"
    assert one.limits["memlock"] == -1
    (loud, _) = access.hardware(placed, DEVICES, DRIVER, "", {"NCCL_SOCKET_IFNAME": "ib0"})
    assert loud.env["NCCL_SOCKET_IFNAME"] == "ib0"


def test_infiniband_devices_are_passed():
    placed = place(pair(), 1, run="r")
    (node,) = access.hardware(placed, DEVICES, DRIVER, "", {}, ("/dev/infiniband/uverbs0",))
    assert node.access.devices[-1] == "/dev/infiniband/uverbs0"


LISTED = """\t1234 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/libnvidia-ml.so.1
\tlibnvidia-gpucomp.so.580.159.04 (libc6,x86-64) => /usr/local/nvidia/lib64/libnvidia-gpucomp.so.580
\tlibnvidia-gpucomp.so (libc6,x86-64) => /usr/local/nvidia/lib64/libnvidia-gpucomp.so
\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13
"""


def test_the_drivers_libraries_are_found_where_the_loader_finds_them():
    found = gpus.libraries(LISTED, lambda path: f"{path}.real")
    assert found == {
        "libnvidia-ml.so.1": "/usr/local/nvidia/lib64/libnvidia-ml.so.1.real",
        "libnvidia-gpucomp.so.580.159.04":
            "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.580.real",
        "libnvidia-gpucomp.so": "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.real",
        "libcuda.so.1": "/lib/x86_64-linux-gnu/libcuda.so.1.real",
    }  # fmt: skip


def test_the_callers_nccl_settings_are_taken_and_nothing_else():
    found = gpus.caller_settings({"NCCL_DEBUG": "INFO", "NVSHMEM_DISABLE_NVLS": "1", "HOME": "/x",
                                  "MY_NCCL_X": "1", "AWS_SECRET_ACCESS_KEY": "no"})  # fmt: skip
    assert found == {"NCCL_DEBUG": "INFO", "NVSHMEM_DISABLE_NVLS": "1"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [({}, None), ({"CUDA_VISIBLE_DEVICES": "2, 3"}, ("2", "3")),
     ({"CUDA_VISIBLE_DEVICES": ""}, ("",))],
)  # fmt: skip
def test_a_batch_systems_share_of_the_gpus_is_respected(environment, found):
    assert gpus.allowed(environment) == found


def test_cdi_specifications_are_read_whatever_their_form(tmp_path):
    gpus_of = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}, {name: %s}]\n"
    (tmp_path / "a.yaml").write_text(gpus_of % "all")
    (tmp_path / "b.json").write_text('{"kind": "other/nic", "devices": [{"name": "0"}]}')
    (tmp_path / "c.yaml").write_text("{broken")
    (tmp_path / "d.txt").write_text("kind: text")
    folders = [str(tmp_path), str(tmp_path / "none")]
    assert gpus.cdi_kinds(folders) == ("other/nic",)  # none of the GPUs is named by its UUID
    (tmp_path / "e.yml").write_text(gpus_of % "GPU-1")
    assert gpus.cdi_kinds(folders) == ("nvidia.com/gpu", "other/nic")


def test_the_drivers_version_is_read_and_no_driver_is_no_version(tmp_path):
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n"
                    "GCC version:  gcc version 13.3.0\n")  # fmt: skip
    assert gpus.driver_version(path) == "580.159.04"
    assert gpus.driver_version(tmp_path / "none") == ""
