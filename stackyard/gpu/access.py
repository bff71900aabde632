"""Choose how GPUs enter containers: CDI, the NVIDIA runtime, or device nodes and libraries.

Owns that choice and what each way hands to the engine. It is pure: the caller says what the engine
and the machine have. No way installs anything on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stackyard.gpu.placement import Gpu, Placement, environment_of
from stackyard.system.errors import NothingToRunOn

CDI, RUNTIME, DEVICES = "cdi", "nvidia-runtime", "device-nodes"
LIBRARIES = "/usr/local/nvidia/lib64"
# Libraries of the driver that CUDA programs load, by the names they load them under.
REQUIRED = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
# Libraries that only some drivers have; a driver that lacks one does not need it.
OPTIONAL = (
    "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so",
    "libcudadebugger.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-opencl.so.1",
)
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True, kw_only=True)
class DriverFiles:
    """Hold the files of this machine's NVIDIA driver that containers need.

    Attributes:
        nodes: device nodes that exist.
        libraries: the real file behind each library, by the name programs load it under.
        programs: nvidia-smi and the like, by name.
    """

    version: str
    nodes: tuple[str, ...]
    libraries: Mapping[str, str]
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Access:
    """Hold what gives one container its GPUs, in the engine's terms.

    Attributes:
        requests: device requests, each a driver and the ids that it understands.
        binds: read-only files of the host by their place in the container.
        env: variables that the container needs to find them.
    """

    how: str
    devices: tuple[str, ...] = ()
    requests: tuple[tuple[str, tuple[str, ...]], ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeHardware:
    """Hold what a node on GPUs is started with beyond a container of CPU ranks.

    Attributes:
        env: this node's own settings: placement, driver and NCCL.
    """

    access: Access
    ipc: str
    env: Mapping[str, str]
    limits: Mapping[str, int]


# Pinned memory and registered buffers are locked memory; NVIDIA advises this for its images.
LIMITS = {"memlock": -1, "stack": 64 * 2**20}


def hardware(
    placement: Placement,
    way: str,
    driver: DriverFiles,
    path: str,
    settings: Mapping[str, str],
    infiniband: Sequence[str] = (),
) -> tuple[NodeHardware, ...]:
    """Return what each node of a placement is started with.

    Args:
        path: the image's LD_LIBRARY_PATH.
        settings: the caller's variables; they override generated ones.
        infiniband: device nodes that NCCL needs where it talks over InfiniBand.

    Raises:
        NothingToRunOn: the driver is incomplete on this machine.
    """
    found = []
    common = environment_of(placement)
    for node in placement.nodes:
        given = access(way, node.visible, driver, path)
        given = replace(given, devices=(*given.devices, *infiniband))
        env = {**given.env, **common, **node.env, **settings}
        found.append(NodeHardware(access=given, ipc=node.ipc, env=env, limits=LIMITS))
    return tuple(found)


def choose_way(engine: Mapping[str, object], cdi_kinds: Sequence[str]) -> str:
    """Return the best way that this engine offers.

    Args:
        engine: facts about the engine (`docker info`).
        cdi_kinds: kinds of the CDI specifications found on this machine.
    """
    runtimes = engine.get("Runtimes")
    if engine.get("CDISpecDirs") and "nvidia.com/gpu" in cdi_kinds:
        return CDI
    if isinstance(runtimes, Mapping) and "nvidia" in runtimes:
        return RUNTIME
    return DEVICES


def explain(way: str) -> str:
    """Return a phrase for people that says what a way is, and why it was chosen."""
    return {
        CDI: "CDI (the engine reads the specifications that nvidia-ctk made on this host)",
        RUNTIME: "the NVIDIA runtime (nvidia-container-toolkit is installed on this host)",
        DEVICES: "device nodes and the driver's libraries, passed one by one (the engine offers"
        " neither CDI of each GPU nor the NVIDIA runtime, and needs neither)",
    }[way]


def access(way: str, gpus: Sequence[Gpu], driver: DriverFiles, path: str) -> Access:
    """Return what a container is started with to see `gpus`.

    Args:
        path: the image's LD_LIBRARY_PATH.

    Raises:
        NothingToRunOn: a device node or a library of the driver is missing; names it.
    """
    if way == CDI:
        ids = tuple(f"nvidia.com/gpu={gpu.uuid}" for gpu in gpus)
        return Access(how=CDI, requests=(("cdi", ids),))
    if way == RUNTIME:
        env = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        return Access(how=RUNTIME, requests=(("nvidia", tuple(g.uuid for g in gpus)),), env=env)
    missing = missing_files(gpus, driver)
    if missing:
        raise NothingToRunOn(
            f"the NVIDIA driver {driver.version} is incomplete on this machine",
            why="\n".join(missing),
            hint="nvidia-modprobe -u makes the device nodes; the libraries come with the driver's"
            " own packages (libnvidia-compute, nvidia-utils), in the kernel module's version",
        )
    nodes = tuple(f"/dev/nvidia{gpu.minor}" for gpu in gpus)
    control = tuple(node for node in CONTROL_NODES if node in driver.nodes)
    binds = {f"{LIBRARIES}/{name}": real for name, real in sorted(driver.libraries.items())}
    # Triton before 3.5 links its helper with -lcuda, which looks for the name without a version.
    binds[f"{LIBRARIES}/libcuda.so"] = driver.libraries[REQUIRED[0]]
    binds |= {f"/usr/local/nvidia/bin/{name}": at for name, at in sorted(driver.programs.items())}
    # Triton asks ldconfig for libcuda otherwise, which does not know this folder.
    env = {"TRITON_LIBCUDA_PATH": LIBRARIES, **library_path(path)}
    return Access(how=DEVICES, devices=(*nodes, *control), binds=binds, env=env)


def library_path(path: str) -> dict[str, str]:
    """Return what LD_LIBRARY_PATH must be where the driver's libraries are bound; may be empty."""
    if LIBRARIES in path.split(":"):
        return {}
    return {"LD_LIBRARY_PATH": ":".join(part for part in (LIBRARIES, path) if part)}


def missing_files(gpus: Sequence[Gpu], driver: DriverFiles) -> list[str]:
    """Return a line for each file that `device-nodes` needs and this machine lacks."""
    needed = [*(f"/dev/nvidia{gpu.minor}" for gpu in gpus), *CONTROL_NODES[:2]]
    missing = [f"{node} is not there" for node in needed if node not in driver.nodes]
    for name in REQUIRED:
        if name not in driver.libraries:
            missing.append(f"{name} is not where the loader looks (ldconfig -p)")
    for name, real in sorted(driver.libraries.items()):
        found = real.rpartition(".so.")[2]
        if found.count(".") >= 1 and found != driver.version:
            missing.append(f"{name} is of driver {found}, the kernel module is {driver.version}")
    return missing
