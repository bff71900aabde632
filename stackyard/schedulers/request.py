"""From what was typed to one job for a cluster, and how that cluster takes it.

Owns what the arguments of `invoke export` and `invoke run --on` mean, and what people are told of
the choices made for them. It must not submit or write anything: `cluster_engine` does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stackyard.build import dockerfile
from stackyard.build.catalog import choose
from stackyard.definitions import job_source
from stackyard.definitions.document import nearest
from stackyard.definitions.examples import Where
from stackyard.definitions.job_source import Work, example_name, load_example, require_work
from stackyard.definitions.project import Project
from stackyard.launch.job import Job
from stackyard.schedulers import slurm_client
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.site import AUTO, ENGINES, SiteFile, read_site
from stackyard.schedulers.slurm_site import SlurmSite
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError, UsageError, shown

SITE_FILE = "site.yml"
Site = SlurmSite | KubernetesSite


@dataclass(frozen=True, kw_only=True)
class ClusterArguments(Work):
    """What was typed.

    Attributes:
        engine: `slurm` or `kubernetes`.
        per_node: training processes on each node; with `gpus` above 0, these decide.
        gpus: of the whole job; 0 for CPU ranks, -1 for what the base is for.
        site: the settings of the cluster; empty for `SITE_FILE`, if that is there.
        name: of the job; empty for one made of what runs and the time.
        others: arguments that make no sense on a cluster, by their flag; true where given.
    """

    engine: str
    stack: str
    nodes: int = 0
    per_node: int = 1
    gpus: int = -1
    base: str = ""
    image: str = ""
    site: str = ""
    name: str = ""
    others: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job, where it runs, and what its user should know."""

    job: Job
    site: Site
    notes: tuple[str, ...]


def require_engine(name: str) -> str:
    """The name of an engine.

    Raises:
        UsageError: there is none of that name.
    """
    if not name:
        raise UsageError(
            "no cluster is named, and some of what was typed is for one",
            hint="add --on slurm or --on kubernetes, or leave out --nodes, --site, --image, --out"
            " and (but for logs) --job",
        )
    if name not in ENGINES:
        raise UsageError(f"{shown(name)!r} is not an engine", why=nearest(name, ENGINES))
    return name


