"""What builds stand on: when it is the same, and which local wheels go along."""

import contextlib
import dataclasses
import itertools
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from stackyard.build import base_image, bundle, packages, recipe
from stackyard.build.mirrors import CallerSettings
from stackyard.definitions.spec import Bootstrap, Common
from stackyard.system.errors import NothingToRunOn
from stackyard.system.image import ImageInfo
from tests.unit import samples


def key(base=None, common=None):
    return base_image.base_key(base or samples.base(), common or samples.common())


def content(held):
    return base_image.content(samples.base(), samples.common(), held)


def made_of(**changes):
    values = {"suite": "bookworm", "packages": ("python3",), "exclude": (), **changes}
    return samples.base(bootstrap=Bootstrap(**values))


def common(*system):
    return Common(system=system, build_system=(), text_packages=(), env={})


@pytest.mark.parametrize(
    "base",
    [
        made_of(suite="trixie"),
        made_of(packages=("python3", "less")),
        made_of(exclude=("/usr/share/doc/*",)),
        samples.base(platform="linux/arm64"),
    ],
)
def test_what_a_base_is_made_of_decides_its_address(base):
    assert key(base) != key()


def test_the_common_packages_are_part_of_a_base():
    assert key(common=common("tini")) != key(common=common("tini", "less"))


@pytest.mark.parametrize("kind", ["build_system", "stack_system", "text_packages"])
def test_packages_that_build_steps_take_are_locked_with_the_base(kind):
    assert key(common=samples.common(**{kind: ("rsync",)})) != key()


@pytest.mark.parametrize("script", ["_CLEAN", "_BLANK_SOURCES"])
def test_how_a_base_is_cleaned_decides_its_address(monkeypatch, script):
    before = key()
    monkeypatch.setattr(base_image, script, "echo")
    assert key() != before


def test_order_and_what_is_not_content_do_not_decide_an_address():
    assert key(common=common("tini", "less")) == key(common=common("less", "tini", "tini"))
    assert key(samples.base(summary="another", env={}, torch=())) == key()


def test_a_made_base_is_found_by_its_address_and_a_pulled_one_by_its_name():
    name = base_image.base_reference(samples.base(), samples.common())
    assert name == f"stackyard/base:cpu-{key()[:12]}"
    assert (
        base_image.base_reference(samples.pulled(), samples.common()) == "registry.example/torch:1"
    )


WHEELS = [
    "alpha-1.2.0-py3-none-any.whl",
    "alpha-1.3.0-py3-none-any.whl",
    "Foo_Bar-2.0-cp311-cp311-linux_x86_64.whl",
    "torch-2.0.0+cpu-cp311-cp311-linux_x86_64.whl",
    "not-a-wheel.whl",
    "alpha-1.2.0.tar.gz",
]


@pytest.fixture
def folder(tmp_path):
    for name in WHEELS:
        (tmp_path / name).write_bytes(b"wheel")
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({("alpha", "1.2.0")}, [WHEELS[0]]),
        ({("foo-bar", "2.0")}, [WHEELS[2]]),
        ({("torch", "2.0.0+cpu")}, [WHEELS[3]]),
        ({("torch", "2.0.0")}, []),
        ({("alpha", "9")}, []),
        (set(), []),
    ],
)
def test_local_wheels_are_those_that_the_locks_name(folder, wanted, found):
    assert [path.name for path in base_image.local_wheels([folder], wanted)] == found


def test_of_the_same_wheel_in_two_folders_the_first_is_taken(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / WHEELS[0]).write_bytes(b"other")
    gone = other / "gone"
    (path,) = base_image.local_wheels([gone, other, folder], {("alpha", "1.2.0")})
    assert path.parent == other


class Holding:
    """An engine that holds what it was given."""

    def __init__(self, *names):
        self.held, self.imported, self.labels = set(names), [], {}

    def image(self, name):
        if name not in self.held:
            return None
        labels = self.labels.get(name, {})
        return ImageInfo(id=name, tags=(), labels=labels, env=(), size=1, layers=())

    def import_tar(self, path, name, changes):
        with tarfile.open(path) as archive:
            self.imported.append([(m.name, m.mode, m.uname) for m in archive.getmembers()])
        self.held.add(name)


def caller(*folders):
    return CallerSettings(secrets={}, wheel_folders=folders, proxies={})


def test_the_tools_hold_uv_and_the_wanted_wheels_and_are_made_once(folder, monkeypatch):
    binary = folder / "uv"
    binary.write_bytes(b"uv")
    monkeypatch.setattr(base_image.uv, "find_uv_bin", lambda: str(binary))
    engine = Holding()
    wanted = [("alpha", "1.2.0")]
    name = base_image.ensure_tools(engine, caller(folder), wanted)
    assert name.startswith("stackyard/tools:")
    assert engine.imported == [[("uv", 0o755, "root"), (f"wheels/{WHEELS[0]}", 0o755, "root")]]
    assert base_image.ensure_tools(engine, caller(folder), wanted) == name
    assert len(engine.imported) == 1
    assert base_image.ensure_tools(engine, caller(), wanted) != name


