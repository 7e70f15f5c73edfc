#!/bin/sh
# Runs every second job of the list, beginning with number $1, and says of each how it ended.
# A job is a line: number, who runs it, seconds it may take, the executable and its arguments.
cgroups=/sys/fs/cgroup
users=$cgroups/user.slice

# Where and as whom a job runs; what is delegated to a user is entered as `systemd-run --user --scope` does it.
start() {
    who=$1 seconds=$2
    shift 2
    export OFFLEASH_BINARY=/vm/offleash INSTA_UPDATE=no
    case $who in
        root)
            group=$users/user-0.slice/session-1.scope user=root controllers=cpu,memory,pids ;;
        root-in-own-group)
            group=$cgroups/offleash/jobs user=root controllers=cpu,memory,pids
            set -- /vm/in-scope "$@" ;;
        user)
            group=$users/user-4242.slice/session-2.scope user=tester controllers= ;;
        user-with-delegation)
            group=$users/user-4242.slice/user@4242.service/init.scope user=tester controllers=memory,pids
            export OFFLEASH_BINARY=/vm/offleash-in-scope ;;
        user-in-own-scope)
            group=$users/user-4242.slice/user@4242.service/init.scope user=tester controllers=memory,pids
            set -- /vm/in-scope "$@" ;;
    esac
    export HOME=/tmp/$user TMPDIR=/tmp/$user OFFLEASH_TEST_CONTROLLERS=$controllers
    cd $HOME
    # `0` is the writer itself.
    echo 0 > $group/cgroup.procs
    if [ $user = root ]; then
        exec timeout -s KILL "$seconds" "$@"
    fi
    exec timeout -s KILL "$seconds" su -p -s /bin/sh -c 'exec "$0" "$@"' -- tester "$@"
}

while read -r number who seconds command; do
    [ $((number % 2)) = "$1" ] || continue
    output=/vm/output-$1
    (start "$who" "$seconds" $command) > $output 2>&1 < /dev/null
    status=$?
    echo "=== begin $number"
    # A serial line is slow, and of what passed only the reasons for what was left out are of interest.
    if [ $status != 0 ] || grep -qE 'SKIP: |; 1 ignored;' $output; then cat $output; fi
    echo
    echo "=== end $number $status"
done < /vm/jobs
