"""Pull a verified release onto every host: once from the registry, then from host to host.

Owns the steps of a pull: the rounds in which the parcel is sent, and the result of each host. What
is in the parcel, and what hosts do with it, `release.goods` says. A partial parcel stays on its
host, and the next try resumes it.

Over 300 lines: one pull, whose steps share hosts, progress and keys.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stackyard.mesh.link import HostError, Link, cause, on_each
from stackyard.mesh.node_plan import free_port
from stackyard.mesh.survey import HostFacts, Network
from stackyard.release import relay
from stackyard.release.goods import Goods
from stackyard.release.layer_source import DamagedLayer
from stackyard.release.parcel import Sendable
from stackyard.release.receiver import Progress, Receiver
from stackyard.release.relay import Keys
from stackyard.release.verify import Verified
from stackyard.system import process
from stackyard.system.errors import ReleaseError, StackyardError
from stackyard.system.signing import NAMESPACE

ROUNDS = 4
PAUSE_SECONDS = 2.0
# Once the sender is done, a round ends for a host that receives nothing for this long.
STALL_SECONDS = 12.0
LOAD_SECONDS = 1800.0
Blobs = Callable[[str, int], Iterator[bytes]]
Told = Callable[[Mapping[str, Progress]], None]


class Puller:
    """Pull one release onto several hosts.

    Args:
        links: hosts that answer.
        facts: of each of them.
        network: the address at which the others reach each host.
        blobs: returns the bytes of a layer, or of the file, from an offset on.
        told: called with every host's progress, about once a second.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        facts: Mapping[str, HostFacts],
        network: Network,
        verified: Verified,
        signers: bytes,
        blobs: Blobs,
        told: Told,
    ) -> None:
        self._links, self._facts, self._network = links, facts, network
        self._verified, self._signers, self._blobs = verified, signers, blobs
        self._told = told
        self.progress = {name: Progress() for name in links}
        self._keys = Keys(int(time.time()))
        self._receivers: dict[str, Receiver] = {}
        self._broke: StackyardError | None = None
        self._damaged: DamagedLayer | None = None

    def pull(self, goods: Goods) -> None:
        """Send what is brought to every host that lacks it; `progress` holds the results.

        Raises:
            StackyardError: reading from the registry, or on this machine, failed.
        """
        lacking = self._lacking(goods)
        if not lacking:
            return
        parcel = goods.pack([*lacking.values()])
        with (
            _each_second(lambda: self._told(self.progress)),
            # In a thread of its own: a terminal that blocks output must not stop the beats.
            _each_second(self._beat),
        ):
            try:
                self._start(list(lacking), parcel, goods)
                for number in range(ROUNDS):
                    if not self._round(parcel):
                        break
                    time.sleep(PAUSE_SECONDS * (number + 1))
                self._give_up()
                self._await_engines()
            finally:
                self._end()
        self._see_goods(goods)
        for name in self._in("failed") if self._damaged else ():
            mark = self.progress[name]
            mark.hint = mark.hint or f"{self._damaged}"

    def _beat(self) -> None:
        for receiver in [*self._receivers.values()]:
            receiver.beat()

    def _lacking(self, goods: Goods) -> dict[str, Any]:
        """Return what each host lacks, and mark the hosts that lack nothing."""
        answers, failed = on_each(self._links, goods.ask)
        self._fail_all(failed)
        for name, lacks in answers.items():
            if lacks is None:
                self.progress[name].become("held")
        return {name: lacks for name, lacks in answers.items() if lacks is not None}

    def _start(self, names: Sequence[str], parcel: Sendable, goods: Goods) -> None:
        """Start every host's receiver with its keys and its plan."""
        port = free_port({name: (self._facts[name], 1) for name in names})
        common = {
            "release.json": self._verified.statement,
            "release.json.sig": self._verified.signature,
            "signers": self._signers,
            "namespace": NAMESPACE.encode(),
        }

        def one(link: Link) -> None:
            name = link.host.name
            address = self._network.chosen[name].address
            receiver = Receiver(link, self.progress[name])
            self._receivers[name] = receiver
            files = {**common, **goods.plan(name)}
            self.progress[name].size = parcel.size
            receiver.start({**files, **self._keys.of(name, address, port)}, parcel, address, port)
            _require_room(receiver, parcel, goods)

        _, failed = on_each({name: self._links[name] for name in names}, one)
        for name in failed:
            self._receivers[name].end()
        self._fail_all(failed)

    def _in(self, *states: str) -> list[str]:
        return [name for name, mark in self.progress.items() if mark.state in states]

    def _round(self, parcel: Sendable) -> bool:
        """Send the parcel to all hosts that still wait; return whether any still waits."""
        self._drop_silent()
        names = sorted(self._in("receiving"), key=lambda n: -self.progress[n].at)
        if not names:
            return False
        if not self._route(names):
            return True
        start = min(self.progress[name].at for name in names)
        feed = self._receivers[names[0]].feed(start)
        sender = threading.Thread(target=self._send, args=(feed, parcel, start), daemon=True)
        sender.start()
        try:
            self._follow(sender, names)
        finally:
            feed.end()
            sender.join(10)
        return bool(self._in("receiving"))

    def _route(self, names: Sequence[str]) -> bool:
        """Send hosts the names of their successors; return False when one does not answer."""
        after = relay.successors(names)
        stops = {name: self._receivers[name].stop for name in names}

        def one(link: Link) -> None:
            receiver = self._receivers[link.host.name]
            next_ = [stop for other in after[link.host.name] if (stop := stops[other]) is not None]
            receiver.route(self._keys.route(next_, receiver.keys))
            receiver.progress.reached(receiver.progress.at)

        _, failed = on_each({name: self._links[name] for name in names}, one)
        self._fail_all(failed)
        return not failed

    def _send(self, feed: process.Companion, parcel: Sendable, start: int) -> None:
        try:
            for piece in parcel.pieces(start):
                chunks = self._blobs(piece.digest, piece.start) if piece.digest else [piece.data]
                for chunk in chunks:
                    if not feed.write(chunk):
                        return
        except DamagedLayer as error:
            # Hosts have it whole: each checks it, refuses it and removes it by itself.
            self._damaged = error
            return
        except StackyardError as error:
            self._broke = error
            return
        except OSError as error:
            # It is this machine that fails: no way to a host is broken, and no round mends it.
            self._broke = StackyardError(
                "what hosts are to get cannot be read on this machine", why=str(error),
                hint="see to its disk, then the same command again",
            )  # fmt: skip
            return
        feed.finish(STALL_SECONDS * 100)

    def _follow(self, sender: threading.Thread, names: Sequence[str]) -> None:
        """Wait until every host of a round has the parcel or receives nothing more."""
        while True:
            if self._broke is not None:
                raise self._broke
            open_ = [name for name in names if self.progress[name].state == "receiving"]
            now = time.monotonic()
            patience = STALL_SECONDS * (5 if sender.is_alive() else 1)
            if all(now - self.progress[name].changed > patience for name in open_):
                return
            time.sleep(0.1)

    def _drop_silent(self) -> None:
        """Fail the hosts that no longer answer."""
        for name in self._in("receiving", "loading"):
            receiver = self._receivers.get(name)
            if receiver is None or not receiver.running:
                self.progress[name].fail("contact was lost", receiver.said if receiver else "")

    def _await_engines(self) -> None:
        """Wait until engines have loaded the image, or fail them after LOAD_SECONDS."""
        while names := self._in("loading"):
            time.sleep(0.1)
            self._drop_silent()
            for name in names:
                mark = self.progress[name]
                if mark.state == "loading" and time.monotonic() - mark.changed > LOAD_SECONDS:
                    mark.fail(f"its engine takes more than {LOAD_SECONDS:.0f} s")

    def _end(self) -> None:
        """End all receivers at the same time."""
        with ThreadPoolExecutor(max(1, min(64, len(self._receivers)))) as pool:
            list(pool.map(Receiver.end, self._receivers.values()))

    def _see_goods(self, goods: Goods) -> None:
        """Check that each host that took the parcel has what was brought."""
        links = {name: self._links[name] for name in self._in("loaded")}
        there, failed = on_each(links, goods.is_there)
        self._fail_all(failed)
        for name, is_there in there.items():
            if is_there:
                self.progress[name].state = "pulled"
            else:
                self.progress[name].fail("it took the parcel but does not have what was in it")

    def _give_up(self) -> None:
        for name in self._in("receiving"):
            mark = self.progress[name]
            mark.fail(f"it got {mark.at} of {mark.size} bytes",
                      "the way to it broke; the same command goes on where it was")  # fmt: skip

    def _fail_all(self, failed: Mapping[str, StackyardError]) -> None:
        for name, error in failed.items():
            self.progress[name].fail(cause(name, error), error.why, error.hint)


def _require_room(receiver: Receiver, parcel: Sendable, goods: Goods) -> None:
    """Check that a host has space for the parcel and for what it makes of it."""
    name = receiver.link.host.name
    coming = parcel.size - receiver.progress.at
    if receiver.free_bytes < coming:
        raise HostError(name, f"{coming / 1e9:.1f} GB are to come and"
                        f" {receiver.free_bytes / 1e9:.1f} GB are free where its user's cache"
                        " is")  # fmt: skip
    why, hint = goods.why_no_room(name, receiver.progress.at)
    if why:
        raise HostError(name, why, hint=hint)


@contextlib.contextmanager
def _each_second(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` once a second, in a thread of its own."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(1.0):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)


def name_image(
    links: Mapping[str, Link], progress: Mapping[str, Progress], verified: Verified, place: str
) -> None:
    """Tag the image on every host that has it, and have engines record its digest.

    The engine reads only the manifest from the registry, since it holds the image already.
    """
    release = verified.release

    def one(link: Link) -> None:
        mark = progress[link.host.name]
        link.engine.tag(release.image_id, release.local_name)
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
        progress[name].fail(cause(name, error), hint=error.hint)
