#!/usr/bin/env bash
# shaders.sh FOLDER NAME... - prints the C file that embeds FOLDER/NAME.spv.
set -eu
folder=$1
shift
echo '#include "backend/vulkan/host/shaders.h"'
# .incbin: every assembler and linker takes it.
for name in "$@"; do
    printf '__asm__(".section .rodata\\n.balign 16\\n.globl spirv_%s\\nspirv_%s:\\n.incbin \\"%s/%s.spv\\"\\n.globl spirv_%s_end\\nspirv_%s_end:\\n.previous");\n' \
        "$name" "$name" "$folder" "$name" "$name" "$name"
    printf '__attribute__((visibility("hidden"))) extern const uint32_t spirv_%s[], spirv_%s_end[];\n' "$name" "$name"
done
echo 'const struct vulkan_shader vulkan_shaders[] = {'
for name in "$@"; do printf '    {"%s", spirv_%s, spirv_%s_end},\n' "$name" "$name" "$name"; done
printf '    {0, 0, 0},\n};\nconst uint32_t vulkan_n_shaders = %d;\n' $#
