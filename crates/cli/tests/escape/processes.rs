//! Processes of the host and of other sandboxes, and the sandbox's first: K1, K2, K11.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::arena::{self, Attack, can_attack, knows_numbers, not_proven, run, token};
use super::support::processes::{eventually, niceness};
use super::support::{Site, record_of};

/// A process of the host, of the same user as the test, that attacks are aimed at.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        let mut command = Command::new("/bin/sleep");
        command
            .arg("600")
            .env("SECRET_OF_VICTIM", "canary-5f2c1d9e")
            .stdin(Stdio::null());
        let victim = Self(command.spawn().unwrap());
        eventually("the start of the victim", || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", victim.0.id())).unwrap_or_default();
            (name.trim() == "sleep").then_some(())
        });
        victim
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn is_alive_and_untouched(&mut self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let sleeps = status.lines().any(|line| line == "State:\tS (sleeping)");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.0.id())).unwrap();
        self.0.try_wait().unwrap().is_none()
            && sleeps
            && !limits.contains("Max open files            7 ")
            && niceness(&self.0.id().to_string()) == niceness("self")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have been killed by the control of the attack.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Attempts on the process whose id is the first argument.
const ASSAULT: &str = r##"
import resource
victim = int(arguments[0])
PIDFD_OPEN, PIDFD_SEND_SIGNAL, PIDFD_GETFD, READV, WRITEV, KCMP = 434, 424, 438, 310, 311, 312
def attach():
    c("ptrace", 0x4206, victim, 0, 0)  # PTRACE_SEIZE
def attach_old():
    c("ptrace", 16, victim, 0, 0)
    os.waitpid(victim, 0)
    c("ptrace", 17, victim, 0, 0)
def first_mapping():
    with open("/proc/%d/maps" % victim) as maps:
        return int(maps.readline().split("-")[0], 16)
def read_memory(address=None):
    target = ctypes.c_ulong(first_mapping() if address is None else address)
    buffer = ctypes.create_string_buffer(4)
    local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 4)
    remote = (ctypes.c_ulong * 2)(target.value, 4)
    return must(call(READV, victim, local, 1, remote, 1, 0) == 4, "nothing was read")
def memory_file():
    with open("/proc/%d/mem" % victim, "r+b", buffering=0) as memory:
        memory.seek(first_mapping())
        return len(must(memory.read(4), "empty"))
def take_descriptor():
    descriptor = call(PIDFD_OPEN, victim, 0)
    return os.close(call(PIDFD_GETFD, descriptor, 0, 0))
def enter(name):
    descriptor = os.open("/proc/%d/ns/%s" % (victim, name), os.O_RDONLY)
    return c("setns", descriptor, 0)
def enter_by_pidfd():
    return c("setns", call(PIDFD_OPEN, victim, 0), NEWNS | NEWPID | NEWNET)
attempt("attach", in_child, attach)
attempt("attach as of old", in_child, attach_old)
attempt("process_vm_readv", in_child, read_memory)
attempt("process_vm_readv blindly", in_child, read_memory, 0x400000)
attempt("mem", in_child, memory_file)
attempt("environ", lambda: must(read("/proc/%d/environ" % victim), "empty"))
attempt("cmdline", lambda: must(read("/proc/%d/cmdline" % victim), "empty"))
attempt("fd", lambda: must(os.listdir("/proc/%d/fd" % victim), "empty"))
attempt("open fd", lambda: opened("/proc/%d/fd/0" % victim, os.O_RDONLY))
attempt("exe", lambda: os.readlink("/proc/%d/exe" % victim))
attempt("pidfd_getfd", in_child, take_descriptor)
attempt("kcmp", lambda: call(KCMP, victim, os.getpid(), 1, 0, 0))
for name in ["mnt", "net", "pid", "user", "uts", "ipc", "cgroup"]:
    attempt("setns " + name, in_child, enter, name)
attempt("setns by pidfd", in_child, enter_by_pidfd)
"##;

/// Attempts that change the victim; those without a sandbox end with its death.
const MANIPULATION: &str = r##"
attempt("prlimit", lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (7, 7)))
attempt("renice", lambda: os.setpriority(os.PRIO_PROCESS, victim, 5))
attempt("affinity", lambda: os.sched_setaffinity(victim, {0}))
attempt("oom_score_adj", lambda: write("/proc/%d/oom_score_adj" % victim, b"1000"))
attempt("stop", lambda: os.kill(victim, signal.SIGSTOP))
attempt("pidfd", lambda: call(PIDFD_SEND_SIGNAL, call(PIDFD_OPEN, victim, 0), 9, None, 0))
attempt("kill", lambda: os.kill(victim, signal.SIGKILL))
"##;

