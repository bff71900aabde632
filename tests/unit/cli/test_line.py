"""What is typed is what is asked of each command, and help says all of it."""

import inspect

import pytest

from stackyard.cli.command import JSON
from stackyard.cli.options.images import BuildRequest, BundleRequest
from stackyard.cli.options.releases import (
    EvidenceRequest,
    PublishRequest,
    PullRequest,
    VerifyRequest,
)
from stackyard.cli.options.runs import (
    CertifyRequest,
    DoctorRequest,
    ExportRequest,
    LogsRequest,
    RunRequest,
    StatusRequest,
    StopRequest,
    SyncRequest,
    UpRequest,
)
from stackyard.cli.options.trainings import (
    BenchRequest,
    ConvertRequest,
    DataRequest,
    ProveRequest,
    SmokeRequest,
)
from stackyard.cli.program import collection
from stackyard.cli.steps.build import base_of_smoke
from tests.unit.lines import type_line

COMMANDS = collection().tasks


@pytest.fixture
def typed(monkeypatch):
    """Type a line: what each command of it was asked, and the exit code."""
    calls = []

    def replace(name, task):
        assert task.get_arguments()  # its options are known before its function goes

        def called(terminal, **given):
            (asked,) = given.values() if len(given) == 1 else (given,)
            calls.append((name, asked, base_of_smoke() if name == "build" else ""))
            return {}, 0

        monkeypatch.setattr(task, "function", called)

    for name, task in COMMANDS.items():
        replace(name, task)
    return lambda line: (type_line(monkeypatch, line), calls)


NO_CHECK = {"stack": "all", "check": False}
LINES = [
    ("list", {}),
    ("show toy", {"stack": "toy", "base": ""}),
    ("show toy --base cpu --json", {"stack": "toy", "base": "cpu"}),
    ("render", NO_CHECK),
    ("render --check", {"stack": "all", "check": True}),
    ("render toy", {"stack": "toy", "check": False}),
    ("lock", {**NO_CHECK, "base": ""}),
    ("lock toy --base cpu --check", {"stack": "toy", "base": "cpu", "check": True}),
    ("outdated toy --base far", {"stack": "toy", "base": "far"}),
    ("base far", {"name": "far", "verbose": False}),
    ("audit toy --base far --image i", {"stack": "toy", "base": "far", "image": "i"}),
    ("bundle toy --base far --out b.tar", BundleRequest(stack="toy", base="far", out="b.tar")),
    ("bundle --images --from r/n --release r1 --signers s",
     BundleRequest(images=True, from_="r/n", release="r1", signers="s")),
    ("build", BuildRequest()),
    ("build --base=cpu fairseq", BuildRequest(stack="fairseq", base="cpu")),
    ("build fairseq --force --no-cache --offline a.tar",
     BuildRequest(stack="fairseq", force=True, no_cache=True, offline="a.tar")),
    ("build toy --source a --source b=../b@v1 --despite f --tag t",
     BuildRequest(stack="toy", source=("a", "b=../b@v1"), despite=("f",), tag="t")),
    ("smoke", SmokeRequest()),
    ("smoke --gpus=0 --nodes=4 toy", SmokeRequest(stack="toy", gpus=0, nodes=4)),
    ("smoke --gpus 2 --nodes 2 --placement host-network --base far --against o.json --image m:1",
     SmokeRequest(gpus=2, nodes=2, placement="host-network", base="far", against="o.json",
                  image="m:1")),
    ("bench fairseq --gpus 2 --base far --rounds 3 --updates 60 --sides layer,fsdp --counts 2"
     " --image m:1 --on slurm --nodes 4 --site s.yml --out o",
     BenchRequest(stack="fairseq", gpus=2, base="far", rounds=3, updates=60, sides="layer,fsdp",
                  counts="2", image="m:1", on="slurm", nodes=4, site="s.yml", out="o")),
    ("prove toy --fix f --base far --record", ProveRequest(stack="toy", fix="f", base="far",
                                                           record=True)),
    ("prove --page --check", ProveRequest(page=True, check=True)),
    ("compare a.json b.json", {"before": "a.json", "after": "b.json"}),
    ("diagnose -", "-"),
    ("data toy --input a --input b --valid c --test d --out o --vocab v --merges m --json-key k"
     " --bad-lines skip --keep-blank --no-append-eod --seq-length 64 --shards 3 --workers 2",
     DataRequest(stack="toy", input=("a", "b"), valid=("c",), test=("d",), out="o", vocab="v",
                 merges="m", json_key="k", bad_lines="skip", keep_blank=True, append_eod=False,
                 seq_length=64, shards=3, workers=2)),
    ("data toy --split 9,1 --tokenizer t --encoding latin-1 --eod e --unk u --base far",
     DataRequest(stack="toy", split="9,1", tokenizer="t", encoding="latin-1", eod="e", unk="u",
                 base="far")),
    ("convert toy --checkpoint c --out o --data d --heads 2 --config f --base far",
     ConvertRequest(stack="toy", checkpoint="c", out="o", data="d", heads=2, config="f",
                    base="far")),
    ("doctor --hosts h --stack toy --base far --gpus 0",
     DoctorRequest(hosts="h", stack="toy", base="far", gpus=0)),
    ("certify toy --hosts h --name n --base far --gpus 0 --image i --against r --updates 5"
     " --hang 9 --lease 5 --junit j",
     CertifyRequest(stack="toy", hosts="h", name="n", base="far", gpus=0, image="i", against="r",
                    updates=5, hang=9.0, lease=5.0, junit="j")),
    ("up toy --hosts h --name n --base far --gpus 0 --network v --lease 5 --days 1.5 --image i"
     " --overlay a --overlay b",
     UpRequest(stack="toy", hosts="h", name="n", base="far", gpus=0, network="v", lease=5.0,
               days=1.5, image="i", overlay=("a", "b"))),
    ("run toy --example e --hosts h --per-node 2 --set a=1 --include i --exclude x --save s"
     " --detach --restarts 1 --despite f --overlay m --env A=1 --env B=x=y --accelerate-config c"
     " -- --lr 1",
     RunRequest(stack="toy", example="e", hosts="h", per_node=2, set="a=1", include="i",
                exclude="x", save="s", detach=True, restarts=1, despite=("f",), overlay=("m",),
                env=("A=1", "B=x=y"), accelerate_config="c", words=("--lr", "1"))),
    ("run toy --on slurm --nodes 2 --site s --out o --folder f --launcher l -- a",
     RunRequest(stack="toy", on="slurm", nodes=2, site="s", out="o", folder="f", launcher="l",
                words=("a",))),
    ("run toy --on slurm --runtime squashfs --image /i.sqsh -- a",
     RunRequest(stack="toy", on="slurm", runtime="squashfs", image="/i.sqsh", words=("a",))),
    ("run toy --examples", RunRequest(stack="toy", examples=True)),
    ("run toy --example e --write w", RunRequest(stack="toy", example="e", write="w")),
    ("export slurm toy --nodes 2 --per-node 8 --gpus 16 --image i --site s --name n --out o"
     " --env A=1 -- a",
     ExportRequest(cluster="slurm", stack="toy", nodes=2, per_node=8, gpus=16, image="i", site="s",
                   name="n", out="o", env=("A=1",), words=("a",))),
    ("export slurm toy --runtime pyxis -- a",
     ExportRequest(cluster="slurm", stack="toy", runtime="pyxis", words=("a",))),
    ("status --hosts h --name n", StatusRequest(hosts="h", name="n")),
    ("status --watch", StatusRequest(watch=True)),
    ("stop --on slurm --job 7 --site s", StopRequest(on="slurm", job="7", site="s")),
    ("stop --name a --now --grace 9", StopRequest(name="a", now=True, grace=9.0)),
    ("logs --job a -f", LogsRequest(job="a", follow=True)),
    ("sync a --more b --to /c --hosts h --name n --checksum --delete",
     SyncRequest(source="a", more=("b",), to="/c", hosts="h", name="n", checksum=True,
                 delete=True)),
    ("sync /a --back --to b --include x,y",
     SyncRequest(source="/a", back=True, to="b", include="x,y")),
    ("down --hosts h --all", {"hosts": "h", "name": "", "all": True}),
    ("publish toy --base far --to r/n --key k --unproven --image i",
     PublishRequest(stack="toy", base="far", to="r/n", key="k", unproven=True, image="i")),
    ("publish toy --evidence a --evidence b --without-gpu-evidence --signers s",
     PublishRequest(stack="toy", evidence=("a", "b"), without_gpu_evidence=True, signers="s")),
    ("evidence --sign FILE --key k", EvidenceRequest(file="FILE", sign=True, key="k")),
    ("evidence FILE --add --release r --to p --signers s",
     EvidenceRequest(file="FILE", add=True, release="r", to="p", signers="s")),
    ("releases --from r/n --signers s", {"from_": "r/n", "signers": "s"}),
    ("verify --rebuild r1 --from r/n --signers s",
     VerifyRequest(release="r1", rebuild=True, from_="r/n", signers="s")),
    ("pull toy --base far --from r/n --release r1 --hosts h --signers s --via registry --mirror m"
     " --max-unavailable 1",
     PullRequest(stack="toy", base="far", from_="r/n", release="r1", hosts="h", signers="s",
                 via="registry", mirror="m", max_unavailable=1)),
    ("pull toy --as squashfs --into /images", PullRequest(stack="toy", as_="squashfs",
                                                          into="/images")),
    ("prune --hosts h --keep 3 --dry-run", {"hosts": "h", "keep": 3, "dry_run": True}),
    ("engine", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "asked"), LINES)
