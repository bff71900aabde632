"""Declare what each command prints with `--json`.

Owns the types of these answers; docs/schemas is made from them (`scripts/schemas`). The functions
of `cli/steps` that return such a type are held to it by mypy, the others by tests. Types only.

Over 300 lines: an object for each command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from stackyard.build.locks.change import LockChanged
from stackyard.build.locks.outdated import OutdatedStack
from stackyard.gpu.doctor import Finding
from stackyard.gpu.transport import PathValue
from stackyard.mesh.mounts import Mount
from stackyard.mesh.node_plan import NodePlan
from stackyard.mesh.sync import Copied
from stackyard.release.prune import Old
from stackyard.report.shapes import (
    BenchReport,
    CertifyReport,
    Comparison,
    EvidenceValue,
    ProveReport,
    SmokeReport,
    SourceValue,
    TemplateReport,
)
from stackyard.validate.checks import OutcomeWord
from stackyard.validate.diagnose import DiagnosisValue


class ErrorText(TypedDict):
    """Hold an error: what failed, why probably, and what to type next."""

    what: str
    why: str
    hint: str


class _Error(TypedDict):
    error: ErrorText


class Error(_Error, total=False):
    """Hold the answer of a command that ended with an error; its exit code is not 0.

    Attributes:
        diagnoses: known failures recognised in it; missing after an interrupt.
    """

    diagnoses: list[DiagnosisValue]


class ImageRow(TypedDict):
    """Hold one stack on one base.

    Attributes:
        image: its tag, where it is built.
        smoke: the outcome of the last smoke of this very image; empty for none.
        fixes: how many apply.
    """

    stack: str
    base: str
    summary: str
    locked: bool
    image: str
    id: str
    size_bytes: int
    smoke: str
    fixes: int


class BaseRow(TypedDict):
    """Hold a base as `invoke list` shows it."""

    base: str
    summary: str
    reference: str
    device: str
    never_built: str


class Listed(TypedDict):
    """Hold the answer of `invoke list`.

    Attributes:
        engine: its version; null where none answers.
    """

    engine: str | None
    images: list[ImageRow]
    bases: list[BaseRow]


# A value and the file that it is from; `from` is a word of Python.
Sourced = TypedDict("Sourced", {"value": str, "from": str})


class Shown(TypedDict):
    """Hold the answer of `invoke show`.

    Attributes:
        fixes: symptoms of the fixes that apply, by id.
        fixes_left_out: why others do not.
    """

    stack: str
    base: str
    summary: str
    reference: str
    never_built: str
    tag: str
    dockerfile: str
    locked: bool
    packages: dict[str, Sourced]
    provided: dict[str, Sourced]
    system: list[str]
    built_here: dict[str, str]
    environment: dict[str, Sourced]
    fixes: dict[str, str]
    fixes_left_out: dict[str, str]
    compiler_at_run_time: str
    facts: dict[str, Sourced]


class Changed(TypedDict):
    """Hold the files that were written, or that differ (`--check`)."""

    changed: list[str]


class MadeBase(TypedDict):
    """Hold the answer of `invoke base`."""

    base: str
    reference: str
    image: str
    made: bool
    size_bytes: int


class Bundled(TypedDict):
    """Hold the answer of `invoke bundle`.

    Attributes:
        bytes: by folder of the bundle.
    """

    base: str
    stacks: list[str]
    file: str
    size_bytes: int
    files: int
    bytes: dict[str, int]
    digest: str


class CarriedRelease(TypedDict):
    """Name one release in a folder for a site without a network."""

    release: str
    signer: str
    bytes: int


class Carried(TypedDict):
    """Hold the answer of `invoke bundle --images`."""

    folder: str
    bytes: int
    releases: list[CarriedRelease]


class BuiltParts(TypedDict, total=False):
    """Hold what only a build of users' own code has.

    Attributes:
        despite: fixes that were left out.
        repaired_there: fixes that a tree contains already, by package.
    """

    sources: list[SourceValue]
    despite: list[str]
    repaired_there: dict[str, list[str]]


class BuiltRow(BuiltParts):
    """Hold one image of a build."""

    stack: str
    base: str
    image: str
    tags: list[str]
    made: bool
    seconds: float
    size_bytes: int


class BuiltImages(TypedDict):
    """Hold the answer of `invoke build`."""

    images: list[BuiltRow]


class Locked(TypedDict):
    """Hold the answer of `invoke lock`.

    Attributes:
        rebuilt: stacks whose images will be built again, with their bases; besides the stack
            that was locked alone.
        stale: what to type for locks that are still to be made, by path.
    """

    changed: list[str]
    check: bool
    locks: list[LockChanged]
    rebuilt: dict[str, list[str]]
    stale: dict[str, str]


class Outdated(TypedDict):
    """Hold the answer of `invoke outdated`."""

    stacks: list[OutdatedStack]


class Smoked(TypedDict):
    """Hold the answer of `invoke smoke`."""

    outcome: OutcomeWord
    reports: list[SmokeReport]


class Benched(TypedDict):
    """Hold the answer of `invoke bench`."""

    outcome: OutcomeWord
    reports: list[BenchReport]


class BenchedTemplate(TypedDict):
    """Hold the answer of `invoke bench --example`."""

    outcome: OutcomeWord
    reports: list[TemplateReport]


class Proven(TypedDict):
    """Hold the answer of `invoke prove`."""

    outcome: OutcomeWord
    reports: list[ProveReport]


class Diagnosed(TypedDict):
    """Hold the answer of `invoke diagnose`.

    Attributes:
        known: how many failures could have been recognised.
    """

    file: str
    known: int
    diagnoses: list[DiagnosisValue]


class EndToken(TypedDict):
    """Hold the token at the end of a document; null without one."""

    token: str | None
    number: int | None


_Split = TypedDict("_Split", {"samples": int, "tokens left over": int}, total=False)


class Split(_Split):
    """Hold one split of data; only some stacks count samples."""

    documents: int
    tokens: int


_Counts = TypedDict("_Counts", {"unknown tokens": int, "blank lines": int, "bad lines": int})


class _EncodedParts(_Counts, total=False):
    folders: int


class Encoded(_EncodedParts):
    """Hold the answer of `invoke data`: its folder, and `data.json` in that.

    Attributes:
        folders: number of fairseq's sharded folders, where these were asked for.
        vocabulary: how many tokens there are.
        settings: what was asked for.
    """

    out: str
    stack: str
    splits: dict[str, Split]
    vocabulary: int
    dtype: str
    end: EndToken
    settings: dict[str, Any]


Converted = TypedDict(
    "Converted",
    {
        "out": str, "stack": str, "class": str, "parameters": int, "vocabulary": int,
        "tokenizer": bool,
    },
)  # fmt: skip
Converted.__doc__ = "Hold the answer of `invoke convert`: the folder, and the model in it."


class Examined(TypedDict):
    """Hold the answer of `invoke doctor`."""

    state: str
    findings: list[Finding]


class Route(TypedDict):
    """Hold the route from one host to another.

    Attributes:
        other_interface: the interface, where it is not the chosen one.
    """

    device: str
    via: str
    ping: str
    other_interface: str


class ExaminedHosts(TypedDict):
    """Hold the answer of `invoke doctor --hosts`: a table, and what hinders a run.

    Attributes:
        hosts: rows, by column.
        pairs: by host and other host.
        health: findings of each host that answers.
    """

    columns: list[str]
    hosts: list[dict[str, str]]
    remarks: list[str]
    ready: bool
    pairs: dict[str, dict[str, Route]]
    health: dict[str, list[Finding]]


class Up(TypedDict):
    """Hold the answer of `invoke up`: the mesh that stands.

    Attributes:
        until: when its certificates end, in seconds since the epoch.
    """

    format: int
    run: str
    stack: str
    base: str
    image: str
    nodes: list[NodePlan]
    network: str
    lease: float
    until: int
    why: str
    mounts: list[Mount]
    seconds: float


class ExampleRow(TypedDict):
    """Hold one training that comes with a stack.

    Attributes:
        reduced: values of its reduced size.
    """

    name: str
    summary: str
    ranks: str
    launcher: str
    note: str
    values: dict[str, str]
    reduced: dict[str, str]
    devices: list[str]


class Examples(TypedDict):
    """Hold the answer of `invoke run --examples`."""

    stack: str
    examples: list[ExampleRow]


class Written(TypedDict):
    """Hold the answer of `invoke run --write`."""

    folder: str
    files: list[str]


class _Job(TypedDict):
    name: str
    state: str


class JobValue(_Job, total=False):
    """Hold a job as its supervisor describes it; one that was detached has the first keys only.

    Attributes:
        code: exit code of the launcher; null while it runs.
        reason: why it failed, or was ended.
        ranks: what is known of each, by number.
        left: processes that the launcher left, by node.
        stopped: a controller asked for its end.
        update: the last update that a rank recorded; null where none does.
        hang: which rank is missing where others wait; empty while it gets on.
        loss: that of the last update; text where it is no finite number (`nan`, `inf`).
        updates_per_second: of about the last minute; null until it is known.
    """

    step: Any
    code: int | None
    reason: str
    started: float | None
    ended: float | None
    lease: float
    ranks: dict[str, Any]
    left: dict[str, Any]
    shown: Any
    stopped: bool
    update: int | None
    hang: str
    loss: float | str | None
    updates_per_second: float | None


class Ran(JobValue):
    """Hold the answer of `invoke run` on hosts.

    Attributes:
        lost: why contact was lost; empty if it was not.
        transport: what carried data between GPUs, by NCCL's log; empty on CPU ranks.
    """

    outcome: Literal["passed", "failed", "running"]
    lost: str
    warnings: list[str]
    transport: list[PathValue]


class ClusterJob(TypedDict):
    """Hold a job for a cluster."""

    on: str
    name: str
    stack: str
    base: str
    image: str
    nodes: int
    per_node: int
    device: str
    launcher: str


class Exported(ClusterJob):
    """Hold the answer of `invoke export`.

    Attributes:
        type: what to type on the cluster.
    """

    folder: str
    files: list[str]
    type: list[str]
    notes: list[str]


class StateValue(TypedDict):
    """Hold the state of a cluster's job, as `schedulers.client.State` describes it."""

    job: str
    state: str
    why: str
    code: int | None
    parts: list[str]
    started: int
    log: str


