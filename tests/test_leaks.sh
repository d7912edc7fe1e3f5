#!/usr/bin/env bash
# test_leaks.sh EVERY_VERB - every verb of a sanitizer build once, where it succeeds and where it
# fails, with leak detection: tests/leaks/every_verb.c. The other suites run without it.
set -u
program=${1:?usage: test_leaks.sh EVERY_VERB}
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export ASAN_OPTIONS=detect_leaks=1:exitcode=99
data=${SLUICE_TEST_DATA:-build/data}
tiny=$data/reference/qwen35-moe-a
gguf=$data/reference/qwen35-dense-a/model-f32.gguf

# expect STATUS ARGUMENTS...
expect() {
    local IFS=$'\t'
    printf '%s\n' "$*" >>"$tmp/lines"
}

echo "1 2 3" >"$tmp/tokens"
expect 0 --version
expect 2 nosuchverb
expect 0 devices
expect 0 inspect "$gguf" --json
expect 1 inspect "$tmp/missing.gguf"
expect 0 tokenize -m models/stories-27m-q4_k_m.gguf
expect 0 run -p "Once upon a time" -n 4
expect 1 run -m "$tmp/tokens" -p x -n 1
expect 0 chat -p "hello" -n 4
expect 0 logits -m "$tiny" --tokens "$tmp/tokens" -o "$tmp/logits"
expect 1 logits -m "$tiny" --tokens "$tmp/missing" -o "$tmp/logits"
expect 0 ppl -f docs/style.md --window 32 --windows 1
expect 0 explain --json
expect 0 bench -m "$gguf" -p 4 -n 4 -r 1
expect 0 quantize "$gguf" "$tmp/q8.gguf" Q8_0
expect 0 imatrix "$gguf" -f docs/style.md --window 32 --windows 1 -o "$tmp/matrix"
expect 0 quantize "$gguf" "$tmp/q4.gguf" Q4_K_M --imatrix "$tmp/matrix"
expect 1 imatrix "$gguf" -f docs/style.md -o "$gguf"
expect 0 run "$gguf" -p ab -n 4 --cache-dir "$tmp/cache" --draft 3
expect 0 run "$gguf" -p ab -n 4 --cache-dir "$tmp/cache" --prompt-cache "$tmp/prompt"
expect 0 run "$gguf" -p ab -n 4 --json-schema '{"type": "boolean"}'
expect 1 run "$gguf" -p ab -n 4 --grammar "$tmp/tokens"
expect 1 run -p ab -n 4 --backend cpu --weights-dir "$tmp/missing"
expect 0 detokenize
expect 0 imatrix -f docs/style.md --window 32 --windows 1 -o "$tmp/imatrix.gguf"
expect 1 quantize "$gguf" "$tmp/q4.gguf" Q4_0 --imatrix "$tmp/imatrix.gguf"
expect 1 quantize "$gguf" "$tmp/q4.gguf" Q4_0 --imatrix "$tmp/tokens"
expect 1 quantize "$tmp/tokens" "$tmp/q8.gguf" Q8_0
expect 0 convert "$tiny" "$tmp/moe.gguf"
"$program" "$tmp/lines" </dev/null >"$tmp/out" 2>"$tmp/err" 3>"$tmp/results"
status=$?
[ $status -eq 0 ] || tail -n 40 "$tmp/err"
cat "$tmp/results" # its last line is "N passed, N failed"
exit $status
