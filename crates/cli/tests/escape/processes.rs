//! Processes, privilege, communication and terminals: K1 to K10.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::arena::{self, Attack, HostState, can_attack, knows_numbers, not_proven, run, token};
use super::support::processes::eventually;
use super::support::{Site, binary, is_root, record_of};

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
        let niceness = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let niceness = niceness.rsplit(' ').nth(33).unwrap_or_default().to_owned();
        self.0.try_wait().unwrap().is_none()
            && sleeps
            && !limits.contains("Max open files            7 ")
            && niceness == "0"
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
fn k1_processes_of_the_host_are_neither_seen_nor_touched() {
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
fn k2_the_first_process_cannot_be_attacked() {
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
fn k3_descriptors_of_the_caller_are_not_inherited() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    std::fs::write(site.root().join("secret"), "canary").unwrap();
    let program = r##"
def canary(descriptor):
    return must(b"canary" in os.pread(descriptor, 100, 0), "something else is there")
def below(descriptor):
    file = os.open("secret", os.O_RDONLY, dir_fd=descriptor)
    return must(b"canary" in os.read(file, 100), "something else is there")
def others():
    # The listing itself has a descriptor, which is gone afterwards.
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return must([n for n in numbers if n > 2 and os.path.lexists("/proc/self/fd/%d" % n)], "none")
attempt("file", canary, 10)
attempt("directory", below, 9)
attempt("high", canary, 900)
attempt("working directory", lambda: must(b"canary" in read("/proc/self/cwd/../secret"), "another"))
attempt("others", others)
attempt("streams", lambda: must([n for n in range(3) if "/secret" in os.readlink("/proc/self/fd/%d" % n)], "none"))
"##;
    let attack = Attack::new(&site, program);
    // A shell that leaves a directory and files open to what it starts; it knows no numbers above 9, python does.
    let hand_over = r##"
import os, sys
os.dup2(os.open(sys.argv[1], os.O_RDONLY), 9)
for number in (10, 900):
    os.dup2(os.open(sys.argv[1] + "/secret", os.O_RDONLY), number)
for number in (9, 10, 900):
    os.set_inheritable(number, True)
os.execv(sys.argv[2], sys.argv[2:])
"##;
    let handed = |program: &std::ffi::OsStr, arguments: Vec<std::ffi::OsString>| {
        let mut command = Command::new(arena::PYTHON);
        command
            .args(["-I", "-S", "-c", hand_over])
            .arg(site.root())
            .arg(program)
            .args(arguments);
        command.current_dir(site.workspace()).env_clear();
        command
            .env("HOME", site.root())
            .env("OFFLEASH_STATE", site.state())
            .env("PATH", "/usr/bin:/bin");
        run(&mut command)
    };
    let sandboxed = attack.sandboxed();
    let output = handed(binary().as_os_str(), sandboxed.get_args().map(Into::into).collect());
    let record = record_of(&output);
    let inside = arena::Findings::of_record(record);
    inside.assert_all_refused();
    let line = attack.command_line();
    let outside = arena::Findings::of_output(&handed(&line[0], line[1..].to_vec()));
    outside.prove(&["file", "directory", "high", "working directory", "others"]);
}

#[test]
fn k4_secrets_in_the_environment_do_not_come_in() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let names = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "ANTHROPIC_API_KEY",
        "DATABASE_URL",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "XDG_RUNTIME_DIR",
        "LD_PRELOAD_OF_MINE",
        "OFFLEASH_STATE",
        "SOMETHING_ELSE",
    ];
    let attack = Attack::new(
        &site,
        r##"
def anywhere(value):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            for file in ("environ", "cmdline"):
                try:
                    if int(name) != os.getpid() and value in read("/proc/%s/%s" % (name, file), 65536):
                        found.append(name)
                except OSError:
                    pass
    return must(found, "nowhere")
for name in arguments:
    attempt(name, lambda: must(os.environ.get(name), "not set"))
attempt("canary", lambda: must([v for v in os.environ.values() if "canary" in v], "none"))
attempt("other processes", anywhere, b"canary-5f2c")
attempt("own stack", lambda: must(b"canary" in read("/proc/self/environ", 65536), "none"))
"##,
    );
    let attack = attack.with_arguments(names);
    let mut sandboxed = attack.sandboxed();
    let mut plain = Command::new(arena::PYTHON);
    plain
        .args(&attack.command_line()[1..])
        .env_clear()
        .current_dir(site.workspace());
    for command in [&mut sandboxed, &mut plain] {
        for name in names.iter().filter(|name| **name != "OFFLEASH_STATE") {
            command.env(name, "canary-5f2c");
        }
    }
    plain.env("OFFLEASH_STATE", site.state());
    let inside = arena::Findings::of_record(record_of(&run(&mut sandboxed)));
    inside.assert_all_refused();
    let outside = arena::Findings::of_output(&run(&mut plain));
    outside.prove(&[
        "AWS_SECRET_ACCESS_KEY",
        "SSH_AUTH_SOCK",
        "SOMETHING_ELSE",
        "canary",
        "own stack",
    ]);
}

