"""What names, rights and traces of the caller say; the configuration; images/gate.yml."""

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from stackyard.build.mirrors import CallerSettings
from stackyard.definitions.project import ROOT
from stackyard.scan.mirror_traces import fingerprint, make_caller, parse_certificates
from stackyard.scan.secrets import gate
from stackyard.scan.secrets import rules as gate_rules
from stackyard.system.errors import DefinitionError
from tests.images.saved import read_saved
from tests.traces import traces
from tests.unit.gate_samples import MARK, PACKAGES, SSH_KEY, TOKENS, certificate, chars, tar

PUBLIC_CA, OWN_CA, OTHER_CA = certificate("Public"), certificate("Firm"), certificate("Other")
(OWN_DER,) = parse_certificates(OWN_CA)
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


def scan(path, content=b"", mode=0o644, kind=tarfile.REGTYPE):
    return gate.scan_layer(io.BytesIO(tar((path, content, mode, kind))), CALLER)


def rules(findings):
    return {finding.rule for finding in findings}


BROKEN = [
    ("key marker", "usr/share/a", b"x = '-----BEGIN RSA " + MARK + b"-----'"),
    ("key marker", "usr/share/a", b"-----BEGIN PGP " + MARK + b" BLOCK-----\n"),
    ("identity", "etc/hostname", b"build"),
    ("identity", "etc/resolv.conf", b"nameserver 10.1.2.3"),
    ("identity", "etc/hosts", b"10.1.2.3 build"),
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
    ("unread", "usr/share/a.gz", b"\x1f\x8b\x08"),
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
    found = [finding for finding in scan(path, content) if finding.rule == rule]
    assert found
    assert all(finding.secret == (rule in ("caller", "certificate")) for finding in found)


def test_every_rule_about_tidiness_has_been_seen_broken():
    seen = {rule for rule, _, _ in BROKEN} | {"world-writable", "setuid"}
    assert seen - {"caller", "certificate"} == set(gate_rules.TIDINESS)


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
        ("etc/x_key", 0o644, tarfile.SYMTYPE, {"key file"}),
        ("etc/x_key", 0o755, tarfile.DIRTYPE, set()),
    ],
)
def test_rights_and_kinds_of_files(path, mode, kind, broken):
    assert rules(scan(path, mode=mode, kind=kind)) == broken


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"{PACKAGES}/fairseq/data/id_dataset.py", b"class IdDataset: ..."),
        ("usr/share/doc/apt/examples/sources.list.txt", b"deb http://mirror.debian.example/debian"),
        (f"{PACKAGES}/x.py", b"proxy = '10.1.2.3'  # an example"),
        (f"{PACKAGES}/a.dist-info/direct_url.json", b"file:///mnt/data/wheels/a.whl"),
        ("etc/pip.conf", b"index-url = https://download.pytorch.org/whl/cpu"),
        ("etc/ssl/cert.pem", OTHER_CA),
        ("etc/machine-id", b""),
        ("etc/resolv.conf", b""),
        ("etc/hosts", b""),
        ("./root/.bashrc", b"alias ll='ls -l'"),
        ("var/lib/dpkg/info/apt.postinst", b"# see mirror.debian.example"),
    ],
)
def test_an_ordinary_file_breaks_no_rule(path, content):
    assert scan(path, content) == []