class _RanParts(TypedDict, total=False):
    state: str
    why: str
    code: int | None
    parts: list[str]
    started: int
    log: str
    diagnoses: list[DiagnosisValue]
    transport: list[PathValue]
    warnings: list[str]


class RanOnCluster(ClusterJob, _RanParts):
    """Hold the answer of `invoke run --on`; a detached job has no state yet."""

    outcome: Literal["passed", "failed", "running"]
    job: str


class ClusterState(StateValue):
    """Hold the answer of `invoke status --on` and `stop --on`."""

    on: str


class ClusterLine(TypedDict):
    """Hold one line of a cluster's job."""

    node: str
    text: str


class ClusterLogs(ClusterState):
    """Hold the answer of `invoke logs --on`."""

    lines: list[ClusterLine]


class RunRow(TypedDict):
    """Hold one run on hosts.

    Attributes:
        missing: nodes whose containers are gone.
        lost: why nodes were lost, by name.
        error: why its supervisor could not be asked.
    """

    run: str
    stack: str
    base: str
    image: str
    nodes: list[str]
    hosts: list[str]
    missing: list[str]
    lost: dict[str, Any]
    error: str
    until: int
    jobs: list[JobValue]


class GpuLoad(TypedDict):
    """Hold what one GPU does; a value is null where it cannot be read.

    Attributes:
        waits: it is busy and draws little power, as one that waits in a collective.
        unread: why it does not answer; empty where it does.
    """

    index: int
    name: str
    busy_percent: int | None
    power_watts: float | None
    power_limit_watts: float | None
    memory_used_gib: float | None
    memory_gib: float | None
    waits: bool
    unread: str


