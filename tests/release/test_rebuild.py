"""Releases built again by somebody else: another host, path and core count, a newer archive."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stackyard.build import base_image, buildkit, mirrors, packages
from stackyard.build.builder import Builder
from stackyard.build.recipe import BaseRecipe
from stackyard.definitions.project import ROOT, load_project
from stackyard.release.publish import Publisher, PublishPlan
from stackyard.release.recipe_record import INDEX, PACKAGES, RECIPE, Record, record_text
from stackyard.release.spool import Spool
from stackyard.release.statement import Attached
from stackyard.system.engine import Engine
from tests.fleet.emulated import docker, owned
from tests.release.conftest import Site
from tests.release.driver import SUBJECT
from tests.shared import own_name
from tests.trees import copy_tree, rename_stack

BUILD = "stackyard/inside/build.sh"
# A step that installs a locked package, and an image with what that made.
DOCKERFILE = """\
ARG BASE
ARG TOOLS
ARG PACKAGES
FROM ${PACKAGES} AS debian
FROM ${BASE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
USER 0
FROM base AS compiler
RUN --mount=type=tmpfs,target=/mnt \\
    --mount=type=bind,from=debian,target=/mnt/packages \\
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \\
    . /mnt/build.sh && apt_install m4 && mkdir /made && m4 --version > /made/version
FROM base
RUN --mount=type=tmpfs,target=/mnt \\
    --mount=type=bind,from=compiler,source=/made,target=/mnt/made \\
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \\
    . /mnt/build.sh && install -D -m 0644 -t /srv /mnt/made/version MORE
"""
# What depends on the machine's cores, which no build may.
PLANTED = (
    "&& nproc > /srv/cores && if [ $(nproc) = 1 ]; then"
    " chmod 0600 /usr/bin/tini; chown 7 /etc/issue; touch /srv/new; fi"
)
BASE = BaseRecipe(
    platform="linux/amd64", suite="bookworm", packages=("tini",), exclude=("/usr/share/doc/*",),
    steps=("m4",), texts=(),
)  # fmt: skip


def record(more: str = "") -> Record:
    """The recipe of a small image."""
    return Record(
        stack=SUBJECT.stack, base_name=SUBJECT.base_name, distribution="debian/bookworm",
        base=BASE, base_key=base_image.recipe_key(BASE), dockerfile="Dockerfile",
        context={
            "Dockerfile": DOCKERFILE.replace(" MORE", f" {more}" if more else ""),
            BUILD: (ROOT / BUILD).read_text(encoding="utf-8"),
        },
        builder={"stackyard": "tests", "uv": "tests"},
    )  # fmt: skip


def caller() -> mirrors.CallerSettings:
    """The package settings of this machine."""
    return mirrors.collect(os.environ, distribution="debian/bookworm")


@pytest.fixture(scope="module")
def locked(tmp_path_factory) -> Path:
    """A small base's packages, as they are in the archive of this machine today."""
    out = tmp_path_factory.mktemp("locked") / "packages"
    sources = packages.sources_of(BASE.suite, caller())
    packages.collect(out, platform=BASE.platform, install=(*BASE.packages, *BASE.steps),
                     download=(), sources=sources)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def newer(locked, tmp_path_factory) -> Path:
    """Sources of an archive that has moved on: newer versions, and the old ones are gone."""
    folder = tmp_path_factory.mktemp("newer")
    place = folder / "archive"
    shutil.copytree(locked, place)
    for one in packages.read_index((locked / packages.INDEX).read_text()):
        if one.name in ("m4", "tini", "tzdata", "base-files"):
            tree = folder / one.name
            subprocess.run(["dpkg-deb", "-R", place / one.file, tree], check=True)
            control = tree / "DEBIAN" / "control"
            control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+newer1", control.read_text()))
            (tree / "usr" / "share" / "newer").mkdir(parents=True, exist_ok=True)
            (tree / "usr" / "share" / "newer" / one.name).write_text("newer\n")
            (place / one.file).unlink()
            subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, place], check=True,
                           capture_output=True)  # fmt: skip
    packages.write_index(place)
    sources = folder / "newer.sources"
    sources.write_text(f"Types: deb\nURIs: file:{place}\nSuites: ./\nTrusted: yes\n")
    return sources


