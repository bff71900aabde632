#!/bin/sh
# Install the releases of this folder on a machine without a network, after checking them.
#   sh install.sh [ALLOWED_SIGNERS]      ALLOWED_SIGNERS: whose releases you accept (ssh-keygen(1));
#                                        the bundle's own list, unless given, proves nothing about
#                                        who made the bundle, only that it is whole
# It needs docker or podman, tar and sha256sum; ssh-keygen for the signatures:
# without it nothing is installed where ALLOWED_SIGNERS is given.
LC_ALL=C; export LC_ALL
case ${1:-} in '') signers=allowed_signers ;; /*) signers=$1 ;; *) signers=$PWD/$1 ;; esac
cd "$(dirname "$0")" || exit 1
here=$PWD
namespace=release@stackyard
fail() { echo "error: $*" >&2; exit 1; }
engine=$(command -v docker || command -v podman) || fail "neither docker nor podman is here"
command -v sha256sum > /dev/null || fail "sha256sum is needed"
[ -e "$signers" ] || fail "there is no $signers"
# A caller who names signers wants nothing installed that they did not sign.
[ -z "${1:-}" ] || command -v ssh-keygen > /dev/null ||
    fail "ssh-keygen is needed to check signatures against $signers"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
[ -n "${1:-}" ] || echo "note: signatures are checked against the bundle's own allowed_signers"

# $1: a key of the statement, with its indentation. Print its value; each key has a line of its own.
said() { sed -n "s/^$1: \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$name/release.json"; }

# $1: a digest of the statement. Fail unless the blob of that name exists here and has that digest.
checked=' '
check() {
    case $checked in *" $1 "*) return ;; esac
    [ "$(sha256sum < "$(blob "$1")" | cut -d ' ' -f 1)" = "${1#*:}" ] ||
        fail "$name: $(blob "$1") is not what was signed"
    checked="$checked$1 "
}
blob() { echo "blobs/sha256/${1#*:}"; }

# $1: the manifest's size. Make the files of an archive that is both docker's and an OCI image
# layout, of signed blobs alone.
gather() {
    layers=$(sed -n '/^  "layers": \[$/,/^  \]/s/^    "digest": "\([^"]*\)",$/\1/p' "$name/release.json")
    rm -rf "$work/image" && mkdir -p "$work/image/blobs/sha256" && cd "$work/image" || exit 1
    listed=''
    for digest in $layers; do listed="$listed${listed:+, }\"$(blob "$digest")\""; done
    echo "[{\"Config\": \"$(blob "$id")\", \"RepoTags\": null, \"Layers\": [$listed]}]" > manifest.json
    entry="{\"mediaType\": \"application/vnd.oci.image.manifest.v1+json\", \"digest\": \"$manifest\","
    entry="$entry \"size\": $1, \"annotations\": {\"org.opencontainers.image.ref.name\": \"$name\"}}"
    echo "{\"schemaVersion\": 2, \"manifests\": [$entry]}" > index.json
    echo '{"imageLayoutVersion": "1.0.0"}' > oci-layout
    cd "$here" || exit 1
    for digest in "$id" "$manifest" $layers; do
        check "$digest"
        ln -sf "$here/$(blob "$digest")" "$work/image/$(blob "$digest")" || exit 1
    done
}

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
    [ "$(said ' "name"')" = "$name" ] || fail "$name is signed under another name"
    id=$(said '  "id"') manifest=$(said '  "digest"')
    gather "$(said '  "size"')"
    tar -chf - -C "$work/image" oci-layout index.json manifest.json blobs |
        "$engine" load -q > /dev/null || fail "$name: the engine does not take it"
    tag="stackyard/$(said ' "stack"'):$(said ' "base"')"
    if grep -q '^  "sources": ' "$name/release.json"; then tag="$tag-$(said ' "version"')"; fi
    for known in "$id" "$manifest"; do
        if "$engine" image inspect "$known" > /dev/null 2>&1; then
            "$engine" tag "$known" "$tag" && echo "$name: here as $tag" && return
        fi
    done
    fail "$name: the engine took it and has no image $id"
}

# Print the releases in an order in which the last of each tag is the newest: superseded revisions
# first, then the last revision of each version and base by the time of its statement.
listed() {
    for at in */release.json; do
        name=${at%/release.json}
        echo "${name%-r*} ${name##*-r} $(said ' "created"') $name"
    done | sort -k 1,1 -k 2,2nr > "$work/found"
    before=
    while read -r prefix number created name; do
        newest=1
        [ "$prefix" != "$before" ] || newest=0
        before=$prefix
        echo "$newest $created $number $name"
    done < "$work/found" | sort -k 1,1n -k 2,2 -k 3,3n
}

for at in */release.json; do
    [ -e "$at" ] || fail "there is no release in this folder"
done
listed > "$work/order"
while read -r _ _ _ found <&3; do
    one "$found"
done 3< "$work/order"