class HostLoad(TypedDict):
    """Hold what the GPUs of one host do.

    Attributes:
        unread: why they cannot be read, or why there is none; empty where they were.
    """

    host: str
    unread: str
    gpus: list[GpuLoad]


class Status(TypedDict):
    """Hold the answer of `invoke status`.

    Attributes:
        silent: hosts that do not answer.
    """

    runs: list[RunRow]
    silent: list[str]


class Watched(Status):
    """Hold the answer of `invoke status --watch`: the last look."""

    gpus: list[HostLoad]


class Logs(TypedDict):
    """Hold the answer of `invoke logs`; a line has `text`, and node and rank where known.

    Attributes:
        transport: what carried data between GPUs, of a job that has ended.
    """

    job: JobValue
    lines: list[dict[str, Any]] | None
    transport: list[PathValue]
    warnings: list[str]


class Synced(TypedDict):
    """Hold the answer of `invoke sync`."""

    copies: list[Copied]
    seconds: float


class Stopped(TypedDict):
    """Hold the answer of `invoke stop`: the job that was ended and how; empty for none."""

    stopped: str
    reason: str


class Down(TypedDict):
    """Hold the answer of `invoke down`: containers that are gone, hosts that were not reached."""

    removed: list[str]
    failed: list[str]


class EvidenceAnswer(TypedDict, total=False):
    """Hold the answer of `invoke evidence`; what it has depends on what was asked for.

    Attributes:
        signer: who signed it; after `--sign` the line for allowed signers.
        artifact: digest of the evidence in the registry (`--add`).
        again: whether the registry had it already (`--add`).
    """

    file: str
    kind: str
    outcome: str
    hardware: str
    gpus: list[str]
    driver: str
    placement: str
    ratios: dict[str, float]
    on_gpus: bool
    started: str
    image_id: str
    signer: str
    release: str
    digest: str
    artifact: str
    again: bool


