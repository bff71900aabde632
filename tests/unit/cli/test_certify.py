"""`invoke certify`: who takes part, what the shell gives, and a verdict where nobody can."""

from types import SimpleNamespace

import pytest

from stackyard.cli import tables
from stackyard.cli.console import Terminal
from stackyard.cli.options.runs import CertifyRequest
from stackyard.cli.steps import certify
from stackyard.definitions.project import load_project
from stackyard.gpu.placement import MIB, GpuProcess
from stackyard.mesh.hosts import Host
from stackyard.mesh.link import HostError
from stackyard.mesh.runs import Reached
from stackyard.mesh.standing import Standing
from stackyard.report import certify as report
from stackyard.report import records
from stackyard.validate.certify.search import nothing
from tests.schemas.published import refused
from tests.unit.machines import fleet, gpu, gpu_facts, node, plan, wanted

HELD = gpu(0, processes=(GpuProcess(pid=7, bytes=9000 * MIB, command="train.py"),),
           free_bytes=1000 * MIB)  # fmt: skip


@pytest.fixture
def hosts():
    def make(*machines, failed=()):
        named = fleet(*machines)
        links = {host.name: SimpleNamespace(host=host) for host in named.hosts
                 if host.name not in failed}  # fmt: skip
        errors = {name: HostError(name, "no route to host") for name in failed}
        return Reached(fleet=named, links=links, failed=errors)

    return make


def seen(hosts, **facts):
    return SimpleNamespace(facts=facts, failed=hosts.failed)


def test_a_host_takes_part_with_the_gpus_that_nobody_holds(hosts):
    there = hosts("one", "two", Host(name="asked", ssh="asked", gpus="0,2"), "gone", "free",
                  failed=("gone",))  # fmt: skip
    found = seen(
        there, one=gpu_facts(gpus=(HELD,)), two=gpu_facts(gpus=(HELD, gpu(1))),
        asked=gpu_facts(gpus=(HELD, gpu(1), gpu(2))), free=gpu_facts(count=8),
    )  # fmt: skip
    free = certify.without_held(there, found, "cuda")
    assert {host.name: host.gpus for host in free.fleet.hosts} == {
        "two": "1", "asked": "2", "free": "all",
    }  # fmt: skip
    assert set(free.links) == {"two", "asked", "free"} and free.failed == {}
    # CPU ranks use no GPU.
    left = [host.name for host in certify.without_held(there, found, "cpu").fleet.hosts]
    assert left == ["one", "two", "asked", "free"]


def test_where_no_host_answers_or_one_has_no_driver_the_reason_is_the_plans(hosts):
    there = hosts("a", "b", failed=("a", "b"))
    assert certify.without_held(there, seen(there), "cuda") == there
    bare = hosts("a")
    assert certify.without_held(bare, seen(bare, a=gpu_facts(driver=None)), "cuda") == bare


@pytest.fixture
def step(hosts, monkeypatch):
    """Certify hosts that say these facts; what the mesh was asked for, and the trainer."""

    def make(there, **facts):
        asked = SimpleNamespace(fleet=None, yard=None)

        def up(hosts, wanted, say, owner):
            asked.fleet = hosts.fleet
            named = [node(host.name, gpus=(0,)) for host in hosts.fleet.hosts]
            return Standing(plan=plan(*named), containers={}), []

        def yard(**given):
            asked.yard = given
            return SimpleNamespace(prepare=lambda: None)

        talk = SimpleNamespace(send=lambda do: None, close=lambda: None)
        monkeypatch.setattr(certify, "muster", lambda *_: seen(there, **facts))
        monkeypatch.setattr(certify.host_health, "read_all", lambda links: {})
        monkeypatch.setattr(certify.host_health, "judge", lambda read, facts: {})
        monkeypatch.setattr(certify.runs, "up", up)
        monkeypatch.setattr(certify.runs, "down", lambda *_: ([], {}))
        monkeypatch.setattr(certify.runs, "offer_of", lambda *_: None)
        monkeypatch.setattr(certify.standing, "connect", lambda *_: talk)
        monkeypatch.setattr(certify, "Yard", yard)
        monkeypatch.setattr(certify, "search", lambda *_: nothing("cuda"))
        request = CertifyRequest(stack="accelerate")
        found = certify._on_hosts(
            Terminal(), request, load_project(), there, wanted(device="cuda"), ""
        )
        return found, asked

    return make


def test_the_shells_nccl_variables_go_to_every_rank(hosts, step, monkeypatch, capsys):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    _, asked = step(hosts("a"), a=gpu_facts())
    assert asked.yard["own"] == {"NCCL_P2P_DISABLE": "1"}
    assert "from your environment, for every rank: NCCL_P2P_DISABLE" in capsys.readouterr().err


def test_a_held_gpu_of_a_host_with_one_is_named_and_the_others_go_on(hosts, step):
    found, asked = step(hosts("a", "b"), a=gpu_facts(gpus=(HELD,)), b=gpu_facts())
    assert [host.name for host in asked.fleet.hosts] == ["b"]
    assert set(found.unused) == {"a:0"} and "train.py" in found.unused["a:0"]


def test_where_all_gpus_are_held_there_is_a_report_that_fails(hosts, step):
    found, asked = step(hosts("a"), a=gpu_facts(gpus=(HELD,)))
    assert asked.fleet is None
    value = report.certify_report(
        found.found, {}, found.unused, stack="accelerate", base="cuda",
        image=records.certified_image(found.image, "t", None), run="certify",
        hosts="hosts.yml", started="2030-01-02T03:04:05+00:00", seconds=1,
    )  # fmt: skip
    assert refused("reports/certify", value) == []
    assert (value["outcome"], value["hosts"], set(value["unused"])) == ("failed", [], {"a:0"})
    assert any(line.startswith("a:0: ") for line in value["to_do"])
    assert "a:0 took no part" in report.render_page(value)
    assert tables.certify_table(value).row_count == 0
