"""Releases in a folder: whole or not there, and installed only as they were signed."""

import json
import os
import shutil
import subprocess
import tarfile

import pytest

from stackyard.build.source.naming import SOURCES_LABEL, Source, sources_text
from stackyard.release import airgap, parcel, statement, verify
from stackyard.release.layer_source import LayerSource
from stackyard.release.recipe_record import PACKAGES
from stackyard.release.spool import layer_path
from stackyard.report import evidence
from stackyard.scan import oci
from stackyard.system import signing
from stackyard.system.errors import RegistryError, ReleaseError, UsageError
from tests.unit.releases import NAME, Held, accept, image, make_key, reply, shown_by, state

pytestmark = pytest.mark.usefixtures("allow_processes")
NEXT = "toy-1.0-cpu-r2"
IMAGE = image("one" * 500, "two" * 500)
ID, BILL = oci.digest_of(IMAGE.config), b'{"components": []}'
# An engine's client that takes an archive as docker does: an image has the id of its configuration.
DOCKER = r"""#!/bin/sh
case $1 in
load) cat > "$ENGINE.tar"
    tar -xOf "$ENGINE.tar" manifest.json |
    grep -o 'Config": "blobs/sha256/[0-9a-f]*\|RepoTags": \["[^"]*' |
    sed 's|.*sha256/|sha256:|; s|.*\["|named |' >> "$ENGINE" ;;
image) grep -qx "$3" "$ENGINE" ;;
tag) echo "tag $2 $3" >> "$ENGINE" ;;
*) exit 1 ;;
esac
"""


class Site:
    """A registry with one release, and a folder to carry it in."""

    def __init__(self, folder, monkeypatch):
        self.held, self.folder, self.out = Held(), folder, folder / "carried"
        self.key = make_key(folder)
        self.signers, self.registry = accept(folder, self.key), self.held.open(monkeypatch)
        self.engine, self.path = folder / "engine", ""
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").write_text(DOCKER)
        (folder / "bin" / "docker").chmod(0o755)

    def hold(self, title="sbom.cdx.json", kind=statement.SBOM, of=IMAGE, name=NAME, **changes):
        """Put a release, with a file beside it, into the registry."""
        digest = self.held.put(of, name)
        bill = oci.described(kind, BILL, title)
        self.held.blobs[bill.digest] = BILL
        text = state(of, artifacts=[bill], name=name, **changes)
        self.held.sign(digest, text, signing.sign(text, self.key))

    def write(self, name=NAME):
        found = verify.verify_release(self.registry, name, self.signers)
        sizes = {str(layer["digest"]): layer["size"] for layer in found.release.layers}
        source = LayerSource(self.registry, self.folder / "cache", sizes)
        return airgap.write_release(
            self.out, self.registry, source, found, self.signers, lambda text: None
        )

    def blobs(self):
        """The blobs of the folder: the image's layers first, from the bottom."""
        found = list((self.out / "blobs" / "sha256").iterdir())
        return sorted(found, key=lambda path: (path.name not in str(list(IMAGE.layers)), path.name))

    def install(self, *words, where=None):
        """Run the installer as a user does; its exit code, what it said, what the engine has."""
        env = {**os.environ, "PATH": self.path or f"{self.folder / 'bin'}:{os.environ['PATH']}",
               "ENGINE": str(self.engine)}  # fmt: skip
        command = [shutil.which("sh"), self.out / "install.sh", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False,
                              cwd=where)  # fmt: skip
        has = self.engine.read_text().splitlines() if self.engine.exists() else []
        return done.returncode, done.stdout + done.stderr, has


@pytest.fixture
def site(tmp_path, monkeypatch):
    found = Site(tmp_path, monkeypatch)
    found.hold()
    return found


# Writing


