"""The only importer of the docker SDK: images, containers, networks, volumes, exec.

Owns the translation between docker's words and errors and ours. Everything made here carries
labels, and is found again by them. It must not build images (the SDK cannot drive BuildKit;
`build.buildkit` does) or know what a stack is.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.utils
import requests
from docker.types import DeviceRequest, Mount, Ulimit

from stackyard.system import cleanup
from stackyard.system.errors import EngineError
from stackyard.system.image import ImageInfo
from stackyard.system.stream import Conversation, talk

RUN_LABEL = "stackyard.run"
NODE_LABEL = "stackyard.node"
OWNER_LABEL = "stackyard.owner"
CONTROL = {"STACKYARD_CONTROL": "1"}


# torch's c10d asks for the name of 127.0.0.1 as an IPv6 socket has it. The engine's resolver has
# none and asks the machine's: without a way out that takes 10 s to fail, twice for each launch.
_MAPPED = {"localhost4": "::ffff:127.0.0.1"}


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container to start, with the least it needs.

    Attributes:
        network: a network by name, `host`, or `none` (but for itself).
        hosts: addresses by name, beyond what the network itself resolves.
        devices: device nodes of the host.
        requests: devices by driver (`cdi`, `nvidia`) and the ids these understand.
        binds: read-only files of the host, by their place in the container.
        ipc: the IPC namespace: `private`, `shareable`, `host` or `container:ID`.
        limits: resource limits by name; -1 is none.
        mounts: folders of the host, or volumes, that may be written to, by their place.
        fleeting: the engine removes it when its main process ends.
        user: whom its processes are, `UID:GID`; the image's own unless given.
    """

    name: str
    image: str
    hostname: str
    network: str
    env: Mapping[str, str]
    labels: Mapping[str, str]
    volumes: Mapping[str, str]
    capabilities: tuple[str, ...]
    tmpfs: Mapping[str, str]
    shm_bytes: int
    command: tuple[str, ...] | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    requests: tuple[tuple[str, tuple[str, ...]], ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    ipc: str = "private"
    limits: Mapping[str, int] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    fleeting: bool = False
    user: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldImage:
    """An image in an engine's list; `created` in seconds since the epoch."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    labels: Mapping[str, str]
    created: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ContainerInfo:
    """A container that the engine has. `state` is the engine's word: `running`, `exited`, ..."""

    id: str
    name: str
    image: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """A finished exec: exit code and output (both streams, in order)."""

    code: int
    output: str


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
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
            f"the engine refused while {doing}", why=text, hint=hint or _space_hint(text)
        ) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(f"no answer from the engine while {doing}", why=str(error)) from error


def _space_hint(text: str) -> str:
    full = "no space left" in text.lower()
    return (
        "free space where the engine keeps its data (docker system df), then again" if full else ""
    )


def _connect(address: str, seconds: int) -> Any:
    # The version is asked for first, in both: what answers is an engine.
    if not address:
        return docker.from_env(timeout=seconds, max_pool_size=40)
    return docker.DockerClient(base_url=address, version="auto", timeout=seconds, max_pool_size=40)


def _request(driver: str, ids: Sequence[str]) -> DeviceRequest:
    capabilities = [] if driver == "cdi" else [["gpu"]]
    return DeviceRequest(driver=driver, device_ids=list(ids), capabilities=capabilities)


