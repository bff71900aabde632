"""Ask the indexes of known vulnerabilities about an image's packages.

Owns the calls of pip-audit (Python packages; OSV) and of apt (the distribution's security suite).
An index that cannot be asked makes a part that was not run. It must not judge (`scan.audit`).
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from stackyard.build.mirrors import CallerSettings
from stackyard.build.packages import apt_command, prepare
from stackyard.definitions.spec import Base
from stackyard.scan import audit
from stackyard.scan.audit import IndexAnswer, Vulnerability
from stackyard.scan.installed import DebianPackage, Distribution
from stackyard.system import cleanup, process
from stackyard.system.errors import CommandError, StackyardError, shown

PYTHON, SYSTEM = "python", "system"
_SECONDS = 900
# apt waits 30 s for each address of a host that does not answer, several times.
_SOON = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=0")
_HELPER = "/usr/lib/apt/apt-helper"


def python_part(distributions: Iterable[Distribution]) -> IndexAnswer:
    """Ask OSV about Python packages, vendored copies among them.

    The environment variable PIP_AUDIT_OSV_URL names a copy of the index, as for pip-audit itself.
    """
    rounds, skipped = requirements(distributions)
    findings: list[Vulnerability] = []
    packages = 0
    for text in rounds:
        with cleanup.folder("audit") as folder:
            path = folder / "requirements.txt"
            path.write_text(text, encoding="utf-8")
            try:
                # It exits with 1 where it found something, and where it failed.
                done = process.run(pip_audit(path), timeout=_SECONDS, check=False)
                why = process.last_lines(done.output, 1)
                findings += audit.python_findings(answer(path).read_text(encoding="utf-8"))
            except (CommandError, OSError, ValueError) as error:
                why = plain(error.what if isinstance(error, CommandError) else why)
                return IndexAnswer(
                    name=PYTHON, skipped=skipped,
                    why="the index of vulnerabilities cannot be asked (PIP_AUDIT_OSV_URL names a"
                    f" copy of it): {shown(why, 400)}",
                )  # fmt: skip
        packages += len(text.splitlines())
    return IndexAnswer(name=PYTHON, packages=packages, findings=tuple(findings), skipped=skipped)


def plain(why: str) -> str:
    """Return the last words of pip-audit; of a network's exception, its host and the system's."""
    host = re.search(r"host='([^']+)'", why)
    cause = re.search(r"\[Errno -?\d+\] ([^)\"']+)", why) or re.search(r"Caused by (\w+)", why)
    return f"{host[1]} cannot be reached ({cause[1].strip()})" if host and cause else why


def requirements(distributions: Iterable[Distribution]) -> tuple[list[str], tuple[str, ...]]:
    """Return requirements files, each with one version of a package, and what none can name.

    Indexes know public versions: the local part (`+cu130`) is left out.
    """
    versions: dict[str, set[str]] = defaultdict(set)
    skipped = set()
    for one in distributions:
        try:
            versions[one.key].add(Version(one.version).public)
        except InvalidVersion:
            skipped.add(f"{one.name} {one.version}".strip())
    rounds: list[list[str]] = []
    for name, found in sorted(versions.items()):
        for number, version in enumerate(sorted(found)):
            rounds += [[]] if number == len(rounds) else []
            rounds[number].append(f"{name}=={version}\n")
    return ["".join(lines) for lines in rounds], tuple(sorted(skipped))


def pip_audit(path: Path) -> list[str]:
    """Return the command that looks a requirements file up, exactly as it is."""
    return [
        sys.executable, "-m", "pip_audit", "--requirement", str(path), "--no-deps", "--disable-pip",
        "--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off",
        "--timeout", "20", "--cache-dir", str(path.parent / "cache"),
        "--output", str(answer(path)),
    ]  # fmt: skip


def answer(path: Path) -> Path:
    """Return the file that pip-audit answers in, beside its requirements file."""
    return path.with_name("answer.json")


def system_part(
    packages: Iterable[DebianPackage], base: Base, caller: CallerSettings
) -> IndexAnswer:
    """Compare system packages with the security suite of the caller's apt sources."""
    found = tuple(packages)
    if not found:
        return IndexAnswer(name=SYSTEM)
    if not caller.secrets.get("apt.sources"):
        return IndexAnswer(
            name=SYSTEM,
            why=f"there are no apt sources of {base.distribution} here; STACKYARD_APT_SOURCES"
            " names a .sources file",
        )
    try:
        index = _security_index(base, caller)
    except StackyardError as error:
        why = shown(process.last_lines(error.why or error.what, 2), 400)
        return IndexAnswer(name=SYSTEM, why=f"apt cannot read the security suite: {why}")
    if not index:
        return IndexAnswer(name=SYSTEM, why="the apt sources lead to no security suite")
    return IndexAnswer(
        name=SYSTEM, packages=len(found), findings=audit.system_findings(found, index)
    )


def _security_index(base: Base, caller: CallerSettings) -> str:
    """Return the Packages indexes of security suites, verified by apt; empty without any."""
    with cleanup.folder("audit") as folder:
        prepare(folder, caller.secrets["apt.sources"])
        process.run(apt_command(base.platform, folder, *_SOON, "update"), timeout=_SECONDS)
        # Ubuntu's security suites have the codename of the release; the sources name the suite.
        fields = "$(RELEASE) $(CODENAME) $(FILENAME)"
        asked = ("indextargets", "--format", fields, "Created-By: Packages")
        listed = process.run(
            apt_command(base.platform, folder, *asked), timeout=60
        ).output.splitlines()
        files = [path for *names, path in (line.split(" ", 2) for line in listed)
                 if any(name.endswith("-security") for name in names)]  # fmt: skip
        if not files:
            return ""
        return process.run([_HELPER, "cat-file", *files], timeout=60).output