def record(content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"certifi/cacert.pem,sha256={digest},{len(content)}\ncertifi-1.dist-info/RECORD,,\n"


def bundle_layer(content, *, recorded, above=PACKAGES):
    return io.BytesIO(
        tar(
            (f"{above}/certifi/cacert.pem", content),
            (f"{above}/certifi-1.dist-info/RECORD", record(recorded).encode()),
        )
    )


@pytest.mark.parametrize("above", [PACKAGES, "opt/venv/lib/python3.11/site-packages"])
def test_public_certificates_are_fine_as_a_wheel_brought_them(above):
    found = gate.scan_layer(bundle_layer(PUBLIC_CA, recorded=PUBLIC_CA, above=above), CALLER)
    assert rules(found) <= {"left over"}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_so_they_are_in_a_wheel_that_was_not_unpacked(method):
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", method) as archive:
        archive.writestr("certifi/cacert.pem", PUBLIC_CA)
        archive.writestr("certifi-1.dist-info/RECORD", record(PUBLIC_CA))
    found = scan(f"{PACKAGES}/ensurepip/_bundled/pip.whl", wheel.getvalue())
    assert rules(found) == {"cache"}


def test_a_certificate_added_to_a_wheels_bundle_is_found():
    found = gate.scan_layer(bundle_layer(PUBLIC_CA + OWN_CA, recorded=PUBLIC_CA), CALLER)
    assert str(found[0]).startswith(f"/{PACKAGES}/certifi/cacert.pem: certificate sha256:")
    assert fingerprint(OWN_DER) in {finding.what for finding in found}


def test_the_callers_password_is_never_shown():
    found = scan("etc/pip.conf", b"https://ann:open-sesame@packages.firm.example/simple")
    whats = {finding.what for finding in found}
    assert {"a password", "packages.firm.example"} <= whats
    assert not any("open-sesame" in what for what in whats)


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
    assert len(traces(CALLER, text)) == found
    config = {"history": [{"created_by": text, "empty_layer": True}]}
    assert len(gate.scan_config(config, CALLER)) == found


@pytest.mark.parametrize("body", [b"A===" * 40, b"=" * 160, b"AAAA" * 40])
def test_what_is_no_certificate_does_not_stop_the_gate(body):
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n"
    assert scan("usr/share/a", begin + body + end) == []


# The configuration


def config(**settings):
    return {
        "architecture": "amd64",
        "config": {"Env": ["PATH=/usr/bin", "PYTHON_SHA256=" + "0a1b" * 16], "Labels": None}
        | settings,
        "history": [{"created_by": "COPY /x /y # buildkit", "comment": "buildkit.dockerfile.v0"}],
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0a1b" * 16]},
    }


def test_an_ordinary_configuration_is_fine():
    assert gate.scan_config(config(), CALLER) == []


@pytest.mark.parametrize(("rule", "text"), TOKENS)
@pytest.mark.parametrize("key", ["Cmd", "Entrypoint", "Labels"])
def test_a_token_in_the_configuration_is_found(rule, text, key):
    value = {"x": text} if key == "Labels" else ["sh", "-c", text]
    found = [one for one in gate.scan_config(config(**{key: value}), CALLER) if one.rule == rule]
    assert found
    assert all(one.path.startswith(f"configuration.config.{key}") for one in found)


def test_a_token_in_the_history_or_its_comment_is_found():
    text = "ghp_" + chars(36)
    history = {"history": [{"created_by": f"RUN curl {text}"}, {"comment": text}]}
    paths = [finding.path for finding in gate.scan_config(history, CALLER)]
    assert paths == ["configuration.history[0].created_by", "configuration.history[1].comment"]


@pytest.mark.parametrize(
    "setting",
    [
        {"Env": ["DB_PASSWORD=n0t-a-w0rd"]},
        {"Env": ["HF_TOKEN=n0t-a-w0rd"]},
        {"Env": ["OPENAI_API_KEY=n0t-a-w0rd"]},
        {"Env": ["CLIENT_SECRET=n0t-a-w0rd"]},
        {"Env": ["AWS_SECRET_ACCESS_KEY=n0t-a-w0rd"]},
        {"Labels": {"firm.token": "n0t-a-w0rd"}},
        {"Cmd": ["serve", "--password=n0t-a-w0rd"]},
        {"OnBuild": ["ENV X_TOKEN=n0t-a-w0rd"]},
    ],
)
def test_a_variable_named_as_a_secret_is_found_and_its_value_not_shown(setting):
    (found,) = gate.scan_config(config(**setting), CALLER)
    assert (found.rule, found.secret) == ("variable", True)
    assert "w0rd" not in str(found)


@pytest.mark.parametrize(
    "text",
    ["HF_TOKEN=", "HF_TOKEN", "TOKENIZERS_PARALLELISM=false", "HF_TOKEN=/run/secrets/token",
     "X_TOKEN=$TOKEN", "MAX_TOKEN=4096", "EOS_TOKEN=</s>", "TOKEN_URL=https://x.example/y"],
)  # fmt: skip
def test_a_variable_without_a_secret_is_fine(text):
    assert gate.scan_config(config(Env=[text]), CALLER) == []


def test_the_place_of_a_variable_is_its_name_which_an_entry_may_give():
    image = config(Env=["FIRM_TOKEN=n0t-a-w0rd", "OTHER_TOKEN=n0t-a-w0rd"])
    first, _ = gate.scan_config(image, CALLER)
    assert first.path == "configuration.config.Env.FIRM_TOKEN"
    digest = first.what.split()[-1]
    allowed = gate.read_allowed(
        f"allowed: [{{rule: variable, path: '.*\\.FIRM_TOKEN', digests: ['{digest}'], why: it}}]",
        "x",
    )
    left = gate.scan_config(image, CALLER, allowed)
    assert [one.path for one in left] == ["configuration.config.Env.OTHER_TOKEN"]


# images/gate.yml

GOOD = """\
allowed:
  - rule: key
    path: /usr/lib/x
    digests: [00aa00aa00aa00aa]
    why: x ships it in its public source
"""


def test_this_projects_entries_are_read_and_say_why():
    text = (ROOT / "images" / "gate.yml").read_text()
    entries = gate.read_allowed(text, "images/gate.yml").entries
    assert entries
    assert all(len(entry.why) > 40 for entry in entries)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rule: key", "rule: kye", "gate.yml:2: allowed[0].rule: unknown value 'kye'; did you"),
        ("rule: key", "rule: cache", "gate.yml:2: allowed[0].rule: unknown value 'cache'"),
        ("/usr/lib/x", "'['", "gate.yml:3: allowed[0].path: not a regular expression"),
        ("/usr/lib/x", "'.*'", "gate.yml:3: allowed[0].path: fits every path"),
        ("[00aa00aa00aa00aa]", "[]", "gate.yml:4: allowed[0].digests: lets nothing through"),
        ("00aa00aa00aa00aa", "00AA", "gate.yml:4: allowed[0].digests: not 16 hexadecimal"),
        ("00aa00aa00aa00aa", "1234567890123456", "gate.yml:4: allowed[0].digests: must be text"),
        ("x ships it in its public source", "' '", "gate.yml:5: allowed[0].why: must say"),
        ("    why: x ships it in its public source\n", "", "allowed[0].why: required key"),
        ("why:", "wyh:", "gate.yml:5: allowed[0].wyh: unknown key; did you mean 'why'?"),
        ("allowed:", "alowed:", "gate.yml:1: alowed: unknown key; did you mean 'allowed'?"),
        (GOOD, "- x", "gate.yml:1: must be a mapping"),
        (GOOD, "", "gate.yml:1: must be a mapping"),
    ],
)
def test_a_wrong_entry_is_named_with_its_line(old, new, problem):
    assert old in GOOD
    with pytest.raises(DefinitionError) as caught:
        gate.read_allowed(GOOD.replace(old, new), "gate.yml")
    assert any(problem in str(one) for one in caught.value.problems)


