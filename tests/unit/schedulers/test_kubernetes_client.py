"""Every kubectl command line, and what becomes of what kubectl says. kubectl itself is replaced."""

import json
import stat

import pytest

from stackyard.schedulers import kubernetes_client
from stackyard.schedulers.kubernetes import render
from stackyard.system import process
from stackyard.system.errors import CommandError, NothingToRunOn, StackyardError
from stackyard.system.process import Finished
from tests.unit.kubernetes_jobs import job, keys, over_ssh, site

BEGIN = ["kubectl", "--namespace=default"]
MADE = json.dumps({
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "toy", "uid": "u-1"},
})  # fmt: skip
OWNED = json.dumps({"metadata": {"ownerReferences": [{
    "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "toy", "uid": "u-1",
}]}})  # fmt: skip
TEXTS = render(over_ssh(), site(), keys=keys())


class Kubectl:
    """Stands for the process: answers in order, and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked, self.given = list(answers), [], []

    def run(self, argv, *, stdin=None, on_line=None, timeout=None):
        self.asked.append(argv)
        self.given.append(stdin)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        for line in answer.splitlines():
            if on_line:
                on_line(line)
        return Finished(code=0, output=answer)


@pytest.fixture
def kubectl(monkeypatch):
    def answering(*answers):
        found = Kubectl(*answers)
        monkeypatch.setattr(process, "run", found.run)
        monkeypatch.setattr(kubernetes_client.shutil, "which", lambda name: f"/usr/bin/{name}")
        return found

    return answering


def refused(why):
    return CommandError("command failed with exit code 1: kubectl", code=1, why=why)


CREATED = ("secret/toy-keys", "configmap/toy-files", MADE)


# Submitting


def test_a_run_is_created_and_then_owns_its_files_and_keys(kubectl):
    found = kubectl(*CREATED, "patched", "patched")
    assert kubernetes_client.submit(site(), TEXTS) == ""
    patch = ["--type=merge", "-p", OWNED]
    assert found.asked == [
        [*BEGIN, "create", "-f", "-", "-o", "name"],
        [*BEGIN, "create", "-f", "-", "-o", "name"],
        [*BEGIN, "create", "-f", "-", "-o", "json"],
        [*BEGIN, "patch", "secret/toy-keys", *patch],
        [*BEGIN, "patch", "configmap/toy-files", *patch],
    ]
    assert found.given == [text.encode() for text in TEXTS.values()] + [None, None]


def test_keys_are_in_no_argument(kubectl):
    found = kubectl(*CREATED, "", "")
    kubernetes_client.submit(site(), TEXTS)
    lines = [line for line in TEXTS["secret.yaml"].splitlines() if "_key" in line]
    data = [line.split()[-1].strip('"') for line in lines]
    assert len(data) == 4
    assert not [word for argv in found.asked for word in argv for key in data if key in word]


def test_a_cluster_is_named_where_there_are_several(kubectl):
    found = kubectl("configmap/toy-files", MADE, "")
    where = site(context="far", namespace="team")
    kubernetes_client.submit(where, render(job(), where))
    assert {tuple(argv[:3]) for argv in found.asked} == {
        ("kubectl", "--context=far", "--namespace=team")
    }


def test_what_was_created_is_removed_when_the_rest_is_refused(kubectl):
    found = kubectl("secret/toy-keys", "configmap/toy-files", refused("quota"), "", "")
    with pytest.raises(CommandError, match="quota"):
        kubernetes_client.submit(site(), TEXTS)
    delete = ["delete", "--ignore-not-found", "secret/toy-keys", "configmap/toy-files"]
    assert found.asked[-1] == [*BEGIN, *delete]


def test_nothing_of_another_run_of_that_name_is_removed(kubectl):
    found = kubectl(refused('secrets "toy-keys" already exists'))
    with pytest.raises(CommandError, match="cancel it, or name this one otherwise"):
        kubernetes_client.submit(site(), TEXTS)
    assert len(found.asked) == 1


def test_why_creating_failed_is_said_even_when_removing_fails_too(kubectl):
    kubectl("secret/toy-keys", refused("quota"), refused("gone"), refused("gone"))
    with pytest.raises(CommandError, match="quota"):
        kubernetes_client.submit(site(), TEXTS)


def test_an_interrupt_leaves_nothing_that_was_created(kubectl):
    found = kubectl("secret/toy-keys", KeyboardInterrupt(), "", "")
    with pytest.raises(KeyboardInterrupt):
        kubernetes_client.submit(site(), TEXTS)
    assert found.asked[-1][-1] == "secret/toy-keys"


def test_a_run_whose_creation_was_not_answered_is_removed(kubectl):
    late = CommandError("kubectl ran past its limit of 60 s", code=124)
    found = kubectl("secret/toy-keys", "configmap/toy-files", late, "", "")
    with pytest.raises(CommandError, match="past its limit"):
        kubernetes_client.submit(site(), TEXTS)
    assert found.asked[-2] == [*BEGIN, "delete", "--ignore-not-found", "--wait=false", "-f", "-"]
    assert found.given[-2] == list(TEXTS.values())[-1].encode()


@pytest.mark.parametrize(
    "why", ['jobsets "toy" already exists', "Error from server (Forbidden): exceeded quota"]
)
def test_a_run_of_the_same_name_without_files_is_not_removed(kubectl, why):
    taken = refused(why)
    found = kubectl("secret/toy-keys", "configmap/toy-files", taken, "")
    with pytest.raises(CommandError):
        kubernetes_client.submit(site(), TEXTS)
    assert "-f" not in found.asked[-1]


def test_a_run_that_may_not_own_its_keys_runs_and_says_so(kubectl):
    kubectl(*CREATED, refused("secrets is forbidden"))
    said = kubernetes_client.submit(site(), TEXTS)
    assert said.startswith("secret/toy-keys is not removed together with the run")
    assert said.endswith("secrets is forbidden")


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ('no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"', "set kind to job"),
        ('the server doesn\'t have a resource type "jobsets"', "set kind to job"),
        ("Error from server (Forbidden): jobs is forbidden", "docs/howto/kubernetes.md"),
        ("something new", ""),
    ],
)
def test_what_clusters_refuse_most_often_comes_with_what_to_do(kubectl, why, hint):
    kubectl(refused(why))
    with pytest.raises(CommandError) as caught:
        kubernetes_client.status(site(), "toy")
    assert why in caught.value.why
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)


def test_without_kubectl_nothing_runs_and_the_error_says_what_else_can_be_done(monkeypatch):
    monkeypatch.setattr(kubernetes_client.shutil, "which", lambda name: None)
    with pytest.raises(NothingToRunOn, match="export the run's files") as caught:
        kubernetes_client.submit(site(), TEXTS)
    assert caught.value.exit_code == 3


# Looking at a run


def test_the_state_of_a_run_is_asked_for_by_name_and_its_pods_by_label(kubectl):
    found = kubectl(f"Warning: v1alpha2 is old\n{MADE}", json.dumps({"items": []}))
    assert kubernetes_client.status(site(), "toy").state == "starting"
    get = ["get", "jobsets.jobset.x-k8s.io", "toy", "--ignore-not-found", "-o", "json"]
    assert found.asked == [
        [*BEGIN, *get],
        [*BEGIN, "get", "pods", "--selector", "stackyard.run=toy", "-o", "json"],
    ]


def test_a_run_that_is_gone_is_no_error(kubectl):
    found = kubectl("")
    assert kubernetes_client.status(site(kind="job"), "toy").state == "gone"
    assert found.asked[0][2:5] == ["get", "jobs.batch", "toy"]


def test_lines_come_with_the_pod_that_said_them(kubectl):
    lines = [
        "[pod/toy-node-0-0-abc12/train] loss 1.0",
        "[pod/toy-node-0-1-x9z00/train] ",
        "[pod/toy-node-0-1-x9z00/train]   indented [pod/a/b]",
        "No resources found",
    ]
    found = kubectl("\n".join(lines))
    heard = []
    kubernetes_client.logs(site(), "toy", lambda pod, line: heard.append((pod, line)), pods=2)
    assert heard == [
        ("toy-node-0-0", "loss 1.0"),
        ("toy-node-0-1", ""),
        ("toy-node-0-1", "  indented [pod/a/b]"),
        ("", "No resources found"),
    ]
    words = ["logs", "--selector", "stackyard.run=toy", "--container=train", "--prefix"]
    assert found.asked == [[*BEGIN, *words, "--tail=-1", "--max-log-requests=2"]]


def test_following_asks_all_pods_at_once(kubectl):
    found = kubectl("")
    kubernetes_client.logs(site(), "toy", lambda *said: None, pods=64, follow=True)
    assert found.asked[0][-2:] == ["--max-log-requests=64", "--follow"]


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("jobset", "jobsets.jobset.x-k8s.io,configmaps,secrets"),
        ("job", "jobs.batch,services,configmaps,secrets"),
    ],
)
def test_cancelling_removes_all_of_a_run_by_its_label_and_waits(kubectl, kind, kinds):
    found = kubectl("")
    kubernetes_client.cancel(site(kind=kind), "toy")
    words = ["delete", kinds, "--selector", "stackyard.run=toy", "--cascade=foreground"]
    assert found.asked == [[*BEGIN, *words, "--ignore-not-found", "--wait", "--timeout=120s"]]


# Exporting


def test_exported_keys_are_readable_by_their_owner_alone_and_this_is_said(tmp_path):
    said = kubernetes_client.export(TEXTS, tmp_path / "run")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert modes["secret.yaml"] == 0o600
    assert set(modes) == set(TEXTS)
    for name, text in TEXTS.items():
        assert (tmp_path / "run" / name).read_text() == text
    assert "kubectl create -f secret.yaml -f files.yaml -f jobset.yaml" in said[0]
    assert "private keys (mode 0600)" in said[1]


def test_a_run_without_keys_says_nothing_of_keys(tmp_path):
    assert len(kubernetes_client.export(render(job(), site()), tmp_path)) == 1


def test_no_exported_file_is_overwritten(tmp_path):
    (tmp_path / "files.yaml").write_text("mine")
    with pytest.raises(StackyardError, match="name an empty folder"):
        kubernetes_client.export(render(job(), site()), tmp_path)
    assert (tmp_path / "files.yaml").read_text() == "mine"
