#!/bin/bash
# One container of the test's Slurm: `slurm-node controller` or `slurm-node worker`. The key that all
# share is made by the controller in the volume of the run; no image holds one.
set -euo pipefail
key=/cluster/munge.key
if [ "$1" = controller ]; then
  (umask 077 && head -c 1024 /dev/urandom > "$key.new" && mv "$key.new" "$key")
fi
until [ -s "$key" ]; do sleep 0.05; done
install -d -o munge -g munge -m 0755 /run/munge /var/log/munge
install -o munge -g munge -m 0400 "$key" /etc/munge/munge.key
runuser -u munge -- munged
# As udev has it on a machine; a container gets the device for root alone.
if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
mkdir -p /var/spool/slurmctld /var/spool/slurmd
if [ "$1" = controller ]; then exec slurmctld -D; fi
exec slurmd -D
