"""Find traces of the caller's package settings that a build left in an image.

Owns turning the caller's settings into strings and certificates to look for, and looking for them
in a text. Pure: it must not read settings; `build.mirrors` does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

# Packages mention these hosts in their own scripts and documentation: where the caller's settings
# name them, they are looked for in settings, records and logs only, not in every file.
PUBLIC = {"debian", "ubuntu", "pypi", "pythonhosted", "pytorch", "nvidia"}
# Between two characters of a PEM text: a line break, or an escaped one.
GAP = rb"(?:\s|\\+[nr])"
_CERTIFICATE = re.compile(
    rb"-----BEGIN CERTIFICATE-----((?:[A-Za-z0-9+/=]|%b){100,12000}?)-----END" % GAP
)
# The user's part ends at the last @ of the address: pip, requests and uv accept one in a password.
_URI = re.compile(
    rb"[A-Za-z][A-Za-z0-9+.-]*://(?:([^/\s\"']*)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])"
)
# Long user names that registries document, and that packages name: they are no tokens.
_FIXED_NAMES = {"oauth2accesstoken", "_json_key_base64"}


class PackageSettings(Protocol):
    """Name the attributes needed of `build.mirrors.CallerSettings`."""

    @property
    def secrets(self) -> Mapping[str, bytes]:
        """Return contents by secret id."""

    @property
    def wheel_folders(self) -> tuple[Path, ...]:
        """Return local folders of wheels."""

    @property
    def proxies(self) -> Mapping[str, str]:
        """Return the proxy variables."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Hold the caller's hosts, passwords, folders and certificates, which no image may contain.

    Attributes:
        hosts: host names and addresses of every index, mirror and proxy.
        credentials: of these hosts, as `USER:PASSWORD`, as the password alone, and as a user name
            alone that is long enough for a token.
        folders: local folders of wheels.
        certificates: certificates that the caller trusts, in DER form.
    """

    hosts: frozenset[str] = frozenset()
    credentials: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    certificates: frozenset[bytes] = frozenset()

    @property
    def private_hosts(self) -> frozenset[str]:
        """Return the host names that no package mentions: they are looked for in every file."""
        return frozenset(
            name
            for name in self.hosts
            if "." in name
            and not re.fullmatch(r"[0-9.]+", name)
            and name.split(".")[-2] not in PUBLIC
        )

    @cached_property
    def everywhere(self) -> tuple[tuple[bytes, str], ...]:
        """Return the strings that no file may hold, each with its name in findings."""
        texts = sorted(self.private_hosts | self.credentials)
        secrets = self.credentials
        return tuple((text.encode(), "a password" if text in secrets else text) for text in texts)

    @cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        words = [(host, _word(host)) for host in self.hosts]
        return (*words, *((folder, _folder(folder)) for folder in self.folders))

    def names(self, data: bytes) -> set[str]:
        """Return the caller's addresses, passwords and folders that a text contains."""
        if not self._patterns and not self.credentials:
            return set()
        # Substring search is many times faster, and rules out nearly every text.
        lower = data.lower()
        likely = [one for one in self._patterns if one[0].lower().encode() in lower]
        found = {word for word, pattern in likely if pattern.search(data.decode("latin-1"))}
        return found | {"a password" for secret in self.credentials if secret.encode() in data}


def make_caller(settings: PackageSettings, own: Iterable[str]) -> Caller:
    """Collect what to look for; `own` are the addresses in the project's definitions."""
    texts = [data for name, data in settings.secrets.items() if name != "ca.pem"]
    texts += [_proxy(name, value).encode() for name, value in settings.proxies.items()]
    found = [match for text in texts for match in _URI.findall(text)]
    own_hosts = {host.lower() for url in own for _, host in _URI.findall(url.encode())}
    return Caller(
        hosts=frozenset({host.decode().lower() for _, host in found} - _decoded(own_hosts)),
        credentials=frozenset(part for user, _ in found for part in _secrets(user.decode())),
        folders=tuple(str(folder) for folder in settings.wheel_folders),
        certificates=frozenset(parse_certificates(settings.secrets.get("ca.pem", b""))),
    )


def _decoded(names: Iterable[bytes]) -> set[str]:
    return {name.decode() for name in names}


def _proxy(name: str, value: str) -> str:
    """Return a proxy with its scheme; the hosts of `no_proxy` are no proxies."""
    return value if "://" in value or name.lower() == "no_proxy" else f"http://{value}"


def _secrets(user: str) -> list[str]:
    name, colon, password = user.partition(":")
    token = not password and len(name) > 15 and name not in _FIXED_NAMES
    long = [part for part in (user if colon else "", password) if len(part) > 7]
    return [*long, name] if token else long


def _word(host: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])", re.IGNORECASE)


def _folder(folder: str) -> re.Pattern[str]:
    return re.compile(rf"(?:file://|(?<![\w./-])){re.escape(folder)}(?![\w.-])")


def parse_certificates(text: bytes) -> list[bytes]:
    """Return the DER form of every certificate in PEM text, with escaped line breaks, too."""
    return [der for body in _CERTIFICATE.findall(text) if (der := _der(re.sub(GAP, b"", body)))]


def _der(body: bytes) -> bytes:
    try:
        return base64.b64decode(body)
    except binascii.Error:
        return b""


def fingerprint(der: bytes) -> str:
    """Return a name for a certificate that does not reveal its content."""
    return f"certificate sha256:{hashlib.sha256(der).hexdigest()[:16]}"
