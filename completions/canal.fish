# fish completion for canal

# Prints the verb, and then the words from the first operand of it on, the one under the cursor too.
function __canal_words
    set -l words (commandline -opc)
    set -e words[1]
    set -l verb
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        switch $word
            case --
                break
            case --socket --key --key-literal --read --write --why --under --user --for --while --per --buckets --slots --count --wait --conflict-exit-code \
                --priority --max-waiting --max-run --kill-after --signal --pid --token --handle --ttl --on-lost --note --progress --idle-exit \
                --since --svg
                set -e words[1]
            case '--*'
            case '-*'
                # The value of a short option is attached, or the next word.
                string match -qr '^-[nqvhVy]*[kjwEcs]$' -- $word; and set -e words[1]
            case '*'
                if set -q verb[1]
                    set -p words $word
                    break
                end
                set verb $word
        end
        # Past `--`, or no words left: what is under the cursor may be the operand.
    end
    set -q verb[1]; and printf '%s\n' $verb $words
end

# Whether the verb is one of the arguments, or there is none and no argument. With `run` it is so
# only before the command begins.
function __canal_at
    set -l words (__canal_words)
    if not set -q words[1]
        return (count $argv)
    end
    contains -- $words[1] $argv; or return
    test $words[1] != run; and return
    not __canal_in_command
end

# Whether the command of `canal run` has begun before the cursor.
function __canal_in_command
    set -l words (__canal_words)
    test "$words[1]" = run; or return
    set -q words[2]; and return
    # `canal run -k x -- |`
    set -l before (commandline -opc)
    contains -- -- $before
end

# Whether the word under the cursor may be the command of `canal run`.
function __canal_before_command
    __canal_at run; and not string match -q -- '-*' (commandline -ct)
end

# Completes the command of `canal run` as if it stood alone.
function __canal_command
    set -l words (__canal_words)
    set -e words[1]
    set -l line (string escape -- $words | string join ' ')
    # The last word is not escaped: it is what is being completed.
    complete -C (string trim -l -- "$line "(commandline -ct))
end

# Prints the keys that begin as the word under the cursor does.
function __canal_keys
    set -l words (commandline -opc)
    set -l socket
    for at in (seq 2 (count $words))
        switch $words[$at]
            case --socket
                set socket --socket $words[(math $at + 1)]
            case '--socket=*'
                set socket $words[$at]
        end
    end
    $words[1] $socket complete keys -- (commandline -ct | string replace -r '^(--(key|key-literal|read|write|under)=|-k)' '') 2>/dev/null
end

# Prints those of them that -k takes: without = and :, which would begin a size there.
function __canal_sizable_keys
    __canal_keys | string match -rv '[=:]'
end

complete -c canal -f

set -l verbs run acquire release renew status top history stats metrics trace test leader kill resize daemon bridge config doctor setup completions man
complete -c canal -n __canal_at -a run -d 'Take the lock, run a command, give the lock back'
complete -c canal -n __canal_at -a acquire -d 'Take the lock for a process, or as a lease'
complete -c canal -n __canal_at -a release -d 'Give back what a process or a lease holds'
complete -c canal -n __canal_at -a renew -d 'Renew a lease'
complete -c canal -n __canal_at -a status -d 'Show holders, waiters, and why they wait'
complete -c canal -n __canal_at -a history -d 'Show what ended, when and how'
complete -c canal -n __canal_at -a stats -d 'Show waits, holds and use over time, and how many slots a lock should have'
complete -c canal -n __canal_at -a metrics -d 'Print the figures of the daemon for a monitor'
complete -c canal -n __canal_at -a trace -d 'Print what ended as a trace for ui.perfetto.dev'
complete -c canal -n __canal_at -a test -d 'Ask whether locks are free, without taking them'
complete -c canal -n __canal_at -a top -d 'Show keys, holders and waiters on the whole terminal'
complete -c canal -n __canal_at -a leader -d 'Show who leads by holding a lock'
complete -c canal -n __canal_at -a kill -d 'End the process that holds a lock, after showing it'
complete -c canal -n __canal_at -a resize -d 'Store the capacity of a lock'
complete -c canal -n __canal_at -a daemon -d 'Run the daemon, stop it, or replace it'
complete -c canal -n __canal_at -a setup -d 'Make one table of locks for all users of this machine'
complete -c canal -n __canal_at -a bridge -d 'Join standard input and output to the daemon'
complete -c canal -n __canal_at -a config -d 'Show the configuration in force'
complete -c canal -n __canal_at -a doctor -d 'Look for what is wrong with the set-up'
complete -c canal -n __canal_at -a completions -d 'Print the completion script of a shell'
complete -c canal -n __canal_at -a man -d 'Write the man pages into a directory'
complete -c canal -n __canal_at -a help -d 'Explain a command'
complete -c canal -n __canal_at -s V -l version -d 'Print version'
complete -c canal -n '__canal_at help' -a "$verbs"

