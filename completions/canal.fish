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
                --priority --max-waiting --supersede --group --without --with --max-run --kill-after --signal --pid --token --handle --ttl --on-lost --note --progress --idle-exit \
                --since --svg --log
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

# Whether the verb is one of the arguments, or there is none and no argument. With `run` and `submit` it is so
# only before the command begins.
function __canal_at
    set -l words (__canal_words)
    if not set -q words[1]
        return (count $argv)
    end
    contains -- $words[1] $argv; or return
    contains -- $words[1] run submit; or return 0
    not __canal_in_command
end

# Whether the command of `canal run` has begun before the cursor.
function __canal_in_command
    set -l words (__canal_words)
    contains -- "$words[1]" run submit; or return
    set -q words[2]; and return
    # `canal run -k x -- |`
    set -l before (commandline -opc)
    contains -- -- $before
end

# Whether the word under the cursor may be the command of `canal run`.
function __canal_before_command
    __canal_at run submit; and not string match -q -- '-*' (commandline -ct)
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

set -l verbs run submit log wait priority acquire release renew status top history stats metrics trace test leader kill resize daemon bridge config doctor setup completions man
complete -c canal -n __canal_at -a run -d 'Run a command under a lock'
complete -c canal -n __canal_at -a submit -d 'Run a command under a lock in the background'
complete -c canal -n __canal_at -a log -d 'Print the output of a background job'
complete -c canal -n __canal_at -a wait -d 'Wait for background jobs, and exit with their exit status'
complete -c canal -n __canal_at -a priority -d 'Change the priority of a waiting background job'
complete -c canal -n __canal_at -a acquire -d 'Take a lock for a process, or as a lease'
complete -c canal -n __canal_at -a release -d 'Release a lock of a process or a lease'
complete -c canal -n __canal_at -a renew -d 'Renew a lease'
complete -c canal -n __canal_at -a status -d 'Show holders, waiters, and why they wait'
complete -c canal -n __canal_at -a history -d 'Show which commands have ended, when and how'
complete -c canal -n __canal_at -a stats -d 'Show wait times, utilisation, and how many slots a lock needs'
complete -c canal -n __canal_at -a metrics -d 'Print metrics as OpenMetrics text'
complete -c canal -n __canal_at -a trace -d 'Print the history as a trace for ui.perfetto.dev'
complete -c canal -n __canal_at -a test -d 'Check whether locks are free'
complete -c canal -n __canal_at -a top -d 'Watch locks in a full-screen view, and act on them'
complete -c canal -n __canal_at -a leader -d 'Show the leader that holds a lock'
complete -c canal -n __canal_at -a kill -d 'Show and end the processes that hold a lock'
complete -c canal -n __canal_at -a resize -d 'Set the size of a lock for everyone, or pause it'
complete -c canal -n __canal_at -a daemon -d 'Run, stop, replace or reload the daemon'
complete -c canal -n __canal_at -a setup -d 'Share one table of locks among all users'
complete -c canal -n __canal_at -a bridge -d 'Connect standard input and output to the daemon'
complete -c canal -n __canal_at -a config -d 'Show the configuration and where each value comes from'
complete -c canal -n __canal_at -a doctor -d 'Find problems with the setup'
complete -c canal -n __canal_at -a completions -d "Print a shell's completion script"
complete -c canal -n __canal_at -a man -d 'Write the man pages to a directory'
complete -c canal -n __canal_at -a help -d 'Explain a command'
complete -c canal -n __canal_at -s V -l version -d 'Print version'
complete -c canal -n '__canal_at help' -a "$verbs"

for at in __canal_at "__canal_at $verbs list ps"
    complete -c canal -n $at -l socket -r -F -d 'Use the daemon at this socket'
    complete -c canal -n $at -l no-start -d 'Fail if no daemon is running'
    complete -c canal -n $at -s q -l quiet -d 'Hide the wait, refusals and notes'
    complete -c canal -n $at -s v -l verbose -d 'Print more messages'
    complete -c canal -n $at -s h -l help -d 'Print help'
end

set -l at '__canal_at run submit acquire test'
complete -c canal -n $at -s k -l key -x -a '(__canal_sizable_keys)' -d 'Key of the lock'
complete -c canal -n $at -l key-literal -x -a '(__canal_keys)' -d 'Key of the lock, as written'
complete -c canal -n $at -l read -x -a '(__canal_keys)' -d 'Share KEY and the keys below it'
complete -c canal -n $at -l write -x -a '(__canal_keys)' -d 'Hold KEY and the keys below it exclusively'
complete -c canal -n $at -l new-session -d 'Start a new session'
complete -c canal -n $at -l count -x -d 'Take N slots'
complete -c canal -n $at -l spread -d 'Take the slot from the bucket with the fewest held slots'

