"""All that is found out about hosts before a run: every problem of every host in one answer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from stackyard.gpu.doctor import OK, Finding
from stackyard.mesh import host_table
from stackyard.mesh import preflight as module
from stackyard.mesh.hosts import Folder, Host
from stackyard.mesh.link import HostError
from stackyard.mesh.preflight import NotReady, muster, plan_run
from stackyard.mesh.runs import Reached
from stackyard.mesh.standing import PLAN_LABEL, find
from stackyard.mesh.survey import FolderFacts
from stackyard.system.errors import CommandError, EngineError
from tests.schemas.published import refused as unfit
from tests.unit.machines import IMAGE, fleet, plan, wanted
from tests.unit.mesh.test_survey import CPU

TAG = "stackyard/fairseq:cpu"


class Link:
    """A host: its survey, images, containers, and whether it sees what others write."""

    def __init__(self, name, number, *, image=IMAGE, survey=CPU, containers=(), sees=True):
        self.host = Host(name=name, ssh=name)
        self._survey = survey.replace("192.0.2.2", f"192.0.2.{number}")
        self._image, self._containers, self._sees = image, containers, sees
        self.asked, self.engine = [], self

    def info(self):
        return {"DockerRootDir": "/var/lib/docker", "ServerVersion": "29.0"}

    def image(self, tag):
        if isinstance(self._image, Exception):
            raise self._image
        return SimpleNamespace(id=self._image) if self._image and tag == TAG else None

    def containers(self, label):
        if isinstance(self._containers, Exception):
            raise self._containers
        return [SimpleNamespace(**c) for c in self._containers]

    def shell(self, script, *words, seconds=30):
        self.asked.append(script.split()[0])
        if script.startswith("#"):
            return self._survey
        if script.startswith("for") and not self._sees:
            raise CommandError("command failed", code=1)
        return ""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1700000100.25)


HOSTS = fleet("a", "b", "c", folders={"/shared": Folder(source="/srv/shared", shared=True)})


def mustered(*links, failed=None, hosts=HOSTS):
    there = {link.host.name: link for link in links}
    return there, muster(there, failed or {}, hosts)


def three(**changes):
    return [Link(name, n, **changes.get(name, {})) for n, name in enumerate("abc", 2)]


def planned(links, found, hosts=HOSTS, **changes):
    return plan_run(links, hosts, found, wanted(images={}, **changes))


def refused(links, found, **changes):
    with pytest.raises(NotReady) as caught:
        planned(links, found, **changes)
    return caught.value


def test_hosts_with_nothing_wrong_are_planned():
    made, warnings = planned(*mustered(*three()))
    assert [(node.name, node.address) for node in made.nodes] == [
        ("a", "192.0.2.2"), ("b", "192.0.2.3"), ("c", "192.0.2.4"),
    ]  # fmt: skip
    assert (made.image, warnings) == (IMAGE, [])


def test_everything_wrong_on_every_host_is_told_at_once():
    old = CPU.replace("1700000100.25", "1700009999.25")
    links, found = mustered(
        *three(b={"image": "", "survey": old}, c={"sees": False}),
        failed={"d": HostError("d", "its host key has changed", why="@@\nHost key", hint="ask")},
    )
    error = refused(links, found)
    assert error.exit_code == 3
    assert error.what == "nothing was started: 4 problems on d, c, b"
    assert error.why.splitlines()[::2] == [
        "d: its host key has changed (Host key)",
        "c: /shared (/srv/shared) is said to be shared, but it does not show what the first host"
        " writes there",
        f"b: it does not hold {TAG}",
        "b: its clock is 9899 s ahead of this machine's",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"image": EngineError("the engine is busy")},
        {"containers": EngineError("the engine is busy")},
        {"survey": "Last login: today\n"},
        {"survey": CPU[:400]},
    ],
)
def test_a_host_that_answers_in_part_is_told_and_keeps_the_run_from_starting(changes):
    error = refused(*mustered(*three(b=changes)))
    assert {problem.host for problem in error.problems} == {"b"}


def test_when_no_host_answers_every_one_is_told():
    failed = {name: HostError(name, "it does not answer") for name in "abc"}
    error = refused(*mustered(failed=failed))
    assert [problem.host for problem in error.problems] == ["a", "b", "c"]


def test_when_one_host_does_not_answer_the_others_are_not_enough():
    links = three()[:2]
    error = refused(*mustered(*links, failed={"c": HostError("c", "it does not answer")}))
    assert error.what == "nothing was started: 1 problem on c"


def test_a_folder_that_is_not_said_to_be_shared_is_not_tried():
    hosts = fleet("a", "b", "c", folders={"/shared": Folder(source="/srv/shared")})
    links, found = mustered(*three(c={"sees": False}), hosts=hosts)
    assert planned(links, found, hosts=hosts)[0]
    assert all(link.asked == ["#"] for link in links.values())


def test_what_is_written_to_try_a_shared_folder_is_removed():
    links, found = mustered(*three(c={"sees": False}))
    assert found.unshared == {"/shared": ("c",)}
    assert links["a"].asked[-2:] == [":", "rm"]


def container(node, state="running", text=None):
    made = plan()
    labels = {PLAN_LABEL: made.text() if text is None else text, "stackyard.node": node}
    return {"labels": labels, "state": state, "id": f"id-{node}"}


def test_a_run_that_is_there_already_is_told_on_its_hosts():
    error = refused(*mustered(*three(a={"containers": [container("a")]})), run="demo")
    assert [(p.host, p.what) for p in error.problems] == [
        ("a", "run 'demo' is on it already (stack fairseq)"),
        ("b", "run 'demo' is on it already (stack fairseq)"),
    ]


def test_runs_are_found_by_their_containers_labels():
    strange = [container("a", text="{}"), container("nobody")]
    links = three(a={"containers": [container("a"), *strange]},
                  b={"containers": [container("b", "exited")]},
                  c={"containers": EngineError("the engine is busy")})  # fmt: skip
    found, failed = find({link.host.name: link for link in links})
    assert list(found) == ["demo"] and list(failed) == ["c"]
    run = found["demo"]
    assert (run.containers, run.states, run.missing) == (
        {"a": "id-a"}, {"a": "running", "b": "exited"}, ("b",),
    )  # fmt: skip


# What `doctor --hosts` says of the same hosts


@pytest.fixture
def healthy(monkeypatch):
    """Hosts whose health is not asked for, since they run no python3."""
    monkeypatch.setattr(
        host_table.host_health, "examine", lambda links, facts: dict.fromkeys(facts, ())
    )
    monkeypatch.setattr(host_table.host_health, "summary", lambda found: "")


def examined(links, found, hosts=HOSTS, **changes):
    there = Reached(fleet=hosts, links=links, failed={})
    return host_table.inspect(there, found, wanted(run="", images={}, **changes))


def test_the_answer_of_doctor_fits_its_schema(monkeypatch):
    finding = Finding(name="pcie", state=OK, what="its best", gpu=0)
    monkeypatch.setattr(
        host_table.host_health, "examine", lambda links, facts: dict.fromkeys(facts, (finding,))
    )
    links, found = mustered(*three())
    answer = examined(links, found)
    assert set(answer["health"]) == set(answer["pairs"]) == {"a", "b", "c"}
    assert unfit("answers/doctor", answer) == []


def test_doctor_names_what_up_would_refuse_in_the_same_words(healthy):
    hosts = replace(HOSTS, folders={**HOSTS.folders, "/data": Folder(source="~/data")})
    links, found = mustered(
        *three(b={"image": "", "survey": CPU}, c={"sees": False}),
        failed={"d": HostError("d", "its host key has changed", why="@@\nHost key", hint="ask")},
        hosts=hosts,
    )
    found.facts["a"].folders["/data"] = FolderFacts(path="")
    error = refused(links, found, hosts=hosts)
    told = examined(links, found, hosts=hosts)
    said = [f"{p.host}: {p.what}" + (f"; {p.hint}" if p.hint else "") for p in error.problems]
    assert len(said) == 4 and told["remarks"][:4] == said
    assert "a: it has no folder ~/data; mkdir -p ~/data there; it is /data in the nodes" in said
    assert not told["ready"]


def test_doctor_says_how_an_image_comes_to_hosts_that_may_wait_for_a_pull(healthy):
    links, found = mustered(*three(a={"image": ""}, b={"image": ""}, c={"image": ""}))
    told = examined(links, found)
    assert told["ready"]
    assert [line.partition(" brings")[0] for line in told["remarks"][:3]] == [
        f"{host}: it does not hold {TAG}; invoke pull fairseq --base cpu --hosts ..."
        for host in "abc"
    ]
    links, found = mustered(*three(b={"image": IMAGE.replace("0", "9")}))
    assert not examined(links, found)["ready"]


def test_without_a_stack_doctor_asks_for_no_image_but_for_folders(healthy):
    hosts = replace(HOSTS, folders={"/data": Folder(source="~/data")})
    links, found = mustered(*three(a={"image": EngineError("busy")}), hosts=hosts)
    assert examined(links, found, hosts=hosts, tag="")["ready"]
    found.facts["a"].folders["/data"] = FolderFacts(path="")
    assert not examined(links, found, hosts=hosts, tag="")["ready"]
