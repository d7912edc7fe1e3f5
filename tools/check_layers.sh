#!/usr/bin/env bash
# check_layers.sh - includes point downwards only.
#
# Each module (folder) of src/ lists the modules it may include; sluice.h and its own headers are open to all.
set -u
cd "$(dirname "$0")/.."
declare -A may=(
    [base]=""
    [quant]="base"
    [file]="quant base"
    [plan]="quant base"
    [text]="file base"
    [model]="plan file quant base"
    [backend]="plan quant base"
    [engine]="model plan backend text base"
    [grammar]="base"
    [serve]="grammar base"
    [cmd]="serve grammar engine model backend plan text file quant base"
)
bad=0
while IFS=: read -r file line include; do
    module=${file#src/}
    module=${module%%/*}
    target=$(sed -E 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]*)".*/\1/' <<<"$include")
    case $target in
        sluice.h | version.h | built_with.h) continue ;;
    esac
    to=${target%%/*}
    if [ -z "${may[$module]+known}" ]; then
        echo "$file:$line: module $module is unknown, expected one of ${!may[*]}"
        bad=1
    elif [ "$to" != "$module" ] && [[ " ${may[$module]} " != *" $to "* ]]; then
        echo "$file:$line: $module includes $target, expected one of: sluice.h $module ${may[$module]}"
        bad=1
    fi
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' src --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.def')
exit $bad
