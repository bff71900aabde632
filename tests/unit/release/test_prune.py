"""Which releases are old: by stack and base, and never what is in use."""

from types import SimpleNamespace

import pytest

from stackyard.release.prune import broken_off, old_releases, prune
from stackyard.system.engine import HeldImage
from stackyard.system.errors import EngineError

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


def test_the_one_that_somebody_went_back_to_stays():
    back = image(1, "r.example:5000/n:fairseq-0.12.2-cpu-r1", "stackyard/fairseq:cpu")
    assert gone([back, release(2), release(3)], keep=1) == ["id2"]
    other = image(1, "r.example:5000/n:fairseq-0.12.2-cpu-r1", "stackyard/fairseq:cpu-mine")
    assert gone([other, release(2), release(3)], keep=1) == ["id1", "id2"]


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


class Engine:
    """Holds four releases, and refuses to remove some of them."""

    def __init__(self, *refused, silent=False):
        self.refused, self.silent, self.asked = refused, silent, []

    def held_images(self):
        return [release(n) for n in (1, 2, 3, 4)]

    def used_images(self):
        return set()

    def remove_image(self, name):
        self.asked.append(name)
        if any(name.endswith(f"-r{number}") for number in self.refused):
            raise EngineError(f"the engine refused while removing {name}", why="it is in use")

    def answers(self):
        return not self.silent


def pruned(engine, **changes):
    """What is gone from a host, and what is told about it."""
    host = SimpleNamespace(host=SimpleNamespace(name="study"), engine=engine)
    found, failed = prune({"study": host}, 1, **{"really": True, **changes})
    told = failed.get("study", EngineError(""))
    return sorted(old.id for old in found.get("study", ())), told.what


def test_one_refusal_of_an_engine_hides_nothing_and_keeps_no_other_image():
    engine = Engine(2)
    assert pruned(engine, really=False) == (["id1", "id2", "id3"], "") and engine.asked == []
    assert pruned(engine) == (
        ["id1", "id3"],
        "study: the engine refused while removing r.example:5000/n:fairseq-0.12.2-cpu-r2"
        " (it is in use)",
    )
    assert "r/n@sha256:2" not in engine.asked


def test_all_refusals_of_an_engine_are_told_and_nothing_else_where_nothing_is_gone():
    ids, said = pruned(Engine(1, 2, 3))
    assert ids == [] and all(f"-r{number} (it is in use)" in said for number in (1, 2, 3))
    host = SimpleNamespace(host=SimpleNamespace(name="study"), engine=Engine(1, 2, 3))
    assert prune({"study": host}, 1, really=True)[0] == {}
    # An engine that has gone is asked for no other image.
    engine = Engine(1, 2, 3, silent=True)
    pruned(engine)
    assert len(engine.asked) == 1
