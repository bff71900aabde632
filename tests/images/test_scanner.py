"""Every rule of the scanner finds what breaks it, and nothing in an ordinary layer."""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from stackyard.settings import CallerSettings
from tests.images import scanner
from tests.images.caller import Caller, fingerprint, make_caller, parse_certificates

PACKAGES = "usr/local/lib/python3.11/dist-packages"


def certificate(name: str) -> bytes:
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2020, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start.replace(year=2050))
        .sign(key, None)
    )
    return made.public_bytes(Encoding.PEM)


# Written in two parts, so that this file is not itself taken for a key.
MARK = b"PRIVATE" + b" KEY"


def private_key(form: PrivateFormat) -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, form, NoEncryption())


PUBLIC_CA, OWN_CA, OTHER_CA = certificate("Public"), certificate("Firm"), certificate("Other")
(OWN_DER,) = parse_certificates(OWN_CA)
SSH_KEY, TLS_KEY = private_key(PrivateFormat.OpenSSH), private_key(PrivateFormat.PKCS8)
CALLER = make_caller(
    CallerSettings(
        secrets={
            "apt.sources": b"URIs: http://mirror.debian.example/debian\n",
            "uv.toml": b'url = "https://ann:open-sesame@packages.firm.example/simple"\n',
            "pip.conf": b"index-url = https://download.pytorch.org/whl/cpu\n",
            "ca.pem": PUBLIC_CA + OWN_CA,
        },
        wheel_folders=(Path("/data/wheels"),),
        proxies={"https_proxy": "http://10.1.2.3:3128"},
    ),
    own=["https://download.pytorch.org/whl/cpu"],
)