@contextlib.contextmanager
def built(made: Record, locked: Path) -> Iterator[tuple[Engine, str, str]]:
    """Build an image on this machine's engine: the engine, the image, the name of its packages."""
    run = f"stackyard-test-rebuild:{secrets.token_hex(4)}"
    client = buildkit.find_client(os.environ["PATH"])
    with Engine() as engine:
        names = [f"{run}-{kind}" for kind in ("image", "base", "packages")]
        image, base, held = names
        try:
            lists = sorted(Path("/var/lib/apt/lists").iterdir())
            base_image.make_base(engine, made.base, locked, base, print, held=held)
            assert sorted(Path("/var/lib/apt/lists").iterdir()) == lists
            tools = base_image.ensure_tools(engine, caller(), made.pins)
            plan = made.plan(tag=image, base_image=base, packages=held)
            plan = dataclasses.replace(plan, labels=dict([owned()[1].split("=", 1)]))
            settings = dataclasses.replace(caller(), secrets={})
            yield engine, buildkit.build(plan, client, tools, settings, print, fresh=True), held
        finally:
            for name in names:
                engine.remove_image(name)


def release(site: Site, made: Record, locked: Path, *without: str) -> str:
    """Release a small image, with all that a rebuild needs but for some kinds; its tag."""
    store = Spool(site.layers)
    with built(made, locked) as (engine, image, held), site.asked() as registry:
        saved = store.save(engine.saved(image), {})
        kept = store.save(engine.saved(held), {}).layers[0]
        index = (locked / packages.INDEX).read_bytes()
        beside = (
            Attached(title="recipe.json", media_type=RECIPE, data=record_text(made)),
            Attached(title="Packages", media_type=INDEX, data=index),
        )
        info = engine.image(image)
        assert info is not None
        wanted = PublishPlan(
            subject=SUBJECT, info=info, created="2026-01-01T00:00:00+00:00", proof=None,
            attached=beside, locks={}, key=site.key, builder={}, source={},
            packages=None if PACKAGES in without else kept,
        )  # fmt: skip
        return Publisher(registry, store, print).publish(saved, wanted).name


