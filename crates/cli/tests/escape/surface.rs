//! How much of the kernel's surface is left: S7.

use std::process::Command;

use super::arena::{self, Attack, Findings, knows_numbers, run, tell};
use super::kernel::MACHINE_CODE;
use super::support::Site;

/// The largest number of system calls that may do anything but fail with `ENOSYS` or `EPERM`.
const MAX_CALLS: usize = 220;

/// The largest number of the kernel interfaces below that may be reachable.
const MAX_INTERFACES: usize = 15;

/// Calls every number twice, with zeros and with ones, each time in a process of its own.
const COUNT_CALLS: &str = r##"
def answer(number, value):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        me = os.getpid()
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value)] * 6)
        if result == -1 and os.getpid() == me:
            os.write(writer, struct.pack("i", ctypes.get_errno()))
        os._exit(0)
    os.close(writer)
    got = os.read(reader, 4)
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return errno.EPERM
    return struct.unpack("i", got)[0] if len(got) == 4 else 0
# A file of its own: among the calls is fchmod, and in a sandbox that maps root to root it would close a device of the host.
null = os.open("/tmp/scratch", os.O_RDWR | os.O_CREAT)
refusals = (errno.ENOSYS, errno.EPERM)
# The kernel lets 335 and 336, the entries of its own user probes, pass every filter.
reachable = [n for n in range(0, 500) if n not in (335, 336)
             and (answer(n, 0) not in refusals or answer(n, -1) not in refusals)]
attempt("reachable", lambda: " ".join(map(str, reachable)))
"##;

/// Kernel interfaces that exploits have been built on, one attempt each.
const COUNT_INTERFACES: &str = r##"
import socket
def exists(path):
    return must(os.path.exists(path), "absent")
def opens(family, kind, protocol=0):
    return socket.socket(family, kind, protocol).close()
def any_answer(number, *values):
    try:
        return call(number, *values)
    except OSError as failure:
        must(failure.errno not in (errno.ENOSYS, errno.EPERM), explain(failure))
        return explain(failure)
