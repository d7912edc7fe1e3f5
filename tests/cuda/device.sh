#!/usr/bin/env bash
# device.sh [WORDS...] - the CUDA tests on a machine that has a GPU but not what the build needs:
# programs built elsewhere with `make STATIC=1 B=build/device build/device/sluice build/device/tests-cuda`.
set -u
cd "$(dirname "$0")/../.."
if [ ! -e build/data/unpacked ]; then
    mkdir -p build/data build/tmp
    for f in tests/data/*.tar.xz; do tar -xJf "$f" -C build/data || exit 1; done
    python3 tools/draft_block.py add models/stories-27m-q4_k_m.gguf build/data/mtp/stories-block.gguf \
        build/data/mtp/stories.gguf || exit 1
    touch build/data/unpacked
fi
build/device/sluice devices
build/device/tests-cuda "$@"
