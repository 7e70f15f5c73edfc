# What drivers share that speak to the host from a shell: those of Bash and R begin with this.
#
# Output comes through two pipes in place of descriptors 1 and 2. A pump reads each and makes frames of it, one at a
# time because of a lock: a pipe with one byte in it. Where output of a cell begins and ends is said in the same pipe,
# in words between two NUL that begin with a number that nobody writes by accident.
#
# Bash 5.0 and newer, with `head` and `dd`.

__offleash_nobody=00000000000000000000000000000000
__offleash_count=0
__offleash_cell=$__offleash_nobody

# Moves what the host gave to where no cell looks, and starts the pumps.
#
# 200 and 201 lead from and to the host, 202 and 203 are where output is written, 204 is the lock, 205 and 206 are where
# the pumps say that they heard, 209 is where a driver that cannot go on complains.
__offleash_set_up() {
    exec 200<&0 201>&1 209>&2 0</dev/null
    # Pipes, of which all but the lock are opened once more in one direction: a pump that ends is an end of what it says.
    # Not by process substitution: bash 5.2 can miss the end of one, for which every later `wait` then waits.
    builtin shopt -s lastpipe
    builtin : | exec 204<>/proc/self/fd/0
    builtin : | exec 210<>/proc/self/fd/0
    builtin : | exec 211<>/proc/self/fd/0
    builtin : | exec 212<>/proc/self/fd/0
    builtin : | exec 213<>/proc/self/fd/0
    builtin shopt -u lastpipe
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
    for byte in 200 201 202 203 204 205 206 209; do
        __offleash_keep "$byte"
    done
}

# Keeps a descriptor from the programs that are started. The shell has no word for that, but does it with what it puts aside of
# the first three, under the lowest number from 10 on that is free, and with what is made of that.
__offleash_keep() {
    builtin local free=10
    while [[ -e /proc/self/fd/$free ]]; do
        ((free += 1))
    done
    builtin eval "{ { exec $1<&$free; } </dev/null; } <&$1"
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
    __offleash_open 201
    builtin read -r -N 1 -u 204 byte
    builtin printf '%s %s %d\n%s' "$1" "$2" "${#3}" "$3" >&201
    builtin printf x >&204
}

# Ends where a cell closed one of these: what cannot be said is waited for otherwise. An interrupt ends nothing here.
__offleash_open() {
    while (($#)); do
        { builtin :; } 2>/dev/null >&"$1" || __offleash_die 'a cell closed what its driver needs'
        builtin shift
    done
}

# Tells both pumps something, and waits until they heard of it: all that was written before was passed on then.
__offleash_tell() {
    __offleash_open 202 203
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
        __offleash_payload=$(builtin command head -c "$left" <&200 2>/dev/null && builtin printf x) 2>/dev/null
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

# An error of the cell: its name, its value, and what else there is to say.
__offleash_fail() {
    __offleash_frame error_name "$__offleash_cell" "$1"
    __offleash_frame error_value "$__offleash_cell" "$2"
    __offleash_frame error "$__offleash_cell" "$3"
}