#[test]
fn k5_there_is_no_privilege_to_use_or_to_gain() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    // A setuid program in the workspace, as root may have left it: it must not raise anybody.
    let tool = site.workspace().join("setuid-id");
    std::fs::copy("/usr/bin/id", &tool).unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
import subprocess
def status(key):
    with open("/proc/self/status") as file:
        return dict(line.split(":", 1) for line in file)[key].strip()
def capabilities():
    return must([set for set in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status(set), 16)], "none")
def becomes(uid):
    os.setresuid(uid, uid, uid)
    return os.getuid()
def group(gid):
    os.setresgid(gid, gid, gid)
def real_uid():
    # In a user namespace of its own a process sees its id of the outside in the second column.
    return must([line for line in open("/proc/self/uid_map") if line.split()[1] == "0"], "not the host's root")
def ambient():
    return c("prctl", 47, 2, 7, 0, 0)
def raise_capabilities():
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", *[0xffffffff] * 6)
    return call(126, header, data)
def setuid_program(path, *values):
    output = subprocess.run([path, *values], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    return must(b"euid=0" in output or output.strip() == b"0", "not raised: %r" % output[:100])
def realtime(policy):
    os.sched_setscheduler(0, policy, os.sched_param(1))
attempt("capabilities", capabilities)
attempt("new privileges", lambda: must(status("NoNewPrivs") == "0", "forbidden"))
attempt("no filter", lambda: must(status("Seccomp") == "0", "filtered"))
attempt("host's root", real_uid)
for uid in (0, 1, 4242, 65534):
    attempt("become %d" % uid, in_child, becomes, uid)
attempt("group 0", in_child, group, 0)
attempt("groups", in_child, lambda: os.setgroups([0]))
attempt("ambient", ambient)
attempt("capset", in_child, raise_capabilities)
attempt("securebits", lambda: c("prctl", 28, 0, 0, 0, 0))
attempt("setuid program", setuid_program, "./setuid-id")
attempt("sudo", setuid_program, "/usr/bin/sudo", "-n", "id", "-u")
attempt("su", setuid_program, "/usr/bin/su", "-c", "id -u")
attempt("nice", lambda: os.nice(-1))
attempt("fifo", in_child, realtime, 1)
attempt("round robin", in_child, realtime, 2)
attempt("deadline", in_child, lambda: call(314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**7, 10**7), 0))
attempt("oom_score_adj", in_child, lambda: write("/proc/self/oom_score_adj", b"-1000"))
attempt("chroot", in_child, lambda: os.chroot("/tmp"))
attempt("set the clock", lambda: call(227, 0, struct.pack("qq", *(int(x) for x in (time.time(), 0)))) if inside else must(0, "not tried"))
attempt("ioperm", in_child, lambda: call(173, 0x80, 1, 1))
attempt("iopl", in_child, lambda: call(172, 3))
"##
        .replace("inside", "os.path.exists('/home/user')")
        .as_str(),
    );
    for flags in [&[][..], &["--ids", "range"]] {
        if flags.len() == 2 && !is_root() {
            not_proven("a range of ids", "this user may have no subordinate ids");
            continue;
        }
        attack.again().flags(flags).inside().assert_all_refused();
    }
    before.assert_unchanged(&site);
    let outside = attack.outside();
    let root: &[&str] = &["capabilities", "host's root", "become 65534", "group 0", "chroot"];
    outside.prove(if is_root() {
        root
    } else {
        &["new privileges", "no filter"]
    });
    if is_root() {
        let as_nobody = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&tool)
            .output();
        let raised = as_nobody.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("euid=0"));
        if !raised {
            not_proven(
                "the setuid program",
                "the temporary directory is not reachable for others or mounted nosuid",
            );
        }
    }
}

