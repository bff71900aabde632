"""Reach a host through one ssh connection that carries its engine's socket and commands.

Owns the ssh process of a host and the explanation of its failures. The caller's own ssh does the
work, with the caller's keys, agent, aliases and jump hosts; the host needs an sshd and, for what is
done with images, a container engine. Nothing is installed there. Unknown and changed host keys are
refused.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from stackyard.mesh.hosts import Host
from stackyard.system import process
from stackyard.system.engine import Engine
from stackyard.system.errors import EngineError, StackyardError

CONNECT_SECONDS = 10
# ssh drops a connection after three of these without an answer; only a run's lease ends the run.
ALIVE_SECONDS = 5
# The path of a unix socket holds 107 characters, and ssh adds 17 while it makes one.
_LONGEST = 107 - 17
T = TypeVar("T")


class HostError(StackyardError):
    """Report that a host cannot be used, and why."""

    def __init__(self, host: str, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(f"{host}: {what}", why=why, hint=hint)
        self.host = host


def cause(host: str, error: StackyardError) -> str:
    """Return what is wrong with a host, without its name in front."""
    return error.what.removeprefix(f"{host}: ")


def remark(host: str, what: str, hint: str = "") -> str:
    """Return what is wrong with a host and what to do about it, as one line."""
    return f"{host}: {what}" + (f"; {hint}" if hint else "")


def ssh_options(host: Host) -> list[str]:
    """Return the options of every ssh to a host."""
    words = [
        "-o", "BatchMode=yes",
        "-o", "StrictHostKeyChecking=yes",
        "-o", f"ConnectTimeout={CONNECT_SECONDS}",
        "-o", f"ServerAliveInterval={ALIVE_SECONDS}",
        "-o", "ServerAliveCountMax=3",
    ]  # fmt: skip
    return [*_own_options(host), *words]


def _own_options(host: Host) -> list[str]:
    """Return ssh's options from the inventory: configuration, key, user and port."""
    paths = {"-F": host.config, "-i": host.key}
    words = [w for flag, path in paths.items() if path
             for w in (flag, str(Path(path).expanduser()))]  # fmt: skip
    words += ["-l", host.user] if host.user else []
    return [*words, "-p", str(host.port)] if host.port else words


