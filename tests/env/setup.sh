#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs all that kdtree's build and tests need; the only place that installs anything. Idempotent: a second run, or a
# second clone with the same lock files, downloads nothing.
#   tests/env/setup.sh           install
#   tests/env/setup.sh --print   print the Python environment's folder and exit (fails where it isn't installed)
#   tests/env/setup.sh --print-sources   the same for the folder with the source of other SGLang releases
#   tests/env/setup.sh --newest-source   fetch the source of SGLang's newest release too (39 MB), print its folder
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
say() { printf 'setup: %s\n' "$*" >&2; }

if [ -n "${KDTREE_CACHE:-}" ]; then cache=$KDTREE_CACHE
elif [ "$(id -u)" = 0 ]; then cache=/var/cache/kdtree
else cache=${XDG_CACHE_HOME:-${HOME:?setup: HOME is not set; set it, or KDTREE_CACHE}/.cache}/kdtree; fi
key=$(cat "$here/engine.lock" "$here/dev.lock" | sha256sum | cut -c1-16)
env=$cache/env-$key
sources=$cache/sglang-sources
has_sources() {  # of all that the lock names, in the folder $1
  local release hash
  while read -r release hash _; do
    [ "$(cat "$1/${release#sglang==}/.complete" 2>/dev/null)" = "${hash#--hash=sha256:}" ] || return 1
  done < <(grep '^sglang==' "$here/sglang-sources.lock")
}
# What root has set up serves everybody.
if [ -z "${KDTREE_CACHE:-}" ]; then
  if ! [ -e "$env/.complete" ] && [ -e "/var/cache/kdtree/env-$key/.complete" ]; then env=/var/cache/kdtree/env-$key; fi
  if ! has_sources "$sources" && has_sources /var/cache/kdtree/sglang-sources; then sources=/var/cache/kdtree/sglang-sources; fi
fi

if [ "${1:-}" = --print ]; then
  [ -e "$env/.complete" ] || { say "no Python environment at $env; run 'make setup'"; exit 1; }
  printf '%s\n' "$env"; exit 0
fi

if [ "${1:-}" = --print-sources ]; then
  has_sources "$sources" || { say "no SGLang sources at $sources; run 'make setup'"; exit 1; }
  printf '%s\n' "$sources"; exit 0
fi

mkdir -p "$cache" || { say "$cache can't be made; set KDTREE_CACHE to a folder of yours"; exit 1; }
exec 9>"$cache/.setup-lock"  # two clones at once: the second waits and finds all of it done
flock -n 9 || { say "another set-up is running; waiting for it"; flock 9; }

mapfile -t wanted < <(grep -v '^#' "$here/apt.txt")
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { say "Debian packages are missing and only root can install them. Run as root: apt-get install ${missing[*]}"; exit 1; }
  say "Debian packages to install: ${missing[*]}"
  # The prometheus package starts a server on every interface as it is installed; nothing here wants that one.
  if ! [ -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  apt-get -q update >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" 2>&1 |
    grep --line-buffered -E '^(Need to get|Get:|Fetched|Setting up|E:)' >&2 || true  # looked at below
  for package in "${missing[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      { say "apt-get could not install $package; see its message above"; exit 1; }
  done
fi

if ! [ -e "$env/.complete" ]; then
  free=$(df --output=avail -BG "$cache" | tail -1 | tr -dc 0-9)
  [ "$free" -ge 16 ] || { say "$cache has $free GB free and the Python environment needs 16 while it is made; set KDTREE_CACHE to another disk"; exit 1; }
  say "Python environment with SGLang 0.5.17 and torch 2.11.0: $(cat "$here"/*.lock | wc -l) packages, about 4 GB to download, 9 GB on disk, 4 minutes; into $env"
  rm -rf "$env"
  /usr/bin/python3 -m venv "$env"
  # Debian's own python3, so that the throw-away host can bind-mount the folder; --no-deps, because the lock is complete.
  if ! "$env/bin/python3" -m pip install --disable-pip-version-check --no-input --no-deps --no-cache-dir --progress-bar off \
    -r "$here/engine.lock" -r "$here/dev.lock" 2>&1 | awk '/^Collecting/ {n++; if (n % 20 == 0) {print "setup: " n " packages collected"; fflush()}}
    /^Installing/ {print "setup: installing (about a minute)"; fflush()} /^(ERROR|Successfully)/ {print substr($0, 1, 200); fflush()}' >&2
  then say "pip could not install the locked packages; see its message above"; exit 1; fi
  "$env/bin/python3" -c 'import torch, triton; print(f"setup: torch {torch.__version__}, triton {triton.__version__}")' >&2
  touch "$env/.complete"
fi
# Small packages that were added later go into what is there.
added=$env/.added-$(sha256sum <"$here/added.lock" | cut -c1-16)
if ! [ -e "$added" ]; then
  "$env/bin/python3" -m pip install --disable-pip-version-check --no-input --no-deps --no-cache-dir -q -r "$here/added.lock" >&2 ||
    { say "pip could not install the packages of added.lock into $env; see its message above"; exit 1; }
  touch "$added"
fi
has_sources "$sources" || "$env/bin/python3" "$here/fetch_sources.py" "$sources" "$here/sglang-sources.lock"
[ "${1:-}" != --newest-source ] || "$env/bin/python3" "$here/fetch_sources.py" "$cache/sglang-newest" --newest
say "ready: $env"