#[test]
fn k6_keyrings_cannot_be_reached() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
ADD_KEY, REQUEST_KEY, KEYCTL = 248, 249, 250
PROCESS, SESSION, USER = -2, -3, -4
def key(ring):
    return call(ADD_KEY, b"user", b"offleash-test", b"x", 1, ring)
attempt("add to the process's", in_child, key, PROCESS)
attempt("the user's", lambda: call(KEYCTL, 0, USER, 0))
attempt("the session's", lambda: call(KEYCTL, 0, SESSION, 0))
attempt("link", in_child, lambda: call(KEYCTL, 8, USER, PROCESS))
attempt("search", in_child, lambda: call(KEYCTL, 10, USER, b"user", b"offleash-none", 0))
attempt("request", in_child, lambda: call(REQUEST_KEY, b"user", b"offleash-none", None, 0))
attempt("join a session", in_child, lambda: call(KEYCTL, 1, None))
attempt("listed", lambda: must(read("/proc/keys"), "none"))
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    for name in ["add to the process's", "the user's", "search", "request"] {
        assert_eq!(
            inside.of(name),
            &Err("EPERM".to_owned()),
            "`{name}` reached the kernel's keys"
        );
    }
    let outside = attack.outside();
    if outside.of("add to the process's") == &Err("ENOSYS".to_owned()) {
        return not_proven("keyrings", "this kernel has none");
    }
    outside.prove(&["add to the process's", "the user's"]);
}

#[test]
fn k7_shared_memory_and_queues_of_the_host_are_not_shared() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let name = token("shm");
    let key = 0x6b37_0000 ^ u64::from(std::process::id());
    let common = r##"
SHMGET, SEMGET, MSGGET, MQ_OPEN = 29, 64, 68, 240
name, key = arguments[0], int(arguments[1])
"##;
    let make = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0o1600))
attempt("file", lambda: write("/dev/shm/" + name))
attempt("queue", lambda: call(MQ_OPEN, name.encode(), os.O_CREAT | os.O_RDWR, 0o600, None))
"##
        ),
    )
    .argument(&name)
    .argument(key.to_string());
    let find = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0))
attempt("file", lambda: read("/dev/shm/" + name))
attempt("queue", lambda: call(MQ_OPEN, name.encode(), os.O_RDWR, 0, None))
attempt("listed", lambda: must([l for l in open("/proc/sysvipc/shm") if l.split()[0] == str(key)], "not there"))
attempt("semaphores", lambda: call(SEMGET, 0, 1, 0o1600))
attempt("messages", lambda: call(MSGGET, 0, 0o1600))
"##
        ),
    )
    .with_arguments([name.clone(), key.to_string()]);
    make.outside().prove(&["segment", "file"]);
    let inside = find.inside();
    let outside = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0))
attempt("file", lambda: read("/dev/shm/" + name))
attempt("listed", lambda: must([l for l in open("/proc/sysvipc/shm") if l.split()[0] == str(key)], "not there"))
attempt("removed", lambda: (os.unlink("/dev/shm/" + name), libc.shmctl(call(SHMGET, key, 4096, 0), 0, None)))
libc.syscall(241, name.encode())
"##
        ),
    )
    .with_arguments([name.clone(), key.to_string()])
    .outside();
    inside.assert_all_refused();
    outside.prove(&["segment", "file", "listed", "removed"]);
    // The other way round: what a sandbox makes is not on the host.
    make.inside().prove(&["segment", "file"]);
    assert!(!std::path::Path::new("/dev/shm").join(&name).exists());
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    assert!(
        !segments.split_whitespace().any(|word| word == key.to_string()),
        "the segment is on the host"
    );
}