def tar(*files: tuple[str, bytes, int, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, mode, kind in files:
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.type = len(content), mode, kind
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def scan(
    path: str, content: bytes = b"", mode: int = 0o644, kind: bytes = tarfile.REGTYPE
) -> list[scanner.Finding]:
    layer = tar((path, content, mode, kind))
    return scanner.scan_layer(io.BytesIO(layer), CALLER)


def rules(findings: list[scanner.Finding]) -> set[str]:
    return {finding.rule for finding in findings}


BROKEN = [
    ("key", "usr/share/a", SSH_KEY),
    ("key", "usr/share/a", TLS_KEY),
    ("key", "usr/share/a", json.dumps(SSH_KEY.decode()).encode()),
    ("key", "usr/share/a", b"x = '-----BEGIN RSA " + MARK + b"-----'"),
    ("key", "usr/share/a", b"-----BEGIN PGP " + MARK + b" BLOCK-----\n"),
    ("key", "usr/share/a", b"PuTTY-User-Key-File-3: ssh-ed25519\n"),
    ("key", "usr/bin/program", b"\x7fELF" + TLS_KEY),
    ("key", "usr/bin/program", b"\x7fELF" + SSH_KEY),
    ("key", "usr/share/a", b"," + b"".join(SSH_KEY.splitlines()[1:-1])),
    ("key file", "etc/ssh/ssh_host_ed25519_key", b""),
    ("key file", "etc/ssh/ssh_host_ed25519_key.pub", b""),
    ("key file", f"{PACKAGES}/x/id_rsa", b""),
    ("key file", "etc/user_key", b""),
    ("key file", "etc/authorized_keys", b""),
    ("identity", "etc/hostname", b"build"),
    ("identity", "etc/resolv.conf", b""),
    ("identity", "etc/machine-id", b"0" * 32),
    ("identity", "var/lib/dbus/machine-id", b""),
    ("cache", "var/cache/apt/archives/vim.deb", b""),
    ("cache", "var/cache/debconf/config.dat", b""),
    ("cache", "var/lib/apt/lists/mirror_Packages", b""),
    ("cache", f"{PACKAGES}/torch-1-py3-none-any.whl", b""),
    ("log", "var/log/dpkg.log", b""),
    ("log", "usr/share/build.log", b""),
    ("left over", "tmp/stub", b""),
    ("left over", "mnt/secrets/pip.conf", b""),
    ("left over", "run/secrets/x", b""),
    ("left over", "root/notes", b""),
    ("left over", "etc/.wh.secret", b""),
    ("caller", "etc/apt/sources.list", b"deb http://mirror.debian.example/debian bookworm main"),
    ("caller", "etc/environment", b"https_proxy=http://10.1.2.3:3128"),
    ("caller", f"{PACKAGES}/x.py", b"INDEX = 'https://packages.firm.example/simple'"),
    ("caller", f"{PACKAGES}/x.py", b"https://open-sesame@elsewhere"),
    ("caller", f"{PACKAGES}/a.dist-info/direct_url.json", b"file:///data/wheels/a.whl"),
    ("certificate", f"{PACKAGES}/certifi/cacert.pem", PUBLIC_CA + OWN_CA),
    ("certificate", "etc/ssl/firm.crt", OWN_DER),
    ("certificate", "etc/ssl/cert.pem", OTHER_CA + PUBLIC_CA),
    ("certificate", f"{PACKAGES}/x.json", json.dumps(PUBLIC_CA.decode()).encode()),
]


@pytest.mark.parametrize(
    ("rule", "path", "content"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, *_) in enumerate(BROKEN)]
)
def test_the_rule_is_broken_by(rule, path, content):
    assert rule in rules(scan(path, content))


def test_every_rule_has_been_seen_broken():
    seen = {rule for rule, _, _ in BROKEN} | {"world-writable", "setuid"}
    assert seen == set(scanner.RULES)


@pytest.mark.parametrize(
    ("path", "mode", "kind", "broken"),
    [
        ("usr/bin/new", 0o4755, tarfile.REGTYPE, {"setuid"}),
        ("usr/bin/new", 0o2755, tarfile.LNKTYPE, {"setuid"}),
        ("usr/bin/su", 0o6755, tarfile.REGTYPE, {"setuid"}),
        ("usr/bin/su", 0o4755, tarfile.REGTYPE, set()),
        ("var/mail", 0o2775, tarfile.DIRTYPE, set()),
        ("etc/open", 0o666, tarfile.REGTYPE, {"world-writable"}),
        ("etc/open", 0o777, tarfile.DIRTYPE, {"world-writable"}),
        ("etc/link", 0o777, tarfile.SYMTYPE, set()),
        ("var/tmp", 0o1777, tarfile.DIRTYPE, set()),
        ("dev/null", 0o666, tarfile.CHRTYPE, set()),
    ],
)
def test_rights_of_files(path, mode, kind, broken):
    assert rules(scan(path, mode=mode, kind=kind)) == broken


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("usr/bin/ssh", b"\x7fELF\0-----BEGIN OPENSSH " + MARK + b"-----\n\0openssh-key-v1\0"),
        (f"{PACKAGES}/fairseq/data/id_dataset.py", b"class IdDataset: ..."),
        ("usr/share/doc/apt/examples/sources.list.txt", b"deb http://mirror.debian.example/debian"),
        (f"{PACKAGES}/x.py", b"proxy = '10.1.2.3'  # an example"),
        (f"{PACKAGES}/a.dist-info/direct_url.json", b"file:///mnt/data/wheels/a.whl"),
        ("etc/pip.conf", b"index-url = https://download.pytorch.org/whl/cpu"),
        ("etc/ssl/cert.pem", OTHER_CA),
        ("etc/machine-id", b""),
        ("./root/.bashrc", b"alias ll='ls -l'"),
        ("var/lib/dpkg/info/apt.postinst", b"# see mirror.debian.example"),
    ],
)
def test_an_ordinary_file_breaks_no_rule(path, content):
    assert scan(path, content) == []


def test_what_lies_across_two_chunks_is_found(monkeypatch):
    monkeypatch.setattr(scanner, "CHUNK", 2 * scanner.OVERLAP)
    content = b"\n" * (2 * scanner.OVERLAP - 40) + SSH_KEY + b"\n" * scanner.OVERLAP
    assert rules(scan("usr/share/a", content)) == {"key"}


def known_key() -> tuple[bytes, str]:
    content = b"\x7fELF" + TLS_KEY
    body = b"".join(TLS_KEY.splitlines()[1:-1])
    return content, scanner.key_name(body[:64])