for at in __canal_at "__canal_at $verbs list ps"
    complete -c canal -n $at -l socket -r -F -d 'Talk to the daemon of this socket'
    complete -c canal -n $at -l no-start -d 'Do not start a daemon'
    complete -c canal -n $at -s q -l quiet -d 'Show no waiting lines and notes, twice: nothing'
    complete -c canal -n $at -s v -l verbose -d 'Say more'
    complete -c canal -n $at -s h -l help -d 'Print help'
end

set -l at '__canal_at run acquire test'
complete -c canal -n $at -s k -l key -x -a '(__canal_sizable_keys)' -d 'Key of the lock'
complete -c canal -n $at -l key-literal -x -a '(__canal_keys)' -d 'Key of the lock, as it stands'
complete -c canal -n $at -l read -x -a '(__canal_keys)' -d 'Share a key and those below it'
complete -c canal -n $at -l write -x -a '(__canal_keys)' -d 'Have a key and those below it alone'
complete -c canal -n $at -l new-session -d 'Begin a session of its own'
complete -c canal -n $at -l count -x -d 'Take so many slots at once'

set -l at '__canal_at run acquire'
complete -c canal -n $at -s n -l no-wait -d 'Do not wait'
complete -c canal -n $at -s w -l wait -x -a '10s 1m 10m 1h infinity' -d 'Wait at most DUR'
complete -c canal -n $at -s E -l conflict-exit-code -x -d 'Exit code when busy or the wait is over'
complete -c canal -n $at -l priority -x -d 'Go before waiters of a lower priority'
complete -c canal -n $at -l max-waiting -x -d 'Do not wait if so many wait already'
complete -c canal -n $at -l unattended -d 'Wait although nobody can read the output'

set -l at '__canal_at run acquire test resize'
complete -c canal -n $at -l per -x -d 'At most so many in each bucket'
complete -c canal -n $at -l buckets -x -d 'How many buckets there are now'
complete -c canal -n $at -s j -l slots -x -d 'At most so many at once'

set -l at '__canal_at run'
complete -c canal -n $at -s c -x -d 'Run a string with sh -c'
complete -c canal -n $at -l max-run -x -a '10s 1m 10m 1h infinity' -d 'End the command after DUR'
complete -c canal -n '__canal_at run kill' -l kill-after -x -a '10s 1m 10m 1h infinity' -d 'Kill it DUR after the signal'
complete -c canal -n $at -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -d 'The signal by which --max-run ends it'
complete -c canal -n $at -l with-children -d 'Keep the lock for processes that it started'
complete -c canal -n $at -l jobserver -d 'Have each job of make and cargo take a slot'
complete -c canal -n '__canal_before_command; or __canal_in_command' -a '(__canal_command)'

complete -c canal -n '__canal_at acquire release kill' -l pid -x -a '(__fish_complete_pids)' -d 'The process that holds'
complete -c canal -n '__canal_at run acquire' -l on-lost -x -a 'kill term warn' -d 'What becomes of it if the lock is lost'
complete -c canal -n '__canal_at run acquire' -l on -x -d 'Take the lock at these daemons'
complete -c canal -n '__canal_at run acquire' -l require -x -a 'all any majority all-alive majority-alive' -d 'How many of them must grant it'
complete -c canal -n '__canal_at run' -l ttl -x -a '10s 1m 10m' -d 'How long a node keeps the lock without news'
complete -c canal -n '__canal_at acquire' -l ttl -x -a '10s 1m 10m 1h' -d 'Take it as a lease that lives for DUR without renewal'
complete -c canal -n '__canal_at run acquire' -l progress -x -a 'auto tty log none' -d 'How to show the wait'
complete -c canal -n '__canal_at run acquire renew' -l note -x -d 'Show this text to others'
complete -c canal -n '__canal_at release renew' -l handle -x -d 'Handle of the lease, or - for standard input'
complete -c canal -n '__canal_at acquire release renew status list ps history stats test leader kill resize config doctor' -l json -d 'Print JSON'
complete -c canal -n '__canal_at acquire test' -a '(__canal_sizable_keys)' -d 'Key'
complete -c canal -n '__canal_at release status list ps top history stats trace leader kill resize' -a '(__canal_keys)' -d 'Key'

