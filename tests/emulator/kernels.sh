#!/usr/bin/env bash
# kernels.sh FOLDER FILE.cu FLAGS... - compiles the kernels of a .cu file for the emulated GPU:
# FOLDER/NAME.cpp includes it and lists its kernels, FOLDER/NAME.o is made of that.
set -eu
folder=$1 file=$2 cxx=${CXX:-g++}
shift 2
name=$(basename "$file" .cu)
{
    printf '#include "gpu.h"\n#include "%s"\n' "$PWD/$file"
    # what is declared with __global__, after the preprocessor
    $cxx "$@" -DGPU_GLOBAL=GPU_KERNEL_IS '-DGPU_CLUSTER(x)=IN_CLUSTERS_OF x' -include gpu.h -x c++ -E -P "$file" |
        tr '\n' ' ' | grep -Eo 'GPU_KERNEL_IS +void +(IN_CLUSTERS_OF +[0-9]+ +)?[a-z0-9_]+' |
        sed -E 's/.*IN_CLUSTERS_OF +([0-9]+) +(.*)/GPU_KERNEL(\2, \1)/; t; s/.* (.*)/GPU_KERNEL(\1, 1)/' | sort -u
} > "$folder/$name.cpp"
$cxx "$@" -MMD -MP -c "$folder/$name.cpp" -o "$folder/$name.o"
