#!/usr/bin/env bash
# check_systems.sh - every source of the library and the program against musl's headers.
#
# musl-gcc has no other headers than musl's, so names of glibc's are errors. Nothing is linked or
# run: Debian has none of the libraries for musl, only their headers, which are shown to it in a
# folder of their own. And base without what only Linux has, which is all that is known about other
# systems.
set -u
cd "$(dirname "$0")/.."
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
for header in jansson.h jansson_config.h utf8proc.h xxhash.h sha2.h histedit.h microhttpd.h vulkan vk_video; do
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
compile() { # compile COMPILER FLAGS... < FILES
    xargs -0 -n 1 -P "$(nproc)" "$@" -fsyntax-only -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror \
        -Iinclude -Isrc -I"$headers/made" -isystem "$headers" -isystem "$cuda"
}
bad=0
find src -name '*.c' "${left_out[@]}" -print0 | compile musl-gcc || bad=1
find src/base -name '*.c' -print0 | compile gcc -U__linux__ || bad=1
exit $bad
