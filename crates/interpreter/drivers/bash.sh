# The driver of Bash contexts: runs cells inside a sandbox, one after another, in one shell.
#
# The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). Code of cells shares this shell
# and can do to it whatever it likes; the host believes nothing that comes from here. What is written here only makes
# sure that code that means no harm does not do it by accident: names of the driver begin with `__offleash_`, builtins
# are called as such, its descriptors begin with 200, and no program that is started gets one of them.
#
# A cell is evaluated in the shell itself, outside of functions, so that what it declares stays. Whatever makes a shell
# end that is not interactive (`set -e`, `set -u`, an interrupt) ends in a trap on EXIT, in which a subshell, a copy of
# everything that there is, goes on in its place. `exit` is what ends a context.
#
# How output is read and frames are made is in `speaker.sh`, which comes before this.

# What the shell was told to do by `set` before the cell that comes.
__offleash_options=
__offleash_code=
__offleash_code_has_nul=0
__offleash_interrupted=0
__offleash_leaving=
__offleash_env=()
# Where what cells left is, until the host asks for anything more.
__offleash_saved_file=

# Waits for a cell, and has everything ready for it.
__offleash_next() {
    # None of these names hides one of a cell, which may have to be written down.
    builtin local __offleash_kind __offleash_id __offleash_length
    while builtin :; do
        # When nobody will ever ask for anything again.
        IFS=' ' builtin read -r -u 200 __offleash_kind __offleash_id __offleash_length || { builtin trap - EXIT; builtin exit 0; }
        __offleash_take "$__offleash_length"
        if [[ -n $__offleash_saved_file ]]; then
            builtin command rm -f -- "$__offleash_saved_file"
            __offleash_saved_file=
        fi
        case $__offleash_kind in
            sync)
                __offleash_code= __offleash_code_has_nul=0 __offleash_env=()
                __offleash_frame sync "$__offleash_id" "$__offleash_count"
                ;;
            part) builtin eval "$__offleash_payload" ;;
            save) __offleash_save "$__offleash_id" ;;
            load) __offleash_load "$__offleash_id" ;;
            code)
                __offleash_code+=$__offleash_payload
                ((!__offleash_has_nul)) || __offleash_code_has_nul=1
                ;;
            env) __offleash_env+=("$__offleash_payload") ;;
            run)
                __offleash_begin "$__offleash_id" "${__offleash_payload%% *}"
                builtin return 0
                ;;
        esac
    done
}

__offleash_begin() {
    __offleash_cell=$1
    ((__offleash_count += 1))
    __offleash_frame count "$1" "$__offleash_count"
    __offleash_tell "begin $1 $2"
    # Whatever an earlier cell closed or replaced. No other word does it, so no function may be in its place.
    builtin unset -f exec
    exec 0</dev/null 1>&202 2>&203
    __offleash_set_env
    __offleash_interrupted=0 __offleash_leaving=
    # Tells it from what else ends a shell.
    exit() {
        __offleash_leaving=$?
        builtin exit "${@:-$__offleash_leaving}"
    }
    __offleash_running=$__offleash_code
    __offleash_code=
    if ((__offleash_code_has_nul)); then
        __offleash_code_has_nul=0
        __offleash_fail SyntaxError 'the code has a NUL, which no program of the shell can have' \
            'the code has a NUL, which no program of the shell can have'
        __offleash_running=
    fi
    # The options that the cell before left, if this one can be read at all.
    __offleash_prefix=
    __offleash_applied=1
    if [[ -n $__offleash_options ]]; then
        __offleash_applied=0
        __offleash_prefix="{ __offleash_applied=1; builtin set -$__offleash_options; } 2>/dev/null; "
    fi
    builtin trap '__offleash_interrupted=1; builtin exit 130' INT
    builtin trap "$__offleash_on_exit" EXIT

}

