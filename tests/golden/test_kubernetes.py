"""The three stacks' trainings as Kubernetes objects, whole."""

import pytest
import yaml

from stackyard.definitions.load import load_definitions
from stackyard.definitions.project import ROOT
from stackyard.launch.job import Job
from stackyard.schedulers.kubernetes import make_keys, render
from stackyard.schedulers.kubernetes_site import KubernetesSite, needs_mesh
from stackyard.validate.launches import fill, placeholders, spread
from stackyard.validate.training_log import TrainingPlan
from tests.golden.conftest import HERE
from tests.schemas.kubernetes import problems

CASES = [("fairseq", "ddp-2", "jobset"), ("fairseq", "ddp-2", "job"),
         ("megatron", "pp-2", "jobset"), ("megatron", "pp-2", "job"),
         ("accelerate", "zero-3", "jobset")]  # fmt: skip
FILES = [f"kube-{stack}-{kind}.yaml" for stack, _, kind in CASES]
STACKS = load_definitions(ROOT).stacks
# In place of real keys: what differs between nodes and what does not is all that the text shows.
NAMES = ("host_key", "host_key-cert.pub", "user_key", "user_key-cert.pub")


def training(stack, name):
    """What a smoke of the stack trains, as a job on two machines."""
    smoke = STACKS[stack].smoke_on("cuda")
    layout = smoke.layout(name)
    nodes, per_node = spread(layout.ranks, ("machine1", "machine2"))
    plan = TrainingPlan(layout=layout, label=name, save="/shared/save", nodes=nodes)
    # All pods prepare at once: fairseq's program refuses a folder that is filled meanwhile,
    # and Megatron's ranks share the index that the first of them makes.
    data = "/root/data" if stack == "fairseq" else "/shared/data"
    values = {**placeholders(smoke, plan), "data": data}
    return Job(
        name=f"{stack}-{name}",
        stack=stack,
        base="ngc",
        image=f"registry.example/stackyard/{stack}@sha256:{'1' * 64}",
        nodes=len(nodes),
        per_node=per_node,
        device="cuda",
        program=fill((*smoke.program, *smoke.args, *layout.args), values),
        prepare=(fill(smoke.prepare, values),),
        env=dict(smoke.env),
        folder="/srv/smoke",
        binds={"/shared": "pvc:shared/runs"},
        files={"/srv/smoke/note.txt": b"a file of the job\n"},
        launcher=layout.launcher,
        options=layout.options,
    )


def made_up(job, site):
    """Material with the right names and sizes of nothing."""
    found = make_keys(job, site, now=1_800_000_000)
    public = {"user_ca.pub": b"authority\n", "known_hosts": b"known hosts\n"}
    return {
        node: {**files, **public, **{n: f"{n} of {node}\n".encode() for n in NAMES}}
        for node, files in found.items()
    }


@pytest.mark.parametrize(("case", "file"), list(zip(CASES, FILES, strict=True)), ids=FILES)
def test_a_run_is_what_is_committed(golden, case, file):
    stack, layout, kind = case
    job, site = training(stack, layout), KubernetesSite(kind=kind)
    texts = render(job, site, keys=made_up(job, site) if needs_mesh(job) else None)
    assert [problem for text in texts.values() for problem in problems(yaml.safe_load(text))] == []
    golden.check(file, "---\n".join(texts.values()))


def test_no_golden_manifest_is_left_over():
    assert {path.name for path in HERE.glob("kube-*")} == set(FILES)
