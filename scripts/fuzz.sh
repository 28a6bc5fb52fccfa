#!/usr/bin/env bash
# Runs every fuzz target of fuzz/ for some seconds, from its kept corpus. Usage: scripts/fuzz.sh SECONDS
# Works on a stable toolchain: the coverage that libFuzzer needs is stable, only sanitizers are not.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
tools=$PWD/.cache/tools
export PATH=$tools/bin:$PATH

command -v cargo-fuzz >/dev/null || cargo install --locked --quiet --root "$tools" cargo-fuzz
for target in $(cargo fuzz list); do
  echo "fuzzing $target for $seconds s"
  # New inputs go to a scratch corpus; the kept one is only read.
  mkdir -p ".cache/fuzz/$target" "fuzz/corpus/$target"
  cargo fuzz run --sanitizer none --release "$target" ".cache/fuzz/$target" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -rss_limit_mb=2048 -print_final_stats=1
done
echo "no target found a fault"
