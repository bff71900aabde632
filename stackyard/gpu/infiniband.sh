# What a host says of its InfiniBand and RoCE adapters, in POSIX sh: read only.
# Paths are of the kernel's ABI documents, stable/sysfs-class-infiniband and testing/sysfs-class-infiniband.
# $STACKYARD_ROOT: a folder that holds sys, dev and proc of a made-up host, for tests.
# A GID that is not set is all zeros; its type cannot be read then.
for at in "${STACKYARD_ROOT:-}/sys"/class/infiniband/*/ports/*; do
    [ -r "$at/state" ] || continue
    device=${at%/ports/*} device=${device##*/} port=${at##*/}
    printf 'port|%s|%s|%s|%s|%s\n' "$device" "$port" "$(cat "$at/state" 2> /dev/null)" \
        "$(cat "$at/rate" 2> /dev/null)" "$(cat "$at/link_layer" 2> /dev/null)"
    grep -v '^0000:0000:0000:0000:0000:0000:0000:0000$' "$at"/gids/* /dev/null 2> /dev/null |
        while IFS=: read -r name value; do
            index=${name##*/}
            printf 'gid|%s|%s|%s|%s|%s|%s\n' "$device" "$port" "$index" "$value" \
                "$(cat "$at/gid_attrs/types/$index" 2> /dev/null)" \
                "$(cat "$at/gid_attrs/ndevs/$index" 2> /dev/null)"
        done
done
for at in "${STACKYARD_ROOT:-}/sys"/class/infiniband_verbs/uverbs*; do
    [ -r "$at/ibdev" ] && printf 'verbs|%s|%s\n' "${at##*/}" "$(cat "$at/ibdev")"
done
for at in "${STACKYARD_ROOT:-}/dev"/infiniband/*; do [ -e "$at" ] && printf 'node|%s\n' "$at"; done
# GPUDirect RDMA: the module that registers GPU memory, or dma-buf of NVIDIA's open kernel modules.
[ -d "${STACKYARD_ROOT:-}/sys/module/nvidia_peermem" ] && printf 'direct|nvidia_peermem\n'
grep -qs 'Open Kernel Module' "${STACKYARD_ROOT:-}/proc/driver/nvidia/version" && printf 'direct|dma-buf\n'
:
