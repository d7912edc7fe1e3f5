#!/usr/bin/env bash
# setup.sh PURPOSE - makes sure that what a purpose needs is installed.
#
#   build            the compiler and the libraries
#   test             what the tests need on top
#   fuzz, lint, bench
#   gguf             gguf-py, the reference of number formats (test-all)
#   musl             another C library, to compile for (test-all)
#   cross-TRIPLET    a cross compiler, its libraries, and qemu to run what it makes
#
# Looks first and installs only what is missing: with apt, as root or through sudo. Elsewhere, or
# without the rights, it prints the command to type and fails.
set -u
purpose=${1:?usage: setup.sh PURPOSE}

# ---- what is there ------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }
has_header() { # has_header COMPILER HEADER
    have "$1" && printf '#include <stddef.h>\n#include <stdio.h>\n#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' "$2" |
        "$1" -E -x c - >/dev/null 2>&1
}
missing=()
need() { # need PACKAGE CHECK...: the package is missing when the check fails
    local package=$1
    shift
    "$@" || missing+=("$package")
}

need_build() {
    need gcc have gcc
    need libc6-dev has_header gcc stdlib.h
    need git have git
    need libjansson-dev has_header gcc jansson.h
    need libutf8proc-dev has_header gcc utf8proc.h
    need libedit-dev has_header gcc histedit.h
    need libxxhash-dev has_header gcc xxhash.h
    need libmd-dev has_header gcc sha2.h
    need libmicrohttpd-dev has_header gcc microhttpd.h
}
need_test() {
    need_build
    need xz-utils have xz
    need python3 have python3
    need python3-venv python3 -c 'import venv, ensurepip' 2>/dev/null
    need g++ have g++
    need pkg-config have pkg-config
    need locales test -e /usr/share/i18n/locales/tr_TR
    need libpcre2-dev has_header gcc pcre2.h
}
has_fuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return p == 0 && n; }' |
        clang -x c - -fsanitize=fuzzer,address -o /dev/null >/dev/null 2>&1
}
need_cross() { # need_cross TRIPLET
    local cc=$1-gcc arch
    case $1 in
        aarch64-linux-gnu) arch=arm64 ;;
        x86_64-linux-gnu) arch=amd64 ;;
        *) echo "setup: no packages are known for $1, expected aarch64-linux-gnu or x86_64-linux-gnu" >&2; exit 1 ;;
    esac
    need_test
    need "gcc-${1//_/-}" have "$cc"
    need "g++-${1//_/-}" have "$1-g++"
    need "libjansson-dev:$arch" has_library "$cc" jansson
    need "libutf8proc-dev:$arch" has_library "$cc" utf8proc
    need "libedit-dev:$arch" has_library "$cc" edit
    need "libxxhash-dev:$arch" has_header "$cc" xxhash.h
    need "libmd-dev:$arch" has_library "$cc" md
    need "libmicrohttpd-dev:$arch" has_library "$cc" microhttpd
    need "libpcre2-dev:$arch" has_library "$cc" pcre2-8
    [ "$(uname -m)" = "${1%%-*}" ] || need qemu-user-static have "qemu-${1%%-*}-static"
    [ ${#missing[@]} -eq 0 ] || foreign=$arch
}
has_library() { # has_library COMPILER NAME: links
    have "$1" && echo 'int main(void) { return 0; }' | "$1" -x c - -l"$2" -o /dev/null >/dev/null 2>&1
}

foreign=
case $purpose in
    build) need_build ;;
    test) need_test ;;
    fuzz) need_test; need clang have clang; need llvm have llvm-symbolizer ;;
    lint) need_build; need clang-format have clang-format; need cppcheck have cppcheck ;;
    bench | gguf) need_test ;;
    musl) need_build; need musl-tools have musl-gcc ;;
    cross-*) need_cross "${purpose#cross-}" ;;
    *) echo "setup: unknown purpose $purpose" >&2; exit 1 ;;
esac

# ---- what is missing ----------------------------------------------------------------------------