def test_a_folder_holds_the_image_its_statement_and_what_lies_beside_it(site):
    place = site.write()
    assert place == site.out / NAME
    assert (place / "sbom.cdx.json").read_bytes() == BILL
    assert signing.verify((place / "release.json").read_bytes(),
                          (place / "release.json.sig").read_bytes(), site.signers)  # fmt: skip
    assert {f"sha256:{path.name}": path.read_bytes() for path in site.blobs()} == {
        **IMAGE.layers, ID: IMAGE.config, oci.digest_of(IMAGE.manifest): IMAGE.manifest
    }  # fmt: skip
    assert {path.name for path in site.out.iterdir()} == {
        NAME, "blobs", "oci-layout", "index.json", "allowed_signers", "install.sh"
    }  # fmt: skip
    assert json.loads((site.out / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (listed,) = json.loads((site.out / "index.json").read_bytes())["manifests"]
    assert listed == {
        "mediaType": oci.MANIFEST, "digest": oci.digest_of(IMAGE.manifest),
        "size": len(IMAGE.manifest), "annotations": {"org.opencontainers.image.ref.name": NAME},
    }  # fmt: skip


def test_a_layer_of_two_releases_lies_there_once(site):
    site.write()
    before = {path: path.stat().st_ino for path in site.blobs()}
    other = image("one" * 500, "three" * 500)
    shared = set(IMAGE.layers) & set(other.layers)
    assert len(shared) == 1
    site.hold(of=other, name=NEXT)
    site.held.asked.clear()
    site.write(NEXT)
    assert not any(digest in line for digest in shared for line in site.held.asked)
    assert len(site.blobs()) == len(before) + 3  # a layer, a configuration, a manifest
    assert airgap.carried_bytes(site.out) == sum(path.stat().st_size for path in site.blobs())
    listed = json.loads((site.out / "index.json").read_bytes())["manifests"]
    names = [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in listed]
    assert names == [NAME, NEXT]


def test_a_damaged_layer_is_written_anew_and_a_whole_one_kept(site):
    site.write()
    damaged, whole = (site.out / parcel.path_of(digest) for digest in IMAGE.layers)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    kept = whole.stat().st_ino
    site.write()
    assert damaged.read_bytes() == next(iter(IMAGE.layers.values()))
    assert whole.stat().st_ino == kept


def cached(site):
    """The file of a layer in this machine's cache, damaged and as long as before."""
    site.write()
    digest = next(iter(IMAGE.layers))
    path = layer_path(site.folder / "cache", digest)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (site.out / parcel.path_of(digest)).unlink()
    site.held.asked.clear()
    return digest, path


def test_a_layer_that_is_damaged_in_the_cache_is_fetched_anew(site):
    digest, path = cached(site)
    site.write()
    assert (site.out / parcel.path_of(digest)).read_bytes() == IMAGE.layers[digest]
    assert path.read_bytes() == IMAGE.layers[digest]
    assert sum(digest in line for line in site.held.asked) == 1


def test_a_layer_that_is_damaged_everywhere_is_fetched_once_and_not_carried(site):
    digest, path = cached(site)
    site.held.blobs[digest] = b"x" * len(IMAGE.layers[digest])
    with pytest.raises(ReleaseError, match="is not what was signed"):
        site.write()
    assert not (site.out / parcel.path_of(digest)).exists() and not path.exists()
    assert sum(digest in line for line in site.held.asked) == 1


def test_what_is_only_half_written_is_not_counted(site):
    site.write()
    before = airgap.carried_bytes(site.out)
    (site.out / "blobs" / "sha256" / ".0123.99").write_bytes(b"half")
    assert airgap.carried_bytes(site.out) == before


def test_evidence_that_was_attached_later_is_carried_when_it_is_believed(site, tmp_path):
    good = shown_by(IMAGE, site.key)
    strange = shown_by(IMAGE, make_key(tmp_path, "stranger"))
    for data in (good, strange):
        digest = oci.digest_of(IMAGE.manifest)
        site.held.attach(digest, evidence.ENVELOPE, one=(evidence.ENVELOPE, data))
    (file,) = site.write().glob("evidence-*")
    assert file.name == evidence.file_name(good, "smoke") and file.read_bytes() == good


def test_of_a_release_that_could_not_be_written_only_whole_blobs_are_left(site):
    first, last = IMAGE.layers
    site.held.before = lambda request: (
        reply(403) if request.method == "GET" and last in request.url else None
    )
    with pytest.raises(RegistryError):
        site.write()
    assert [path.name for path in site.out.iterdir()] == ["blobs"]
    assert [f"sha256:{path.name}" for path in site.blobs()] == [first]


def test_a_layer_that_was_changed_in_the_registry_is_not_carried(site):
    layer = next(iter(IMAGE.layers))
    site.held.blobs[layer] = b"x" * len(IMAGE.layers[layer])
    with pytest.raises(ReleaseError, match="is not what was signed"):
        site.write()
    assert site.blobs() == []


@pytest.mark.parametrize("name", ["config", "beside"])
def test_another_blob_that_was_changed_in_the_registry_is_not_carried(site, name):
    digest = {"config": ID, "beside": oci.digest_of(BILL)}[name]
    site.held.blobs[digest] += b" "
    with pytest.raises(RegistryError, match="is not what its digest says"):
        site.write()
    assert [path.name for path in site.out.iterdir()] == ["blobs"]


def test_something_else_of_the_same_name_is_left_alone(site):
    (site.out / NAME).mkdir(parents=True)
    (site.out / NAME / "mine").touch()
    with pytest.raises(UsageError, match="is there and is no release"):
        site.write()
    assert (site.out / NAME / "mine").exists()


@pytest.mark.parametrize("title", ["..", "a b", "$(x)", "/"])
def test_a_file_beside_an_image_whose_title_is_no_name_is_refused(tmp_path, monkeypatch, title):
    site = Site(tmp_path, monkeypatch)
    site.hold(title)
    with pytest.raises(ReleaseError, match="cannot be a file's name"):
        site.write()


def test_a_folder_in_a_title_is_no_folder(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    site.hold("../images/cpu.lock", statement.LOCK)
    assert (site.write() / "..-images-cpu.lock").read_bytes() == BILL


# Installing


def test_a_carried_release_is_installed_under_its_local_name(site):
    site.write()
    code, said, has = site.install(site.signers)
    assert (code, has) == (0, [ID, f"tag {ID} stackyard/toy:cpu"]), said
    assert f"{NAME}: signed by publisher@site" in said and "note:" not in said


def test_a_folders_own_list_of_signers_is_told_to_prove_nothing(site):
    site.write()
    code, said, _ = site.install()
    assert code == 0 and "the bundle's own allowed_signers" in said


def refuses(site, why, *words):
    code, said, has = site.install(*(words or [site.signers]))
    assert (code, has) == (1, []), said
    assert why in said


def swap(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


NOBODY = "is not signed by anybody in"


def test_a_strangers_release_is_not_installed(site, tmp_path):
    site.write()
    (tmp_path / "other").mkdir()
    refuses(site, NOBODY, accept(tmp_path / "other", make_key(tmp_path, "stranger")))


def test_a_signature_for_another_purpose_is_not_installed(site, tmp_path):
    place = site.write()
    (place / "release.json.sig").unlink()
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", site.key, "-n", "file", "release.json"]
    subprocess.run(words, cwd=place, check=True, capture_output=True)
    signers = tmp_path / "any"
    signers.write_text(f"publisher@site {(tmp_path / 'publisher.pub').read_text()}")
    refuses(site, NOBODY, signers)


@pytest.mark.parametrize("data", [None, b"", b"no signature"])
def test_without_a_signature_nothing_is_installed(site, data):
    seal = site.write() / "release.json.sig"
    seal.unlink()
    if data is not None:
        seal.write_bytes(data)
    refuses(site, NOBODY)


def test_a_statement_that_was_changed_is_not_installed(site):
    swap(site.write() / "release.json", b'"proven": false', b'"proven": true ')
    refuses(site, NOBODY)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("fault", ["changed", "cut", "missing"])
def test_an_image_that_is_not_whole_is_not_installed(site, number, fault):
    site.write()
    path = site.blobs()[number]
    data = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(data[:-1] + (b"x" if fault == "changed" else b""))
    refuses(site, f"blobs/sha256/{path.name} is not what was signed")


EVIL = image("evil" * 500)


def test_an_engine_is_given_what_was_signed_and_nothing_else(site):
    place = site.write()
    blobs = {**EVIL.layers, oci.digest_of(EVIL.config): EVIL.config}
    listed = [{"Config": parcel.path_of(oci.digest_of(EVIL.config)), "RepoTags": ["python:3.11"],
               "Layers": [parcel.path_of(digest) for digest in EVIL.layers]}]  # fmt: skip
    for digest, data in blobs.items():
        (site.out / parcel.path_of(digest)).write_bytes(data)
    for folder in (site.out, place):
        (folder / "manifest.json").write_text(json.dumps(listed))
        (folder / "repositories").write_text("{}")
    (site.out / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    code, said, has = site.install(site.signers)
    assert (code, has) == (0, [ID, f"tag {ID} stackyard/toy:cpu"]), said
    with tarfile.open(site.folder / "engine.tar") as archive:
        files = [member for member in archive if member.isfile()]
        given = {member.name: archive.extractfile(member).read() for member in files}
    names = [parcel.path_of(digest) for digest in IMAGE.layers]
    assert json.loads(given.pop("manifest.json")) == [
        {"Config": parcel.path_of(ID), "RepoTags": None, "Layers": names}
    ]
    index = json.loads(given.pop("index.json"))
    assert [entry["digest"] for entry in index["manifests"]] == [oci.digest_of(IMAGE.manifest)]
    assert index["manifests"][0]["size"] == len(IMAGE.manifest)
    assert json.loads(given.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    whole = {ID: IMAGE.config, oci.digest_of(IMAGE.manifest): IMAGE.manifest, **IMAGE.layers}
    assert given == {parcel.path_of(digest): data for digest, data in whole.items()}


def test_two_releases_are_installed_each_under_its_own_name(site):
    site.write()
    other = image("one" * 500, "three" * 500)
    site.hold(of=other, name=NEXT)
    site.write(NEXT)
    code, said, has = site.install(site.signers)
    assert code == 0, said
    assert [line for line in has if not line.startswith("tag")] == [ID, oci.digest_of(other.config)]


def number(site, revisions):
    """Carry releases of one stack and base; return the ids of their images by name."""
    ids = {}
    for name, created in revisions:
        of = image("one" * 500, name)
        site.hold(of=of, name=name, created=created)
        site.write(name)
        ids[name] = oci.digest_of(of.config)
    return ids


@pytest.mark.parametrize(
    ("revisions", "newest"),
    [
        # An older revision that was signed again later is still the older one.
        ((("toy-1.0-cpu-r9", "2026-03"), ("toy-1.0-cpu-r10", "2026-02")), "toy-1.0-cpu-r10"),
        ((("toy-1.10-cpu-r1", "2026-03"), ("toy-1.9-cpu-r4", "2026-02")), "toy-1.10-cpu-r1"),
        ((("toy-1.0-cpu-r2", "2026-02"), ("toy-1.0-cpu-r1", "2026-05"),
          ("toy-2.0-cpu-r1", "2026-03")), "toy-2.0-cpu-r1"),
    ],
)  # fmt: skip
def test_the_newest_release_of_a_stack_and_base_gets_its_tag(
    tmp_path, monkeypatch, revisions, newest
):
    site = Site(tmp_path, monkeypatch)
    ids = number(site, revisions)
    code, said, has = site.install(site.signers)
    assert code == 0, said
    assert has[-1] == f"tag {ids[newest]} stackyard/toy:cpu"
    assert {line for line in has if line.startswith("sha256:")} == set(ids.values())


def without_keygen(site):
    """A machine that has all that the installer needs but ssh-keygen."""
    for name in ("cat", "cut", "dirname", "grep", "head", "ln", "mkdir", "mktemp", "rm", "sed",
                 "sha256sum", "sh", "sort", "tar"):  # fmt: skip
        (site.folder / "bin" / name).symlink_to(shutil.which(name))
    site.path = str(site.folder / "bin")


def test_without_ssh_keygen_nothing_is_installed_where_signers_are_given(site):
    site.write()
    without_keygen(site)
    refuses(site, "ssh-keygen is needed to check signatures")
    code, said, has = site.install()
    assert code == 0 and has[-1] == f"tag {ID} stackyard/toy:cpu", said
    assert "no ssh-keygen here, its signature is not checked" in said


def test_signers_are_found_from_where_the_command_is_typed(site):
    site.write()
    assert site.install(site.signers.name, where=site.signers.parent)[0] == 0


def test_an_installer_leaves_nothing_in_the_folder_for_temporary_files(site, tmp_path, monkeypatch):
    place = site.write()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    site.install(site.signers)
    (place / "release.json.sig").unlink()
    site.install(site.signers)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_packages_for_a_rebuild_are_not_carried(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    site.hold(title="packages.tar.gz", kind=PACKAGES)
    assert sorted(path.name for path in site.write().iterdir()) == [
        "release.json", "release.json.sig",
    ]  # fmt: skip
    assert not any(oci.digest_of(BILL) in asked for asked in site.held.asked)


def test_users_own_source_gets_no_stacks_name(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    source = Source(package="toy", origin="", revision="", commit="c" * 40, dirty=False,
                    digest=ID, submodules=(), version="", files=1)  # fmt: skip
    site.hold(labels={SOURCES_LABEL: sources_text([source])})
    site.write()
    code, said, has = site.install(site.signers)
    assert (code, has[-1]) == (0, f"tag {ID} stackyard/toy:cpu-1.0"), said


def test_a_release_under_another_name_is_not_installed(site):
    site.write().rename(site.out / "toy-1.0-cpu-r9")
    refuses(site, "is signed under another name")


def test_an_empty_folder_is_no_bundle(site):
    for path in site.write().iterdir():
        path.unlink()
    refuses(site, "there is no release in this folder")
