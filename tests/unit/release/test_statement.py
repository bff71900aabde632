"""Releases: names that do not collide, and no statement without its proof."""

import dataclasses
import json
import re
import subprocess

import pytest

from stackyard.build import catalog
from stackyard.build.source.naming import SOURCES_LABEL, Source, sources_text
from stackyard.release import statement as release
from stackyard.release.candidate import base_release, fix_proofs, revision_of
from stackyard.release.statement import Subject
from stackyard.scan import oci
from stackyard.system.errors import ReleaseError
from stackyard.system.image import ImageInfo
from tests.unit import samples

SUBJECT = Subject(stack="fairseq", version="0.12.2", base_name="ngc", base_release="ngc25.12")
ID = "sha256:" + "1" * 64
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def image(**labels):
    return ImageInfo(id=ID, tags=(), labels=labels, env=(), size=1, layers=())


def test_tags_say_stack_version_base_and_revision():
    assert release.revision_tag(SUBJECT, 3) == "fairseq-0.12.2-ngc25.12-r3"
    assert SUBJECT.latest == "fairseq-ngc-latest"
    odd = Subject(stack="s", version="1.0+cpu", base_name="cpu", base_release="cpu")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", release.revision_tag(odd, 1))


@pytest.mark.parametrize(
    ("name", "reference", "found"),
    [
        ("ngc", "nvcr.io/nvidia/pytorch:25.12-py3", "ngc25.12"),
        ("ngc-25-01", "nvcr.io/nvidia/pytorch:25.01-py3", "ngc25.01"),
        ("cpu", "", "cpu"),
        ("nvidia-host", "", "nvidia-host"),
    ],
)
def test_a_base_is_named_with_its_version(name, reference, found):
    assert base_release(name, reference) == found


def claimed(number, digest):
    return release.claim_tag(SUBJECT, number, digest)


def test_revisions_are_read_from_tags_of_this_stack_and_base_only():
    tags = ["fairseq-0.12.2-ngc25.12-r1", claimed(1, DIGEST), claimed(2, OTHER), "sha256-aa",
            "fairseq-0.12.2-cpu-r7", "megatron-0.12.2-ngc25.12-r9", "fairseq-0.12.2-ngc25.12-r0",
            "fairseq-0.12.2-ngc25.12-r02", "xfairseq-0.12.2-ngc25.12-r5"]  # fmt: skip
    assert release.revisions(SUBJECT, tags) == {1: {"a" * 12}, 2: {"b" * 12}}


@pytest.mark.parametrize(
    ("tags", "number"),
    [
        ([], 1),
        ([claimed(1, DIGEST)], 1),  # an earlier try of this image
        ([claimed(1, OTHER)], 2),
        ([claimed(1, OTHER), claimed(1, DIGEST)], 2),  # both saw each other: nobody's
        (["fairseq-0.12.2-ngc25.12-r4"], 5),  # by hand, without a claim
    ],
)
def test_a_number_is_taken_only_by_whoever_claims_it_alone(tags, number):
    assert release.next_revision(release.revisions(SUBJECT, tags), DIGEST) == number


def report(**changes):
    return {"kind": "smoke", "outcome": "passed", "started": "2026-01-01", "image": {"id": ID},
            "checks": [{"name": "mesh", "outcome": "passed"}], **changes}  # fmt: skip


def test_the_proof_is_the_newest_passed_smoke_of_this_very_image():
    new = report(started="2026-02-02")
    assert release.proof_of([report(), new], ID) is new
    on_cpus = report(started="2026-03-03", ranks="cpu")
    assert release.proof_of([report(), new, on_cpus], ID) is new
    assert release.proof_of([on_cpus], ID) is on_cpus


@pytest.mark.parametrize(
    "reports",
    [[], [report(outcome="failed")], [report(image={"id": DIGEST})], [report(kind="build")],
     [report(image="x")]],
)  # fmt: skip
def test_what_is_no_proof_is_refused_with_what_there_is(reports):
    assert release.proof_of(reports, ID) is None
    with pytest.raises(ReleaseError, match="has passed no smoke") as caught:
        release.require_proof(None, [r for r in reports if isinstance(r["image"], dict)], "x", ID)
    assert "--unproven" in caught.value.hint


def test_an_image_of_a_host_s_own_files_is_never_published():
    with pytest.raises(ReleaseError, match="never published"):
        release.require_publishable(image(**{"stackyard.publish": "never"}), "x")
    release.require_publishable(image(), "x")


