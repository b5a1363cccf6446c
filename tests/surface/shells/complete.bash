# Prints what bash offers to complete a line. The arguments are the words as readline splits them
# (= and : are words of their own); LINE is the line.
source /usr/share/bash-completion/bash_completion
source "$COMPLETIONS/canal.bash"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9 COMP_KEY=9
COMPREPLY=()
# compopt complains that readline does not run.
_canal canal "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
