"""Declare the requests of commands about hosts, clusters and the runs on them."""

from dataclasses import dataclass
from typing import Annotated

from stackyard.cli.option import (
    HOSTS,
    GpuBase,
    Grace,
    Hosts,
    Image,
    Job,
    Junit,
    Lease,
    On,
    Option,
    Overlays,
    RunName,
    Site,
    Stack,
    Words,
)

_GPUS = "0: CPU ranks; else the GPUs that the hosts' entries name (default: by the base)"
LEASE = 60.0
GRACE = 120.0
Runtime = Annotated[
    str, Option("on Slurm, how nodes enter the image: pyxis, squashfs, ... (default: site.yml's)")
]


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """Ask what a run would meet, here or on hosts."""

    hosts: Annotated[str, Option(f"look at hosts instead: {HOSTS}")] = ""
    stack: Annotated[str, Option("with --hosts: whose image is looked for")] = ""
    base: GpuBase = ""
    gpus: Annotated[
        int | None,
        Option("with --hosts: 0 looks for the image for CPU ranks (default: by the base)", least=0),
    ] = None


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """Ask for a mesh on hosts."""

    stack: Stack
    hosts: Hosts = ""
    name: RunName = ""
    base: GpuBase = ""
    gpus: Annotated[int | None, Option(_GPUS, least=0)] = None
    network: Annotated[
        str, Option("host, or the name of a docker network that spans all hosts")
    ] = "host"
    lease: Lease = LEASE
    days: Annotated[float, Option("how long its certificates last", "DAYS")] = 7.0
    image: Image = ""
    overlay: Overlays = ()