def test_tools_that_another_command_made_meanwhile_are_not_made_again(folder, monkeypatch):
    engine, other = Holding(), Holding()
    monkeypatch.setattr(base_image.uv, "find_uv_bin", lambda: str(folder / WHEELS[0]))
    name = base_image.ensure_tools(other, caller(folder), [])

    @contextlib.contextmanager
    def after_the_other(key, waiting):
        engine.held.add(name)
        yield

    monkeypatch.setattr(base_image, "exclusive", after_the_other)
    assert base_image.ensure_tools(engine, caller(folder), []) == name
    assert engine.imported == []


def test_the_tools_of_a_bundle_are_made_once_for_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "write_tools", lambda path, out: tarfile.open(out, "w").close())
    engine = Holding()
    manifests = [samples.manifest(files={"wheels/a.whl": digit * 64}) for digit in "01"]
    one, other = (base_image.ensure_bundle(engine, tmp_path, found) for found in manifests)
    assert one.startswith("stackyard/tools:bundle-")
    assert one != other
    assert base_image.ensure_bundle(engine, tmp_path, manifests[0]) == one
    assert len(engine.imported) == 2


def test_a_base_out_of_files_is_made_only_when_asked_for():
    with pytest.raises(NothingToRunOn) as caught:
        base_image.ensure_base(Holding(), samples.carried(), samples.common(), caller(), print)
    assert caught.value.hint == "invoke base far"


def test_a_base_that_the_engine_holds_is_not_made_again():
    name = base_image.base_reference(samples.base(), samples.common())
    said = []
    found = base_image.ensure_base(
        Holding(name), samples.base(), samples.common(), caller(), said.append
    )
    assert (found.id, said) == (name, [])


def test_without_mmdebstrap_that_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(base_image.shutil, "which", lambda name: None)
    with pytest.raises(base_image.StackyardError) as caught:
        base_image.ensure_base(Holding(), samples.base(), samples.common(), caller(), print)
    assert "mmdebstrap, which is not installed" in caught.value.what
    assert caught.value.hint.startswith("apt-get install mmdebstrap")


class Making:
    """An engine that takes in what is made, and what a base was made from."""

    def __init__(self):
        self.named, self.numbers, self.removed = {}, itertools.count(), []

    def image(self, name):
        return self.named.get(name)

    def import_tar(self, path, name, changes):
        labels = dict(c.removeprefix("LABEL ").split("=", 1) for c in changes if "LABEL" in c)
        self.named[name] = ImageInfo(
            id=f"id{next(self.numbers)}", tags=(), labels=labels, env=(), size=1, layers=("same",)
        )

    def held_images(self):
        return [dataclasses.replace(one, tags=(name,)) for name, one in self.named.items()]

    def remove_image(self, name):
        self.removed.append(name)

    def tag(self, name, new):
        self.named[new] = self.named.get(name) or next(
            one for one in self.named.values() if one.id == name
        )


