"""List the rules for publishing an image, and apply those on a file's name, kind and mode.

Owns the list of rules, and which of them concern secrets. It must not read files:
`scan.secrets.content` and `scan.secrets.tokens` do.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

# Findings that forbid publication.
SECRETS = {
    "key": "private key material",
    "key file": "a file with a name that ssh or gpg give to keys or lists of keys",
    "keystore": "a PKCS#12 or Java key store",
    "caller": "an address, password or folder of the caller's package settings",
    "certificate": "a certificate of the caller's bundle that no package brought",
    "github": "a token of GitHub",
    "gitlab": "a token of GitLab",
    "huggingface": "a token of Hugging Face",
    "aws": "an access key of AWS",
    "google": "an API key or OAuth secret of Google",
    "slack": "a token of Slack",
    "pypi": "a token of PyPI",
    "npm": "a token of npm or of an npm registry",
    "openai": "an API key as OpenAI and Anthropic write theirs",
    "wandb": "an API key of Weights & Biases",
    "nvidia": "an API key of NVIDIA NGC",
    "docker": "a token of Docker Hub",
    "databricks": "a token of Databricks",
    "stripe": "a secret or restricted key of Stripe",
    "digitalocean": "a token of DigitalOcean",
    "replicate": "a token of Replicate",
    "sendgrid": "an API key of SendGrid",
    "bearer": "a token in an Authorization header",
    "jwt": "a JSON web token in settings",
    "login": "a login to a container registry",
    "password": "a password in a URL or in a file of logins",
    "variable": "a variable named as a secret, with a value",
}
# Findings that do not forbid publication: they do no harm, but do not belong in our images.
TIDINESS = {
    "key marker": "the first line of a private key, without the key",
    "identity": "the identity of one machine: its name, id, resolver or shell history",
    "cache": "a package manager's caches and downloads",
    "log": "a log",
    "left over": "a file in a folder that should be empty, or deleted in a later layer",
    "world-writable": "a file that every user may write",
    "setuid": "a program with more rights than its user, beyond Debian's own",
    "unread": "compressed content that could not be unpacked",
}

# Set by Debian's packages; without effect in our runs, which start with no-new-privileges.
SETUID = {
    "/usr/bin/chage": 0o2755,  # passwd
    "/usr/bin/chfn": 0o4755,
    "/usr/bin/chsh": 0o4755,
    "/usr/bin/expiry": 0o2755,
    "/usr/bin/gpasswd": 0o4755,
    "/usr/bin/passwd": 0o4755,
    "/usr/bin/newgrp": 0o4755,  # login
    "/usr/bin/su": 0o4755,  # util-linux
    "/usr/bin/ssh-agent": 0o2755,  # openssh-client
    "/usr/lib/openssh/ssh-keysign": 0o4755,
    "/usr/sbin/unix_chkpwd": 0o2755,  # libpam-modules-bin
    "/usr/bin/netkit-rcp": 0o4755,  # rsh-client, which Debian's pdsh depends on
    "/usr/bin/netkit-rlogin": 0o4755,
    "/usr/bin/netkit-rsh": 0o4755,
}

_KEY_NAME = re.compile(
    r"(ssh_host_.*|.*_key|id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?|.*\.(ppk|key|p12|pfx|jks)"
    r"|authorized_keys2?|known_hosts2?|.*-cert\.pub|secring\.gpg)"
)
_IDENTITY = re.compile(
    r"/etc/(hostname|mtab)|/var/lib/dbus/machine-id|/var/lib/systemd/random-seed"
    r"|.*/\.(bash_history|python_history|lesshst|viminfo|wget-hsts)"
)
# Engines mount over these, so images have them as empty files, which reveal nothing.
_IDENTITY_UNLESS_EMPTY = re.compile(r"/etc/(machine-id|resolv\.conf|hosts)")
_CACHE = re.compile(
    r"/var/cache/.*|/var/lib/apt/lists/.*|/(root|home/[^/]+)/\.(cache|npm|cargo)(/.*)?"
    r"|.*\.(whl|deb|rpm)"
)
_LOG = re.compile(r"/var/log/.*|.*\.log(\.\d+)?(\.gz)?")
_EMPTY = re.compile(
    r"/(tmp|var/tmp|run|mnt|media|home|srv|opt|boot)/.+|/root/(?!\.(bashrc|profile)$).+"
)


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Report one match of a rule, without its place.

    Attributes:
        what: what it is, in words that do not reveal the secret.
        digest: a fingerprint of the secret itself; empty where there is none.
    """

    rule: str
    what: str
    digest: str = ""


def is_key_name(path: str) -> bool:
    """Say if a file has a name that keys or lists of keys have."""
    return bool(_KEY_NAME.fullmatch(path.rpartition("/")[2])) or "/private-keys-v1.d/" in path


def untidy(path: str, member: tarfile.TarInfo) -> Iterator[Hit]:
    """Yield the rules that a file's name, kind and mode break, except `key file`."""
    name = path.rpartition("/")[2]
    mode = member.mode & 0o7777
    if name.startswith(".wh."):
        yield Hit(rule="left over", what="deleted here, still in an earlier layer")
    if _EMPTY.fullmatch(path):
        yield Hit(rule="left over", what="this folder must be empty")
    told = member.size or not member.isfile()
    if _IDENTITY.fullmatch(path) or (told and _IDENTITY_UNLESS_EMPTY.fullmatch(path)):
        yield Hit(rule="identity", what="belongs to one machine")
    # Character devices such as /dev/null are meant to be world-writable.
    if mode & 0o002 and not (
        member.issym() or member.ischr() or (member.isdir() and mode & 0o1000)
    ):
        yield Hit(rule="world-writable", what=f"mode {mode:o}")
    if member.isdir():
        return
    if mode & 0o6000 and SETUID.get(path) != mode:
        yield Hit(rule="setuid", what=f"mode {mode:o}")
    if _CACHE.fullmatch(path):
        yield Hit(rule="cache", what=f"{member.size} bytes")
    if _LOG.fullmatch(path):
        yield Hit(rule="log", what=f"{member.size} bytes")
