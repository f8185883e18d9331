#!/usr/bin/env bash
# Fuzzes the native tokenizer under ASan and UBSan; by hand: tests/fuzz/run_native.sh [SECONDS]
# With a second argument "scalar" the portable path is built instead of the SSE2 one.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
flags=(-std=c++17 -g -O1 -Wall -Wextra -Wconversion -fsanitize=address,undefined
       -fno-sanitize-recover=all -DSTANDALONE -Itracekit/io/_native)
[ "${2:-}" = scalar ] && flags+=(-DTRACEKIT_SCALAR)
"${CXX:-g++}" "${flags[@]}" tests/fuzz/tokenizer_fuzz.cpp -o "$out/fuzz"
"$out/fuzz" "${1:-60}" sample_traces/broken/*.json