@pytest.fixture
def making(monkeypatch):
    """Packages in an archive, and how apt and mmdebstrap are asked for a base of them."""
    asked, ran, archive = [], [], {"content": "1"}

    def collect(out, **given):
        asked.append(given)
        out.mkdir()
        (out / packages.INDEX).write_text(archive["content"])

    def run(argv, **_):
        ran.append(argv)
        Path(argv[-2]).write_text("root")

    monkeypatch.setattr(base_image.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(packages, "collect", collect)
    monkeypatch.setattr(base_image.process, "run", run)
    monkeypatch.setattr(base_image, "exclusive", lambda *_: contextlib.nullcontext())
    return asked, ran, archive


def ensure(engine, base, **given):
    caller = CallerSettings(
        secrets={"apt.sources": b"https://me:pw@debian"}, wheel_folders=(), proxies={}
    )
    return base_image.ensure_base(engine, base, samples.common(), caller, print, **given)


def test_a_base_is_made_from_packages_that_were_locked_before(making):
    asked, ran, _ = making
    base = made_of(exclude=("/usr/share/doc/*",))
    found = ensure(Making(), base)
    ((given),) = asked
    # All that build steps will install is locked with the base.
    assert given["install"] == ("openssh-server", "python3", "tini", "g++")
    assert given["download"] == ("fortunes",)
    ((*words, suite, out, source),) = ran
    assert (suite, Path(out).name) == ("bookworm", "root.tar")
    assert "--include=openssh-server,python3,tini" in words
    assert "--dpkgopt=path-exclude=/usr/share/doc/*" in words
    assert [w.rpartition("/")[2] for w in words if "customize-hook" in w] == ["clean", "blank"]
    # mmdebstrap sees the locked packages, and not the caller's sources.
    assert source.startswith("deb [trusted=yes] copy:/") and source.endswith("/packages ./")
    assert "debian" not in " ".join(ran[0])
    assert found.labels[recipe.PACKAGES_LABEL].startswith("sha256:")


def test_without_root_mmdebstraps_own_user_can_enter_folders_and_read_packages(making, monkeypatch):
    """Its user namespace gives root another number; folders of ours are made for us alone."""
    modes = []

    def run(argv, **_):
        *words, _, out, source = argv
        hooks = [Path(w.partition("=")[2]) for w in words if "customize-hook" in w]
        locked = Path(source.split()[2].removeprefix("copy:"))
        entered = {Path(out).parent, locked.parent, *(one.parent for one in hooks)}
        read = {locked, *locked.iterdir(), *hooks}
        modes.extend(path.stat().st_mode & 0o011 for path in entered)
        modes.extend(0o011 if path.stat().st_mode & 0o044 == 0o044 else 0 for path in read)
        Path(out).write_text("root")

    monkeypatch.setattr(base_image.process, "run", run)
    before = os.umask(0o027)
    try:
        ensure(Making(), samples.base())
    finally:
        os.umask(before)
    assert len(modes) >= 6 and set(modes) == {0o011}


def test_no_variable_of_the_callers_reaches_the_scripts_of_packages(
    making, monkeypatch, allow_processes
):
    """Bytecode of a base was other bytecode where PYTHONDONTWRITEBYTECODE was set."""
    _, ran, _ = making
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    ensure(Making(), samples.base())
    before = ran[0][: ran[0].index("/usr/bin/mmdebstrap")]
    given = subprocess.run([*before, "env"], capture_output=True, text=True, check=True).stdout
    names = {line.partition("=")[0] for line in given.splitlines()}
    assert names == {"PATH", "SOURCE_DATE_EPOCH", "TMPDIR"}


def test_mmdebstrap_does_not_clean_this_machines_package_lists(making):
    _, ran, _ = making
    ensure(Making(), samples.base())
    assert "--skip=cleanup/apt" in ran[0]


def test_the_engine_holds_a_bases_packages_under_their_index_and_a_readable_name(making):
    engine = Making()
    found = ensure(engine, samples.base())
    name = packages.packages_of(found.labels)
    assert engine.image(name) is engine.image("stackyard/packages:cpu")
    assert engine.image("stackyard/base:cpu") is found


def test_a_base_whose_packages_are_gone_is_made_again(making):
    _, ran, _ = making
    engine = Making()
    name = packages.packages_of(ensure(engine, samples.base()).labels)
    ensure(engine, samples.base())
    assert len(ran) == 1
    del engine.named[name]
    ensure(engine, samples.base())
    assert len(ran) == 2 and name in engine.named


def test_a_pulled_base_needs_no_packages_whatever_its_labels(making):
    engine, base = Making(), samples.pulled()
    engine.import_tar(None, base.reference, [f"LABEL {recipe.PACKAGES_LABEL}=sha256:{'0' * 64}"])
    assert ensure(engine, base) is engine.image(base.reference)


def test_a_base_made_again_is_another_one_where_its_packages_are(making):
    """Build steps would install others, as when only the compiler is a newer one."""
    engine, (_, _, archive) = Making(), making
    first = ensure(engine, samples.base())
    again = ensure(engine, samples.base(), fresh=True)
    assert first.id != again.id and content(first) == content(again)
    assert engine.removed == []
    archive["content"] = "2"
    assert content(ensure(engine, samples.base(), fresh=True)) != content(first)
    # Nothing is built from the first ones any more.
    assert engine.removed == [packages.packages_of(first.labels)]


def test_a_pulled_base_counts_by_its_configuration_and_a_made_one_by_its_layers():
    held = ImageInfo(id="id", tags=(), labels={}, env=(), size=1, layers=("layer",))
    found = [base_image.content(base, samples.common(), held).digest
             for base in (samples.pulled(), samples.base())]  # fmt: skip
    assert found == ["id", "layer"]


def test_packages_stay_while_another_base_has_them(making):
    """The bases for two versions of CUDA are made from the same packages."""
    engine, (_, _, archive) = Making(), making
    for name in ("cuda", "cuda12"):
        ensure(engine, samples.base(name=name, reference=f"stackyard/base:{name}"))
    archive["content"] = "2"
    for name, removed in (("cuda", 0), ("cuda12", 1)):
        ensure(engine, samples.base(name=name, reference=f"stackyard/base:{name}"), fresh=True)
        assert len(engine.removed) == removed


def test_space_is_not_known_where_the_engines_folder_is_not_here(tmp_path):
    assert base_image.free_bytes(str(tmp_path / "gone")) is None
    assert base_image.free_bytes(str(tmp_path)) > 0