if [ ${#missing[@]} -gt 0 ]; then
    prefix=
    [ -z "$foreign" ] || [ "$(dpkg --print-architecture 2>/dev/null)" = "$foreign" ] ||
        prefix="dpkg --add-architecture $foreign && "
    line="${prefix}apt-get update && apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends ${missing[*]}"
    if ! have apt-get; then
        echo "setup: missing for '$purpose': ${missing[*]} (Debian's names). Install these, then run make again." >&2
        exit 1
    fi
    if [ "$(id -u)" = 0 ]; then
        run=(bash -c)
    elif have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        run=(sudo env DEBIAN_FRONTEND=noninteractive bash -c)
    else
        echo "setup: missing for '$purpose': type as root:  $line" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    log=$(mktemp)
    if ! DEBIAN_FRONTEND=noninteractive "${run[@]}" "$line" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        echo "setup: that failed; type as root:  $line" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
fi

# clang's sanitizer runtime is a package of its own, named for clang's version.
if [ "$purpose" = fuzz ] && ! has_fuzzer; then
    version=$(clang -dumpversion | cut -d. -f1)
    line="apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends libclang-rt-$version-dev"
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi
    DEBIAN_FRONTEND=noninteractive $sudo $line >/dev/null 2>&1
    has_fuzzer || { echo "setup: clang cannot link a fuzzer; type as root:  $line" >&2; exit 1; }
fi

# The server is tested with the clients that people use, and structured output with jsonschema, in an environment of their own. Without
# them (no network) those tests are skipped, and say so.
clients=build/venv-test
if [ "$purpose" = test ] && ! $clients/bin/python -c 'import openai, anthropic, ollama, jsonschema, selenium' 2>/dev/null; then
    echo "setup: installing the Python packages openai, anthropic, ollama, jsonschema, selenium into $clients"
    { python3 -m venv $clients && $clients/bin/pip install --quiet --disable-pip-version-check openai anthropic ollama jsonschema selenium; } \
        >/dev/null 2>&1 || echo "setup: they could not be installed: the tests with these clients are skipped"
fi

# The types with a grid are compared with gguf-py on random blocks; without it that is left out.
if [ "$purpose" = gguf ] && ! build/venv-gguf/bin/python -c 'import gguf' 2>/dev/null; then
    echo "setup: installing the Python package gguf into build/venv-gguf"
    { python3 -m venv build/venv-gguf && build/venv-gguf/bin/pip install --quiet --disable-pip-version-check gguf; } \
        >/dev/null 2>&1 || echo "setup: it could not be installed: the comparison with gguf-py is left out"
fi

# The server's page is tested in a browser; without one that test is skipped, and says so.
if [ "$purpose" = test ] && ! { have chromium && have chromedriver; } && have apt-get; then
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi
    echo "setup: installing chromium and chromium-driver"
    DEBIAN_FRONTEND=noninteractive $sudo apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null 2>&1 ||
        echo "setup: they could not be installed: the test of the page is skipped"
fi

# The Vulkan backend is tested by a driver that runs on the processor; without it, or without what compiles the shaders, that is left
# out, and said.
has_vulkan() {
    have glslc && has_header gcc vulkan/vulkan.h && ls /usr/share/vulkan/icd.d/lvp_icd.*.json /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json
}
if [ "$purpose" = test ] && ! has_vulkan >/dev/null 2>&1 && have apt-get; then
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi
    echo "setup: installing glslc, libvulkan-dev, mesa-vulkan-drivers and vulkan-validationlayers"
    DEBIAN_FRONTEND=noninteractive $sudo apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
        glslc libvulkan-dev mesa-vulkan-drivers vulkan-validationlayers >/dev/null 2>&1 ||
        echo "setup: they could not be installed: the tests of the Vulkan backend are skipped"
fi

case $purpose in
    build)
        nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
        [ -n "$nvcc" ] || echo "setup: nvcc was not found: what needs CUDA is left out"
        { have glslc && has_header gcc vulkan/vulkan.h; } || echo "setup: glslc or vulkan/vulkan.h (libvulkan-dev) was not found: what needs Vulkan is left out" ;;
esac
exit 0
