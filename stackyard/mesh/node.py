"""Define the capabilities, program and ports of a node, wherever it runs.

Values only. Nodes on one engine and on hosts, proofs and pods of Kubernetes are started with these.
"""

from __future__ import annotations

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