class Accepted(TypedDict):
    """Hold why a vulnerability is accepted, and the last day of that."""

    until: str
    why: str


class Vulnerability(TypedDict):
    """Hold what an index knows of one package.

    Attributes:
        fixed: versions without it.
    """

    package: str
    version: str
    ids: list[str]
    fixed: list[str]
    accepted: Accepted | None


class AuditPart(TypedDict):
    """Hold the answer of one index.

    Attributes:
        packages: number of packages that were looked up.
        why: the reason for a part that was not run.
        skipped: packages that the index cannot be asked about.
    """

    name: str
    outcome: OutcomeWord
    packages: int
    why: str
    skipped: list[str]
    found: list[Vulnerability]


class AuditValue(TypedDict):
    """Hold what indexes know of the packages of an image."""

    day: str
    outcome: OutcomeWord
    parts: list[AuditPart]


class AuditedImage(TypedDict):
    """Hold the image that was looked at."""

    tag: str
    id: str


class Audited(AuditValue):
    """Hold the answer of `invoke audit`."""

    image: AuditedImage


class Publication(TypedDict):
    """Hold the answer of `invoke publish`.

    Attributes:
        attested: attestations that the key signed.
        unsigned: attestations that the key could not sign; the release's signature covers them.
        layers: digests and sizes.
        sent: bytes uploaded to the registry.
        held: bytes of layers that the registry had already.
        again: whether this image had been released before under that name.
        sizes: the size report.
        signer: the line for allowed signers.
        seen_on: hardware of the evidence.
    """

    name: str
    digest: str
    latest: str
    layers: list[dict[str, Any]]
    artifacts: list[str]
    sent: int
    held: int
    again: bool
    repository: str
    sizes: dict[str, Any]
    signer: str
    needs_gpus: bool
    seen_on: list[str]
    evidence: list[EvidenceValue]
    attested: list[str]
    unsigned: list[str]
    audit: AuditValue
    proven: bool
    seconds: float


class _ReleaseRow(TypedDict, total=False):
    signer: str
    created: str
    proven: bool
    digest: str
    bytes: int
    needs_gpus: bool
    evidence: list[EvidenceValue]
    evidence_refused: list[str]
    attested: list[str]


