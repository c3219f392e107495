# shellcheck shell=bash
# What the scripts beside it share: where things are and how to act as another user. Sourced, never run.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # used by the scripts that source this
target=${CARGO_TARGET_DIR:-$root/target}
pg_major=15

# Postgres would pass a backtrace on to its clients, in DETAIL.
unset RUST_BACKTRACE

say() { printf '%s\n' "paylatch: $*" >&2; }

die() {
  say "$*"
  exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

as_root() {
  if is_root; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo here: $*"
  fi
}

# Prints the pg_config of the PostgreSQL that we build for, or nothing. $PG_CONFIG overrides the search.
find_pg_config() {
  local candidate
  for candidate in "${PG_CONFIG:-}" "/usr/lib/postgresql/$pg_major/bin/pg_config" "/usr/pgsql-$pg_major/bin/pg_config" \
    "/opt/homebrew/opt/postgresql@$pg_major/bin/pg_config" "$(command -v pg_config || true)"; do
    if [ -x "$candidate" ] && [[ $("$candidate" --version) == "PostgreSQL $pg_major."* ]]; then
      echo "$candidate"
      return
    fi
  done
}

# The same, or an end with one clear line.
pg_config_path() {
  local found
  found=$(find_pg_config)
  [ -n "$found" ] || die "PostgreSQL $pg_major is not installed: run \`make setup\`, or set PG_CONFIG"
  echo "$found"
}