set -l at '__canal_at run submit acquire'
complete -c canal -n $at -s n -l no-wait -d 'Exit with 75 if the lock is not free'
complete -c canal -n $at -s w -l wait -x -a '10s 1m 10m 1h infinity' -d 'Wait at most DUR'
complete -c canal -n $at -s E -l conflict-exit-code -x -d 'Exit with N instead of 75'
complete -c canal -n $at -l priority -x -d 'Go ahead of waiters with a lower priority'
complete -c canal -n $at -l max-waiting -x -d 'Exit with 75 if N or more requests are already waiting'
complete -c canal -n $at -l supersede -x -a 'waiting running' -d 'Withdraw your older requests'
complete -c canal -n $at -l group -x -d 'Group in which --supersede looks'
complete -c canal -n $at -l unattended -d 'Keep waiting even if no one can read the output'

set -l at '__canal_at run submit acquire test resize'
complete -c canal -n $at -l per -x -d 'Run at most P at once in each bucket'
complete -c canal -n $at -l buckets -x -d 'Number of buckets'
complete -c canal -n $at -s j -l slots -x -d 'Run at most N at once'

set -l at '__canal_at run submit'
complete -c canal -n $at -s c -x -d 'Run STRING in a shell, with sh -c'
complete -c canal -n $at -l max-run -x -a '10s 1m 10m 1h infinity' -d 'End the command after DUR'
complete -c canal -n '__canal_at run submit kill' -l kill-after -x -a '10s 1m 10m 1h infinity' -d 'Kill the command DUR after the signal'
complete -c canal -n $at -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -d 'The signal that --max-run sends'
complete -c canal -n $at -l with-children -d 'Keep the lock until child processes have ended'
complete -c canal -n $at -l detach -d 'Run the command in the background'
complete -c canal -n $at -l log -r -F -d 'Append the job output to FILE'
complete -c canal -n $at -l jobserver -d 'Give make, ninja and cargo a jobserver'
complete -c canal -n '__canal_before_command; or __canal_in_command' -a '(__canal_command)'

complete -c canal -n '__canal_at acquire release kill' -l pid -x -a '(__fish_complete_pids)' -d 'Process that holds or waits'
complete -c canal -n '__canal_at run submit acquire' -l on-lost -x -a 'kill term warn' -d 'What to do if the lock is lost'
complete -c canal -n '__canal_at run submit acquire' -l on -x -d 'Lock on several nodes'
complete -c canal -n '__canal_at run submit acquire' -l require -x -a 'all any majority all-alive majority-alive' -d 'How many nodes must grant the lock'
complete -c canal -n '__canal_at run submit' -l ttl -x -a '10s 1m 10m' -d 'How long a node keeps the lock after a renewal'
complete -c canal -n '__canal_at acquire' -l ttl -x -a '10s 1m 10m 1h' -d 'Take a lease that ends DUR after its last renewal'
complete -c canal -n '__canal_at run submit acquire' -l progress -x -a 'auto tty log none' -d 'How to show the wait'
complete -c canal -n '__canal_at run submit acquire renew' -l note -x -d 'Show TEXT to everyone who sees the lock'
complete -c canal -n '__canal_at release renew' -l handle -x -d 'The lease\'s handle, - for standard input'
complete -c canal -n '__canal_at run submit log wait priority acquire release renew status list ps history stats test leader kill resize config doctor' -l json -d 'Print JSON'
complete -c canal -n '__canal_at acquire test' -a '(__canal_sizable_keys)' -d 'Key'
complete -c canal -n '__canal_at log' -l prune -d 'Remove the oldest finished jobs'
complete -c canal -n '__canal_at log' -l all -d 'With --prune, remove all finished jobs'
complete -c canal -n '__canal_at log' -s f -l follow -d 'Keep printing what the job writes until it ends'
complete -c canal -n '__canal_at log release status list ps top history stats trace leader kill resize' -a '(__canal_keys)' -d 'Key'

complete -c canal -n '__canal_at history stats trace' -l since -x -a '1h 1d 1w' -d 'Include only the last DUR'
complete -c canal -n '__canal_at history stats' -l user -x -a '(__fish_complete_users)' -d 'Include only requests by USER'
complete -c canal -n '__canal_at stats' -l ascii -d 'Draw with ASCII characters only'
complete -c canal -n '__canal_at stats' -l svg -r -F -d 'Write a report as an SVG picture'
complete -c canal -n '__canal_at stats' -l force -d 'Overwrite the file of --svg'
complete -c canal -n '__canal_at history' -l failed -d 'Show only entries that failed'
complete -c canal -n '__canal_at history' -s n -x -d 'Show the last N entries'
complete -c canal -n '__canal_at history' -l csv -d 'Print CSV with a header'
complete -c canal -n '__canal_at release' -l all -d 'Release everything that the process holds'
complete -c canal -n '__canal_at release' -l force -d 'Break the only hold on KEY, or the one with --token'
complete -c canal -n '__canal_at release' -l token -x -d 'Token of the hold to break'

