"""Hold bases, fixes and stacks as they are declared, before any resolution.

Owns the shape of the definitions and nothing else; `definitions.load` fills them from YAML.

Over 300 lines: values only, all that is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

# How many GPUs a smoke can have: each gets an equal part of every batch of 8 or 16 samples.
SMOKE_GPUS = (2, 4, 8)
SMOKE_GPUS_WORDS = f"{', '.join(map(str, SMOKE_GPUS[:-1]))} or {SMOKE_GPUS[-1]}"


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Hold how a base is made here from a distribution's packages."""

    suite: str
    packages: tuple[str, ...]
    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostBase:
    """Hold how a base is made from files of the machine that it is made on.

    Attributes:
        paths: folders, files and links that are carried, with all that is below; shell patterns.
        exclude: shell patterns of what is left out of them, by whole path or by last name.
        keep: patterns of what stays, whatever `exclude` says.
        distributions: Python distributions that are carried, with all that they require; every
            other distribution of that Python stays behind.
    """

    paths: tuple[str, ...]
    exclude: tuple[str, ...]
    keep: tuple[str, ...]
    distributions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Hold one measured or published fact about a base, with its source."""

    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Base:
    """Hold the declaration of an image that stacks are built on.

    Attributes:
        name: the word that `--base` takes; the name of its file.
        summary: one line about it.
        device: what its images compute on.
        python: version of its Python, such as `3.11`.
        platform: operating system and processor, such as `linux/amd64`.
        distribution: distribution and release, such as `debian/bookworm`; its package sources are
            taken from a machine that runs the same.
        entrypoint: first words of every container's command.
        bootstrap: how the base is made from a distribution's packages.
        facts: what is known of the base, such as its CUDA, driver and disk, with sources.
        env: variables of every image on the base.
        reference: image to pull, or the local name of a bootstrapped one.
        digest: digest of the image to pull, from the base's lock; empty without a lock.
        never_built: why no image has been built on it yet; empty once one has.
        torch: requirements of the layer that all stacks share, when the base has none itself.
        torch_layers: patterns of names of those of `torch` that are installed in earlier layers of
            their own, since engines fetch and unpack several layers at the same time.
        torch_index: package index that holds `torch` when the caller's own do not.
        provides: distributions inside the base that are never replaced, with their versions. A host
            base may give less of a version: `2.5` stands for any 2.5.x, empty for any.
        host: how the base is made from the files of a machine.
        given_system: wanted system packages that the base has already.
        unpack: distribution whose binary packages are unpacked over the base, because its own
            package sources cannot be used; empty where packages are installed.
        replaceable: distributions inside a pulled base that a lock may replace, against the rule.
        unpack_with: packages that the unpacked ones need and the base lacks.
    """

    name: str
    summary: str
    reference: str
    device: str
    python: str
    platform: str
    distribution: str
    entrypoint: tuple[str, ...]
    never_built: str
    bootstrap: Bootstrap | None
    torch: tuple[str, ...]
    torch_index: str
    provides: Mapping[str, Fact]
    facts: Mapping[str, Fact]
    env: Mapping[str, str]
    torch_layers: tuple[tuple[str, ...], ...] = ()
    host: HostBase | None = None
    given_system: tuple[str, ...] = ()
    unpack: str = ""
    unpack_with: tuple[str, ...] = ()
    replaceable: tuple[str, ...] = ()
    digest: str = ""

    @property
    def pulled(self) -> bool:
        """Return whether it comes from a registry, and is not made on this machine."""
        return self.bootstrap is None and self.host is None

    @property
    def image(self) -> str:
        """Return the image that stacks are built on, by its digest where that is locked."""
        return f"{self.repository}@{self.digest}" if self.digest else self.reference

    @property
    def repository(self) -> str:
        """Return the reference without tag and digest."""
        path, slash, name = self.reference.partition("@")[0].rpartition("/")
        return f"{path}{slash}{name.partition(':')[0]}"

    @property
    def provided(self) -> dict[str, str]:
        """Return versions of the distributions that are never replaced, by canonical name."""
        return {canonicalize_name(name): fact.value for name, fact in self.provides.items()}

    @property
    def disk_bytes(self) -> int:
        """Return the bytes that a first build takes where the engine keeps images; 0 if unknown."""
        fact = self.facts.get("disk")
        return int(fact.value.split()[0]) * 2**30 if fact and fact.value else 0


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Hold a pattern to replace in one file, with the number of matches that must be found."""

    file: str
    pattern: str
    replacement: str
    count: int
    fixed: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Hold what a fix does; every part may be empty.

    Attributes:
        add: texts of new modules, by their path below site-packages.
        without: pins with hashes, as in a lock, of the wheels that a proof without the fix installs
            in place of `override` and `exclude`.
    """

    stage: str
    replace: tuple[Replacement, ...]
    add: Mapping[str, str]
    env: Mapping[str, str]
    build_env: Mapping[str, str]
    override: tuple[str, ...]
    exclude: tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Hold a command that fails with the recorded symptom without the fix and passes with it."""

    command: tuple[str, ...]
    fails_with: str
    seconds: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """Hold one replacement of a fix that needs several, with the witness that fails without it.

    Attributes:
        replacement: its number among the remedy's replacements, from 1.
    """

    replacement: int
    witness: Witness


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Hold one known fault of a package: where it applies, what shows it, when its record goes.

    Attributes:
        id: its name; the name of its file.
        package: the distribution that has the fault.
        symptom: what a user sees, and after which command.
        why: the cause.
        upstream: where it was reported; `none found` where no thread is known.
        witness: a command that fails with the symptom without the fix, and passes with it.
        remove_when: what must happen before the record is removed.
    """

    id: str
    package: str
    symptom: str
    why: str
    upstream: str
    versions: Mapping[str, str]
    python: str
    devices: tuple[str, ...]
    witness: Witness
    remove_when: str


@dataclass(frozen=True, kw_only=True)
class Fix(Recorded):
    """Hold one recorded repair.

    Attributes:
        remedy: what is replaced, added or installed in place of something else.
        places: of a remedy with several replacements, the witness of each.
    """

    remedy: Remedy
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limit(Recorded):
    """Hold what a package cannot do, or does in a way that nobody expects; it stays unchanged.

    Attributes:
        stacks: stacks in whose images the limit is proven.
        instead: what Stackyard does, or what to type.
        witness: a command that fails with the symptom when its last word is `wrong`, and passes
            with `right`, the way of `instead`.
    """

    stacks: tuple[str, ...]
    instead: str


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """Hold a distribution without a usable wheel, built from its sdist in a stage of its own.

    Attributes:
        package: the distribution that is built.
        version: its exact version.
        env: variables of the build.
        requires: exact requirements of the build.
        compiler: whether a C++ compiler and the Python headers are needed.
        torch: whether torch must be importable during the build.
        fixes: fixes of stage `source`, applied before the build.
    """

    package: str
    version: str
    requires: tuple[str, ...]
    compiler: bool
    torch: bool
    env: Mapping[str, str]
    fixes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Hold one way of spreading the same training over ranks.

    Attributes:
        ranks: number of training processes (one a GPU), spread evenly over the nodes.
        grows: whether it takes all GPUs where there are more, a multiple of `ranks`.
        args: arguments of the program in this layout, after the smoke's.
        launcher: what starts its ranks; the smoke's by default.
        options: the launcher's own options, such as `zero_stage`.
        tolerance: largest allowed difference of a logged loss; the smoke's by default.
        fused: parts that must be fused on every rank; None for the smoke's.
    """

    name: str
    ranks: int
    args: tuple[str, ...]
    launcher: str
    options: Mapping[str, str]
    tolerance: float | None = None
    fused: tuple[str, ...] | None = None
    grows: bool = False


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """Hold the training run that judges an image.

    Attributes:
        launcher: what starts the ranks.
        env: variables of the training.
        prepare: a command that is run once, on the first node, before all trainings.
        program: a Python file or a console script, and its arguments. Braces become folders that
            all nodes share (`{text}`, `{data}`, `{save}`, `{record}`) or numbers (`{updates}`,
            `{save_at}`, `{horizon}`, which is never reached, `{ranks}`, and `{gpus}`, the ranks
            of the largest layout, with `{gpus/2}`).
        layouts: ways of spreading the training over ranks, by name; `{ranks}` in a name becomes
            their number.
        updates: optimizer updates that are judged; at least 40, the default.
        save_at: the update whose checkpoint the killed run is resumed from; 20 by default.
        reference: the layout of one process that parity compares the others with.
        resume: the layout whose training is killed after its last judged update, and resumed.
        tolerance: largest allowed absolute difference of a logged loss; 0.001 by default.
        args: arguments of the program on this kind of device, before a layout's own.
        device: what the ranks compute on: `cpu` or `cuda`.
        fused: parts that must be fused on every rank, on GPUs only; a layout may name others.
        start_seconds: time within which every rank must have joined; 90 by default, and up to four
            times as long where others use the CPUs of the machine that runs the smoke.
        stall_seconds: longest silence of a running training; 60 by default.
    """

    launcher: str
    env: Mapping[str, str]
    prepare: tuple[str, ...]
    program: tuple[str, ...]
    updates: int
    save_at: int
    reference: str
    resume: str
    tolerance: float
    start_seconds: int
    stall_seconds: int
    layouts: tuple[Layout, ...]
    args: tuple[str, ...] = ()
    device: str = "cpu"
    fused: tuple[str, ...] = ()

    @property
    def horizon(self) -> int:
        """Return a number of updates that a training does not reach before it is killed."""
        return self.updates * 10

    def layout(self, name: str) -> Layout:
        """Return the layout of a name; the loader has checked that it exists."""
        return next(layout for layout in self.layouts if layout.name == name)

    def over(self, gpus: int) -> Smoke:
        """Return the training on so many GPUs: layouts that grow take all of them."""
        counts = {
            layout.name: gpus if layout.grows else layout.ranks
            for layout in self.layouts
            if gpus >= layout.ranks and not (layout.grows and gpus % layout.ranks)
        }
        names = {name: name.replace("{ranks}", str(count)) for name, count in counts.items()}
        layouts = tuple(
            replace(layout, name=names[layout.name], ranks=counts[layout.name])
            for layout in self.layouts
            if layout.name in counts
        )
        reference, resume = names[self.reference], names[self.resume]
        return replace(self, layouts=layouts, reference=reference, resume=resume)

    def tolerance_of(self, name: str) -> float:
        """Return the largest allowed absolute difference of a logged loss in a layout."""
        own = self.layout(name).tolerance
        return self.tolerance if own is None else own

    def fused_of(self, name: str) -> tuple[str, ...]:
        """Return the parts that must be fused on every rank of a layout."""
        own = self.layout(name).fused
        return self.fused if own is None else own


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Hold one declared training environment.

    Attributes:
        name: the word that commands take; the name of its folder.
        summary: one line about it.
        packages: the distributions that it is about, with exact versions.
        builds: those that are built from source, each declared in `images/wheels/`.
        system: system packages that it wants besides.
        compiler_at_run_time: why its images hold a compiler; without the key they hold none.
        env: variables of its images.
        fixes: repairs of its packages, each declared in `images/fixes/`.
        imports: modules that the build imports once, as a first proof and for their bytecode.
        smoke: its training on CPU ranks, and below `gpus` that on GPUs.
        gpu_smoke: its training on GPUs; None where none is declared.
    """

    name: str
    summary: str
    packages: Mapping[str, str]
    builds: tuple[str, ...]
    system: tuple[str, ...]
    compiler_at_run_time: str
    env: Mapping[str, str]
    fixes: tuple[str, ...]
    imports: tuple[str, ...]
    smoke: Smoke
    gpu_smoke: Smoke | None = None

    def smoke_on(self, device: str, gpus: int = 0) -> Smoke | None:
        """Return the training that judges this stack on a kind of device.

        Args:
            gpus: how many GPUs it gets; 0 for two.
        """
        if device == "cpu":
            return self.smoke
        return self.gpu_smoke.over(gpus or SMOKE_GPUS[0]) if self.gpu_smoke else None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Hold a pattern of files that packages bring and images leave out.

    Attributes:
        path: pattern of files and folders, below the folder of the Python packages.
        kept: patterns of what stays although `path` names it, each with its reason.
    """

    path: str
    why: str
    kept: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Hold what every image has, whatever its stack.

    Attributes:
        system: system packages of every image.
        build_system: system packages of the stages that compile.
        text_packages: packages with the text that smokes train on, unpacked into every image.
        env: variables of every image.
        left_out: files that packages bring and images leave out, with the reasons.
        stack_system: system packages that single stacks want besides.
    """

    system: tuple[str, ...]
    build_system: tuple[str, ...]
    text_packages: tuple[str, ...]
    env: Mapping[str, str]
    left_out: tuple[LeftOut, ...] = ()
    stack_system: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Hold one known failure of a build or a training, recognised by what it prints.

    Attributes:
        id: its name; the name of its file.
        title: one line that names it.
        cause: why it happens.
        kind: `cause` (what must be repaired), `consequence` (of something that went wrong
            elsewhere) or `remark` (nothing failed, but it could be better).
        steps: where it can occur: `build` (resolving, fetching, building), `run` (nodes, trainings,
            checks), `registry`. It is recognised nowhere else.
        any_of: regular expressions of which one must be found, each within one line.
        all_of: regular expressions that must all be found.
        remedy: what to type or change.
        brings: ids of failures that follow from this one and are not shown beside it.
        threads: where it was reported.
    """

    id: str
    title: str
    kind: str
    steps: tuple[str, ...]
    any_of: tuple[str, ...]
    all_of: tuple[str, ...]
    cause: str
    remedy: str
    brings: tuple[str, ...]
    threads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Hold what healthy GPUs of one model reach in one measurement.

    Attributes:
        kind: what was measured, and its unit, as in `allreduce_gb_s`; more is better.
        ranks: processes that measured together, one a GPU.
        bytes: size of the message; 0 where there is none.
        value: the median of `count` measurements, which lie between `low` and `high`.
        bound: a GPU below this is bad.
        source: the reports that hold the measurements.
        field: where in a report each of them stands.
    """

    kind: str
    ranks: int
    bytes: int
    value: float
    low: float
    high: float
    count: int
    bound: float
    source: tuple[str, ...]
    field: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Hold what is known of one model of GPU.

    Attributes:
        gpus: the driver's names of the model.
        measures: what healthy GPUs reach, each with its spread, its bound and its reports.
        not_measured: kinds that no report holds, each with what is missing.
    """

    name: str
    gpus: tuple[str, ...]
    measures: tuple[Measure, ...]
    not_measured: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """Hold everything declared under `images/`, checked."""

    common: Common
    bases: Mapping[str, Base]
    fixes: Mapping[str, Fix]
    wheels: Mapping[str, Wheel]
    stacks: Mapping[str, Stack]
    failures: Mapping[str, Failure] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    locks: Mapping[str, str] = field(default_factory=dict)
