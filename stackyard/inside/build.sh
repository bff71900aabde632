#!/usr/bin/env bash
# Sourced by the RUN steps of the rendered Dockerfiles; everything it uses is mounted below /mnt,
# a tmpfs, so that no trace of it stays in a layer.
#   /mnt/tools     uv, and wheels/ with the caller's local wheels, if any; for a build without a
#                  network also bundle.json, sdists/ and debs/ (all wheels are then in wheels/)
#   /mnt/packages  Debian packages with their index, locked by version and hash; then no package
#                  sources are asked
#   /mnt/secrets   the caller's settings, each optional: ca.pem, uv.toml, pip.conf, apt.sources
#   /mnt/cache     package caches kept by the engine
set -euo pipefail

# The start of this step, and the time that all its files get (2 January 1980: zip files have none
# before 1980). Programs that write a time into their output take it from the variable.
: > /mnt/.began
sleep 0.02 # file times move in ticks of up to 10 ms: later files are newer
export SOURCE_DATE_EPOCH=315619200
# Only where this shell is a build step's first process: its changes are then the image's.
if [ $$ = 1 ]; then trap end_step EXIT; fi

secrets=/mnt/secrets
# The order of sets must not decide what a build writes.
export PYTHONHASHSEED=0
export PYTHONDONTWRITEBYTECODE=1 UV_CACHE_DIR=/mnt/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
export UV_NO_PROGRESS=1 UV_CONCURRENT_DOWNLOADS=8 HOME=/mnt/home PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_CACHE_DIR=/mnt/cache/pip PIP_ROOT_USER_ACTION=ignore
# Temporary files of programs (uv's locks, torch's caches) stay out of the layer, too.
export TMPDIR=/mnt/tmp
mkdir -p "$HOME" "$TMPDIR"
# NVIDIA's images pin all their packages in a constraint file that pip reads in every call, and
# images based on them make uv read it, too. These steps install from locks, by hash;
# assert_unchanged protects the base.
unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT UV_CONSTRAINT UV_BUILD_CONSTRAINT UV_OVERRIDE UV_SYSTEM_PYTHON
if [ -s $secrets/ca.pem ]; then
  export SSL_CERT_FILE=$secrets/ca.pem REQUESTS_CA_BUNDLE=$secrets/ca.pem PIP_CERT=$secrets/ca.pem
fi
if [ -s $secrets/uv.toml ]; then export UV_CONFIG_FILE=$secrets/uv.toml; fi
if [ -s $secrets/pip.conf ]; then export PIP_CONFIG_FILE=$secrets/pip.conf; fi

# apt ARGUMENT...: run apt-get with locked packages, the caller's package sources, or the base's own.
apt() {
  local options=(-qq -o "Acquire::CAInfo=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
    -o Dir::Log=/mnt/log -o APT::Sandbox::User=root -o APT::Install-Recommends=false) cache=/mnt/cache
  # Indexes of all bases have one address and one time: a shared cache would mix them up.
  if locked; then cache=/mnt/locked; fi
  mkdir -p $cache/apt-lists/partial $cache/apt/archives/partial /mnt/log /mnt/sources
  options+=(-o "Dir::State::Lists=$cache/apt-lists" -o "Dir::Cache=$cache/apt")
  if locked; then
    # Checked when they were fetched, or by the signature of the release that they came with.
    echo 'deb [trusted=yes] file:/mnt/packages ./' > /mnt/sources/locked.list
  elif [ -s $secrets/apt.sources ]; then
    cp $secrets/apt.sources /mnt/sources/caller.sources
  fi
  if [ -n "$(ls /mnt/sources)" ]; then
    options+=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/mnt/sources)
  fi
  DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@"
}

# settle ROOT: give all files that this step wrote one time, and remove notes that builds differ in.
# An image built again from the same locks is then the same, byte for byte.
settle() {
  local root=${1%/} cache
  rm -f "$root"/var/cache/ldconfig/aux-cache
  # uv notes here when it read a local wheel.
  find "$root/" -xdev -path '*.dist-info/uv_cache.json' -newercm /mnt/.began | while read -r cache; do
    rm "$cache"
    sed -i '/\.dist-info\/uv_cache\.json,/d' "${cache%/*}/RECORD"
  done
  find "$root/" -xdev -path "$root/mnt" -prune -o -newercm /mnt/.began -print0 |
    xargs -0 -r touch --no-create --no-dereference --date="@$SOURCE_DATE_EPOCH"
}

