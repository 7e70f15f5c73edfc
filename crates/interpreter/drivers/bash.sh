# The driver of Bash contexts: runs cells inside a sandbox, one after another, in one shell.
#
# The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). Code of cells shares this shell
# and can do to it whatever it likes; the host believes nothing that comes from here. What is written here only makes
# sure that code that means no harm does not do it by accident: names of the driver begin with `__offleash_`, builtins
# are called as such, and no child gets a descriptor of ours.
#
# A cell is evaluated in the shell itself, outside of functions, so that what it declares stays. Whatever makes a shell
# end that is not interactive (`set -e`, `set -u`, an interrupt) ends in a trap on EXIT, in which a subshell, a copy of
# everything that there is, goes on in its place. `exit` is what ends a context.
#
# Output comes through two pipes in place of descriptors 1 and 2. A pump reads each and makes frames of it, one at a
# time because of a lock: a pipe with one byte in it. Where output of a cell begins and ends is said in the same pipe,
# in words between two NUL that begin with a number that nobody writes by accident.
#
# Bash 5.0 and newer, with `head` and `dd`.

__offleash_nobody=00000000000000000000000000000000
__offleash_count=0
__offleash_cell=$__offleash_nobody
# What the shell was told to do by `set` before the cell that comes.
__offleash_options=
__offleash_code=
__offleash_code_has_nul=0
__offleash_interrupted=0
__offleash_leaving=
__offleash_env=()

# Moves what the host gave to where no cell looks, and starts the pumps.
#
# 200 and 201 lead from and to the host, 202 and 203 are where output is written, 204 is the lock, 205 and 206 are where
# the pumps say that they heard, 209 is where a driver that cannot go on complains.
__offleash_set_up() {
    exec 200<&0 201>&1 209>&2 0</dev/null
    # Pipes, of which all but the lock are opened once more in one direction: a pump that ends is an end of what it says.
    exec 204<> <(builtin :) 210<> <(builtin :) 211<> <(builtin :) 212<> <(builtin :) 213<> <(builtin :)
    exec 202>/proc/self/fd/210 203>/proc/self/fd/211 205</proc/self/fd/212 206</proc/self/fd/213
    __offleash_token="$BASHPID.${SRANDOM:-$RANDOM$RANDOM}"
    builtin trap '' INT
    __offleash_pump stdout </proc/self/fd/210 207>/proc/self/fd/212 >/dev/null 2>&1 \
        202>&- 203>&- 205<&- 206<&- 210>&- 211>&- 212>&- 213>&- &
    __offleash_pumps=("$!")
    __offleash_pump stderr </proc/self/fd/211 207>/proc/self/fd/213 >/dev/null 2>&1 \
        202>&- 203>&- 205<&- 206<&- 210>&- 211>&- 212>&- 213>&- &
    __offleash_pumps+=("$!")
    # A `wait` of a cell waits for its own children.
    builtin disown -a
    builtin printf x >&204
    # From here on they have the other ends.
    builtin local byte
    builtin read -r -N 1 -u 205 byte
    builtin read -r -N 1 -u 206 byte
    exec 210>&- 211>&- 212>&- 213>&-
}

__offleash_die() {
    builtin printf 'offleash: %s\n' "$1" >&209
    builtin trap - EXIT
    builtin exit 70
}

# Waits until both pumps said that they heard.
__offleash_heard() {
    builtin local byte
    { builtin read -r -N 1 -u 205 byte && builtin read -r -N 1 -u 206 byte; } 2>/dev/null ||
        __offleash_die 'what reads the output has ended'
}

__offleash_frame() {
    builtin local LC_ALL=C byte
    builtin read -r -N 1 -u 204 byte
    builtin printf '%s %s %d\n%s' "$1" "$2" "${#3}" "$3" >&201
    builtin printf x >&204
}

# Tells both pumps something, and waits until they heard of it: all that was written before was passed on then.
__offleash_tell() {
    builtin printf '\0%s %s;\0' "$__offleash_token" "$1" >&202
    builtin printf '\0%s %s;\0' "$__offleash_token" "$1" >&203
    __offleash_heard
}

# Pumps.

