#!/bin/sh
# Makes of a bare root what a system with cgroup v2 looks like after its start, runs the tests and switches off.
# The groups are those of systemd: a slice for each user, sessions in it that belong to root and hold a shell, and a
# service that is delegated to the user with the controllers for memory and processes, as systemd does by default.
# Always there, so that the machine also ends when something here fails.
export PATH=/usr/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 none /dev/pts
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf "${link#*:}" "/dev/${link%%:*}"; done
hostname offleash
ip link set lo up
for port in 1 2; do stty -F /dev/ttyS$port raw; done

# A disk in memory: an overlay needs more of its upper layer than the tmpfs of Linux 6.1 has.
insmod /vm/brd.ko rd_nr=1 rd_size=1048576
insmod /vm/overlay.ko
while read -r module; do insmod "/vm/$module.ko"; done < /vm/network-modules
mke2fs -q /dev/ram0 > /dev/null
mount -t ext4 /dev/ram0 /tmp
chmod 1777 /tmp
# What is large or long-lived is on a disk as well.
mkdir -m 1777 /tmp/var /var/tmp
mount --bind /tmp/var /var/tmp
mkdir -p -m 700 /tmp/root /tmp/tester
chown 4242:4242 /tmp/tester

cgroups=/sys/fs/cgroup
mount -t cgroup2 -o nsdelegate,memory_recursiveprot none $cgroups
hand_down() {
    group=$cgroups/$1
    shift
    mkdir -p "$group"
    for controller; do echo "+$controller" > "$group/cgroup.subtree_control"; done
}
hand_down . cpu io memory pids
hand_down user.slice cpu io memory pids
hand_down user.slice/user-0.slice memory pids
hand_down user.slice/user-4242.slice memory pids
hand_down user.slice/user-4242.slice/user@4242.service memory pids
mkdir $cgroups/user.slice/user-0.slice/session-1.scope $cgroups/user.slice/user-4242.slice/session-2.scope
delegated=$cgroups/user.slice/user-4242.slice/user@4242.service
mkdir "$delegated/init.scope"
for group in "$delegated" "$delegated/init.scope"; do
    chown 4242:4242 "$group" "$group/cgroup.procs" "$group/cgroup.subtree_control" "$group/cgroup.threads"
done
hand_down offleash cpu io memory pids
mkdir $cgroups/offleash/jobs

/vm/jobs.sh 0 > /dev/ttyS1 &
first=$!
/vm/jobs.sh 1 > /dev/ttyS2 &
wait $first $!
sync
poweroff -f
