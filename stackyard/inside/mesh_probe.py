"""Try a mesh from inside one node: logins that must work, and logins that must not.

Owns the attempts and their answers; `stackyard.validate.judge` decides what they mean. Every
refusal is tried beside a control that must work and differs only in the one thing refused, so that
a login that fails for another reason (no sshd, no name) does not count as a refusal.

    mesh_probe.py reach NODE...            one JSON line: what each login answered
    mesh_probe.py refuse NODE PORT         one JSON line: what each forbidden login answered
    mesh_probe.py impostor                 run an sshd with a foreign authority's certificate

`refuse` and `impostor` take the strangers' keys from their first line of input (a JSON object of
base64 by file name) into memory. `impostor` says `ready`, and ends with its input.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PROBE = "/run/stackyard/probe"
IMPOSTOR_PORT = 2299


def attempt(words: Sequence[str], seconds: float = 20) -> dict[str, Any]:
    """Run one ssh command; return its exit code and output."""
    try:
        done = subprocess.run(
            ["ssh", *words],
            capture_output=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"code": 124, "says": f"no answer within {seconds:.0f} s", "out": b""}
    says = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return {"code": done.returncode, "says": " | ".join(says)[-300:], "out": done.stdout}


def reach(nodes: Sequence[str]) -> dict[str, Any]:
    """Log in to every node; return its name and the environment of the session there."""

    def one(node: str) -> dict[str, Any]:
        # One login for both values, and `exec` in the shell's place: a big mesh makes many logins.
        answer = attempt([node, "exec cat /proc/sys/kernel/hostname /proc/self/environ"])
        host, _, environment = answer.pop("out").partition(b"\n")
        answer["host"] = host.decode(errors="replace")
        answer["environment"] = base64.b64encode(environment).decode()
        return answer

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(nodes, pool.map(one, nodes), strict=True))


def refuse(node: str, port: str) -> dict[str, dict[str, Any]]:
    """Try every forbidden login and the controls; return their answers."""
    # -F /dev/null: no configuration of the mesh, so each attempt states every option it relies on.
    plain = ["-F", "/dev/null", "-p", port, "-l", "root", "-o", "BatchMode=yes",
             "-o", "ConnectTimeout=10", "-o", "UserKnownHostsFile=/dev/null"]  # fmt: skip
    strict = ["-o", "StrictHostKeyChecking=yes",
              "-o", "GlobalKnownHostsFile=/run/stackyard/mesh/known_hosts",
              "-o", "HostKeyAlgorithms=ssh-ed25519-cert-v01@openssh.com"]  # fmt: skip
    ours = ["-o", "IdentitiesOnly=yes", "-i", "/run/stackyard/mesh/user_key"]
    alias = ["-o", f"HostKeyAlias={node}"]
    impostor = ["-p", str(IMPOSTOR_PORT)]
    password = ["-o", "BatchMode=no", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1",
                "-o", "PreferredAuthentications=password,keyboard-interactive"]  # fmt: skip
    tries = {
        "control": [*plain, *strict, *ours, *alias, node, "true"],
        "password": [*password, *plain, *strict, *alias, node, "true"],
        "foreign_key": [*plain, *strict, "-o", "IdentitiesOnly=yes", "-i", f"{PROBE}/foreign_key",
                        *alias, node, "true"],
        "other_run": [*plain, *strict, "-o", "IdentitiesOnly=yes", "-i", f"{PROBE}/other_run_key",
                      *alias, node, "true"],
        "impostor_control": [*impostor, *plain, *ours, "-o", "StrictHostKeyChecking=no", node, "true"],
        "impostor": [*impostor, *plain, *strict, *ours, *alias, node, "true"],
        # The mesh's own client configuration must be strict as well, not only our flags.
        "impostor_by_config": [*impostor, *alias, node, "true"],
        "unnamed": [*plain, *strict, *ours, "-o", "HostKeyAlias=elsewhere", node, "true"],
    }  # fmt: skip
    # ssh takes the first value given for an option: the impostor's -p and the password attempt's
    # BatchMode come before the plain ones.
    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(tries, pool.map(attempt, tries.values()), strict=True))
    for answer in answers.values():
        answer.pop("out")
    return answers


def take_keys() -> None:
    """Write the strangers' keys beside the probes."""
    for name, text in json.loads(sys.stdin.readline()).items():
        target = os.open(f"{PROBE}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(target, "wb") as file:
            file.write(base64.b64decode(text))


def impostor(port: int) -> None:
    """Run an sshd with another authority's host certificate, which lets this run's users in."""
    config = f"{PROBE}/sshd_config"
    with open("/run/stackyard/mesh/address", encoding="utf-8") as file:
        address = file.read().strip()
    listen = f"ListenAddress {address}\n" if address else ""
    with open(config, "w", encoding="utf-8") as file:
        file.write(
            f"Port {port}\n{listen}HostKey {PROBE}/impostor_key\n"
            f"HostCertificate {PROBE}/impostor_key-cert.pub\n"
            "TrustedUserCAKeys /run/stackyard/mesh/user_ca.pub\n"
            "AuthorizedPrincipalsFile /run/stackyard/mesh/principals\n"
            "AuthorizedKeysFile none\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\n"
        )
    child = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config])
    while child.poll() is None and not _listens(address or "127.0.0.1", port):
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.read()
    child.terminate()
    child.wait()


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "reach":
        print(json.dumps(reach(rest)))
    elif verb == "refuse":
        take_keys()
        print(json.dumps(refuse(rest[0], rest[1])))
    elif verb == "impostor":
        take_keys()
        impostor(IMPOSTOR_PORT)
    else:
        raise SystemExit(__doc__)