interfaces = {
    "user namespaces": lambda: in_child(lambda: c("unshare", NEWUSER)),
    "mount namespaces": lambda: in_child(lambda: c("unshare", NEWUSER | NEWNS)),
    "network namespaces": lambda: in_child(lambda: c("unshare", NEWUSER | NEWNET)),
    "clone3": lambda: any_answer(435, None, 0), "io_uring": lambda: any_answer(425, 0, None),
    "asynchronous I/O": lambda: any_answer(206, 0, None), "bpf": lambda: any_answer(321, 0, None, 0),
    "perf": lambda: any_answer(298, None, 0, -1, -1, 0), "userfaultfd": lambda: any_answer(323, 1),
    "keyrings": lambda: any_answer(250, 0, -3, 0), "new mount calls": lambda: any_answer(430, None, 0),
    "old mount calls": lambda: any_answer(165, None, None, None, 0, None), "setns": lambda: any_answer(308, -1, 0),
    "fanotify": lambda: any_answer(300, 0x200, 0), "file handles": lambda: any_answer(303, -100, None, None, None, 0),
    "ptrace": lambda: any_answer(101, 0x4206, 0, 0, 0), "process_vm_readv": lambda: any_answer(310, 0, None, 0, None, 0, 0),
    "pidfd_getfd": lambda: any_answer(438, -1, 0, 0), "kcmp": lambda: any_answer(312, 0, 0, 0, 0, 0),
    "vmsplice": lambda: any_answer(278, -1, None, 0, 0), "memfd_secret": lambda: any_answer(447, -1),
    "modify_ldt": lambda: any_answer(154, 0, None, 0), "NUMA": lambda: any_answer(238, 0, None, 0),
    "remap_file_pages": lambda: any_answer(216, 0, 0, 0, 0, 0), "protection keys": lambda: any_answer(330, -1, 0),
    "Landlock": lambda: any_answer(444, None, 0, 1), "seccomp supervisors": lambda: any_answer(317, 3, 0, None),
    "System V messages": lambda: any_answer(68, 0, 0o600), "System V semaphores": lambda: any_answer(64, 0, 0, 0),
    "System V memory": lambda: any_answer(29, 0, 4096, 0o600), "POSIX queues": lambda: any_answer(240, None, 0, 0, None),
    "futex2": lambda: any_answer(449, None, 0, 0, None, 0), "statmount": lambda: any_answer(457, None, None, 0, 0),
    "personality": lambda: any_answer(135, 0x0040000), "32-bit calls": lambda: in_child(by_interrupt, 20),
    "real-time scheduling": lambda: any_answer(314, 0, None, 0), "I/O priorities": lambda: any_answer(251, 1, 0, 0x4000),
    "quotas": lambda: any_answer(443, -1, 0, 0, None), "kernel log": lambda: any_answer(103, 10, None, 0),
    "device nodes": lambda: os.mknod("/tmp/node", 0o020666, os.makedev(1, 3)),
    "setuid bits": lambda: os.close(os.open("/tmp/setuid", os.O_CREAT | os.O_WRONLY, 0o4755)),
    "TIOCSTI": lambda: must(libc.ioctl(0, 0x5412, b"x") == 0 or ctypes.get_errno() not in (errno.EPERM,), "refused"),
    "AF_ALG": lambda: opens(38, 5), "AF_VSOCK": lambda: opens(40, 1), "AF_PACKET": lambda: opens(17, 3),
    "raw sockets": lambda: opens(2, 3, 1), "netfilter": lambda: opens(16, 3, 12), "netlink generic": lambda: opens(16, 3, 16),
    "netlink audit": lambda: opens(16, 3, 9), "netlink uevents": lambda: opens(16, 3, 15), "netlink route": lambda: opens(16, 3, 0),
    "netlink xfrm": lambda: opens(16, 3, 6), "SCTP": lambda: opens(2, 1, 132), "MPTCP": lambda: opens(2, 1, 262),
    "AF_UNIX": lambda: opens(1, 1), "TCP": lambda: opens(2, 1), "UDP": lambda: opens(2, 2), "ping sockets": lambda: opens(2, 2, 1),
    "sysfs": lambda: exists("/sys/kernel"), "control groups": lambda: exists("/sys/fs/cgroup/cgroup.procs"),
    "kallsyms": lambda: must(read("/proc/kallsyms"), "empty"), "kernel configuration": lambda: must(read("/proc/config.gz"), "empty"),
    "/proc/keys": lambda: opened("/proc/keys", os.O_RDONLY), "sysctl": lambda: opened("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "/dev/kvm": lambda: exists("/dev/kvm"), "/dev/fuse": lambda: exists("/dev/fuse"), "/dev/net/tun": lambda: exists("/dev/net/tun"),
    "memory files": lambda: os.close(os.memfd_create("x")), "inotify": lambda: os.close(c("inotify_init")),
    "timerfd": lambda: any_answer(283, 0, 0), "membarrier": lambda: any_answer(324, 0, 0, 0), "rseq": lambda: any_answer(334, None, 0, 0, 0),
    "splice": lambda: any_answer(275, -1, None, -1, None, 0, 0), "pseudo-terminals": lambda: opened("/dev/ptmx", os.O_RDWR),
}
for name, interface in interfaces.items():
    attempt(name, interface)
"##;

#[test]
fn s7_the_reachable_surface_stays_below_its_bars() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let calls = Attack::new(&site, COUNT_CALLS);
    let interfaces = Attack::new(&site, &format!("{MACHINE_CODE}{COUNT_INTERFACES}"));
    let (reachable, open) = (calls.inside(), interfaces.inside());
    let (reachable, open) = (numbers(&reachable), open_names(&open));
    tell(&format!(
        "reachable in a sandbox: {} system calls of 500, {} interfaces: {open:?}",
        reachable.len(),
        open.len()
    ));
    for attack in [&calls, &interfaces] {
        if let Some(found) = in_bwrap(attack) {
            let what = if found.all().len() == 1 {
                numbers(&found).len()
            } else {
                open_names(&found).len()
            };
            tell(&format!("reachable in bwrap --unshare-all: {what} of the same"));
        }
    }
    assert!(
        reachable.len() <= MAX_CALLS,
        "{} system calls can be reached: {reachable:?}",
        reachable.len()
    );
    assert!(
        reachable.len() > 100,
        "an ordinary program needs more than {} calls",
        reachable.len()
    );
    assert!(
        open.len() <= MAX_INTERFACES,
        "{} interfaces can be reached: {open:?}",
        open.len()
    );
}

fn numbers(findings: &Findings) -> Vec<u32> {
    let list = findings.got("reachable").trim_matches('\'').to_owned();
    list.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

fn open_names(findings: &Findings) -> Vec<&str> {
    findings
        .all()
        .iter()
        .filter(|(_, outcome)| outcome.is_ok())
        .map(|(name, _)| name.as_str())
        .collect()
}

/// The same attack in the reference sandbox, if this machine has it and lets it run.
fn in_bwrap(attack: &Attack<'_>) -> Option<Findings> {
    // Root in bwrap is the host's root, and the attack calls every number there is.
    if super::support::is_root() {
        return None;
    }
    let bwrap = super::support::processes::program("bwrap")?;
    let mut command = Command::new(bwrap);
    command.args([
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--cap-drop",
        "ALL",
    ]);
    command.args([
        "--new-session",
        "--die-with-parent",
        "--clearenv",
        "--ro-bind",
        "/usr",
        "/usr",
    ]);
    for name in ["bin", "lib", "lib64"] {
        command.args(["--symlink", &format!("usr/{name}"), &format!("/{name}")]);
    }
    command
        .args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"])
        .args(attack.command_line());
    let output = run(&mut command);
    if !output.status.success() {
        arena::tell(&format!(
            "no comparison with bwrap: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
        return None;
    }
    Some(Findings::of_output(&output))
}