end_step() {
  local code=$?
  trap - EXIT
  if [ "$code" = 0 ]; then settle / || code=$?; fi
  exit "$code"
}

offline() { [ -f /mnt/tools/bundle.json ]; }
locked() { [ -f /mnt/packages/Packages ]; }

# apt_install PACKAGE...
apt_install() {
  apt update
  apt install -y "$@"
  rm -rf /var/log/* /var/cache/debconf/*-old /var/lib/dpkg/*-old /etc/ssh/ssh_host_*
}

# fetch_packages OUT PACKAGE...: fetch binary packages from the bundle, from locked packages or from
# package sources.
fetch_packages() {
  local out=$1 package from=/mnt/tools/debs what='the bundle holds'
  shift
  mkdir -p "$out"
  if locked; then from=/mnt/packages what='the locked packages hold'; fi
  if offline || locked; then
    for package in "$@"; do
      if ! cp "$from/$package"_*.deb "$out"; then
        echo "$what no package $package" >&2
        return 1
      fi
    done
  else
    apt update
    (cd "$out" && apt download "$@")
  fi
}

# unpack_system PACKAGE...: unpack binary packages of another distribution beside the base's files.
# It replaces no file of the base and runs no package's script; a program that lacks a library
# fails the build.
unpack_system() {
  local root=${UNPACK_ROOT:-/} top package
  if ! offline; then
    echo "this base is built from a bundle (invoke bundle, invoke build --offline FILE): its own" \
      "package sources do not hold $*" >&2
    return 1
  fi
  fetch_packages /mnt/debs "$@"
  mkdir -p /mnt/unpacked && cd /mnt/unpacked
  for package in /mnt/debs/*.deb; do dpkg-deb -x "$package" .; done
  # Where /bin is a link to /usr/bin, the packages' files in /bin belong there.
  for top in bin sbin lib lib64; do
    if [ -d "$top" ] && [ -L "$root/$top" ]; then
      mkdir -p "usr/$top" && cp -a "$top/." "usr/$top/" && rm -r "$top"
    fi
  done
  # iproute2's traffic control modules need libraries that it only recommends.
  rm -rf usr/share/man usr/share/locale usr/share/lintian usr/share/info usr/lib/*/tc etc/ssh/ssh_host_*
  find usr/share/doc ! -type d ! -name copyright -delete 2>/dev/null || true
  find . -type f -perm /6000 -exec chmod a-s {} +
  # The package's scripts would make this link.
  if [ -e usr/bin/vim.tiny ]; then ln -sf vim.tiny usr/bin/vim; fi
  # Files only: the base's folders keep their mode and owner.
  find . ! -type d -print0 | tar -c --null --files-from=- | tar -x -C "$root" --skip-old-files
  make_users "$root/etc"
  ldconfig -r "$root"
  assert_loadable usr
}

# make_users ETC: add sshd's own user, and root without a password. Without a shadow file
# systemd's name service reports root as locked, and sshd refuses its logins with any key.
make_users() {
  local id=999
  if ! grep -q '^sshd:' "$1/passwd"; then
    while cut -d: -f3 "$1/passwd" | grep -qx "$id"; do id=$((id - 1)); done
    echo "sshd:x:$id:65534::/run/sshd:/usr/sbin/nologin" >> "$1/passwd"
  fi
  if [ ! -e "$1/shadow" ]; then (umask 077 && echo 'root:*:20000:0:99999:7:::' > "$1/shadow"); fi
}

# assert_loadable FOLDER: fail unless every unpacked program and library finds its libraries.
assert_loadable() {
  local missing
  missing=$(find "$1" -type f | while read -r file; do
    { ldd "/$file" 2>/dev/null || true; } | sed -n "s|^\s*\(.*\) => not found|$file needs \1|p"
  done)
  if [ -n "$missing" ]; then
    printf 'libraries are missing, add their packages to unpack_with of the base:\n%s\n' "$missing" >&2
    return 1
  fi
}

# unpack_text OUT PACKAGE...: unpack the text of Debian's fortune packages.
unpack_text() {
  local out=$1
  shift
  fetch_packages /mnt/text "$@"
  mkdir -p "$out" && cd /mnt/text
  for package in *.deb; do dpkg-deb -x "$package" unpacked; done
  local from=unpacked/usr/share/games/fortunes
  cat $from/tang300 $from/song100 | plain_lines > "$out/zh.txt"
  cat $from/science $from/wisdom | plain_lines > "$out/en.txt"
  cp unpacked/usr/share/doc/fortunes-zh/copyright "$out/zh.copyright"
  cp unpacked/usr/share/doc/fortunes/copyright "$out/en.copyright"
}

