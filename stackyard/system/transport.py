"""Send requests to a registry or index and read answers, within bounds of size and time.

Owns certificates, what credentials a request may carry, and reading bodies. It must not know how a
registry wants a login: `release.connection` does.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from stackyard.system.chunks import CHUNK

# Bytes a second. A body that comes slower than this, beyond its first seconds, is given up.
SLOWEST = 16 * 2**10


class Certificates(HTTPAdapter):
    """Trust a registry's own certificates in addition to the system's."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.create_default_context()
        for path in sorted(folder.glob("*.crt")) if folder.is_dir() else ():
            self._context.load_verify_locations(path)
        for path in sorted(folder.glob("*.cert")) if folder.is_dir() else ():
            self._context.load_cert_chain(path, path.with_suffix(".key"))
        super().__init__(pool_maxsize=16)

    def init_poolmanager(self, *args: Any, **given: Any) -> None:
        """Create the connection pool with these certificates."""
        super().init_poolmanager(*args, **given, ssl_context=self._context)

    def proxy_manager_for(self, proxy: str, **given: Any) -> Any:
        """Create a connection pool behind a proxy, with the same certificates."""
        return super().proxy_manager_for(proxy, **given, ssl_context=self._context)


class Session(requests.Session):
    """Send no credentials but those that a request is given, and those to no other host."""

    def __init__(self) -> None:
        super().__init__()
        # Without an `auth` of its own, requests replaces a request's Authorization header by the
        # host's entry in ~/.netrc.
        self.auth = _as_given
        # Digests and limits are of the bytes that are sent.
        self.headers["Accept-Encoding"] = "identity"

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Remove the credentials of a request that is redirected to another host."""
        before, after = str(response.request.url), str(prepared_request.url)
        if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return where an answer redirects to; requests would read its whole body otherwise."""
        target: str | None = super().get_redirect_target(resp)
        if target is not None:
            resp.close()
        return target


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


@contextlib.contextmanager
def closed_on_error(answer: requests.Response) -> Iterator[None]:
    """Close an answer's connection where its body is not read to the end."""
    try:
        yield
    except BaseException:
        answer.close()
        raise


def pieces(answer: requests.Response, seconds: float) -> Iterator[bytes]:
    """Yield a body as it comes; the time that the caller takes does not count.

    Args:
        seconds: how long a body may be late by, at `SLOWEST`.

    Raises:
        requests.exceptions.RequestException: the connection broke, or the body is too slow.
    """
    size, waited = 0, 0.0
    while True:
        before = time.monotonic()
        try:
            chunk: bytes = answer.raw.read1(CHUNK)
        except HTTPError as error:
            raise requests.exceptions.ConnectionError(error) from error
        waited += time.monotonic() - before
        if not chunk:
            return
        size += len(chunk)
        if waited > seconds + size / SLOWEST:
            raise requests.exceptions.ReadTimeout(
                f"only {size} bytes of the answer came in {waited:.0f} s"
            )
        yield chunk


def content(answer: requests.Response, limit: int, seconds: float) -> bytes:
    """Return a body; of one that is longer than `limit`, the first `limit + 1` bytes.

    Raises:
        requests.exceptions.RequestException: as `pieces`.
    """
    found = bytearray()
    with closed_on_error(answer):
        for chunk in pieces(answer, seconds):
            found += chunk
            if len(found) > limit:
                answer.close()
                break
    return bytes(found[: limit + 1])
