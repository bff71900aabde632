"""Known vulnerabilities: versions compared, entries that accept them, the verdict, the indexes."""

import http.server
import json
import shutil
import subprocess
import threading
from dataclasses import replace
from datetime import date

import pytest

from stackyard.build.mirrors import CallerSettings
from stackyard.definitions.project import ROOT
from stackyard.scan import advisories, audit
from stackyard.scan.audit import IndexAnswer, Vulnerability, judge, read_accepted
from stackyard.scan.installed import DebianPackage, Distribution
from stackyard.system.errors import DefinitionError, ReleaseError
from tests.unit import samples

TODAY = date(2026, 11, 23)
HOLE = Vulnerability(package="jinja2", version="2.10", ids=("PYSEC-1", "CVE-1"), fixed=("2.10.1",))
ENTRY = """\
accepted:
  - package: jinja2
    id: CVE-1
    until: "2026-11-23"
    why: templates are our own
"""


def verdict(*findings, text="accepted: []", day=TODAY, **given):
    part = IndexAnswer(name="python", packages=1, findings=findings, **given)
    return judge([part], read_accepted(text), day)


# The verdict


def test_a_fixable_vulnerability_fails_and_blocks():
    found = verdict(HOLE)
    assert found.outcome == "failed"
    with pytest.raises(ReleaseError, match="newer versions fix: 1") as caught:
        audit.require_fixed(found, "IMAGE")
    assert "jinja2 2.10: PYSEC-1, CVE-1, fixed in 2.10.1" in caught.value.why
    assert "images/accepted.yml" in caught.value.hint


def test_one_without_a_fix_is_said_and_blocks_nothing():
    found = verdict(replace(HOLE, fixed=()))
    audit.require_fixed(found, "IMAGE")
    assert found.outcome == "passed" and found.value()["parts"][0]["found"][0]["fixed"] == []


def test_an_accepted_one_blocks_nothing_until_its_last_day():
    found = verdict(HOLE, text=ENTRY)
    audit.require_fixed(found, "IMAGE")
    assert found.outcome == "passed"
    said = found.value()["parts"][0]["found"][0]["accepted"]
    assert said == {"until": "2026-11-23", "why": "templates are our own"}
    assert verdict(HOLE, text=ENTRY, day=date(2026, 11, 24)).outcome == "failed"


@pytest.mark.parametrize("change", [{"package": "jinja"}, {"ids": ("CVE-2",)}])
def test_an_entry_is_for_its_package_and_vulnerability_alone(change):
    assert verdict(replace(HOLE, **change), text=ENTRY).outcome == "failed"