# plain_lines: remove terminal colours, overstriking, separators, indentation and empty lines.
plain_lines() {
  sed -e 's/\x1b\[[0-9;]*m//g' -e ':a' -e 's/[^\x08]\x08//' -e 'ta' -e '/^%$/d' -e 's/^[[:space:]]*//' -e '/^$/d'
}

# uv_install LOCK OPTION...: install exactly the wheels of a lock, hashes checked, for the first
# python3 on PATH: a distribution's own, or that of a virtual environment.
uv_install() {
  local lock=$1
  shift
  local options=(--python "$(command -v python3)" --no-deps --require-hashes --only-binary :all: "$@")
  if offline; then options+=(--offline --no-index); fi
  if [ -d /mnt/tools/wheels ]; then options+=(--find-links /mnt/tools/wheels); fi
  if grep -q '^[A-Za-z]' "$lock"; then /mnt/tools/uv pip install "${options[@]}" -r "$lock"; fi
}

# install_locked LOCK [INDEX]: install a lock into the image. INDEX has the wheels that neither the
# caller's folders nor the caller's index hold (CPU builds of torch).
install_locked() {
  local options=(--break-system-packages)
  if [ -n "${2:-}" ] && [ ! -d /mnt/tools/wheels ]; then
    options+=(--extra-index-url "$2" --index-strategy unsafe-best-match)
  fi
  uv_install "$1" "${options[@]}"
}

# some_of LOCK PATTERN...: print the distributions of a lock whose names match, with their hashes.
some_of() {
  local lock=$1 line pattern taken=''
  shift
  while IFS= read -r line; do
    if [[ $line == [A-Za-z0-9]* ]]; then
      taken=''
      for pattern in "$@"; do
        # shellcheck disable=SC2053 # a pattern
        if [[ ${line%%==*} == $pattern ]]; then taken=yes; fi
      done
    fi
    if [ -n "$taken" ]; then printf '%s\n' "$line"; fi
  done < "$lock"
}

