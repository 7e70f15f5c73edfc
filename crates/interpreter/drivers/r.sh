# The driver of R contexts: runs cells inside a sandbox, one after another, in one R.
#
# The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). It is two processes in one process
# group. The first, this shell, holds the way to the host and never runs code of a cell. The second is R (`r.R`); cells
# share it and can do to it whatever they like. What cells and their children write to descriptors 1 and 2 is output
# whatever it looks like.
#
# R can neither move a descriptor nor keep one from its children. So it is started with none of ours, and opens
# those of this process when it needs them and no code of a cell runs: 220 brings its orders, 221 is where it says that it
# is done and how many bytes of results there are, 222 is where it says those.

# Ends as R did.
__offleash_end() {
    builtin local status=$1
    __offleash_tell end
    rm -rf "$__offleash_directory"
    if ((status > 128)); then
        builtin trap - INT
        builtin kill -s "$((status - 128))" "$$"
    fi
    builtin exit "$status"
}

# Waits until R says something; how many bytes of results there are into `__offleash_results`.
__offleash_wait() {
    builtin local word number count
    builtin read -r -u 221 word number count
    if [[ $word == end ]]; then
        [[ -z $1 ]] || builtin kill "$1" 2>/dev/null
        __offleash_end "$number"
    fi
    __offleash_results=$number
    __offleash_count=${count:-0}
}

# Gives R an order, and waits until it has carried it out.
__offleash_order() {
    builtin local LC_ALL=C each
    # By a process of its own: R may have ended, and read nothing any more.
    {
        builtin printf '%s %d %d %d\n%s' "$1" "$__offleash_count" "${#2}" "${#__offleash_env[@]}" "$2"
        for each in "${__offleash_env[@]}"; do
            builtin printf '%d\n%s' "${#each}" "$each"
        done
    } >&220 2>/dev/null &
    __offleash_wait "$!"
}

__offleash_pass_results() {
    builtin local byte
    if ((__offleash_results > 0)); then
        builtin read -r -N 1 -u 204 byte
        head -c "$__offleash_results" <&222 >&201
        builtin printf x >&204
    fi
}

__offleash_run_cell() {
    ((__offleash_count += 1))
    __offleash_frame count "$1" "$__offleash_count"
    __offleash_tell "begin $1 ${2%% *}"
    __offleash_order "$1" "$__offleash_code"
    __offleash_tell end
    if ((__offleash_code_has_nul)); then
        __offleash_cell=$1
        __offleash_fail SyntaxError 'the code has a NUL, which no program of R can have' \
            'the code has a NUL, which no program of R can have'
    fi
    __offleash_pass_results
    __offleash_frame 'done' "$1" ''
    __offleash_code= __offleash_code_has_nul=0 __offleash_env=()
}

__offleash_serve() {
    builtin local IFS=' ' kind id length
    while builtin read -r -u 200 kind id length; do
        __offleash_take "$length"
        if [[ -n $__offleash_saved_file ]]; then
            rm -f -- "$__offleash_saved_file"
            __offleash_saved_file=
        fi
        case $kind in
            part | save | load)
                if [[ $kind == load && (! -f $__offleash_payload || -L $__offleash_payload) ]]; then
                    # R cannot tell, and would wait for whoever writes to a pipe.
                    rm -f -- "$__offleash_payload"
                    __offleash_frame refused "$id" $'other\nthe file is no state of a context'
                    continue
                fi
                [[ $kind != save ]] || __offleash_saved_file=${__offleash_payload#*$'\n'}
                [[ $kind == part ]] || __offleash_payload=$id$'\n'$__offleash_payload
                __offleash_env=()
                __offleash_order "$kind" "$__offleash_payload"
                __offleash_pass_results
                ;;
            sync)
                __offleash_code= __offleash_code_has_nul=0 __offleash_env=()
                __offleash_frame sync "$id" "$__offleash_count"
                ;;
            code)
                __offleash_code+=$__offleash_payload
                ((!__offleash_has_nul)) || __offleash_code_has_nul=1 __offleash_code=
                ;;
            env) __offleash_env+=("$__offleash_payload") ;;
            run) __offleash_run_cell "$id" "$__offleash_payload" ;;
        esac
    done
}

builtin type -P Rscript >/dev/null || builtin exit 127
__offleash_set_up
__offleash_code= __offleash_code_has_nul=0 __offleash_env=() __offleash_saved_file=
exec 220<> <(builtin :) 221<> <(builtin :) 222<> <(builtin :)
__offleash_directory=$(mktemp -d) || __offleash_die 'there is no directory for temporary files'
builtin printf '%s' "$__offleash_r" >"$__offleash_directory/driver.R" || __offleash_die 'the driver could not be written'
# What R says before it is ready says why it is not.
__offleash_tell "begin $__offleash_nobody 4096"
(
    # Only this process keeps the way of orders open: with it, R ends.
    exec 220>&- 222>&-
    Rscript "$__offleash_directory/driver.R" "$$" </dev/null >&202 2>&203 200<&- 201>&- 202>&- 203>&- 204>&- 205<&- 206<&- \
        209>&- 221>&-
    builtin printf 'end %d\n' "$?" >&221
) &
__offleash_wait ''
rm -rf "$__offleash_directory"
__offleash_tell end
__offleash_serve
# Nobody will ever ask for anything again.
builtin exit 0
