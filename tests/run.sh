#!/usr/bin/env bash
# run.sh quick|all - runs the suites and adds up; the last line is "N passed, N failed", and what
# failed stands just before it.
#
#   build COMMAND...   a build: when it fails, it ends with what failed and "0 passed, 1 failed"
#   quick   native, release and sanitizers (make test)
#   all     gcc and clang, every instruction set this machine has, threads under TSan, and the
#           other architecture under qemu (make test-all)
set -u
cd "$(dirname "$0")/.."
[ "${1:-}" = build ] || unset MAKEFLAGS MFLAGS MAKELEVEL # the makes below have jobs of their own
export SLUICE_BACKEND=cpu # also where there is a GPU: its own tests are `make test-cuda`
export PYTHONDONTWRITEBYTECODE=1 # of tests/suite.py: no test leaves a file in the tree
passed=0 failed=0 skipped=0

# ---- running ------------------------------------------------------------------------------------

mkdir -p build/tmp
folder=$(mktemp -d build/tmp/run.XXXXXX)
trap 'rm -rf "$folder"' EXIT
n_started=0 n_shown=0
# Suites wait for servers, terminals and signals half of the time: two for each processor.
at_once=$((2 * $(nproc)))
[ "$at_once" -le 4 ] || at_once=4 # most suites have threads of their own

# run_job NUMBER COMMAND...: leaves the output, the exit status and the seconds of processor time.
# The shell ignores SIGINT and SIGQUIT for what it starts beside itself; tests send them.
run_job() {
    local job=$folder/$1 status
    shift
    env --default-signal=INT,QUIT "$@" >"$job.out" 2>&1 </dev/null
    status=$?
    times >"$job.times" # in this shell: a pipeline's has other children
    awk 'NR == 2 { split($1 "m" $2, t, /[ms]+/); printf "%.0f\n", 60 * (t[1] + t[3]) + t[2] + t[4] }' "$job.times" >"$job.seconds"
    echo $status >"$job.status"
}

# start KIND NAME COMMAND...: beside others, at most `at_once`; `finish`
# waits for all of them. What they say is shown in the order they were started in. KIND: suite or check.
start() {
    local job=$folder/$n_started
    printf '%s\n' "$1" "$2" >"$job.name"
    run_job $n_started "${@:3}" &
    n_started=$((n_started + 1))
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n
        show_finished
    done
}
suite() { start suite "$@"; }
check() { start check "$@"; }

finish() {
    wait
    show_finished
}

show_finished() {
    while [ -f "$folder/$n_shown.status" ]; do
        show "$folder/$n_shown"
        n_shown=$((n_shown + 1))
    done
}

# ---- adding up ----------------------------------------------------------------------------------

# What failed, short: the lines that say so, or the last ones.
what_failed() {
    local lines
    lines=$(grep -aE '^FAILED |ERROR: |SUMMARY: |runtime error: |error: |undefined reference|\*\*\*' "$1") || lines=$(tail -n 5 "$1")
    head -n 20 <<<"$lines" | cut -c 1-300 | sed 's/^/    /'
}

