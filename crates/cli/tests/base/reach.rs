//! What the superuser of a sandbox cannot do: everything that is the host's, F1 to F5 and P1 to P6 for a root of its own.

use super::{printed, shared};
use crate::support::stdout;

/// Attempts, one a line, each of which must fail; what succeeds is printed.
const ATTEMPTS: &str = r#"
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name"; fi; }
try mount mount -t tmpfs none /mnt
try bind mount --bind /usr /mnt
try umount umount -l /proc
try remount mount -o remount,rw /proc/sys
try unshare unshare -m true
try userns unshare -U true
try nsenter nsenter -t 1 -m true
try mknod mknod /tmp/disk b 254 0
try chardev mknod /tmp/mem c 1 1
try sysctl sh -c 'echo 1 > /proc/sys/kernel/panic'
try core sh -c 'echo x > /proc/sys/kernel/core_pattern'
try sysrq sh -c 'echo h > /proc/sysrq-trigger'
try kallsyms sh -c 'test -n "$(head -c1 /proc/kallsyms)"'
try kmsg dmesg
try initmem head -c1 /proc/1/mem
try initenviron sh -c 'test -n "$(cat /proc/1/environ)"'
try initroot ls /proc/1/root/
try initfd ls /proc/1/fd/0
try initfds sh -c 'for f in /proc/1/fd/* /proc/1/task/1/fd/*; do readlink $f && exit; (exec 3<$f) && exit; (exec 3>>$f) && exit; done; false'
try initfd0 sh -c 'for n in 0 1 2 3 4 5 6 7 8 9; do (exec 3<>/proc/1/fd/$n) && exit; done; false'
try initfdinfo sh -c 'cat /proc/1/fdinfo/0 || cat /proc/1/fdinfo/*'
try initmaps sh -c 'ls /proc/1/map_files/* || test -n "$(cat /proc/1/maps)"'
try initgetfd /usr/bin/python3 -c 'import ctypes, os, sys; libc = ctypes.CDLL(None); fd = os.pidfd_open(1); sys.exit(all(libc.syscall(438, fd, n, 0) < 0 for n in range(64)))'
try initexe cat /proc/1/exe
try killinit sh -c 'kill -9 1; sleep 0.2; exit 1'
try hostname hostname evil
try date date -s 2001-01-01
try reboot reboot -f
try insmod insmod /nonexistent
try nice renice -n -5 -p $$
try setcap setcap cap_sys_admin+ep /usr/bin/true
try devdisk head -c1 /dev/vda
try devwrite touch /dev/x
try procwrite touch /proc/x
try sysls sh -c 'ls /sys | grep -vE "^(devices|fs)$"'
try sysdevices sh -c '(ls /sys/devices | grep -vx system; ls /sys/devices/system | grep -vx cpu) | grep .'
try syswrite sh -c 'find /sys -type d -exec sh -c "echo x >{}/x || mkdir {}/y" \; 2>/dev/null; find /sys -name x -o -name y | grep .'
try keyctl keyctl show
try cgroup sh -c 'find /sys/fs/cgroup -name cgroup.procs -o -name tasks -o -name release_agent | grep .'
echo end
"#;

#[test]
fn the_superuser_reaches_nothing_of_the_host() {
    assert_eq!(printed(&shared(), "root", ATTEMPTS), "end\n");
}

#[test]
fn the_usual_user_reaches_no_more() {
    assert_eq!(printed(&shared(), "user", ATTEMPTS), "end\n");
}

/// The control of what is tried with the first process: its descriptors have numbers, and lead nowhere.
#[test]
fn descriptors_of_other_processes_of_ones_own_can_be_opened() {
    // Inherited, so that the child has it from its first instruction.
    let script = "exec 9</dev/zero; sleep 1000 & readlink /proc/$!/fd/9 && head -c1 /proc/$!/fd/9 | wc -c; kill $!";
    for user in ["root", "user"] {
        assert_eq!(printed(&shared(), user, script), "/dev/zero\n1\n", "{user}");
    }
}

#[test]
fn f4_a_changed_root_leads_nowhere_else() {
    let script = r#"
mkdir -p /tmp/jail && touch /marker && /usr/bin/python3 - <<'END'
import os
try:
    here = os.open(".", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(here)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
except PermissionError:
    pass
print(os.path.exists("/marker"), os.path.exists("/.dockerenv"), sorted(os.listdir("/home")))
END
"#;
    assert_eq!(printed(&shared(), "root", script), "True False ['user']\n");
}

#[test]
fn programs_of_the_host_that_are_setuid_give_nothing() {
    let script = "for f in /usr/bin/su /usr/bin/mount /usr/bin/passwd /usr/bin/newuidmap; do test -u $f && $f </dev/null; done \
                  >/dev/null 2>&1; cp /bin/true /tmp/own; chmod 4755 /tmp/own; id -u; grep CapEff /proc/self/status";
    assert_eq!(printed(&shared(), "user", script), "1000\nCapEff:\t0000000000000000\n");
}

#[test]
fn f5_setuid_files_are_refused_where_the_host_could_run_them() {
    let site = shared();
    site.write("mine", "x");
    let script = "chmod 4755 mine 2>/dev/null && echo set; chmod 2755 mine 2>/dev/null && echo set; true";
    let output = site.run_shell(&["--root", "base", "--user", "root"], script);
    assert_eq!(stdout(&output), "");
}

#[test]
fn an_earlier_run_leaves_nothing_to_a_later_one() {
    let site = shared();
    printed(
        &site,
        "root",
        "echo secret > /etc/left; echo secret > /tmp/left; echo secret > /home/user/left",
    );
    let shown = printed(
        &site,
        "root",
        "ls /etc/left /tmp/left /home/user/left 2>/dev/null; echo end",
    );
    assert_eq!(shown, "end\n");
}
