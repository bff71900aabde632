# Who owns the folder of a pull's keys on a host, from its first byte to its last. Functions in POSIX sh.
#   own LEASE BYTES PARCEL SOCKET   make the folder of an archive on the input, run relay.sh in it, remove it
#   sweep                           remove the folders whose owner is gone, and end what ran for them
#   left                            name them
# The folder's name holds its owner's PID and start time, so it has an owner as soon as it is there. Two
# processes remove it: the owner, however it ends (but by SIGKILL), and a watcher, when the owner is gone or
# has heard nothing from the pull for LEASE seconds. Whatever survives both is removed by the next pull.
# Fields of /proc are split on purpose; relay.sh reads `group`, and lies in the folder.
# shellcheck disable=SC2034,SC2086,SC1091
LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"; export LC_ALL PATH
umask 077

# $1: a PID. Set `born` to its start in clock ticks, `group` to its process group; empty when it is gone.
look_up() {
    born='' group=''
    { read -r stat < "/proc/$1/stat"; } 2> /dev/null || return 0
    set -- ${stat##*) }
    if [ "$1" != Z ]; then group=$3 born=${20}; fi
}

# $1: a name. $2: a PID of this pull, with a minus sign for its whole group. Note it as running for the pull.
note() {
    look_up "${2#-}"
    echo "$2 $born" > "$keys/pid-$1"
}

# $1: a folder. End what runs for it and remove it; several processes may do so at the same time. Under its
# other name nothing more is noted in it, so its list is complete: `note ... && exec` ends where it fails.
remove() {
    ending="$1.over" tries=0
    mv "$1" "$ending" 2> /dev/null
    for file in "$ending"/pid-*; do
        { read -r pid birth < "$file"; } 2> /dev/null || continue
        look_up "${pid#-}"
        if [ -n "$born" ] && [ "$born" = "$birth" ]; then kill -s TERM -- "$pid" 2> /dev/null; fi
    done
    # The parcel of a pull that is over goes, too; one that broke off stays for the next pull. What was
    # half-written outside goes in any case.
    { read -r parcel < "$ending/over" && rm -f "$parcel"; } 2> /dev/null
    { read -r part < "$ending/part" && rm -f "$part"; } 2> /dev/null
    # What is still being written into the folder can make it fail.
    until rm -rf "$1" "$ending" 2> /dev/null || [ $tries -ge 50 ]; do tries=$((tries + 1)); sleep 0.1; done
}

# Print the folders here whose owner is gone.
left() {
    for folder in /dev/shm/stackyard-pull.* "${TMPDIR:-/tmp}"/stackyard-pull.*; do
        [ -d "$folder" ] || continue
        name=${folder##*/stackyard-pull.}
        look_up "${name%%.*}"
        if [ -z "$born" ] || [ "$born" != "${name#*.}" ]; then echo "$folder"; fi
    done
}

# A folder of another user stays, and is named by `left`.
sweep() { left | while read -r folder; do remove "$folder"; done; }

# Run beside the owner: count the seconds in which nothing came from the pull.
watch() {
    trap '' HUP INT TERM PIPE
    silent=0 before=''
    while [ $silent -lt "$lease" ] && sleep 1; do
        look_up "$owner"
        [ "$born" = "$birth" ] || break
        beat='' size=''
        { read -r beat < "$keys/beat"; } 2> /dev/null
        { read -r size < "$keys/size"; } 2> /dev/null
        if [ "$beat $size" = "$before" ]; then silent=$((silent + 1)); else silent=0; fi
        before="$beat $size"
    done
    if [ $silent -ge "$lease" ]; then echo "failed it heard nothing from the pull for $lease s" 2> /dev/null; fi
    remove "$keys"
    kill -s TERM "$owner" 2> /dev/null && sleep 1 && kill -s KILL "$owner" 2> /dev/null
}

own() {
    lease=$1 owner=$$ watcher=''
    look_up $$
    birth=$born
    for at in /dev/shm "${TMPDIR:-/tmp}"; do [ -w "$at" ] && break; done
    keys="$at/stackyard-pull.$$.$birth"
    trap 'trap "" HUP INT TERM PIPE; remove "$keys"; kill -s KILL $watcher 2> /dev/null; wait' EXIT
    trap 'exit 1' HUP INT TERM PIPE
    sweep
    watch &
    watcher=$!
    mkdir "$keys" && timeout "$lease" head -c "$2" | tar -x -C "$keys" || exit 1
    set -- host "$keys" "$3" "$4"
    . "$keys/relay.sh"
}
