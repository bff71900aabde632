"""The tutorial of publishing and pulling, typed as it stands, with a registry and two hosts."""

from __future__ import annotations

import shlex

import pytest

from tests import tutorials

PAGE = "publish-pull.md"
PLACE = "registry.example:5000/team/stackyard"


# Fast tests hold its options, and test_releases shows the same way with accelerate's image.
@pytest.mark.repeat
def test_the_tutorial_of_publishing_is_what_happens(site, proven):
    image = proven("fairseq")  # by the tutorial's first command, which smokes show to pass
    first, *others = tutorials.of_engine(PAGE)
    assert first.words == "invoke smoke fairseq --gpus 0"
    said = {}
    for one in others:
        words = shlex.split(one.words.replace(PLACE, site.place))[1:]
        if words[0] == "publish":
            words += ["--key", str(site.key)]
        elif words[0] in ("releases", "pull"):
            words += ["--signers", str(site.signers)]
        words = [site.yard.inventory if word == "hosts.yml" else word for word in words]
        done = site.invoke(*words)
        said[words[0]] = done.stdout + done.stderr
        assert tutorials.missing(one.shown, said[words[0]]) == [], one.words
    assert list(said) == ["publish", "releases", "pull", "prune"]
    (name,) = [tag for tag in site.tags() if tag.rpartition("-r")[2].isdigit()]
    assert f"{site.place}:{name} is released" in said["publish"]
    for host in site.yard.hosts.values():
        assert site.images(host)[f"{site.place}:{name}"] == image
