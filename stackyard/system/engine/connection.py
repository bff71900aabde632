"""A connection to an engine that answers: what it is, and its errors in our words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import docker
import docker.errors
import requests

from stackyard.system.errors import EngineError

_Self = TypeVar("_Self", bound="Connection")


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Have the SDK's errors say what the engine was asked for, and what to do."""
    try:
        yield
    except docker.errors.APIError as error:
        text = str(error.explanation or error)
        hint = ""
        if "has active endpoints" in text:
            hint = (
                "nothing is attached to that network any more, but the engine miscounts (a fault"
                " of some versions): it goes when the engine is restarted, and harms nobody"
            )
        raise EngineError(
            f"the engine refused while {doing}", why=text, hint=hint or space_hint(text)
        ) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(f"no answer from the engine while {doing}", why=str(error)) from error


def space_hint(text: str) -> str:
    """Say what to do where the engine has no room left; empty where that is not it."""
    full = "no space left" in text.lower()
    return (
        "free space where the engine keeps its data (docker system df), then again" if full else ""
    )


def _connect(address: str, seconds: int) -> Any:
    # The version is asked for first, in both: what answers is an engine.
    if not address:
        return docker.from_env(timeout=seconds, max_pool_size=40)
    return docker.DockerClient(base_url=address, version="auto", timeout=seconds, max_pool_size=40)


class Connection:
    """What every part of an engine talks through; see `Engine`."""

    def __init__(self, socket: str = "", *, seconds: int = 120) -> None:
        self.address = f"unix://{socket}" if socket else ""
        try:
            self._client = _connect(self.address, seconds)
            # The low-level client is only partly annotated.
            self._api: Any = self._client.api
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise EngineError(
                "no container engine answers",
                why=str(error),
                hint=f"see that it runs, and that this user may use it ({socket})"
                if socket
                else "start one (`invoke engine` installs and starts one on Debian and Ubuntu"
                " as root), or point DOCKER_HOST at one",
            ) from error

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """The engine's version."""
        with translated("asking for its version"):
            return str(self._client.version()["Version"])

    def answers(self) -> bool:
        """Whether the engine is there, asked in a way that takes no time."""
        with contextlib.suppress(
            docker.errors.DockerException, requests.exceptions.RequestException
        ):
            return bool(self._client.ping())
        return False

    def facts(self) -> dict[str, str]:
        """What a report says about the engine and its machine."""
        with translated("asking for its facts"):
            info = self._client.info()
        return {
            "engine": self.version,
            "kernel": str(info["KernelVersion"]),
            "os": str(info["OperatingSystem"]),
            "cpus": str(info["NCPU"]),
            "memory_gib": f"{info['MemTotal'] / 2**30:.1f}",
            "storage_driver": str(info["Driver"]),
            "architecture": str(info["Architecture"]),
        }

    def info(self) -> Mapping[str, object]:
        """Everything that the engine says about itself (`docker info`)."""
        with translated("asking for its facts"):
            found: dict[str, object] = self._client.info()
            return found

    def data_folder(self) -> str:
        """Where the engine keeps images, on its own machine."""
        with translated("asking for its data folder"):
            return str(self._client.info()["DockerRootDir"])
