"""The recipe beside a release: whole, the same each time, and nothing that a shell would run."""

import json
from dataclasses import replace

import pytest

from stackyard.build.recipe import BaseRecipe
from stackyard.release.recipe_record import Record, read_record, record_text
from stackyard.system.errors import ReleaseError

BASE = BaseRecipe(
    platform="linux/amd64", suite="bookworm", packages=("libc6", "libstdc++6"),
    exclude=("/usr/share/doc/*",), steps=("g++",), texts=("fortunes",),
)  # fmt: skip
RECORD = Record(
    stack="toy", base_name="cpu", distribution="debian/bookworm", base=BASE, base_key="k",
    dockerfile="images/toy/cpu.Dockerfile",
    context={
        "images/toy/cpu.Dockerfile": "FROM x\n",
        "images/toy/cpu.lock": "alpha==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n",
        "images/wheels/beta.lock": "beta==2.0\n",
    },
    builder={"stackyard": "0.1.0", "uv": "0.13.9", "commit": "0123456789abcdef"},
)  # fmt: skip


def test_what_was_written_is_read_and_always_the_same_bytes():
    assert read_record(record_text(RECORD)) == RECORD
    assert record_text(read_record(record_text(RECORD))) == record_text(RECORD)


def test_the_packages_of_all_locks_are_known():
    assert RECORD.pins == [("alpha", "1.0"), ("beta", "2.0")]


def test_who_built_it_is_said_with_the_commit():
    assert RECORD.built_by == "Stackyard 0.1.0, commit 0123456789ab, uv 0.13.9"
    assert replace(RECORD, builder={"stackyard": "1"}).built_by == "Stackyard 1, uv unknown"


def test_a_plan_has_its_context_and_names_of_the_callers():
    plan = RECORD.plan(tag="a:1", base_image="b:1", packages="c:1")
    assert (plan.tag, plan.base_image, plan.packages) == ("a:1", "b:1", "c:1")
    assert (plan.dockerfile, plan.context, dict(plan.labels)) == (
        RECORD.dockerfile, RECORD.context, {},
    )  # fmt: skip


def changed(**changes):
    return record_text(replace(RECORD, **changes))


@pytest.mark.parametrize(
    "data",
    [
        changed(base=replace(BASE, packages=("tini", "--hook-dir=/tmp"))),
        changed(base=replace(BASE, packages=("a,b",))),
        changed(base=replace(BASE, suite="bookworm; id")),
        changed(base=replace(BASE, exclude=("/x\npre-invoke=id",))),
        changed(base=replace(BASE, exclude=("relative",))),
        changed(base=replace(BASE, platform="linux/amd64 x")),
        changed(dockerfile="images/other"),
        b"[]",
        b"{",
        b'{"schema": "stackyard.recipe/1"}',
        json.dumps({**json.loads(record_text(RECORD)), "context": 1}).encode(),
    ],
)
def test_what_is_no_recipe_is_refused(data):
    with pytest.raises(ReleaseError, match="recipe cannot be read"):
        read_record(data)


def test_a_recipe_of_another_form_says_so():
    with pytest.raises(ReleaseError, match=r"of another form: stackyard\.recipe/2"):
        read_record(b'{"schema": "stackyard.recipe/2"}')
