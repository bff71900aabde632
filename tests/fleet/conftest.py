"""Three emulated hosts that hold the images of all stacks, for all tests here."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stackyard.build import dockerfile
from stackyard.build.builder import Builder
from stackyard.definitions.project import load_project
from stackyard.system.engine import Engine
from tests.fleet import emulated

STACKS = ("accelerate", "fairseq", "megatron")
NAMES = ("study", "train", "depot")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def images():
    """The stacks' images on the cpu base, built where they are not current."""
    with Engine() as engine:
        Builder(load_project(), engine, lambda stack, text: None).build_all(list(STACKS), "cpu")
    return [dockerfile.image_tag(stack, "cpu") for stack in STACKS]


@pytest.fixture(scope="session", autouse=True)
def programs():
    """What a user is told to have here: an ssh client, and rsync for `sync`."""
    names = {"ssh": "openssh-client", "rsync": "rsync"}
    wanted = [package for program, package in names.items() if shutil.which(program) is None]
    for words in (["update", "-q"], ["install", "-y", "-q", *wanted]) if wanted else ():
        subprocess.run(["apt-get", *words], check=True, capture_output=True)


@pytest.fixture(scope="session")
def three(images, programs, tmp_path_factory):
    """Three hosts; their inventory is `folder / "hosts.yml"`."""
    folder = tmp_path_factory.mktemp("hosts")
    with emulated.hosts(NAMES, images, folder) as found:
        yield emulated.Yard(folder=folder, hosts={host.name: host for host in found})


@pytest.fixture
def yard(three):
    """The hosts as a test finds them: nothing runs there, before and after."""
    assert three.left() == {}
    yield three
    for host in three.hosts.values():
        host.mend()
    if left := three.left():
        three.invoke("down", "--all", check=False)
    assert left == {}


# What ranks have of a variable that hosts.yml sets.
MINE = r"""
for file in $(grep -lz '^RANK=' /proc/[0-9]*/environ 2> /dev/null); do
    grep -hz '^MINE=' "$file"
done 2> /dev/null | tr '\0' '\n'"""


def two_of(three):
    """Two hosts with a variable for all, and another value of it on one."""
    found = three.only("study", "train")
    path = Path(found.inventory)
    text = path.read_text().replace("defaults:\n", "defaults:\n  env: {MINE: all}\n")
    path.write_text(re.sub(r"( {2}study: \{address: [^}]*)\}", r"\1, env: {MINE: study}}", text))
    return found


def ssh_files(three):
    """Checksums of the user's files of ssh, here and on the hosts."""
    here = [*Path.home().glob(".ssh/*"), *three.folder.glob("ssh_config*")]
    here += [*three.folder.glob("known_hosts*"), *three.folder.glob("login*")]
    found = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in here if path.is_file()
    }
    script = "find /root/.ssh /etc/ssh -type f -exec sha256sum {} + | sort"
    return found | {name: host.run("sh", "-c", script) for name, host in three.hosts.items()}


@pytest.fixture(scope="session")
def smoked(three):
    """Smoke a stack over two hosts, once: its report, and what its ranks had of the variable.

    The user's files of ssh stay as they are.
    """
    two, known = two_of(three), {}

    def smoke(stack):
        if stack not in known:
            seen, files = set(), ssh_files(three)
            with ThreadPoolExecutor(1) as pool:
                words = ("smoke", stack, "--gpus", "0", "--json")
                running = pool.submit(two.invoke, *words, seconds=600)
                while not running.done():
                    for name, host in two.hosts.items():
                        said = host.run("sh", "-c", MINE, check=False).split()
                        seen |= {(name, one) for one in said}
                    time.sleep(0.5)
            (value,) = json.loads(running.result().stdout)["reports"]
            assert ssh_files(three) == files
            known[stack] = value, seen
        return known[stack]

    return smoke
