# What a host says about itself, in POSIX sh: read only, nothing is installed or changed.
# Each answer is one section: a line `== NAME [WORD]`, then its lines.
# $1: the container engine's folder of images; then pairs: place in the nodes, path on the host.
LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"; export LC_ALL PATH
section() { printf '== %s\n' "$*"; }
section clock; date +%s.%N
section name; uname -n
section reached; printf '%s\n' "${SSH_CONNECTION:-}"
section addresses; ip -o -4 addr show up 2> /dev/null
section links; for at in /sys/class/net/*; do
    printf '%s %s %s %s\n' "${at##*/}" "$(cat "$at/mtu" 2> /dev/null || echo 0)" \
        "$(cat "$at/speed" 2> /dev/null || echo -1)" "$(cat "$at/operstate" 2> /dev/null)"
done
section listening; cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | awk '$4 == "0A" { print $2 }'
section memory; awk '/MemTotal|MemAvailable/ { print $1, $2 }' /proc/meminfo
section engine_disk; df -Pk "$1" 2> /dev/null | tail -n 1
shift
while [ "$#" -gt 1 ]; do
    case $2 in [~]/*) path="$HOME/${2#??}" ;; *) path=$2 ;; esac
    section folder "$1"
    if [ -d "$path" ]; then
        (cd "$path" 2> /dev/null && pwd -P) || printf '%s\n' "$path"
        stat -f -c '%T' "$path" 2> /dev/null || echo unknown
        df -Pk "$path" 2> /dev/null | tail -n 1
    fi
    shift 2
done
section driver; cat /proc/driver/nvidia/version 2> /dev/null
section gpus; nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.used,compute_mode,mig.mode.current,compute_cap \
    --format=csv,noheader,nounits 2> /dev/null
section gpu_processes; nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits 2> /dev/null
section gpu_minors; for at in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$at" ] && awk -F: '/GPU UUID/ { uuid = $2 } /Device Minor/ { print uuid, $2 }' "$at"
done
section gpu_nodes; for at in /dev/nvidia*; do [ -c "$at" ] && printf '%s\n' "$at"; done
section libraries; ldconfig -p 2> /dev/null | awk '/libcuda|libnvidia|libcudadebugger/ && /x86-64/ { print $1, $NF }' |
    while read -r name at; do printf '%s %s\n' "$name" "$(readlink -f "$at")"; done
section infiniband
# Kinds of CDI; GPUs that are not named by UUID are passed over, as gpu/gpus.py does.
section cdi; for at in /etc/cdi/*.yaml /etc/cdi/*.yml /var/run/cdi/*.yaml /var/run/cdi/*.yml; do
    kind=$(sed -n 's/^kind: *//p' "$at" 2> /dev/null)
    case $kind in *nvidia.com/gpu*) grep -Eq "name: *[\"']?GPU-" "$at" || continue ;; esac
    [ -z "$kind" ] || printf '%s\n' "$kind"
done
section end
exit 0
