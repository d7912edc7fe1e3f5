#!/usr/bin/env bash
# run.sh quick|all - runs the suites and adds up; the last line is "N passed, N failed".
#
#   quick   native, release and sanitizers (make test)
#   all     gcc and clang, every instruction set this machine has, threads under TSan, and the
#           other architecture under qemu (make test-all)
set -u
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # the makes below have jobs of their own
passed=0 failed=0 skipped=0

# suite NAME COMMAND...: a command whose last line is "N passed, N failed"; one that ends without
# such a line counts as one failure.
suite() {
    local name=$1 out line
    shift
    out=$("$@" 2>&1)
    local status=$?
    line=$(printf '%s\n' "$out" | grep -E '^[0-9]+ passed, [0-9]+ failed' | tail -n 1)
    if [ -z "$line" ]; then
        printf '%s\n' "$out" | tail -n 20
        line="0 passed, 1 failed"
    else
        printf '%s\n' "$out" | grep -vE '^[0-9]+ passed, [0-9]+ failed'
        [ $status -eq 0 ] || [[ $line != *", 0 failed"* ]] || line="${line%%,*}, 1 failed"
    fi
    printf '%-34s %s\n' "$name" "$line"
    [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
}

# check NAME COMMAND...: a command that passes by its exit status.
check() {
    local name=$1 out
    shift
    if out=$("$@" 2>&1); then
        printf '%-34s %s\n' "$name" "passed"
        passed=$((passed + 1))
    else
        printf '%s\n%-34s %s\n' "$out" "$name" "FAILED"
        failed=$((failed + 1))
    fi
}

close() {
    printf '%d passed, %d failed' $passed $failed
    [ $skipped -eq 0 ] || printf ', %d skipped' $skipped
    printf '\n'
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}

check_cuda() {
    local nvcc
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
    if [ -z "$nvcc" ]; then
        echo "CUDA headers: nvcc was not found, left out"
        return
    fi
    mkdir -p build/tmp
    check "type headers under nvcc" "$nvcc" -arch=sm_90 -Werror all-warnings -Iinclude -Isrc \
        -c tests/quant_cuda.cu -o build/tmp/quant_cuda.o
}

# replay FOLDER: every corpus file through its fuzz entry, in a sanitizer build.
replay_all() {
    local entry
    for entry in tests/fuzz/fuzz_*.c; do
        entry=$(basename "$entry" .c)
        suite "corpus of ${entry#fuzz_}" "build/asan/replay/$entry" "tests/fuzz/corpus/${entry#fuzz_}"
    done
}

# The command line under the sanitizers. Looking for leaks takes seconds at every exit on some
# machines, and these suites start hundreds of processes: test_leaks.sh looks, once a verb.
sanitized() {
    suite "$1, sanitizers" env ASAN_OPTIONS=detect_leaks=0 python3 "$2" build/asan/sluice "${@:3}"
}

quick() {
    check "includes point downwards" bash tools/check_layers.sh
    suite "unit tests, release" build/tests
    suite "unit tests, sanitizers" build/asan/tests
    suite "command line, release" python3 tests/test_cli.py build/sluice
    sanitized "command line" tests/test_cli.py
    suite "verbs that run a model, release" python3 tests/test_verbs.py build/sluice
    sanitized "verbs that run a model" tests/test_verbs.py
    suite "leaks, once a verb" bash tests/test_leaks.sh build/asan/sluice
    suite "conversations, release" python3 tests/test_chat.py build/sluice
    sanitized "conversations" tests/test_chat.py lines paste history characters control_c terminal \
        read_or_written settings
    suite "conversations, leaks" python3 tests/test_chat.py build/asan/sluice edited several_lines_through
    check "sluice.h as C++" g++ -fsyntax-only -x c++ include/sluice.h
    replay_all
    check_cuda
}

make_quietly() {
    make --no-print-directory -j"$(nproc)" "$@" >build/tmp/make.log 2>&1 || { tail -n 20 build/tmp/make.log; return 1; }
}

# flavour NAME RUNNER WORDS MAKE-VARIABLES...: builds and runs the unit tests of one cell of the
# matrix, those whose names hold one of the words, or all.
flavour() {
    local name=$1 runner=$2 words=$3
    shift 3
    if ! make_quietly test-binaries "$@"; then
        check "$name" false
        return
    fi
    local folder
    folder=$(make -s --no-print-directory where "$@")
    suite "$name" $runner "$folder/tests" $words
}

# For an emulated machine: everything but the tests that run the story model for hundreds of steps,
# which would take half an hour there.
emulated="err_ size utf8 str hash_ tier_ arena pool log_ cpu_ gguf safetensors folder json filemap outfile kernels
    quant_ plan_ delta mixture hub recode jinja chat text_ engine_refuses engine_memory
    engine_snapshots engine_sampling engine_text engine_threads_share"

all() {
    mkdir -p build/tmp
    make_quietly test-binaries && make_quietly MODE=asan test-binaries replays || { echo "0 passed, 1 failed"; exit 1; }
    quick
    flavour "clang, release" "" "" CC=clang
    flavour "clang, sanitizers" "" "" CC=clang MODE=asan
    flavour "gcc, thread sanitizer" "" "pool recode log_ engine thread tier_" MODE=tsan
    suite "gcc, no SIMD" env SLUICE_CPU=none build/tests
    export SLUICE_TEST_SHORT=1
    case $(uname -m) in
        x86_64)
            suite "gcc, AVX2 only" env SLUICE_CPU=avx2 build/tests
            flavour "aarch64 under qemu" qemu-aarch64-static "$emulated" CROSS=aarch64-linux-gnu
            flavour "aarch64 under qemu, UBSan" qemu-aarch64-static "kernels random" \
                CROSS=aarch64-linux-gnu MODE=ubsan ;;
        aarch64)
            suite "gcc, NEON only" env SLUICE_CPU=neon build/tests
            flavour "x86-64 with AVX2 under qemu" "qemu-x86_64-static -cpu max" "$emulated" CROSS=x86_64-linux-gnu ;;
    esac
}

case ${1:-} in
    quick) quick ;;
    all) all ;;
    *) echo "usage: run.sh quick|all" >&2; exit 2 ;;
esac
close
