# A host's part in passing a parcel from host to host, in POSIX sh. Nothing is installed: it needs what a
# host that takes logins has (sshd, ssh, ssh-keygen, coreutils).
#   sh relay.sh VERB KEYS [WORD...]      KEYS: the folder of this pull's keys on this host, its own only
# The parcel grows in SPOOL/PARCEL; it stays after a broken pull, and the next one goes on there.
# Names of hosts hold no blanks, and lists of them are meant to be split.
# shellcheck disable=SC2046,SC2086
LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"; export LC_ALL PATH
umask 077
verb=$1 keys=$2
shift 2
spool="${XDG_CACHE_HOME:-$HOME/.cache}/stackyard/pull"

size_of() { if [ -e "$1" ]; then wc -c < "$1" | tr -d ' '; else echo 0; fi; }
parcel() { cat "$keys/parcel"; }

# $1: parcel. Make room for it and say what there is: bytes of it, bytes free, programs.
prepare() {
    mkdir -p "$spool" || exit 1
    find "$spool" -type f -mtime +1 ! -name "$1" -exec rm -f {} +
    echo "$1" > "$keys/parcel"
    echo "have $(size_of "$spool/$1")"
    echo "user $(id -un)"
    df -Pk "$spool" | tail -n 1 | sed 's/^/disk /'
    for name in sshd ssh ssh-keygen docker curl sha256sum; do
        found=$(command -v "$name") && echo "program $name $found"
    done
    echo "keys $keys"
}

# $1: parcel. Take logins of this pull's other hosts, and say once a second how much there is, until
# our own input ends; then nothing of it is left here but the parcel.
serve() {
    server='' ticker=''
    trap 'kill $server $ticker 2> /dev/null; rm -rf "$keys"' EXIT
    trap 'exit 1' HUP INT TERM
    sed "s|@KEYS@|$keys|g; s|@USER@|$(id -un)|g" "$keys/sshd_config" > "$keys/sshd_config.here"
    "$(command -v sshd)" -D -e -f "$keys/sshd_config.here" > "$keys/sshd.log" 2>&1 &
    server=$!
    sleep 0.3
    kill -0 $server 2> /dev/null || { sed 's/^/sshd: /' "$keys/sshd.log"; exit 1; }
    echo serving
    (while sleep 1; do echo "at $(size_of "$spool/$1")"; done) &
    ticker=$!
    cat > /dev/null
}

# $1: which byte of the parcel comes first. Keep what we lack, pass all of it on.
receive() {
    case $1 in '' | *[!0-9]*) exit 2 ;; esac
    if [ -e "$keys/receiver" ]; then kill "$(cat "$keys/receiver")" 2> /dev/null; fi
    echo $$ > "$keys/receiver"
    into="$spool/$(parcel)"
    # Two pulls of the same must not write into each other's parcel.
    exec 9>> "$into"
    if [ -n "$(command -v flock)" ]; then flock -w 5 9 || exit 9; fi
    have=$(size_of "$into")
    [ "$have" -ge "$1" ] || exit 3
    set -- "$1" $((have - $1 + 1)) $(cat "$keys/next")
    start=$1 from=$2
    shift 2
    pipes=''
    for name in "$@"; do
        pipe="$keys/pipe-$name-$$"
        mkfifo "$pipe" || exit 1
        pipes="$pipes $pipe"
        ssh -F "$keys/ssh_config" "$name" "$start" < "$pipe" 2>> "$keys/log-$name" &
    done
    if [ -z "$pipes" ]; then
        tail -c "+$from" >> "$into"
    elif tee --help 2>&1 | grep -q -- -p; then
        tee -p $pipes | tail -c "+$from" >> "$into"
    else
        tee $pipes | tail -c "+$from" >> "$into"
    fi
    wait
    rm -f $pipes "$keys/receiver"
}

# $1: size of the parcel. See that it is whole, signed, and holds what was signed.
check() {
    into="$spool/$(parcel)"
    have=$(size_of "$into")
    [ "$have" = "$1" ] || { echo "the parcel has $have of $1 bytes"; exit 4; }
    if [ -n "$(command -v ssh-keygen)" ]; then
        who=$(ssh-keygen -Y find-principals -s "$keys/release.json.sig" -f "$keys/signers" | head -n 1)
        ssh-keygen -Y verify -f "$keys/signers" -I "${who%%,*}" -n "$(cat "$keys/namespace")" \
            -s "$keys/release.json.sig" < "$keys/release.json" || { echo "its signature is wrong"; exit 5; }
    else
        echo "no ssh-keygen here: the signature was verified where the pull was started"
    fi
    while read -r sum path; do
        grep -q "$sum" "$keys/release.json" || { echo "$sum is not signed for"; exit 5; }
        found=$(tar -xOf "$into" "$path" | sha256sum | cut -d ' ' -f 1)
        [ "$found" = "$sum" ] || { rm -f "$into"; echo "$path is not what was signed"; exit 6; }
    done < "$keys/sums"
    echo whole
}

# $1: the engine's socket. Have the engine take the parcel; then it is not needed any more.
load() {
    into="$spool/$(parcel)"
    if [ -n "$(command -v docker)" ]; then
        docker -H "unix://$1" load -q < "$into" || exit 7
    elif [ -n "$(command -v curl)" ]; then
        curl -sS --fail-with-body --unix-socket "$1" -X POST -H 'Content-Type: application/x-tar' \
            -T "$into" 'http://engine/images/load?quiet=1' || exit 7
    else
        echo "neither docker's client nor curl is here to hand the image to the engine"; exit 8
    fi
    rm -f "$into"
    echo loaded
}

"$verb" "$@"
