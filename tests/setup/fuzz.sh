#!/usr/bin/env bash
# fuzz.sh SECONDS: runs every fuzz target for that long, from its seeds.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:?}
build=${CARGO_TARGET_DIR:-target}/fuzz
unset CARGO_TARGET_DIR
for target in $(cargo +nightly fuzz list); do
    echo "-- $target"
    mkdir -p "fuzz/corpus/$target"
    cargo +nightly fuzz run --target-dir "$build" "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 2>&1 | tail -n 12
done
