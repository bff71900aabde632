"""Connect to an engine that answers, read its facts, and translate its errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import docker
import docker.errors
import requests

from stackyard.system.errors import EngineError

_Self = TypeVar("_Self", bound="Connection")


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the SDK's errors into EngineError, with the failed request and a hint."""
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
    """Return what to do where the engine has no space left; empty for other errors."""
    full = "no space left" in text.lower()
    return (
        "free space where the engine keeps its data (docker system df), then again" if full else ""
    )


def _no_engine_hint(why: str) -> str:
    """Return what to do where no engine answers, by the reason."""
    if "Permission denied" in why:
        return (
            "let this user use it: sudo usermod -aG docker $USER and log in again, or run rootless"
            " Docker (docs/howto/engine.md)"
        )
    if os.environ.get("DOCKER_HOST"):
        return "start the engine that DOCKER_HOST names, or unset it to use one on this machine"
    return (
        "start one (sudo systemctl start docker; as root on Debian and Ubuntu `invoke engine`"
        " installs and starts one), or point DOCKER_HOST at one"
    )


def _connect(address: str, seconds: int) -> Any:
    # Both ask for the engine's version first, so that anything else at the address fails here.
    if not address:
        return docker.from_env(timeout=seconds, max_pool_size=40)
    return docker.DockerClient(base_url=address, version="auto", timeout=seconds, max_pool_size=40)


class Connection:
    """Hold the connection that all parts of an engine use; see `Engine`."""

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
                else _no_engine_hint(str(error)),
            ) from error
        self._require_docker()

    def _require_docker(self) -> None:
        """Refuse podman, whose service for docker clients has no BuildKit.

        Raises:
            EngineError: the engine is podman.
        """
        with translated("asking for its version"):
            parts = self._client.version().get("Components") or ()
        podman = next((part for part in parts if part.get("Name") == "Podman Engine"), None)
        if podman:
            self.close()
            raise EngineError(
                f"the engine is podman {podman.get('Version', '')}, not Docker",
                why="images are built with BuildKit, which podman's service does not have",
                hint="install Docker (as root: invoke engine; as another user: rootless Docker,"
                " docs/howto/engine.md), and point DOCKER_HOST at it",
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """Return the engine's version."""
        with translated("asking for its version"):
            return str(self._client.version()["Version"])

    def answers(self) -> bool:
        """Return whether the engine answers a ping, the cheapest request."""
        with contextlib.suppress(
            docker.errors.DockerException, requests.exceptions.RequestException
        ):
            return bool(self._client.ping())
        return False

    def facts(self) -> dict[str, str]:
        """Return the facts about the engine and its machine that a report holds."""
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
        """Return all facts that the engine gives about itself (`docker info`)."""
        with translated("asking for its facts"):
            found: dict[str, object] = self._client.info()
            return found

    def data_folder(self) -> str:
        """Return the folder in which the engine keeps images, on its own machine."""
        with translated("asking for its data folder"):
            return str(self._client.info()["DockerRootDir"])
