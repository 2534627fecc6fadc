#!/usr/bin/env bash
# Fuzzes what reads text from outside: each target for FUZZTIME (30s), one after
# the other, and prints what ran. Any input that a target fails on is kept by Go
# under the package's testdata/fuzz, to be committed with the mend.
#
# usage: fuzz.sh [package target]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fuzztime=${FUZZTIME:-30s}
# The library's own tests (queue, lock, strictjson, wire) have more; these are
# the ones that a stranger, a shop's engineer or an operator can reach.
targets=(
  ./handler FuzzDecodePurchase
  ./handler FuzzIdempotencyKey
  ./handler FuzzCursor
  ./handler/auth FuzzVerify
  ./cmd/flashsale/config FuzzSettings
  ./order FuzzParseAccepted
)
if (($# > 0)); then
  targets=("$@")
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
summary=()
for ((i = 0; i < ${#targets[@]}; i += 2)); do
  package=${targets[i]} target=${targets[i + 1]}
  printf -- '--- %s %s for %s\n' "$package" "$target" "$fuzztime"
  # A name that matches nothing would pass, having fuzzed nothing.
  if ! "${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$package" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  last=$(grep -o 'elapsed: .*execs: [0-9]*' "$log" | tail -n 1) || {
    cat "$log"
    echo "$package has no target $target" >&2
    exit 1
  }
  summary+=("$(printf '%-16s %-20s %s' "$package" "$target" "$last")")
done
printf '%s\n' "fuzzed:" "${summary[@]}"
