# Completion of sluice's verbs, options and files in bash; what there is says its help.
_sluice() {
    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} list=
    if [ "$COMP_CWORD" -eq 1 ]; then
        list=$("$1" help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')
        list="$list help --version"
    elif [ "$verb" = help ]; then
        list="$("$1" help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p') environment"
    elif [[ $word == -* ]]; then
        list=$("$1" help "$verb" 2>/dev/null | sed -n 's/^  \(-., \)\{0,1\}\(--[a-z-]*\).*/\2/p')
    fi
    mapfile -t COMPREPLY < <(compgen -W "$list" -- "$word")
}
complete -o default -F _sluice sluice
