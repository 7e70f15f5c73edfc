#!/bin/sh
# Runs a command in a group of its own that is delegated to this user, as `systemd-run --scope` does it.
cgroups=/sys/fs/cgroup
if [ "$(id -u)" = 0 ]; then
    group=$cgroups/offleash/run-$$
else
    group=$cgroups/user.slice/user-4242.slice/user@4242.service/run-$$.scope
fi
mkdir "$group" && echo 0 > "$group/cgroup.procs" && exec "$@"
