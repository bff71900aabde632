"""The declared things: bases, fixes, stacks. Frozen values, as loaded, before any resolution.

Owns the shape of the definitions and nothing else; `definitions.load` fills them from YAML.

Over 300 lines: values only, all that is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """A base made here out of a distribution's packages."""

    suite: str
    packages: tuple[str, ...]
    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostBase:
    """A base made out of files of the machine it is made on.

    Attributes:
        paths: folders, files and links that are carried, with all that is below; shell patterns.
        exclude: what is left out of them: shell patterns of whole paths, or of a last name.
        keep: patterns of what stays, whatever `exclude` says.
        distributions: roots of the Python distributions that are carried; what they require comes
            along, every other distribution of that Python stays behind.
    """

    paths: tuple[str, ...]
    exclude: tuple[str, ...]
    keep: tuple[str, ...]
    distributions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One measured or published fact about a base, with its source."""

    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Base:
    """The image that stacks are built on.

    Attributes:
        reference: image to pull, or the local name of a bootstrapped one.
        digest: that of the image to pull, as the base's lock has it; empty without a lock.
        never_built: why no image has been built on it yet; empty once one has.
        torch: requirements of the layer that all stacks share, when the base has none itself.
        torch_layers: what of that is installed in earlier layers of its own, by patterns of names:
            engines fetch and unpack several layers at the same time.
        torch_index: package index that holds them when the caller's own do not.
        provides: distributions inside the base that are never replaced, with their versions. Those
            of a host base may say less than there is: `2.5` stands for any 2.5.x, empty for any.
        host: how the base is made out of the files of a machine.
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
        """Whether it comes from a registry, and is not made on this machine."""
        return self.bootstrap is None and self.host is None

    @property
    def image(self) -> str:
        """The image that stacks are built on: by its digest where that is locked."""
        return f"{self.repository}@{self.digest}" if self.digest else self.reference

    @property
    def repository(self) -> str:
        """The reference without tag and digest."""
        path, slash, name = self.reference.partition("@")[0].rpartition("/")
        return f"{path}{slash}{name.partition(':')[0]}"

    @property
    def provided(self) -> dict[str, str]:
        """What is never replaced: declared versions by canonical name."""
        return {canonicalize_name(name): fact.value for name, fact in self.provides.items()}

    @property
    def disk_bytes(self) -> int:
        """Bytes that a first build takes where the engine keeps images; 0 where nobody knows."""
        fact = self.facts.get("disk")
        return int(fact.value.split()[0]) * 2**30 if fact and fact.value else 0


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A pattern replaced in one file, with the number of matches that must be found."""

    file: str
    pattern: str
    replacement: str
    count: int
    fixed: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What a fix does; every part may be empty.

    Attributes:
        add: texts of new modules, by their path below site-packages.
        without: wheels that are installed where `override` and `exclude` are not obeyed, for the
            proof: a pin with its hash each, as a lock has it.
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
    """A command that fails with the recorded symptom without the fix and passes with it."""

    command: tuple[str, ...]
    fails_with: str
    seconds: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place of a fix that is needed in several: without it alone its witness fails, too.

    Attributes:
        replacement: which of the remedy's replacements it is, from 1.
    """

    replacement: int
    witness: Witness


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One known fault of a package: where it applies, what shows it, when its record goes."""

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
    """One recorded repair."""

    remedy: Remedy
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limit(Recorded):
    """What a package cannot do, or does in a way that nobody expects; nothing is changed in it.

    Attributes:
        stacks: in whose images it is proven.
        instead: what Stackyard does, or what to type.
        witness: a command that fails with the symptom when its last word is `wrong`, and passes
            with `right`, the way of `instead`.
    """

    stacks: tuple[str, ...]
    instead: str


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A distribution without a usable wheel: built from its sdist in a stage of its own.

    Attributes:
        requires: the build's own requirements, exact.
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
    """One way of spreading the same training over ranks.

    Attributes:
        ranks: training processes, one a GPU (or CPU rank), spread evenly over the nodes.
        tolerance: largest allowed difference of a logged loss; None where the smoke's own holds.
        fused: parts that must be fused on every rank; None where the smoke's own hold.
    """

    name: str
    ranks: int
    args: tuple[str, ...]
    launcher: str
    options: Mapping[str, str]
    tolerance: float | None = None
    fused: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """The training run that judges an image.

    Attributes:
        updates: optimizer updates that are judged.
        save_at: the update whose checkpoint the killed run is resumed from.
        reference: the layout of one process that parity compares the others with.
        resume: the layout that is killed after its last judged update, and resumed.
        tolerance: largest allowed absolute difference of a logged loss.
        args: arguments of the program on this kind of device, before a layout's own.
        device: what the ranks compute on: `cpu` or `cuda`.
        fused: parts that must be fused on every rank; only on GPUs. A layout may say others.
        start_seconds: time within which every rank must have joined.
        stall_seconds: longest silence of a running training.
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
        """Updates of a training that is not to end by itself before it is killed."""
        return self.updates * 10

    def layout(self, name: str) -> Layout:
        """The layout of that name (the loader made sure that it exists)."""
        return next(layout for layout in self.layouts if layout.name == name)

    def tolerance_of(self, name: str) -> float:
        """Largest allowed absolute difference of a logged loss in a layout."""
        own = self.layout(name).tolerance
        return self.tolerance if own is None else own

    def fused_of(self, name: str) -> tuple[str, ...]:
        """Return the parts that must be fused on every rank of a layout."""
        own = self.layout(name).fused
        return self.fused if own is None else own


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One declared training environment.

    Attributes:
        smoke: its training on CPU ranks.
        gpu_smoke: its training on GPUs; None where nobody has declared one.
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

    def smoke_on(self, device: str) -> Smoke | None:
        """The training that judges this stack on a kind of device."""
        return self.smoke if device == "cpu" else self.gpu_smoke


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What packages bring and images do without.

    Attributes:
        path: pattern of files and folders, below the folder of the Python packages.
        kept: patterns of what stays although `path` names it, each with why.
    """

    path: str
    why: str
    kept: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every image has, whatever its stack."""

    system: tuple[str, ...]
    build_system: tuple[str, ...]
    text_packages: tuple[str, ...]
    env: Mapping[str, str]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One known failure of a build or a training, recognised by what it prints.

    Attributes:
        kind: `cause` (what is to be repaired), `consequence` (of something that went wrong
            elsewhere) or `remark` (nothing failed, but it could be better).
        any_of: regular expressions of which one must be found, each within one line.
        all_of: regular expressions that must all be found.
        remedy: what to type or change.
        brings: ids of failures that follow from this one and are not shown beside it.
        threads: where it was reported.
    """

    id: str
    title: str
    kind: str
    any_of: tuple[str, ...]
    all_of: tuple[str, ...]
    cause: str
    remedy: str
    brings: tuple[str, ...]
    threads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """Everything declared under `images/`, checked."""

    common: Common
    bases: Mapping[str, Base]
    fixes: Mapping[str, Fix]
    wheels: Mapping[str, Wheel]
    stacks: Mapping[str, Stack]
    failures: Mapping[str, Failure] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    locks: Mapping[str, str] = field(default_factory=dict)
