"""What an engine is asked for when a container starts: without an engine."""

from types import SimpleNamespace

from stackyard.engine import ContainerSpec, Engine


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
