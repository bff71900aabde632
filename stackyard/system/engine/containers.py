"""Start, use, find and remove an engine's containers, with their networks and volumes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import docker.errors
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from stackyard.system import cleanup
from stackyard.system.engine.connection import Connection, translated
from stackyard.system.engine.values import (
    CONTROL,
    OWNER_LABEL,
    RUN_LABEL,
    ContainerInfo,
    ContainerSpec,
    ExecResult,
)
from stackyard.system.stream import Conversation, talk

# torch's c10d looks up the name of ::ffff:127.0.0.1, twice for each launch. The engine's resolver
# passes the query to the machine's, which without a way out takes 10 s to fail.
_MAPPED = {"localhost4": "::ffff:127.0.0.1"}


def _request(driver: str, ids: Sequence[str]) -> DeviceRequest:
    capabilities = [] if driver == "cdi" else [["gpu"]]
    return DeviceRequest(driver=driver, device_ids=list(ids), capabilities=capabilities)


class Containers(Connection):
    """Run containers on an engine."""

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool) -> None:
        """Create a bridge network; an internal one has no way out of the machine."""
        with translated(f"making network {name}"):
            self._client.networks.create(
                name, driver="bridge", internal=internal, labels=dict(labels), check_duplicate=True
            )

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a volume that several containers of a run share."""
        with translated(f"making volume {name}"):
            self._client.volumes.create(name, labels=dict(labels))

    def start(self, spec: ContainerSpec) -> str:
        """Start a container in the background, and return its id."""
        with translated(f"starting container {spec.name}"):
            container = self._client.containers.create(
                spec.image,
                list(spec.command) if spec.command is not None else None,
                name=spec.name,
                hostname=spec.hostname,
                environment=dict(spec.env),
                labels=dict(spec.labels),
                # A list, as the SDK's mapping by source allows each folder only one place.
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
        """Run one command in a throw-away container without a network; return its output.

        Raises:
            EngineError: it failed or ran past `seconds`.
        """
        bounded = ["timeout", "-k", "2", f"{seconds:.0f}", *argv]
        run = f"once-{secrets.token_hex(4)}"
        with cleanup.undoing(cleanup.RUN, run), translated(f"running {argv[0]} in {image[:19]}"):
            # The SDK reads no other log. It removes the container only where nothing interrupts it.
            log = LogConfig(type="json-file")
            try:
                output: bytes = self._client.containers.run(
                    image, bounded[1:], entrypoint=bounded[:1], remove=True, network_mode="none",
                    labels={RUN_LABEL: run, OWNER_LABEL: cleanup.owner()}, stderr=True,
                    cap_drop=["ALL"], security_opt=["no-new-privileges"], log_config=log,
                )  # fmt: skip
            except BaseException:
                self.remove_run(f"{RUN_LABEL}={run}")
                raise
        return output.decode("utf-8", errors="replace")

    def running(self, container: str) -> bool:
        """Return whether a container's main process runs."""
        with translated(f"looking at container {container[:12]}"):
            try:
                state = self._api.inspect_container(container)["State"]
            except docker.errors.NotFound:
                return False
        return bool(state["Running"])

    def container_log(self, container: str) -> str:
        """Return the last lines of output of a container's main process."""
        with translated(f"reading the log of {container[:12]}"):
            log: bytes = self._api.logs(container, tail=40)
        return log.decode("utf-8", errors="replace")

    def kill(self, container: str) -> None:
        """Send SIGKILL to a container's main process, which ends all of its processes."""
        with translated(f"killing {container[:12]}"):
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
            seconds: limit, past which the command is killed; its exit code is then 124 or 137.
            stdin: bytes for its standard input.
            control: the command is the controller's own, not part of a training.
            on_line: called with every line as it comes.
        """
        bounded = ["timeout", "-k", "2", f"{seconds:.1f}", *argv]
        environment = {**(CONTROL if control else {}), **(env or {})}
        with translated(f"running {argv[0]} in {container[:12]}"):
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
        with translated(f"starting {argv[0]} in {container[:12]}"):
            made = self._api.exec_create(container, list(argv), environment=dict(CONTROL))["Id"]
            self._api.exec_start(made, detach=True)

    def containers(self, label: str) -> list[ContainerInfo]:
        """Return the containers with a label (`name` or `name=value`), whatever their state."""
        with translated("looking for containers"):
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
        """Start a command of the controller's own in a container, and keep a line to it.

        Args:
            on_line: called with every line of its output, from a thread of its own.
        """
        with translated(f"starting {argv[0]} in {container[:12]}"):
            made = self._api.exec_create(
                container, list(argv), environment=dict(CONTROL), stdin=True
            )["Id"]
            return Conversation(self._api.exec_start(made, socket=True), on_line)

    def put(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder of a container."""
        with translated(f"copying into {container[:12]}"):
            self._api.put_archive(container, folder, archive)

    def remove_run(self, label: str, *, patience: float = 5.0) -> list[str]:
        """Remove every container, network and volume that carries `label`; return their names.

        Another process may be removing the same ones: return when they are gone.

        Args:
            patience: seconds that networks and volumes may still be in use.
        """
        with translated(f"removing what carries {label}"):
            containers, networks, volumes = self.found(label)
            if containers:
                with ThreadPoolExecutor(min(8, len(containers))) as pool:
                    list(pool.map(self._remove_container, containers))
            for network in networks:
                _until_gone(partial(self._api.remove_network, network), patience)
            for volume in volumes:
                _until_gone(partial(self._api.remove_volume, volume, force=True), patience)
        return [*containers, *networks, *volumes]

    def remove_container(self, container: str) -> None:
        """Remove one container, whatever its state, if it still exists."""
        with translated(f"removing {container[:12]}"):
            self._remove_container(container)

    def _remove_container(self, name: str) -> None:
        _until_gone(lambda: self._api.remove_container(name, force=True, v=True))

    def found(self, label: str) -> tuple[list[str], list[str], list[str]]:
        """Return the names of the containers, networks and volumes that carry a label."""
        containers, networks, volumes = self._items({"label": label})
        return (
            [str(item["Names"][0]).lstrip("/") for item in containers],
            [str(item["Name"]) for item in networks],
            [str(item["Name"]) for item in volumes],
        )

    def _items(self, filters: Mapping[str, str]) -> tuple[list[Any], list[Any], list[Any]]:
        # The SDK's own lists inspect each container again, and fail for one that has just gone.
        return (
            self._api.containers(all=True, filters=filters),
            self._api.networks(filters=filters),
            self._api.volumes(filters=filters)["Volumes"] or [],
        )

    def runs(self) -> dict[str, str]:
        """Return the owner (see `cleanup.owner`) of every run that has something on the engine."""
        with translated("looking for runs"):
            items = [item for kind in self._items({"label": OWNER_LABEL}) for item in kind]
        labels = [item.get("Labels") or {} for item in items]
        return {entry.get(RUN_LABEL, ""): entry[OWNER_LABEL] for entry in labels}


def _until_gone(remove: Callable[[], object], seconds: float = 20.0) -> None:
    """Remove a thing; try again while it is in use, or another request removes it."""
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
