# What the cells of a Bash context left, written to a file and read from one: more of the driver (`bash.sh`), which is given this
# when the host first asks for either.
#
# The file is commands that the shell prints for that: options, functions, variables, aliases, traps, directory. It is
# written by a copy of the shell, which is ended when it takes too long. What is open or runs is not carried. No name here
# may be one of a cell: a variable of a function would hide it.

# Of the shell itself, or not the same in two shells.
__offleash_own='^(BASH|BASHOPTS|BASHPID|BASH_.*|COMP_.*|DIRSTACK|EPOCH.*|EUID|FUNCNAME|GROUPS|HISTCMD|HOSTNAME|LINENO|PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SRANDOM|UID|_|__offleash_.*)$'
__offleash_magic='# offleash-state-1 bash'

# Frames with what came of it.
__offleash_save() {
    # That is a command like any other, whose words are divided.
    builtin local "__offleash_id=$1" __offleash_order __offleash_path __offleash_seconds __offleash_most
    builtin local __offleash_report __offleash_umask __offleash_traps __offleash_signal
    __offleash_order=${__offleash_payload%%$'\n'*} __offleash_path=${__offleash_payload#*$'\n'}
    __offleash_seconds=${__offleash_order%% *}
    __offleash_most=${__offleash_order#* } __offleash_most=${__offleash_most%% *}
    __offleash_find_open
    if ((${#__offleash_open[@]} && ! ${__offleash_order##* })); then
        __offleash_refuse "$__offleash_id" obstacles ''
        builtin return
    fi
    __offleash_umask=$(builtin umask -p)
    # `SIGINT` and `EXIT` are the driver's.
    __offleash_traps=
    for __offleash_signal in HUP QUIT USR1 USR2 ALRM TERM CHLD CONT TSTP TTIN TTOU WINCH; do
        __offleash_traps+=$(builtin trap -p "$__offleash_signal")$'\n'
    done
    __offleash_report=$(__offleash_in_time)
    if [[ $__offleash_report == 'saved '* ]]; then
        __offleash_saved_file=$__offleash_path
        __offleash_frame saved "$__offleash_id" "${__offleash_report#saved }"
    else
        builtin command rm -f -- "$__offleash_path"
        [[ -n $__offleash_report ]] || __offleash_report=$'other\nthe shell that saves it ended by itself'
        __offleash_refuse "$__offleash_id" "${__offleash_report%%$'\n'*}" "${__offleash_report#*$'\n'}"
    fi
}

__offleash_refuse() {
    __offleash_frame refused "$1" "$2"$'\n'"${3:0:300}"
}

# Tells of files that cells opened by number; what is under other numbers is ours.
__offleash_find_open() {
    builtin local __offleash_at __offleash_ours
    __offleash_open=()
    for __offleash_at in {3..199}; do
        [[ -e /proc/self/fd/$__offleash_at && $__offleash_given != *" $__offleash_at "* ]] || continue
        for __offleash_ours in 200 201 202 203 204 205 206 209; do
            [[ ! /proc/self/fd/$__offleash_at -ef /proc/self/fd/$__offleash_ours ]] || continue 2
        done
        __offleash_open+=("$__offleash_at")
        __offleash_frame obstacle "$__offleash_id" "(descriptor $__offleash_at)"$'\nfile\nan open file cannot be carried'
    done
}

# Writes the file and says how many bytes it has, or why there is none.
__offleash_in_time() {
    builtin local __offleash_worker __offleash_timer
    {
        builtin umask 077
        builtin set -C
        __offleash_failure=$({ __offleash_write | builtin command head -c "$((__offleash_most + 1))" >"$__offleash_path"; } 2>&1)
        if [[ -n $__offleash_failure ]]; then
            case $__offleash_failure in
                *'No space left'* | *'quota exceeded'* | *'File too large'*) builtin printf 'full\n%s' "$__offleash_failure" ;;
                *) builtin printf 'other\n%s' "$__offleash_failure" ;;
            esac
            builtin exit
        fi
        __offleash_size=$(builtin command wc -c <"$__offleash_path")
        if ((__offleash_size > __offleash_most)); then
            builtin printf 'large\nit has more than %s bytes' "$__offleash_most"
        else
            builtin printf 'saved %d' "$__offleash_size"
        fi
    } &
    __offleash_worker=$!
    builtin command sleep "$__offleash_seconds" >/dev/null 2>&1 &
    __offleash_timer=$!
    builtin wait -n "$__offleash_worker" "$__offleash_timer" 2>/dev/null
    if ! builtin kill -0 "$__offleash_timer" 2>/dev/null; then
        builtin kill -KILL "$__offleash_worker" 2>/dev/null &&
            builtin printf 'time\nit took longer than %s seconds' "$__offleash_seconds"
    fi
    builtin kill -KILL "$__offleash_timer" 2>/dev/null
    builtin wait 2>/dev/null
}

# The commands.
__offleash_write() {
    builtin local __offleash_name __offleash_text __offleash_now
    builtin local -A __offleash_first
    builtin set +C
    exec 2>/dev/null
    while IFS= builtin read -r -d '' __offleash_text; do
        [[ -z ${__offleash_text%%=*} ]] || __offleash_first[${__offleash_text%%=*}]=x${__offleash_text#*=}
    done <"/proc/$$/environ"
    builtin printf '%s\n' "$__offleash_magic"
    builtin shopt -p
    builtin set +o
    builtin printf '__offleash_options=%q __offleash_count=%q\n' "$__offleash_options" "$__offleash_count"
    while builtin read -r __offleash_name; do
        [[ ! $__offleash_name =~ $__offleash_own ]] || continue
        __offleash_text=$(builtin declare -p "$__offleash_name") || continue
        if [[ $__offleash_text == 'declare -x '* && ${__offleash_first[$__offleash_name]-} == "x${!__offleash_name}" ]]; then
            # As it was given it, and as another is given its own.
            continue
        fi
        __offleash_text=${__offleash_text#declare -}
        builtin printf 'declare -g%s\n' "${__offleash_text/#-/ }"
    done < <(builtin compgen -v)
    for __offleash_name in "${!__offleash_first[@]}"; do
        [[ -v $__offleash_name || $__offleash_name =~ $__offleash_own ]] || builtin printf 'unset -v %q\n' "$__offleash_name"
    done
    builtin alias -p
    builtin printf '%s\n' "$__offleash_traps"
    builtin printf '%s\n' "$__offleash_umask"
    builtin printf 'cd -- %q || __offleash_missing=1\n' "$PWD"
    # Neither do aliases stand for words of functions, nor functions for commands above.
    builtin printf 'builtin shopt -u expand_aliases\n'
    while IFS=' ' builtin read -r _ __offleash_text __offleash_name; do
        [[ $__offleash_name != __offleash_* && $__offleash_name != exit ]] || continue
        builtin declare -f "$__offleash_name"
        [[ $__offleash_text != *x* ]] || builtin printf 'builtin declare -fx %q\n' "$__offleash_name"
    done < <(builtin declare -F)
    builtin shopt -p expand_aliases
    builtin printf '__offleash_whole=1\n'
}

__offleash_load() {
    builtin local "__offleash_id=$1" "__offleash_path=$__offleash_payload" __offleash_missing=0 __offleash_whole=0 __offleash_line=
    if [[ -f $__offleash_path && ! -L $__offleash_path ]]; then
        builtin read -r __offleash_line <"$__offleash_path"
        if [[ $__offleash_line == "$__offleash_magic" ]]; then
            builtin unalias -a
            builtin . "$__offleash_path" >/dev/null 2>&1
        fi
    fi
    builtin command rm -f -- "$__offleash_path"
    # Two shells may begin with the same numbers.
    RANDOM=${SRANDOM:-$(builtin command od -An -N4 -tu4 /dev/urandom)}
    if ((!__offleash_whole)); then
        __offleash_refuse "$__offleash_id" other 'the file is no whole state of a context of Bash'
        builtin return
    fi
    ((!__offleash_missing)) ||
        __offleash_frame obstacle "$__offleash_id" $'(working directory)\nstring\nit is not there'
    __offleash_frame loaded "$__offleash_id" "$__offleash_count"
}
