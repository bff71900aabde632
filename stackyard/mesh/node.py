"""Define the capabilities, programs and ports of a node, wherever it runs.

Nodes on one engine and on hosts, proofs and pods of Kubernetes are started with these.
"""

from __future__ import annotations

import hashlib

from stackyard.definitions.project import INSIDE
from stackyard.gpu.nccl import READ, SUBSYSTEMS

# The fewest that sshd needs to become the user who logs in (OpenSSH 9.2, and the files' owners);
# training itself needs none. All others are dropped, and no new privileges are allowed.
CAPABILITIES = ("SETUID", "SETGID", "SYS_CHROOT", "DAC_OVERRIDE", "CHOWN", "FOWNER", "KILL")
# Keys are kept in memory only.
TMPFS = {"/run": "rw,mode=0755,nosuid,nodev"}
NODE_PROGRAM = "/usr/local/lib/stackyard/node.py"
SCRATCH = "/run/stackyard/launch"
# sshd listens here; nodes that share a host's network use the next ports.
SSH_PORT = 2222
# The port of the rendezvous. Every launch of a run uses another one, as a port may stay in use for
# a while after a kill.
MEETING_PORT = 29500
# The supervisor, the agents of nodes and what ranks need, beyond the programs of the image.
PROGRAM_FOLDER = "/srv/stackyard"
# Folders with a `sitecustomize`, which Python imports before a program: for ranks, and for smokes.
SITE = f"{PROGRAM_FOLDER}/rank_site"
SMOKE_SITE = f"{PROGRAM_FOLDER}/smoke_site"
PROGRAMS = (
    "agent.py", "watched.py", "line.py", "strays.py", "supervisor.py", "job.py", "client.py",
    "step.py", "members.py", "stacks.py", "hang.py", "plain_ranks.py", "compare.py",
    "rank_site/sitecustomize.py", "smoke_site/sitecustomize.py",
)  # fmt: skip
# Processes that a launcher leaves behind may take this long to end by themselves.
GRACE_SECONDS = 10.0
# Each node keeps the files of a job's ranks in a folder of its own.
JOBS = "/var/lib/stackyard/jobs"


def program_files() -> dict[str, bytes]:
    """Return the programs that nodes need beyond those of their image, by path from the root."""
    return {f"{PROGRAM_FOLDER[1:]}/{name}": (INSIDE / name).read_bytes() for name in PROGRAMS}


def rank_folder(job: str) -> str:
    """Return the folder of a job's ranks, on every node."""
    return f"{JOBS}/{job}/ranks"


def nccl_environment(run: str, job: str, *, logs: bool = True) -> dict[str, str]:
    """Return what the ranks of a job on GPUs need so that their NCCL can be asked and read.

    NCCL's RAS gets an address of this job's own. Jobs beside each other, and nodes on their hosts'
    network, would share NCCL's default, and answer for each other. All of 127.0.0.0/8 is loopback,
    so no other program's port is taken.

    Args:
        logs: have NCCL write what it uses, for `gpu.nccl`.
    """
    first, second, third, *_ = hashlib.sha256(f"{run}/{job}".encode()).digest()
    found = {"NCCL_RAS_ADDR": f"127.{192 + first % 63}.{second}.{1 + third % 254}:28028"}
    if logs:
        found |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS}
        found["STACKYARD_NCCL_LOGS"] = rank_folder(job)
    return found


def nccl_words(job: str) -> list[str]:
    """Return the command that prints what `gpu.nccl` reads, of a job's ranks on one node."""
    script = (
        'cat "$1"/nccl.* "$1"/rank*.log 2> /dev/null | grep -a " NCCL "'
        ' | grep -aE "$2" | head -c 2000000'
    )
    return ["sh", "-c", script, "nccl", rank_folder(job), READ]


def rank_environment(job: str) -> dict[str, str]:
    """Return what the ranks of a job need in their environment: its name and their folder."""
    return {"STACKYARD_JOB": job, "STACKYARD_LOGS": rank_folder(job)}
