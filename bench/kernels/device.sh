#!/bin/sh
# Builds, checks and measures everything in about two minutes. Logs go to the folder given, or build/.
out=${1:-build}
cd "$(dirname "$0")" && mkdir -p build "$out" || exit 1
make -j4 all >build/make.log 2>&1 || { cat build/make.log; exit 1; }
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader
timeout 60 build/check >"$out/check.log" 2>&1 || { echo "CHECKS FAILED"; tail -5 "$out/check.log"; exit 1; }
tail -1 "$out/check.log"
timeout 20 build/latency | tee "$out/latency.log"
timeout 30 build/chain -s 4 -d 36 qwen35-4b | tee "$out/chain_4b.log"
timeout 20 build/chain_trace -s 4 -m 32 -d 32 qwen35-4b | tail -11 | tee "$out/trace_4b.log"
timeout 60 build/chain -s 4 -m 37 qwen35-0.8b smollm2-1.7b qwen35-9b qwen35-27b | tee "$out/chain_models.log"
timeout 60 build/chain -s 4 -m 36 -d 32 qwen35-4b:q8_0 qwen35-4b:bf16 | tee "$out/chain_types.log"
for r in 4 8; do timeout 30 build/chain -s 4 -m 36 -r $r qwen35-4b; done | tee "$out/chain_rows.log"
