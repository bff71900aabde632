#!/bin/sh
# Install the releases of this folder on a machine without a network, after checking them.
#   sh install.sh [ALLOWED_SIGNERS]      ALLOWED_SIGNERS: whose releases you accept (ssh-keygen(1));
#                                        the bundle's own list, unless given, proves nothing about
#                                        who made the bundle, only that it is whole
# It needs docker or podman, tar and sha256sum; ssh-keygen for the signatures.
LC_ALL=C; export LC_ALL
cd "$(dirname "$0")" || exit 1
namespace=release@stackyard
signers=${1:-allowed_signers}
fail() { echo "error: $*" >&2; exit 1; }
engine=$(command -v docker || command -v podman) || fail "neither docker nor podman is here"
command -v sha256sum > /dev/null || fail "sha256sum is needed"
[ -e "$signers" ] || fail "there is no $signers"
[ $# -gt 0 ] || echo "note: signatures are checked against the bundle's own allowed_signers"

one() {
    name=$1
    if command -v ssh-keygen > /dev/null; then
        who=$(ssh-keygen -Y find-principals -s "$name/release.json.sig" -f "$signers" | head -n 1)
        ssh-keygen -Y verify -f "$signers" -I "${who%%,*}" -n "$namespace" \
            -s "$name/release.json.sig" < "$name/release.json" > /dev/null ||
            fail "$name is not signed by anybody in $signers"
        echo "$name: signed by $who"
    else
        echo "$name: no ssh-keygen here, its signature is not checked" >&2
    fi
    grep -q "\"name\": \"$name\"" "$name/release.json" || fail "$name is signed under another name"
    while read -r sum path; do
        grep -q "$sum" "$name/release.json" || fail "$name: $sum is not signed for"
        found=$(tar -xOf "$name/image.tar" "$path" | sha256sum | cut -d ' ' -f 1)
        [ "$found" = "$sum" ] || fail "$name: $path is not what was signed"
    done < "$name/sums"
    "$engine" load -q -i "$name/image.tar" > /dev/null || fail "$name: the engine does not take it"
    read -r id manifest tag < "$name/image"
    for known in "$id" "$manifest"; do
        if "$engine" image inspect "$known" > /dev/null 2>&1; then
            "$engine" tag "$known" "$tag" && echo "$name: here as $tag" && return
        fi
    done
    fail "$name: the engine took it and has no image $id"
}

for at in */release.json; do
    [ -e "$at" ] || fail "there is no release in this folder"
    one "${at%/release.json}"
done
