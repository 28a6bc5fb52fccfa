#!/usr/bin/env bash
# Runs every fuzz target, or those named, for some seconds each.
#   scripts/fuzz.sh [SECONDS [TARGET...]]       60 seconds where nothing is said
# Needs a C++ compiler for libFuzzer and no nightly Rust: the coverage pass is switched on by hand,
# as cargo-fuzz does. Seeds and regressions are fuzz/corpus/TARGET; what a run finds goes to
# fuzz/target/corpus, and input that fails to fuzz/artifacts/TARGET. To run one input:
#   fuzz/target/HOST/release/TARGET FILE
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

seconds=${1:-60}
[ $# = 0 ] || shift
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi

command -v "${CXX:-c++}" > /dev/null || { echo "libFuzzer needs a C++ compiler (c++, or \$CXX)"; exit 1; }
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, build scripts and procedural macros are left uninstrumented.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares"
cargo build --quiet --locked --release --target "$host" "${targets[@]/#/--bin=}"

failed=()
mkdir -p target/log
for target in "${targets[@]}"; do
  found=target/corpus/$target
  log=target/log/$target.txt
  mkdir -p "$found" "artifacts/$target"
  options=()
  [ ! -f "$target.dict" ] || options=("-dict=$target.dict")
  # Inputs are small, so half a gigabyte is already an allocation that no input justifies.
  if "target/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=512 \
    -max_len=8192 -artifact_prefix="artifacts/$target/" "${options[@]}" \
    "$found" "corpus/$target" > "$log" 2>&1
  then
    # "#runs DONE cov: edges ft: features corp: inputs/bytes exec/s: … rss: …"
    echo "$target: $(grep -E '\bDONE\b' "$log")"
  else
    failed+=("$target")
    tail -n 40 "$log"
    echo "$target: FAILED; the input is in fuzz/artifacts/$target, the whole log in fuzz/$log"
  fi
done
[ ${#failed[@]} = 0 ]