def test_what_is_typed_is_what_is_asked_for(typed, line, asked):
    code, ((name, given, _),) = typed(line)
    assert (code, name, given) == (0, line.split()[0], asked)


def test_every_command_is_in_the_table():
    assert {line.split()[0] for line, _ in LINES} == set(COMMANDS)


@pytest.mark.parametrize(
    ("line", "base"),
    [
        ("build", ""),
        ("build smoke --gpus 0", "cpu"),
        ("build fairseq smoke fairseq --gpus 0", "cpu"),
        ("smoke --gpus 0 build", "cpu"),
        ("build smoke --gpus 2", ""),
        ("build smoke --gpus 0 --base ngc", "ngc"),
    ],
)
def test_a_build_makes_the_image_that_a_smoke_of_its_line_runs(typed, line, base):
    code, calls = typed(line)
    assert (code, [given for name, _, given in calls if name == "build"]) == (0, [base])
    assert len(calls) == line.count("build") + line.count("smoke")


@pytest.mark.parametrize(
    ("line", "name"),
    [("smoke --help", "smoke"), ("run -h", "run"), ("logs -h", "logs"), ("sync -h", "sync"),
     ("build fairseq --help", "build"), ("--help build", "build"),
     ("build smoke -h", "smoke"), ("-h up", "up")],
)  # fmt: skip
def test_help_is_given_and_nothing_is_done(typed, capsys, line, name):
    assert typed(line) == (0, [])
    assert f"Usage: invoke {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_no_letter_but_those_expected(name):
    task = COMMANDS[name]
    assert inspect.getdoc(task)
    options = {argument.names: argument.help for argument in task.get_arguments()}
    assert all(options.values()) and options["json",] == JSON
    letters = [names for names in options if len(names) > 1]
    assert letters == ([("follow", "f")] if name == "logs" else [])