set -l at '__canal_at status list ps top'
complete -c canal -n $at -l under -x -a '(__canal_keys)' -d 'Show only PREFIX and the keys below it'
complete -c canal -n $at -l mine -d 'Show only your own holds and requests'
complete -c canal -n $at -l user -x -a '(__fish_complete_users)' -d 'Show only the holds and requests of USER'
complete -c canal -n $at -l waiting -d 'Show only locks that have waiters'

set -l at '__canal_at status list ps'
complete -c canal -n $at -s 1 -l one-line -d 'Print one line for each holder and waiter'
complete -c canal -n $at -l watch -d 'Print the report again after each change'
complete -c canal -n $at -l ended -d 'Show the leases that ended recently'
complete -c canal -n $at -l why -x -a '(__fish_complete_pids)' -d 'Follow the chain of waits of a process'
complete -c canal -n $at -l graph -d 'Print a Graphviz graph of the waits'

complete -c canal -n '__canal_at test' -l for -x -d 'Check for N slots'

complete -c canal -n '__canal_at leader' -l on -x -d 'Ask these nodes'
complete -c canal -n '__canal_at leader' -l require -x -a 'all majority' -d 'How many nodes must name the leader'
complete -c canal -n '__canal_at leader' -l watch -d 'Print a line of JSON now and after each change'

complete -c canal -n '__canal_at kill' -l waiters -d 'Also end the processes that are waiting for KEY'
complete -c canal -n '__canal_at kill' -s s -l signal -x -a 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -d 'The signal to send'
complete -c canal -n '__canal_at kill release' -s y -l yes -d 'Do not ask for confirmation'

complete -c canal -n '__canal_at renew' -l ttl -x -a '10s 1m 10m 1h' -d 'How long the lease lasts without a renewal'
complete -c canal -n '__canal_at renew' -l while -x -a '(__fish_complete_pids)' -d 'Keep renewing while this process runs'

complete -c canal -n '__canal_at resize' -l forget -d 'Forget the stored size'
complete -c canal -n '__canal_at resize' -l pause -d 'Make requests wait until --resume'
complete -c canal -n '__canal_at resize' -l resume -d 'End a pause'
complete -c canal -n '__canal_at resize' -l without -x -d 'Take bucket or slot N out of service'
complete -c canal -n '__canal_at resize' -l with -x -d 'Return bucket or slot N to service'

complete -c canal -n '__canal_at daemon' -l stop -d 'Stop the running daemon'
complete -c canal -n '__canal_at daemon' -l replace -d 'Replace the running daemon'
complete -c canal -n '__canal_at daemon' -l foreground -d 'Stay in the foreground as the new daemon'
complete -c canal -n '__canal_at bridge' -l leases -d 'Allow only leases on nodes'
complete -c canal -n '__canal_at bridge' -l keys -x -a '(__canal_keys)' -d 'Allow only these keys'

complete -c canal -n '__canal_at daemon' -l reload -d 'Make the running daemon read its configuration'
complete -c canal -n '__canal_at daemon' -l idle-exit -x -a '10s 1m 10m 1h infinity' -d 'Exit after DUR without work'
complete -c canal -n '__canal_at doctor' -l engine -x -d 'Check this engine too'
complete -c canal -n '__canal_at daemon' -l engine -x -d 'Share one table with other hosts'
complete -c canal -n '__canal_at daemon' -l engine-ttl -x -a '10s 30s 60s' -d 'Give up locks DUR after the last renewal'
complete -c canal -n '__canal_at daemon' -l host -x -d 'This host\'s name'
complete -c canal -n '__canal_at daemon' -l no-engine -d 'Stop using the previous engine'
complete -c canal -n '__canal_at daemon' -l discard-journal -d 'Set an unusable journal aside'
complete -c canal -n '__canal_at daemon' -l first-start -d 'Declare that this node has never granted a lock'

complete -c canal -n '__canal_at setup' -l yes -d 'Do not ask for confirmation'
complete -c canal -n '__canal_at setup' -l first-start -d 'Declare that no daemon has run here before'
complete -c canal -n '__canal_at setup' -l dry-run -d 'Print the steps without doing them'

complete -c canal -n '__canal_at completions' -a 'bash zsh fish'
complete -c canal -n '__canal_at man' -a '(__fish_complete_directories)'
