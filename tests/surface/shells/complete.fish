# Prints what fish offers to complete the line given.
source $COMPLETIONS/canal.fish
complete -C $argv[1] | string replace -r '\t.*' ''