complete -c canal -n '__canal_at history stats trace' -l since -x -a '1h 1d 1w' -d 'Only what ended within DUR'
complete -c canal -n '__canal_at history stats' -l user -x -a '(__fish_complete_users)' -d 'Only what is of this user'
complete -c canal -n '__canal_at stats' -l ascii -d 'Draw with plain ASCII characters'
complete -c canal -n '__canal_at stats' -l svg -r -F -d 'Write a report with pictures'
complete -c canal -n '__canal_at stats' -l force -d 'Replace the file of --svg'
complete -c canal -n '__canal_at history' -l failed -d 'Only what ended otherwise than by a release or with exit code 0'
complete -c canal -n '__canal_at history' -s n -x -d 'Show the last so many'
complete -c canal -n '__canal_at history' -l csv -d 'Print comma-separated values'
complete -c canal -n '__canal_at release' -l all -d 'Everything that the process holds'
complete -c canal -n '__canal_at release' -l force -d 'Break the only hold of the key, or that of --token'
complete -c canal -n '__canal_at release' -l token -x -d 'Token of the hold to break'

set -l at '__canal_at status list ps top'
complete -c canal -n $at -l under -x -a '(__canal_keys)' -d 'Only the keys below PREFIX'
complete -c canal -n $at -l mine -d 'Only what you hold and wait for'
complete -c canal -n $at -l user -x -a '(__fish_complete_users)' -d 'Only what this user holds and waits for'
complete -c canal -n $at -l waiting -d 'Only locks for which something waits'

set -l at '__canal_at status list ps'
complete -c canal -n $at -l watch -d 'Show it again after each change'
complete -c canal -n $at -l ended -d 'Show the leases that ended lately'
complete -c canal -n $at -l why -x -a '(__fish_complete_pids)' -d 'Show what this process or session waits for'
complete -c canal -n $at -l graph -d 'Print waiters and blockers for Graphviz'

complete -c canal -n '__canal_at test' -l for -x -d 'Ask for so many slots at once'

complete -c canal -n '__canal_at leader' -l on -x -d 'Ask these daemons'
complete -c canal -n '__canal_at leader' -l require -x -a 'all majority' -d 'How many of them must name the leader'
complete -c canal -n '__canal_at leader' -l watch -d 'Print a line of JSON now and after each change'

complete -c canal -n '__canal_at kill' -l waiters -d 'The processes that wait for the key, too'
complete -c canal -n '__canal_at kill' -s s -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -d 'The signal that is sent'
complete -c canal -n '__canal_at kill release' -s y -l yes -d 'Do not ask'

complete -c canal -n '__canal_at renew' -l ttl -x -a '10s 1m 10m 1h' -d 'How long it lives without a renewal from now on'
complete -c canal -n '__canal_at renew' -l while -x -a '(__fish_complete_pids)' -d 'Renew it as long as this process lives'

complete -c canal -n '__canal_at resize' -l forget -d 'Forget what is stored'
complete -c canal -n '__canal_at resize' -l pause -d 'Grant no more slots'
complete -c canal -n '__canal_at resize' -l resume -d 'End a pause'

complete -c canal -n '__canal_at daemon' -l stop -d 'Stop the daemon that runs'
complete -c canal -n '__canal_at daemon' -l replace -d 'Stop the daemon that runs and take its place'
complete -c canal -n '__canal_at bridge' -l leases -d 'Allow nothing but leases over nodes'
complete -c canal -n '__canal_at bridge' -l keys -x -a '(__canal_keys)' -d 'Only for these keys'

complete -c canal -n '__canal_at daemon' -l reload -d 'Have the daemon that runs read its configuration again'
complete -c canal -n '__canal_at daemon' -l idle-exit -x -a '10s 1m 10m 1h infinity' -d 'End after DUR without work'
complete -c canal -n '__canal_at doctor' -l engine -x -d 'Look at this engine too'
complete -c canal -n '__canal_at daemon' -l engine -x -d 'Share one table with other hosts'
complete -c canal -n '__canal_at daemon' -l engine-ttl -x -a '10s 30s 60s' -d 'Locks are void DUR after the last renewal at the engine'
complete -c canal -n '__canal_at daemon' -l host -x -d 'The name of this host'
complete -c canal -n '__canal_at daemon' -l no-engine -d 'Work without the engine that was used before'
complete -c canal -n '__canal_at daemon' -l discard-journal -d 'Set a journal aside that cannot be used'

complete -c canal -n '__canal_at setup' -l yes -d 'Do it without a question'
complete -c canal -n '__canal_at setup' -l dry-run -d 'Only print what would be done'

complete -c canal -n '__canal_at completions' -a 'bash zsh fish'
complete -c canal -n '__canal_at man' -a '(__fish_complete_directories)'
