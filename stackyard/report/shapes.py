"""Declare the JSON of reports: smokes, benches, proofs, certifications and comparisons.

Owns which keys a report has and of which kind (docs/schemas, docs/reference/report.md). The
functions that make reports return these types, so mypy holds both together. Types only. Keys that
may be missing are those of some reports, or those that older reports lack.

Over 300 lines: types only, one for each kind of object.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from stackyard.build.locks.change import MoveValue
from stackyard.gpu.transport import PathValue
from stackyard.validate.checks import OutcomeWord
from stackyard.validate.diagnose import DiagnosisValue

# A number, or "nan", "inf" or "-inf", which JSON lacks.
Number = float | Literal["nan", "inf", "-inf"]
# An update with its loss or speed: a list of two in JSON.
Point = Annotated[list[Any], tuple[int, Number]]
Rate = Annotated[list[Any], tuple[int, float]]


class SourceValue(TypedDict):
    """Hold a tree of users' own code that an image was built from."""

    package: str
    origin: str
    revision: str
    commit: str
    dirty: bool
    digest: str
    submodules: list[str]
    version: str
    files: int
    short: str


class BaseValue(TypedDict):
    """Hold what decides the content of the base of an image.

    Attributes:
        digest: of its layers (OCI's ChainID); of a pulled base, of its configuration.
        packages: of the index of its Debian packages; empty where it has none.
    """

    digest: str
    packages: str


class ImageParts(TypedDict, total=False):
    """Hold what only some images have: those that were looked into, those of users' own code.

    Attributes:
        base: what the recipe counts of it; older reports lack this.
        installed: versions by name, as found in node 1, of `python` and `debian`.
        despite: fixes that were left out.
    """

    base: BaseValue

    installed: dict[str, dict[str, str]]
    sources: list[SourceValue]
    despite: list[str]


class ImageValue(ImageParts):
    """Hold the image of a run.

    Attributes:
        recipe: hash of everything that decides the content.
        packages: versions by name, as locked; empty where the base alone knows it.
    """

    id: str
    tags: list[str]
    recipe: str
    size_bytes: int
    fixes: list[str]
    packages: dict[str, str]


class _CheckValueParts(TypedDict, total=False):
    """Hold what some or older reports lack."""

    why: str


class CheckValue(_CheckValueParts):
    """Hold a check; its figures are its own (docs/reference/report.md)."""

    name: str
    outcome: OutcomeWord
    measured: Any
    expected: Any


class MadeValue(TypedDict):
    """Hold what made a report.

    Attributes:
        command: as typed, without values of variables and without folders.
        version: of Stackyard.
        commit: of the project; empty without git.
        dirty: whether the project had uncommitted changes.
    """

    command: str
    version: str
    commit: str
    dirty: bool


class _PhaseParts(TypedDict, total=False):
    """Hold what older reports lack: when a phase began, in seconds after the run's start."""

    at: float


class PhaseValue(_PhaseParts):
    """Hold one timed part of a run."""

    name: str
    seconds: float