class ReleaseRow(_ReleaseRow):
    """Hold one release; one that cannot be verified has only its name and why."""

    name: str
    believed: bool
    why: str


class Releases(TypedDict):
    """Hold the answer of `invoke releases`."""

    repository: str
    releases: list[ReleaseRow]


class DifferenceValue(TypedDict):
    """Hold what differs at one path of a rebuilt image.

    Attributes:
        what: `missing`, `added`, or each of `kind`, `content`, `mode`, `owner`, `link`, `time` and
            `attributes` that differs.
        package: the package that has the file; empty where none has.
    """

    path: str
    what: list[str]
    package: str


class RebuiltValue(TypedDict):
    """Hold the result of building a release again.

    Attributes:
        files: number of files of the rebuilt image.
        packages: number of Debian packages that it was built from.
        packages_from: `release`, or `archive` where the registry has lost them.
        built_by: what built the release.
        rebuilt_by: what built it again.
    """

    outcome: OutcomeWord
    differences: list[DifferenceValue]
    files: int
    packages: int
    packages_from: str
    built_by: str
    rebuilt_by: str
    seconds: float


class VerifiedRelease(TypedDict):
    """Hold the answer of `invoke verify`; without `--rebuild` nothing was rebuilt."""

    repository: str
    release: str
    digest: str
    signer: str
    created: str
    proven: bool
    attested: list[str]
    needs_gpus: bool
    evidence: list[EvidenceValue]
    evidence_refused: list[str]
    rebuilt: RebuiltValue | None


class PulledHost(TypedDict):
    """Hold what one host has of a pull."""

    state: str
    seconds: float
    bytes: int
    digest: str
    why: str
    hint: str


class StartLine(TypedDict):
    """Hold a command that starts a release's file, and whether it was ever run."""

    line: str
    seen: bool


class PulledFile(TypedDict):
    """Hold a release's squashfs file; `path` is that of the first host."""

    path: str
    sha256: str
    bytes: int
    made_by: str
    start: dict[str, StartLine]


class _PulledParts(TypedDict, total=False):
    squashfs: PulledFile
    image_id: str
    signer: str
    proven: bool
    p50_seconds: float | None
    p99_seconds: float | None
    from_registry_bytes: int
    saved_bytes: int
    moved_bytes: int
    hosts: dict[str, PulledHost]


class Pulled(_PulledParts):
    """Hold the answer of `invoke pull`; onto this machine alone it has no hosts."""

    release: str
    digest: str
    seconds: float
    needs_gpus: bool
    evidence: list[EvidenceValue]
    evidence_refused: list[str]
    attested: list[str]


class Pruned(TypedDict):
    """Hold the answer of `invoke prune`, by host; with `--dry-run` nothing was removed."""

    removed: dict[str, list[Old]]
    old: dict[str, list[Old]]
    failed: list[str]


# By command; a command of several forms has several answers.
ANSWERS: Mapping[str, Any] = {
    "list": Listed,
    "show": Shown,
    "render": Changed,
    "base": MadeBase,
    "bundle": Bundled | Carried,
    "build": BuiltImages,
    "engine": dict[str, str],
    "lock": Locked,
    "outdated": Outdated,
    "smoke": Smoked,
    "bench": Benched | BenchedTemplate,
    "prove": Proven | Changed,
    "compare": Comparison,
    "diagnose": Diagnosed,
    "data": Encoded,
    "convert": Converted,
    "doctor": Examined | ExaminedHosts,
    "certify": CertifyReport,
    "up": Up,
    "run": Ran | Examples | Written | RanOnCluster,
    "export": Exported,
    "status": Status | Watched | ClusterState,
    "logs": Logs | ClusterLogs,
    "sync": Synced,
    "stop": Stopped | ClusterState,
    "down": Down,
    "publish": Publication,
    "evidence": EvidenceAnswer,
    "releases": Releases,
    "verify": VerifiedRelease,
    "pull": Pulled,
    "audit": Audited,
    "prune": Pruned,
}
