"""An image's bill of materials and sizes against what the image says of itself when it runs."""

from __future__ import annotations

import json
import re

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from stackyard.definitions.lock import base_lock_path, lock_path, parse_lock
from stackyard.scan.contents import Contents, merge
from stackyard.scan.sbom import Described, sbom
from stackyard.scan.sizes import LayerSize, size_report

pytestmark = pytest.mark.engine

DISTRIBUTIONS = """
import importlib.metadata as m, json
print(json.dumps([[d.metadata["Name"], d.version] for d in m.distributions()]))
"""
# Debian's own: dpkg's names of packages, as they are installed.
PACKAGES = [
    "dpkg-query",
    "-W",
    "-f",
    "${db:Status-Status} ${Package} ${Version} ${Architecture}\\n",
]
# What an engine puts into every container.
ADDED = {".dockerenv", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab"}


@pytest.fixture(scope="module")
def contents(saved) -> Contents:
    return merge([layer.contents for layer in saved.layers])


@pytest.fixture(scope="module")
def text(saved, contents, built) -> str:
    """The bill, as the publisher makes it."""
    config = saved.config
    locks = [pin for lock in built.image.locks.values() for pin in parse_lock(lock)]
    subject = Described(
        name=f"stackyard/{built.plan.stack}", version=built.plan.base, id=built.info.id,
        created=config["created"], base=f"stackyard/base:{built.plan.base}",
        base_digest=config["config"]["Labels"]["stackyard.base.digest"],
    )  # fmt: skip
    first, again = (sbom(contents, subject, locks) for _ in range(2))
    assert first == again
    return first


@pytest.fixture(scope="module")
def bill(text) -> dict:
    return json.loads(text)


def purls(bill, kind: str) -> list[str]:
    found = (c.get("purl", "") for c in bill["components"])
    return sorted(purl for purl in found if purl.startswith(f"pkg:{kind}/"))


def test_the_bill_is_a_valid_cyclonedx_document(text):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_debian_packages_are_those_that_dpkg_has_and_no_others(engine, built, bill):
    listed = [
        line.split() for line in engine.run_once(built.info.id, PACKAGES, seconds=60).splitlines()
    ]
    wanted = [
        [name, version, arch] for status, name, version, arch in listed if status == "installed"
    ]
    pattern = r"pkg:deb/debian/([^@]+)@([^?]+)\?arch=([^&]+)&distro=debian-\d+(?:&upstream=[^&]+)?"
    parts = [re.fullmatch(pattern, p).groups() for p in purls(bill, "deb")]
    assert len(wanted) > 50
    assert sorted([name.replace("%2B", "+"), version.replace("%2B", "+"), arch]
                  for name, version, arch in parts) == sorted(wanted)  # fmt: skip


def test_python_packages_are_those_that_python_finds_and_no_others(engine, built, bill):
    said = engine.run_once(built.info.id, ["python3", "-c", DISTRIBUTIONS], seconds=60)
    wanted = sorted(
        f"pkg:pypi/{canonicalize_name(n)}@{v.replace('+', '%2B')}" for n, v in json.loads(said)
    )
    assert purls(bill, "pypi") == wanted
    assert set(built.image.packages) <= {re.split("[/@]", purl)[1] for purl in wanted}


def test_every_package_of_the_locks_has_their_hashes(bill, built, project):
    """Those built here have them as their source's: no hash of what was built is known."""
    pins = parse_lock(project.definitions.locks[base_lock_path(built.plan.base)])
    pins += parse_lock(project.definitions.locks[lock_path(built.plan.stack, built.plan.base)])
    found = {canonicalize_name(c["name"]): {h["content"] for h in c.get("hashes", [])}
             for c in bill["components"]}  # fmt: skip
    assert len(pins) > 10
    for pin in pins:
        assert {f"sha256:{digest}" for digest in found[pin.name]} == set(pin.hashes), pin.name
    facts = {canonicalize_name(c["name"]): {p["name"]: p["value"] for p in c.get("properties", [])}
             for c in bill["components"]}  # fmt: skip
    for wheel in built.image.wheels:
        name = wheel.wheel.package
        pins = parse_lock(built.image.locks[f"images/wheels/{name}.lock"])
        [hashes] = [pin.hashes for pin in pins if pin.name == name]
        assert facts[name]["stackyard:source-hashes"].split() == list(hashes), name
        assert found[name] == set(), name


def test_files_are_those_that_a_container_sees(engine, built, contents):
    """The layers merged here, against the same layers mounted by the engine."""
    argv = ["find", "/", "-xdev", "-not", "-type", "d", "-printf", r"%y %s %P\n"]
    seen = {}
    for line in filter(None, engine.run_once(built.info.id, argv, seconds=100).splitlines()):
        kind, size, path = line.split(" ", 2)
        if path not in ADDED:
            seen[path] = (kind, int(size) if kind == "f" else 0)
    letters = {"file": "f", "hardlink": "f", "symlink": "l", "device": "c", "fifo": "p"}
    mine = {path: (letters[held.entry.kind], held.entry.size)
            for path, held in contents.files.items()
            if held.entry.kind != "directory" and path not in ADDED
            and not path.startswith(("dev/", "proc/", "sys/"))}  # fmt: skip
    assert len(mine) > 10_000
    assert {p: mine.get(p) for p in mine.keys() | seen.keys() if mine.get(p) != seen.get(p)} == {}


def test_the_size_report_accounts_for_every_byte_that_is_seen(saved, contents):
    digests = saved.config["rootfs"]["diff_ids"]
    sizes = [LayerSize(digest=digest, compressed=0) for digest in digests]
    report = size_report(contents, sizes, 1)
    packages = report["packages"]
    parts = [packages[kind]["bytes"] for kind in ("python", "debian", "unowned")]
    assert sum(parts) == report["visible"]
    assert report["visible"] + report["waste"]["hidden"]["bytes"] == report["image"]["unpacked"]
    # What no package owns is little: owners were found.
    assert packages["unowned"]["bytes"] < 0.02 * report["visible"]
