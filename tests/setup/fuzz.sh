#!/usr/bin/env bash
# fuzz.sh LIBFUZZER_OPTION...: runs every fuzz target from its seeds, e.g. -max_total_time=600 for a long run.
# With -runs=N -seed=S and no corpus of earlier runs the inputs are the same every time.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${CARGO_TARGET_DIR:-target}/fuzz
unset CARGO_TARGET_DIR
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for target in $(cargo +nightly fuzz list); do
    echo "-- $target"
    mkdir -p "fuzz/corpus/$target"
    if ! RUST_BACKTRACE=0 cargo +nightly fuzz run --target-dir "$build" "$target" "fuzz/corpus/$target" \
        "fuzz/seeds/$target" -- -rss_limit_mb=4096 -print_final_stats=1 "$@" >"$log" 2>&1; then
        tail -n 60 "$log"
        exit 1
    fi
    tail -n 8 "$log"
done
