"""The commands, as invoke tasks: arguments in, one call, an exit code. `invoke --list` shows them.

What they do is in `cli.main`; nothing is decided here. Each task imports it itself, so that
`invoke --list` and `--help` do not wait for it.
"""

import sys

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from stackyard.cli import positional

# invoke turns bytecode off for the tasks' sake; without it every command compiles the package.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
positional.install()
for _name in ("bench", "build", "bundle", "lock", "outdated", "prove", "render", "smoke"):
    positional.default(_name, "stack", "all")

STACK = "a stack's name, or all"
BASE = "the base to build on (see `invoke list`)"
JSON = "print the result as JSON, and nothing else, to standard output"


def _exit(code: int) -> None:
    if code:
        raise Exit(code=code)


@task(name="list", help={"json": JSON})
def list_(c: Context, json: bool = False) -> None:
    """Stacks and bases, what is built and what is proven."""
    from stackyard.cli import main

    _exit(main.list_images(as_json=json))


@task(positional=["stack"], help={"stack": "a stack's name", "base": BASE, "json": JSON})
def show(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """The plan of one image: every value and where it came from."""
    from stackyard.cli import main

    _exit(main.show(stack, base, as_json=json))


@task(
    positional=["stack"],
    help={"stack": STACK, "check": "compare only; fail when a file differs", "json": JSON},
)
def render(c: Context, stack: str, check: bool = False, json: bool = False) -> None:
    """Write the Dockerfiles from the definitions and templates."""
    from stackyard.cli import main

    _exit(main.render(stack, check=check, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "check": "write nothing; exit code 1 when a lock would change",
        "json": JSON,
    },
)
def lock(c: Context, stack: str, base: str = "", check: bool = False, json: bool = False) -> None:
    """Resolve versions over the network, write the locks (on every base that has some), say what
    changed."""
    from stackyard.cli import lock as cli_lock

    _exit(cli_lock.lock(stack, base, check=check, as_json=json))


@task(positional=["stack"], help={"stack": STACK, "base": BASE, "json": JSON})
def outdated(c: Context, stack: str, base: str = "", json: bool = False) -> None:
    """What moved upstream since the locks were made; exit code 1 when something is newer."""
    from stackyard.cli import lock as cli_lock

    _exit(cli_lock.outdated(stack, base, as_json=json))


@task(positional=["name"], help={"name": "a base's name (see `invoke list`)", "json": JSON})
def base(c: Context, name: str, json: bool = False) -> None:
    """Make or pull a base; does nothing when it is as it would be made now."""
    from stackyard.cli import main

    _exit(main.base(name, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "out": "what to write: stackyard-BASE.bundle.tar; of --images the folder stackyard-images",
        "images": "releases of a registry, in place of what builds need",
        "from": "with --images, the repository: REGISTRY[:PORT]/NAME",
        "release": "with --images, a tag or digest (the latest unless given)",
        "signers": "with --images, whose releases are accepted",
        "json": JSON,
    },
)
def bundle(
    c: Context,
    stack: str,
    base: str = "",
    out: str = "",
    images: bool = False,
    from_: str = "",
    release: str = "",
    signers: str = "",
    json: bool = False,
) -> None:
    """What builds on a base need, or released images, for a machine without a network."""
    if images:
        from stackyard.cli import release as cli_release

        given = cli_release.PullArguments(
            stack=stack, base=base, from_=from_, release=release, signers=signers
        )
        _exit(cli_release.carry(given, out, as_json=json))
        return
    from stackyard.cli import main

    _exit(main.bundle(stack, base, out, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "again": "build even if nothing changed",
        "fresh": "build from scratch: base and every step again, nothing from BuildKit's cache",
        "offline": "a bundle to build from, without a network",
        "source": "your own code: [PACKAGE=]PATH_OR_GIT[@REV] (docs/source.md); several times",
        "despite": "with --source: a fix to leave out, by its name; several times",
        "tag": "with --source: the image's name (stackyard/STACK:BASE-src-COMMIT)",
        "json": JSON,
    },
    iterable=["source", "despite"],
)
def build(
    c: Context,
    stack: str,
    source: list[str],
    despite: list[str],
    base: str = "",
    again: bool = False,
    fresh: bool = False,
    offline: str = "",
    tag: str = "",
    json: bool = False,
) -> None:
    """Build an image; does nothing when its recipe has not changed."""
    from stackyard.cli import main

    base = base or positional.on_this_line("smoke", "base") or ""
    if not base and positional.on_this_line("smoke", "gpus") == 0:
        base = "cpu"
    if source or despite or tag:
        from stackyard.cli import source as cli_source

        given = cli_source.SourceArguments(
            stack=stack, base=base, sources=tuple(source or ()), despite=tuple(despite or ()),
            tag=tag, again=again, fresh=fresh, offline=offline,
        )  # fmt: skip
        _exit(cli_source.build(given, as_json=json))
        return
    _exit(main.build(stack, base, again=again, fresh=fresh, offline=offline, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "gpus": "GPUs of the whole run; 0 trains on CPU ranks",
        "nodes": "containers of the run (1 with GPUs, 2 on CPU ranks)",
        "placement": "how several containers share a host's GPUs (docs/gpus.md); the best one",
        "against": "an earlier smoke.json (or a folder like reports/) to compare with",
        "image": "an image by tag or id, in place of the stack's own (docs/source.md)",
        "json": JSON,
    },
)
def smoke(
    c: Context,
    stack: str,
    base: str = "",
    gpus: int = -1,
    nodes: int = 0,
    placement: str = "",
    against: str = "",
    image: str = "",
    json: bool = False,
) -> None:
    """Train for real in a mesh of containers and judge it by named checks."""
    from stackyard.cli import smoke as cli_smoke

    code = cli_smoke.smoke(
        stack, base, gpus, nodes, placement, against=against, image=image, as_json=json
    )
    _exit(code)


@task(
    positional=["before", "after"],
    help={"before": "an earlier smoke.json", "after": "a later one", "json": JSON},
)
def compare(c: Context, before: str, after: str, json: bool = False) -> None:
    """Hold two smokes of a stack against each other: losses, resume, speed, size, packages."""
    from stackyard.cli import compare as cli_compare

    _exit(cli_compare.compare(before, after, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "fix": "one fix or limit by its id; all unless given",
        "base": "the base of the images (cpu)",
        "record": "keep the proofs in images/<base>.proofs.json, and write docs/fixes.md",
        "page": "only write docs/fixes.md out of what is recorded",
        "check": "with --page: compare only; fail when the page differs",
        "json": JSON,
    },
)
def prove(
    c: Context,
    stack: str,
    fix: str = "",
    base: str = "",
    record: bool = False,
    page: bool = False,
    check: bool = False,
    json: bool = False,
) -> None:
    """Each fix: its witness fails without it and passes with it; each limit likewise."""
    from stackyard.cli import prove as cli_prove

    code = cli_prove.prove(
        stack, fix, base, record_them=record, page=page, check=check, as_json=json
    )
    _exit(code)


@task(
    positional=["stack"],
    help={
        "stack": STACK,
        "base": BASE,
        "gpus": "the most GPUs of one training; 0 plays a tiny size on CPU ranks",
        "rounds": "how often every side is played (2)",
        "updates": "optimizer updates of one training (the definition's)",
        "sides": "which sides to play, by comma (docs/bench.md), and what they are held against",
        "counts": "on how many GPUs each is played, by comma (1,2,4 and so on, and all)",
        "image": "an image by tag or id, in place of the stack's own (docs/source.md)",
        "json": JSON,
    },
)
def bench(
    c: Context,
    stack: str,
    base: str = "",
    gpus: int = -1,
    rounds: int = 0,
    updates: int = 0,
    sides: str = "",
    counts: str = "",
    image: str = "",
    json: bool = False,
) -> None:
    """Tokens per second, MFU, memory and scaling: each side in turn, in one run."""
    from stackyard.cli import bench as cli_bench

    code = cli_bench.bench(
        stack, base, gpus, rounds, updates, sides, counts, image=image, as_json=json
    )
    _exit(code)


@task(
    positional=["stack"],
    iterable=["input", "valid", "test"],
    auto_shortflags=False,
    help={
        "stack": "fairseq, megatron or accelerate",
        "base": BASE,
        "input": "text, a document a line; a pattern in quotes, or given again, for more files",
        "valid": "files to validate on",
        "test": "files to test on",
        "split": "or parts of the input: weights of train, valid and test, 900,50,50",
        "out": "the folder to make",
        "tokenizer": "a Hugging Face tokenizer: its folder, or tokenizer.json",
        "vocab": "vocab.json, for words between white space (fairseq: or its dict.txt)",
        "merges": "GPT-2's merges.txt, with its --vocab",
        "key": "lines are JSON, the text is under this key (text, for files named .jsonl)",
        "encoding": "of the text",
        "bad_lines": "what happens to lines that are not: fail, skip or replace",
        "keep_blank": "blank lines are documents, too",
        "append_eod": "end every document with a token (--no-append-eod does not)",
        "eod": "which one (<|endoftext|>, or the tokenizer's own)",
        "unk": "the word for what is not in --vocab",
        "seq_length": "tokens of a sample: every split must hold one; accelerate's are cut (1024)",
        "workers": "processes (one a core)",
        "json": JSON,
    },
)
def data(
    c: Context,
    stack: str,
    input: list[str],
    valid: list[str],
    test: list[str],
    out: str = "",
    tokenizer: str = "",
    vocab: str = "",
    merges: str = "",
    split: str = "",
    base: str = "",
    key: str = "",
    encoding: str = "utf-8",
    bad_lines: str = "fail",
    keep_blank: bool = False,
    append_eod: bool = True,
    eod: str = "",
    unk: str = "<unk>",
    seq_length: int = 0,
    workers: int = 0,
    json: bool = False,
) -> None:
    """Text of your own as what a stack trains on, by its own vocabulary or tokenizer."""
    from stackyard.cli import data as cli_data

    given = {
        name: value for name, value in locals().items() if name not in ("c", "json", "cli_data")
    }
    _exit(cli_data.data(cli_data.DataArguments(**given), as_json=json))


@task(positional=["file"], help={"file": "a log, or - for standard input", "json": JSON})
def diagnose(c: Context, file: str, json: bool = False) -> None:
    """Name the known failure that a log shows, its cause and what to do about it."""
    from stackyard.cli import main

    _exit(main.diagnose(file, as_json=json))


HOSTS = "hosts.yml, a deepspeed hostfile, names by comma, or ssh:PATTERN (docs/hosts.md)"
NAME = "the run's name (the stack's unless given)"
LEASE = "seconds that a run goes on without being heard of"
ON = "a cluster instead of hosts: slurm or kubernetes (docs/slurm.md, docs/kubernetes.md)"
SITE = "with --on: the cluster's settings (site.yml, if it is there)"
IMAGE = "an image by tag or id, in place of the stack's own (docs/source.md)"
MOUNT = "your tree over an installed package: [PACKAGE=]PATH[:PLACE], on every host; several times"
JOB = "with --on: the job's number on Slurm, its name on Kubernetes"


@task(
    help={
        "hosts": f"look at hosts instead: {HOSTS}",
        "stack": "with --hosts: whose image is looked for",
        "base": BASE,
        "gpus": "with --hosts: 0 looks for the image for CPU ranks",
        "json": JSON,
    }
)
def doctor(
    c: Context, hosts: str = "", stack: str = "", base: str = "", gpus: int = -1, json: bool = False
) -> None:
    """Look at this machine, or at hosts: engine, GPUs, driver, and what a run would meet."""
    if hosts:
        from stackyard.cli import hosts as cli_hosts

        _exit(cli_hosts.doctor(hosts, stack, base, gpus, as_json=json))
        return
    from stackyard.cli import doctor as cli_doctor

    _exit(cli_doctor.examine(as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": "a stack's name",
        "hosts": HOSTS,
        "name": NAME,
        "base": BASE,
        "gpus": "0: CPU ranks; else the GPUs that the hosts' entries name",
        "network": "host, or a network that spans the hosts (an overlay), by name",
        "lease": LEASE,
        "days": "how long its certificates last (7)",
        "image": IMAGE,
        "mount": MOUNT,
        "json": JSON,
    },
    iterable=["mount"],
)
def up(
    c: Context,
    stack: str,
    mount: list[str],
    hosts: str = "",
    name: str = "",
    base: str = "",
    gpus: int = -1,
    network: str = "host",
    lease: float = 60.0,
    days: float = 7.0,
    image: str = "",
    json: bool = False,
) -> None:
    """Start a mesh of nodes on hosts; it stands until `invoke down`."""
    from stackyard.cli import run as cli_fleet

    given = cli_fleet.UpArguments(
        stack=stack,
        hosts=hosts,
        name=name,
        base=base,
        gpus=gpus,
        network=network,
        lease=lease,
        days=days,
        image=image,
        mounts=tuple(mount or ()),
    )
    _exit(cli_fleet.up(given, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": "a stack's name",
        "hosts": HOSTS,
        "name": NAME,
        "base": BASE,
        "gpus": "0: CPU ranks; for a mesh that is not up yet. With --on: GPUs of the whole job",
        "example": "a training that comes with the stack, or the folder of a copy; -- ARGS for it",
        "examples": "which there are: name, what, ranks, note",
        "write": "instead of running: a folder to make with a copy of the example to edit",
        "launcher": "how ranks are started (docs/hosts.md)",
        "per-node": "CPU ranks on each node; nodes with GPUs have one for each",
        "set": "values of the example, or options of the launcher: NAME=VALUE,...",
        "include": "nodes and slots that take part, as in node1:0,1@node2:0",
        "exclude": "nodes and slots that do not",
        "save": "folder of checkpoints in the nodes",
        "folder": "working directory of a command in the nodes",
        "detach": "leave it running; invoke logs, status and stop reach it from anywhere",
        "restarts": "start again this often when a node is lost, on those that are left",
        "lease": LEASE,
        "on": ON,
        "nodes": "with --on: how many nodes take part",
        "site": SITE,
        "image": f"{IMAGE}; with --on: as the cluster names it",
        "mount": MOUNT,
        "despite": "with --mount: a fix that is not to be applied to your tree; several times",
        "out": "with --on slurm: folder to make for script and log, which all nodes see (./NAME)",
        "json": JSON,
    },
    iterable=["mount", "despite"],
)
def run(
    c: Context,
    stack: str,
    mount: list[str],
    despite: list[str],
    hosts: str = "",
    name: str = "",
    base: str = "",
    gpus: int = -1,
    example: str = "",
    examples: bool = False,
    write: str = "",
    launcher: str = "",
    per_node: int = 1,
    set: str = "",
    include: str = "",
    exclude: str = "",
    save: str = "",
    folder: str = "",
    detach: bool = False,
    restarts: int = 0,
    lease: float = 60.0,
    on: str = "",
    nodes: int = 0,
    site: str = "",
    image: str = "",
    out: str = "",
    json: bool = False,
) -> None:
    """Run an example, or `-- COMMAND`, on all nodes by a launcher, and follow it."""
    words = tuple(positional.remainder())
    if examples:
        from stackyard.cli import examples as cli_examples

        _exit(cli_examples.list_examples(stack, as_json=json))
        return
    if on or nodes or site or out:
        from stackyard.cli import clusters
        from stackyard.schedulers import request

        others = {"--hosts": hosts, "--include": include, "--exclude": exclude,
                  "--restarts": restarts, "--lease": lease != 60.0, "--mount": mount,
                  "--despite": despite, **({"--write": write} if write else {})}  # fmt: skip
        asked = request.ClusterArguments(
            engine=on, stack=stack, nodes=nodes, per_node=per_node, gpus=gpus, base=base,
            image=image, site=site, name=name, others=others, example=example, words=words,
            launcher=launcher, settings=set, save=save, folder=folder,
        )  # fmt: skip
        _exit(clusters.run(asked, out, detach=detach, as_json=json))
        return
    from stackyard.cli import run as cli_fleet

    given = cli_fleet.UpArguments(
        stack=stack, hosts=hosts, name=name, base=base, gpus=gpus, lease=lease, image=image,
        mounts=tuple(mount or ()),
    )  # fmt: skip
    if write:
        from stackyard.cli import examples as cli_examples

        repeated = {"--gpus": "0" if gpus == 0 else "", "--base": base, "--image": image,
                    "--name": name, "--launcher": launcher, "--save": save,
                    "--per-node": str(per_node) if per_node > 1 else ""}  # fmt: skip
        copy = cli_examples.CopyArguments(
            out=write, example=example, words=words, launcher=launcher, settings=set,
            per_node=per_node, repeated=repeated,
            unfit={"--include": include, "--exclude": exclude, "--detach": detach,
                   "--mount": mount, "--despite": despite},
        )  # fmt: skip
        _exit(cli_examples.write_example(given, copy, as_json=json))
        return
    wanted = cli_fleet.RunArguments(
        example=example, words=words, launcher=launcher, per_node=per_node,
        settings=set, include=include, exclude=exclude, save=save, folder=folder, detach=detach,
        restarts=restarts, despite=tuple(despite or ()),
    )  # fmt: skip
    _exit(cli_fleet.run(given, wanted, as_json=json))


@task(
    positional=["engine", "stack"],
    help={
        "engine": "slurm or kubernetes",
        "stack": "a stack's name",
        "example": "a training that comes with the stack; or else -- COMMAND",
        "nodes": "how many nodes take part",
        "per-node": "training processes on each node: GPUs, or CPU ranks",
        "gpus": "GPUs of the whole job; 0 trains on CPU ranks",
        "base": BASE,
        "image": "the image, as the cluster names it",
        "site": "the cluster's settings (site.yml, if it is there)",
        "set": "values of the example, or options of the launcher: NAME=VALUE,...",
        "launcher": "how ranks are started (docs/hosts.md)",
        "save": "folder of checkpoints in the nodes",
        "folder": "working directory of a command in the nodes",
        "name": "the job's name (what runs and the time, unless given)",
        "out": "the folder to make (./NAME)",
        "json": JSON,
    },
)
def export(
    c: Context,
    engine: str,
    stack: str,
    example: str = "",
    nodes: int = 0,
    per_node: int = 1,
    gpus: int = -1,
    base: str = "",
    image: str = "",
    site: str = "",
    set: str = "",
    launcher: str = "",
    save: str = "",
    folder: str = "",
    name: str = "",
    out: str = "",
    json: bool = False,
) -> None:
    """Write the files that run a training on Slurm or Kubernetes, and say what to type there."""
    from stackyard.cli import clusters
    from stackyard.schedulers import request

    asked = request.ClusterArguments(
        engine=engine, stack=stack, nodes=nodes, per_node=per_node, gpus=gpus, base=base,
        image=image, site=site, name=name, example=example, words=tuple(positional.remainder()),
        launcher=launcher, settings=set, save=save, folder=folder,
    )  # fmt: skip
    _exit(clusters.export(asked, out, as_json=json))


@task(help={"hosts": HOSTS, "name": NAME, "on": ON, "job": JOB, "site": SITE, "json": JSON})
def status(
    c: Context, hosts: str = "", name: str = "", on: str = "", job: str = "", site: str = "",
    json: bool = False,
) -> None:  # fmt: skip
    """Which runs are on the hosts, and what runs in them; or how a cluster's job stands."""
    if on or job or site:
        from stackyard.cli import clusters

        _exit(clusters.status(on, site, job, as_json=json))
        return
    from stackyard.cli import hosts as cli_hosts

    _exit(cli_hosts.status(hosts, name, as_json=json))


@task(
    help={"hosts": HOSTS, "name": NAME, "follow": "go on", "on": ON, "site": SITE, "json": JSON,
          "job": "which of its jobs (the last); with --on: its number on Slurm, its name on"
          " Kubernetes"}
)  # fmt: skip
def logs(
    c: Context, hosts: str = "", name: str = "", job: str = "", follow: bool = False,
    on: str = "", site: str = "", json: bool = False,
) -> None:  # fmt: skip
    """What a job's ranks have said, labelled by node and rank."""
    if on or site:
        from stackyard.cli import clusters

        _exit(clusters.logs(on, site, job, follow=follow, as_json=json))
        return
    from stackyard.cli import hosts as cli_hosts

    _exit(cli_hosts.logs(hosts, name, job, follow=follow, as_json=json))


@task(
    positional=["source"],
    iterable=["more"],
    help={
        "source": "a file or folder of this machine; with --back a path in the nodes",
        "to": "folder in the nodes (in one of hosts.yml's folders); with --back one here",
        "hosts": HOSTS,
        "name": NAME,
        "back": "from the nodes to here",
        "nodes": "with --back: only from these, by comma",
        "checksum": "compare contents, and the copies with each other",
        "delete": "remove there what is not here",
        "more": "another source; may be given several times",
        "json": JSON,
    },
)
def sync(
    c: Context,
    source: str,
    more: list[str],
    to: str = "",
    hosts: str = "",
    name: str = "",
    back: bool = False,
    nodes: str = "",
    checksum: bool = False,
    delete: bool = False,
    json: bool = False,
) -> None:
    """Bring code, data or checkpoints to all hosts of a run, or back: only what changed."""
    from stackyard.cli import hosts as cli_hosts

    _exit(
        cli_hosts.sync(
            hosts, name, [source, *(more or [])], to, back=back, nodes=nodes, checksum=checksum,
            delete=delete, as_json=json,
        )
    )  # fmt: skip


@task(help={"hosts": HOSTS, "name": NAME, "on": ON, "job": JOB, "site": SITE, "json": JSON})
def stop(
    c: Context, hosts: str = "", name: str = "", on: str = "", job: str = "", site: str = "",
    json: bool = False,
) -> None:  # fmt: skip
    """End what runs in a mesh, on every node; the mesh stays. Or cancel a cluster's job."""
    if on or job or site:
        from stackyard.cli import clusters

        _exit(clusters.stop(on, site, job, as_json=json))
        return
    from stackyard.cli import hosts as cli_hosts

    _exit(cli_hosts.stop(hosts, name, as_json=json))


@task(help={"hosts": HOSTS, "name": NAME, "all": "every run on the hosts", "json": JSON})
def down(
    c: Context,
    hosts: str = "",
    name: str = "",
    all: bool = False,
    json: bool = False,
) -> None:
    """Remove a run from its hosts: nothing of it is left."""
    from stackyard.cli import hosts as cli_hosts

    _exit(cli_hosts.down(hosts, name, everything=all, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": "a stack's name",
        "base": BASE,
        "to": "the repository: REGISTRY[:PORT]/NAME (stackyard.toml's unless given)",
        "key": "the ssh key that signs (~/.ssh/id_ed25519); FILE.pub where an agent holds it",
        "unproven": "publish it without a passed smoke, or from source that is in no commit; its"
        " statement says so",
        "evidence": "signed evidence of this image (docs/evidence.md); several times",
        "without-gpu-evidence": "publish an image for GPUs that nobody saw train on one; its"
        " statement says so",
        "signers": "whose evidence is accepted, beside your own key's",
        "image": IMAGE,
        "json": JSON,
    },
    iterable=["evidence"],
)
def publish(
    c: Context,
    stack: str,
    evidence: list[str],
    base: str = "",
    to: str = "",
    key: str = "",
    unproven: bool = False,
    without_gpu_evidence: bool = False,
    signers: str = "",
    image: str = "",
    json: bool = False,
) -> None:
    """Release a proven image: searched for secrets, signed, with its SBOM, report and locks."""
    from stackyard.cli import release as cli_release

    given = cli_release.PublishArguments(
        stack=stack, base=base, to=to, key=key, unproven=unproven, image=image,
        evidence=tuple(evidence or ()), without_gpu_evidence=without_gpu_evidence, signers=signers,
    )  # fmt: skip
    _exit(cli_release.publish(given, as_json=json))


FROM = "the repository: REGISTRY[:PORT]/NAME (stackyard.toml's unless given)"
SIGNERS = "whose releases are accepted (allowed_signers here, or in ~/.config/stackyard)"


@task(
    positional=["file"],
    help={
        "file": "what a smoke or bench wrote beside its report: *.intoto.jsonl",
        "sign": "vouch for it with your key",
        "key": "the ssh key that signs (~/.ssh/id_ed25519); FILE.pub where an agent holds it",
        "add": "attach it to a standing release",
        "release": "the release, by tag or digest (the latest of its stack and base unless given)",
        "to": FROM,
        "signers": SIGNERS,
        "json": JSON,
    },
)
def evidence(
    c: Context,
    file: str,
    sign: bool = False,
    key: str = "",
    add: bool = False,
    release: str = "",
    to: str = "",
    signers: str = "",
    json: bool = False,
) -> None:
    """Verify, sign or attach the record of a run: on which hardware, vouched for by whom."""
    from stackyard.cli import evidence as cli_evidence

    given = cli_evidence.EvidenceArguments(
        file=file, sign=sign, key=key, add=add, release=release, to=to, signers=signers
    )
    _exit(cli_evidence.show(given, as_json=json))


@task(help={"from": FROM, "signers": SIGNERS, "json": JSON})
def releases(c: Context, from_: str = "", signers: str = "", json: bool = False) -> None:
    """What a registry holds, and which of it can be believed."""
    from stackyard.cli import release as cli_release

    _exit(cli_release.releases(from_, signers, as_json=json))


@task(
    positional=["stack"],
    help={
        "stack": "a stack's name",
        "base": BASE,
        "from": FROM,
        "release": "its tag or digest (the latest unless given)",
        "hosts": "hosts.yml, names by comma, or ssh:PATTERN; without any: this machine",
        "signers": SIGNERS,
        "via": "hosts: they pass it on; registry: each pulls by itself",
        "mirror": "HOST:PORT of the site's own mirror: each pulls from there",
        "max-unavailable": "how many hosts may fail without the command failing",
        "json": JSON,
    },
)
def pull(
    c: Context,
    stack: str,
    base: str = "",
    from_: str = "",
    release: str = "",
    hosts: str = "",
    signers: str = "",
    via: str = "hosts",
    mirror: str = "",
    max_unavailable: int = 0,
    json: bool = False,
) -> None:
    """A verified release onto all hosts: once out of the registry, then from host to host."""
    from stackyard.cli import pull as cli_pull
    from stackyard.cli import release as cli_release

    given = cli_release.PullArguments(
        stack=stack, base=base, from_=from_, release=release, hosts=hosts, signers=signers,
        via=via, mirror=mirror, max_unavailable=max_unavailable,
    )  # fmt: skip
    _exit(cli_pull.pull(given, as_json=json))


@task(
    help={
        "hosts": "hosts.yml, names by comma, or ssh:PATTERN",
        "keep": "how many releases of each stack and base stay",
        "dry": "only say what would go",
        "json": JSON,
    }
)
def prune(
    c: Context, hosts: str = "", keep: int = 2, dry: bool = False, json: bool = False
) -> None:
    """Remove old releases from hosts; what a container uses stays."""
    from stackyard.cli import pull as cli_pull

    _exit(cli_pull.prune(hosts, keep, dry=dry, as_json=json))


@task(help={"json": JSON})
def engine(c: Context, json: bool = False) -> None:
    """Find a container engine; on Debian or Ubuntu as root, install and start one."""
    from stackyard.cli import main

    _exit(main.engine(as_json=json))
