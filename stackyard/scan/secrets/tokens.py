"""Find tokens by their form: prefix, length, alphabet and entropy.

Owns the table of forms and finding them in bytes, fast: a token is a long run of letters, digits,
`-` and `_`, so only such runs are searched for the forms' literals. Packages hold many made-up
tokens, so the body must also look random. It must not read files.
"""

from __future__ import annotations

import hashlib
import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stackyard.scan.secrets.rules import Hit

# The shortest token of the table has 20 characters, with its prefix.
RUN = 20
# Bytes kept before a run, for `API_KEY = "`, `:_authToken=` and `Bearer `.
BEFORE = 16
_WORDS = (string.ascii_letters + string.digits + "-_").encode()
_AS_RUNS = bytes(ord("a") if byte in _WORDS else 0 for byte in range(256))
_RUN = b"a" * RUN
_MANGLED = b"_Z"

_MADE_UP = re.compile(
    rb"x{4}|\*{3}|\.{3}|example|placeholder|changeme|change_me|redacted|dummy|sample|foobar"
    rb"|insert[-_]|your[-_]|1234567|abcdef|qwerty|(.)\1{5}",
    re.IGNORECASE,
)
# A token may follow an escape that ends in a letter or digit: `\\nghp_...`, `%3Dghp_...`,
# `\\u003dghp_...`, or a terminal's colour.
_BEFORE_TOKEN = re.compile(
    rb"(?:^|[^A-Za-z0-9]|\\[nrt]|%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\x1b\[[0-9;]{0,5}m)\Z"
)
_AWS_SECRET = re.compile(rb"(?<![A-Za-z0-9/+])([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])")
_AWS_NEAR = 300  # bytes


@dataclass(frozen=True, kw_only=True)
class Form:
    """Describe how one kind of token is written.

    Attributes:
        anchors: literals, one of which is in every such token or just before it.
        pattern: the token; group 1 is its random part.
        bits: the least entropy of the random part, in bits per character.
        digits: the least number of digits in it.
        capitals: the least share of capitals, and of small letters; words have few capitals.
        settings: true if it counts in settings only, not in every file.
    """

    rule: str
    what: str
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    bits: float = 3.5
    digits: int = 0
    capitals: float = 0.0
    settings: bool = False


def _form(rule: str, what: str, anchors: str, pattern: str, **more: float) -> Form:
    return Form(
        rule=rule,
        what=what,
        anchors=tuple(anchor.encode() for anchor in anchors.split()),
        pattern=re.compile(pattern.encode()),
        bits=more.get("bits", 3.5),
        digits=int(more.get("digits", 0)),
        capitals=more.get("capitals", 0.0),
        settings=bool(more.get("settings", False)),
    )


_ALNUM_ENDS, _WORD_ENDS = "(?![A-Za-z0-9])", "(?![A-Za-z0-9_-])"
FORMS = (
    _form("github", "a GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_",
          "gh[pousr]_([A-Za-z0-9]{36,251})" + _ALNUM_ENDS),
    _form("github", "a fine-grained GitHub token", "github_pat_",
          "github_pat_([A-Za-z0-9]{22}_[A-Za-z0-9]{59})" + _ALNUM_ENDS),
    _form("gitlab", "a GitLab token", "glpat- gldt- glrt-",
          r"gl(?:pat|dt|rt)-([A-Za-z0-9_-]{20,300}(?:\.[a-z0-9]{2}\.[a-z0-9]{9})?)" + _WORD_ENDS,
          bits=3.0),
    _form("huggingface", "a Hugging Face token", "hf_",
          "hf_([A-Za-z0-9]{34,40})" + _ALNUM_ENDS, capitals=0.15),
    _form("google", "a Google API key", "AIza", "AIza([A-Za-z0-9_-]{35})" + _WORD_ENDS),
    _form("google", "a Google OAuth secret", "GOCSPX-", "GOCSPX-([A-Za-z0-9_-]{28})" + _WORD_ENDS),
    _form("slack", "a Slack token", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-",
          r"(?:xox[abeoprs]|xapp)-((?:\d{1,14}-){1,4}[A-Za-z0-9-]{16,160})" + _WORD_ENDS,
          bits=3.0, digits=6),
    _form("pypi", "a PyPI token", "pypi-AgE", "pypi-AgE([A-Za-z0-9_-]{60,4000})" + _WORD_ENDS),
    _form("npm", "an npm token", "npm_", "npm_([A-Za-z0-9]{36})" + _ALNUM_ENDS),
    _form("npm", "a token of an npm registry", ":_authToken=",
          r":_authToken=[\"']?([A-Za-z0-9_-]{20,200})" + _WORD_ENDS, bits=3.0, digits=2),
    # sk-ant-api03-..., sk-proj-..., sk-or-v1-..., and without a second name.
    _form("openai", "an API key (sk-)", "sk-",
          "sk-(?:[a-z]{2,8}-)?(?:[a-z]{1,5}[0-9]{1,2}-)?([A-Za-z0-9_-]{32,200})" + _WORD_ENDS,
          digits=3),
    _form("nvidia", "an NVIDIA API key", "nvapi-", "nvapi-([A-Za-z0-9_-]{60,72})" + _WORD_ENDS),
    _form("wandb", "a Weights & Biases key", "API_KEY",
          r"WANDB_API_KEY[\"']?\s{0,4}[=:]\s{0,4}[\"']?([0-9a-f]{40})" + _ALNUM_ENDS,
          bits=3.0, digits=6),
    _form("wandb", "a Weights & Biases key", "wandb_v1_",
          "wandb_v1_([A-Za-z0-9_]{60,100})" + _ALNUM_ENDS),
    # Docker documents the prefixes alone: 27 characters were seen, and 32 for an organization's.
    _form("docker", "a Docker Hub token", "dckr_pat_ dckr_oat_",
          "dckr_[po]at_([A-Za-z0-9_-]{24,64})" + _WORD_ENDS),
    _form("databricks", "a Databricks token", "dapi",
          "dapi([0-9a-f]{32}(?:-[0-9]{1,2})?)" + _ALNUM_ENDS, bits=3.0, digits=6),
    _form("stripe", "a Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_",
          "[rs]k_(?:live|test)_([A-Za-z0-9]{20,247})" + _ALNUM_ENDS),
    _form("digitalocean", "a DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_",
          "do[opr]_v1_([0-9a-f]{64})" + _ALNUM_ENDS, bits=3.0, digits=12),
    _form("replicate", "a Replicate token", "r8_",
          "r8_([A-Za-z0-9]{37})" + _WORD_ENDS, digits=1, capitals=0.1),
    _form("sendgrid", "a SendGrid key", "SG.",
          r"SG\.([A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})" + _WORD_ENDS),
    _form("key", "an age secret key", "AGE-SECRET-KEY-1",
          "AGE-SECRET-KEY-1([QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58})" + _ALNUM_ENDS),
    _form("bearer", "a token in an Authorization header", "earer",
          r"(?i:authorization)[\"'\\]{0,3}\s{0,4}[:=,]\s{0,4}[\"'\\]{0,3}[Bb]earer\s{1,4}"
          r"([A-Za-z0-9._~+/-]{20,4000}=*)", digits=3),
    _form("jwt", "a JSON web token", "eyJ",
          r"(eyJ[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{20,1000})"
          + _WORD_ENDS, settings=True),
    _form("aws", "an AWS access key id", "AKIA ASIA", "((?:AKIA|ASIA)[A-Z2-7]{16})" + _ALNUM_ENDS,
          bits=2.6),
)  # fmt: skip


