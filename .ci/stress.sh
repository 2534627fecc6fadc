#!/usr/bin/env bash
# Runs the tests of packages again and again on a machine that is busy with something
# else: beside BUSY (8) processes that never wait, in random order, every second time
# with one processor. It shows the tests that assume a fast machine. Prints runs and
# failures of each package, keeps the output of failed runs, and fails if there is one.
# JOBS packages run at the same time; RACE=-race adds the race detector.
#
# usage: [COUNT=20] [BUSY=8] [JOBS=1] [RACE=] [TIMEOUT=10m] stress.sh [package]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go=${GO:-go} count=${COUNT:-20} busy=${BUSY:-8} jobs=${JOBS:-1} race=${RACE:-} timeout=${TIMEOUT:-10m}
results=.cache/stress
rm -rf "$results"
mkdir -p "$results"

mapfile -t packages < <("$go" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "${@:-./...}" | sed '/^$/d')
if ((${#packages[@]} == 0)); then
  echo "no package has tests: ${*:-./...}" >&2
  exit 2
fi

# Built once, and before the machine is made busy.
binaries=()
for dir in "${packages[@]}"; do
  name=${dir#"$PWD"/}
  binary=$PWD/$results/${name//\//_}.test
  "$go" test ${race:+"$race"} -c -o "$binary" "$dir"
  binaries+=("$binary")
done

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < busy; i++)); do
  while :; do :; done &
  pids+=($!)
done

# stress DIR BINARY runs one package's tests and leaves the number of failed runs in a file.
stress() {
  local dir=$1 binary=$2 failures=0 run log processors
  for ((run = 1; run <= count; run++)); do
    log=${binary%.test}-$run.log
    processors=$((run % 2 == 0 ? 1 : $(nproc)))
    # From the package's folder, where its testdata is.
    if (cd "$dir" && CI=true GOMAXPROCS=$processors "$binary" -test.shuffle=on -test.timeout="$timeout") >"$log" 2>&1; then
      rm "$log"
    else
      failures=$((failures + 1))
    fi
  done
  printf '%-28s %d runs, %d failed\n' "${dir#"$PWD"/}" "$count" "$failures"
  echo "$failures" >"${binary%.test}.failed"
}

running=()
for i in "${!packages[@]}"; do
  if ((${#running[@]} >= jobs)); then
    wait -n -p ended "${running[@]}"
    for j in "${!running[@]}"; do
      if ((running[j] == ended)); then unset "running[j]"; fi
    done
  fi
  stress "${packages[i]}" "${binaries[i]}" &
  running+=($!)
done
wait "${running[@]}"

if grep -qv '^0$' "$results"/*.failed; then
  echo "the output of the failed runs is in $results" >&2
  exit 1
fi
