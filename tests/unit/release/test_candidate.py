"""What a release carries, so that others can build its image again."""

import dataclasses
import gzip
import io
import json

import pytest

from stackyard.build import packages
from stackyard.build import recipe as plans
from stackyard.build.catalog import resolve
from stackyard.definitions.project import Project
from stackyard.release import candidate
from stackyard.release.candidate import Candidate
from stackyard.release.recipe_record import INDEX, RECIPE, read_record
from stackyard.release.spool import Spool
from stackyard.release.statement import Origin, Subject
from stackyard.scan import oci
from stackyard.system.image import ImageInfo
from tests.unit import samples
from tests.unit.debs import deb
from tests.unit.layers import tar

pytestmark = pytest.mark.usefixtures("allow_processes")
DIGEST = "sha256:" + "5" * 64
LABELS = {plans.PACKAGES_LABEL: DIGEST, "stackyard.base.digest": "sha256:base"}


class Engine:
    """An engine that holds packages, under the name of their index."""

    version = "20.10"

    def __init__(self, folder=None):
        self.layer = b""
        if folder is not None:
            packages.hold(self, folder, packages.reference(DIGEST))

    def import_tar(self, path, name, changes):
        self.name, self.layer = name, path.read_bytes()

    def image(self, name):
        held = self.layer and name == self.name
        return dataclasses.replace(info(), id="packages") if held else None

    def saved(self, name):
        assert name == "packages"
        config = json.dumps({"rootfs": {"diff_ids": [oci.digest_of(self.layer)]}})
        listed = json.dumps([{"Config": "config.json", "Layers": ["0/layer.tar"]}])
        whole = tar(("0/layer.tar", self.layer), ("config.json", config),
                    ("manifest.json", listed))  # fmt: skip
        return iter([whole])


def info(labels=LABELS):
    return ImageInfo(id="id", tags=(), labels=labels, env=(), size=1, layers=())


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    deb(made, "tini")
    packages.write_index(made)
    return made


@pytest.fixture
def project(tmp_path):
    found = samples.definitions()
    for path in (*plans.INSIDE, *found.locks):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"text of {path}")
    return Project(root=tmp_path, definitions=found, default_base="cpu")


def carried(project, engine, base="cpu", *, own=False, labels=LABELS):
    image = resolve(project.definitions, "toy", base)
    subject = Subject(stack="toy", version="1", base_name=base, base_release=base, own=own)
    found = Candidate(image=image, tag="t", info=info(labels), subject=subject, proof=None)
    origin = Origin(revision="c" * 40)
    store = Spool(project.root / "layers")
    made = candidate.rebuildable(project, engine, store, found, origin, lambda text: None)
    return made, store


def test_recipe_index_and_packages_are_carried(project, folder):
    engine = Engine(folder)
    made, store = carried(project, engine)
    files = {one.media_type: one for one in made.files}
    assert set(files) == {RECIPE, INDEX}
    record = read_record(files[RECIPE].data)
    assert (record.stack, record.base_name, record.distribution) == (
        "toy", "cpu", "debian/bookworm",
    )  # fmt: skip
    assert record.base.packages == ("openssh-server", "python3", "tini")
    lock = "images/toy/cpu.lock"
    assert record.context[lock] == project.definitions.locks[lock]
    assert set(plans.INSIDE) < set(record.context) and record.dockerfile in record.context
    assert record.builder["commit"] == "c" * 40
    assert files[INDEX].data == (folder / "Packages").read_bytes()
    assert made.locks == {"Packages": oci.digest_of(files[INDEX].data)}
    out = project.root / "out"
    with gzip.open(store.path(made.packages)) as content:
        packages.unpack(io.BytesIO(content.read()), out)
    assert (out / "tini_1_amd64.deb").is_file()


def test_the_same_image_carries_the_same_bytes_whenever_it_is_released(project, folder):
    one, two = (carried(project, Engine(folder))[0] for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    "given",
    [{"base": "gpu"}, {"own": True}, {"labels": {}}, {"engine": Engine()}],
)
def test_what_cannot_be_carried_is_left_out_whole(project, folder, given):
    engine = given.pop("engine", None) or Engine(folder)
    made, _ = carried(project, engine, **given)
    assert (made.files, made.packages, made.locks) == ((), None, {})


def test_a_lock_without_a_file_of_its_own_is_named_as_any_other(project):
    """Bases that need the same packages share a file: what is read is the lock, not its file."""
    image = resolve(project.definitions, "toy", "cpu")
    for path in image.locks:
        (project.root / path).unlink()
    assert candidate.lock_digests(project, image) == {
        path: oci.digest_of(text.encode()) for path, text in project.definitions.locks.items()
        if path in image.locks
    }  # fmt: skip
    assert set(plans.context_files(project.root, image)) == {*plans.INSIDE, *image.locks}
