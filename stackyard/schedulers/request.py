"""Turn the arguments of a command into one job for a cluster.

Owns the meaning of the arguments of `invoke export` and `invoke run --on`, and the notes about
choices made for the user. It must not submit or write anything: `schedulers.client` does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stackyard.build.catalog import choose
from stackyard.build.choice import decide
from stackyard.definitions import job_source
from stackyard.definitions.document import nearest
from stackyard.definitions.examples import Where
from stackyard.definitions.job_source import Work, example_name, load_example, require_work
from stackyard.definitions.project import Project
from stackyard.launch.job import Job
from stackyard.mesh import settings
from stackyard.schedulers import slurm_client
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.site import AUTO, CLUSTERS, SiteFile, read_site
from stackyard.schedulers.slurm_site import RUNTIMES, SlurmSite
from stackyard.system.engine import Engine
from stackyard.system.errors import NothingToRunOn, StackyardError, UsageError, shown

SITE_FILE = "site.yml"
# Ends of the names of squashfs files.
FILES = (".sqsh", ".squashfs", ".sqfs")
Site = SlurmSite | KubernetesSite


@dataclass(frozen=True, kw_only=True)
class ClusterArguments(Work):
    """Hold the arguments of a job for a cluster.

    Attributes:
        cluster: `slurm` or `kubernetes`.
        per_node: training processes on each node; with `gpus` above 0, these decide.
        gpus: of the whole job; 0 for CPU ranks, None for what the base is for.
        site: the settings of the cluster; empty for `SITE_FILE`, if that is there.
        name: of the job; empty for one made of what runs and the time.
        runtime: how Slurm's nodes enter the image; empty for what site.yml says.
        env: variables of every process, as NAME=VALUE.
        others: arguments that make no sense on a cluster, by their flag; true where given.
    """

    cluster: str
    stack: str
    nodes: int = 0
    per_node: int = 1
    gpus: int | None = None
    base: str = ""
    image: str = ""
    site: str = ""
    name: str = ""
    runtime: str = ""
    env: tuple[str, ...] = ()
    others: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """Hold a job, its cluster, and notes for its user."""

    job: Job
    site: Site
    notes: tuple[str, ...]


def require_cluster(name: str) -> str:
    """Return the name of a cluster's scheduler, checked.

    Raises:
        UsageError: the name is empty or unknown.
    """
    if not name:
        raise UsageError(
            "no cluster is named, but some of the options need one",
            hint="add --on slurm or --on kubernetes, or leave out --nodes, --site, --image, --out"
            " and (but for logs) --job",
        )
    if name not in CLUSTERS:
        raise UsageError(
            f"{shown(name)!r} is not a supported cluster",
            why=nearest(name, CLUSTERS),
            hint="invoke export slurm or kubernetes, or --on one of them",
        )
    return name


def load_site(cluster: str, given: str) -> tuple[Site, Mapping[str, str]]:
    """Load the settings of a cluster, and its folders by their path in the containers.

    Raises:
        UsageError: a named file does not exist, or has no settings for this scheduler.
        DefinitionError: the file is invalid.
    """
    path = Path(given or SITE_FILE)
    file = SiteFile()
    if given or path.is_file():
        try:
            file = read_site(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{path} cannot be read", why=str(error),
                hint=f"name a file of settings that is there: --site (docs/howto/{cluster}.md)",
            ) from error  # fmt: skip
    usual: Mapping[str, Site] = {"slurm": SlurmSite(runtime=AUTO), "kubernetes": KubernetesSite()}
    found = file.slurm if cluster == "slurm" else file.kubernetes
    if given and found is None:
        raise UsageError(f"{path} says nothing of {cluster}", hint=f"write a key {cluster}: there")
    return found or usual[cluster], file.binds.get(cluster, {})


def make_cluster_job(project: Project, given: ClusterArguments, *, away: bool) -> ClusterJob:
    """Make the job, ready to be exported or submitted.

    Args:
        away: true if it is submitted elsewhere; the cluster is then not needed here.

    Raises:
        StackyardError: an argument does not fit, or site.yml is invalid.
    """
    cluster = require_cluster(given.cluster)
    unfit = [flag for flag, value in given.others.items() if value]
    if unfit:
        raise UsageError(f"{', '.join(unfit)}: for runs on hosts, not on {cluster}")
    stack = choose("stack", given.stack, project.definitions.stacks)
    typed = f"invoke {'export ' + cluster if away else 'run'} {stack}"
    require_work(given, stack, project.root, typed)
    site, binds = load_site(cluster, given.site)
    if given.runtime and not isinstance(site, SlurmSite):
        raise UsageError("--runtime: for Slurm; Kubernetes has its own")
    where = _where(project, given, stack)
    example = load_example(project.root, stack, given.example)
    usual = project.definitions.stacks[stack].smoke.launcher
    job = job_source.make_job(given, example, where, root=project.root, stack=stack, usual=usual)
    job = replace(job, binds=binds, env={**job.env, **settings.parse(given.env)})
    notes = list(_saving(job, site, where)) if example else []
    if isinstance(site, SlurmSite):
        site, told = _slurm_here(_as_typed(site, given.runtime, given.image), job.image, away=away)
        notes += told
        # A job that is submitted again must not find its files of the last time on its nodes.
        job = replace(job, prepare=(("rm", "-rf", where.folder), *job.prepare))
    notes += _pulling(job, site)
    return ClusterJob(job=job, site=site, notes=tuple(notes))


def slurm_site(
    given: str, image: str, reference: str, runtime: str = ""
) -> tuple[SlurmSite, Mapping[str, str], tuple[str, ...]]:
    """Return how Slurm is used here, its folders by place in the containers, and notes on both.

    Args:
        given: the settings of the cluster, by their file; empty for `SITE_FILE`, if that is there.
        image: path of the image on the nodes; empty for what the settings say.
        reference: the image by tag or id, whose environment the nodes may need.
        runtime: how nodes enter the image; empty for what the settings say.

    Raises:
        StackyardError: the settings are invalid, or Slurm is not here.
    """
    site, binds = load_site("slurm", given)
    assert isinstance(site, SlurmSite)
    site, notes = _slurm_here(_as_typed(site, runtime, image), reference, away=False)
    return site, binds, tuple(notes)


def _where(project: Project, given: ClusterArguments, stack: str) -> Where:
    chosen = decide(
        project, stack, given.base, gpus=given.gpus, image=given.image,
        typed=f"invoke run {stack} --on {given.cluster}",
    )  # fmt: skip
    name = given.name or f"{example_name(given.example) or stack}-{time.strftime('%m%d-%H%M%S')}"
    folder = f"/tmp/stackyard-{name}"
    return Where(
        name=name,
        base=chosen.base.name,
        image=chosen.tag,
        nodes=given.nodes,
        per_node=_per_node(given),
        device=chosen.device,
        folder=folder,
        save=given.save or f"{folder}/checkpoints",
    )


def _per_node(given: ClusterArguments) -> int:
    if given.nodes < 1 or given.per_node < 1:
        raise UsageError(
            "say on how many nodes: --nodes must be at least 1, and --per-node, too",
            hint="--nodes 2",
        )
    if not given.gpus:
        return given.per_node
    each, rest = divmod(given.gpus, given.nodes)
    if rest or given.per_node not in (1, each):
        raise UsageError(
            f"--gpus {given.gpus} is the GPUs of the whole job: {given.nodes} nodes cannot have"
            f" {given.per_node if not rest else 'equally many'} each",
            hint=f"--gpus {max(each, 1) * given.nodes}, or --per-node without --gpus",
        )
    return each


def _as_typed(site: SlurmSite, runtime: str, image: str) -> SlurmSite:
    """Return the site with the runtime, and the path of the image, that were typed."""
    if runtime and runtime not in RUNTIMES:
        raise UsageError(
            f"--runtime {shown(runtime)!r} is none", why=nearest(runtime, RUNTIMES),
            hint=f"one of {', '.join(RUNTIMES)}",
        )  # fmt: skip
    site = replace(site, runtime=runtime or site.runtime)
    return replace(site, image=image) if image.startswith("/") else site


def _slurm_here(site: SlurmSite, image: str, *, away: bool) -> tuple[SlurmSite, list[str]]:
    notes = []
    if site.runtime == AUTO:
        try:
            choice = slurm_client.detect(file=site.image.endswith(FILES))
        except NothingToRunOn as error:
            if not away:
                raise
            raise UsageError(
                "it is not known how this Slurm enters an image",
                why="site.yml names no runtime, and Slurm's commands, which would tell, are not"
                " on this machine",
                hint="--runtime pyxis, or a site.yml with `slurm: {runtime: pyxis}` (or another:"
                " docs/howto/slurm.md), or type this where Slurm is",
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
    """Return an image's own environment; empty when no engine here holds the image."""
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
        " it, so push it to a registry and give its name there with --image"
    ]


def _saving(job: Job, site: Site, where: Where) -> list[str]:
    """Return a note when an example's checkpoints may be lost at the end of the job."""
    bare = isinstance(site, SlurmSite) and site.runtime == "filesystem" and not site.image
    kept = any(where.save == place or where.save.startswith(f"{place}/") for place in job.binds)
    if kept or (bare and not where.save.startswith(f"{where.folder}/")):
        return []
    if isinstance(site, SlurmSite) and site.requeue:
        raise UsageError(
            f"a job that is started again finds no checkpoints in {where.save} of each node",
            why="site.yml says `requeue`, and that folder is emptied when the job starts",
            hint="--save FOLDER, in one of site.yml's binds",
        )
    return [
        f"checkpoints go to {where.save} of each node, which may go when the job ends; --save"
        " FOLDER, in one of site.yml's binds, keeps them"
    ]
