#!/usr/bin/env bash
# run.sh - the benchmarks of the modules below the engine: tokenizer and quantizer.
#
# Ratios are taken in one run on one machine; the machine should be otherwise idle.
set -eu
cd "$(dirname "$0")/.."
venv=build/venv-bench
if [ ! -x $venv/bin/python ]; then
    python3 -m venv $venv
    $venv/bin/pip install --quiet tokenizers
fi
grep -m1 'model name' /proc/cpuinfo || uname -m
echo "$(nproc) processors, $(date -u +%F), $(build/sluice --version)"

echo; echo "encode, single thread, beside Hugging Face tokenizers:"
$venv/bin/python bench/tokenizer/bench.py build/data/tokenizer/qwen35-vocab.gguf

echo; echo "quantize, all processors, a model of 1.5 GB (qwen35-0.8b, BF16):"
model=build/tmp/bench-bf16.gguf
mkdir -p build/tmp
[ -f $model ] || python3 tools/synth_gguf.py --model qwen35-0.8b --type bf16 --out $model
for type in q8_0 q4_0 q4_k_m q6_k; do
    build/sluice quantize $model build/tmp/bench-out.gguf $type
    rm -f build/tmp/bench-out.gguf
done
