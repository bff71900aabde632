"""Releases in a folder: whole or not there, and installed only as they were signed."""

import json
import os
import subprocess

import pytest

from stackyard import airgap, oci, parcel, release, signing, verify
from stackyard.errors import RegistryError, ReleaseError, UsageError
from stackyard.layer_source import LayerSource
from stackyard.source import SOURCES_LABEL, Source, sources_text
from tests.unit.layers import tar
from tests.unit.releases import NAME, Held, accept, image, make_key, reply, state
from tests.unit.test_parcel import read_pieces

pytestmark = pytest.mark.usefixtures("allow_processes")
IMAGE = image("one" * 500, "two" * 500)
ID, BILL = oci.digest_of(IMAGE.config), b'{"components": []}'
# An engine's client that takes an archive as docker does: an image has the id of its configuration.
DOCKER = r"""#!/bin/sh
case $1 in
load) tar -xOf "$4" manifest.json |
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
        self.engine = folder / "engine"
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").write_text(DOCKER)
        (folder / "bin" / "docker").chmod(0o755)

    def hold(self, title="sbom.cdx.json", kind=release.SBOM, **changes):
        """Put the release, with a file beside it, into the registry."""
        digest = self.held.put(IMAGE, NAME)
        bill = oci.described(kind, BILL, title)
        self.held.blobs[bill.digest] = BILL
        text = state(IMAGE, artifacts=[bill], **changes)
        self.held.sign(digest, text, signing.sign(text, self.key))

    def write(self):
        found = verify.verify_release(self.registry, NAME, self.signers)
        sizes = {digest: len(data) for digest, data in IMAGE.layers.items()}
        source = LayerSource(self.registry, self.folder / "cache", sizes)
        return airgap.write_release(
            self.out, self.registry, source, found, self.signers, lambda text: None
        )

    def install(self, *words):
        """Run the installer as a user does; its exit code, what it said, what the engine has."""
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
               "ENGINE": str(self.engine)}  # fmt: skip
        done = subprocess.run(["sh", self.out / "install.sh", *words], capture_output=True,
                              text=True, env=env, check=False)  # fmt: skip
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
    inside = read_pieces((place / "image.tar").read_bytes())
    blobs = {**IMAGE.layers, ID: IMAGE.config, oci.digest_of(IMAGE.manifest): IMAGE.manifest}
    for digest, data in blobs.items():
        assert inside[f"blobs/{digest.replace(':', '/')}"] == data
    assert {path.name for path in site.out.iterdir()} == {NAME, "allowed_signers", "install.sh"}


def test_a_release_that_is_there_is_written_anew(site):
    (site.write() / "image.tar").write_bytes(b"cut")
    assert (site.write() / "image.tar").stat().st_size > 1000


def test_nothing_is_left_of_a_release_that_could_not_be_written(site):
    layer = next(iter(IMAGE.layers))
    site.held.before = lambda request: (
        reply(403) if request.method == "GET" and layer in request.url else None
    )
    with pytest.raises(RegistryError):
        site.write()
    assert list(site.out.iterdir()) == []


def test_a_layer_that_was_changed_in_the_registry_is_not_carried(site):
    layer = next(iter(IMAGE.layers))
    site.held.blobs[layer] = b"x" * len(IMAGE.layers[layer])
    with pytest.raises(ReleaseError, match="is not what was signed"):
        site.write()
    assert list(site.out.iterdir()) == []


@pytest.mark.parametrize("name", ["config", "beside"])
def test_another_blob_that_was_changed_in_the_registry_is_not_carried(site, name):
    digest = {"config": ID, "beside": oci.digest_of(BILL)}[name]
    site.held.blobs[digest] += b" "
    with pytest.raises(RegistryError, match="is not what its digest says"):
        site.write()
    assert list(site.out.iterdir()) == []


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
    site.hold("../images/cpu.lock", release.LOCK)
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


@pytest.mark.parametrize("part", ["layer", "configuration"])
def test_an_image_that_was_changed_is_not_installed(site, part):
    data = {"layer": next(iter(IMAGE.layers.values())), "configuration": IMAGE.config}[part]
    swap(site.write() / "image.tar", data, data[:-1] + b"x")
    refuses(site, "is not what was signed")


def test_an_image_that_was_cut_off_is_not_installed(site):
    path = site.write() / "image.tar"
    path.write_bytes(path.read_bytes()[:2000])
    refuses(site, "is not what was signed")


def rewrite(place, *, of=IMAGE, add=(), change=None):
    """Write an archive as whoever carries a folder may: of another image, with more, changed."""
    sizes = {digest: len(data) for digest, data in of.layers.items()}
    whole = parcel.whole_archive(of.config, of.manifest, sizes, NAME)
    pieces = whole.pieces(0)
    data = b"".join(of.layers[piece.digest] if piece.digest else piece.data for piece in pieces)
    files = {**read_pieces(data), **(change or {})}
    (place / "image.tar").write_bytes(tar(*files.items(), *add))


def entry(of, *names):
    """An image as an archive's manifest.json lists it."""
    config = f"blobs/{oci.digest_of(of.config).replace(':', '/')}"
    layers = [f"blobs/{digest.replace(':', '/')}" for digest in of.layers]
    return {"Config": config, "RepoTags": list(names) or None, "Layers": layers}


def blobs(of):
    """The files of an image in an archive."""
    found = {**of.layers, oci.digest_of(of.config): of.config}
    return [(f"blobs/{digest.replace(':', '/')}", data) for digest, data in found.items()]


EVIL = image("evil" * 500)


def test_an_archive_that_was_written_again_with_the_same_in_it_is_installed(site):
    rewrite(site.write())
    assert site.install(site.signers)[0] == 0


def test_an_archive_of_another_image_is_not_installed(site):
    rewrite(site.write(), of=EVIL)
    refuses(site, "is not what was signed")


def test_an_image_beside_the_signed_one_is_not_installed(site):
    rewrite(site.write(), add=blobs(EVIL))
    refuses(site, "is not signed for")


@pytest.mark.parametrize(
    "entries",
    [
        [entry(IMAGE), entry(EVIL, "python:3.11")],
        [entry(EVIL)],
        [entry(IMAGE, "python:3.11")],
        [{**entry(IMAGE), "Layers": ["../../etc/passwd"]}],
    ],
)
@pytest.mark.parametrize("lines", [None, 1])
def test_an_archive_that_names_something_else_is_not_installed(site, entries, lines):
    listed = json.dumps(entries, indent=lines).encode()
    rewrite(site.write(), change={"manifest.json": listed})
    refuses(site, "manifest.json is not what was signed")


def test_an_archive_whose_index_names_another_image_is_not_installed(site):
    place = site.write()
    index = read_pieces((place / "image.tar").read_bytes())["index.json"]
    other = oci.digest_of(EVIL.manifest).encode()
    changed = index.replace(oci.digest_of(IMAGE.manifest).encode(), other)
    assert changed != index
    rewrite(place, change={"index.json": changed})
    refuses(site, "index.json is not what was signed")


@pytest.mark.parametrize("name", ["./manifest.json", "repositories", "x/layer.tar", "a b", "*"])
def test_a_file_that_is_no_part_of_an_image_is_not_installed(site, name):
    rewrite(site.write(), add=[(name, json.dumps([entry(EVIL)]))])
    refuses(site, "is not what was signed")


def test_a_file_that_is_in_an_archive_twice_is_not_installed(site):
    rewrite(site.write(), add=[("manifest.json", json.dumps([entry(EVIL)]))])
    refuses(site, "is not what was signed")


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