# Makes frames of what comes on standard input. A variable of the shell holds no NUL, so this is read in pieces that
# end with one. No `read` here has a limit of time, with which it may lose what comes at that moment.
__offleash_pump() {
    # All that follows counts bytes.
    LC_ALL=C
    local IFS= kind=$1 cell=$__offleash_nobody room=0 dropped=0
    local chunk ended many byte tail='' streak=0 order
    # What was read and not sent: pieces that end with NUL, and one of which that is not certain, or not yet read.
    local pieces=() open='' nul=0
    builtin trap - EXIT
    builtin shopt -s lastpipe
    exec 208<&0
    builtin printf x >&207
    while __offleash_some; do
        if ((room <= 0)); then
            __offleash_discard
            continue
        fi
        streak=$((ended ? streak + 1 : 0))
        __offleash_feed
        if ((many || streak > 16)) && builtin read -t 0 -u 208; then
            # The shell asks for every byte whether it is there; another program takes all at once.
            dd bs=32768 count=1 <&208 2>/dev/null | while builtin :; do
                chunk='' ended=1
                builtin read -r -d '' chunk || ended=0
                [[ $ended$chunk == 0 ]] || __offleash_feed
                ((ended)) || break
            done
        fi
        __offleash_put
    done
}

# Reads what is there into `chunk`, or waits for it: up to a NUL (then `ended` is 1), or not very much (then `many` is).
__offleash_some() {
    chunk='' ended=0 many=0
    while builtin read -r -d '' -n 1 -u 208 byte; do
        if [[ -z $byte ]]; then
            ended=1
            builtin return 0
        fi
        chunk+=$byte
        if ((${#chunk} == 256)); then
            many=1
            builtin return 0
        fi
        builtin read -t 0 -u 208 || builtin return 0
    done
    [[ -n $chunk ]]
}

# Takes `chunk`, which NUL follows if `ended`.
__offleash_feed() {
    while ((nul && !ended)) && [[ $__offleash_token == "$chunk"* || $chunk == "$__offleash_token"* ]]; do
        # Perhaps the beginning of what the driver says, which ends with NUL.
        builtin read -r -d '' -n 1 -u 208 byte || builtin exit 0
        [[ -n $byte ]] || ended=1
        chunk+=$byte
    done
    if ((nul && ended)) && [[ $chunk == "$__offleash_token "* ]]; then
        __offleash_put
        nul=0 streak=0
        chunk=${chunk#* }
        __offleash_obey "${chunk%;}"
        builtin return
    fi
    if ((nul)); then
        pieces+=("$open")
        open=
    fi
    open+=$chunk nul=$ended
}

# Sends what was read, but for a NUL that may be the driver's.
__offleash_put() {
    builtin local each size=${#open} most
    for each in "${pieces[@]}"; do
        ((size += ${#each} + 1))
    done
    most=$((size > room ? room : size))
    ((dropped += size - most))
    while ((size > most)); do
        if ((${#open} == 0)); then
            open=${pieces[-1]}
            builtin unset -v 'pieces[-1]'
            ((size -= 1))
        elif ((size - most >= ${#open})); then
            ((size -= ${#open}))
            open=
        else
            open=${open:0:${#open} - (size - most)}
            size=$most
        fi
    done
    if ((size)); then
        ((room -= size))
        builtin read -r -N 1 -u 204 byte
        builtin printf '%s %s %d\n' "$kind" "$cell" "$size" >&201 || builtin exit 70
        ((${#pieces[@]} == 0)) || builtin printf '%s\0' "${pieces[@]}" >&201
        builtin printf %s "$open" >&201
        builtin printf x >&204
    fi
    pieces=() open=
}

# Takes what is of no use any more, as fast as can be; NUL is left out, and not counted.
__offleash_discard() {
    if ((many || streak > 16)) && builtin read -t 0 -u 208; then
        chunk+=$(dd bs=65536 count=1 <&208 2>/dev/null) 2>/dev/null
    fi
    ((dropped += ${#chunk}))
    tail+=$chunk
    streak=$((ended ? streak + 1 : 0))
    if [[ $tail == *"$__offleash_token "*";"* ]]; then
        order=${tail#*"$__offleash_token "}
        ((dropped -= ${#order} + ${#__offleash_token} + 1))
        tail='' streak=0
        __offleash_obey "${order%%;*}"
    elif ((${#tail} > 200)); then
        tail=${tail: -200}
    fi
}

# A cell begins or ends.
__offleash_obey() {
    case $1 in
        begin\ *)
            order=${1#begin }
            cell=${order% *} room=${order#* } dropped=0
            ;;
        end)
            if ((dropped > 0)) && [[ $cell != "$__offleash_nobody" ]]; then
                __offleash_frame truncated "$cell" "$dropped"
            fi
            cell=$__offleash_nobody room=0 dropped=0
            ;;
    esac
    builtin printf x >&207
}

# Frames from the host.

# Reads so many bytes into `__offleash_payload`; whether they had a NUL, which is left out, into `__offleash_has_nul`.
__offleash_take() {
    builtin local LC_ALL=C IFS= left=$1 piece
    __offleash_payload= __offleash_has_nul=0
    if ((left > 2048)); then
        # In large pieces, where the shell reads bytes.
        __offleash_payload=$(head -c "$left" <&200 2>/dev/null && builtin printf x) 2>/dev/null
        __offleash_payload=${__offleash_payload%x}
        ((${#__offleash_payload} == left)) || __offleash_has_nul=1
        builtin return
    fi
    while ((left > 0)); do
        piece=
        builtin read -r -d '' -n "$left" -u 200 piece || builtin return
        ((left -= ${#piece}))
        __offleash_payload+=$piece
        if ((left > 0)); then
            __offleash_has_nul=1
            ((left -= 1))
        fi
    done
}

# Waits for a cell, and has everything ready for it.
__offleash_next() {
    builtin local IFS=' ' kind id length
    while builtin :; do
        # When nobody will ever ask for anything again.
        builtin read -r -u 200 kind id length || { builtin trap - EXIT; builtin exit 0; }
        __offleash_take "$length"
        case $kind in
            sync)
                __offleash_code= __offleash_code_has_nul=0 __offleash_env=()
                __offleash_frame sync "$id" "$__offleash_count"
                ;;
            code)
                __offleash_code+=$__offleash_payload
                ((!__offleash_has_nul)) || __offleash_code_has_nul=1
                ;;
            env) __offleash_env+=("$__offleash_payload") ;;
            run)
                __offleash_begin "$id" "${__offleash_payload%% *}"
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

# Has our descriptors again after the end of a shell, which leaves it open whether those that the `eval` of a cell was
# without are back: if they are not, the shell still has them under other numbers. What they are is seen by those of
# the pumps.
__offleash_recover() {
    builtin local pair at number first=/proc/${__offleash_pumps[0]}/fd second=/proc/${__offleash_pumps[1]}/fd
    builtin unset -f exec
    for pair in 200="$first"/200 201="$first"/201 202="$first"/208 203="$second"/208 204="$first"/204 \
        205="$first"/207 206="$second"/207 209="$first"/209; do
        number=${pair%%=*}
        [[ ! -e /proc/self/fd/$number ]] || continue
        for at in {10..99}; do
            if [[ /proc/self/fd/$at -ef ${pair#*=} ]]; then
                builtin eval "exec $number<&$at $at<&-"
                break
            fi
        done
    done
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

# An error of the cell: its name, its value, and what else there is to say.
__offleash_fail() {
    __offleash_frame error_name "$__offleash_cell" "$1"
    __offleash_frame error_value "$__offleash_cell" "$2"
    __offleash_frame error "$__offleash_cell" "$3"
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
        builtin eval "$__offleash_prefix$__offleash_running" 200<&- 201>&- 202>&- 203>&- 204>&- 205>&- 206>&- 209>&-;
    done;
    '$__offleash_end'
    __offleash_finish;
done
'

# Where a shell ends. A cell that called `exit` ends its context; everything else ends the cell. A child that is killed
# before it could put its traps away comes here too, and has nothing to do here. That is asked in a way that leaves `$?`.
__offleash_on_exit='case $BASHPID in "$__offleash_shell")
'$__offleash_end'
__offleash_recover;
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
__offleash_set_up
builtin shopt -s expand_aliases