def test_what_was_not_looked_up_has_not_passed():
    found = judge(
        [IndexAnswer(name="python", packages=9), IndexAnswer(name="system", why="no net")],
        (),
        TODAY,
    )
    assert found.outcome == "not run"
    audit.require_fixed(found, "IMAGE")
    assert found.value()["parts"][1]["outcome"] == "not run"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("accepted:", "accept:", "accepted: required key is missing"),
        ("package: jinja2", "", "package: required key is missing"),
        ("id: CVE-1", "", "id: required key is missing"),
        ('until: "2026-11-23"', "until: soon", "until: not a day such as 2027-01-31: 'soon'"),
        ('until: "2026-11-23"', "", "until: required key is missing"),
        ("templates are our own", "''", "why: must say why it is accepted"),
        ("id: CVE-1", "id: CVE-1\n    who: me", "who: unknown key"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_line(old, new, what):
    with pytest.raises(DefinitionError) as caught:
        read_accepted(ENTRY.replace(old, new))
    assert what in str(caught.value) and "images/accepted.yml:" in str(caught.value)


def test_the_projects_own_list_can_be_read():
    for entry in read_accepted((ROOT / audit.ACCEPTED).read_text(encoding="utf-8")):
        assert entry.why


# Versions of Debian packages

PAIRS = [
    ("1.0", "1.1"), ("1.9", "1.10"), ("1.0~rc1", "1.0"), ("1.0~~", "1.0~"), ("1.0", "1.0a"),
    ("1.0a", "1.0+b"), ("9", "1:1"), ("1.0-1", "1.0-1+deb12u1"), ("1.0-1", "1.0-2"),
    ("3.0.15-1~deb12u1", "3.0.15-1"), ("2.36-9+deb12u9", "2.36-9+deb12u10"), ("1.2-a-3", "1.2-b-1"),
    ("1.0-0", "1.0.1"), ("1:1.0", "2:0.1"), ("1.0+dfsg-1", "1.0+dfsg1-1"), ("0", "00.1"),
]  # fmt: skip


def fixes(version, *newer):
    package = DebianPackage(name="lib", version=version, architecture="amd64")
    index = "\n\n".join(f"Package: lib\nVersion: {one}\nSource: lib (9)" for one in newer)
    return [one.fixed for one in audit.system_findings([package], index)]


@pytest.mark.parametrize(("older", "newer"), PAIRS)
def test_a_newer_version_in_the_security_suite_is_a_fix(older, newer):
    assert fixes(older, newer) == [(newer,)]
    assert fixes(newer, older) == fixes(newer, newer) == []
    assert fixes(older, newer, older) == fixes(older, older, newer) == [(newer,)]


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is the judge")
def test_dpkg_finds_the_same_order():
    for older, newer in PAIRS:
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_other_packages_of_the_suite_are_no_fixes():
    package = DebianPackage(name="lib", version="1", architecture="amd64")
    index = "Package: lib-dev\nVersion: 2\n\nPackage: lib\nArchitecture: all\n\nVersion: 3\n"
    assert audit.system_findings([package], index) == ()


# Asking the indexes


def distribution(name, version, owner=""):
    return Distribution(name=name, version=version, info=f"{name}-{version}", layer=0, owner=owner)


def test_requirements_name_public_versions_one_of_a_package_in_each_round():
    found = [
        distribution("torch", "2.13.0+cu130"), distribution("Jinja2", "3.1"),
        distribution("jinja2", "2.10", owner="x"), distribution("odd", "no version"),
    ]  # fmt: skip
    rounds, skipped = advisories.requirements(found)
    assert rounds == ["jinja2==2.10\ntorch==2.13.0\n", "jinja2==3.1\n"]
    assert skipped == ("odd no version",)


ADVISORY = {
    "id": "PYSEC-2019-217", "aliases": ["CVE-2019-10906"], "summary": "a sandbox escape",
    "affected": [{
        "package": {"name": "jinja2", "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.10.1"}]}],
    }],
}  # fmt: skip