class Engine:
    """A connection to a container engine that answers.

    Args:
        socket: path of its socket; unless given, DOCKER_HOST or the default one.
        seconds: how long it may take for an answer.

    Raises:
        EngineError: nothing answers there.
    """

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

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """The engine's version."""
        with _translated("asking for its version"):
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
        with _translated("asking for its facts"):
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
        with _translated("asking for its facts"):
            found: dict[str, object] = self._client.info()
            return found

    def data_folder(self) -> str:
        """Where the engine keeps images, on its own machine."""
        with _translated("asking for its data folder"):
            return str(self._client.info()["DockerRootDir"])

    def image(self, reference: str) -> ImageInfo | None:
        """The image of that name or id; None when the engine does not hold it."""
        with _translated(f"looking for image {reference}"):
            try:
                found = self._api.inspect_image(reference)
            except docker.errors.ImageNotFound:
                return None
        config = found.get("Config") or {}
        return ImageInfo(
            id=found["Id"],
            tags=tuple(found.get("RepoTags") or ()),
            labels=config.get("Labels") or {},
            env=tuple(config.get("Env") or ()),
            size=int(found["Size"]),
            layers=tuple(found["RootFS"].get("Layers") or ()),
            digests=tuple(found.get("RepoDigests") or ()),
        )

    def held_layers(self, *, but: str) -> list[tuple[str, ...]]:
        """The layers (diff_ids, from the bottom) of every image without the label `but`."""
        ids = {image.id for image in self.held_images() if but not in image.labels}
        found = [self.image(image) for image in ids]
        return [info.layers for info in found if info is not None]

    def held_images(self) -> list[HeldImage]:
        """Every image that is not only the parent of others."""
        with _translated("listing its images"):
            found = self._api.images()
        return [
            HeldImage(
                id=entry["Id"],
                tags=tuple(tag for tag in entry.get("RepoTags") or () if "<none>" not in tag),
                digests=tuple(d for d in entry.get("RepoDigests") or () if "<none>" not in d),
                labels=entry.get("Labels") or {},
                created=int(entry["Created"]),
                size=int(entry["Size"]),
            )
            for entry in found
        ]

    def used_images(self) -> set[str]:
        """Ids of images that a container was made from, whatever its state."""
        with _translated("listing its containers"):
            return {str(entry["ImageID"]) for entry in self._api.containers(all=True)}

    def remove_image(self, name: str) -> None:
        """Take a name from an image; with the last one the image goes. Gone already is fine."""
        with _translated(f"removing {name}"), contextlib.suppress(docker.errors.NotFound):
            self._api.remove_image(name)

    def history(self, reference: str) -> list[dict[str, Any]]:
        """The image's history, newest first: CreatedBy, Size and so on, as the engine says."""
        with _translated(f"reading the history of {reference}"):
            return list(self._api.history(reference))

    def save(self, reference: str, path: Path) -> None:
        """Write an image as a tar archive (as `docker save` does)."""
        with _translated(f"saving {reference}"), path.open("wb") as file:
            for chunk in self._api.get_image(reference):
                file.write(chunk)

    def saved(self, reference: str) -> Iterator[bytes]:
        """An image as such an archive, in pieces as they come."""
        with _translated(f"saving {reference}"):
            yield from self._api.get_image(reference)

    def import_tar(self, path: Path, reference: str, changes: Sequence[str]) -> str:
        """Make an image out of a root file system; returns its id."""
        repository, _, tag = reference.rpartition(":")
        with _translated(f"importing {reference}"):
            self._api.import_image(str(path), repository=repository, tag=tag, changes=list(changes))
        found = self.image(reference)
        if found is None:
            raise EngineError(f"the engine took {reference} in but does not hold it")
        return found.id

    def tag(self, reference: str, new: str) -> None:
        """Give an image another name."""
        repository, _, tag = new.rpartition(":")
        with _translated(f"naming {reference} {new}"):
            self._api.tag(reference, repository, tag)

    def pull(self, reference: str) -> ImageInfo:
        """Pull an image, by tag or digest.

        Raises:
            EngineError: the registry cannot be reached or refuses, or the image does not arrive.
        """
        repository, tag = docker.utils.parse_repository_tag(reference)
        with _translated(f"pulling {reference}"):
            events = self._api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            # Errors after the first response arrive as events, not exceptions.
            failed = [str(event["error"]) for event in events if "error" in event]
        found = self.image(reference)
        if failed or found is None:
            why = failed[-1] if failed else "the engine does not hold it afterwards"
            raise EngineError(f"{reference} could not be pulled", why=why, hint=_space_hint(why))
        return found

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool) -> None:
        """A bridge network; an internal one has no way out of the machine."""
        with _translated(f"making network {name}"):
            self._client.networks.create(
                name, driver="bridge", internal=internal, labels=dict(labels), check_duplicate=True
            )

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """A volume that several containers of a run share."""
        with _translated(f"making volume {name}"):
            self._client.volumes.create(name, labels=dict(labels))

    def start(self, spec: ContainerSpec) -> str:
        """Start a container in the background; returns its id."""
        with _translated(f"starting container {spec.name}"):
            container = self._client.containers.create(
                spec.image,
                list(spec.command) if spec.command is not None else None,
                name=spec.name,
                hostname=spec.hostname,
                environment=dict(spec.env),
                labels=dict(spec.labels),
                # As a list: by its source, as the SDK also takes them, a folder has one place only.
                volumes=[
                    *(f"{name}:{place}:rw" for name, place in spec.volumes.items()),
                    *(f"{at}:{place}:ro" for place, at in spec.binds.items()),
                ],
                mounts=[
                    Mount(place, at, type="bind" if at.startswith("/") else "volume")
                    for place, at in spec.mounts.items()
                ],
                auto_remove=spec.fleeting,
                user=spec.user or None,
                cap_drop=["ALL"],
                cap_add=list(spec.capabilities),
                security_opt=["no-new-privileges"],
                tmpfs=dict(spec.tmpfs),
                ipc_mode=spec.ipc,
                extra_hosts={**_MAPPED, **spec.hosts},
                devices=[f"{node}:{node}:rw" for node in spec.devices],
                device_requests=[_request(driver, ids) for driver, ids in spec.requests],
                ulimits=[Ulimit(name=n, soft=v, hard=v) for n, v in spec.limits.items()],
                **self._network_of(spec),
            )
            container.start()
        return str(container.id)

    def _network_of(self, spec: ContainerSpec) -> dict[str, Any]:
        # A container that joins another's IPC namespace has no /dev/shm of its own to size.
        found: dict[str, Any] = {}
        if not spec.ipc.startswith("container:"):
            found["shm_size"] = spec.shm_bytes
        if spec.network in ("host", "none"):
            return {**found, "network_mode": spec.network}
        aliases = self._api.create_endpoint_config(aliases=[spec.hostname])
        return {
            **found,
            "network": spec.network,
            "networking_config": {spec.network: aliases},
        }

    def run_once(self, image: str, argv: Sequence[str], *, seconds: float) -> str:
        """Run one command in a throw-away container without a network; returns its output.

        Raises:
            EngineError: it failed or ran past `seconds`.
        """
        bounded = ["timeout", "-k", "2", f"{seconds:.0f}", *argv]
        run = f"once-{secrets.token_hex(4)}"
        with cleanup.undoing(cleanup.RUN, run), _translated(f"running {argv[0]} in {image[:19]}"):
            output: bytes = self._client.containers.run(
                image, bounded[1:], entrypoint=bounded[:1], remove=True, network_mode="none",
                labels={RUN_LABEL: run, OWNER_LABEL: cleanup.owner()}, stderr=True,
                cap_drop=["ALL"], security_opt=["no-new-privileges"],
            )  # fmt: skip
        return output.decode("utf-8", errors="replace")

    def running(self, container: str) -> bool:
        """Whether a container's main process is alive."""
        with _translated(f"looking at container {container[:12]}"):
            try:
                state = self._api.inspect_container(container)["State"]
            except docker.errors.NotFound:
                return False
        return bool(state["Running"])

    def container_log(self, container: str) -> str:
        """The last lines that a container's main process said."""
        with _translated(f"reading the log of {container[:12]}"):
            log: bytes = self._api.logs(container, tail=40)
        return log.decode("utf-8", errors="replace")

    def kill(self, container: str) -> None:
        """SIGKILL a container's main process (and with it all of its processes)."""
        with _translated(f"killing {container[:12]}"):
            try:
                self._api.kill(container)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):  # gone, or not running any more
                    raise

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        seconds: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        folder: str | None = None,
        on_line: Callable[[str], None] | None = None,
        control: bool = True,
    ) -> ExecResult:
        """Run a command in a container, bounded by `timeout` inside it.

        Args:
            seconds: limit; the command is killed past it and answers 124 or 137.
            stdin: bytes for its standard input.
            control: the command is the controller's own, not part of a training.
            on_line: called with every line as it comes.
        """
        bounded = ["timeout", "-k", "2", f"{seconds:.1f}", *argv]
        environment = {**(CONTROL if control else {}), **(env or {})}
        with _translated(f"running {argv[0]} in {container[:12]}"):
            api = self._api
            made = api.exec_create(
                container,
                bounded,
                environment=environment,
                stdin=stdin is not None,
                workdir=folder,
            )["Id"]
            output = talk(api.exec_start(made, socket=True), stdin, on_line)
            code = api.exec_inspect(made)["ExitCode"]
        return ExecResult(code=int(code if code is not None else 137), output=output)

    def detach(self, container: str, argv: Sequence[str]) -> None:
        """Start a command of the controller's own in a container, and leave it there."""
        with _translated(f"starting {argv[0]} in {container[:12]}"):
            made = self._api.exec_create(container, list(argv), environment=dict(CONTROL))["Id"]
            self._api.exec_start(made, detach=True)

    def containers(self, label: str) -> list[ContainerInfo]:
        """The containers that carry a label (`name` or `name=value`), whatever their state."""
        with _translated("looking for containers"):
            found = self._api.containers(all=True, filters={"label": label})
        return [
            ContainerInfo(
                id=item["Id"],
                name=str(item["Names"][0]).lstrip("/"),
                image=item["ImageID"],
                state=item["State"],
                labels=item.get("Labels") or {},
            )
            for item in found
        ]

    def converse(
        self, container: str, argv: Sequence[str], on_line: Callable[[str], None]
    ) -> Conversation:
        """Start a command of the controller's own in a container and keep talking to it.

        Args:
            on_line: called with every line it says, from a thread of its own.
        """
        with _translated(f"starting {argv[0]} in {container[:12]}"):
            made = self._api.exec_create(
                container, list(argv), environment=dict(CONTROL), stdin=True
            )["Id"]
            return Conversation(self._api.exec_start(made, socket=True), on_line)

    def put(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder of a container."""
        with _translated(f"copying into {container[:12]}"):
            self._api.put_archive(container, folder, archive)

    def remove_run(self, label: str, *, patience: float = 5.0) -> list[str]:
        """Remove every container, network and volume carrying `label`; names what was removed.

        Somebody else may be removing the same ones: returns when they are gone.

        Args:
            patience: seconds that networks and volumes may still be in use.
        """
        with _translated(f"removing what carries {label}"):
            containers, networks, volumes = self._found(label)
            if containers:
                with ThreadPoolExecutor(min(8, len(containers))) as pool:
                    list(pool.map(self._remove_container, containers))
            for network in networks:
                _until_gone(partial(self._api.remove_network, network), patience)
            for volume in volumes:
                _until_gone(partial(self._api.remove_volume, volume, force=True), patience)
        return [*containers, *networks, *volumes]

    def remove_container(self, container: str) -> None:
        """Remove one container, whatever its state; gone already is fine."""
        with _translated(f"removing {container[:12]}"):
            self._remove_container(container)

    def _remove_container(self, name: str) -> None:
        _until_gone(lambda: self._api.remove_container(name, force=True, v=True))

    def _found(self, label: str) -> tuple[list[str], list[str], list[str]]:
        # The SDK's own lists look at each container again, and fail for one that has just gone.
        filters: dict[str, Any] = {"label": label}
        containers = self._api.containers(all=True, filters=filters)
        networks = self._api.networks(filters=filters)
        volumes = self._api.volumes(filters=filters)["Volumes"] or []
        return (
            [str(item["Names"][0]).lstrip("/") for item in containers],
            [str(item["Name"]) for item in networks],
            [str(item["Name"]) for item in volumes],
        )

    def runs(self) -> dict[str, str]:
        """Owners (see `guard.owner`) by run, of every run that has something here."""
        with _translated("looking for runs"):
            filters: dict[str, Any] = {"label": OWNER_LABEL}
            containers = self._api.containers(all=True, filters=filters)
            networks = self._api.networks(filters=filters)
            volumes = self._api.volumes(filters=filters)["Volumes"] or []
        labels = [item.get("Labels") or {} for item in [*containers, *networks, *volumes]]
        return {entry.get(RUN_LABEL, ""): entry[OWNER_LABEL] for entry in labels}

    def labelled(self, label: str) -> list[str]:
        """Names of containers, networks and volumes carrying `label`."""
        with _translated("looking for what a run left"):
            containers, networks, volumes = self._found(label)
        return [*containers, *networks, *volumes]


def _until_gone(remove: Callable[[], object], seconds: float = 20.0) -> None:
    """Remove a thing; one that is being removed, or still in use by what is, is tried again."""
    end = time.monotonic() + seconds
    while True:
        try:
            remove()
            return
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            text = str(error)
            passing = ("already in progress", "active endpoints", "in use", "is being used")
            if time.monotonic() > end or not any(reason in text for reason in passing):
                raise
        time.sleep(0.05)
