"""Which releases are old: by stack and base, and never what is in use."""

import pytest

from stackyard.release.prune import broken_off, old_releases
from stackyard.system.engine import HeldImage

LABELS = {"stackyard.stack": "fairseq", "stackyard.base": "cpu"}


def image(number, *tags, created=0, labels=LABELS):
    return HeldImage(
        id=f"id{number}", tags=tags, digests=(f"r/n@sha256:{number}",), labels=labels,
        created=created or number, size=10,
    )  # fmt: skip


def release(number, prefix="fairseq-0.12.2-cpu", place="r.example:5000/n", **changes):
    return image(number, f"{place}:{prefix}-r{number}", **changes)


def gone(images, used=(), keep=2):
    return sorted(old.id for old in old_releases(images, used, keep))


def test_the_newest_stay():
    assert gone([release(n) for n in (1, 2, 3, 4)]) == ["id1", "id2"]
    assert gone([release(n) for n in (1, 2)]) == []


def test_all_names_of_an_old_one_go():
    (old,) = old_releases([release(1), release(2)], (), 1)
    assert old.names == ("r.example:5000/n:fairseq-0.12.2-cpu-r1", "r/n@sha256:1")


def test_what_a_container_uses_stays():
    assert gone([release(n) for n in (1, 2, 3)], used={"id1"}, keep=1) == ["id2"]


def test_a_later_version_begins_again_at_one():
    new = image(9, "r.example:5000/n:fairseq-0.13-cpu-r1")
    assert gone([release(7), release(8), new], keep=1) == ["id7", "id8"]


@pytest.mark.parametrize(
    "other",
    [
        release(5, prefix="megatron-1-cpu", labels={**LABELS, "stackyard.stack": "megatron"}),
        release(5, labels={**LABELS, "stackyard.base": "ngc"}),
        release(5, place="other.example/n"),
    ],
)
def test_other_stacks_bases_and_places_count_for_themselves(other):
    assert gone([release(1), release(2), other], keep=1) == ["id1"]


@pytest.mark.parametrize(
    "other",
    [image(1, "stackyard/fairseq:cpu"), image(1, "debian:12", labels={}), image(1),
     image(1, "r.example/n:fairseq-0.12.2-cpu-r1-0123456789ab")],
)  # fmt: skip
def test_what_is_no_release_stays(other):
    assert gone([other, release(2), release(3)], keep=1) == ["id2"]


def test_what_a_pull_left_half_done_goes_unless_somebody_uses_it():
    labels = {"stackyard.partial": "1"}
    images = [image(1, labels=labels), image(2, labels=labels), image(3, "a:b", labels=labels),
              image(4)]  # fmt: skip
    assert [old.id for old in broken_off(images, {"id2"})] == ["id1"]