def load_site(engine: str, given: str) -> tuple[Site, Mapping[str, str]]:
    """The settings of a cluster, and its folders by their place in the containers.

    Raises:
        UsageError: a file that was named is not there, or says nothing of this engine.
        DefinitionError: it is wrong.
    """
    path = Path(given or SITE_FILE)
    file = SiteFile()
    if given or path.is_file():
        try:
            file = read_site(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read", why=str(error)) from error
    usual: Mapping[str, Site] = {"slurm": SlurmSite(runtime=AUTO), "kubernetes": KubernetesSite()}
    found = file.slurm if engine == "slurm" else file.kubernetes
    if given and found is None:
        raise UsageError(f"{path} says nothing of {engine}", hint=f"write a key {engine}: there")
    return found or usual[engine], file.binds.get(engine, {})


def make_cluster_job(project: Project, given: ClusterArguments, *, away: bool) -> ClusterJob:
    """The job, ready to be exported or submitted.

    Args:
        away: it is submitted elsewhere: the cluster need not be reached from here.

    Raises:
        StackyardError: something typed does not fit, or site.yml is wrong.
    """
    engine = require_engine(given.engine)
    unfit = [flag for flag, value in given.others.items() if value]
    if unfit:
        raise UsageError(f"{', '.join(unfit)}: for runs on hosts, not on {engine}")
    stack = choose("stack", given.stack, project.definitions.stacks)
    typed = f"invoke {'export ' + engine if away else 'run'} {stack}"
    require_work(given, stack, project.root, typed)
    site, binds = load_site(engine, given.site)
    where = _where(project, given, stack)
    example = load_example(project.root, stack, given.example)
    usual = project.definitions.stacks[stack].smoke.launcher
    job = job_source.make_job(given, example, where, root=project.root, stack=stack, usual=usual)
    job = replace(job, binds=binds)
    notes = list(_saving(job, site, where)) if example else []
    if isinstance(site, SlurmSite):
        site, told = _slurm_here(site, job.image, away=away)
        notes += told
        # A job that is submitted again finds nothing of what it left on its nodes.
        job = replace(job, prepare=(("rm", "-rf", where.folder), *job.prepare))
    notes += _pulling(job, site)
    return ClusterJob(job=job, site=site, notes=tuple(notes))


def _where(project: Project, given: ClusterArguments, stack: str) -> Where:
    base_name = project.base_for(given.base, 0 if given.gpus == 0 else 1)
    base = project.definitions.bases[choose("base", base_name, project.definitions.bases)]
    if given.gpus >= 0 and (given.gpus == 0) != (base.device == "cpu"):
        ranks = "CPU ranks" if given.gpus == 0 else "GPUs"
        raise UsageError(
            f"base {base.name} is for {base.device}, --gpus {given.gpus} asks for {ranks}"
        )
    name = given.name or f"{example_name(given.example) or stack}-{time.strftime('%m%d-%H%M%S')}"
    folder = f"/tmp/stackyard-{name}"
    return Where(
        name=name,
        base=base.name,
        image=given.image or dockerfile.image_tag(stack, base.name),
        nodes=given.nodes,
        per_node=_per_node(given),
        device=base.device,
        folder=folder,
        save=given.save or f"{folder}/checkpoints",
    )


def _per_node(given: ClusterArguments) -> int:
    if given.nodes < 1 or given.per_node < 1:
        raise UsageError(
            "say on how many nodes: --nodes must be at least 1, and --per-node, too",
            hint="--nodes 2",
        )
    if given.gpus <= 0:
        return given.per_node
    each, rest = divmod(given.gpus, given.nodes)
    if rest or given.per_node not in (1, each):
        raise UsageError(
            f"--gpus {given.gpus} is the GPUs of the whole job: {given.nodes} nodes cannot have"
            f" {given.per_node if not rest else 'equally many'} each",
            hint=f"--gpus {max(each, 1) * given.nodes}, or --per-node without --gpus",
        )
    return each


def _slurm_here(site: SlurmSite, image: str, *, away: bool) -> tuple[SlurmSite, list[str]]:
    notes = []
    if site.runtime == AUTO:
        try:
            choice = slurm_client.detect()
        except NothingToRunOn as error:
            if not away:
                raise
            raise UsageError(
                "it is not known how this Slurm enters an image",
                why="site.yml names no runtime, and Slurm's commands, which would tell, are not"
                " on this machine",
                hint="write a site.yml with `slurm: {runtime: pyxis}` (or apptainer, oci,"
                " filesystem: docs/slurm.md), or type this where Slurm is",
            ) from error
        site = replace(site, runtime=choice.runtime)
        notes.append(f"runtime {choice.runtime}: {choice.why}")
    if site.runtime not in ("oci", "filesystem") or site.image_env:
        return site, notes
    env = _environment(image)
    if not env:
        notes.append(
            f"no engine here holds {image}: the job gets none of its environment, PATH included,"
            " unless image_env in site.yml says it"
        )
    else:
        notes.append(f"the job gets the environment that {image} has on this machine")
    return replace(site, image_env=env), notes


def _environment(image: str) -> dict[str, str]:
    """An image's own environment; empty when no engine here holds it."""
    try:
        with Engine() as engine:
            found = engine.image(image)
    except StackyardError:
        return {}
    return found.environment if found else {}


def _pulling(job: Job, site: Site) -> list[str]:
    if isinstance(site, SlurmSite) and (site.runtime != "pyxis" or site.image):
        return []
    registry, slash, _ = job.image.partition("/")
    if slash and ({".", ":"} & set(registry) or registry == "localhost"):
        return []
    return [
        f"{job.image} is this machine's own name of the image: the cluster must be able to pull"
        " it, so push it to a registry and name it there by --image"
    ]


def _saving(job: Job, site: Site, where: Where) -> list[str]:
    """What becomes of an example's checkpoints, when the job is over."""
    bare = isinstance(site, SlurmSite) and site.runtime == "filesystem" and not site.image
    kept = any(where.save == place or where.save.startswith(f"{place}/") for place in job.binds)
    if kept or (bare and not where.save.startswith(f"{where.folder}/")):
        return []
    return [
        f"checkpoints go to {where.save} of each node, which may go when the job ends; --save"
        " FOLDER, in one of site.yml's binds, keeps them"
    ]
