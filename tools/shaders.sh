#!/usr/bin/env bash
# shaders.sh - the shaders that src/backend/vulkan/shaders/shaders.list names.
#
#   list                  every module, a line each: name, file, what is defined
#   embed FOLDER NAME...  the C file that embeds FOLDER/NAME.spv, and says which types types.glsl knows
set -eu
shaders=$(dirname "$0")/../src/backend/vulkan/shaders
verb=$1
shift
case $verb in
    list)
        # types=8,12 makes three of a line: for any type, for 8 alone and for 12 alone.
        awk '/^[a-z]/ {
            line = ""; types = ""
            for (i = 2; i <= NF; i++) if ($i ~ /^types=/) types = substr($i, 7); else line = line " " $i
            print $1 line
            n = split(types, list, ",")
            for (i = 1; i <= n; i++) print $1 "_t" list[i] line " -DTYPE=" list[i] "u"
        }' "$shaders/shaders.list" ;;
    embed)
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
        echo 'const bool vulkan_has_type[DT_COUNT] = {'
        sed -n 's/^#define DT_\([A-Z0-9_]*\) [0-9]*u$/    [DT_\1] = true,/p' "$shaders/types.glsl"
        echo '};'
        sed -n 's/^#define DT_\([A-Z0-9_]*\) \([0-9]*\)u$/_Static_assert(DT_\1 == \2, "types.glsl");/p' "$shaders/types.glsl" ;;
esac