#[test]
pub(crate) fn k1_processes_of_the_host_are_neither_seen_nor_touched() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let mut victim = Victim::start();
    let attack = Attack::new(&site, &format!("{ASSAULT}{MANIPULATION}")).argument(victim.pid());
    for flags in [&[][..], &["--allow-ptrace"]] {
        attack.again().flags(flags).inside().assert_all_refused();
        assert!(victim.is_alive_and_untouched());
    }
    let outside = attack.outside();
    outside.prove(&[
        "environ", "cmdline", "fd", "exe", "prlimit", "renice", "affinity", "stop", "kill",
    ]);
}

#[test]
fn k1_kill_of_everything_reaches_the_sandbox_alone() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let mut victim = Victim::start();
    let attack = Attack::new(
        &site,
        r##"
child = os.fork()
if child == 0:
    signal.pause()
attempt("all", os.kill, -1, signal.SIGTERM)
attempt("child", lambda: must(os.waitpid(child, 0)[1] == 15, "it lives"))
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
attempt("seen", lambda: must([pid for pid in seen if pid not in (1, os.getpid(), child)], "none"))
attempt("group", lambda: must(os.getpgid(0) == os.getpid(), "in the group of somebody else"))
"##,
    );
    let inside = attack.inside();
    assert!(
        inside.of("child").is_ok(),
        "kill(-1) did not even reach the own child: {inside:?}"
    );
    assert!(inside.of("seen").is_err(), "other processes are visible: {inside:?}");
    assert!(victim.is_alive_and_untouched());
    not_proven("kill(-1)", "it would end every process of the user");
}

#[test]
pub(crate) fn k2_the_first_process_cannot_be_attacked() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(&site, ASSAULT).argument("1");
    for flags in [&[][..], &["--allow-ptrace"]] {
        let inside = attack.again().flags(flags).inside();
        // Its name is no secret, and kcmp is for debuggers; what it is made of stays closed.
        inside.assert_refused_except(&["cmdline"]);
    }
    let victim = Victim::start();
    let outside = attack.with_arguments([victim.pid()]).outside();
    outside.prove(&["attach", "environ", "mem", "fd", "process_vm_readv"]);
}

#[test]
fn k2_killing_or_starving_the_first_process_ends_only_the_sandbox() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import resource
victim = 1
for number in [9, 15, 19, 20, 2, 11]:
    try:
        os.kill(1, number)
    except OSError:
        pass
attempt("still there", lambda: must(os.getppid() == 1, "it is gone"))
attempt("no descriptors", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
attempt("no processes", lambda: resource.prlimit(1, resource.RLIMIT_NPROC, (0, 0)))
attempt("no CPU", lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))
"##,
    );
    let output = run(&mut attack.sandboxed());
    let record = record_of(&output);
    let kind = record["outcome"]["kind"].as_str().unwrap();
    assert!(["exited", "failed", "signaled"].contains(&kind), "{record:#}");
    let next = site.run_shell(&[], "echo works");
    assert_eq!(next.stdout, b"works\n", "the next run is harmed");
}

#[test]
fn k11_programs_of_two_sandboxes_do_not_see_each_other() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let other = Site::new();
    let word = token("neighbour");
    let neighbour = Attack::new(
        &other,
        r##"
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("\0" + arguments[0])
server.listen()
write("/tmp/" + arguments[0])
sys.stderr.write("ready\n")
time.sleep(30)
"##,
    )
    .argument(&word);
    let mut command = neighbour.sandboxed();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the start of the neighbour", || {
        (super::support::processes::processes_with(&word).len() >= 2).then_some(())
    });
    let inside = Attack::new(
        &site,
        r##"
import socket
attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect("\0" + arguments[0]))
attempt("file", read, "/tmp/" + arguments[0])
attempt("process", lambda: must([n for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())], "none"))
"##,
    )
    .argument(&word)
    .inside();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let _status = child.wait().unwrap();
    arena::assert_no_process(&word);
    inside.assert_all_refused();
}
