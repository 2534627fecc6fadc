#!/usr/bin/env bash
# Builds a Go program at a pinned version.
#
# usage: install-tool.sh PACKAGE VERSION TARGET
#
# The program is built in a directory of its own and moved into place, so an
# interrupted build leaves no half-written TARGET that would pass for a good one.
set -euo pipefail

if [[ $# -ne 3 ]]; then
  echo "usage: install-tool.sh PACKAGE VERSION TARGET" >&2
  exit 2
fi
package=$1 version=$2 target=$3

mkdir -p "$(dirname "$target")"
build=$(mktemp -d "$(dirname "$target")/.build-XXXXXX")
trap 'rm -rf "$build"' EXIT

echo "building ${package##*/} $version; this happens once and takes a minute or more"
# The project's own flags, such as -mod=vendor, must not leak into the tool.
# GOWORK=off: a workspace around the project does not concern it either.
GOFLAGS=-buildvcs=false GOWORK=off GOBIN=$build go install "$package@$version"
mv "$build/${package##*/}" "$target"
