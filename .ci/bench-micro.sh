#!/usr/bin/env bash
# Measures the hot path of a purchase: all benchmarks whose names begin with
# HotPath_, COUNT times (6) for BENCHTIME (0.25s) each. Compares the result with
# bench/micro/baseline.txt, or replaces that baseline.
#
# usage: bench-micro.sh [baseline]
#
# Fails when a benchmark fails. A slower or larger result is only reported.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go=${GO:-go}
baseline=bench/micro/baseline.txt
new=.cache/bench-micro.txt

# A package that gets its first such benchmark is found without a list.
mapfile -t packages < <(grep -rl --include='*_test.go' '^func BenchmarkHotPath_' */ | xargs -n 1 dirname | sort -u | sed 's|^|./|')

mkdir -p "$(dirname "$new")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Of the last minute: other programs make times longer, but not allocations.
load=$(uptime | sed 's/.*averages*: *//; s/,* .*//')
echo "measuring ${#packages[@]} packages; this takes about a minute"
# Names contain the number of processors, and those of two files must agree: hence -cpu.
if ! CI=true "$go" test -vet=off -timeout 10m -run '^$' -bench '^BenchmarkHotPath_' -benchmem -cpu 2 \
  -benchtime "${BENCHTIME:-0.25s}" -count "${COUNT:-6}" "${packages[@]}" >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
{
  echo "go: $("$go" env GOVERSION)"
  echo "cores: $(getconf _NPROCESSORS_ONLN)"
  echo "load: $load"
  grep -E '^(Benchmark|[a-z]+: )' "$log"
} >"$new"

if [[ ${1:-} == baseline ]]; then
  cp "$new" "$baseline"
  echo "$baseline is replaced; commit it with the change that it measures, and say why"
  exit 0
fi
# One table per unit for all packages, whatever the machines.
"$BENCHSTAT" -table '' -row .fullname -ignore .config "baseline=$baseline" "new=$new"
"$go" run -C bench ./micro "$PWD/$baseline" "$PWD/$new"
