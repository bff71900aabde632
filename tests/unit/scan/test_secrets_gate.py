"""The gate finds every planted secret, wherever it stands, and nothing in ordinary files."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackyard.scan.mirror_traces import Caller
from stackyard.scan.secrets import content as gate_content
from stackyard.scan.secrets import gate, rules, tokens
from stackyard.scan.secrets import parts as gate_stream
from stackyard.system.errors import EngineError
from tests.unit.gate_samples import (
    EC_DER,
    JWT,
    MARK,
    PACKAGES,
    SECRETS,
    SSH_KEY,
    TLS_KEY,
    TOKENS,
    WITHIN,
    chars,
    encoded,
    java_store,
    tar,
)

NOBODY = Caller()


class Pipe(io.RawIOBase):
    """A stream as an engine gives one: no seeking, and fewer bytes than were asked for."""

    def __init__(self, data, most=70_001):
        self._data, self._most = io.BytesIO(data), most

    def read(self, size=-1):
        return self._data.read(min(size, self._most) if size >= 0 else self._most)


def scan(*files, caller=NOBODY, allowed=gate.NOTHING):
    return gate.scan_layer(Pipe(tar(*files)), caller, allowed)


def secrets(findings):
    return {finding.rule for finding in findings if finding.secret}


def numbered(cases):
    return [f"{case[0]}-{number}" for number, case in enumerate(cases)]


@pytest.mark.parametrize(("rule", "path", "content"), SECRETS, ids=numbered(SECRETS))
def test_a_planted_secret_is_found_by_its_rule(rule, path, content):
    found = [finding for finding in scan((path, content)) if finding.rule == rule]
    assert found
    assert all(finding.secret and finding.path == f"/{path}" for finding in found)
    assert all(re.search(r"\b[0-9a-f]{16}$", finding.what) for finding in found)


def test_every_rule_about_secrets_has_been_seen_broken():
    elsewhere = {"caller", "certificate"}  # tests/unit/scan/test_gate_layers.py
    assert {rule for rule, _, _ in SECRETS} | elsewhere == set(rules.SECRETS)


@pytest.mark.parametrize("form", tokens.FORMS, ids=lambda form: form.what)
def test_every_form_of_a_token_finds_one_that_no_other_finds(form):
    files = [(f"etc/{number}.conf", content) for number, (_, _, content) in enumerate(WITHIN)]
    whole = set(scan(*files))
    others = tuple(one for one in tokens.FORMS if one is not form)
    with mock.patch.object(tokens, "FORMS", others):
        assert set(scan(*files)) < whole


@pytest.mark.parametrize(("rule", "text"), TOKENS, ids=numbered(TOKENS))
def test_no_finding_shows_a_secret(rule, text):
    (body,) = re.findall(r"[\w/+-]{16,}$", text.rstrip('"}')) or ["?"]
    assert all(body not in str(finding) for finding in scan(("root/x", text.encode())))


@pytest.mark.parametrize(
    "around", ['"line\\n{}\\n"', "?token%3D{}&x=1", "\\u0022{}\\u0022", "\x1b[32m{}\x1b[0m", "({})"]
)
def test_a_token_after_an_escape_is_found(around):
    text = around.format("ghp_" + chars(36))
    assert secrets(scan(("usr/share/a", text.encode()))) == {"github"}


# Where it stands


def filler(length):
    return (b"# a line of text, as in any file.\n" * (length // 34 + 1))[:length]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WITHIN), st.integers(-2100, 2100), st.integers(0, 2), st.integers(0, 60_000))
def test_nothing_hides_on_the_border_of_two_chunks(secret, shift, border, after):
    rule, path, content = secret
    chunk = 32 * 2**10
    content = filler(chunk * (border + 1) + shift) + b"\n" + content + b"\n" + filler(after)
    with mock.patch.object(gate_content, "CHUNK", chunk):
        found = scan((path, content))
    assert rule in secrets(found)
    with mock.patch.object(gate_content, "CHUNK", 2**20):
        assert found == scan((path, content))


@pytest.mark.parametrize(("before", "found"), [(b"a", set()), (b" ", {"github"})])
def test_a_piece_that_begins_with_a_token_knows_what_stands_before_it(before, found, monkeypatch):
    monkeypatch.setattr(gate_content, "CHUNK", 32 * 2**10)
    start = gate_content.CHUNK - gate_content.OVERLAP
    token = b"ghp_" + chars(36).encode() + b"\n"
    content = filler(start - 1) + before + token + filler(90_000)
    assert secrets(scan(("usr/share/a", content))) == found


HINTS = st.sampled_from(
    [b"-----BEGIN ", MARK, b"-----BEGIN CERTIFICATE-----", b"://", b"TOKEN=", b"=" * 40,
     b'"auth": "', b"LS0tLS1CRUdJTi" + b"A" * 90, b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0",
     b"PK\x03\x04", b"\xfe\xed\xfe\xed", b"\x30\x82\x01", b"\x95\x01", b"ustar", b"AKIA", b"\\n"]
)  # fmt: skip


@given(
    st.sampled_from(["etc/x.env", "root/.netrc", "x.dist-info/RECORD", "usr/a"]),
    st.lists(HINTS | st.binary(max_size=40), max_size=9),
)
def test_no_content_stops_the_gate(path, parts):
    certificates = frozenset({b"der"})
    scan((path, b"".join(parts)), caller=Caller(certificates=certificates))


@pytest.mark.parametrize(
    ("rule", "path", "content"),
    [
        pytest.param(*one, id=name, marks=pytest.mark.repeat if number % 8 else ())
        for number, (one, name) in enumerate(zip(WITHIN, numbered(WITHIN), strict=True))
    ],
)
def test_a_secret_is_found_behind_four_megabytes_and_at_the_very_end(rule, path, content):
    start = filler(gate.WHOLE - 100) + b"\n"
    assert rule in secrets(scan((path, start + content), ("usr/next", b"x")))


@pytest.mark.parametrize("rest", [0, 1, 511])
def test_a_token_that_ends_its_file_does_not_run_on_into_the_next(rest):
    token = b"ghp_" + chars(36).encode()
    content = b"\n" * (512 - len(token) - rest) + token
    assert secrets(scan(("a", content), ("ghost", b"x"))) == {"github"}


def zipped(name, content, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("other", b"nothing")
        archive.writestr(name, content)
    return buffer.getvalue()


PACKERS = {
    "gz": lambda name, content: gzip.compress(content),
    "bz2": lambda name, content: bz2.compress(content),
    "xz": lambda name, content: lzma.compress(content),
    "zip": zipped,
    "tar.gz": lambda name, content: gzip.compress(tar((name, content))),
    "two.gz": lambda name, content: gzip.compress(b"first") + gzip.compress(content),
}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("text", [b"x = ghp_" + chars(36).encode(), SSH_KEY, TLS_KEY])
def test_a_secret_is_found_in_compressed_files(kind, text):
    found = scan((f"usr/share/a.{kind}", PACKERS[kind]("inner/file", filler(9999) + text)))
    assert len(secrets(found)) == 1
    within = f"/usr/share/a.{kind}" + ("!/inner/file" if kind in ("zip", "tar.gz") else "")
    assert {finding.path for finding in found} == {within}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_names_count_in_archives_too(kind):
    inner = PACKERS[kind]("home/.netrc", b"machine x password n0t-a-w0rd")
    assert secrets(scan((f"usr/share/a.{kind}", inner))) == {"password"}


def test_what_was_compressed_twice_is_not_looked_into():
    twice = gzip.compress(gzip.compress(b"ghp_" + chars(36).encode()))
    assert scan(("usr/share/a.gz", twice)) == []


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: zipped("a", data)])
def test_a_bomb_is_unpacked_to_its_limit_and_said(pack, monkeypatch):
    monkeypatch.setattr(gate_stream, "LIMIT", 10**6)
    secret = b"ghp_" + chars(36).encode() + b"\n"
    found = scan(("usr/share/a", pack(secret + bytes(2 * 10**6) + secret)))
    assert [(finding.rule, finding.secret) for finding in found if finding.rule == "unread"]
    assert secrets(found) == {"github"}


def test_the_limit_holds_for_all_files_of_a_zip_together(monkeypatch):
    monkeypatch.setattr(gate_stream, "LIMIT", 10**6)
    content = bytes(6 * 10**5)
    assert scan(("usr/share/a", zipped("a", content))) == []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(2):
            archive.writestr(f"{number}", content)
    assert [finding.rule for finding in scan(("usr/share/a", buffer.getvalue()))] == ["unread"]


def test_a_compressed_file_beyond_the_limit_is_said(monkeypatch):
    monkeypatch.setattr(gate, "LIMIT", 1000)
    found = scan(("usr/share/a", zipped("a", SSH_KEY * 20, zipfile.ZIP_STORED)))
    assert {finding.rule for finding in found} == {"unread", "key"}


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"ghp_" + chars(36).encode() + b"\n" + filler(10**6), mtime=0)[:-20],
        gzip.compress(b"ghp_" + chars(36).encode(), mtime=0) + b"rest",
        b"\x1f\x8b\x08 ghp_" + chars(36).encode(),
        b"PK\x03\x04 ghp_" + chars(36).encode(),
    ],
    ids=["cut off", "more behind it", "no gzip", "no zip"],
)
def test_a_broken_archive_is_said_and_read_as_far_as_it_goes(content):
    found = scan(("usr/share/a", content))
    assert {finding.rule for finding in found} == {"github", "unread"}


def test_an_archive_within_whose_headers_lie_is_said_and_read_as_far_as_it_goes():
    lie = tarfile.TarInfo("b")
    lie.size = -512
    start = tar(("a", b"ghp_" + chars(36).encode()))[:1024]
    found = scan(("usr/share/a.tgz", gzip.compress(start + lie.tobuf(tarfile.GNU_FORMAT))))
    assert {finding.rule for finding in found} == {"github", "unread"}


def test_a_zip_with_too_many_files_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(gate_stream, "ZIP_MEMBERS", 1)
    found = scan(("usr/share/a", zipped("a", b"x")))
    assert [finding.what for finding in found] == ["more than 1 files"]


def test_bytes_behind_the_end_of_a_layer_are_looked_at():
    layer = tar(("a", b"x")) + filler(10**6) + SSH_KEY
    found = gate.scan_layer(Pipe(layer), NOBODY)
    assert {finding.rule for finding in found} == {"key", "unread"}


def test_zeros_behind_the_end_of_a_layer_are_read_and_nothing_else():
    stream = Pipe(tar(("a", b"x")) + bytes(3 * 2**20))
    assert gate.scan_layer(stream, NOBODY) == []
    assert stream.read(1) == b""


def test_an_empty_layer_is_one():
    assert gate.scan_layer(Pipe(bytes(1024)), NOBODY) == []


@pytest.mark.parametrize("cut", [0, 700, 100_000])
def test_a_layer_that_was_cut_off_is_refused(cut):
    layer = tar(("a", filler(200_000)), ("b", b""))[:cut]
    with pytest.raises(EngineError, match="not a whole archive"):
        gate.scan_layer(Pipe(layer), NOBODY)


def test_a_sparse_file_is_read_as_its_reader_would_see_it():
    token = b"ghp_" + chars(36).encode()
    body = b"1\n3000\n%d\n" % len(token)
    body += bytes(512 - len(body)) + token
    info = tarfile.TarInfo("GNUSparseFile.0/a")
    info.size = len(body)
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "usr/a",
        "GNU.sparse.realsize": str(3000 + len(token)),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(body))
    found = gate.scan_layer(Pipe(buffer.getvalue()), NOBODY)
    assert [(finding.rule, finding.path) for finding in found] == [("github", "/usr/a")]


# What is no secret

ALIKE = [
    ("usr/bin/ssh", b"\x7fELF\0-----BEGIN OPENSSH " + MARK + b"-----\n\0openssh-key-v1\0"),
    ("usr/share/a", b"ghp_" + b"x" * 36),
    ("usr/share/a", b"ghp_EXAMPLE" + chars(29).encode()),
    ("usr/share/a", b"ghp_" + b"Ab1" * 12),
    ("usr/share/a", b"my_ghp_" + chars(35).encode()),
    ("usr/share/a", b"aghp_" + chars(36).encode()),
    ("usr/share/a", b"hf_hub_download_with_a_very_long_function_name"),
    ("usr/share/a", b"hf_AutoModelForSequenceClassificationx"),
    ("usr/share/a", b"AKIAIOSFODNN7EXAMPLE"),
    ("usr/share/a", b"ASIA" + b"QWERTZUIOPASDFGH"),
    ("usr/share/a", b"disk-by-id-scsi-0123456789abcdef0123456789abcdef"),
    ("usr/share/a", b"task-" + chars(48).encode()),
    ("usr/share/a", b"<div class='sk-toggleable__content-arrow-of-the-estimator'>"),
    ("usr/share/a", b"sk-" + b"xxxxxxxx" * 6),
    ("usr/share/a", b"_ZN5torch3jit3ghp_" + b"a" * 40),
    ("usr/share/a", b"Authorization: Bearer YOUR_ACCESS_TOKEN_GOES_HERE"),
    ("usr/share/a", b"Authorization: Bearer ${GITHUB_TOKEN_OF_THE_FIRM}"),
    ("usr/share/a", b"commit 0123456789abcdef0123456789abcdef01234567"),
    ("usr/share/a", b"WANDB_API_KEY=$WANDB_API_KEY"),
    ("usr/share/a", b"//registry.firm.example/:_authToken=${NPM_TOKEN_OF_THE_FIRM}"),
    ("usr/share/a", b"https://user:n0t-a-w0rd@host.example in a manual"),
    (f"{PACKAGES}/x/test_jwt.py", JWT.encode()),
    (f"{PACKAGES}/x/test.py", b"PASSWORD = 'n0t-a-w0rd'"),
    ("usr/share/cacerts", java_store(2)),
    ("etc/wgetrc", b"# https_proxy = http://user:password@proxy.example:18023/"),
    ("etc/app.conf", b"url = https://${USER}:${PASSWORD}@host.example/"),
    ("etc/environment", b"HF_TOKEN_PATH=/run/x\nTOKENIZERS_PARALLELISM=false\nMAX_TOKEN=4096"),
    ("etc/environment", b"FIRM_TOKEN=$(cat /run/secrets/x)\nA_SECRET=/run/secrets/y\nB_TOKEN="),
    ("root/.bashrc", b"alias ll='ls -l'"),
    ("root/.docker.json", json.dumps({"auths": {"registry.example": {}}}).encode()),
    ("etc/x/config.json", json.dumps({"auths": {"r": {"auth": ""}}}).encode()),
    ("etc/x/config.json", json.dumps({"auth": encoded("no colon in it")}).encode()),
    ("etc/gitconfig", b"[credential]\n helper = cache\n[user]\n signingkey = 0A"),
]


@pytest.mark.parametrize(("path", "content"), ALIKE, ids=[str(n) for n in range(len(ALIKE))])
def test_what_only_looks_like_a_secret_is_let_through(path, content):
    assert secrets(scan((path, content))) == set()


def test_random_bytes_and_base64_hold_no_secret():
    text = "\n".join(chars(76, seed=number) for number in range(3000))
    assert secrets(scan(("etc/data.json", text.encode()))) == set()


# An elliptic curve's, with its length in one byte, and the start of RSA's, with it in two.
@pytest.mark.parametrize(
    "key", [EC_DER, b"\x30\x82\x01\x00\x02\x01\x00\x02\x81" + bytes(251)], ids=["ec", "rsa"]
)
def test_a_key_in_der_is_as_long_as_it_says(key):
    assert secrets(scan(("usr/share/a", key))) == {"key"}
    for other in (key[:-1], key + b"x", key + key):
        assert secrets(scan(("usr/share/a", other))) == set()


def test_prose_behind_the_first_line_of_a_key_is_no_key():
    text = b"-----BEGIN " + MARK + b"----- is how keys begin, and then come " + filler(400)
    assert secrets(scan(("usr/share/a", text))) == set()


# Layers and what is allowed


def test_a_file_that_the_next_layer_deletes_is_still_found():
    lower, upper = scan(("etc/token", SSH_KEY)), scan(("etc/.wh.token", b""))
    assert secrets(lower) == {"key"}
    assert [(finding.rule, finding.secret) for finding in upper] == [("left over", False)]


def entry(finding, rule=None, path=None):
    rule, path = rule or finding.rule, path or re.escape(finding.path)
    digest = finding.what.split()[-1]
    return gate.read_allowed(
        f"allowed:\n- {{rule: {rule}, path: '{path}', digests: ['{digest}'], why: public}}", "x"
    )


@pytest.mark.parametrize(("rule", "path", "content"), WITHIN, ids=numbered(WITHIN))
def test_an_entry_lets_exactly_its_one_through(rule, path, content):
    first = scan((path, content))
    one = next(finding for finding in first if finding.rule == rule)
    assert set(first) - set(scan((path, content), allowed=entry(one))) == {one}
    assert scan((path, content), allowed=entry(one, path="/elsewhere")) == first
    under_another = "slack" if rule != "slack" else "key"
    assert scan((path, content), allowed=entry(one, rule=under_another)) == first


def test_another_key_in_a_file_with_an_allowed_one_is_found():
    (one,) = scan(("usr/lib/library", b"\x7fELF" + TLS_KEY))
    (other,) = scan(("usr/lib/library", TLS_KEY + SSH_KEY), allowed=entry(one))
    assert other.what != one.what


def test_keys_that_begin_alike_have_fingerprints_of_their_own():
    lines = SSH_KEY.splitlines()
    changed = lines[-2][:1].swapcase() + lines[-2][1:]
    other = b"\n".join([*lines[:-2], changed if changed != lines[-2] else b"A", lines[-1]])
    assert scan(("a", SSH_KEY)) != scan(("a", other))


def test_a_key_has_one_fingerprint_however_it_is_written():
    ways = (SSH_KEY, json.dumps(SSH_KEY.decode()).encode(), b"".join(SSH_KEY.splitlines()[1:-1]))
    assert len({tuple(scan(("a", way))) for way in ways}) == 1
