#!/usr/bin/env bash
# Sourced by the RUN steps of the rendered Dockerfiles; everything it uses is mounted below /mnt,
# a tmpfs, so that no trace of it stays in a layer.
#   /mnt/tools     uv, and wheels/ with the caller's local wheels, if any
#   /mnt/secrets   the caller's settings, each optional: ca.pem, uv.toml, pip.conf, apt.sources
#   /mnt/cache     package caches kept by the engine
set -euo pipefail

secrets=/mnt/secrets
export PYTHONDONTWRITEBYTECODE=1 UV_CACHE_DIR=/mnt/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
export UV_NO_PROGRESS=1 UV_CONCURRENT_DOWNLOADS=8 HOME=/mnt/home PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_CACHE_DIR=/mnt/cache/pip PIP_ROOT_USER_ACTION=ignore
# Also what programs leave in /tmp (uv's locks, torch's caches) stays out of the layer.
export TMPDIR=/mnt/tmp
mkdir -p "$HOME" "$TMPDIR"
if [ -s $secrets/ca.pem ]; then
  export SSL_CERT_FILE=$secrets/ca.pem REQUESTS_CA_BUNDLE=$secrets/ca.pem PIP_CERT=$secrets/ca.pem
fi
if [ -s $secrets/uv.toml ]; then export UV_CONFIG_FILE=$secrets/uv.toml; fi
if [ -s $secrets/pip.conf ]; then export PIP_CONFIG_FILE=$secrets/pip.conf; fi

# The caller's package sources where given, the base's own otherwise.
apt() {
  local options=(-qq -o "Acquire::CAInfo=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
    -o Dir::State::Lists=/mnt/cache/apt-lists -o Dir::Cache=/mnt/cache/apt
    -o Dir::Log=/mnt/log -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
  mkdir -p /mnt/cache/apt-lists/partial /mnt/cache/apt/archives/partial /mnt/log
  if [ -s $secrets/apt.sources ]; then
    mkdir -p /mnt/sources && cp $secrets/apt.sources /mnt/sources/caller.sources
    options+=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/mnt/sources)
  fi
  DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@"
}

# apt_install PACKAGE...
apt_install() {
  apt update
  apt install -y "$@"
  rm -rf /var/log/* /var/cache/debconf/*-old /var/lib/dpkg/*-old /etc/ssh/ssh_host_*
}

# Unpack the text of Debian's fortune packages: unpack_text OUT PACKAGE...
unpack_text() {
  local out=$1
  shift
  apt update
  mkdir -p /mnt/text "$out" && cd /mnt/text
  apt download "$@"
  for package in *.deb; do dpkg-deb -x "$package" unpacked; done
  local from=unpacked/usr/share/games/fortunes
  cat $from/tang300 $from/song100 | plain_lines > "$out/zh.txt"
  cat $from/science $from/wisdom | plain_lines > "$out/en.txt"
  cp unpacked/usr/share/doc/fortunes-zh/copyright "$out/zh.copyright"
  cp unpacked/usr/share/doc/fortunes/copyright "$out/en.copyright"
}

# Terminal colours, overstriking, separators, indentation and empty lines out.
plain_lines() {
  sed -e 's/\x1b\[[0-9;]*m//g' -e ':a' -e 's/[^\x08]\x08//' -e 'ta' -e '/^%$/d' -e 's/^[[:space:]]*//' -e '/^$/d'
}

# install_locked LOCK [INDEX]: exactly what a lock names, as wheels, hashes checked. INDEX serves
# what neither the caller's folders nor the caller's index hold (CPU builds of torch).
install_locked() {
  local options=(--system --break-system-packages --no-deps --require-hashes --only-binary :all:)
  if [ -d /mnt/tools/wheels ]; then
    options+=(--find-links /mnt/tools/wheels)
  elif [ -n "${2:-}" ]; then
    options+=(--extra-index-url "$2" --index-strategy unsafe-best-match)
  fi
  if grep -q '^[A-Za-z]' "$1"; then /mnt/tools/uv pip install "${options[@]}" -r "$1"; fi
}

# Wheels that earlier stages built, from /mnt/wheels/*/*.whl: their sources were checked there.
install_built() {
  /mnt/tools/uv pip install --system --break-system-packages --no-deps --no-index /mnt/wheels/*/*.whl
}

# build_wheel LOCK BUILD_LOCK FIXES OUT: fetch the sdist (hash checked), repair it, build it
# with nothing but the locked build requirements. Environment: the build's own.
build_wheel() {
  local lock=$1 build_lock=$2 fixes=$3 out=$4
  mkdir -p /mnt/build /mnt/sdist /mnt/source "$out"
  /mnt/tools/uv pip install --target /mnt/build --no-deps --require-hashes --only-binary :all: \
    --python "$(command -v python3)" -r "$build_lock"
  export PYTHONPATH="/mnt/build${TORCH_SITE:+:${TORCH_SITE:-}}" PATH="/mnt/build/bin:$PATH"
  python3 -m pip download -q --no-deps --no-binary :all: --no-build-isolation --require-hashes \
    -d /mnt/sdist -r "$lock"
  tar -C /mnt/source -xzf /mnt/sdist/*.tar.gz --strip-components=1
  python3 /mnt/apply_fixes.py "$fixes" --stage source --root /mnt/source
  python3 -m pip wheel -q --no-deps --no-build-isolation --no-cache-dir -w "$out" /mnt/source
  ls -l "$out"
}

# warm MODULE...: import them once, so that the bytecode of what is really used (and only that)
# is in the layer; also the first proof that the image works.
warm() {
  local modules
  modules=$(printf ', %s' "$@")
  PYTHONDONTWRITEBYTECODE='' python3 -W ignore -c "import ${modules:2}"
}

# assert_unchanged BEFORE: what the base provided is still there, bit for bit the same version.
inventory() {
  python3 - <<'PY'
import importlib.metadata as m
print("\n".join(sorted(f"{d.metadata['Name']}=={d.version}" for d in m.distributions())))
PY
}
assert_unchanged() {
  local changed
  changed=$(comm -23 "$1" <(inventory)) || true
  if [ -n "$changed" ]; then
    echo "the base's own packages were replaced or removed: $changed" >&2
    return 1
  fi
}