#[test]
fn k8_sockets_of_the_host_cannot_be_connected_to() {
    if !can_attack() {
        return;
    }
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let site = Site::new();
    let name = token("socket");
    let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&abstract_address).unwrap();
    let beside = site.root().join("socket");
    let _beside = UnixListener::bind(&beside).unwrap();
    // A listener of the host in the very directory that the sandbox has: an agent's socket in a project.
    let within = site.workspace().join("agent.sock");
    let _within = UnixListener::bind(&within).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let attack = Attack::new(
        &site,
        r##"
import socket
name, beside, port = arguments
def stream(address):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(2)
    client.connect(address)
def datagram(address):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", address)
def linked(path):
    os.symlink(path, "to-socket")
    try:
        stream("to-socket")
    finally:
        os.unlink("to-socket")
attempt("abstract", stream, "\0" + name)
attempt("abstract datagram", datagram, "\0" + name)
attempt("beside", stream, beside)
attempt("by link", linked, beside)
attempt("in the workspace", stream, "agent.sock")
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", int(port)), 2))
attempt("listed", lambda: must([l for l in open("/proc/net/unix") if name in l or beside in l], "not there"))
for path in ["/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/run/dbus/system_bus_socket", "/run/user/%d/bus" % os.getuid(), "/run/systemd/private", "/run/snapd.socket",
             "/tmp/.X11-unix/X0", "/dev/log", "/run/user/1000/bus", "/run/systemd/journal/socket"]:
    attempt(path, stream, path)
"##,
    )
    .argument(&name)
    .argument(&beside)
    .argument(tcp.local_addr().unwrap().port().to_string());
    for mode in [".:overlay", ".:rw"] {
        attack.again().flags(["-w", mode]).inside().assert_all_refused();
    }
    attack.outside().prove(&[
        "abstract",
        "beside",
        "by link",
        "in the workspace",
        "loopback",
        "listed",
    ]);
}

/// Starts a program on a terminal of its own, and tells what was typed into that terminal meanwhile.
const ON_A_TERMINAL: &str = r##"
import array, fcntl, os, pty, select, sys, termios, time
controller, terminal = pty.openpty()
settings = termios.tcgetattr(terminal)
settings[3] &= ~(termios.ECHO | termios.ICANON)
termios.tcsetattr(terminal, termios.TCSANOW, settings)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)
    os.closerange(3, 1000)
    os.execv(sys.argv[1], sys.argv[1:])
output = b""
while True:
    ready, _, _ = select.select([controller], [], [], 0.05)
    if ready:
        output += os.read(controller, 65536)
        continue
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
waiting = array.array("i", [0])
fcntl.ioctl(terminal, termios.FIONREAD, waiting)
sys.stdout.buffer.write(output.replace(b"\r\n", b"\n"))
sys.stdout.buffer.write(b"\n@\ttyped\t%s\t%d\n" % (b"done" if waiting[0] else b"refused", waiting[0]))
"##;

#[test]
fn k9_nothing_is_typed_into_the_callers_terminal() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import fcntl, termios
TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCCONS, TIOCSETD, TIOCNOTTY = 0x5412, 0x541C, 0x540E, 0x541D, 0x5423, 0x5422
inside = os.path.exists("/home/user")
def terminals():
    yield from (0, 1, 2)
    # Without a sandbox these are terminals of other people.
    others = ("/dev/console", "/dev/tty1", "/dev/pts/0", "/proc/%d/fd/0" % os.getppid())
    for path in ("/dev/tty",) + (others if inside else ()):
        try:
            yield os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            pass
