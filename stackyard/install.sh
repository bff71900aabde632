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

# $1: a key of the statement with its indentation. Its value: the statement has a key a line.
said() { sed -n "s/^$1: \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$name/release.json"; }

# The archive says itself what an engine makes of it: the image that was signed, and no other.
whole() {
    id=$(said '  "id"') manifest=$(said '  "digest"')
    blob='"blobs/sha256/[0-9a-f]{64}"'
    image="\\[\\{\"Config\": \"blobs/sha256/${id#*:}\", \"RepoTags\": null, \"Layers\": \\[($blob(, )?)*\\]\\}\\]"
    notes="{\"org.opencontainers.image.ref.name\": \"$name\"}"
    index="{\"mediaType\": \"application/vnd.oci.image.manifest.v1+json\", \"digest\": \"$manifest\","
    index="{\"schemaVersion\": 2, \"manifests\": [$index \"size\": $(said '  "size"'), \"annotations\": $notes}]}"
    set -f
    for path in $(tar -tf "$name/image.tar"); do
        sum=${path#blobs/sha256/}
        case $path in
        oci-layout) continue ;;
        manifest.json) content "$path" | tr -d '\n' | grep -qxE "$image" && continue ;;
        index.json) [ "$(content "$path")" = "$index" ] && continue ;;
        blobs/sha256/*)
            grep -qF "\"sha256:$sum\"" "$name/release.json" || fail "$name: $sum is not signed for"
            [ "$(content "$path" | sha256sum | cut -d ' ' -f 1)" = "$sum" ] && continue
            ;;
        esac
        fail "$name: $path is not what was signed"
    done
}

# $1: a file of the archive; of two by one name both.
content() { tar -xOf "$name/image.tar" "$1"; }

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
    whole
    "$engine" load -q -i "$name/image.tar" > /dev/null || fail "$name: the engine does not take it"
    tag="stackyard/$(said ' "stack"'):$(said ' "base"')"
    if grep -q '^  "sources": ' "$name/release.json"; then tag="$tag-$(said ' "version"')"; fi
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
