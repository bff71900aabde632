"""Create, query, follow and remove a run on Kubernetes through kubectl.

Owns every kubectl command line. Keys go through standard input: no argument, environment or
annotation holds one. It must not decide what runs (`kubernetes` renders that) nor interpret a
cluster's states (`kubernetes_state` does).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stackyard.schedulers.kubernetes import SECRET_FILE
from stackyard.schedulers.kubernetes_pod import CONTAINER, RUN_LABEL
from stackyard.schedulers.kubernetes_site import KubernetesSite
from stackyard.schedulers.kubernetes_state import RunState, read_run
from stackyard.system import process
from stackyard.system.errors import CommandError, NothingToRunOn, StackyardError

_SECONDS = 60.0
# The grace period of the pods, and time for the cluster to notice that they are gone.
_REMOVAL_SECONDS = 120
_RUN_KINDS = {"jobset": "jobsets.jobset.x-k8s.io", "job": "jobs.batch"}
_PREFIX = re.compile(r"\[pod/(?P<pod>[^/\]]+)-[a-z0-9]{5}/[^\]]+\] ?(?P<text>.*)")


def submit(site: KubernetesSite, files: Mapping[str, str]) -> str:
    """Create all objects of a run, or none of them.

    The run then owns its files and keys, so that the cluster removes them with it.

    Args:
        files: the files that `kubernetes.render` returned.

    Returns:
        A note for the run's owner; empty when nothing went wrong.

    Raises:
        StackyardError: kubectl is missing or the cluster refused; nothing of the run is left.
    """
    *others, last = files.values()
    created: list[str] = []
    text = ""
    try:
        for text in others:
            # Print the name only: the object may hold keys.
            said = _kubectl(site, "create", "-f", "-", "-o", "name", stdin=text.encode())
            created.append(said.splitlines()[-1])
        text = last
        made = _json(_kubectl(site, "create", "-f", "-", "-o", "json", stdin=text.encode()))
    except BaseException as error:
        _remove(site, created, text, error)
        raise
    return _own(site, made, created)


def _remove(site: KubernetesSite, created: list[str], asked: str, error: BaseException) -> None:
    """Remove what was made just now, and what was asked for last, which may have been made.

    A run of the same name may exist already: whether a first object that was not answered is of
    that one is not known, so it stays. A failure here is ignored: it mostly has the same reason as
    the one that is being reported.
    """
    if not created:
        return
    if _in_doubt(error):
        with contextlib.suppress(StackyardError):
            words = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
            _kubectl(site, *words, stdin=asked.encode())
    with contextlib.suppress(StackyardError):
        _kubectl(site, "delete", "--ignore-not-found", *created)


def _in_doubt(error: BaseException) -> bool:
    """Say if an object may have been created although this error came back."""
    if not isinstance(error, CommandError) or error.code == 124:
        return True
    refused = re.search(r"Error from server \((?!Timeout|InternalError|ServerTimeout)", error.why)
    return not refused and "already exists" not in error.why


def _own(site: KubernetesSite, run: Mapping[str, Any], others: list[str]) -> str:
    metadata = run["metadata"]
    owner = {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    try:
        for other in others:
            _kubectl(site, "patch", other, "--type=merge", "-p", patch)
    except CommandError as error:
        return (
            f"{other} is not removed together with the run, since the cluster refused to set its"
            f" owner; cancelling the run removes it: {process.last_lines(error.why, 1)}"
        )
    return ""


def status(site: KubernetesSite, run: str) -> RunState:
    """Return the state of a run.

    Raises:
        StackyardError: kubectl is missing, or the cluster does not answer.
    """
    found = _json(
        _kubectl(site, "get", _RUN_KINDS[site.kind], run, "--ignore-not-found", "-o", "json")
    )
    pods = _json(_kubectl(site, "get", "pods", *_selected(run), "-o", "json")) if found else {}
    return read_run(run, found, pods.get("items", []))


def logs(
    site: KubernetesSite,
    run: str,
    on_line: Callable[[str, str], None],
    *,
    pods: int,
    follow: bool = False,
    seconds: float = 7 * 86_400.0,
) -> None:
    """Pass on the logs of a run's pods, from their start.

    Args:
        on_line: called with a pod's name and a line; the name is empty for kubectl's own messages.
        pods: number of the run's pods; all are read at the same time.
        follow: continue until they have ended.
        seconds: time limit; after it, following ends with an error.

    Raises:
        StackyardError: kubectl is missing, or a pod has not started yet.
    """
    words = ["logs", *_selected(run), f"--container={CONTAINER}", "--prefix", "--tail=-1"]
    words += [f"--max-log-requests={pods}", *(["--follow"] if follow else [])]

    def take(line: str) -> None:
        found = _PREFIX.fullmatch(line)
        on_line(*((found["pod"], found["text"]) if found else ("", line)))

    _kubectl(site, *words, on_line=take, seconds=seconds)


def cancel(site: KubernetesSite, run: str) -> None:
    """Remove a run and wait until its pods are gone; accept a run that is gone already.

    Raises:
        StackyardError: kubectl is missing, or something could not be removed.
    """
    service = ("services",) if site.kind == "job" else ()
    kinds = ",".join([_RUN_KINDS[site.kind], *service, "configmaps", "secrets"])
    limit = f"--timeout={_REMOVAL_SECONDS}s"
    words = ["delete", kinds, *_selected(run), "--cascade=foreground", "--ignore-not-found"]
    _kubectl(site, *words, "--wait", limit, seconds=_REMOVAL_SECONDS + _SECONDS)


def export(files: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Write the files of a run into a folder, for a cluster that is reached from elsewhere.

    Only their owner can read files that hold private keys.

    Returns:
        The command to type there, and a warning about keys; one line each.

    Raises:
        StackyardError: a file of that name exists already; none is overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        mode = 0o600 if name == SECRET_FILE else 0o644
        try:
            target = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise StackyardError(
                f"{folder / name} cannot be written: {error.strerror}",
                hint="name an empty folder",
            ) from error
        with os.fdopen(target, "w", encoding="utf-8") as file:
            file.write(text)
    named = " ".join(f"-f {name}" for name in files)
    said = [f"in {folder}: kubectl create {named}"]
    if SECRET_FILE in files:
        said.append(
            f"{folder / SECRET_FILE} holds the run's private keys (mode 0600): remove it once the"
            " run is created, and keep it out of version control"
        )
    return tuple(said)


def _selected(run: str) -> tuple[str, str]:
    return "--selector", f"{RUN_LABEL}={run}"


def _kubectl(
    site: KubernetesSite,
    *words: str,
    stdin: bytes | None = None,
    on_line: Callable[[str], None] | None = None,
    seconds: float = _SECONDS,
) -> str:
    if shutil.which("kubectl") is None:
        raise NothingToRunOn(
            "kubectl is not on PATH",
            why="runs on a cluster are created, followed and removed with it",
            hint="install it, or export the run's files and create them where it is",
        )
    context = (f"--context={site.context}",) if site.context else ()
    argv = ["kubectl", *context, f"--namespace={site.namespace}", *words]
    try:
        return process.run(argv, stdin=stdin, on_line=on_line, timeout=seconds).output
    except CommandError as error:
        raise _explained(error) from error


def _explained(error: CommandError) -> CommandError:
    """Return the error with a hint, for the most frequent refusals of clusters."""
    no_jobset = (
        "this cluster has no JobSet: have it installed, or set kind to job (an Indexed Job and a"
        " Service)"
    )
    hints = {
        'no matches for kind "JobSet"': no_jobset,
        'resource type "jobsets"': no_jobset,
        "already exists": "a run of this name is there: cancel it, or name this one otherwise",
        "orbidden": "ask for a Role that allows this in the namespace (docs/howto/kubernetes.md)",
        "waiting to start": "a pod has not started yet; the run's status says why",
    }
    hint = next((hint for sign, hint in hints.items() if sign in error.why), "")
    return CommandError(error.what, code=error.code, why=error.why, hint=hint)


def _json(said: str) -> dict[str, Any]:
    """Parse the object in kubectl's output, which may begin with warnings."""
    begin = said.find("{")
    if begin < 0:
        return {}
    found: dict[str, Any] = json.JSONDecoder().raw_decode(said[begin:])[0]
    return found
