#!/usr/bin/env bash
# Installs what a test run needs and the machine lacks: a C++ compiler (libzmq, for the tests' peers), cargo-deny, and
# beyond `fast` the nightly toolchain's cargo-fuzz.
set -euo pipefail
mode=${1:?}
cache=${POINTSMAN_CACHE:?}

need_packages=()
command -v g++ >/dev/null || need_packages+=(g++)
command -v make >/dev/null || need_packages+=(make)
command -v pkg-config >/dev/null || need_packages+=(pkg-config)
if [ "${#need_packages[@]}" -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "${need_packages[@]}"
fi

install() {
    local crate=$1 version=$2
    if [ "$("$cache/bin/$crate" --version 2>/dev/null | awk '{print $2}')" != "$version" ]; then
        cargo install --locked --quiet --root "$cache" --target-dir "$cache/build" "$crate" --version "$version"
    fi
}

install cargo-deny 0.20.2
if [ "$mode" != fast ]; then
    rustc +nightly --version >/dev/null || { echo "a nightly toolchain is needed: rustup toolchain install nightly" >&2; exit 1; }
    install cargo-fuzz 0.13.2
fi
