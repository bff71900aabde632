# A host's part in passing a parcel from host to host, in POSIX sh. Nothing is installed: it needs what a
# host that takes logins has (sshd, ssh, ssh-keygen, coreutils).
#   host KEYS PARCEL SOCKET         as long as lines come on the input; read by owner.sh's `own`, which owns KEYS
#   sh relay.sh receive KEYS START  the parcel from byte START on, by the sshd that `host` starts
# The parcel grows in SPOOL/PARCEL; it stays after a broken pull, and the next one goes on there.
# Names of hosts hold no blanks, and lists of them are meant to be split.
# shellcheck disable=SC1091,SC2013,SC2046,SC2086,SC2154
verb=$1 keys=$2
shift 2
. "$keys/owner.sh"
spool="${XDG_CACHE_HOME:-$HOME/.cache}/stackyard/pull"

# $1: file. Set `size`. It runs several times a second, so it starts one process at most. Some
# versions of wc pad their output.
measure() { size=0; if [ -e "$1" ]; then size=$(wc -c < "$1"); size=$((size)); fi; }

# $1: first byte. $2: number of bytes. Print that part of the parcel, in large pieces for speed.
if dd if=/dev/null of=/dev/null bs=1 iflag=skip_bytes,count_bytes count=0 2> /dev/null; then
    slice() { dd if="$into" bs=1048576 iflag=skip_bytes,count_bytes skip="$1" count="$2" 2> /dev/null; }
else
    slice() { tail -c "+$(($1 + 1))" "$into" | head -c "$2"; }
fi

# openssl is several times as fast as sha256sum where the processor has SHA instructions.
if [ -n "$(command -v openssl)" ]; then
    sha256() { openssl dgst -sha256 -r | cut -d ' ' -f 1; }
else
    sha256() { sha256sum | cut -d ' ' -f 1; }
fi

# $1: parcel. $2: the engine's socket. Report this host's state, take logins of this pull's other
# hosts, and load checked layers into the engine, until the input ends.
host() {
    into="$spool/$1" socket=$2
    mkdir -p "$spool" || exit 1
    find "$spool" -type f -mtime +1 ! -name "$1" -exec rm -f {} +
    echo "$1" > "$keys/parcel"
    measure "$into"
    echo "have $size"
    echo "user $(id -un)"
    df -Pk "$spool" | tail -n 1 | sed 's/^/disk /'
    for name in sshd ssh; do
        found=$(command -v "$name") && echo "program $name $found"
    done
    echo "keys $keys"
    authentic || exit 1
    sed "s|@KEYS@|$keys|g; s|@USER@|$(id -un)|g" "$keys/sshd_config" > "$keys/sshd_config.here"
    # Its process is noted before it serves, so that `owner.sh` can always end it.
    { note server "$(exec sh -c 'echo $PPID')" && exec "$(command -v sshd)" -D -e -f "$keys/sshd_config.here"; } \
        > "$keys/sshd.log" 2>&1 &
    server=$!
    sleep 0.3
    kill -0 $server 2> /dev/null || { sed 's/^/sshd: /' "$keys/sshd.log"; exit 1; }
    echo serving
    follow &
    note follower $!
    keep < "$keys/plan" &
    note keeper $!
    beats=0
    while read -r _; do
        beats=$((beats + 1))
        echo $beats > "$keys/beat" || exit 1
    done
}

# Report every second how much of the parcel has arrived.
follow() {
    while sleep 1; do
        measure "$into"
        echo "$size" > "$keys/size" && echo "at $size" || exit 1
    done
}

# Check that an accepted signer signed the release.
authentic() {
    if [ -z "$(command -v ssh-keygen)" ]; then
        echo "no ssh-keygen here: the signature was verified where the pull was started"
        return
    fi
    who=$(ssh-keygen -Y find-principals -s "$keys/release.json.sig" -f "$keys/signers" | head -n 1)
    said=$(ssh-keygen -Y verify -f "$keys/signers" -I "${who%%,*}" -n "$(cat "$keys/namespace")" \
        -s "$keys/release.json.sig" < "$keys/release.json" 2>&1) || { echo "failed its signature is wrong: $said"; return 1; }
}

# Follow the plan on the input: check each layer once it has arrived, and load checked layers.
keep() {
    stages='' giver='' part='' step=''
    trap 'trap "" HUP INT TERM PIPE; settle; for one in $stages; do drop "$one"; done
        rm -f ${part:+"$part"}' EXIT
    trap 'exit 1' HUP INT TERM PIPE
    while read -r step a b c d; do
        case $step in
        sum)
            until_there $((b + c))
            grep -q "$a" "$keys/release.json" || { echo "failed $a is not signed for"; exit 1; }
            [ "$(slice "$b" "$c" | sha256)" = "$a" ] ||
                { echo "$into" > "$keys/over"; echo "failed sha256:$a is not what was signed"; exit 1; }
            ;;
        stage)
            until_there $((b + c))
            stages="$d $stages"
            # A stage that the engine refuses is no failure: the whole image is loaded at the end.
            { cat "$keys/head-$a"; slice "$b" "$c"; } | give > /dev/null 2>&1 &
            given
            ;;
        image)
            until_there "$c"
            { slice 0 "$a"; slice "$b" $((c - b)); } | give > /dev/null 2>&1 &
            given || { give < "$into" & given; } || { echo "failed its engine did not take the image"; exit 1; }
            ;;
        file)
            until_there "$b"
            [ "$(slice 0 "$b" | sha256)" = "$a" ] ||
                { echo "$into" > "$keys/over"; echo "failed the file that came is not sha256:$a"; exit 1; }
            place "$(cat "$keys/target")" || { echo "failed it cannot be written to $(cat "$keys/target")"; exit 1; }
            ;;
        esac
    done
    for one in $stages; do drop "$one"; done
    stages=''
    # Successors may still be reading the parcel, so it is removed when the pull ends.
    echo "$into" > "$keys/over"
    echo loaded
}