def made(proof=None, **changes):
    layers = [{"digest": DIGEST, "diff_id": OTHER, "size": 5, "unpacked": 9}]
    given = {
        "name": "n-r1", "repository": "r.example/n", "image": oci.described(oci.MANIFEST, b"m"),
        "image_id": ID, "layers": layers, "labels": {"stackyard.fixes": "a,b"}, "proof": proof,
        "artifacts": [], "created": "2026-01-01T00:00:00+00:00", "builder": {},
    }  # fmt: skip
    return release.statement(SUBJECT, **{**given, **changes})


def test_a_statement_is_read_as_it_was_made_and_says_whether_it_is_proven():
    found = release.read_statement(made(report()))
    assert (found.name, found.stack, found.proven, found.size) == ("n-r1", "fairseq", True, 5)
    assert found.value["proof"]["checks"] == ["mesh"]
    assert found.value["image"]["fixes"] == ["a", "b"]
    assert release.read_statement(made()).proven is False


def changed(**changes):
    value = json.loads(made())
    value["image"].update(changes.pop("image", {}))
    return json.dumps({**value, **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", changed(schema="stackyard.release/9"), changed(image={"digest": "x"}),
     changed(image={"layers": [{}]}), changed(image={"layers": 3}),
     changed(image={"layers": [{"digest": DIGEST, "diff_id": ID, "size": "1", "unpacked": 1}]})],
)  # fmt: skip
def test_what_is_no_statement_is_refused(data):
    with pytest.raises(ReleaseError):
        release.read_statement(data)


def test_provenance_names_its_base_its_locks_the_source_and_a_builder():
    labels = {"stackyard.base.digest": OTHER, "stackyard.recipe": "r"}
    made = release.provenance(
        SUBJECT, labels=labels, locks={"a.lock": ID},
        source={"commit": "c" * 40, "dirty": "no"}, builder={"stackyard": "0.1.0"},
        place="https://git.example/yard",
    )  # fmt: skip
    found = made["buildDefinition"]["resolvedDependencies"]
    assert [m["name"] for m in found] == ["base ngc", "a.lock", "source"]
    assert found[2]["uri"] == "git+https://git.example/yard"
    assert found[2]["digest"] == {"gitCommit": "c" * 40}
    builder = made["runDetails"]["builder"]
    assert builder["id"].startswith("https://") and builder["version"] == {"stackyard": "0.1.0"}
    assert made["buildDefinition"]["internalParameters"]["fixes"] == []


@pytest.mark.parametrize(
    ("tags", "later"),
    [
        ([], ""),
        (["a-1.0-cpu-r3"], ""),
        (["a-1.0-cpu-r2", "a-1.0-cpu-r12", "a-1.0-cpu-r9"], "a-1.0-cpu-r12"),
        (["a-1.1-cpu-r9", "b-1.0-cpu-r9", "a-1.0-cpu-r9-0123456789ab", "a-cpu-latest"], ""),
    ],
)
def test_a_later_revision_is_one_of_the_same_stack_version_and_base(tags, later):
    assert release.later_revision("a-1.0-cpu-r3", tags) == later
    assert release.later_revision("a-cpu-latest", tags) == ""


OWN = Source(
    package="fairseq", origin="https://host.example/me/fairseq.git", revision="", commit="c" * 40,
    dirty=False, digest="sha256:" + "d" * 64, submodules=(), version="", files=1,
)  # fmt: skip


def of(*sources):
    return {SOURCES_LABEL: sources_text(sources), "stackyard.despite": "a-fix"}


def said(labels):
    described = oci.described(oci.CONFIG, b"x")
    text = release.statement(
        SUBJECT, name="n", repository="r", image=described, image_id=ID, layers=[], labels=labels,
        proof=None, artifacts=[], created="", builder={},
    )  # fmt: skip
    made = release.provenance(SUBJECT, labels=labels, locks={}, source={}, builder={})
    return json.loads(text), json.loads(json.dumps(made))["buildDefinition"]


def test_a_release_says_which_source_it_is_of():
    statement, made = said(of(OWN))
    (found,) = statement["image"]["sources"]
    assert (found["commit"], found["dirty"], found["digest"]) == ("c" * 40, False, OWN.digest)
    assert statement["image"]["despite"] == ["a-fix"]
    assert made["internalParameters"]["sources"] == [found]
    (material,) = [m for m in made["resolvedDependencies"] if m["name"] == "source of fairseq"]
    assert material["uri"] == "git+https://host.example/me/fairseq.git"
    assert material["digest"] == {"sha256": "d" * 64, "gitCommit": "c" * 40}


