"""Made-up secrets of every kind, put together at run time so that no file holds a whole one."""

import base64
import datetime
import io
import json
import random
import string
import tarfile

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

PACKAGES = "usr/local/lib/python3.11/dist-packages"
MARK = b"PRIVATE" + b" KEY"
ALNUM = string.ascii_letters + string.digits
WORD = ALNUM + "-_"


def chars(count, alphabet=ALNUM, seed=7):
    """Random characters, the same in every run; the first and last are no separators."""
    chosen = random.Random(f"{seed}{count}{alphabet}").choices(alphabet, k=count)
    return "".join(chosen[:1] + chosen[1:-1] + chosen[:1])


def certificate(name):
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


def private_key(form, encoding=Encoding.PEM):
    return Ed25519PrivateKey.generate().private_bytes(encoding, form, NoEncryption())


SSH_KEY, TLS_KEY = private_key(PrivateFormat.OpenSSH), private_key(PrivateFormat.PKCS8)
LOCKED_KEY = Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
)
EC_DER = generate_private_key(SECP256R1()).private_bytes(
    Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()
)
STORE = pkcs12.serialize_key_and_certificates(
    None, Ed25519PrivateKey.generate(), None, None, BestAvailableEncryption(b"x")
)
PGP_KEY = (
    b"-----BEGIN PGP " + MARK + b" BLOCK-----\nVersion: GnuPG v2\n\n"
    + "\n".join(chars(64, seed=n) for n in range(8)).encode() + b"\n=abcd\n"
)  # fmt: skip
OLD_KEY = (
    b"-----BEGIN RSA " + MARK + b"-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA\n\n"
    + "\n".join(chars(64, seed=n) for n in range(8)).encode() + b"\n-----END"
)  # fmt: skip
PUTTY = (
    "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n" + chars(48)
).encode()


def java_store(tag):
    """A Java key store with one entry: a certificate (2) or a key (1)."""
    alias = b"\0\x01a" + b"\0" * 8
    body = b"\0\x05X.509" if tag == 2 else b""
    entry = tag.to_bytes(4, "big") + alias + body + b"\0\0\0\x04data"
    return b"\xfe\xed\xfe\xed" + b"\0\0\0\x02" + b"\0\0\0\x01" + entry


def encoded(text):
    return base64.b64encode(text.encode()).decode()


JWT = ".".join(
    (encoded('{"alg":"HS256","typ":"JWT"}'), encoded('{"sub":"12","name":"Ann"}').rstrip("="),
     chars(43, WORD))
)  # fmt: skip
AWS_ID = "AKIA" + chars(16, string.ascii_uppercase + "234567")
LOGIN = json.dumps({"auths": {"registry.firm.example": {"auth": encoded("ann:n0t-a-w0rd")}}})