@pytest.fixture
def osv(monkeypatch):
    """A copy of OSV's index, served here: the requests that it got."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((query["package"]["name"], query["version"]))
            hit = asked[-1] == ("jinja2", "2.10")
            body = json.dumps({"vulns": [ADVISORY]} if hit else {}).encode()
            self.send_response(500 if query["package"]["name"] == "broken" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/v1/query"
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield asked
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("allow_processes")
def test_pip_audit_asks_a_copy_of_osv_about_every_version(osv):
    named = [("Jinja2", "2.10"), ("jinja2", "3.1"), ("torch", "2.13.0+cpu")]
    part = advisories.python_part(distribution(*one) for one in named)
    assert sorted(osv) == [("jinja2", "2.10"), ("jinja2", "3.1"), ("torch", "2.13.0")]
    (found,) = part.findings
    assert (found.package, found.version, found.fixed) == ("jinja2", "2.10", ("2.10.1",))
    assert set(found.ids) == {"PYSEC-2019-217", "CVE-2019-10906"}
    assert (part.outcome, part.packages) == ("failed", 3)


@pytest.mark.usefixtures("allow_processes")
def test_a_copy_of_osv_that_fails_is_a_part_that_was_not_run(osv):
    part = advisories.python_part([distribution("broken", "1"), distribution("torch", "1")])
    assert (part.outcome, part.findings) == ("not run", ())
    assert osv and "the index of vulnerabilities cannot be asked" in part.why


@pytest.mark.usefixtures("allow_processes")
def test_an_index_that_is_not_there_is_a_part_that_was_not_run(monkeypatch):
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", "http://127.0.0.1:9/v1/query")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    part = advisories.python_part([distribution("torch", "1")])
    assert part.outcome == "not run"
    assert "PIP_AUDIT_OSV_URL" in part.why
    assert part.why.endswith(": 127.0.0.1 cannot be reached (Connection refused)")


def test_what_pip_audit_says_of_anything_but_the_network_stays():
    assert advisories.plain("ERROR:pip_audit._cli:x is no version") == (
        "ERROR:pip_audit._cli:x is no version"
    )


BASE = samples.base(distribution="debian/bookworm")
OLD = DebianPackage(name="lib", version="1.0-1", architecture="amd64")


def caller(text):
    secrets = {"apt.sources": text.encode()} if text else {}
    return CallerSettings(secrets=secrets, wheel_folders=(), proxies={})


def suite(folder, name="bookworm-security", codename=""):
    """Make an archive of one suite in files; return its source."""
    place = folder / "dists" / name
    packages = place / "main" / "binary-amd64" / "Packages"
    packages.parent.mkdir(parents=True)
    packages.write_text(
        "Package: lib\nVersion: 1.0-1+deb12u1\nArchitecture: amd64\n"
        "Filename: lib.deb\nSize: 1\nSHA256: " + 64 * "0" + "\n\n"
    )
    digest = subprocess.run(["sha256sum", packages], capture_output=True, text=True, check=True)
    line = f" {digest.stdout.split()[0]} {packages.stat().st_size} main/binary-amd64/Packages"
    (place / "Release").write_text(
        f"Origin: Debian\nLabel: Debian-Security\nSuite: old-security\n"
        f"Codename: {codename or name}\n"
        f"Architectures: amd64\nComponents: main\nSHA256:\n{line}\n"
    )
    return f"Types: deb\nURIs: file:{folder}\nSuites: {name}\nComponents: main\nTrusted: yes\n"


needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="apt reads the suite")


@needs_apt
@pytest.mark.usefixtures("allow_processes")
def test_apt_reads_the_security_suite(tmp_path):
    other = DebianPackage(name="fine", version="1", architecture="amd64")
    part = advisories.system_part([OLD, other], BASE, caller(suite(tmp_path)))
    assert (part.outcome, part.packages, part.why) == ("failed", 2, "")
    assert [(one.package, one.fixed) for one in part.findings] == [("lib", ("1.0-1+deb12u1",))]
    fixed = replace(OLD, version="1.0-1+deb12u1")
    assert advisories.system_part([fixed], BASE, caller(suite(tmp_path / "b"))).outcome == "passed"


@needs_apt
@pytest.mark.usefixtures("allow_processes")
def test_a_security_suite_is_known_by_its_name_or_its_codename(tmp_path):
    for name, codename in (("noble-security", "noble"), ("current", "bookworm-security")):
        sources = suite(tmp_path / name, name, codename)
        part = advisories.system_part([OLD], BASE, caller(sources))
        assert (part.outcome, part.why) == ("failed", "")


@needs_apt
@pytest.mark.usefixtures("allow_processes")
def test_without_a_security_suite_system_packages_were_not_looked_up(tmp_path):
    part = advisories.system_part([OLD], BASE, caller(suite(tmp_path, "bookworm")))
    assert (part.outcome, part.why) == ("not run", "the apt sources lead to no security suite")
    gone = suite(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    part = advisories.system_part([OLD], BASE, caller(gone))
    assert part.outcome == "not run" and part.why.startswith("apt cannot read the security suite")


def test_without_apt_sources_system_packages_were_not_looked_up():
    part = advisories.system_part([OLD], BASE, caller(""))
    assert part.outcome == "not run" and "STACKYARD_APT_SOURCES" in part.why
    assert advisories.system_part([], BASE, caller("")).outcome == "passed"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dependencies": [{}]}', '{"dependencies": 1}'])
def test_another_answer_than_pip_audits_is_no_answer(text):
    if text == '{"dependencies": [{}]}':
        assert audit.python_findings(text) == ()
        return
    with pytest.raises(ValueError):
        audit.python_findings(text)