def test_changes_that_are_in_no_commit_are_not_said_to_be_the_commit():
    _, made = said(of(dataclasses.replace(OWN, dirty=True)))
    (material,) = [m for m in made["resolvedDependencies"] if m["name"] == "source of fairseq"]
    assert material["digest"] == {"sha256": "d" * 64}


def test_a_release_of_a_stack_says_nothing_of_sources():
    statement, made = said({})
    assert "sources" not in statement["image"]
    assert "sources" not in made["internalParameters"]


@pytest.mark.parametrize("changes", [{"dirty": True}, {"commit": ""}])
def test_source_that_is_in_no_commit_is_refused_unless_it_is_said(changes):
    found = image(**of(OWN, dataclasses.replace(OWN, package="fairscale", **changes)))
    with pytest.raises(ReleaseError, match="source of fairscale that is in no commit"):
        release.require_clean_sources(found, "mine:1", unproven=False)
    release.require_clean_sources(found, "mine:1", unproven=True)
    release.require_clean_sources(image(**of(OWN)), "mine:1", unproven=False)
    release.require_clean_sources(image(), "mine:1", unproven=False)


def test_users_own_source_is_nobodys_latest_and_takes_no_stacks_name():
    own = dataclasses.replace(SUBJECT, version="src-cccc", own=True)
    assert own.latest == "fairseq-ngc-src-latest"
    assert release.revision_tag(own, 1) == "fairseq-src-cccc-ngc25.12-r1"

    def read(sources):
        return release.Release(
            name="n", stack="fairseq", base="ngc", version="src-cccc", created="", proven=True,
            digest=DIGEST, image_id=ID, layers=(), value={"image": {"sources": sources}},
        )  # fmt: skip

    assert read([{}]).local_name == "stackyard/fairseq:ngc-src-cccc"
    assert read([]).local_name == "stackyard/fairseq:ngc"


@pytest.mark.parametrize(
    ("value", "there"),
    [
        ({"outcome": "passed", "image": {"id": "sha256:1"}}, True),
        ({"outcome": "passed", "image": {"id": "sha256:2"}}, False),
        ({"outcome": "failed", "image": {"id": "sha256:1"}}, False),
        ({"outcome": "passed"}, False),
        ([], False),
        (None, False),
    ],
)
def test_the_proofs_of_fixes_lie_beside_the_image_that_they_are_of(tmp_path, value, there):
    resolved = catalog.resolve(samples.definitions(), "toy", "cpu")
    path = tmp_path / "reports" / "toy" / "cpu" / "prove.json"
    path.parent.mkdir(parents=True)
    if value is not None:
        path.write_text(json.dumps(value))
    found = fix_proofs(tmp_path, resolved, "sha256:1")
    assert found == (json.dumps(value).encode() if there else None)


def test_a_manifest_has_the_standard_annotations_that_are_known():
    made = release.Origin(
        revision="c" * 40, source="https://git.example/yard", base_name="ngc:25.12", licences="MIT"
    )
    labels = {"stackyard.base.digest": OTHER}
    found = release.image_annotations(SUBJECT, image(**labels), "2026", made)
    prefix = "org.opencontainers.image."
    assert {key.removeprefix(prefix): v for key, v in found.items() if prefix in key} == {
        "title": f"stackyard/{SUBJECT.stack}", "version": SUBJECT.version, "created": "2026",
        "revision": "c" * 40, "source": "https://git.example/yard", "licenses": "MIT",
        "base.name": "ngc:25.12", "base.digest": OTHER,
    }  # fmt: skip
    few = release.image_annotations(SUBJECT, image(), "2026", release.Origin())
    assert not {f"{prefix}{key}" for key in ("revision", "source", "licenses", "base.name")} & {
        *few
    }


@pytest.mark.usefixtures("allow_processes")
def test_a_revision_is_the_last_commit_of_what_an_image_is_built_from(tmp_path):
    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
        command = ["git", *name, "-C", tmp_path, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(name, text):
        (tmp_path / name).write_text(text)
        git("add", name)
        git("commit", "-qm", text)
        return git("rev-parse", "HEAD")

    assert revision_of(tmp_path, ["a", "b"]) == ""
    git("init", "-q")
    first = commit("a", "1")
    commit("other", "2")
    assert revision_of(tmp_path, ["a", "b"]) == first
    second = commit("b", "3")
    assert revision_of(tmp_path, ["a", "b"]) == second
    (tmp_path / "a").write_text("changed")
    assert revision_of(tmp_path, ["a", "b"]) == ""
    assert revision_of(tmp_path, ["b"]) == second
