"""Read site.yml: the settings of a Slurm or Kubernetes cluster.

Owns the file's format. Its keys are the fields of `SlurmSite` and `KubernetesSite`, which also
check the values. Pure: it parses a text and reports every problem with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, TypeVar

from stackyard.definitions.document import Mapping as Entry
from stackyard.definitions.document import parse_document
from stackyard.launch.job import Job
from stackyard.schedulers import kubernetes_site, slurm_site
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.system.errors import DefinitionError, Problem, UsageError

CLUSTERS = ("slurm", "kubernetes")
# The runtime is detected when a job is made.
AUTO = "auto"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "runtime": (AUTO, *slurm_site.RUNTIMES),
    "gpu_option": slurm_site.GPU_OPTIONS,
    "kind": kubernetes_site.KINDS,
}
# The key of site.yml by the first word of a problem, where both differ.
_KEYS = {"bind": "binds", "line": "lines", "label": "labels", "env": "image_env"}
T = TypeVar("T")
_Site = TypeVar("_Site", SlurmSite, KubernetesSite)


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """Hold clusters, and the folders that jobs see there. Slurm's runtime may be `AUTO`.

    Attributes:
        slurm: settings of a Slurm cluster, where there is one.
        kubernetes: settings of a Kubernetes cluster, where there is one.
        binds: for each scheduler, folders of its machines (or claims) by path in the containers.
    """

    slurm: SlurmSite | None = None
    kubernetes: KubernetesSite | None = None
    binds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_site(text: str, file: str) -> SiteFile:
    """Read the text of site.yml.

    Raises:
        DefinitionError: with every problem found.
    """
    problems: list[Problem] = []
    top = parse_document(text, file=file, problems=problems)
    found = read_top(top) if top is not None else SiteFile()
    if problems:
        raise DefinitionError(problems)
    return found


def read_top(top: Entry) -> SiteFile:
    """Read the top mapping of a site.yml."""
    binds: dict[str, Mapping[str, str]] = {}
    slurm = _section(top, "slurm", SlurmSite(runtime=AUTO), _check_slurm, binds)
    kubernetes = _section(top, "kubernetes", KubernetesSite(), _check_kubernetes, binds)
    if slurm is None and kubernetes is None:
        top.problem("must have the key slurm or kubernetes")
    top.done()
    return SiteFile(slurm=slurm, kubernetes=kubernetes, binds=binds)


def _section(
    top: Entry,
    name: str,
    usual: _Site,
    check: Callable[[Job, _Site], None],
    binds: dict[str, Mapping[str, str]],
) -> _Site | None:
    entry = top.mapping(name)
    if entry is None:
        return usual if name in top.keys() else None  # noqa: SIM118
    values = {one.name: _value(entry, one, getattr(usual, one.name)) for one in fields(usual)}
    binds[name] = _kept(entry, {}, lambda: entry.table("binds", {}))
    entry.done()
    site = replace(usual, **values)
    try:
        check(_probe(binds[name]), site)
    except UsageError as error:
        for message in error.why.splitlines():
            key = _key(message, entry)
            entry.problem(re.sub(rf"^{key}(: | (?='))", "", message), key=key)
    return site


def _value(entry: Entry, one: Field[Any], usual: Any) -> Any:
    """Read the value of one field by its type; the default where it is absent or wrong."""
    name = one.name
    if name in _CHOICES:
        return _kept(entry, usual, lambda: entry.one_of(name, _CHOICES[name], usual))
    if name == "image_env":
        return _kept(entry, usual, lambda: entry.env(name))
    readers: Mapping[str, Callable[[], Any]] = {
        "str": lambda: entry.word(name, usual),
        "int": lambda: entry.integer(name, usual),
        "int | None": lambda: entry.integer(name) if entry.has(name) else usual,
        "bool": lambda: entry.flag(name, usual),
        "tuple[str, ...]": lambda: entry.single_lines(name, usual),
        "Mapping[str, str]": lambda: entry.table(name, usual),
    }
    return _kept(entry, usual, readers[str(one.type)])


def _kept(entry: Entry, usual: T, read: Callable[[], T]) -> T:
    # A value that was refused is not checked again: one mistake gives one problem.
    before = len(entry.problems)
    value = read()
    return value if len(entry.problems) == before else usual


def _check_slurm(job: Job, site: SlurmSite) -> None:
    if site.runtime == AUTO:
        # The runtime is not known yet; pyxis takes every image that another runtime takes.
        site = replace(site, runtime="pyxis")
    elif not site.image and site.runtime != "filesystem":
        # A command may name the image: a job without one is refused when it is made.
        site = replace(site, image="/image")
    slurm_site.check(job, site)


def _check_kubernetes(job: Job, site: KubernetesSite) -> None:
    kubernetes_site.check(job, site, job.name)


def _probe(binds: Mapping[str, str]) -> Job:
    """Return a valid job with these binds, so that a check can only find wrong binds."""
    return Job(
        name="probe",
        stack="probe",
        base="probe",
        image="probe",
        nodes=1,
        per_node=1,
        device="cpu",
        program=("probe",),
        binds=binds,
    )


def _key(message: str, entry: Entry) -> str:
    found = re.match(r"[a-z_]+", message)
    word = found.group() if found else ""
    key = _KEYS.get(word, word)
    return key if entry.has(key) else ""
