"""The record of a certification, its page and what to type, from hosts with planted faults."""

import json
import re

import pytest

from stackyard.build.recipe import BASE_LABEL, PACKAGES_LABEL
from stackyard.gpu.doctor import NOT_RUN, OK, WRONG, Finding
from stackyard.report import certify as report
from stackyard.report import records
from stackyard.system.errors import UsageError
from stackyard.system.image import ImageInfo
from stackyard.validate.certify import search
from stackyard.validate.certify.plan import Fault
from tests.schemas.published import refused
from tests.unit.validate.certifying import Trainer, gpu, names

HEALTH = {"h00": (Finding(name="pcie", state=OK, what="its best"),)}
IMAGE = "sha256:" + "1" * 64
TAG = "stackyard/accelerate:cuda"
INFO = ImageInfo(
    id=IMAGE, tags=(TAG,), env=(), size=1, layers=(),
    labels={"stackyard.recipe": "sha256:2", BASE_LABEL: "sha256:3", PACKAGES_LABEL: "sha256:4"},
)  # fmt: skip


def record(trainer, health=HEALTH, unused=None, hosts="hosts.yml", faults=()):
    found = search.certify(trainer, (), {}, lambda text: None)
    found.faults += tuple(faults)
    return report.certify_report(
        found, health, unused or {}, stack="accelerate", base="cuda", run="certify", hosts=hosts,
        image=records.certified_image(IMAGE, TAG, INFO),
        started="2030-01-02T03:04:05+00:00", seconds=1.234,
    )  # fmt: skip


def hosts(count=4, gpus=2):
    return dict.fromkeys(names(count), gpus)


KINDS = {
    "good": Trainer(hosts()),
    "wrong": Trainer(hosts(), corrupt={gpu("h02", 1): 3}),
    "link": Trainer(hosts(), links=[("h01", "h02")]),
    "hangs": Trainer(hosts(), hangs=("h03",)),
    "dead": Trainer(hosts(), dead=(gpu("h00"),)),
    "sockets": Trainer(hosts(), sockets=("h01",)),
    "one": Trainer({"h00": 1}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_fits_its_schema_and_has_a_page(kind):
    value = record(KINDS[kind], unused={"h9": "no route to host"})
    assert refused("reports/certify", value) == []
    assert refused("answers/certify", json.loads(json.dumps(value))) == []
    page = report.render_page(value)
    assert all(f">{host['host']}<" in page for host in value["hosts"])
    assert "h9 took no part: no route to host" in page


def test_a_record_with_another_key_or_without_one_is_refused():
    value = record(KINDS["good"])
    assert refused("reports/certify", {**value, "unknwon": 1})
    for key in value:
        assert refused("reports/certify", {k: v for k, v in value.items() if k != key}), key


def test_the_recipe_is_in_the_record():
    """By it a test finds reports of images that this tree does not build any more."""
    assert record(KINDS["good"])["image"] == {
        "id": IMAGE, "tag": TAG, "recipe": "sha256:2",
        "base": {"digest": "sha256:3", "packages": "sha256:4"},
    }  # fmt: skip


def test_good_hosts_pass_and_there_is_nothing_to_do():
    value = record(KINDS["good"])
    assert (value["outcome"], value["to_do"]) == ("passed", [])
    (one,) = value["fingerprints"].values()
    assert one["compared_with"] == "8 of 8 of its model"
    assert len({g["fingerprint"] for host in value["hosts"] for g in host["gpus"]}) == 1


def states(value):
    return {gpu["name"]: gpu["state"] for host in value["hosts"] for gpu in host["gpus"]}


def test_a_bad_gpu_is_bad_in_the_grid_with_what_to_type():
    value = record(KINDS["wrong"])
    assert value["outcome"] == "failed"
    assert [name for name, state in states(value).items() if state == "bad"] == ["h02:1"]
    assert [host["host"] for host in value["hosts"] if host["state"] == "bad"] == ["h02"]
    assert value["to_do"][0].startswith("h02:1: take this GPU out of use")
    assert "invoke certify accelerate --base cuda --hosts hosts.yml" in value["to_do"][-1]
    page = report.render_page(value)
    assert len(re.findall(r'<td class="bad" title=', page)) == 1


def test_a_slow_link_is_marked_in_the_matrix():
    value = record(KINDS["link"])
    assert [link["ends"] for link in value["links"] if link["slow"]] == [["h01:0", "h02:0"]]
    assert (value["faults"][0]["kind"], value["faults"][0]["names"]) == ("link", ["h01", "h02"])
    assert "cable, port and switch" in value["to_do"][0]
    assert report.render_page(value).count('<td class="bad">0.4</td>') == 2


def test_two_gpus_of_one_host_are_joined_by_no_cable():
    fault = Fault(kind="link", names=(gpu("h00", 0), gpu("h00", 1)), why="bad together")
    value = record(Trainer(hosts(1)), faults=[fault])
    assert value["to_do"][0].startswith("h00:0 - h00:1: look at what joins both: nvidia-smi topo")
    assert "<h1>1 host " in report.render_page(value)


def test_a_matrix_that_nobody_can_read_is_a_list_of_slow_links(monkeypatch):
    monkeypatch.setattr(report, "MATRIX_ENDS", 3)
    page = report.render_page(record(KINDS["link"]))
    assert '<table class="matrix">' not in page
    assert "h01:0 and h02:0: 0.4 GB/s" in page


def test_a_host_that_hangs_is_bad_as_a_whole():
    value = record(KINDS["hangs"])
    (bad,) = [host for host in value["hosts"] if host["state"] == "bad"]
    assert bad["host"] == "h03" and "never came to all_reduce" in bad["why"]


def test_what_is_wrong_with_a_hosts_health_has_its_remedy():
    wrong = Finding(name="pcie", state=WRONG, what="8 of 16 lanes", hint="check the seat", gpu=0)
    unread = Finding(name="xid errors", state=NOT_RUN, what="the log cannot be read", hint="root")
    value = record(KINDS["good"], health={"h00": (wrong, unread)})
    assert value["outcome"] == "failed"
    assert value["to_do"][0] == "h00: pcie: check the seat"
    assert not [line for line in value["to_do"] if "root" in line]
    assert value["hosts"][0]["why"] == "pcie: 8 of 16 lanes"


def test_hosts_that_were_not_typed_are_not_typed_again():
    value = record(KINDS["wrong"], hosts="")
    assert value["to_do"][-1].endswith("invoke certify accelerate --base cuda")


# An earlier report


def text(**changes):
    return json.dumps({**record(KINDS["good"]), **changes})


def test_the_fingerprints_of_an_earlier_report_are_read():
    value = record(KINDS["good"])
    (model,) = value["fingerprints"]
    assert report.fingerprints_of(text(), "x.json", IMAGE) == {
        model: tuple(value["fingerprints"][model]["bits"])
    }


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("{", "no report of invoke certify"),
        ("[]", "no report of invoke certify"),
        ("{}", "no report of invoke certify"),
        (text(schema="stackyard.report/2"), "no report of invoke certify"),
        (text(fingerprints={"m": 1}), "no report of invoke certify"),
        (text(outcome="failed"), "did not pass"),
        (text(image={"id": "sha256:2", "tag": "x"}), "is of another image"),
    ],
)
def test_another_file_is_no_earlier_report(given, what):
    with pytest.raises(UsageError, match=what):
        report.fingerprints_of(given, "x.json", IMAGE)
