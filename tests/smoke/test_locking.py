"""Locks on a base that is pulled: made from what is found inside the image itself."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from stackyard.build import mirrors
from stackyard.build.locks import resolve
from stackyard.definitions import lock
from stackyard.definitions.project import load_project
from stackyard.system import cleanup
from stackyard.system.errors import StackyardError
from tests.leftovers import labelled

DEFINITIONS = load_project().definitions


@pytest.fixture(scope="module")
def base(built):
    """As ngc is declared, but with an image that is here."""
    return dataclasses.replace(
        DEFINITIONS.bases["ngc"], reference=built.tag, python="3.11", torch_index=""
    )


class Told:
    """In place of a warden: the runs that are to be undone if this process dies."""

    def __init__(self):
        self.runs = set()

    def send(self, line):
        _, kind, value = json.loads(line)
        self.runs |= {value} if kind == cleanup.RUN else set()

    def finish(self):
        pass


@pytest.fixture(scope="module")
def told():
    return Told()


@pytest.fixture(scope="module")
def found(engine, base, told):
    with cleanup.guarded(lambda: told):
        return resolve.inventory(engine, base, base.reference)


def test_the_inventory_is_read_from_the_image(found):
    provided = {
        s.name: s.version for s in lock.parse_lock(DEFINITIONS.locks["images/bases/cpu.lock"])
    }
    assert found["torch"] == provided["torch"]
    assert found["numpy"] == provided["numpy"]
    assert found["deepspeed"] == DEFINITIONS.wheels["deepspeed"].version


def test_a_lock_on_it_names_nothing_that_the_base_has(base, found):
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    stack = DEFINITIONS.stacks["accelerate"]
    files = resolve.lock_stack(stack, base, DEFINITIONS.fixes, found, caller)
    (path,) = files
    assert path == "images/accelerate/ngc.lock"
    locked = lock.versions(lock.parse_lock(files[path]))
    assert locked["accelerate"] == stack.packages["accelerate"]
    assert not set(locked) & set(found)
    assert all(item.hashes for item in lock.parse_lock(files[path]))


def test_a_pin_against_the_base_is_refused(base, found):
    caller = mirrors.collect(os.environ, distribution=base.distribution)
    stack = dataclasses.replace(DEFINITIONS.stacks["accelerate"], packages={"numpy": "1.26.4"})
    with pytest.raises(
        StackyardError, match=r"accelerate wants numpy 1\.26\.4, ngc provides"
    ) as no:
        resolve.lock_stack(stack, base, DEFINITIONS.fixes, found, caller)
    assert "what the base provides is never replaced" in no.value.why


def test_the_inventory_container_is_gone(engine, found, told):
    (run,) = told.runs
    assert labelled(engine, f"stackyard.run={run}") == []