# A suite's last line is "N passed, N failed", and each of its failures is a line that begins with
# FAILED; one that ends without a last line counts as one failure. A check passes by its exit status.
show() {
    local job=$1 kind name line status
    { read -r kind; read -r name; } <"$job.name"
    status=$(<"$job.status")
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$job.out" | tail -n 1)
    if [ "$kind" = check ]; then
        line=$([ "$status" -eq 0 ] && echo "1 passed, 0 failed" || echo "0 passed, 1 failed")
        [ "$status" -eq 0 ] || cat "$job.out"
    elif [ -z "$line" ]; then
        tail -n 40 "$job.out"
        line="0 passed, 1 failed"
    else
        grep -avE '^[0-9]+ passed, [0-9]+ failed' "$job.out"
        [ "$status" -eq 0 ] || [[ $line != *", 0 failed"* ]] || line="${line%%,*}, 1 failed"
    fi
    printf '%-34s %-24s %4s s\n' "$name" "$line" "$(<"$job.seconds")"
    [[ $line == *", 0 failed"* ]] || { echo "  $name (exit status $status)" && what_failed "$job.out"; } >>"$folder/failures"
    [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
}

close() {
    finish
    list_files >"$folder/after"
    check "no file is left in the tree" diff "$folder/before" "$folder/after"
    finish
    [ ! -f "$folder/failures" ] || { echo "failed:" && cat "$folder/failures"; }
    printf '%d passed, %d failed' $passed $failed
    [ $skipped -eq 0 ] || printf ', %d skipped' $skipped
    printf '\n'
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}

# Everything but what is built: tests write there or into temporary folders.
list_files() {
    find . \( -path ./build -o -path ./.git \) -prune -o -print | sort
}

# ---- the suites ---------------------------------------------------------------------------------

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

# check_emulated CAPABILITY WORDS...: the CUDA backend on a GPU that the processor emulates.
check_emulated() {
    [ -x "build/tests-emulated-$1" ] || { echo "emulated GPU: built without CUDA, left out" && return; }
    suite "CUDA, emulated GPU of ${1%0}.0" "build/tests-emulated-$1" emulated_ "${@:2}"
}

# The Vulkan backend on a driver that runs on the processor, under the validation layer. Most of the time it compiles
# shaders, which it keeps in its cache: the ops are first, and what uses the same shaders is started when they are done.
can_run_vulkan() { # and sets `validate`
    if [ ! -x build/tests-vulkan ] || ! ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1; then
        echo "Vulkan: glslc, its headers or a driver was not found, left out"
        return 1
    fi
    # LLVM knows Neoverse V1, N2 and V2 by their numbers, and that they have SVE.
    if grep -qE 'CPU part.*0xd(40|49|4f)' /proc/cpuinfo && ! grep -qw sve /proc/cpuinfo; then
        echo "Vulkan: Mesa's driver compiles SVE for this processor, where SVE is turned off, left out"
        return 1
    fi
    validate=0
    [ ! -f /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json ] || validate=1
}
# check_vulkan_ops WORDS...: those that are left out have a -.
check_vulkan_ops() {
    suite "Vulkan, ops" env SLUICE_VULKAN_VALIDATE=$validate build/tests-vulkan vulkan_ "$@"
}

# check_vulkan_models WORDS...: of the tests of whole models those whose names hold one of the words.
check_vulkan_models() {
    suite "Vulkan, models" env SLUICE_VULKAN_VALIDATE=$validate build/tests-vulkan "$@"
    suite "Vulkan, stages" env SLUICE_VULKAN_STAGES=1 build/tests-vulkan stages_ $in_stages
    suite "Vulkan, matrices" env SLUICE_VULKAN_PLAIN=matrix build/tests-vulkan vulkan_project_matrices
    suite "Vulkan, subgroups of 4" env LP_NATIVE_VECTOR_WIDTH=128 build/tests-vulkan $narrow
    suite "Vulkan, small workgroups" env SLUICE_VULKAN_PLAIN=1 build/tests-vulkan $in_small
}

# Types with a grid against gguf-py, on random blocks.
check_grids() {
    if ! build/venv-gguf/bin/python -c 'import gguf' 2>/dev/null; then
        echo "grids: gguf-py was not found, left out"
        return
    fi
    build/venv-gguf/bin/python tools/make_grids.py --random 2000
    suite "random blocks against gguf-py" env SLUICE_TEST_GRIDS=build/grids build/tests quant_grids
}

# Every corpus file through its fuzz entry, in a sanitizer build; $leaks: 1, and for leaks.
replay_all() {
    local entry
    for entry in tests/fuzz/fuzz_*.c; do
        entry=$(basename "$entry" .c)
        suite "corpus of ${entry#fuzz_}" env ASAN_OPTIONS=detect_leaks=$leaks "build/asan/replay/$entry" \
            "tests/fuzz/corpus/${entry#fuzz_}"
    done
}

# The command line under the sanitizers. Looking for leaks takes seconds at every exit on some
# machines, and these suites start hundreds of processes: test_leaks.sh looks, once a verb.
sanitized() {
    suite "$1, sanitizers" env ASAN_OPTIONS=detect_leaks=0 python3 "$2" build/asan/sluice "${@:3}"
}

# The longest first. Under sanitizers without what computes for long and reads nothing foreign (test-all leaves nothing
# out): what measures, whose verbs test_leaks.sh runs, whole models' numbers, and rows of vector kernels, which are the
# release's there.
quick() {
    local validate vulkan_runs=true
    can_run_vulkan || vulkan_runs=false
    ! $vulkan_runs || check_vulkan_ops $vulkan_without
    suite "unit tests, sanitizers" build/asan/tests $computing
    suite "unit tests, release" build/tests
    check_emulated 90 $on_emulated
    sanitized "command line" tests/test_cli.py
    suite "command line, release" env $full python3 tests/test_cli.py build/sluice
    sanitized "verbs that run a model" tests/test_verbs.py $measuring
    suite "verbs that run a model, release" python3 tests/test_verbs.py build/sluice
    suite "conversations, release" python3 tests/test_chat.py build/sluice
    sanitized "conversations" tests/test_chat.py lines paste history characters control_c terminal \
        read_or_written settings
    suite "leaks, once a verb" bash tests/test_leaks.sh build/asan/every_verb
    suite "server, release" env SECONDS=$load python3 tests/test_server.py build/sluice
    suite "server, sanitizers and leaks" python3 tests/test_server.py build/asan/sluice openai_logprobs no_request garbage \
        pipelined goes_away next_turn page_files responses_are responses_tools echo_with embeddings_of_texts
    suite "the page in a browser" python3 tests/test_page.py build/sluice
    ! $vulkan_runs || check_vulkan_models $vulkan
    suite "benchmarks still run" python3 tests/test_bench.py build/sluice
    suite "JSON schemas, release" python3 tests/test_schemas.py build/walk
    suite "regular expressions, release" python3 tests/test_regexes.py build/walk
    suite "JSON schemas, sanitizers" python3 tests/test_schemas.py build/asan/walk
    suite "regular expressions, sanitizers" python3 tests/test_regexes.py build/asan/walk
    suite "conversations, leaks" python3 tests/test_chat.py build/asan/sluice edited several_lines_through
    replay_all
    check "includes point downwards" bash tools/check_layers.sh
    check "no locale in the library" bash tools/check_locale.sh
    check "links of the documents" python3 tools/check_docs.py
    check "sluice.h as C++" g++ -fsyntax-only -x c++ include/sluice.h
    check_cuda
}

make_quietly() {
    make --no-print-directory -j"$(nproc)" "$@" >build/tmp/make.log 2>&1
}

# build COMMAND...: runs it with its output shown.
build() {
    set -o pipefail
    "$@" 2>&1 | tee build/tmp/make.log || build_failed
}

build_failed() {
    echo "failed:"
    echo "  the build"
    what_failed build/tmp/make.log
    echo "0 passed, 1 failed"
    exit 1
}

# flavour NAME RUNNER WORDS MAKE-VARIABLES...: builds and runs the unit tests of one cell of the
# matrix, those whose names hold one of the words, or all.
flavour() {
    local name=$1 runner=$2 words=$3
    shift 3
    finish # a build and its tests have the machine to themselves
    if ! make_quietly test-binaries "$@"; then
        check "$name" bash -c 'cat build/tmp/make.log && false'
        finish
        return
    fi
    local built
    built=$(make -s --no-print-directory where "$@")
    suite "$name" $runner "$built/tests" $words
}

# For an emulated machine: everything but the tests that run the story model for hundreds of steps,
# which would take half an hour there.
under_qemu="err_ size utf8 str hash_ tier_ arena pool log_ cpu_ gguf safetensors folder json filemap outfile kernels attend
    quant_ plan_ delta mixture hub recode jinja chat text_ engine_refuses engine_memory
    engine_snapshots engine_sampling engine_text engine_threads_share"

# What a program that embeds the library can reach, and so must be the same in any locale: not the server.
embedded="err_ str utf8 log_ gguf safetensors folder json plan_ mixture hub recode jinja chat text_ schema grammar engine_text
    engine_refuses engine_sampling synth"

all() {
    make_quietly test-binaries && make_quietly MODE=asan test-binaries replays build/asan/every_verb || build_failed
    quick
    ! ls build/tests-emulated-* >/dev/null 2>&1 || make_quietly build/tests-emulated-80 || build_failed
    check_emulated 80 $on_emulated
    check_grids
    check "headers of other systems" bash tests/check_systems.sh
    finish
    check "debug build, no server, no GPUs" make -s MODE=debug SERVER=0 CUDA=0 VULKAN=0 build/debug/sluice
    flavour "clang, release" "" "" CC=clang
    flavour "clang, sanitizers" "" "" CC=clang MODE=asan
    flavour "gcc, thread sanitizer" "" "pool recode log_ engine thread tier_" MODE=tsan
    suite "server under load, TSan" env SECONDS=30 python3 tests/test_server.py build/tsan/sluice test_load
    suite "server under load, sanitizers" env SECONDS=30 python3 tests/test_server.py build/asan/sluice test_load
    finish
    make_quietly STATIC=1 build/static/sluice
    suite "server, static" python3 tests/test_server.py build/static/sluice openai_chat paths sigterm
    suite "gcc, no SIMD" env SLUICE_CPU=none build/tests
    suite "in Turkish" env LOCPATH=build/data/locales SLUICE_TEST_LOCALE=tr_TR.UTF-8 build/tests $embedded
    export SLUICE_TEST_SHORT=1
    case $(uname -m) in
        x86_64)
            suite "gcc, AVX2 only" env SLUICE_CPU=avx2 build/tests
            suite "gcc, AVX-512 without VNNI" env SLUICE_CPU="avx2 avx512" build/tests fidelity_ kernels_ engine_threads
            flavour "aarch64 under qemu" qemu-aarch64-static "$under_qemu" CROSS=aarch64-linux-gnu
            local arm=build/aarch64-linux-gnu # N1: dot products, but neither I8MM nor BF16
            suite "Neoverse N1 under qemu" qemu-aarch64-static -cpu neoverse-n1 $arm/tests cpu_ kernels delta_rule quant_encodes
            if [ -x build/tests-emulated-90 ]; then
                make_quietly CROSS=aarch64-linux-gnu $arm/tests-emulated-90
                suite "CUDA on an emulated GPU, qemu" qemu-aarch64-static $arm/tests-emulated-90 emulated_delta emulated_pick
            fi
            flavour "aarch64 under qemu, UBSan" qemu-aarch64-static "kernels random" \
                CROSS=aarch64-linux-gnu MODE=ubsan ;;
        aarch64)
            suite "gcc, NEON only" env SLUICE_CPU=neon build/tests
            if [[ $(qemu-x86_64-static --version) == *" version 7."* ]]; then
                echo "x86-64 kernels: QEMU 7.2 reads no index from ymm4 in vpgatherdd, left out"
                under_qemu=${under_qemu/ kernels / }
            fi
            flavour "x86-64 with AVX2 under qemu" "qemu-x86_64-static -cpu max" "$under_qemu" CROSS=x86_64-linux-gnu ;;
    esac
}

