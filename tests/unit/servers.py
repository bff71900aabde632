"""Real servers of a test's own, on the loopback interface: plain, with TLS, and a proxy."""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Asked:
    """One request; `login` is its Authorization header."""

    method: str
    path: str
    login: str


class Request(BaseHTTPRequestHandler):
    """A request that a test's function answers."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        """Send a whole answer; `_` in the name of a header is a hyphen."""
        self.begin(status, **{"Content_Length": str(len(data)), **headers})
        if self.command != "HEAD":
            self.wfile.write(data)

    def begin(self, status: int, **headers: str) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def endless(self, piece: bytes, pause: float, pieces: int) -> int:
        """Send pieces until the other side hangs up; the number of bytes it took."""
        sent = 0
        with contextlib.suppress(OSError):
            for _ in range(pieces):
                self.wfile.write(piece)
                sent += len(piece)
                time.sleep(pause)
        self.close_connection = True
        return sent

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def as_nobody(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have requests use neither the proxies nor the ~/.netrc of whoever runs the tests."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NETRC", str(folder / "no.netrc"))


class Flood:
    """Sends bytes as long as they are taken, up to a bound that the test's memory has.

    Attributes:
        taken: the bytes that the other side or the system's buffers took.
    """

    def __init__(
        self, *, redirects: bool = False, declared: bool = False, there: bytes = b""
    ) -> None:
        self.taken, self._redirects, self._declared, self._there = 0, redirects, declared, there

    def __call__(self, request: Request) -> None:
        """Answer a request; with `redirects` it leads to an answer of `there`."""
        if request.path == "/there":
            request.reply(200, self._there)
            return
        size = 64 * 2**20
        head = {"Content_Length": str(size)} if self._declared else {"Connection": "close"}
        if self._redirects:
            head["Location"] = "/there"
        request.begin(307 if self._redirects else 200, **head)
        self.taken += request.endless(bytes(2**16), 0, size // 2**16)


def drip(request: Request) -> None:
    """Send a byte now and then, each within the time that a read may take."""
    request.begin(
        200, Content_Length="1000", Content_Type="application/vnd.oci.image.index.v1+json"
    )
    request.endless(b" ", 0.05, 200)


@dataclass
class Server:
    """A server that runs; `host` has its port."""

    host: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}"

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.host.rpartition(":")[2])


@contextlib.contextmanager
def serve(
    answer: Callable[[Request], object], context: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """Serve what a function answers."""

    class Handler(Request):
        def handle_one(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            self.body = self.rfile.read(size)
            login = self.headers.get("Authorization", "")
            found.asked.append(Asked(self.command, self.path, login))
            answer(self)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever hangs up is what these tests are about."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        found = Server(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def proxy(to: Server) -> Iterator[Server]:
    """A proxy whose every tunnel leads to one server, whatever host is asked for."""

    def answer(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        with socket.create_connection(("127.0.0.1", to.port)) as there:
            relay(request.connection, there)
        request.close_connection = True

    class Tunnel(Request):
        def do_CONNECT(self) -> None:
            found.asked.append(Asked("CONNECT", self.path, ""))
            answer(self)

    with ThreadingHTTPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        found = Server(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def relay(one: socket.socket, two: socket.socket) -> None:
    """Pass bytes on in both directions until either side hangs up."""
    others = {one: two, two: one}
    while True:
        for ready in select.select([one, two], [], [])[0]:
            try:
                data = ready.recv(65536)
            except OSError:
                data = b""
            if not data:
                return
            others[ready].sendall(data)


def own_certificate(folder: Path, name: str) -> ssl.SSLContext:
    """Write `ca.crt`, which vouches for itself as a host, and return a server's context with it."""
    key = Ed25519PrivateKey.generate()
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = dict.fromkeys(
        ("digital_signature", "key_cert_sign", "crl_sign", "content_commitment", "key_encipherment",
         "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    usage |= {"digital_signature": True, "key_cert_sign": True}
    public = key.public_key()
    made = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, None)
    )  # fmt: skip
    (folder / "ca.crt").write_bytes(made.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    return context
