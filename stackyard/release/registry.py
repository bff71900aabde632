"""Read and write a registry over HTTP: manifests, blobs, tags and referrers.

Owns the distribution protocol: logins, retries, lists in pages, and checking that answers have the
requested digest. It must not know what a release is. Source: the OCI distribution specification
1.1; the folder of certificates is docker's convention (`/etc/docker/certs.d/HOST`).

Over 300 lines: one protocol, with its logins and retries.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import requests

from stackyard.release.connection import Certificates, Session, closed_on_error, content, pieces
from stackyard.release.credentials import Login
from stackyard.scan.oci import (
    INDEX,
    MANIFEST,
    Descriptor,
    Repository,
    described,
    digest_of,
    is_digest,
    read_index,
    referrers_index,
    referrers_tag,
)
from stackyard.system.chunks import Counted
from stackyard.system.errors import RegistryError, shown

CERTS = Path("/etc/docker/certs.d")
# Images that others published may have Docker's own media types.
MANIFEST_KINDS = (
    MANIFEST,
    INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
LONGEST_MANIFEST = 8 * 2**20
LONGEST_REFUSAL = 64 * 2**10
# Of tags or referrers, over all pages.
LONGEST_LIST = 64 * 2**20
MOST_PAGES = 1000
# In words, or as the system's error number that distribution reports: 28 ENOSPC, 122 EDQUOT.
_NO_SPACE = re.compile(r'space|quota|"Err":\s*(28|122)\b', re.IGNORECASE)
_PASSING = {408, 429, 500, 502, 503, 504}
_LOCAL = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_PORTS = {"http": 80, "https": 443}
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Hold the limits for waiting on a registry that fails.

    Attributes:
        silent_seconds: read timeout, and how late a whole answer may be.
        tries: number of tries while the failure may be temporary.
        pause_seconds: between the first two tries; each later pause is twice as long.
    """

    silent_seconds: float = 60.0
    tries: int = 4
    pause_seconds: float = 0.5

    def pause(self, attempt: int) -> None:
        """Wait after a failed try; the first one is number 0."""
        time.sleep(self.pause_seconds * 2**attempt)


PATIENT = Patience()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Hold a registry's answer, its body read within the limits.

    Attributes:
        url: where it came from, after redirects.
        following: the address of the next page of a list; empty for the last page.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    url: str
    following: str = ""