list_files >"$folder/before"
case ${1:-} in
    quick)
        leaks=0 load=8 full=""
        computing="-kernels_independent -kernels_find -fidelity_ -gives_the_same_tokens -gives_the_tokens -engine_threads_give
            -the_bits_of_a_run -pick_among_many -pick_of_a_large -with_few_pages -after_a_smaller_cache"
        measuring="-bench -imatrix -drafts_by -predicts -threads_are -while_loading"
        vulkan="device_logits device_one_sub"
        vulkan_without="-bursts_of -drafts_are -far_positions -row_shapes"
        in_stages="device_one_sub vulkan_join" in_small="=vulkan_pick_of_flat_logits vulkan_join" narrow=vulkan_delta
        on_emulated="device_one_sub"
        quick ;;
    all)
        leaks=1 load=300 full=SLUICE_TEST_FULL=1
        computing="" measuring=""
        vulkan=device_ vulkan_without=""
        in_stages="device_greedy device_one_sub vulkan_bursts vulkan_drafts vulkan_join" in_small="vulkan_pick vulkan_join"
        narrow=vulkan_
        on_emulated="device_one_sub device_logits_of device_resume device_same_bits_in_any_chunks device_story"
        all ;;
    build) build "${@:2}"; exit ;;
    *) echo "usage: run.sh quick|all|build COMMAND..." >&2; exit 2 ;;
esac
close
