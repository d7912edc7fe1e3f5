#!/usr/bin/env bash
# shared.sh FILES... - prints a C file that gives every name of dynamic shared memory in the kernels
# to the same bytes of a thread.
set -eu
echo '__thread char gpu_dynamic_shared[240 << 10] __attribute__((aligned(1024)));'
grep -ho 'extern __shared__ [^;]*\[\]' "$@" | sed 's/.* \([a-z0-9_]*\)\[\]/\1/' | sort -u |
    sed 's/.*/extern __thread char &[240 << 10] __attribute__((alias("gpu_dynamic_shared")));/'