# install_built: install the wheels that earlier stages built, whose sources were checked there.
install_built() {
  /mnt/tools/uv pip install --python "$(command -v python3)" --break-system-packages --no-deps \
    --offline --no-index /mnt/wheels/*/*.whl
}

# fetch_sdist LOCK OUT: fetch the one sdist that a lock names, hash checked.
fetch_sdist() {
  local lock=$1 out=$2 file
  mkdir -p "$out"
  if ! offline; then
    python3 -m pip download -q --no-deps --no-binary :all: --no-build-isolation --require-hashes \
      -d "$out" -r "$lock"
    return
  fi
  for file in /mnt/tools/sdists/*.tar.gz; do
    if grep -q "sha256:$(sha256sum < "$file" | cut -d ' ' -f 1)" "$lock"; then cp "$file" "$out"; fi
  done
  if [ -z "$(ls "$out")" ]; then
    echo "the bundle holds no sdist with the hash of $(grep '^[A-Za-z]' "$lock")" >&2
    return 1
  fi
}

# build_wheel LOCK BUILD_LOCK FIXES OUT: fetch the sdist, apply fixes, build it with nothing but the
# locked build requirements. Environment: the build's own.
build_wheel() {
  local lock=$1 build_lock=$2 fixes=$3 out=$4
  mkdir -p /mnt/build
  uv_install "$build_lock" --target /mnt/build
  use_tools /mnt/build
  fetch_sdist "$lock" /mnt/sdist
  make_wheel /mnt/sdist/*.tar.gz /mnt/build "$fixes" "$out"
}

# use_tools FOLDER: use a build's Python packages and programs; hide torch from builds without it.
use_tools() {
  if [ -n "${HIDE_TORCH:-}" ]; then
    echo 'raise ModuleNotFoundError("torch is hidden from this build", name="torch")' > "$1/torch.py"
  fi
  export PYTHONPATH="$1${TORCH_SITE:+:${TORCH_SITE:-}}" PATH="$1/bin:$PATH"
}

# make_wheel ARCHIVE TOOLS FIXES OUT: build a wheel of a source archive with the packages in TOOLS.
# Code of users' own trees runs here, so that step has neither the caller's settings nor caches
# that other builds read.
make_wheel() {
  local archive=$1 tools=$2 fixes=$3 out=$4
  mkdir -p /mnt/source "$out"
  use_tools "$tools"
  tar -C /mnt/source -xzf "$archive" --strip-components=1
  python3 /mnt/apply_fixes.py "$fixes" --stage source --root /mnt/source
  python3 -m pip wheel -q --no-deps --no-build-isolation --no-cache-dir -w "$out" /mnt/source
  ls -l "$out"
}

# require_wheel PACKAGE OUT: fail unless the wheel that was built is of that package.
require_wheel() {
  local wheel name plain='s/[-_.]\{1,\}/_/g'
  wheel=$(basename "$2"/*.whl)
  name=${wheel%%-*}
  if [ "$(sed "$plain" <<< "${name,,}")" != "$(sed "$plain" <<< "${1,,}")" ]; then
    echo "the tree is that of $name, not of $1 (it built $wheel)" >&2
    return 1
  fi
}

# assert_met PACKAGES REPLACED: fail unless the users' own packages have their requirements.
# Both are lists separated by commas; REPLACED are packages that fixes left out or changed.
assert_met() {
  local said missing code=0
  said=$(/mnt/tools/uv pip check --python "$(command -v python3)" 2>&1) || code=$?
  if [ "$code" -gt 1 ]; then # 1: a requirement of some package is missing
    printf 'what is installed could not be checked\n%s\n' "$said" >&2
    return 1
  fi
  missing=$(grep -E "^The package .(${1//,/|}). requires " <<< "$said" \
    | grep -vE " requires .(${2//,/|})[^A-Za-z0-9._-]") || true
  if [ -n "$missing" ]; then
    printf 'own source: the lock does not hold what it requires\n%s\n' "$missing" >&2
    return 1
  fi
}

# warm MODULE...: import modules once, so that the layer has the bytecode of all used modules and no
# others; this is also the first proof that the image works. Modules inside torch and setuptools
# are named for their bytecode only: a version of the base may lack them.
warm() {
  if [ $$ = 1 ]; then settle /; fi # bytecode holds the time of its source
  PYTHONDONTWRITEBYTECODE='' python3 -W ignore - "$@" <<'PY'
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        inside = name.split(".")[0] in ("torch", "setuptools") and "." in name
        if not inside or not f"{name}.".startswith(f"{error.name}.") or error.name in ("torch", "setuptools"):
            raise
        print(f"{name}: not in this base, left out")
PY
}

# install_runtime: install real text, the node's programs, and sshd's configuration without any key.
# COPY would give folders the time of the build.
install_runtime() {
  local from=/mnt/inside
  install -D -m 0644 -t /usr/local/lib/stackyard $from/node.py
  install -m 0644 -t /etc/ssh $from/sshd_config $from/ssh_config
  install -D -m 0644 -t /usr/local/share/stackyard/text /mnt/text/*
}

# inventory: print NAME==VERSION of each installed distribution; the first on the path counts.
inventory() {
  python3 - <<'PY'
import importlib.metadata as m, re
found = {}
for d in m.distributions():
    if name := d.metadata["Name"]:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), f"{name}=={d.version}")
print("\n".join(sorted(found.values())))
PY
}

# assert_provided NAME[==VERSION]...: fail unless the base has the distributions that its definition
# lists. A version may be shorter than the installed one: 2.5 stands for 2.5.1 and for 2.5+cu130.
assert_provided() {
  python3 - "$@" <<'PY'
import importlib.metadata as m, re, sys
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
have = {}
for d in m.distributions():  # imports take the first on the path
    if d.metadata["Name"]:
        have.setdefault(plain(d.metadata["Name"]), d.version)
wrong = []
for word in sys.argv[1:]:
    name, _, version = word.partition("==")
    found = have.get(plain(name))
    if found is None or (version and found != version and not found.startswith((version + ".", version + "+"))):
        wrong.append(f"{word} (found: {found or 'none'})")
if wrong:
    sys.exit("the base does not hold what it is to provide: " + ", ".join(wrong))
PY
}

# assert_unchanged BEFORE [REPLACED...]: fail unless the base's distributions have their versions
# still, except those that its definition lets a lock replace.
assert_unchanged() {
  local changed before=$1
  shift
  local but
  but=$(printf '%s|' "$@" | sed 's/-/[-_.]/g')
  changed=$(comm -23 "$before" <(inventory) | grep -viE "^(${but%|})==") || true
  if [ -n "$changed" ]; then
    echo "the base's own packages were replaced or removed: $changed" >&2
    return 1
  fi
}