class DeviceValue(TypedDict):
    """Hold one GPU."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


class GpusValue(TypedDict):
    """Hold the GPUs of a smoke, their placement, and what was measured on them.

    Attributes:
        bare: the same measurements on the bare host.
        no_bare: why there are none.
    """

    placement: str
    why: str
    warnings: list[str]
    transport: str
    settings: dict[str, str]
    driver: str
    devices: list[DeviceValue]
    measured: dict[str, Any]
    bare: dict[str, Any]
    no_bare: str


class SpeedValue(TypedDict):
    """Hold the speed of a layout."""

    updates_s: Number


class _CurveComparisonParts(TypedDict, total=False):
    """Hold what some or older reports lack."""

    updates: int
    largest_difference: Number | None
    at_update: int | None
    parts_at: int | None
    tolerance: float


class CurveComparison(_CurveComparisonParts):
    """Compare the losses of one layout.

    Attributes:
        updates: how many were compared.
        parts_at: the first update beyond the tolerance.
        tolerance: the later report's own.
    """

    layout: str
    outcome: OutcomeWord
    why: str


class ResumeComparison(TypedDict):
    """Compare the check `resume_equal`; it fails only where it passed before."""

    outcome: OutcomeWord
    before: OutcomeWord
    after: OutcomeWord
    why: str


SpeedWord = Literal["not judged", "slower", "faster", "as before"]


class SpeedRow(TypedDict):
    """Compare the speed of one layout."""

    layout: str
    before: float
    after: float
    ratio: Number
    says: SpeedWord


class SpeedComparison(TypedDict):
    """Compare speeds, where both machines are of one kind."""

    judged: bool
    why: str
    layouts: list[SpeedRow]


class SizeComparison(TypedDict):
    """Compare the bytes of both images."""

    before: int
    after: int
    difference: int


class MovesValue(TypedDict):
    """Hold the packages that differ between two images."""

    added: dict[str, str]
    removed: dict[str, str]
    moved: list[MoveValue]


PackageComparison = TypedDict(
    "PackageComparison",
    {
        "from": Literal["installed", "locked"],
        "why": str,
        "python": MovesValue,
        "debian": MovesValue | None,
    },
)


class ComparedReport(TypedDict):
    """Name one of two compared reports."""

    stack: str
    base: str
    outcome: OutcomeWord
    started: str
    run: str
    image: str
    recipe: str
    size_bytes: int


class Comparison(TypedDict):
    """Compare two smokes of one stack (docs/reference/report.md).

    Attributes:
        changed: what else is not as it was: base, fixes, commands, machine, recipe.
        suspects: what moved, likeliest first; empty where nothing is wrong.
    """

    outcome: OutcomeWord
    why: str
    before: ComparedReport
    after: ComparedReport
    curves: list[CurveComparison]
    resume: ResumeComparison
    speeds: SpeedComparison
    size: SizeComparison
    packages: PackageComparison
    changed: list[str]
    suspects: list[str]


class HostValue(TypedDict):
    """Hold one host of a run over hosts.

    Attributes:
        image: id of the image that its nodes ran, as its engine has it.
        mbit_s: speed of the interface between nodes; 0 where the kernel reports none.
        ports: its InfiniBand and RoCE ports, with device, rate and state.
        driver: version of the NVIDIA driver; empty where none is loaded.
        gpus: those that ranks computed on.
    """

    name: str
    nodes: list[str]
    image: str
    address: str
    interface: str
    mbit_s: int
    ports: list[str]
    driver: str
    gpus: list[DeviceValue]


class HostsValue(TypedDict):
    """Hold the hosts of a run and what joined them.

    Attributes:
        network: how the network between nodes was chosen.
        nccl: what NCCL was to use between the hosts; empty on CPU ranks.
    """

    network: str
    nccl: str
    hosts: list[HostValue]


class SlurmValue(TypedDict):
    """Hold the job of a smoke or bench on Slurm.

    Attributes:
        job: its number.
        runtime: how its nodes entered the image (docs/howto/slurm.md).
    """

    job: str
    runtime: str


class SmokeParts(TypedDict, total=False):
    """Hold what only some smokes have.

    Attributes:
        ranks: where CPU ranks trained in an image for GPUs.
        hosts: of a smoke over hosts, or the nodes of one on Slurm.
        slurm: of a smoke on Slurm.
        not_applicable: checks of something that this launch does not have, and why.
        against: after `invoke smoke --against`.
    """

    made: MadeValue
    ranks: str
    hosts: HostsValue
    slurm: SlurmValue
    not_applicable: dict[str, str]
    gpus: GpusValue
    speeds: dict[str, SpeedValue]
    against: Comparison


class SmokeReport(SmokeParts):
    """Hold the record of one smoke.

    Attributes:
        started: UTC, ISO 8601.
        seconds: wall time of the smoke, without the build.
        run: label `stackyard.run` of its containers, network and volume.
        nodes: names, in rank order.
        curves: by layout, pairs of update and loss.
        commands: by layout, what node 1 ran.
        last_lines: last lines of output by layout, where the outcome is not `passed`.
    """

    schema: Literal["stackyard.report/1", "stackyard.report/2"]
    kind: Literal["smoke"]
    stack: str
    base: str
    outcome: OutcomeWord
    started: str
    seconds: float
    build_seconds: float
    run: str
    image: ImageValue
    host: dict[str, str]
    nodes: list[str]
    checks: list[CheckValue]
    diagnoses: list[DiagnosisValue]
    phases: list[PhaseValue]
    curves: dict[str, list[Point]]
    commands: dict[str, list[str]]
    last_lines: dict[str, str]


class BenchGpus(TypedDict, total=False):
    """Hold the GPUs of a bench; empty on CPU ranks."""

    placement: str
    driver: str
    way: str
    settings: dict[str, str]
    devices: list[DeviceValue]


class ModelValue(TypedDict):
    """Hold the dimensions of the model of a bench, and the work of one token."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    context: int
    multiplied: int
    flops_per_token: float


class PeakValue(TypedDict):
    """Hold the peak speed of a GPU, with its source."""

    flops: float
    source: str


class SideValue(TypedDict):
    """Hold one side of a bench, and the side that it is held against."""

    what: str
    env: dict[str, str]
    args: list[str]
    against: str


class _ResultValueParts(TypedDict, total=False):
    """Hold what some or older reports lack."""

    mean: float | None
    mean_ratio: float | None
    start_seconds: dict[str, float | None]
    pause_seconds: float | None
    spent: SpentValue | None


