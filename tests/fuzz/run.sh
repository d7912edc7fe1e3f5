#!/usr/bin/env bash
# run.sh SECONDS ENTRY... - fuzzes every entry for that long, two at a time, and reports.
#
# New inputs are kept in build/fuzz/corpus/ENTRY; a crash leaves its input in build/fuzz/crashes
# and fails the run: make it a test, then mend it.
set -u
cd "$(dirname "$0")/../.."
seconds=${1:?usage: run.sh SECONDS ENTRY...}
shift
mkdir -p build/fuzz/crashes

fuzz() {
    local entry=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
    mkdir -p "$corpus"
    local dict=tests/fuzz/$entry.dict
    "build/fuzz/fuzz_$entry" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=60 \
        -malloc_limit_mb=1024 -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/crashes/$entry-" \
        $([ -f "$dict" ] && echo "-dict=$dict") "$corpus" "tests/fuzz/corpus/$entry" >"$log" 2>&1
    local status=$?
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%-16s %10s executions in %s s, %s inputs kept, %s\n' "$entry" "${runs:-?}" "$seconds" \
        "$(ls "$corpus" | wc -l)" "$([ $status -eq 0 ] && echo clean || echo "CRASHED, see $log")"
    return $status
}
export -f fuzz
export seconds
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}' || exit 1