def _origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address; none of them for what is no address."""
    try:
        there = urlsplit(url)
        return there.scheme, there.hostname or "", there.port or _PORTS.get(there.scheme, 0)
    except ValueError:
        return "", "", 0


class Registry:
    """Reach one repository of a registry; threads may share an instance.

    Args:
        repository: host and name.
        login: credentials; None for anonymous access.
        certs: the folder that holds a folder of certificates for each registry.
        patience: limits for waiting and retrying.
    """

    def __init__(
        self,
        repository: Repository,
        login: Login | None = None,
        *,
        certs: Path = CERTS,
        patience: Patience = PATIENT,
    ) -> None:
        self.repository = repository
        self._login, self._patience = login, patience
        self._timeout = (10, patience.silent_seconds)
        scheme = "http" if _LOCAL.fullmatch(repository.host) else "https"
        self._root = f"{scheme}://{repository.host}"
        self._base = f"{self._root}/v2/{repository.name}"
        self._folder = certs / repository.host
        self._own = threading.local()
        self._authorization = ""
        self._sessions: list[requests.Session] = []

    def close(self) -> None:
        """Close every connection."""
        for session in self._sessions:
            session.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def manifest(self, reference: str) -> bytes | None:
        """Return a manifest by tag or digest; None where there is none of that name.

        Raises:
            RegistryError: no answer, a refusal, or bytes of another digest.
        """
        headers = {"Accept": ", ".join(MANIFEST_KINDS)}
        answer = self._ask("GET", f"/manifests/{reference}", {200, 404}, headers=headers)
        if answer.status == 404:
            return None
        data = answer.content
        self._check(data, reference if is_digest(reference) else "", f"manifest {reference}")
        return data

    def put_manifest(self, reference: str, data: bytes, kind: str = MANIFEST) -> None:
        """Put a manifest under a tag or its digest; every blob it names must exist already."""
        headers = {"Content-Type": kind}
        path = f"/manifests/{reference}"
        self._ask("PUT", path, {200, 201, 202}, headers=headers, data=data)

    def has(self, digest: str) -> bool:
        """Return whether the repository holds a blob."""
        return self._ask("HEAD", f"/blobs/{digest}", {200, 404}).status == 200

    def blob_size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; None where there is no such blob."""
        answer = self._ask("HEAD", f"/blobs/{digest}", {200, 404})
        if answer.status == 404:
            return None
        size = answer.headers.get("Content-Length", "")
        return int(size) if re.fullmatch("[0-9]{1,18}", size) else -1

    def blob(self, descriptor: Descriptor, limit: int = 64 * 2**20) -> bytes:
        """Return a small blob's bytes, after checking its digest.

        Raises:
            RegistryError: it is missing, longer than `limit`, or has another digest.
        """
        if descriptor.size > limit:
            raise RegistryError(f"{self.repository}: {descriptor.digest} is too long to be read")
        path = f"/blobs/{descriptor.digest}"
        data = self._ask("GET", path, {200}, limit=limit).content
        self._check(data, descriptor.digest, "blob")
        return data

    def stream(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes from `start` on; the caller checks the digest of the whole.

        Raises:
            RegistryError: it is missing, or the connection broke.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        url = f"{self._base}/blobs/{digest}"
        given = {"headers": headers}
        answer = self._repeated(lambda: self._open("GET", url, {200, 206}, given))
        with contextlib.closing(answer), self._told(f"reading {digest}"):
            skip = start if answer.status_code == 200 else 0
            for chunk in pieces(answer, self._patience.silent_seconds):
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))

    def upload(
        self,
        descriptor: Descriptor,
        opened: Callable[[], IO[bytes]],
        sent: Callable[[int], None],
        source: str = "",
    ) -> bool:
        """Upload a blob; return False when the registry had it already.

        A blob is uploaded whole or not at all. After a failure the upload is cancelled; partial
        uploads that remain, as after a killed publisher, are purged by the registry after a week.

        Args:
            opened: opens the content; called once for each try.
            sent: called with the number of bytes sent (negative when a try starts again).
            source: name of another repository of this registry that may hold it; empty for none.
        """
        if self.has(descriptor.digest):
            return False
        place = self._mount(descriptor, source) if source else ""
        if place is None:
            return False
        for attempt in range(self._patience.tries):
            body = Counted(opened(), descriptor.size, sent)
            try:
                self._upload(descriptor, body, "" if attempt else place)
                return True
            except RegistryError as error:
                sent(-body.told)
                if attempt == self._patience.tries - 1 or not error.passing:
                    raise
                self._patience.pause(attempt)
            finally:
                body.close()
        raise AssertionError

    def _mount(self, descriptor: Descriptor, source: str) -> str | None:
        """Ask the registry to take a blob from another of its repositories.

        Return None where it did, else the address of the upload that it began instead; empty where
        it refused, since a registry without mounts need not know how to say so.
        """
        query = urlencode({"mount": descriptor.digest, "from": source})
        try:
            answer = self._ask("POST", f"/blobs/uploads/?{query}", {201, 202}, tries=1)
        except RegistryError:
            return ""
        return None if answer.status == 201 else self._location(answer)

    def _location(self, begun: Answer) -> str:
        return self._joined(begun.url, begun.headers.get("Location", ""))

    def _upload(self, descriptor: Descriptor, body: Counted, place: str) -> None:
        # One try only, since `upload` repeats the whole upload.
        if not place:
            place = self._location(self._ask("POST", "/blobs/uploads/", {202}, tries=1))
        joint = "&" if "?" in place else "?"
        try:
            self._ask(
                "PUT", f"{place}{joint}digest={descriptor.digest}", {201, 204}, data=body, tries=1,
                headers={"Content-Type": "application/octet-stream"},
            )  # fmt: skip
        except RegistryError:
            # A registry keeps a partial upload for days unless it is cancelled. Best effort:
            # distribution 2.8 answers 404 and keeps it when its disk is full to the last byte.
            with contextlib.suppress(RegistryError):
                self._ask("DELETE", place, {204, 404}, tries=1)
            raise

    def tags(self) -> list[str]:
        """Return every tag of the repository; none where the repository does not exist yet."""
        found: list[str] = []
        for page in self._pages("/tags/list?n=1000", {200, 404}):
            if page.status == 200:
                found += [str(tag) for tag in self._json(page).get("tags") or []]
        return found

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the artifacts that refer to an image, by the API or else the fallback tag."""
        found: list[Descriptor] = []
        for page in self._pages(f"/referrers/{digest}", {200, 400, 404, 405, 501}):
            if page.status != 200 or "json" not in page.headers.get("Content-Type", ""):
                data = self.manifest(referrers_tag(digest))
                return () if data is None else self._listed(data)
            found += self._listed(page.content)
        return tuple(found)

    def _pages(self, path: str, good: set[int]) -> Iterator[Answer]:
        """Yield the pages of a list; each page but the last one names the next.

        Raises:
            RegistryError: a page is missing or on another host, or the list does not end.
        """
        url, size = f"{self._base}{path}", 0
        for number in range(MOST_PAGES):
            page = self._ask("GET", url, {200} if number else good)
            size += len(page.content)
            yield page
            if page.status != 200 or not page.following:
                return
            url = self._joined(page.url, page.following)
            if not self._owns(url):
                raise RegistryError(
                    f"{self.repository}: the next page of a list is on another host",
                    why=shown(url), hint="whoever runs the registry should look; nothing was used",
                )  # fmt: skip
            if size > LONGEST_LIST:
                break
        raise RegistryError(
            f"{self.repository}: a list does not end",
            why=f"{number + 1} pages with {size} bytes were read",
            hint="whoever runs the registry should look; nothing was used",
        )

    def _listed(self, data: bytes) -> tuple[Descriptor, ...]:
        try:
            return read_index(data)
        except (ValueError, RecursionError) as error:
            raise RegistryError(
                f"{self.repository}: its list of artifacts cannot be read", why=str(error)
            ) from error

    def attach(self, descriptor: Descriptor, manifest: bytes, subject: str) -> None:
        """Put an artifact's manifest, and list it under the fallback tag where there is no API."""
        self.put_manifest(descriptor.digest, manifest)
        before = self.referrers(subject)
        if descriptor.digest not in {entry.digest for entry in before}:
            data = referrers_index([*before, descriptor])
            self.put_manifest(referrers_tag(subject), data, INDEX)

    def _check(self, data: bytes, digest: str, what: str) -> None:
        if digest and digest_of(data) != digest:
            raise RegistryError(
                f"{self.repository}: the {what} is not what its digest says",
                why=f"{digest} was asked for, {digest_of(data)} came",
                hint="whoever runs the registry should look; nothing was used",
            )

    def _json(self, answer: Answer) -> Mapping[str, Any]:
        try:
            value = json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            text = answer.content.decode(errors="replace")
            raise RegistryError(f"{self.repository.host} answers with something else than JSON",
                                why=shown(text)) from error  # fmt: skip
        return value if isinstance(value, dict) else {}

    @property
    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = Session()
            with self._told("reading its certificates"):
                session.mount(f"{self._root}/", Certificates(self._folder))
            self._sessions.append(session)
        return session

    def _owns(self, url: str) -> bool:
        """Return whether an address is of this registry, which alone may see our login."""
        return _origin(url) == _origin(f"{self._root}/")

    def _joined(self, base: str, address: str) -> str:
        with self._told("reading an address"):
            return urljoin(base, address)

    def _repeated(self, ask: Callable[[], _Found], tries: int = 0) -> _Found:
        """Ask, and ask again while the registry's failure may be temporary."""
        tries = tries or self._patience.tries
        for attempt in range(tries):
            try:
                return ask()
            except RegistryError as error:
                if attempt == tries - 1 or not error.passing:
                    raise
                self._patience.pause(attempt)
        raise AssertionError

    def _ask(
        self, method: str, path: str, good: set[int], *, tries: int = 0,
        limit: int | None = None, **given: Any,
    ) -> Answer:  # fmt: skip
        """Send a request and read the whole answer; repeat both while a failure may pass.

        Raises:
            RegistryError: no answer, a refusal, or more than `limit` bytes (LONGEST_MANIFEST).
        """
        url = path if "://" in path else f"{self._base}{path}"
        most = LONGEST_MANIFEST if limit is None else limit
        return self._repeated(
            lambda: self._read(self._open(method, url, good, given), most, _doing(method, url)),
            tries,
        )

    def _read(self, answer: requests.Response, limit: int, doing: str) -> Answer:
        data = self._content(answer, limit, doing)
        if len(data) > limit:
            raise RegistryError(f"{self.repository}: the answer to {doing} is too long",
                                why=f"it has more than {limit} bytes")  # fmt: skip
        return Answer(
            status=answer.status_code, headers=answer.headers, content=data, url=str(answer.url),
            following=answer.links.get("next", {}).get("url", ""),
        )  # fmt: skip

    def _content(self, answer: requests.Response, limit: int, doing: str) -> bytes:
        with self._told(doing):
            return content(answer, limit, self._patience.silent_seconds)

    def _open(
        self, method: str, url: str, good: set[int], given: Mapping[str, Any]
    ) -> requests.Response:
        """Send a request, with a login where the registry wants one; leave the body unread."""
        doing = _doing(method, url)
        answer = self._send(method, url, given)
        # Only the registry itself may ask for our login: not a host that it redirects to.
        challenged = answer.status_code == 401 and self._owns(url) and self._owns(str(answer.url))
        with closed_on_error(answer):
            again = challenged and self._answer(answer)
        if again:
            self._content(answer, LONGEST_REFUSAL, doing)
            if isinstance(body := given.get("data"), Counted):
                body.restart()
            answer = self._send(method, url, given)
        if answer.status_code not in good:
            raise self._refused(answer, doing)
        return answer

    def _send(self, method: str, url: str, given: Mapping[str, Any]) -> requests.Response:
        headers = {**given.get("headers", {})}
        if self._authorization and self._owns(url):
            headers["Authorization"] = self._authorization
        with self._told(_doing(method, url)):
            return self._session.request(
                method, url, timeout=self._timeout, stream=True, **{**given, "headers": headers}
            )

    def _answer(self, answer: requests.Response) -> bool:
        """Get the credentials that a registry demands; return False if it has refused them."""
        challenge = answer.headers.get("WWW-Authenticate", "")
        kind, _, rest = challenge.partition(" ")
        had = self._authorization
        if kind.lower() == "basic" and self._login:
            pair = f"{self._login.user}:{self._login.password}".encode()
            self._authorization = f"Basic {base64.b64encode(pair).decode()}"
            return had != self._authorization
        if kind.lower() == "bearer":
            self._authorization = f"Bearer {self._token(dict(_CHALLENGE.findall(rest)))}"
            return had != self._authorization
        return False

    def _token(self, wanted: Mapping[str, str]) -> str:
        """Return a token for this repository, from the service that the registry names."""
        login = self._login
        scope = f"repository:{self.repository.name}:pull,push"
        query = {"service": wanted.get("service", ""), "scope": wanted.get("scope") or scope}
        realm = wanted.get("realm", "")
        with self._told("reading where to ask for a token"):
            there = urlsplit(realm)
        if there.scheme != "https" and not _LOCAL.fullmatch(there.netloc):
            raise RegistryError(f"{self.repository.host} asks for our login at {shown(realm)}",
                                why="that is not an encrypted connection")  # fmt: skip
        if login and login.token:
            form = {**query, "grant_type": "refresh_token", "refresh_token": login.token,
                    "client_id": "stackyard"}  # fmt: skip
            # Never redirected: the form is the login.
            ask: dict[str, Any] = {"data": form, "allow_redirects": False}
        else:
            ask = {"params": query, "auth": (login.user, login.password) if login else None}
        method = "POST" if "data" in ask else "GET"
        with self._told("asking for a token"):
            answer = self._session.request(method, realm, timeout=self._timeout, stream=True, **ask)
        if answer.status_code != 200:
            raise self._refused(answer, "asking for a token")
        value = self._json(self._read(answer, LONGEST_REFUSAL, "asking for a token"))
        return str(value.get("token") or value.get("access_token") or "")

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Turn a connection's failure into a RegistryError in plain words."""
        host = self.repository.host
        try:
            yield
        except requests.exceptions.RequestException as error:
            text = str(error)
            if "CERTIFICATE_VERIFY_FAILED" in text:
                raise RegistryError(
                    f"the certificate of registry {host} cannot be trusted", why=shown(text, 400),
                    hint=f"have its authority's certificate in {self._folder}/ca.crt, where docker"
                    " looks for it, too",
                ) from error  # fmt: skip
            told = RegistryError(
                f"registry {host} does not answer ({doing})", why=shown(text, 400),
                hint="see that it runs and that this machine reaches it"
                + ("; one without space left breaks uploads off" if "upload" in doing else ""),
            )  # fmt: skip
            told.passing = True
            raise told from error
        except ssl.SSLError as error:
            raise RegistryError(f"{self._folder}: a certificate cannot be read",
                                why=str(error)) from error  # fmt: skip
        except ValueError as error:
            raise RegistryError(f"registry {host} names an address that is none ({doing})",
                                why=shown(str(error), 400)) from error  # fmt: skip

    def _refused(self, answer: requests.Response, doing: str) -> RegistryError:
        code = answer.status_code
        text = shown(self._content(answer, LONGEST_REFUSAL, doing).decode(errors="replace"), 400)
        host = self.repository.host
        hint = ""
        if code in (401, 403):
            hint = f"docker login {host}" + (", as somebody who may do this" if self._login else "")
        elif code == 405:
            hint = "it seems to be read-only, or a mirror: publish to the registry itself"
        elif code in (500, 507) and _NO_SPACE.search(text):
            hint = "it has no space left: whoever runs it must make some"
        elif code in _PASSING:
            hint = "its trouble may pass: again later, or ask whoever runs it"
        error = RegistryError(
            f"registry {host} refused {doing}: {code} {answer.reason}", why=text, hint=hint
        )
        error.passing = code in _PASSING and not _NO_SPACE.search(text)
        return error


def _doing(method: str, url: str) -> str:
    return f"{method} {url.partition('?')[0]}"


def manifest_descriptor(data: bytes, artifact_type: str = "") -> Descriptor:
    """Return the descriptor of a manifest."""
    plain = described(MANIFEST, data)
    return Descriptor(
        media_type=MANIFEST, digest=plain.digest, size=plain.size, artifact_type=artifact_type
    )
