#!/usr/bin/env bash
# Runs ours and the reference side by side on this machine and prints ratios, and what HTTP alone costs. Installs the
# reference beside the tree.
# Run it on a quiet machine; --quick shortens every part.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
reference=$cache/reference-1.6.1
bash tests/setup/reference.sh >/dev/null
"$reference/bin/python" -c 'import zmq, msgpack' 2>/dev/null || "$reference/bin/pip" install -q pyzmq msgpack
cargo build --locked --release
cargo build --locked --release --manifest-path benches/floor/Cargo.toml --target-dir "$cache/floor"
exec "$reference/bin/python" benches/compare/compare.py \
    --pointsman "${CARGO_TARGET_DIR:-target}/release/pointsman" --reference "$reference/bin/python" \
    --floor "$cache/floor/release/pointsman-floor" "$@"