class SpentValue(TypedDict):
    """Hold what an update's time goes into, in seconds, as the mean of all GPUs."""

    update: float
    watched: float
    compute: float
    alone: float
    idle: float
    beside: float


class ResultValue(_ResultValueParts):
    """Hold the figures of one side on some ranks; null where there is none."""

    side: str
    ranks: int
    speed: float | None
    speeds: list[float]
    ratio: float | None
    scaling: float | None
    mfu: float | None
    peak_bytes: int | None


class PauseValue(TypedDict):
    """Hold the longest pause of a training, and the update before it."""

    seconds: float
    at: int


class _PlayedValueParts(TypedDict, total=False):
    """Hold what older benches lack."""

    group: int
    label: str
    gpus: list[int]
    mean: float | None
    start_seconds: dict[str, float | None]
    pause: PauseValue | None
    transport: list[PathValue]


class PlayedValue(_PlayedValueParts):
    """Hold one training of a bench.

    Attributes:
        windows: pairs of update and speed up to it.
        losses: pairs of update and loss.
    """

    side: str
    ranks: int
    round: int
    failed: bool
    why: str
    seconds: float
    speed: float | None
    windows: list[Rate]
    losses: list[Point]
    peak_bytes: int | None
    command: list[str]


class _BenchReportParts(TypedDict, total=False):
    """Hold what older benches lack, and what only those over hosts or on Slurm have.

    Attributes:
        hosts: of a bench over hosts, or the nodes of one on Slurm.
        slurm: of a bench on Slurm.
    """

    made: MadeValue
    available: int
    hosts: HostsValue
    slurm: SlurmValue


class BenchReport(_BenchReportParts):
    """Hold the record of one bench (docs/howto/bench.md)."""

    schema: Literal["stackyard.bench/1", "stackyard.bench/2"]
    kind: Literal["bench"]
    stack: str
    base: str
    outcome: OutcomeWord
    started: str
    seconds: float
    run: str
    what: str
    unit: str
    image: ImageValue
    host: dict[str, str]
    gpus: BenchGpus
    model: ModelValue
    peak: PeakValue | None
    no_mfu: str
    batch: int
    updates: int
    warm: int
    window: int
    rounds: int
    counts: list[int]
    sides: dict[str, SideValue]
    results: list[ResultValue]
    runs: list[PlayedValue]
    checks: list[CheckValue]
    diagnoses: list[DiagnosisValue]
    phases: list[PhaseValue]
    last_lines: dict[str, str]


class TemplateFigures(TypedDict):
    """Hold the speed and memory of a template; null where they are not known."""

    updates_s: float | None
    mean_updates_s: float | None
    tokens_s: float | None
    peak_bytes: int | None
    mfu: float | None


class TemplatePlain(TypedDict):
    """Hold a plain loop of the same model and batches, and the template's share of its tokens/s."""

    what: str
    of_plain: float | None
    updates: int
    updates_s: float | None
    tokens_s: float | None
    peak_bytes: int | None


class TemplateCost(TypedDict):
    """Hold the template without a part, waits for the host or both: they may cost its speed."""

    label: str
    what: str
    of_plain: float | None
    tokens_s: float | None


class TemplateBeside(TypedDict):
    """Hold the plain loop beside a template, or why there is none, and what may cost the rest."""

    plain: TemplatePlain | None
    no_plain: str
    costs: list[TemplateCost]


class TemplateLaunch(TypedDict):
    """Hold one launch: killed, resumed, of the plain loop, or without a part of the template."""

    label: str
    failed: bool
    why: str
    seconds: float
    losses: list[Point]
    command: list[str]


class TemplateSpeed(TypedDict):
    """Hold a template's figures, with what its MFU is computed from."""

    model: ModelValue | None
    peak: PeakValue | None
    no_mfu: str
    figures: TemplateFigures


class TemplateReport(TemplateSpeed, TemplateBeside):
    """Hold the record of one template at its full or reduced size (docs/howto/templates.md)."""

    made: MadeValue
    schema: Literal["stackyard.template/1"]
    kind: Literal["template"]
    stack: str
    base: str
    example: str
    outcome: OutcomeWord
    started: str
    seconds: float
    run: str
    what: str
    size: str
    ranks: Literal["cpu", "cuda"]
    count: int
    image: ImageValue
    host: dict[str, str]
    gpus: BenchGpus
    updates: int
    save_at: int
    kill_after: int
    values: dict[str, str]
    tokens: int
    losses: list[Point]
    valid: list[Point]
    launches: list[TemplateLaunch]
    checks: list[CheckValue]
    diagnoses: list[DiagnosisValue]
    phases: list[PhaseValue]
    last_lines: dict[str, str]


class WitnessRun(TypedDict):
    """Hold one run of a witness."""

    code: int
    seconds: float


