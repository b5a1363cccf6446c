# Prints what zsh offers to complete the line given, in a terminal of its own.
zmodload zsh/zpty
local init=$(mktemp)
cat > $init <<'END'
PROMPT=
fpath=($COMPLETIONS $fpath)
autoload -U compinit
# The dump is in the home of this test.
compinit -u -d $HOME/.zcompdump
bindkey '^I' complete-word
compadd() {
  if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\ * ]]; then
    local -a offered
    builtin compadd -A offered "$@"
    (( $#offered )) && print -rl -- '<'$^offered'>'
  fi
  builtin compadd "$@"
}
begun() { print -r -- @BEGUN }
ended() { print -r -- @ENDED; exit }
compprefuncs=(begun) comppostfuncs=(ended)
print @READY
END
zpty shell 'TERM=dumb zsh -f -i'
zpty -w shell "source ${(q)init}"
while zpty -r shell line && [[ $line != @READY* ]]; do :; done
zpty -w -n shell "$1"$'\t'
while zpty -r shell line && [[ $line != *@BEGUN* ]]; do :; done
while zpty -r shell line && [[ $line != *@ENDED* ]]; do
  line=${line%%$'\r'*}
  [[ $line == '<'*'>' ]] && print -r -- ${${line#<}%>}
done
zpty -d shell
rm -f -- $init
