"""What a caller's package settings would look like if a build had left them in an image.

Owns turning `stackyard.settings.CallerSettings` into strings and certificates to look for. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stackyard.settings import CallerSettings

# Packages speak of these in scripts and documentation of their own: where the caller's settings
# name them, they are looked for in settings, records and logs only, and not in every file.
PUBLIC = {"debian", "ubuntu", "pypi", "pythonhosted", "pytorch", "nvidia"}
# Between two characters of an armoured text: a line break, or one written as an escape.
GAP = rb"(?:\s|\\[nr])"
_CERTIFICATE = re.compile(
    rb"-----BEGIN CERTIFICATE-----((?:[A-Za-z0-9+/=]|%b){100,12000}?)-----END" % GAP
)
_URI = re.compile(rb"[a-z][a-z0-9+.-]*://(?:([^@/\s\"']*)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """What must not be found.

    Attributes:
        hosts: host names and addresses of every index, mirror and proxy.
        credentials: user names with passwords, and passwords, of those.
        folders: local folders of wheels.
        certificates: those that the caller trusts, in DER form.
    """

    hosts: frozenset[str] = frozenset()
    credentials: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    certificates: frozenset[bytes] = frozenset()

    @property
    def private_hosts(self) -> frozenset[str]:
        """Names that no package mentions by itself: looked for in every file."""
        return frozenset(
            name
            for name in self.hosts
            if "." in name
            and not re.fullmatch(r"[0-9.]+", name)
            and name.split(".")[-2] not in PUBLIC
        )


def make_caller(settings: CallerSettings, own: Iterable[str]) -> Caller:
    """What to look for; `own` are addresses that the project's definitions name themselves."""
    texts = [data for name, data in settings.secrets.items() if name != "ca.pem"]
    texts += [value.encode() for value in settings.proxies.values()]
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


def _secrets(user: str) -> list[str]:
    _, colon, password = user.partition(":")
    return [part for part in (user if colon else "", password) if len(part) > 7]


def parse_certificates(text: bytes) -> list[bytes]:
    """The DER form of every certificate in PEM text, also where line breaks are escaped."""
    bodies = [re.sub(GAP, b"", body) for body in _CERTIFICATE.findall(text)]
    return [base64.b64decode(body) for body in bodies if len(body) % 4 == 0]


def fingerprint(der: bytes) -> str:
    """A certificate's name that tells nothing about it."""
    return f"certificate sha256:{hashlib.sha256(der).hexdigest()[:16]}"
