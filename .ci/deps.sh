#!/usr/bin/env bash
# Installs a program that tests and benchmarks start themselves: redis-server,
# postgresql, pgbouncer, chromium for the tests of pages, or systemd-analyze for
# those of units. Does nothing where it is installed already. Needs apt-get;
# elsewhere it says what to install and fails.
#
# The services that Debian's packages bring are not started, and the package postgresql
# creates no cluster "main": tests need the programs only, and no fixed port.
#
# prometheus is not installed, because its package would start a server: promtool and
# prometheus are unpacked to .cache/prometheus, which needs no root.
#
# usage: deps.sh [redis-server|postgresql|pgbouncer|prometheus|chromium|systemd]
set -euo pipefail

package=${1:-redis-server}
packages=("$package")
case $package in
redis-server)
  program=redis-server advice='Redis 7 or later'
  ;;
postgresql)
  program=initdb advice='PostgreSQL 13 or later'
  # Debian keeps the server's programs out of PATH.
  for dir in /usr/lib/postgresql/*/bin; do PATH=$PATH:$dir; done
  ;;
pgbouncer)
  program=pgbouncer advice='PgBouncer 1.18 or later'
  PATH=$PATH:/usr/sbin # not in the PATH of every user
  ;;
systemd)
  program=systemd-analyze advice='systemd 250 or later'
  ;;
prometheus)
  program=promtool advice='Prometheus 2.42 or later'
  unpacked=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.cache/prometheus
  PATH=$PATH:$unpacked/usr/bin
  ;;
chromium)
  program=chromium advice='Chromium 120 or later'
  packages+=(fonts-liberation fonts-wqy-microhei) # without fonts, pages have no text
  # Other names that the tests accept; see internal/testing/browser.
  for other in chromium-browser google-chrome google-chrome-stable; do
    if ! command -v chromium >/dev/null && command -v "$other" >/dev/null; then program=$other; fi
  done
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
  if command -v sudo >/dev/null; then
    as_root=(sudo)
  elif [[ $package != prometheus ]]; then
    echo "$program is not in PATH; installing it needs root or sudo: apt-get install ${packages[*]}" >&2
    exit 1
  fi
fi

apt() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"
}

# Downloads the package, whose hash apt-get compares with its signed lists, and unpacks the two
# programs into the folder $1.
unpack() {
  (cd "$1" && apt-get -q -o Acquire::Retries=3 download prometheus) &&
    dpkg-deb --fsys-tarfile "$1"/prometheus_*.deb | tar -x -C "$1" ./usr/bin/promtool ./usr/bin/prometheus
}

if [[ $package == prometheus ]]; then
  echo "$program is not in PATH; unpacking the package prometheus to $unpacked"
  mkdir -p "$unpacked"
  parts=$(mktemp -d "$unpacked/parts.XXXXXX")
  trap 'rm -rf "$parts"' EXIT
  chmod 755 "$parts" # apt-get downloads as a user of its own
  # Without root the existing lists are used.
  if ! unpack "$parts" && ! { apt update && unpack "$parts"; }; then
    echo "the package prometheus cannot be downloaded: install $advice so that promtool and prometheus are in PATH" >&2
    exit 1
  fi
  rm -rf "$unpacked/usr" && mv "$parts/usr" "$unpacked/usr"
  "$program" --version
  exit 0
fi

# Writes a file for the time of the installation, unless there is one: $1 its path, $2 its mode,
# and its text on standard input.
meanwhile=()
put() {
  if [[ -e $1 ]]; then return; fi
  meanwhile+=("$1")
  ${as_root[@]+"${as_root[@]}"} install -D -m "$2" /dev/stdin "$1"
}
restore() {
  if [[ ${#meanwhile[@]} -gt 0 ]]; then ${as_root[@]+"${as_root[@]}"} rm -f "${meanwhile[@]}"; fi
}

echo "$program is not in PATH; installing ${packages[*]} with apt-get"
trap restore EXIT
# 101 forbids to start a service: see invoke-rc.d(8) and deb-systemd-invoke(1p).
put /usr/sbin/policy-rc.d 755 <<<$'#!/bin/sh\nexit 101'
if [[ $package == postgresql ]]; then
  # See pg_createcluster(1). The package's own configuration includes this folder.
  put /etc/postgresql-common/createcluster.d/flashsale-tests.conf 644 <<<'create_main_cluster = false'
fi
# An unreachable source that has nothing to do with the package must not stop this; the
# installation fails if the package is not available.
apt update || echo "apt-get update failed; trying with the existing lists" >&2
apt install --no-install-recommends "${packages[@]}"

for dir in /usr/lib/postgresql/*/bin; do PATH=$PATH:$dir; done
if ! command -v "$program" >/dev/null; then
  echo "apt-get installed the package $package, but no $program is in PATH" >&2
  exit 1
fi
"$program" --version
