#!/usr/bin/env bash
# Fails when the repository tracks a file above 1 MB. A binary, a dump or a
# profile stays in every clone for ever once it has been committed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=1000000
# Staged files count, as committed: the size of the blob, not of the work tree's copy.
large=$(git ls-files -s -z |
  while IFS= read -r -d '' entry; do
    read -r _ blob _ <<<"${entry%%$'\t'*}"
    printf '%s %s\n' "$blob" "${entry#*$'\t'}"
  done |
  git cat-file --batch-check='%(objecttype) %(objectsize) %(rest)' |
  awk -v limit="$limit" '$1 == "blob" && $2 > limit { size = $2; $1 = $2 = ""; print "  " size " bytes:" $0 }')
if [[ -n $large ]]; then
  printf 'tracked files above %s bytes; remove them with `git rm --cached` and ignore them:\n%s\n' "$limit" "$large" >&2
  exit 1
fi