def _any_of(literals: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return a pattern of literals, grouped by first character, which is twice as fast."""
    groups: dict[bytes, list[bytes]] = {}
    for literal in literals:
        groups.setdefault(literal[:1], []).append(re.escape(literal[1:]))
    parts = (re.escape(first) + b"(?:%b)" % b"|".join(rest) for first, rest in groups.items())
    return re.compile(b"|".join(parts))


_ANCHORS = _any_of(anchor for form in FORMS for anchor in form.anchors)


def digest(secret: bytes) -> str:
    """Return a fingerprint of a secret, which reveals it only if the secret can be guessed."""
    return hashlib.sha256(secret).hexdigest()[:16]


def entropy(body: bytes) -> float:
    """Return the Shannon entropy of the bytes, in bits per byte."""
    shares = [count / len(body) for count in Counter(body).values()]
    return -sum(share * math.log2(share) for share in shares)


def is_made_up(body: bytes) -> bool:
    """Say if a text is a placeholder, as documentation uses for secrets."""
    return _MADE_UP.search(body) is not None


def condense(data: bytes) -> bytes:
    """Return the long runs of token characters, each with the `BEFORE` bytes before it.

    C++ symbol names (mangled) are left out; they are a third of such runs in a library.
    """
    marks = data.translate(_AS_RUNS)
    found = []
    start = marks.find(_RUN)
    while start >= 0:
        end = marks.find(b"\0", start + RUN)
        if end < 0:
            end = len(data)
        if data[start : start + 2] != _MANGLED:
            found.append(data[start - BEFORE if start > BEFORE else 0 : end])
        start = marks.find(_RUN, end)
    return b"\0".join(found)


def find_tokens(data: bytes, runs: bytes, *, settings: bool) -> Iterator[tuple[int, Hit]]:
    """Yield tokens in `data`, each with its position; `runs` is `condense(data)`."""
    present = set(_ANCHORS.findall(runs))
    for form in FORMS if present else ():
        if form.settings > settings or present.isdisjoint(form.anchors):
            continue
        for match in form.pattern.finditer(data):
            if _begins(data, match.start()) and _is_random(form, match.group(1)):
                if form.rule == "aws":
                    yield from _aws(data, match)
                else:
                    yield (
                        match.start(),
                        Hit(rule=form.rule, what=form.what, digest=digest(match.group(1))),
                    )


def _begins(data: bytes, start: int) -> bool:
    """Say if a token may begin here: not within a word, except right after an escape."""
    return _BEFORE_TOKEN.search(data[max(0, start - 8) : start]) is not None


def _is_random(form: Form, body: bytes) -> bool:
    text = body.decode("latin-1")
    capitals, small = (sum(map(kind, text)) for kind in (str.isupper, str.islower))
    return (
        entropy(body) >= form.bits
        and sum(map(str.isdigit, text)) >= form.digits
        and min(capitals, small) >= form.capitals * len(body)
        and not is_made_up(body)
    )


def _aws(data: bytes, match: re.Match[bytes]) -> Iterator[tuple[int, Hit]]:
    """Yield an access key's id and the secrets near it; an id without one needs a digit."""
    near = max(0, match.start() - _AWS_NEAR)
    secrets = [
        (near + other.start(), other.group(1))
        for other in _AWS_SECRET.finditer(data[near : match.end() + _AWS_NEAR])
        if entropy(other.group(1)) > 4.2 and not is_made_up(other.group(1))
    ]
    if not secrets and not re.search(rb"[2-7]", match.group(1)):
        return
    yield match.start(), Hit(rule="aws", what="an AWS access key id", digest=digest(match.group(1)))
    for _, secret in secrets:
        # At the id's position, so that the same piece of a file reports both.
        yield match.start(), Hit(rule="aws", what="an AWS secret key", digest=digest(secret))