# Tokens: rule, and text that may stand in any file (in settings alone for those with a path).
TOKENS = [
    *(("github", f"gh{kind}_" + chars(36)) for kind in "pousr"),
    ("github", "github_pat_" + chars(22) + "_" + chars(59)),
    *(("gitlab", f"{start}-" + chars(20, WORD)) for start in ("glpat", "gldt", "glrt")),
    ("gitlab", "glpat-" + chars(27, WORD) + ".01." + chars(9, "0123456789abcdef")),
    ("huggingface", "hf_" + chars(34, string.ascii_letters)),
    ("google", "AIza" + chars(35, WORD)),
    ("google", "GOCSPX-" + chars(28, WORD)),
    *(("slack", f"xox{kind}-402881537760-" + chars(24)) for kind in "abeoprs"),
    ("slack", "xapp-1-" + "402881537760-" + chars(40)),
    ("pypi", "pypi-AgE" + chars(120, WORD)),
    ("npm", "npm_" + chars(36)),
    ("npm", "//registry.firm.example/:_authToken=" + chars(36, "0123456789abcdef-")),
    ("openai", "sk-" + chars(48)),
    ("openai", "sk-" + "proj-" + chars(120, WORD)),
    ("openai", "sk-" + "ant-api03-" + chars(93, WORD)),
    ("wandb", 'WANDB_API_KEY = "' + chars(40, "0123456789abcdef") + '"'),
    ("wandb", "wandb_v1_" + chars(77)),
    ("nvidia", "nvapi-" + chars(64, WORD)),
    ("docker", "dckr_pat_" + chars(27, WORD)),
    ("docker", "dckr_oat_" + chars(32, WORD)),
    ("databricks", "dapi" + chars(32, "0123456789abcdef")),
    ("databricks", "dapi" + chars(32, "0123456789abcdef") + "-2"),
    *(("stripe", f"{kind}_" + chars(24)) for kind in ("sk_live", "rk_live", "sk_test", "rk_test")),
    ("stripe", "sk_live_51" + chars(97)),
    *(("digitalocean", f"do{kind}_v1_" + chars(64, "0123456789abcdef")) for kind in "por"),
    ("replicate", "r8_" + chars(37)),
    ("sendgrid", "SG." + chars(22, WORD) + "." + chars(43, WORD)),
    ("bearer", "Authorization: Bearer " + chars(40)),
    ("bearer", json.dumps({"authorization": f"bearer {chars(40)}"})),
    ("aws", f"id = {AWS_ID}"),
    ("aws", "ASIA" + "QWERTZUIOPASDFGH" + "\nsecret = " + chars(40, ALNUM + "/+")),
    ("key", "AGE-SECRET-KEY-1" + chars(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L")),
]
KEYS = [
    SSH_KEY,
    TLS_KEY,
    LOCKED_KEY,
    PGP_KEY,
    OLD_KEY,
    PUTTY,
    json.dumps(SSH_KEY.decode()).encode(),
    json.dumps(json.dumps(TLS_KEY.decode())).encode(),
    b"\n".join(b'  "%b\\n"' % line for line in TLS_KEY.splitlines()),
    b"," + b"".join(SSH_KEY.splitlines()[1:-1]),
    b"client-key-data: " + base64.b64encode(OLD_KEY),
]
# What only counts in some files: rule, path, content.
PLACED = [
    ("jwt", "etc/app/config.yaml", f"token: {JWT}"),
    ("jwt", f"{PACKAGES}/x/settings.json", json.dumps({"token": JWT})),
    ("login", "root/.docker/config.json", LOGIN),
    ("login", "run/containers/0/auth.json", LOGIN),
    ("login", f"{PACKAGES}/x/pull.json", json.dumps(LOGIN)),
    ("login", "root/.docker/config.json", json.dumps({"auths": {"x": {"identitytoken": JWT}}})),
    ("password", "etc/pip.conf", "index-url = https://ann:n0t-a-w0rd@packages.firm.example/"),
    ("password", "home/ann/.git-credentials", f"https://ann:{chars(20)}@git.firm.example"),
    ("password", "opt/x/.git/config", f"url = https://:{chars(20)}@git.firm.example/x"),
    ("password", "root/.netrc", "machine x login ann password n0t-a-w0rd"),
    ("password", "root/.pypirc", "[pypi]\nusername = ann\npassword = n0t-a-w0rd\n"),
    ("password", "etc/apt/auth.conf.d/x.conf", "machine x\nlogin ann\npassword n0t-a-w0rd"),
    ("wandb", "root/x", f"export WANDB_API_KEY={chars(40, '0123456789abcdef')}"),
    ("variable", "etc/environment", 'FIRM_TOKEN="n0t-a-w0rd"'),
    ("variable", "etc/profile.d/x.sh", "export DB_PASSWORD=n0t-a-w0rd"),
    ("variable", "root/.bashrc", "export FIRM_API_KEY=n0t-a-w0rd"),
    ("variable", f"{PACKAGES}/x/.env", "CLIENT_SECRET: n0\nclient_secret=n0t-a-w0rd"),
    ("keystore", f"{PACKAGES}/x/store", STORE),
    ("keystore", f"{PACKAGES}/x/store", java_store(1)),
    ("key", f"{PACKAGES}/x/bytes", private_key(PrivateFormat.PKCS8, Encoding.DER)),
    ("key", f"{PACKAGES}/x/bytes", EC_DER),
    ("key", f"{PACKAGES}/x/bytes", b"\x95\x01\x00\x04\x60\x00\x00\x00\x01" + b"k" * 300),
    ("key file", "etc/ssh/ssh_host_ed25519_key", b""),
    ("key file", "etc/ssh/ssh_host_ed25519_key.pub", b""),
    ("key file", f"{PACKAGES}/x/id_rsa", b""),
    ("key file", "etc/user_key", b""),
    ("key file", "etc/authorized_keys", b""),
    ("key file", "root/.gnupg/private-keys-v1.d/0A.key", b""),
    ("key file", "root/.gnupg/private-keys-v1.d/0A", b"(11:private-key"),
    ("key file", "root/.gnupg/secring.gpg", b"x"),
]


def as_bytes(content):
    return content if isinstance(content, bytes) else content.encode()


# Every secret as a rule, a path and content.
SECRETS = [
    *((rule, f"{PACKAGES}/x/module.py", as_bytes(f"x = '{text}'\n")) for rule, text in TOKENS),
    *(("key", f"{PACKAGES}/x/module.py", content) for content in KEYS),
    *((rule, path, as_bytes(content)) for rule, path, content in PLACED),
]
# Those that stand somewhere in a file, as opposed to at its start or in its name.
WITHIN = [
    (rule, path, content) for rule, path, content in SECRETS
    if rule not in ("key file", "keystore") and not path.endswith("/bytes")
]  # fmt: skip


def tar(*files):
    """A layer of files, each a path, content, mode and kind (the last two may be missing)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, *more in files:
            mode, kind = more or (0o644, tarfile.REGTYPE)
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.type = len(content), mode, kind
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
