#!/usr/bin/env bash
# Installs the reference (NVIDIA Dynamo's selection service) in a Python environment of its own, and prints its Python.
# Mixed meshes, `discover` and the comparison of speed are run against it.
set -euo pipefail
cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
reference=$cache/reference-1.6.1
if [ ! -x "$reference/ready" ]; then
    rm -rf "$reference"
    if ! python3 -m venv "$reference" >/dev/null 2>&1; then
        # Debian keeps this part of Python in a package of its own.
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv >&2
        python3 -m venv "$reference"
    fi
    "$reference/bin/pip" install -q ai-dynamo-runtime==1.6.1 >&2
    "$reference/bin/python" -c 'import dynamo.select_service'
    install -m 755 /dev/null "$reference/ready"
fi
echo "$reference/bin/python"
