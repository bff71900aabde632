"""The way to a host: what ssh is told, and what its last words mean."""

import shutil
import threading

import pytest

from stackyard.mesh import link
from stackyard.mesh.hosts import Host
from stackyard.mesh.link import HostError, Link, explain, linked, on_each, ssh_options
from stackyard.system.errors import EngineError, StackyardError

HOST = Host(name="study", ssh="10.0.0.1")
WHOLE = Host(name="study", ssh="study.lab", user="me", port=2022, key="~/.ssh/lab", config="~/c")

# As OpenSSH 9.2 says it.
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Offending ED25519 key in /home/me/.ssh/known_hosts:1
Host key for [127.0.0.1]:22922 has changed and you have requested strict checking.
Host key verification failed."""
UNKNOWN = """\
No ED25519 host key is known for [127.0.0.1]:22922 and you have requested strict checking.
Host key verification failed."""
SAID = {
    CHANGED: "its host key has changed",
    UNKNOWN: "its host key is not known",
    "me@10.0.0.1: Permission denied (publickey).": "the login is refused",
    "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\n"
    "Disconnected from 10.0.0.1 port 22": "the login is refused",
    "ssh: connect to host 127.0.0.1 port 1: Connection refused": "nothing listens for ssh there",
    "ssh: Could not resolve hostname no-such-host.invalid: Name or service not known":
        "there is no such host name",
    "ssh: connect to host 10.0.0.9 port 22: Connection timed out": "it does not answer",
    "Connection timed out during banner exchange\nConnection to 10.0.0.9 port 22 timed out":
        "it does not answer",
    "ssh: connect to host 10.0.0.9 port 22: No route to host": "it cannot be reached",
    "ssh: connect to host fe80::1%lo port 22: Network is unreachable": "it cannot be reached",
    "kex_exchange_identification: read: Connection reset by peer\n"
    "Connection reset by 127.0.0.1 port 22924": "it closes the connection before the login",
    "command-line: line 0: Bad configuration option: foo": "your ssh configuration is wrong",
    "Can't open user config file /no: No such file or directory":
        "your ssh configuration is not there",
    "something new": "the login failed",
    "": "the login failed",
}  # fmt: skip


@pytest.mark.parametrize(("said", "meaning"), SAID.items(), ids=[s[:30] for s in SAID])
def test_what_ssh_says_last_is_explained_with_what_to_do(said, meaning):
    what, hint = explain(said, HOST)
    assert what == meaning
    assert hint and "{" not in hint


def test_what_to_type_is_the_login_that_failed():
    login = explain("x", WHOLE)[1]
    home = ssh_options(WHOLE)[1].removesuffix("/c")
    assert login == f"try: ssh -F {home}/c -i {home}/.ssh/lab -l me -p 2022 study.lab"
    assert "ssh-keygen -R '[study.lab]:2022', then ssh -F" in explain(CHANGED, WHOLE)[1]
    assert "ssh-keygen -R 10.0.0.1, then ssh 10.0.0.1 once" in explain(CHANGED, HOST)[1]


def test_ssh_asks_nothing_and_takes_no_unknown_host_key():
    words = ssh_options(HOST)
    options = {words[i + 1] for i, word in enumerate(words) if word == "-o"}
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10"} <= options
    assert not {"-l", "-p", "-i", "-F"} & set(words)


def test_ssh_is_told_what_the_inventory_says():
    words = ssh_options(WHOLE)
    pairs = {flag: words[words.index(flag) + 1] for flag in ("-l", "-p", "-i", "-F")}
    assert (pairs["-l"], pairs["-p"]) == ("me", "2022")
    assert pairs["-i"].startswith("/") and pairs["-i"].endswith("/.ssh/lab")
    assert pairs["-F"].startswith("/")


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(HostError, match="too long for a socket") as caught:
        Link(HOST, tmp_path / ("x" * 100), 0)
    assert "TMPDIR" in caught.value.hint


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_a_host_that_nothing_listens_on_is_told_with_what_ssh_said(tmp_path):
    with linked([Host(name="a", ssh="127.0.0.1", port=1, config="none")], tmp_path) as found:
        links, failed = found
    assert links == {}
    assert failed["a"].what == "a: nothing listens for ssh there"
    assert "Connection refused" in failed["a"].why
    assert list(tmp_path.iterdir()) == []


class Reached:
    """A link that works, or an engine behind it that does not."""

    closed: tuple[str, ...] = ()

    def __init__(self, host, folder, number):
        if host.name == "down":
            raise HostError(host.name, "it does not answer")
        self.host = host

    @property
    def engine(self):
        if self.host.name == "bare":
            raise HostError(self.host.name, "no container engine answers")
        return "engine"

    def close(self):
        Reached.closed = (*Reached.closed, self.host.name)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(link, "Link", Reached)
    monkeypatch.setattr(Reached, "closed", ())


def hosts(*names):
    return [Host(name=name, ssh=name) for name in names]


def test_every_host_that_does_not_answer_is_told_and_the_others_are_there(fake, tmp_path):
    with linked(hosts("a", "down", "bare", "b"), tmp_path) as (links, failed):
        assert list(links) == ["a", "b"]
        assert {name: error.what for name, error in failed.items()} == {
            "down": "down: it does not answer", "bare": "bare: no container engine answers",
        }  # fmt: skip
        assert Reached.closed == ("bare",)
    assert sorted(Reached.closed) == ["a", "b", "bare"]


def test_hosts_without_an_engine_are_reached_where_none_is_needed(fake, tmp_path):
    with linked(hosts("a", "down", "bare"), tmp_path, engines=False) as (links, failed):
        assert (list(links), list(failed)) == (["a", "bare"], ["down"])
    assert sorted(Reached.closed) == ["a", "bare"]


def test_all_links_are_closed_whatever_happens(fake, tmp_path):
    with pytest.raises(KeyError), linked(hosts("a", "b"), tmp_path):
        raise KeyError
    assert sorted(Reached.closed) == ["a", "b"]


def test_the_same_is_done_on_all_hosts_at_the_same_time():
    meeting = threading.Barrier(3, timeout=10)

    def work(name):
        meeting.wait()
        if name == "B":
            raise EngineError("b is broken")
        return name.lower()

    answers, failed = on_each({name: name.upper() for name in "abc"}, work)
    assert answers == {"a": "a", "c": "c"}
    assert {name: str(error) for name, error in failed.items()} == {"b": "b is broken"}


def test_what_is_no_error_of_ours_is_not_swallowed():
    def work(name):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        on_each({"a": "a"}, work)
    assert issubclass(HostError, StackyardError)


def test_nothing_is_done_on_no_hosts():
    assert on_each({}, lambda link: 1) == ({}, {})
