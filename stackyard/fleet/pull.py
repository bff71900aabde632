"""A verified release onto every host: once out of the registry, then from host to host.

Owns the steps of a pull: what hosts lack, the rounds in which the parcel travels, checking and
loading on each host, and telling how far each is. A host is only ever given an image whose
signature and digests were checked there; what breaks off stays, and the next try goes on with it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from stackyard import parcel as parcels
from stackyard import process
from stackyard.archive import pack
from stackyard.errors import EngineError, ReleaseError, StackyardError
from stackyard.fleet import relay
from stackyard.fleet.link import HostError, Link, on_each
from stackyard.fleet.muster import Muster
from stackyard.fleet.plan import free_port
from stackyard.fleet.relay import Keys, Stop
from stackyard.fleet.survey import Network
from stackyard.parcel import Parcel
from stackyard.signing import NAMESPACE
from stackyard.verify import Verified

SCRIPT = Path(__file__).resolve().parent / "relay.sh"
ROUNDS = 4
PAUSE_SECONDS = 2.0
# A host that gets nothing for so long, once the sender is done, gets nothing more in this round.
STALL_SECONDS = 12.0
LOAD_SECONDS = 1800.0
Blobs = Callable[[str, int], Iterator[bytes]]
Told = Callable[[Mapping[str, "Progress"]], None]
_START = (
    'for at in /dev/shm "${TMPDIR:-/tmp}"; do d=$(mktemp -d "$at/stackyard-pull.XXXXXXXXXX"'
    ' 2> /dev/null) && break; done; tar -x -C "$d" && exec sh "$d/relay.sh" prepare "$d" "$1"'
)


@dataclass
class Progress:
    """How far one host is.

    Attributes:
        at: bytes of the parcel that are there; `moved` came in this pull.
        state: `waiting`, `receiving`, `checking`, `loading`, `held`, `pulled` or `failed`.
        digest: whether its engine knows the registry's digest of the image.
    """

    state: str = "waiting"
    at: int = 0
    moved: int = 0
    size: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    why: str = ""
    digest: str = ""
    changed: float = field(default_factory=time.monotonic)

    def reached(self, count: int) -> None:
        """So many bytes are there now."""
        now = time.monotonic()
        if count > self.at:
            self.rate = 0.5 * self.rate + 0.5 * (count - self.at) / max(now - self.changed, 0.2)
            self.moved += count - self.at
            self.at, self.changed = count, now


class Puller:
    """One pull onto several hosts.

    Args:
        links: hosts that answer.
        network: the address of each that the others reach.
        blobs: bytes of a layer from a place on.
        told: is given every host's progress, about once a second.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        found: Muster,
        network: Network,
        verified: Verified,
        signers: bytes,
        blobs: Blobs,
        told: Told,
    ) -> None:
        self._links, self._found, self._network = links, found, network
        self._verified, self._signers, self._blobs = verified, signers, blobs
        self._told = told
        self.progress = {name: Progress() for name in links}
        self._started = time.monotonic()
        self._keys = Keys(int(time.time()))
        self._folders: dict[str, str] = {}
        self._stops: dict[str, Stop] = {}
        self._servers: dict[str, process.Companion] = {}
        self._loading: dict[str, Future[None]] = {}
        self._broke: StackyardError | None = None

    def pull(self, config: bytes) -> None:
        """Bring the image to every host that lacks it; how that went is in `progress`."""
        lacking = self._lacking()
        if not lacking:
            return
        layers = self._verified.release.layers
        parcel = parcels.make_parcel(config, layers, lacking.values())
        for name in lacking:
            self.progress[name].size = parcel.size
        with self._telling(), ThreadPoolExecutor(max(1, len(lacking))) as pool:
            try:
                self._prepare(list(lacking), parcel)
                for number in range(ROUNDS):
                    if not self._round(parcel, pool):
                        break
                    time.sleep(PAUSE_SECONDS * (number + 1))
                self._give_up()
                for future in self._loading.values():
                    future.result()
            finally:
                for server in self._servers.values():
                    server.end()

    def _lacking(self) -> dict[str, set[str]]:
        """What each host lacks; hosts that hold the image are done."""
        release = self._verified.release
        wanted = [str(layer["diff_id"]) for layer in release.layers]

        def ask(link: Link) -> set[str] | None:
            if link.engine.image(release.image_id) is not None:
                return None
            if not _takes_parts(self._found.engines[link.host.name]):
                return set(wanted)
            return parcels.lacking(wanted, link.engine.held_layers())

        answers, failed = on_each(self._links, ask)
        for name, error in failed.items():
            self._fail(name, error.what)
        for name, lacks in answers.items():
            if lacks is None:
                self._state(name, "held")
        return {name: lacks for name, lacks in answers.items() if lacks is not None}

    def _prepare(self, names: Sequence[str], parcel: Parcel) -> None:
        """Give every host its keys and what it checks, and have it take logins."""
        port = free_port({name: (self._found.facts[name], 1) for name in names})
        common = {
            "relay.sh": SCRIPT.read_bytes(),
            "release.json": self._verified.statement,
            "release.json.sig": self._verified.signature,
            "signers": self._signers,
            "namespace": NAMESPACE.encode(),
            "sums": relay.sums(parcel.carried),
        }

        def one(link: Link) -> None:
            name = link.host.name
            address = self._network.chosen[name].address
            files = {**common, **self._keys.of(name, address, port)}
            said = link.send(pack(files, mode=0o600), "sh", "-c", _START, "sh", parcel.name)
            told = _answers(said)
            self._folders[name] = told["keys"]
            self._stops[name] = Stop(name=name, address=address, port=port, user=told["user"])
            self.progress[name].at = int(told["have"])
            try:
                self._require_room(name, told, parcel)
                self._serve(link, parcel)
            except StackyardError:
                # Whoever serves removes the keys at its end; here nobody does.
                link.send(b"", "rm", "-rf", "--", told["keys"])
                raise

        _, failed = on_each({name: self._links[name] for name in names}, one)
        for name, error in failed.items():
            self._fail(name, error.what, error.why)

    def _require_room(self, name: str, told: Mapping[str, str], parcel: Parcel) -> None:
        """See that there is room for the parcel and for what the engine makes of it."""
        free = int(told["disk"]) * 1024
        coming = parcel.size - self.progress[name].at
        if "sshd" not in told["programs"].split() or "ssh" not in told["programs"].split():
            raise HostError(name, "it has no sshd or no ssh that could pass the image on",
                            hint="--via registry lets every host pull by itself")  # fmt: skip
        if free < coming:
            raise HostError(name, f"{coming / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are"
                            " free where its user's cache is")  # fmt: skip
        room = self._found.facts[name].engine_free_bytes
        carried = {digest for digest, _ in parcel.carried}
        layers = self._verified.release.layers
        need = parcel.size + sum(e["unpacked"] for e in layers if e["digest"] in carried)
        if room is not None and room < need:
            raise HostError(name, f"its engine needs {need / 1e9:.1f} GB to take the image and has"
                            f" {room / 1e9:.1f} GB", hint="invoke prune --hosts ...")  # fmt: skip

    def _serve(self, link: Link, parcel: Parcel) -> None:
        name, up = link.host.name, threading.Event()
        said: list[str] = []

        def heard(line: str) -> None:
            said.append(line)
            word, _, rest = line.partition(" ")
            if word == "at" and rest.isdecimal():
                self.progress[name].reached(int(rest))
            up.set()

        keys = self._folders[name]
        words = link.words("sh", f"{keys}/relay.sh", "serve", keys, parcel.name)
        self._servers[name] = process.Companion(words, on_line=heard, held=True)
        up.wait(20)
        if "serving" not in said:
            raise HostError(name, "it cannot take the image from other hosts",
                            why="\n".join(said) or self._servers[name].said)  # fmt: skip

    def _waiting(self) -> list[str]:
        return [n for n, p in self.progress.items() if p.state in ("waiting", "receiving")]

    def _round(self, parcel: Parcel, pool: ThreadPoolExecutor) -> bool:
        """Send the parcel through all hosts that still wait; whether somebody waits on."""
        self._drop_silent()
        names = sorted(self._waiting(), key=lambda name: -self.progress[name].at)
        if not names:
            return False
        after = relay.successors(names)
        for name in names:
            stops = [self._stops[other] for other in after[name]]
            files = self._keys.route(stops, self._folders[name])
            try:
                self._links[name].send(
                    pack(files, mode=0o600), "tar", "-x", "-C", self._folders[name]
                )
            except HostError as error:
                self._fail(name, error.what, error.why)
                return True
            self._state(name, "receiving")
        start = min(self.progress[name].at for name in names)
        first, keys = names[0], self._folders[names[0]]
        words = self._links[first].words("sh", f"{keys}/relay.sh", "receive", keys, str(start))
        feed = process.Companion(words, held=True)
        sender = threading.Thread(target=self._send, args=(feed, parcel, start), daemon=True)
        sender.start()
        try:
            self._follow(sender, parcel, names, pool)
        finally:
            feed.end()
            sender.join(10)
        return bool(self._waiting())

    def _send(self, feed: process.Companion, parcel: Parcel, start: int) -> None:
        try:
            for piece in parcel.pieces(start):
                chunks = self._blobs(piece.digest, piece.start) if piece.digest else [piece.data]
                for chunk in chunks:
                    if not feed.write(chunk):
                        return
        except StackyardError as error:
            self._broke = error
            return
        feed.finish(STALL_SECONDS * 100)

    def _follow(
        self, sender: threading.Thread, parcel: Parcel, names: Sequence[str],
        pool: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        """Wait until every host of a round has all, or gets nothing any more."""
        while True:
            for name in names:
                progress = self.progress[name]
                if progress.state == "receiving" and progress.at >= parcel.size:
                    self._state(name, "checking")
                    self._loading[name] = pool.submit(self._load, name, parcel)
            open_ = [name for name in names if self.progress[name].state == "receiving"]
            now = time.monotonic()
            if self._broke is not None:
                raise self._broke
            if not open_ or (
                not sender.is_alive()
                and all(now - self.progress[n].changed > STALL_SECONDS for n in open_)
            ):
                return
            if all(now - self.progress[n].changed > 5 * STALL_SECONDS for n in open_):
                return
            time.sleep(0.1)

    def _drop_silent(self) -> None:
        """Hosts that do not answer any more, or whose server is gone, get nothing."""
        for name in self._waiting():
            server = self._servers.get(name)
            if server is None or not server.running:
                why = server.said if server else ""
                self._fail(name, "contact was lost" if server else "it was not made ready", why)

    def _load(self, name: str, parcel: Parcel) -> None:
        """Have a host check the parcel and its engine take it; see that it is the image."""
        link, keys = self._links[name], self._folders[name]
        release = self._verified.release
        try:
            words = ("sh", f"{keys}/relay.sh")
            link.send(b"", *words, "check", keys, str(parcel.size), seconds=LOAD_SECONDS)
            self._state(name, "loading")
            link.send(b"", *words, "load", keys, link.host.engine, seconds=LOAD_SECONDS)
            if link.engine.image(release.image_id) is None:
                raise EngineError("its engine took the parcel but has no such image",
                                  hint="again: it may have lost an image meanwhile")  # fmt: skip
            self._state(name, "pulled")
        except StackyardError as error:
            self._fail(name, error.what, error.why)

    def _give_up(self) -> None:
        for name in self._waiting():
            self._fail(name, f"it got {self.progress[name].at} of {self.progress[name].size} bytes",
                       "the way to it broke; the same command goes on where it was")  # fmt: skip

    def _state(self, name: str, state: str) -> None:
        progress = self.progress[name]
        progress.state = state
        if state in ("held", "pulled", "failed"):
            progress.seconds = round(time.monotonic() - self._started, 2)

    def _fail(self, name: str, what: str, why: str = "") -> None:
        what = what.removeprefix(f"{name}: ")
        self.progress[name].why = f"{what}: {why.splitlines()[-1]}" if why else what
        self._state(name, "failed")

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        over = threading.Event()

        def tell() -> None:
            while not over.wait(1.0):
                self._told(self.progress)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(5)


def name_image(
    links: Mapping[str, Link], progress: Mapping[str, Progress], verified: Verified, place: str
) -> None:
    """Give the image its names on every host that has it, and have engines learn its digest.

    The engine asks the registry for the manifest alone: it holds the image already.
    """
    release = verified.release

    def one(link: Link) -> None:
        mark = progress[link.host.name]
        link.engine.tag(release.image_id, f"stackyard/{release.stack}:{release.base}")
        link.engine.tag(release.image_id, f"{place}:{release.name}")
        try:
            found = link.engine.pull(f"{place}@{release.digest}")
        except StackyardError as error:
            mark.why = f"its engine does not know the digest: {error.what}"
            return
        if found.id != release.image_id:
            raise ReleaseError(f"{link.host.name}: the digest names another image there")
        mark.digest = release.digest

    there = {n: links[n] for n, p in progress.items() if p.state in ("held", "pulled")}
    _, failed = on_each(there, one)
    for name, error in failed.items():
        progress[name].state, progress[name].why = "failed", error.what


def _takes_parts(info: Mapping[str, object]) -> bool:
    """Whether an engine passes over layers that it has; with containerd's store it does not."""
    return "io.containerd.snapshotter" not in str(info.get("DriverStatus", ""))


def _answers(said: str) -> dict[str, str]:
    """What `relay.sh prepare` said."""
    told = {"programs": ""}
    for line in said.splitlines():
        word, _, rest = line.partition(" ")
        if word == "program":
            told["programs"] += f" {rest.partition(' ')[0]}"
        elif word == "disk":
            told["disk"] = rest.split()[3] if len(rest.split()) > 3 else "0"
        else:
            told[word] = rest
    missing = {"keys", "user", "have", "disk"} - told.keys()
    if missing:
        raise StackyardError("its shell does not answer as a shell does", why=said[-300:])
    return told