# Variables of the cell alone. Names here are such that none of them hides one.
__offleash_set_env() {
    builtin local __offleash_pair __offleash_name
    __offleash_saved=()
    for __offleash_pair in "${__offleash_env[@]}"; do
        __offleash_name=${__offleash_pair%%=*}
        if ! [[ $__offleash_name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then
            builtin printf 'offleash: the shell cannot have a variable `%s`\n' "$__offleash_name" >&203
            continue
        fi
        if [[ ${!__offleash_name@a} == *r* ]]; then
            builtin printf 'offleash: the variable `%s` is read-only\n' "$__offleash_name" >&203
            continue
        fi
        if [[ ! -v $__offleash_name ]]; then
            __offleash_saved+=("u$__offleash_name")
        elif [[ ${!__offleash_name@a} == *x* ]]; then
            __offleash_saved+=("x$__offleash_name=${!__offleash_name}")
        else
            __offleash_saved+=("n$__offleash_name=${!__offleash_name}")
        fi
        builtin export "$__offleash_pair"
    done
    __offleash_env=()
}

__offleash_restore_env() {
    builtin local __offleash_pair __offleash_name
    for __offleash_pair in "${__offleash_saved[@]}"; do
        __offleash_name=${__offleash_pair:1}
        case $__offleash_pair in
            u*) builtin unset -v "$__offleash_name" ;;
            x*) builtin export "$__offleash_name" ;;
            n*)
                builtin export -n "$__offleash_name"
                ;;
        esac
    done 2>/dev/null
    __offleash_saved=()
}

# Ends the cell, whose status is `__offleash_status`.
__offleash_finish() {
    builtin local words
    builtin trap - EXIT
    if ((__offleash_applied)); then
        __offleash_options=${__offleash_set//[!aefkuvxCET]/}
    fi
    __offleash_tell end
    __offleash_restore_env
    if ((__offleash_interrupted)); then
        __offleash_fail Interrupted 130 'the cell was interrupted'
    elif ((__offleash_status)); then
        words=
        if ((__offleash_status == 1 || __offleash_status == 2)); then
            words=$(__offleash_syntax)
        fi
        if [[ -n $words ]]; then
            __offleash_fail SyntaxError "${words%%$'\n'*}" "$words"
        else
            __offleash_fail ExitCode "$__offleash_status" "the last command exited with status $__offleash_status"
        fi
    fi
    __offleash_running=
    __offleash_frame done "$__offleash_cell" ''
    __offleash_cell=$__offleash_nobody
}

# What the shell says of code that it cannot read; nothing of code that it can.
__offleash_syntax() {
    builtin local extended=+O
    ! builtin shopt -q extglob || extended=-O
    builtin printf '%s\n' "$__offleash_running" |
        "$BASH" --norc --noprofile "$extended" extglob -n 2>&1 |
        head -c 65536
}

# What follows is run outside of functions, and in one line: lines of a cell are counted from that of its `eval`. Loops
# of ours take a `break` or `continue` of a cell that belongs to no loop of its own: a cell that left more loops than
# there are comes to the next `__offleash_end`, or to the trap on EXIT.

# Notes how the cell ended, before anything changes that, and makes the shell ours. That this has a redirection hides
# what `set -x` says of it.
__offleash_end='
{
    __offleash_status=$? __offleash_set=$-;
    builtin set +aefknuvxCET;
    builtin trap "" INT;
    builtin trap - DEBUG ERR RETURN;
} 2>/dev/null;
'

# Runs cells, one after another.
__offleash_serve='
while builtin :; do
    if [[ $__offleash_cell != "$__offleash_nobody" ]]; then
        '$__offleash_end'
        __offleash_finish;
    fi;
    __offleash_next;
    for __offleash_once in once; do
        builtin eval "$__offleash_prefix$__offleash_running";
    done;
    '$__offleash_end'
    __offleash_finish;
done
'

# Where a shell ends. A cell that called `exit` ends its context; everything else ends the cell. A child that is killed
# before it could put its traps away comes here too, and has nothing to do here. That is asked in a way that leaves `$?`.
__offleash_on_exit='case $BASHPID in "$__offleash_shell")
'$__offleash_end'
if [[ $__offleash_interrupted == 0 && -n $__offleash_leaving ]]; then
    __offleash_tell end;
    builtin exit "$__offleash_status";
fi;
(
    __offleash_shell=$BASHPID;
    __offleash_finish;
    builtin eval "$__offleash_serve"
);
builtin exit $?;; esac
'
__offleash_serve=${__offleash_serve//$'\n'/ }
__offleash_on_exit=${__offleash_on_exit//$'\n'/ }

__offleash_shell=$BASHPID
# What was open when it was started is no cell's.
__offleash_given=' '
for __offleash_at in /proc/self/fd/*; do
    [[ ! -e $__offleash_at ]] || __offleash_given+="${__offleash_at##*/} "
done
__offleash_set_up
builtin shopt -s expand_aliases
