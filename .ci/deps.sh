#!/usr/bin/env bash
# Installs a server that tests and benchmarks start themselves on free ports:
# redis-server, or postgresql for the benchmark that compares with it. Does nothing
# where it is installed already. Needs apt-get; elsewhere it says what to install
# and fails.
#
# usage: deps.sh [redis-server|postgresql]
set -euo pipefail

package=${1:-redis-server}
case $package in
redis-server)
  program=redis-server advice='Redis 7 or later'
  ;;
postgresql)
  program=initdb advice='PostgreSQL 13 or later'
  # Debian keeps the server's programs out of PATH.
  for dir in /usr/lib/postgresql/*/bin; do PATH=$PATH:$dir; done
  ;;
*)
  echo "unknown package $package" >&2
  exit 2
  ;;
esac

if command -v "$program" >/dev/null; then
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  cat >&2 <<MESSAGE
$program is not in PATH, and this system has no apt-get to install it with.
Install $advice with the system's package manager, so that
\`$program --version\` answers, and run this again.
MESSAGE
  exit 1
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "$program is not in PATH; installing it needs root or sudo: apt-get install $package" >&2
    exit 1
  fi
  as_root=(sudo)
fi

apt() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"
}

echo "$program is not in PATH; installing $package with apt-get"
# An unreachable source that has nothing to do with the package must not stop this; the
# installation fails if the package is not available.
apt update || echo "apt-get update failed; trying with the existing lists" >&2
apt install --no-install-recommends "$package"

for dir in /usr/lib/postgresql/*/bin; do PATH=$PATH:$dir; done
if ! command -v "$program" >/dev/null; then
  echo "apt-get installed the package $package, but no $program is in PATH" >&2
  exit 1
fi
"$program" --version
