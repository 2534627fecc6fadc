#!/usr/bin/env bash
# Installs redis-server, which the tests and benchmarks start themselves on free
# ports. Does nothing where it is in PATH already. Needs apt-get; elsewhere it
# says what to install and fails.
set -euo pipefail

if command -v redis-server >/dev/null; then
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  cat >&2 <<'MESSAGE'
redis-server is not in PATH, and this system has no apt-get to install it with.
Install Redis 7 or later with the system's package manager, so that
`redis-server --version` answers, and run this again.
MESSAGE
  exit 1
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "redis-server is not in PATH; installing it needs root or sudo: apt-get install redis-server" >&2
    exit 1
  fi
  as_root=(sudo)
fi

apt() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@"
}

echo "redis-server is not in PATH; installing it with apt-get"
# An unreachable source that has nothing to do with Redis must not stop this;
# whether the package can be had is for the installation to say.
apt update || echo "apt-get update failed; trying with the lists that are here" >&2
apt install --no-install-recommends redis-server

if ! command -v redis-server >/dev/null; then
  echo "apt-get installed the package redis-server, but no redis-server is in PATH" >&2
  exit 1
fi
redis-server --version