class Link:
    """Reach one host that answers.

    Args:
        folder: a private folder for the connection's sockets.
        number: of the host, unique in that folder.

    Raises:
        HostError: ssh cannot log in, or no engine answers there.
    """

    def __init__(self, host: Host, folder: Path, number: int) -> None:
        self.host = host
        self._control, self._socket = folder / f"{number}.c", folder / f"{number}.s"
        if len(str(self._control)) > _LONGEST:
            raise HostError(host.name, "the temporary folder's path is too long for a socket",
                            why=str(folder), hint="set TMPDIR to a shorter one")  # fmt: skip
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        self._engine: Engine | None = None
        self._ssh = process.Companion(
            [
                "ssh", "-N", "-M", "-S", str(self._control), *ssh_options(self.host),
                "-o", "ControlPersist=no",
                "-o", "ExitOnForwardFailure=yes",
                "-o", "StreamLocalBindMask=0177",
                "-L", f"{self._socket}:{self.host.engine}",
                "--", self.host.ssh,
            ]
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + 2 * CONNECT_SECONDS
        while not (self._control.exists() and self._socket.exists()):
            if not self._ssh.running:
                what, hint = explain(self._ssh.said, self.host)
                raise HostError(self.host.name, what, why=self._ssh.said, hint=hint)
            if time.monotonic() > end:
                raise HostError(self.host.name, "the login takes too long", why=self._ssh.said)
            time.sleep(0.01)

    @property
    def alive(self) -> bool:
        """Return whether the ssh process runs."""
        return self._ssh.running

    @property
    def engine(self) -> Engine:
        """Return the host's container engine; connect to it at the first use.

        Raises:
            HostError: no engine answers.
        """
        with self._lock:
            if self._engine is None:
                try:
                    self._engine = Engine(str(self._socket))
                except EngineError as error:
                    raise HostError(
                        self.host.name,
                        f"no container engine answers at {self.host.engine}",
                        why=self._ssh.said or error.why,
                        hint=f"on {self.host.name}: systemctl start docker; the user who logs in"
                        " must be in the group docker (or root); `engine:` in hosts.yml names"
                        " another socket; its sshd must forward sockets"
                        " (AllowStreamLocalForwarding)",
                    ) from error
        return self._engine

    @property
    def docker_host(self) -> str:
        """Return DOCKER_HOST for this host, valid while the link is open."""
        return f"unix://{self._socket}"

    def shell(self, script: str, *words: str, seconds: float = 30.0) -> str:
        """Run a POSIX shell script on the host, with `words` as `$1` and so on; return its output.

        Raises:
            HostError: it failed, or took longer than `seconds`.
        """
        return self.send(script.encode(), "sh", "-s", "--", *words, seconds=seconds)

    def words(self, *words: str) -> list[str]:
        """Return the local command line that runs a command on the host over this connection."""
        argv = ["ssh", "-S", str(self._control), *ssh_options(self.host), "--", self.host.ssh]
        return [*argv, shlex.join(words)]

    def send(self, data: bytes, *words: str, seconds: float = 60.0) -> str:
        """Run a command on the host with `data` as its input; return its output.

        Raises:
            HostError: it failed, or took longer than `seconds`.
        """
        try:
            return process.run(self.words(*words), stdin=data, timeout=seconds).output
        except StackyardError as error:
            raise HostError(self.host.name, error.what, why=error.why) from error

    def renew(self, *, force: bool = False) -> None:
        """Connect anew if the connection broke.

        Args:
            force: also if its ssh runs; one that is stopped passes nothing on.

        Raises:
            HostError: the host does not answer.
        """
        with self._lock:
            if force or not self.alive:
                self.close()
                self._open()

    def answers(self) -> bool:
        """Return whether the host and its engine answer."""
        try:
            return self.alive and self.engine.answers()
        except HostError:
            return False

    def close(self) -> None:
        """End the ssh connection to the host, and its engine's."""
        if self._engine is not None:
            self._engine.close()
        self._ssh.end()
        for path in (self._control, self._socket):
            with contextlib.suppress(OSError):
                path.unlink()


_SAYINGS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed",
     "somebody else may be answering: ask who looks after {host}; if the machine was installed"
     " anew, ssh-keygen -R {known}, then {login} once and compare the fingerprint"),
    ("host key is known for", "its host key is not known",
     "{login} once and compare the fingerprint it shows"),
    ("Host key verification failed", "its host key is not known",
     "{login} once and compare the fingerprint it shows"),
    ("onfiguration option", "your ssh configuration is wrong", "mend what ssh names above"),
    ("Can't open user config file", "your ssh configuration is not there",
     "`ssh_config:` in hosts.yml"),
    ("Too many authentication failures", "the login is refused",
     "ssh offers it too many keys: `key:` in hosts.yml, or IdentitiesOnly in ~/.ssh/config"),
    ("Permission denied", "the login is refused",
     "{login} must log in without a question: a key of yours in its authorized_keys, or `key:`"
     " and `user:` in hosts.yml"),
    ("Could not resolve hostname", "there is no such host name",
     "`address:` in hosts.yml, or an alias in ~/.ssh/config"),
    ("Connection refused", "nothing listens for ssh there", "`port:` in hosts.yml; start its sshd"),
    ("timed out", "it does not answer", "is {host} up, and reachable from here?"),
    ("No route to host", "it cannot be reached", "is {host} up, and reachable from here?"),
    ("Network is unreachable", "it cannot be reached", "is {host} up, and reachable from here?"),
    ("kex_exchange_identification", "it closes the connection before the login",
     "does its sshd run, has it room (MaxStartups), and does it take logins from here?"),
)  # fmt: skip


def explain(said: str, host: Host) -> tuple[str, str]:
    """Return the meaning of ssh's last lines, and what to do."""
    login = shlex.join(["ssh", *_own_options(host), host.ssh])
    known = shlex.quote(f"[{host.ssh}]:{host.port}") if host.port not in (0, 22) else host.ssh
    for words, what, hint in _SAYINGS:
        if words in said:
            return what, hint.format(host=host.name, login=login, known=known)
    return "the login failed", f"try: {login}"


@contextlib.contextmanager
def linked(
    hosts: Sequence[Host], folder: Path, *, engines: bool = True
) -> Iterator[tuple[dict[str, Link], dict[str, HostError]]]:
    """Log in to all hosts at the same time; yield the links, and the errors of other hosts.

    Args:
        engines: whether hosts need a container engine; without it none is asked.
    """
    links: dict[str, Link] = {}
    failed: dict[str, HostError] = {}

    def one(number: int) -> Link:
        link = Link(hosts[number], folder, number)
        try:
            if engines:
                link.engine  # noqa: B018 - connects here, so that all connect at the same time
        except BaseException:
            link.close()
            raise
        return link

    try:
        with ThreadPoolExecutor(max(1, min(64, len(hosts)))) as pool:
            for number, future in enumerate([pool.submit(one, n) for n in range(len(hosts))]):
                name = hosts[number].name
                try:
                    links[name] = future.result()
                except HostError as error:
                    failed[name] = error
        yield links, failed
    finally:
        for link in links.values():
            link.close()


def on_each(
    links: Mapping[str, Link], work: Callable[[Link], T], *, at_once: int = 64
) -> tuple[dict[str, T], dict[str, StackyardError]]:
    """Do the same work on all hosts at the same time; return answers and failures, by host."""
    answers: dict[str, T] = {}
    failed: dict[str, StackyardError] = {}
    with ThreadPoolExecutor(max(1, min(at_once, len(links)))) as pool:
        futures = {name: pool.submit(work, link) for name, link in links.items()}
        for name, future in futures.items():
            try:
                answers[name] = future.result()
            except StackyardError as error:
                failed[name] = error
    return answers, failed
