#!/usr/bin/env bash
# Builds the compute crate for aarch64 Linux and runs its tests under emulation (NEON included).
# On Debian as root it installs what it needs: a distribution rustc with the arm64 standard
# library, the cross linker, and qemu. Elsewhere those must be there.
# Usage: scripts/test-aarch64.sh [arguments of cargo test]
set -euo pipefail
cd "$(dirname "$0")/.."

need_packages() {
    [ -x /usr/bin/rustc ] && [ -d /usr/lib/rustlib/aarch64-unknown-linux-gnu ] &&
        command -v aarch64-linux-gnu-gcc qemu-aarch64-static >/dev/null && return 1
    return 0
}

if need_packages; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "needed: rustc with the aarch64 standard library, aarch64-linux-gnu-gcc, qemu-aarch64-static" >&2
        exit 1
    fi
    dpkg --add-architecture arm64
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
        qemu-user-static
fi

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_DIR=target/aarch64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu -cpu max"
arguments=("$@")
[ ${#arguments[@]} -gt 0 ] || arguments=(--lib --test conformance)
exec cargo test --locked --ignore-rust-version --target aarch64-unknown-linux-gnu \
    -p larql-compute "${arguments[@]}"