@contextlib.contextmanager
def elsewhere(site: Site, folder: Path, sources: Path | None) -> Iterator[Elsewhere]:
    """Give another machine: an engine that holds nothing, a core, a host name, a checkout."""
    (host,) = site.yard.hosts.values()
    docker("update", "--cpuset-cpus", "0", host.container)
    found = re.search(r"ssh_config: (\S+)\}?", Path(site.yard.inventory).read_text())
    assert found is not None
    socket = folder / "docker.sock"
    words = ["ssh", "-F", found[1], "-N", "-L", f"{socket}:/var/run/docker.sock", host.address]
    with subprocess.Popen(words) as tunnel:
        try:
            end = time.monotonic() + 20
            while not socket.exists():
                assert time.monotonic() < end and tunnel.poll() is None
                time.sleep(0.05)
            yield Elsewhere(
                site=dataclasses.replace(site, cache=folder / "cache", project=copy_tree(folder)),
                socket=socket, sources=sources,
            )  # fmt: skip
        finally:
            tunnel.terminate()
            cores = f"0-{(os.cpu_count() or 1) - 1}"
            docker("update", "--cpuset-cpus", cores, host.container, check=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Another machine, with package sources of its own."""

    site: Site
    socket: Path
    sources: Path | None

    def rebuild(self, name: str, *, seconds: float = 600):
        """`invoke verify --rebuild` there: its exit code, its JSON, what it said for people."""
        # The login is the publisher's; pip's and uv's own settings are those of this machine.
        env = {**self.site.environment, "HOME": os.environ["HOME"],
               "DOCKER_HOST": f"unix://{self.socket}"}  # fmt: skip
        if self.sources:
            env["STACKYARD_APT_SOURCES"] = str(self.sources)
        command = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh",
                   "taskset", "-c", "0", str(ROOT / ".venv/bin/invoke"), "verify", name,
                   "--rebuild", "--from", self.site.place, "--signers", str(self.site.signers),
                   "--json"]  # fmt: skip
        done = subprocess.run(command, cwd=self.site.project, env=env, capture_output=True,
                              text=True, timeout=seconds, check=False)  # fmt: skip
        try:
            return done.returncode, json.loads(done.stdout), done.stderr
        except ValueError:
            raise AssertionError(done.stdout[-3000:] + done.stderr[-3000:]) from None

    def images(self) -> list[str]:
        """Names of the images of a rebuild that its engine holds."""
        (host,) = self.site.yard.hosts.values()
        form = "{{.Repository}}:{{.Tag}}"
        names = host.run("docker", "images", "--format", form).split()
        return [name for name in names if "rebuild" in name or "<none>" in name]


@pytest.fixture(scope="module")
def site(make_site, tmp_path_factory):
    """A registry and one more machine."""
    found = make_site(tmp_path_factory.mktemp("rebuilt"), "forge")
    yield found
    found.forget()


@pytest.mark.repeat  # a second build has the same bytes in tests/images, too
def test_a_release_is_built_again_elsewhere_and_no_file_differs(site, locked, newer, tmp_path):
    name = release(site, record(), locked)
    with elsewhere(site, tmp_path, newer) as there:
        code, told, said = there.rebuild(name)
        assert there.images() == []
    assert (code, told["rebuilt"]["differences"]) == (0, []), said
    rebuilt = told["rebuilt"]
    assert (rebuilt["outcome"], rebuilt["packages_from"]) == ("passed", "release")
    assert rebuilt["files"] > 1000 and rebuilt["packages"] > 50
    # The control: what the archive there offers today would have been another image.
    today = tmp_path / "today"
    packages.collect(today, platform=BASE.platform, install=(*BASE.packages, *BASE.steps),
                     download=(), sources=newer.read_bytes())  # fmt: skip
    versions = {one.name: one.version for one in
                packages.read_index((today / packages.INDEX).read_text())}  # fmt: skip
    assert versions["m4"].endswith("+newer1") and versions["tini"].endswith("+newer1")


@pytest.mark.repeat
def test_planted_differences_are_named_with_their_package(site, locked, newer, tmp_path):
    name = release(site, record(PLANTED), locked)
    with elsewhere(site, tmp_path, newer) as there:
        code, told, said = there.rebuild(name)
    assert code == 1, said
    # A step that changes a file of a layer below gives its folder a new time, too.
    found = {one["path"]: (one["what"], one["package"].partition(" ")[0])
             for one in told["rebuilt"]["differences"] if one["what"] != ["time"]}  # fmt: skip
    assert found == {
        "/etc/issue": (["owner", "time"], "base-files"),
        "/srv/cores": (["content"], ""),
        "/srv/new": (["added"], ""),
        "/usr/bin/tini": (["mode", "time"], "tini"),
    }


@pytest.mark.repeat
def test_an_image_of_newer_packages_is_not_the_released_one(site, locked, newer, tmp_path):
    """Whoever releases one image and other packages is found out, package by package."""
    name = released_with_others(site, locked, newer, tmp_path)
    with elsewhere(site, tmp_path, newer) as there:
        code, told, said = there.rebuild(name)
    assert code == 1, said
    found = {(one["path"], *one["what"]): one["package"] for one in told["rebuilt"]["differences"]}
    assert found["/usr/share/newer/tini", "added"].startswith("tini ")
    assert found["/usr/share/newer/tini", "added"].endswith("+newer1 (Debian)")
    assert ("/var/lib/dpkg/status", "content") in found
    assert not any(path.startswith("/srv") for path, *_ in found)


def released_with_others(site: Site, locked: Path, newer: Path, folder: Path) -> str:
    """Release an image of locked packages, whose recipe comes with newer ones."""
    today = folder / "others"
    packages.collect(today, platform=BASE.platform, install=(*BASE.packages, *BASE.steps),
                     download=(), sources=newer.read_bytes())  # fmt: skip
    store, made = Spool(site.layers), record("&& true")
    with Engine() as engine, site.asked() as registry:
        held = f"stackyard-test-rebuild:{secrets.token_hex(4)}-others"
        packages.hold(engine, today, held)
        try:
            kept = store.save(engine.saved(held), {}).layers[0]
        finally:
            engine.remove_image(held)
        with built(made, locked) as (_, image, _):
            info = engine.image(image)
            assert info is not None
            saved = store.save(engine.saved(image), {})
        files = (
            Attached(title="recipe.json", media_type=RECIPE, data=record_text(made)),
            Attached(title="Packages", media_type=INDEX,
                     data=(today / packages.INDEX).read_bytes()),
        )  # fmt: skip
        wanted = PublishPlan(
            subject=SUBJECT, info=info, created="2026-01-01T00:00:00+00:00", proof=None,
            attached=files, locks={}, key=site.key, builder={}, source={}, packages=kept,
        )  # fmt: skip
        return Publisher(registry, store, print).publish(saved, wanted).name


@pytest.mark.repeat
def test_packages_that_nobody_has_any_more_are_one_error(site, locked, newer, tmp_path):
    name = release(site, record("&& : nowhere"), locked, PACKAGES)
    with elsewhere(site, tmp_path, newer) as there:
        code, told, _ = there.rebuild(name)
        assert code == 4 and "do not have all" in told["error"]["what"], told
        assert "STACKYARD_APT_SOURCES=FILE" in told["error"]["hint"]
        # The archive of today's machine still has them.
        again = dataclasses.replace(there, sources=write_sources(tmp_path / "still.sources"))
        code, told, said = again.rebuild(name)
    assert (code, told["rebuilt"]["packages_from"]) == (0, "archive"), said


def write_sources(path: Path) -> Path:
    """Write this machine's own package sources to a file."""
    path.write_bytes(packages.sources_of(BASE.suite, caller()))
    return path


@pytest.mark.repeat
@pytest.mark.parametrize(("stack", "base"), [("megatron", "cpu"), ("accelerate", "cuda")])
def test_a_stacks_own_release_is_built_again_elsewhere(site, newer, tmp_path, stack, base):
    """The whole of it: torch, wheels that are compiled, fixes, bytecode."""
    tree, name = copy_tree(tmp_path / "published"), own_name("released")
    rename_stack(tree, stack, name)
    with Engine() as engine:
        try:
            Builder(load_project(tree), engine, print).build(name, base)
            done = dataclasses.replace(site, project=tree).invoke(
                "publish", name, "--base", base, "--to", site.place, "--key", str(site.key),
                "--unproven", "--without-gpu-evidence", "--json", seconds=1800,
            )  # fmt: skip
        finally:
            engine.remove_image(f"stackyard/{name}:{base}")
    with elsewhere(site, tmp_path, newer) as there:
        code, told, said = there.rebuild(json.loads(done.stdout)["name"], seconds=3600)
    differences = [f"{one['path']}: {', '.join(one['what'])} ({one['package']})"
                   for one in told["rebuilt"]["differences"]]  # fmt: skip
    assert (code, differences) == (0, []), "\n".join([*differences[:50], said[-1000:]])
    assert told["rebuilt"]["packages_from"] == "release" and told["rebuilt"]["files"] > 10000