def test_a_public_test_key_is_fine_where_its_package_has_it_and_nowhere_else(monkeypatch):
    content, name = known_key()
    monkeypatch.setitem(scanner.PUBLIC_KEYS, name, re.compile("/usr/lib/library"))
    assert scan("usr/lib/library", content) == []
    assert rules(scan("usr/lib/other", content)) == {"key"}


def test_a_library_with_public_test_keys_may_hold_no_other(monkeypatch):
    content, name = known_key()
    monkeypatch.setitem(scanner.PUBLIC_KEYS, name, re.compile("/usr/lib/library"))
    other = private_key(PrivateFormat.PKCS8)
    assert rules(scan("usr/lib/library", content + other)) == {"key"}


def bundle_layer(content: bytes, *, recorded: bytes) -> io.BytesIO:
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).decode().rstrip("=")
    record = f"certifi/cacert.pem,sha256={digest},{len(recorded)}\ncertifi-1.dist-info/RECORD,,\n"
    return io.BytesIO(
        tar(
            (f"{PACKAGES}/certifi/cacert.pem", content, 0o644, tarfile.REGTYPE),
            (f"{PACKAGES}/certifi-1.dist-info/RECORD", record.encode(), 0o644, tarfile.REGTYPE),
        )
    )


def test_public_certificates_are_fine_as_a_wheel_brought_them():
    assert scanner.scan_layer(bundle_layer(PUBLIC_CA, recorded=PUBLIC_CA), CALLER) == []


def test_a_certificate_added_to_a_wheels_bundle_is_found():
    found = scanner.scan_layer(bundle_layer(PUBLIC_CA + OWN_CA, recorded=PUBLIC_CA), CALLER)
    assert str(found[0]).startswith(f"/{PACKAGES}/certifi/cacert.pem: certificate sha256:")
    assert fingerprint(OWN_DER) in {finding.what for finding in found}


def test_a_password_is_never_shown():
    found = scan("etc/pip.conf", b"https://ann:open-sesame@packages.firm.example/simple")
    assert {f.what for f in found} == {"a password", "packages.firm.example"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("RUN pip install --index-url https://packages.firm.example/simple torch", 1),
        ("ENV https_proxy=http://10.1.2.3:3128", 1),
        ("RUN uv pip install --find-links /data/wheels torch", 1),
        (f"LABEL ca={json.dumps(OWN_CA.decode())}", 1),
        ("RUN install_locked /mnt/base.lock https://download.pytorch.org/whl/cpu", 0),
        ("COPY /mnt/data/wheels /data/wheels2", 0),
    ],
)
def test_traces_of_the_caller_in_a_history(text, found):
    assert len(scanner.traces(text, CALLER)) == found


def saved_image(folder: Path, *layers: bytes) -> Path:
    config = {"rootfs": {"diff_ids": [hashlib.sha256(layer).hexdigest() for layer in layers]}}
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    plain = (0o644, tarfile.REGTYPE)
    path = folder / "image.tar"
    path.write_bytes(
        tar(
            ("config.json", json.dumps(config).encode(), *plain),
            *((name, layer, *plain) for name, layer in zip(names, layers, strict=True)),
            ("manifest.json", manifest, *plain),
        )
    )
    return path


def test_a_file_that_a_later_layer_deletes_is_still_found(tmp_path):
    lower = tar(("etc/token", SSH_KEY, 0o600, tarfile.REGTYPE))
    upper = tar(("etc/.wh.token", b"", 0o600, tarfile.REGTYPE))
    image = scanner.scan_image(saved_image(tmp_path, lower, upper), Caller(), {})
    assert "/etc/token: a private key" in image.of_rule("key")
    assert image.of_rule("left over") == ["/etc/.wh.token: deleted here, still in an earlier layer"]


def test_a_layer_that_was_scanned_is_not_read_again(tmp_path):
    shared = tar(("etc/token", SSH_KEY, 0o600, tarfile.REGTYPE))
    known: dict[str, tuple[scanner.Finding, ...]] = {hashlib.sha256(shared).hexdigest(): ()}
    image = scanner.scan_image(saved_image(tmp_path, shared), Caller(), known)
    assert image.of_rule("key") == []
