"""site.yml: every key of both clusters, every problem with its line, whatever else is in it."""

import dataclasses
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stackyard.definitions.project import ROOT
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.site import AUTO, SiteFile, read_site
from stackyard.schedulers.slurm_site import RUNTIMES, SlurmSite
from stackyard.system.errors import DefinitionError
from tests.unit.definitions.test_fuzz_definitions import FEW, examples
from tests.unit.fuzzing import DOCUMENTS, broken_lines, broken_structure

WHOLE = """\
slurm:
  runtime: apptainer
  image: /images/toy.sif
  image_env: {PATH: "/opt/bin:/bin"}
  partition: gpu
  account: lab
  minutes: 240
  gpu_option: gpus-per-node
  gpu_type: h100
  cpus_per_node: 64
  memory: 0
  join_seconds: 300
  save_seconds: 120
  requeue: yes
  lines: [--constraint=ib, --exclusive]
  binds: {/data: /mnt/data}
kubernetes:
  namespace: team
  context: far
  kind: job
  gpu: example.com/gpu
  resources: {rdma/hca: "1"}
  cpu: 16
  memory: 500Gi
  shm: 64Gi
  labels: {kueue.x-k8s.io/queue-name: research}
  node_selector: {accelerator: h200}
  tolerations: [spot]
  pull_secrets: [registry]
  env_secrets: [tokens]
  priority: high
  interface: net1
  apart: no
  restarts: 0
  deadline_seconds: 3600
  keep_seconds: 60
  grace_seconds: 30
  wait_seconds: 1200
  key_seconds: 86400
  binds: {/data: pvc:work/data}
"""


def read(text):
    return read_site(text, "site.yml")


def problems(text):
    with pytest.raises(DefinitionError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


def test_every_setting_of_both_clusters_can_be_written():
    found = read(WHOLE)
    written = yaml.safe_load(WHOLE)
    for site, section in ((found.slurm, "slurm"), (found.kubernetes, "kubernetes")):
        keys = {field.name for field in dataclasses.fields(site)}
        assert keys | {"binds"} == set(written[section])
    # All but one differ from what they are unless they are written.
    usual = [SlurmSite(runtime=AUTO), KubernetesSite()]
    same = [
        field.name
        for site, plain in zip((found.slurm, found.kubernetes), usual, strict=True)
        for field in dataclasses.fields(site)
        if getattr(site, field.name) == getattr(plain, field.name)
    ]
    assert same == ["restarts"]
    assert found.slurm.lines == ("--constraint=ib", "--exclusive")
    assert (found.slurm.memory, found.kubernetes.cpu) == ("0", "16")
    assert found.slurm.image_env == {"PATH": "/opt/bin:/bin"}
    assert found.kubernetes.deadline_seconds == 3600
    assert found.binds == {
        "slurm": {"/data": "/mnt/data"},
        "kubernetes": {"/data": "pvc:work/data"},
    }


@pytest.mark.parametrize("text", ["slurm:\n", "slurm: {}\n", "slurm: {runtime: auto}\n"])
def test_what_is_not_written_is_as_usual(text):
    found = read(text)
    assert found.slurm == SlurmSite(runtime=AUTO)
    assert found.kubernetes is None
    assert read("kubernetes:\n") == SiteFile(kubernetes=KubernetesSite())


def test_every_problem_is_said_at_once_with_its_line():
    text = """\
slurm:
  runtime: pyxi
  minutes: 0
  partition: a b
  lines: [--nodes=3, x]
  binds: {/data: 3}
  memmory: 64G
kubernetes:
  restarts: 2
  kind: job
  apart: maybe
kubernets: {}
"""
    assert problems(text) == [
        "site.yml:2: slurm.runtime: unknown value 'pyxi'; did you mean 'pyxis'?",
        "site.yml:3: slurm.minutes: minutes and join_seconds must be at least 1, cpus_per_node at"
        " least 0",
        "site.yml:4: slurm.partition: 'a b': letters, digits and _.,@+:=/%- only",
        "site.yml:5: slurm.lines: line '--nodes=3': --nodes is set by the job itself",
        "site.yml:5: slurm.lines: line 'x': one option --name or --name=value, no blanks or quotes",
        "site.yml:6: slurm.binds./data: must be text; YAML reads 3 as int: write '3'",
        "site.yml:7: slurm.memmory: unknown key; did you mean 'memory'?",
        "site.yml:9: kubernetes.restarts: only a JobSet starts a run again as a whole; set kind to"
        " jobset",
        "site.yml:11: kubernetes.apart: must be true or false",
        "site.yml:12: kubernets: unknown key; did you mean 'kubernetes'?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "site.yml:1: must be a mapping of keys to values"),
        ("{}", "site.yml:1: must have the key slurm or kubernetes"),
        ("slurm: 3", "site.yml:1: slurm: must be a mapping"),
        ("slurm: {runtime: oci, image: a}", "site.yml:1: slurm.image: 'a': an absolute path"),
        ("slurm: {minutes: soon}", "site.yml:1: slurm.minutes: must be a whole number"),
        ("slurm: {image_env: {A-B: c}}", "site.yml:1: slurm.image_env.A-B: must be the name of"),
        ("slurm:\n  binds: {/: /a}", "site.yml:2: slurm.binds: bind '/': the root is the image's"),
        ("kubernetes:\n  memory: much", "site.yml:2: kubernetes.memory: 'much': a quantity"),
        ("kubernetes:\n  cpu: 4\n  resources: {rdma/hca: x}",
         "site.yml:3: kubernetes.resources: resources.rdma/hca 'x': a quantity"),
        ("kubernetes: {deadline_seconds: 0}", "site.yml:1: kubernetes: seconds and restarts: none"),
        ("kubernetes:\n  labels: {a: b c}", "site.yml:2: kubernetes.labels: label a: 'b c'"),
        ("kubernetes:\n  binds: {/run/a: /b}", "site.yml:2: kubernetes.binds: bind '/run/a'"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_have_is_one_problem(text, said):
    (only,) = problems(text)
    assert only.startswith(said)


@pytest.mark.parametrize("image", ["/images/toy", "registry.example/toy:cpu"])
def test_an_image_of_any_kind_stands_beside_a_runtime_that_is_still_looked_for(image):
    assert read(f"slurm: {{image: {image}}}").slurm == SlurmSite(runtime=AUTO, image=image)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_may_be_named_and_the_image_left_to_each_command(runtime):
    """What a job without one would need, `slurm_site.check` says where it is made."""
    assert read(f"slurm: {{runtime: {runtime}}}").slurm == SlurmSite(runtime=runtime)


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_the_example_in_the_docs_is_one(name):
    text = (ROOT / "docs" / "howto" / f"{name}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert read(block).binds[name]


# Whatever is in it, it is a site or a list of places


def taken_or_refused(text):
    try:
        assert isinstance(read(text), SiteFile)
    except DefinitionError as error:
        assert error.problems
        assert all(str(problem).isprintable() for problem in error.problems)


@pytest.mark.parametrize("text", [d for d in DOCUMENTS if "\x00" not in d])
def test_an_odd_document_is_refused_with_its_places(text):
    taken_or_refused(text)


@examples(FEW)
@given(st.data())
def test_a_broken_site_is_read_or_refused_with_its_places(data):
    taken_or_refused(data.draw(broken_lines(WHOLE)))


@examples(FEW)
@given(st.data())
def test_a_site_with_other_values_is_read_or_refused_with_its_places(data):
    taken_or_refused(data.draw(broken_structure(yaml.safe_load(WHOLE))))
