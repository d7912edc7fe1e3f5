#!/usr/bin/env bash
# check_musl.sh - every source of the library and the program against musl's headers.
#
# musl-gcc has no other headers than musl's, so names of glibc's are errors. Nothing is linked or
# run: Debian has none of the libraries for musl, only their headers, which are shown to it in a
# folder of their own.
set -u
cd "$(dirname "$0")/.."
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
for header in jansson.h jansson_config.h utf8proc.h xxhash.h histedit.h microhttpd.h vulkan vk_video; do
    for folder in /usr/include /usr/include/"$(gcc -print-multiarch)"; do
        [ ! -e "$folder/$header" ] || ln -s "$folder/$header" "$headers/"
    done
done
mkdir "$headers/made"
echo '#define SLUICE_VERSION ""' >"$headers/made/version.h"
echo '#define SLUICE_SERVER 1' >"$headers/made/built_with.h"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(readlink -f "$nvcc")")/../include
left_out=()
optional() { # optional HEADER NAME: a backend whose headers may be missing
    if [ -e "$1" ]; then
        echo "#define SLUICE_$2 1" >>"$headers/made/built_with.h"
    else
        left_out+=(-not -path "src/backend/${2,,}/*")
    fi
}
optional "$headers/vulkan/vulkan.h" VULKAN
optional "$cuda/cuda.h" CUDA
find src -name '*.c' "${left_out[@]}" -print0 |
    xargs -0 -n 1 -P "$(nproc)" musl-gcc -fsyntax-only -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror \
        -Iinclude -Isrc -I"$headers/made" -isystem "$headers" -isystem "$cuda"