def test_a_good_entry_lets_through_what_it_names_only():
    allowed = gate.read_allowed(GOOD, "gate.yml")
    assert allowed.lets("key", "/usr/lib/x", "00aa00aa00aa00aa")
    assert not allowed.lets("key", "/usr/lib/xy", "00aa00aa00aa00aa")
    assert not allowed.lets("aws", "/usr/lib/x", "00aa00aa00aa00aa")
    assert not allowed.lets("key", "/usr/lib/x", "00aa00aa00aa00ab")
    assert not gate.NOTHING.lets("key", "/usr/lib/x", "00aa00aa00aa00aa")


# Saved images, as the tests of images read them


def saved_images(folder, *images):
    """An archive of images, each of some layers; a layer's bytes lie there once."""
    files = {}
    manifest = []
    for number, layers in enumerate(images):
        digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
        names = [f"{number}-{at}/layer.tar" for at in range(len(layers))]
        files |= {n: b for n, b in zip(names, layers, strict=True) if b not in files.values()}
        files[f"{number}.json"] = json.dumps({"rootfs": {"diff_ids": digests}}).encode()
        manifest.append({"Config": f"{number}.json", "Layers": names})
    files["manifest.json"] = json.dumps(manifest).encode()
    path = folder / "images.tar"
    path.write_bytes(tar(*files.items()))
    return path


def test_a_file_that_a_later_layer_deletes_is_still_found(tmp_path):
    layers = tar(("etc/token", SSH_KEY)), tar(("etc/.wh.token", b""))
    (image,) = read_saved(saved_images(tmp_path, layers), CALLER).values()
    assert image.of_rule("key")[0].startswith("/etc/token: a private key ")
    assert image.of_rule("left over") == ["/etc/.wh.token: deleted here, still in an earlier layer"]
    assert list(image.layers[0].contents.files) == ["etc/token"]


def test_a_layer_that_images_share_is_read_once(tmp_path):
    """The second image names a file for it that is not in the archive."""
    shared, own = tar(("etc/token", SSH_KEY)), tar(("etc/other", b""))
    found = read_saved(saved_images(tmp_path, (shared,), (shared, own)), CALLER)
    assert list(found) == ["sha256:0", "sha256:1"]
    assert all(len(image.of_rule("key")) == 1 for image in found.values())
