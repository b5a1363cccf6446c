# bash completion for canal; needs bash-completion.
# shellcheck shell=bash
# shellcheck disable=SC2154  # cur, prev, words and cword are set by _init_completion

# Puts the keys that begin with $cur into COMPREPLY, quoted for the shell; with `sizable` those that
# -k takes: without = and :, which would begin a size there.
_canal_keys() {
    local key prefix=${cur//\\/}
    prefix=${prefix#[\"\']}
    while IFS= read -r key; do
        [[ ${2-} == sizable && $key == *[=:]* ]] || COMPREPLY+=("$(printf %q "$key")")
    done < <("$1" "${socket[@]}" complete keys -- "$prefix" 2>/dev/null)
    __ltrim_colon_completions "$cur"
}

# Hands the command that begins at word $1 to its own completion.
_canal_command() {
    # _command_offset counts in COMP_WORDS, where = and : are words of their own.
    local at=0 i joined
    for ((i = 0; i < $1; i++)); do
        joined=${COMP_WORDS[at++]}
        while [[ $joined != "${words[i]}" ]] && ((at < ${#COMP_WORDS[@]})); do
            joined+=${COMP_WORDS[at++]}
        done
    done
    _command_offset "$at"
}

_canal() {
    local cur prev words cword split
    _init_completion -s -n : || return

    local everywhere='--socket --no-start -q --quiet -v --verbose -h --help'
    local lock='-k --key --key-literal --read --write --per --buckets -j --slots --count --spread --new-session'
    local wait='-n --no-wait -w --wait -E --conflict-exit-code --priority --max-waiting --supersede --group --note --progress --unattended'
    local verbs='run submit log wait priority acquire release renew status top history stats metrics trace test leader kill resize daemon bridge config doctor setup completions man help'

    # What stands before the cursor: the verb, options that take a value, the first operand.
    local verb='' operand=0 string='' i socket=()
    for ((i = 1; i < cword; i++)); do
        case ${words[i]} in
            --)
                ((operand)) || operand=$((i + 1))
                break
                ;;
            --socket)
                socket=(--socket "${words[++i]}")
                ;;
            --socket=*)
                socket=("${words[i]}")
                ;;
            --key | --key-literal | --read | --write | --why | --under | --user | --for | --while | --per | --buckets | --slots | --count | --wait | --conflict-exit-code | \
                --priority | --max-waiting | --supersede | --group | --without | --with | --max-run | --kill-after | --signal | --pid | --token | --handle | --ttl | --on-lost | --note | --progress | \
                --idle-exit | --since | --on | --require | --svg | --log)
                ((i++))
                ;;
            --*) ;;
            -s)
                [[ $verb == kill ]] && ((i++))
                ;;
            -n)
                [[ $verb == history ]] && ((i++))
                ;;
            -*c)
                string=given
                ((i++))
                ;;
            -*[kjwE])
                # A value may be attached: -kj is the key j.
                [[ ${words[i]} == -*[kjwEc]*[kjwEc] ]] || ((i++))
                ;;
            -*) ;;
            *)
                if [[ ! $verb ]]; then
                    verb=${words[i]}
                elif ((!operand)); then
                    operand=$i
                fi
                [[ $verb == @(run|submit) ]] && ((operand)) && break
                ;;
        esac
    done

    if [[ $verb == @(run|submit) ]] && ((operand && operand <= cword)); then
        _canal_command "$operand"
        return
    fi

    case $prev in
        --key | -*k)
            if [[ $verb == @(run|submit|acquire|test) ]]; then
                _canal_keys "$1" sizable
                return
            fi
            ;;
        --key-literal | --read | --write | --under | --keys)
            _canal_keys "$1"
            return
            ;;
        --user)
            mapfile -t COMPREPLY < <(compgen -u -- "$cur")
            return
            ;;
        --socket | --svg | --log)
            _filedir
            return
            ;;
        -s)
            if [[ $verb == kill ]]; then
                mapfile -t COMPREPLY < <(compgen -W 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -- "$cur")
                return
            fi
            ;;
        -n)
            [[ $verb == history ]] && return
            ;;
        --signal)
            mapfile -t COMPREPLY < <(compgen -W 'TERM INT HUP QUIT KILL USR1 USR2 ALRM' -- "$cur")
            return
            ;;
        --require)
            local most='all any majority all-alive majority-alive'
            [[ $verb != leader ]] || most='all majority'
            mapfile -t COMPREPLY < <(compgen -W "$most" -- "$cur")
            return
            ;;
        --jobserver)
            if $split; then
                mapfile -t COMPREPLY < <(compgen -W 'auto fifo pipe' -- "$cur")
                return
            fi
            ;;
        --on-lost)
            mapfile -t COMPREPLY < <(compgen -W 'kill term warn' -- "$cur")
            return
            ;;
        --supersede)
            mapfile -t COMPREPLY < <(compgen -W 'waiting running' -- "$cur")
            return
            ;;
        --progress)
            mapfile -t COMPREPLY < <(compgen -W 'auto tty log none' -- "$cur")
            return
            ;;
        --pid | --why | --while)
            # The holders and waiters; without any, all processes.
            [[ $prev == --while ]] || mapfile -t COMPREPLY < <("$1" "${socket[@]}" complete pids -- "$cur" 2>/dev/null)
            ((${#COMPREPLY[@]})) || _pids
            return
            ;;
        --wait | --max-run | --kill-after | --idle-exit | --ttl | --since | -*w)
            mapfile -t COMPREPLY < <(compgen -W '10s 1m 10m 1h infinity' -- "$cur")
            return
            ;;
        --per | --buckets | --slots | --count | --for | --conflict-exit-code | --priority | --note | --token | --handle | --on | -*[jEc])
            return
            ;;
    esac
    $split && return

    local options=
    case $verb in
        '')
            options="$everywhere -V --version"
            [[ $cur == -* ]] || options=$verbs
            ;;
        run | submit)
            options="$lock $wait --detach --log --json -c --max-run --kill-after --signal --with-children --jobserver --on-lost --on --require --ttl $everywhere"
            if [[ $cur != -* ]]; then
                # -c STRING is the whole command.
                [[ $string ]] || _canal_command "$cword"
                return
            fi
            ;;
        acquire) options="$lock $wait --pid --ttl --on --require --on-lost --json $everywhere" ;;
        log) options="-f --follow --prune --all --json $everywhere" ;;
        wait | priority) options="--json $everywhere" ;;
        release) options="--all --handle --force --token -y --yes --pid --json $everywhere" ;;
        renew) options="--handle --while --ttl --note --json $everywhere" ;;
        status | list | ps) options="--under --mine --user --waiting --json -1 --one-line --watch --ended --why --graph $everywhere" ;;
        top) options="--under --mine --user --waiting $everywhere" ;;
        stats) options="--since --user --ascii --svg --force --json $everywhere" ;;
        metrics) options=$everywhere ;;
        trace) options="--since $everywhere" ;;
        history) options="--since --user --failed -n --json --csv $everywhere" ;;
        test) options="$lock --for --json $everywhere" ;;
        leader) options="--watch --json --on --require $everywhere" ;;
        kill) options="--pid --waiters -s --signal --kill-after -y --yes --json $everywhere" ;;
        resize) options="--per --buckets -j --slots --forget --pause --resume --without --with --json $everywhere" ;;
        bridge) options="--leases --keys $everywhere" ;;
        config) options="--json $everywhere" ;;
        doctor) options="--engine --json $everywhere" ;;
        daemon) options="--stop --replace --foreground --reload --idle-exit --engine --engine-ttl --host --no-engine --discard-journal --first-start $everywhere" ;;
        setup) options="--first-start --yes --dry-run $everywhere" ;;
        completions)
            options=$everywhere
            [[ $cur == -* ]] || options='bash zsh fish'
            ;;
        man)
            options=$everywhere
            if [[ $cur != -* ]]; then
                _filedir -d
                return
            fi
            ;;
        help) options=$verbs ;;
    esac
    if [[ $cur != -* && $verb == @(acquire|log|release|status|list|ps|top|history|stats|trace|test|leader|kill|resize) ]]; then
        [[ $verb == test ]] || ((!operand)) || return
        local only=
        [[ $verb != @(acquire|test) ]] || only=sizable
        _canal_keys "$1" "$only"
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
}

complete -F _canal canal
