"""Read and write a registry over HTTP: manifests, blobs, tags and referrers.

Owns the distribution protocol: logins, certificates, retries, and checking that answers have the
requested digest. It must not know what a release is. Source: the OCI distribution specification
1.1; the folder of certificates is docker's convention (`/etc/docker/certs.d/HOST`).

Over 300 lines: one protocol, with its logins and retries.
"""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

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
from stackyard.system.chunks import CHUNK, Counted
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
# In words, or as the system's error number that distribution reports: 28 ENOSPC, 122 EDQUOT.
_NO_SPACE = re.compile(r'space|quota|"Err":\s*(28|122)\b', re.IGNORECASE)
_PASSING = {408, 429, 500, 502, 503, 504}
_LOCAL = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_NEXT = re.compile(r'<([^>]*)>;\s*rel="?next"?')


class _Certificates(HTTPAdapter):
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


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Hold the limits for waiting on a registry that fails.

    Attributes:
        silent_seconds: read timeout.
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
        if answer.status_code == 404:
            return None
        data = answer.content
        if len(data) > LONGEST_MANIFEST:
            raise RegistryError(f"{self.repository}: the manifest {reference} is too long")
        self._check(data, reference if is_digest(reference) else "", f"manifest {reference}")
        return data

    def put_manifest(self, reference: str, data: bytes, kind: str = MANIFEST) -> None:
        """Put a manifest under a tag or its digest; every blob it names must exist already."""
        headers = {"Content-Type": kind}
        path = f"/manifests/{reference}"
        self._ask("PUT", path, {200, 201, 202}, headers=headers, data=data)

    def has(self, digest: str) -> bool:
        """Return whether the repository holds a blob."""
        return self._ask("HEAD", f"/blobs/{digest}", {200, 404}).status_code == 200

    def blob_size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; None where there is no such blob."""
        answer = self._ask("HEAD", f"/blobs/{digest}", {200, 404})
        if answer.status_code == 404:
            return None
        return int(answer.headers.get("Content-Length", -1))

    def blob(self, descriptor: Descriptor, limit: int = 64 * 2**20) -> bytes:
        """Return a small blob's bytes, after checking its digest.

        Raises:
            RegistryError: it is missing, longer than `limit`, or has another digest.
        """
        if descriptor.size > limit:
            raise RegistryError(f"{self.repository}: {descriptor.digest} is too long to be read")
        data = self._ask("GET", f"/blobs/{descriptor.digest}", {200}).content
        self._check(data, descriptor.digest, "blob")
        return data

    def stream(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes from `start` on; the caller checks the digest of the whole.

        Raises:
            RegistryError: it is missing, or the connection broke.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        answer = self._ask("GET", f"/blobs/{digest}", {200, 206}, headers=headers, stream=True)
        with contextlib.closing(answer), self._told(f"reading {digest}"):
            skip = start if answer.status_code == 200 else 0
            for chunk in answer.iter_content(CHUNK):
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))

    def upload(
        self, descriptor: Descriptor, opened: Callable[[], IO[bytes]], sent: Callable[[int], None]
    ) -> bool:
        """Upload a blob; return False when the repository had it already.

        A blob is uploaded whole or not at all. After a failure the upload is cancelled; partial
        uploads that remain, as after a killed publisher, are purged by the registry after a week.

        Args:
            opened: opens the content; called once for each try.
            sent: called with the number of bytes sent (negative when a try starts again).
        """
        if self.has(descriptor.digest):
            return False
        for attempt in range(self._patience.tries):
            body = Counted(opened(), descriptor.size, sent)
            try:
                self._upload(descriptor, body)
                return True
            except RegistryError as error:
                sent(-body.told)
                if attempt == self._patience.tries - 1 or not error.passing:
                    raise
                self._patience.pause(attempt)
            finally:
                body.close()
        raise AssertionError

    def _upload(self, descriptor: Descriptor, body: Counted) -> None:
        # One try only, since `upload` repeats the whole upload.
        begun = self._ask("POST", "/blobs/uploads/", {202}, tries=1)
        place = begun.headers.get("Location", "")
        place = place if "://" in place else f"{self._root}{place}"
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
        path = "/tags/list?n=1000"
        while path:
            answer = self._ask("GET", path, {200, 404})
            if answer.status_code == 404:
                return found
            value = self._json(answer)
            found += [str(tag) for tag in value.get("tags") or []]
            following = _NEXT.search(answer.headers.get("Link", ""))
            path = f"{self._root}{following.group(1)}" if following else ""
        return found

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the artifacts that refer to an image, by the API or else the fallback tag."""
        answer = self._ask("GET", f"/referrers/{digest}", {200, 400, 404, 405, 501})
        if answer.status_code == 200 and "json" in answer.headers.get("Content-Type", ""):
            return self._listed(answer.content)
        data = self.manifest(referrers_tag(digest))
        return () if data is None else self._listed(data)

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

    def _json(self, answer: requests.Response) -> Mapping[str, Any]:
        try:
            value = answer.json()
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{self.repository.host} answers with something else than JSON",
                                why=shown(answer.text)) from error  # fmt: skip
        return value if isinstance(value, dict) else {}

    @property
    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = requests.Session()
            with self._told("reading its certificates"):
                session.mount(f"{self._root}/", _Certificates(self._folder))
            self._sessions.append(session)
        return session

    def _ask(
        self, method: str, path: str, good: set[int], *, tries: int = 0, **given: Any
    ) -> requests.Response:
        """Send a request, and repeat it while the registry's failure may be temporary."""
        url = path if "://" in path else f"{self._base}{path}"
        tries = tries or self._patience.tries
        for attempt in range(tries):
            try:
                return self._once(method, url, good, given)
            except RegistryError as error:
                if attempt == tries - 1 or not error.passing:
                    raise
                self._patience.pause(attempt)
        raise AssertionError

    def _once(
        self, method: str, url: str, good: set[int], given: Mapping[str, Any]
    ) -> requests.Response:
        headers = {**given.get("headers", {})}
        if self._authorization:
            headers["Authorization"] = self._authorization
        doing = f"{method} {url.partition('?')[0]}"
        with self._told(doing):
            answer = self._session.request(
                method, url, timeout=self._timeout, **{**given, "headers": headers}
            )
            if answer.status_code == 401 and self._answer(answer):
                if isinstance(body := given.get("data"), Counted):
                    body.restart()
                headers["Authorization"] = self._authorization
                answer = self._session.request(
                    method, url, timeout=self._timeout, **{**given, "headers": headers}
                )
        if answer.status_code not in good:
            raise self._refused(answer, doing)
        return answer

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
        there = urlsplit(realm)
        if there.scheme != "https" and not _LOCAL.fullmatch(there.netloc):
            raise RegistryError(f"{self.repository.host} asks for our login at {shown(realm)}",
                                why="that is not an encrypted connection")  # fmt: skip
        if login and login.token:
            form = {**query, "grant_type": "refresh_token", "refresh_token": login.token,
                    "client_id": "stackyard"}  # fmt: skip
            answer = self._session.post(realm, data=form, timeout=self._timeout)
        else:
            auth = (login.user, login.password) if login else None
            answer = self._session.get(realm, params=query, auth=auth, timeout=self._timeout)
        if answer.status_code != 200:
            raise self._refused(answer, "asking for a token")
        value = self._json(answer)
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

    def _refused(self, answer: requests.Response, doing: str) -> RegistryError:
        code, text = answer.status_code, shown(answer.text, 400)
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


def manifest_descriptor(data: bytes, artifact_type: str = "") -> Descriptor:
    """Return the descriptor of a manifest."""
    plain = described(MANIFEST, data)
    return Descriptor(
        media_type=MANIFEST, digest=plain.digest, size=plain.size, artifact_type=artifact_type
    )
