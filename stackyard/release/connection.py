"""Ask a registry: with a login where it wants one, again where its trouble may pass.

Owns logins, retries, the limits of an answer, and what a refusal means to a user. It must not know
manifests, blobs and lists: `release.registry` does. The folder of certificates is docker's
convention (`/etc/docker/certs.d/HOST`).

Over 300 lines: one request, with its login, its limits and its refusals.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests

from stackyard.release.credentials import Login
from stackyard.scan.oci import Repository
from stackyard.system.chunks import Counted
from stackyard.system.errors import RegistryError, shown
from stackyard.system.transport import Certificates, Session, closed_on_error, content

CERTS = Path("/etc/docker/certs.d")
# Of an answer: a manifest, or one page of a list.
LONGEST_ANSWER = 8 * 2**20
LONGEST_REFUSAL = 64 * 2**10
# Connect and read timeout of what cancels an upload, once nobody waits for it any more.
GIVEN_UP_SECONDS = (3.0, 5.0)
# In words, or as the system's error number that distribution reports: 28 ENOSPC, 122 EDQUOT.
_NO_SPACE = re.compile(r'space|quota|"Err":\s*(28|122)\b', re.IGNORECASE)
_PASSING = {408, 429, 500, 502, 503, 504}
_LOCAL = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_PORTS = {"http": 80, "https": 443}
_Found = TypeVar("_Found")
_Self = TypeVar("_Self", bound="Connection")


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


class Connection:
    """Ask one repository of a registry; threads may share an instance.

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
        self._timeout = (10.0, patience.silent_seconds)
        self._given_up = False
        scheme = "http" if _LOCAL.fullmatch(repository.host) else "https"
        self._root = f"{scheme}://{repository.host}"
        self._base = f"{self._root}/v2/{repository.name}"
        self._folder = certs / repository.host
        self._own = threading.local()
        self._authorization = ""
        self._sessions: list[requests.Session] = []

    def close(self) -> None:
        """Close every HTTP session with the registry, those of other threads too."""
        for session in self._sessions:
            session.close()

    def give_up(self) -> None:
        """Stop running uploads at their next chunk, and have no request repeated from now on."""
        self._given_up, self._timeout = True, GIVEN_UP_SECONDS

    def _pause(self, attempt: int) -> bool:
        """Wait after a failed try; return whether another one follows."""
        if not self._given_up:
            self._patience.pause(attempt)
        return not self._given_up

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            session.mount(f"{self._root}/", self._certificates)
            self._sessions.append(session)
        return session

    @functools.cached_property
    def _certificates(self) -> Certificates:
        """Return the adapter that trusts the registry's certificates, made once for all threads."""
        with self._told("reading its certificates"):
            return Certificates(self._folder)

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
                if attempt == tries - 1 or not error.passing or not self._pause(attempt):
                    raise
        raise AssertionError

    def _ask(
        self, method: str, path: str, good: set[int], *, tries: int = 0,
        limit: int = LONGEST_ANSWER, **given: Any,
    ) -> Answer:  # fmt: skip
        """Send a request and read the whole answer; repeat both while a failure may pass.

        Raises:
            RegistryError: no answer, a refusal, or more than `limit` bytes.
        """
        url = path if "://" in path else f"{self._base}{path}"
        return self._repeated(
            lambda: self._read(self._open(method, url, good, given), limit, _doing(method, url)),
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
        body = self._content(answer, LONGEST_REFUSAL, doing).decode(errors="replace")
        text = shown(_told(body), 400)
        # distribution names the system's error in the detail of its refusal alone.
        full = code in (500, 507) and bool(_NO_SPACE.search(body))
        host = self.repository.host
        hint = ""
        if code in (401, 403):
            hint = f"docker login {host}" + (", as somebody who may do this" if self._login else "")
        elif code == 405:
            hint = "it seems to be read-only, or a mirror: publish to the registry itself"
        elif full:
            hint = "it has no space left: its owner must make some"
        elif code in _PASSING:
            hint = "its trouble may pass: again later, or ask its owner"
        error = RegistryError(
            f"registry {host} refused {doing}: {code} {answer.reason}", why=text, hint=hint
        )
        error.status, error.passing = code, code in _PASSING and not full
        if doing.startswith("PUT") and "MANIFEST_BLOB_UNKNOWN" in text:
            # distribution 2.8 writes a repository's link to a blob in place: who puts a manifest
            # while another publisher uploads the same blob may be told that there is none.
            error.passing = True
        return error


def _told(body: str) -> str:
    """Return the messages of a registry's refusal (OCI: a list of errors), or its text."""
    try:
        errors = [f"{one['code']}: {one['message']}" for one in json.loads(body)["errors"]]
    except (ValueError, KeyError, TypeError):
        errors = []
    return "; ".join(errors) or body.strip()


def _doing(method: str, url: str) -> str:
    return f"{method} {url.partition('?')[0]}"