_Proof = TypedDict(
    "_Proof",
    {
        "id": str,
        "kind": str,
        "verdict": str,
        "symptom": str,
        "expected": str,
        "with": WitnessRun,
        "without": WitnessRun | None,
    },
)


class ProofValue(_Proof, total=False):
    """Hold one proof; `why` and `last_lines` where it failed."""

    why: str
    last_lines: str


class ProveReport(TypedDict):
    """Hold the record of all proofs of one image (docs/reference/fixes.md).

    Attributes:
        elsewhere: why declared fixes and limits have no proof on this base.
    """

    schema: Literal["stackyard.prove/1"]
    kind: Literal["prove"]
    stack: str
    base: str
    outcome: OutcomeWord
    started: str
    seconds: float
    run: str
    image: ImageValue
    host: dict[str, str]
    proofs: list[ProofValue]
    elsewhere: dict[str, str]


class ProofRecord(TypedDict):
    """Hold what is kept of a proof in `images/<base>.proofs.json`.

    Attributes:
        failed: the line of the symptom.
        recorded: the date.
        of: digest of remedy, witness and versions.
    """

    kind: str
    failed: str
    passed: bool
    versions: dict[str, str]
    seconds: float
    recorded: str
    of: str


# By stack, and by the id of the fix or limit.
Proofs = dict[str, dict[str, ProofRecord]]


class Curve(TypedDict):
    """Hold `images/<stack>/curve.json`: losses of CPU ranks that those of GPUs are held against."""

    layout: str
    recorded: str
    torch: str
    lock: str
    curve: list[Rate]


class EvidenceValue(TypedDict):
    """Hold one piece of verified evidence.

    Attributes:
        ratios: ratios to the bare host, by check.
    """

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


class CertifiedGpu(TypedDict):
    """Hold one GPU (or CPU rank) of a certification.

    Attributes:
        state: `good`, `suspicious` or `bad`.
        fingerprint: of its training alone, shortened; empty where that did not end.
        speeds: of its training alone, by kind.
    """

    name: str
    index: int
    model: str
    state: str
    why: str
    fingerprint: str
    speeds: dict[str, float]


class CertifiedHost(TypedDict):
    """Hold one host of a certification.

    Attributes:
        state: `good` or `bad`.
        health: findings, read after the trainings.
    """

    host: str
    state: str
    why: str
    gpus: list[CertifiedGpu]
    health: list[dict[str, Any]]


class FingerprintValue(TypedDict):
    """Hold the fingerprint of one model of GPU: digests of each update."""

    bits: list[str]
    compared_with: str


class ComparedValue(TypedDict):
    """Hold one measured speed and what it was compared with."""

    place: str
    kind: str
    ranks: int
    bytes: int
    value: Number | None
    against: float | None
    at_least: float | None
    outcome: str
    by: str


class LinkValue(TypedDict):
    """Hold the measured speed between two GPUs, in each direction."""

    ends: list[str]
    kind: str
    gb_s: float
    slow: bool


class TestedValue(TypedDict):
    """Hold one group of a round; hosts, or GPUs as `HOST:INDEX`."""

    names: list[str]
    bad: bool
    why: list[str]
    seconds: float
    last_lines: str


class FaultValue(TypedDict):
    """Hold what the groups named.

    Attributes:
        kind: `host`, `gpu`, `link` or `unexplained`.
        evidence: why the smallest bad group with all names was bad.
    """

    kind: str
    names: list[str]
    why: str
    evidence: str


class _CertifiedImageParts(TypedDict, total=False):
    """Hold what older certifications lack, and those that no host took part in.

    Attributes:
        recipe: hash of everything that decides the content.
        base: what the recipe counts of it.
    """

    recipe: str
    base: BaseValue


class CertifiedImage(_CertifiedImageParts):
    """Hold the image that all hosts had; its id is empty where no host took part."""

    id: str
    tag: str


class _CertifyParts(TypedDict, total=False):
    """Hold what older certifications lack."""

    made: MadeValue


class CertifyReport(_CertifyParts):
    """Hold the record of one certification of hosts.

    Attributes:
        unused: why hosts and GPUs that were asked for took no part, by name.
        fingerprints: by model of GPU.
        rounds: groups that were trained at the same time; first every host alone.
        to_do: what to type about what is bad.
    """

    schema: Literal["stackyard.certify/1"]
    kind: Literal["certify"]
    stack: str
    base: str
    outcome: OutcomeWord
    started: str
    seconds: float
    run: str
    image: CertifiedImage
    device: str
    hosts: list[CertifiedHost]
    unused: dict[str, str]
    checks: list[CheckValue]
    fingerprints: dict[str, FingerprintValue]
    compared: list[ComparedValue]
    links: list[LinkValue]
    rounds: list[list[TestedValue]]
    faults: list[FaultValue]
    to_do: list[str]