def each(command, argument):
    worked, refusals = [], set()
    for terminal in terminals():
        ctypes.set_errno(0)
        if libc.ioctl(terminal, ctypes.c_ulong(command), argument) == 0:
            worked.append(terminal)
        else:
            refusals.add(errno.errorcode.get(ctypes.get_errno()))
    return must(worked, " ".join(sorted(refusals)))
for high in (0, 1 << 32, 0xffffffff << 32):
    attempt("TIOCSTI %x" % high, each, TIOCSTI | high, b"x")
    if inside:
        attempt("TIOCLINUX %x" % high, each, TIOCLINUX | high, b"\x03")
if inside:
    attempt("TIOCCONS", each, TIOCCONS, None)
    attempt("TIOCSETD", each, TIOCSETD, ctypes.byref(ctypes.c_int(2)))
"##,
    );
    let on_terminal = |line: Vec<std::ffi::OsString>| {
        let mut command = Command::new(arena::PYTHON);
        command
            .args(["-I", "-S", "-c", ON_A_TERMINAL])
            .args(line)
            .current_dir(site.workspace())
            .env_clear();
        command
            .env("HOME", site.root())
            .env("OFFLEASH_STATE", site.state())
            .env("PATH", "/usr/bin:/bin");
        arena::Findings::of_output(&run(&mut command))
    };
    for flags in [&["run"][..], &["run", "-t"]] {
        let mut line = vec![binary().into_os_string()];
        line.extend(flags.iter().map(Into::into));
        line.push("--".into());
        line.extend(attack.command_line());
        on_terminal(line).assert_all_refused();
    }
    let outside = on_terminal(attack.command_line());
    let types_for_all =
        std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").map_or(true, |value| value.trim() == "1");
    let typed: &[&str] = &["TIOCSTI 0", "TIOCSTI 100000000", "typed"];
    outside.prove(if is_root() || types_for_all { typed } else { &[] });
}

#[test]
fn k9_there_is_no_controlling_terminal_to_take() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let inside = Attack::new(
        &site,
        r##"
attempt("tty", opened, "/dev/tty", os.O_RDWR)
attempt("console", opened, "/dev/console", os.O_RDWR)
attempt("number", lambda: must(int(read("/proc/self/stat").split()[6]), "none"))
attempt("init's number", lambda: must(int(read("/proc/1/stat").split()[6]), "none"))
attempt("pts", lambda: must([name for name in os.listdir("/dev/pts") if name != "ptmx"], "none"))
"##,
    )
    .inside();
    inside.assert_all_refused();
}

#[test]
fn k10_the_program_that_runs_the_sandbox_cannot_be_overwritten() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
victim = int(arguments[0])
def overwrite(path):
    # CVE-2019-5736: keep a handle while it runs, write through it when it no longer does.
    handle = os.open(path, os.O_PATH)
    if victim != 1:
        os.kill(victim, signal.SIGKILL)
        time.sleep(0.2)
    file = os.open("/proc/self/fd/%d" % handle, os.O_WRONLY)
    return os.write(file, b"pwned")
attempt("own program", lambda: opened("/proc/self/exe", os.O_WRONLY))
attempt("read init's", opened, "/proc/1/exe", os.O_RDONLY) if victim == 1 else None
attempt("truncate", lambda: os.truncate("/proc/%d/exe" % victim, 0))
attempt("overwrite", overwrite, "/proc/%d/exe" % victim)
"##,
    );
    attack.with_arguments(["1"]).inside().assert_all_refused();
    before.assert_unchanged(&site);
    // The same on the host, against a program of our own that can be lost.
    let program = site.workspace().join("victim");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut victim = Command::new(&program).arg("600").spawn().unwrap();
    let comm = format!("/proc/{}/comm", victim.id());
    eventually("the start of the victim", || {
        (std::fs::read_to_string(&comm).ok()?.trim() == "victim").then_some(())
    });
    let outside = attack.with_arguments([victim.id().to_string()]).outside();
    let _gone = victim.kill();
    let _status = victim.wait().unwrap();
    outside.prove(&["overwrite"]);
    assert!(std::fs::read(&program).unwrap().starts_with(b"pwned"));
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
