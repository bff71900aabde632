"""What an engine is asked for when a container starts: without an engine."""

from types import SimpleNamespace

import pytest

from stackyard.system.engine import ContainerSpec, Engine
from stackyard.system.errors import EngineError


def asked(**changed):
    """The arguments that the SDK is given."""
    found = {}

    def create(image, command, **given):
        found.update(given)
        return SimpleNamespace(id="c", start=lambda: None)

    engine = Engine.__new__(Engine)
    engine._client = SimpleNamespace(containers=SimpleNamespace(create=create))
    given = {
        "name": "n", "image": "i", "hostname": "h", "network": "none", "env": {}, "labels": {},
        "volumes": {}, "capabilities": (), "tmpfs": {}, "shm_bytes": 1, "command": None,
    }  # fmt: skip
    engine.start(ContainerSpec(**{**given, **changed}))
    return found


def test_one_file_of_the_host_may_have_several_places():
    """A hub's cache keeps files of the same content once; one tree may hold two packages."""
    found = asked(binds={"/data/a": "/host/blob", "/data/b": "/host/blob"}, volumes={"v": "/v"})
    assert found["volumes"] == ["v:/v:rw", "/host/blob:/data/a:ro", "/host/blob:/data/b:ro"]


@pytest.mark.parametrize(
    ("events", "held", "why"),
    [
        ([{"status": "Pulling"}], True, ""),
        ([{"status": "Pulling"}, {"error": "no space left on device"}], False, "no space left"),
        ([{"error": "unexpected EOF"}], True, "unexpected EOF"),
        ([], False, "the engine does not hold it afterwards"),
    ],
)
def test_what_goes_wrong_while_an_image_arrives_is_told(monkeypatch, events, held, why):
    asked = []
    engine = Engine.__new__(Engine)
    engine._api = SimpleNamespace(pull=lambda name, **how: asked.append((name, how)) or events)
    found = SimpleNamespace(id="i") if held else None
    monkeypatch.setattr(engine, "image", lambda reference: found)
    digest = "sha256:" + "1" * 64
    if not why:
        assert engine.pull(f"registry.example:5000/nv/torch@{digest}") is found
        assert asked[0][0] == "registry.example:5000/nv/torch"
        assert asked[0][1]["tag"] == digest
        return
    with pytest.raises(EngineError, match="could not be pulled") as caught:
        engine.pull("registry.example/torch")
    assert why in caught.value.why
    assert ("free space" in caught.value.hint) is ("space" in why)
    assert asked[0][1]["tag"] == "latest"