# $1: a path. Give the checked parcel that path: by a link where that is the same file system, else by a
# copy. Others than this user may read it. However the pull ends, nothing half-written stays there.
place() {
    part="${1%/*}/.part-$(uname -n)-$$"
    echo "$part" > "$keys/part"
    (umask 022 && mkdir -p "${1%/*}") && { ln "$into" "$part" 2> /dev/null || cp "$into" "$part"; } &&
        chmod 644 "$part" && mv -f "$part" "$1" && part=''
}

# $1: number of bytes to wait for.
until_there() { until measure "$into"; [ "$size" -ge "$1" ]; do [ -d "$keys" ] && sleep 0.5 || exit 1; done; }

# Wait for the background `give` and return its exit code. A shell in `wait` handles signals at
# once.
given() { giver=$!; wait "$giver"; }

# End the background `give`. An engine finishes what it has read even when its client is gone: the image
# of a stage would appear after it was dropped. So wait for a stage, a minute at most.
settle() {
    [ -n "$giver" ] || return 0
    tries=0
    while [ "$step" = stage ] && look_up "$giver" && [ -n "$born" ] && [ $tries -lt 240 ]; do
        tries=$((tries + 1)); sleep 0.25
    done
    kill "$giver" 2> /dev/null
}

# Load the archive on the input into the engine. Never returns.
give() {
    if [ -n "$(command -v docker)" ]; then
        exec docker -H "unix://$socket" load -q
    elif [ -n "$(command -v curl)" ]; then
        exec curl -sS --fail-with-body --unix-socket "$socket" -X POST -H 'Content-Type: application/x-tar' \
            -T - 'http://engine/images/load?quiet=1'
    else
        echo "neither docker's client nor curl is here to hand the image to the engine"
        exit 1
    fi
}

# $1: the id of a stage's image. Remove it.
drop() {
    if [ -n "$(command -v docker)" ]; then
        docker -H "unix://$socket" rmi "$1" > /dev/null 2>&1
    else
        curl -sS --unix-socket "$socket" -X DELETE "http://engine/images/$1" > /dev/null 2>&1
    fi
}

# $1: the parcel's byte with which the input begins. Keep the bytes that are missing here, and pass
# the parcel on to each successor as fast as it takes it.
receive() {
    case $1 in '' | *[!0-9]*) exit 2 ;; esac
    # End an earlier receiver, which a broken connection may have left waiting.
    { read -r pid birth < "$keys/pid-receiver"; } 2> /dev/null && look_up "${pid#-}" &&
        [ "$born" = "$birth" ] && kill -s TERM -- "$pid" 2> /dev/null
    # sshd gives every login a process group of its own; the user's shell may lead it.
    look_up $$
    if [ "$group" = $$ ] || [ "$group" = "$PPID" ]; then note receiver "-$group"; else note receiver $$; fi
    into="$spool/$(cat "$keys/parcel")"
    # Two pulls of the same release must not write into each other's parcel.
    exec 9>> "$into"
    if [ -n "$(command -v flock)" ]; then flock -w 5 9 || exit 9; fi
    measure "$into"
    have=$size
    [ "$have" -ge "$1" ] || exit 3
    senders=''
    trap ': > "$keys/ended-$$"; kill $senders 2> /dev/null; exit 1' HUP INT TERM PIPE
    for name in $(cat "$keys/next"); do
        forward "$1" 9>&- | ssh -F "$keys/ssh_config" "$name" "$1" 2>> "$keys/log-$name" 9>&- &
        senders="$senders $!"
    done
    { head -c $((have - $1)) > /dev/null; cat; } >> "$into"
    : > "$keys/ended-$$"
    wait
    rm -f "$keys/ended-$$" "$keys/pid-receiver"
}

# $1: first byte. Print the parcel from there on as it arrives, until it is whole or no more comes.
forward() {
    sent=$1 over=''
    while [ -z "$over" ]; do
        if [ -e "$keys/ended-$$" ] || [ ! -d "$keys" ]; then over=yes; fi
        measure "$into"
        # Large pieces only: each measurement and each piece costs a process.
        if [ $((size - sent)) -ge 524288 ] || [ -n "$over" ]; then
            slice "$sent" $((size - sent)) || return
            sent=$size
        else
            sleep 0.2
        fi
    done
}

"$verb" "$@"
