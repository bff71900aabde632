"""A node of a mesh, wherever it runs: what it may do, where its program is, its ports.

Values only. Nodes on one engine and on hosts, proofs and pods of Kubernetes are started with these.
"""

from __future__ import annotations

# The fewest that sshd needs to become the user who logs in (facts of OpenSSH 9.2 and the files'
# owners); training itself needs none. No new privileges, everything else dropped.
CAPABILITIES = ("SETUID", "SETGID", "SYS_CHROOT", "DAC_OVERRIDE", "CHOWN", "FOWNER", "KILL")
# Keys lie in memory.
TMPFS = {"/run": "rw,mode=0755,nosuid,nodev"}
NODE_PROGRAM = "/usr/local/lib/stackyard/node.py"
SCRATCH = "/run/stackyard/launch"
# Where sshd listens; where several nodes share a network, the next ports.
SSH_PORT = 2222
# Where ranks meet. Launches of one run follow each other on ports of their own: a port may linger
# after a kill.
MEETING_PORT = 29500
