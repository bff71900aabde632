"""A registry in trouble is asked again as long as that may help, and no longer."""

from io import BytesIO

import pytest

from stackyard.errors import RegistryError
from stackyard.oci import described, parse_repository
from stackyard.registry import Patience, Registry


@pytest.fixture
def troubled(monkeypatch):
    """A registry that is never well; what it was asked, and how long the pauses were."""
    asked, pauses = [], []
    monkeypatch.setattr("stackyard.registry.time.sleep", pauses.append)

    def make(passing, **patience):
        def refuse(self, method, url, good, given):
            asked.append(method)
            error = RegistryError("no")
            error.passing = passing
            raise error

        monkeypatch.setattr(Registry, "_once", refuse)
        return Registry(parse_repository("r.example/team/it"), patience=Patience(**patience))

    return make, asked, pauses


def test_trouble_that_may_pass_is_tried_as_often_as_there_is_patience(troubled):
    make, asked, pauses = troubled
    with pytest.raises(RegistryError):
        make(True, tries=3, pause_seconds=2.0).tags()
    assert (asked, pauses) == (["GET"] * 3, [2.0, 4.0])


def test_a_refusal_is_not_tried_again(troubled):
    make, asked, pauses = troubled
    with pytest.raises(RegistryError):
        make(False).tags()
    assert (asked, pauses) == (["GET"], [])


def test_each_try_of_an_upload_begins_it_once(troubled, monkeypatch):
    make, asked, pauses = troubled
    registry = make(True, tries=3, pause_seconds=2.0)
    monkeypatch.setattr(registry, "has", lambda digest: False)
    blob = described("application/x", b"1")
    with pytest.raises(RegistryError):
        registry.upload(blob, lambda: BytesIO(b"1"), lambda count: None)
    assert (asked, pauses) == (["POST"] * 3, [2.0, 4.0])
