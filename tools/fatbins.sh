#!/usr/bin/env bash
# fatbins.sh FOLDER NAME... - prints the C file that embeds FOLDER/NAME.fatbin, with a table of the
# kernels in them, as the assembler's report FOLDER/NAME.ptxas lists them.
set -eu
folder=$1
shift
grep -q 'Used [0-9]* registers' "$folder/$1.ptxas" || {
    echo "fatbins.sh: CUDA_ARCHS has no machine code, expected one code=sm_..: the list of kernels is made of it" >&2
    exit 1
}
echo '#include "backend/cuda/host/fatbins.h"'
# .incbin: every assembler and linker takes it.
for name in "$@"; do
    printf '__asm__(".section .rodata\\n.balign 64\\n.globl fatbin_%s\\nfatbin_%s:\\n.incbin \\"%s/%s.fatbin\\"\\n.previous");\n' \
        "$name" "$name" "$folder" "$name"
    printf '__attribute__((visibility("hidden"))) extern const unsigned char fatbin_%s[];\n' "$name"
done
echo 'const struct cuda_fatbin cuda_fatbins[] = {'
for name in "$@"; do printf '    {"%s", fatbin_%s},\n' "$name" "$name"; done
printf '    {0, 0},\n};\nconst struct cuda_kernel cuda_kernels[] = {\n'
i=0
for name in "$@"; do
    awk -v i=$i '/Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
         /Used [0-9]+ registers/ { for (f = 1; f < NF; f++) if ($f == "Used") print "    {\"" kernel "\", " $(f + 1) ", " i "}," }' \
        "$folder/$name.ptxas"
    i=$((i + 1))
done | LC_ALL=C sort -u
printf '    {0, 0, 0},\n};\n'