@dataclass(frozen=True, kw_only=True)
class CertifyRequest:
    """Ask which host, GPU or link is bad."""

    stack: Annotated[str, Option("the stack whose image is used", positional=True)]
    hosts: Hosts = ""
    name: Annotated[str, Option("the run's name, and its report's")] = "certify"
    base: GpuBase = ""
    gpus: Annotated[int | None, Option(_GPUS, least=0)] = None
    image: Image = ""
    against: Annotated[
        str,
        Option("whose fingerprints must be met, of this image: a report that passed, signed"
               " evidence of one, or a release that has such evidence", "REPORT"),
    ] = ""  # fmt: skip
    from_: Annotated[
        str, Option("with --against RELEASE: its repository (default: stackyard.toml's)",
                    "REPOSITORY"),
    ] = ""  # fmt: skip
    signers: Annotated[
        str, Option("with --against: whose evidence and releases are accepted"
                    " (default: allowed_signers)", "FILE"),
    ] = ""  # fmt: skip
    updates: Annotated[int, Option("of each training", least=4)] = 20
    hang: Annotated[
        float, Option("seconds without an update, beyond some updates' own time, that are a hang",
                      least=5)
    ] = 30.0  # fmt: skip
    lease: Lease = LEASE
    junit: Junit = ""

    @property
    def mesh(self) -> UpRequest:
        """Return the mesh to start."""
        return UpRequest(
            stack=self.stack, hosts=self.hosts, name=self.name, base=self.base, gpus=self.gpus,
            lease=self.lease, image=self.image,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Ask for a training: what runs, on which base, by which launcher."""

    example: Annotated[
        str,
        Option(
            "a training that comes with the stack, or the folder of a copy; -- ARGS for it", "NAME"
        ),
    ] = ""
    words: Words = ()
    launcher: Annotated[str, Option("how ranks are started (docs/howto/hosts.md)")] = ""
    set: Annotated[
        str, Option("values of the example, or options of the launcher", "NAME=VALUE,...")
    ] = ""
    save: Annotated[str, Option("folder of checkpoints in the nodes", "FOLDER")] = ""
    folder: Annotated[str, Option("working directory of a command in the nodes")] = ""
    env: Annotated[
        tuple[str, ...],
        Option("a variable of every process (docs/howto/hosts.md); several times", "NAME=VALUE"),
    ] = ()
    base: GpuBase = ""


@dataclass(frozen=True, kw_only=True)
class RunRequest(JobRequest):
    """Ask for a training on hosts or on a cluster, or for a copy of one to edit."""

    stack: Stack
    hosts: Hosts = ""
    name: RunName = ""
    gpus: Annotated[
        int | None,
        Option(
            "0: CPU ranks; for a mesh that is not up yet. With --on: GPUs of the whole job"
            " (default: by the base)",
            least=0,
        ),
    ] = None
    examples: Annotated[bool, Option("which there are: name, what, ranks, note")] = False
    write: Annotated[
        str,
        Option("instead of running: a folder to make with a copy of the example to edit", "FOLDER"),
    ] = ""
    per_node: Annotated[
        int, Option("CPU ranks on each node; nodes with GPUs have one for each", least=1)
    ] = 1
    include: Annotated[
        str, Option("nodes and slots that take part, as in node1:0,1@node2:0", "NODES")
    ] = ""
    exclude: Annotated[str, Option("nodes and slots that do not", "NODES")] = ""
    detach: Annotated[
        bool, Option("leave it running; invoke logs, status and stop reach it from anywhere")
    ] = False
    restarts: Annotated[
        int,
        Option(
            "start again this often: after a failure, or on the nodes that are left when one is"
            " lost",
            least=0,
        ),
    ] = 0
    grace: Grace = GRACE
    lease: Lease = LEASE
    on: On = ""
    nodes: Annotated[int | None, Option("with --on: how many nodes take part", least=1)] = None
    site: Site = ""
    runtime: Runtime = ""
    image: Annotated[
        str,
        Option(
            "an image by tag or id, in place of the stack's own (docs/howto/source.md);"
            " with --on: as the cluster names it"
        ),
    ] = ""
    overlay: Overlays = ()
    despite: Annotated[
        tuple[str, ...],
        Option("with --overlay: a fix that is not applied to your tree; several times", "FIX"),
    ] = ()
    accelerate_config: Annotated[
        str,
        Option("your own accelerate configuration, completed with hosts, ports and ranks", "FILE"),
    ] = ""
    out: Annotated[
        str,
        Option(
            "with --on slurm: folder for script and log, seen by all nodes (default: ./NAME)",
            "FOLDER",
        ),
    ] = ""

    @property
    def mesh(self) -> UpRequest:
        """Return the mesh to start where none is up."""
        return UpRequest(
            stack=self.stack, hosts=self.hosts, name=self.name, base=self.base, gpus=self.gpus,
            lease=self.lease, image=self.image, overlay=self.overlay,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportRequest(JobRequest):
    """Ask for the files of a job for a cluster."""

    cluster: Annotated[str, Option("slurm or kubernetes", positional=True)]
    stack: Stack
    nodes: Annotated[int | None, Option("how many nodes take part", least=1)] = None
    per_node: Annotated[
        int, Option("training processes on each node: GPUs, or CPU ranks", least=1)
    ] = 1
    gpus: Annotated[int | None, Option("GPUs of the whole job; 0 trains on CPU ranks", least=0)] = (
        None
    )
    image: Annotated[
        str, Option("the image, as the cluster names it; a path of the nodes (a squashfs file)")
    ] = ""
    runtime: Runtime = ""
    site: Annotated[
        str, Option("the cluster's settings (default: site.yml, if it is there)", "FILE")
    ] = ""
    name: Annotated[str, Option("the job's name (default: what runs and the time)")] = ""
    out: Annotated[str, Option("the folder to make (default: ./NAME)", "FOLDER")] = ""


@dataclass(frozen=True, kw_only=True)
class RunningRequest:
    """Ask about a run on hosts, or about a cluster's job."""

    hosts: Hosts = ""
    name: RunName = ""
    on: On = ""
    job: Job = ""
    site: Site = ""


@dataclass(frozen=True, kw_only=True)
class StatusRequest(RunningRequest):
    """Ask for the state of runs on hosts, or of a cluster's job."""

    watch: Annotated[
        bool,
        Option(
            "show it again and again, with utilization, power and memory of every GPU, until no"
            " job runs or Ctrl-C; with --json once"
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class StopRequest(RunningRequest):
    """Ask for the end of what runs in a mesh, or of a cluster's job."""

    grace: Grace = GRACE
    now: Annotated[bool, Option("end it at once, without time to save")] = False


@dataclass(frozen=True, kw_only=True)
class LogsRequest:
    """Ask for what a job said."""

    hosts: Hosts = ""
    name: RunName = ""
    job: Annotated[
        str,
        Option(
            "which of its jobs (the last); with --on: its number on Slurm, its name on Kubernetes"
        ),
    ] = ""
    follow: Annotated[
        bool, Option("go on until the job ends, line by line as they come", short="f")
    ] = False
    on: On = ""
    site: Site = ""


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """Ask for files on all hosts of a run, or for theirs here."""

    source: Annotated[
        str,
        Option("a file or folder of this machine; with --back a path in the nodes",
               positional=True),
    ]  # fmt: skip
    more: Annotated[tuple[str, ...], Option("another source; several times", "SOURCE")] = ()
    to: Annotated[
        str,
        Option(
            "folder in the nodes (in one of hosts.yml's folders); with --back one here", "FOLDER"
        ),
    ] = ""
    hosts: Hosts = ""
    name: RunName = ""
    back: Annotated[bool, Option("from the nodes to here")] = False
    include: Annotated[str, Option("with --back: only from these nodes, by comma", "NODES")] = ""
    checksum: Annotated[bool, Option("compare contents, and the copies with each other")] = False
    delete: Annotated[bool, Option("remove there what is not here")] = False
