//! The kernel's surface and ways around the filter: S1 to S11, and how much of the surface is left.

use std::collections::BTreeSet;
use std::process::Command;

use super::arena::{self, Attack, Findings, can_attack, knows_numbers, not_proven, run, tell};
use super::support::{Site, is_root};

/// The largest number of system calls that may do anything but fail with `ENOSYS` or `EPERM`.
const MOST_CALLS: usize = 220;
/// The largest number of the kernel interfaces below that may be reachable.
const MOST_INTERFACES: usize = 15;

#[test]
fn s1_io_uring_is_absent() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
attempt("setup", lambda: os.close(call(425, 8, ctypes.create_string_buffer(120))))
attempt("setup with a high bit", lambda: os.close(call(425, 8 | 1 << 32, ctypes.create_string_buffer(120))))
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    assert_eq!(
        inside.of("setup"),
        &Err("ENOSYS".to_owned()),
        "callers fall back only from an absent call"
    );
    let denials = inside.record["denials"].to_string();
    assert!(
        denials.contains("io_uring_setup"),
        "the record does not tell of it: {denials}"
    );
    let outside = attack.outside();
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    outside.prove(if disabled.trim() == "0" { &["setup"] } else { &[] });
}

/// Machine code that a program writes for itself, so that no compiler is needed.
const MACHINE_CODE: &str = r##"
import mmap
def execute(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
def by_interrupt(number):
    # push rbx; mov eax, number; int 0x80; pop rbx; ret
    result = execute(b"\x53\xb8" + struct.pack("<I", number) + b"\xcd\x80\x5b\xc3")
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return must(result, "nothing")
"##;

#[test]
fn s2_the_32_bit_calls_are_closed() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        &format!(
            r##"{MACHINE_CODE}
attempt("getpid", in_child, by_interrupt, 20)
attempt("fork", in_child, by_interrupt, 2)
attempt("getuid32", in_child, by_interrupt, 199)
"##
        ),
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    let outside = attack.outside();
    if outside.of("getpid").is_err() {
        return not_proven("system calls of i386", "this kernel has none");
    }
    outside.prove(&["getpid"]);
    // Not an error number: a program of the other kind would misread it, and an attacker would try on.
    assert!(
        inside.of("getpid").as_ref().is_err_and(|why| why.contains("SIGSYS")),
        "{:?}",
        inside.of("getpid")
    );
}

#[test]
fn s3_the_x32_calls_are_closed() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
X32 = 0x40000000
for number in [39, 512, 520, 545, 272, 165]:
    attempt("x32 %d" % number, in_child, lambda: call(X32 | number, 0, 0, 0, 0, 0))
attempt("beyond", in_child, lambda: call(-1))
attempt("high half", in_child, lambda: must(call(272 | 1 << 32, NEWUSER) == 0, "no"))
"##,
    );
    attack.inside().assert_all_refused();
    attack.outside().prove(&[]);
}

#[test]
fn s4_clone3_is_absent() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def clone3(flags):
    child = call(435, struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]
attempt("process", in_child, clone3, 0)
attempt("user namespace", in_child, clone3, NEWUSER)
attempt("everything", in_child, clone3, NEWUSER | NEWNS | NEWNET | NEWPID)
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    for (name, outcome) in inside.all() {
        assert_eq!(
            outcome,
            &Err("ENOSYS".to_owned()),
            "{name}: C libraries fall back only from an absent call"
        );
    }
    attack.outside().prove(&["process"]);
}

#[test]
fn s5_no_namespace_can_be_made_or_entered() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
names = {"user": NEWUSER, "mount": NEWNS, "network": NEWNET, "pid": NEWPID, "uts": NEWUTS, "ipc": NEWIPC,
         "cgroup": NEWCGROUP, "time": 0x80}
def cloned(flags):
    child = call(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]
def with_user(flags):
    c("unshare", NEWUSER)
    return c("unshare", flags)
for name, flag in names.items():
    attempt("unshare " + name, in_child, with_user if flag != NEWUSER else (lambda flags: c("unshare", flags)), flag)
    if flag != 0x80:
        attempt("clone " + name, in_child, cloned, NEWUSER | flag)
attempt("unshare with high bits", in_child, lambda: call(272, NEWUSER | 1 << 40))
attempt("clone with high bits", in_child, cloned, NEWUSER | 1 << 40)
def chain_overlay():
    with_user(NEWNS)
    os.makedirs("a", exist_ok=True)
    return c("mount", b"none", b"a", b"tmpfs", 0, None)
def chain_packet():
    with_user(NEWNET)
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno()
def chain_nftables():
    with_user(NEWNET)
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).fileno()
attempt("then mount", in_child, chain_overlay)
attempt("then packet socket", in_child, chain_packet)
attempt("then nftables", in_child, chain_nftables)
for name in ["user", "mnt", "net", "pid"]:
    attempt("setns own " + name, in_child, lambda: c("setns", os.open("/proc/self/ns/" + name, os.O_RDONLY), 0))
"##,
    );
    attack.inside().assert_all_refused();
    let outside = attack.outside();
    if outside.of("unshare user").is_err() {
        return not_proven("user namespaces", "this machine forbids them");
    }
    outside.prove(&[
        "unshare user",
        "clone user",
        "then mount",
        "then packet socket",
        "then nftables",
    ]);
}

#[test]
fn s6_the_mount_calls_are_refused() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def privileged(action):
    # Without a sandbox a mount namespace gives the right and keeps the machine from harm; inside there is none to make.
    try:
        c("unshare", NEWUSER | NEWNS)
    except OSError:
        if not os.path.exists("/home/user"):
            raise
    return action()
attempt("fsopen", in_child, privileged, lambda: call(430, b"tmpfs", 0))
attempt("fspick", in_child, privileged, lambda: call(433, -100, b"/", 0))
attempt("open_tree", in_child, privileged, lambda: call(428, -100, b".", 0))
attempt("open_tree clone", in_child, privileged, lambda: call(428, -100, b".", 1))
attempt("open_tree_attr", in_child, privileged, lambda: call(467, -100, b".", 1, None, 0))
attempt("mount_setattr", in_child, privileged, lambda: call(442, -100, b"/", 0, struct.pack("4Q", 1, 0, 0, 0), 32))
attempt("mount", in_child, privileged, lambda: c("mount", b"none", b".", b"tmpfs", 0, None))
attempt("umount", in_child, privileged, lambda: c("umount2", b"/proc", 2))
attempt("pivot_root", in_child, privileged, lambda: call(155, b".", b"."))
attempt("statmount", lambda: call(457, None, None, 0, 0))
attempt("listmount", lambda: call(458, struct.pack("IIQQ", 24, 0, 0xffffffffffffffff, 0), ctypes.create_string_buffer(800), 100, 0))
def move():
    tree = call(428, -100, b".", 1)
    return call(429, tree, b"", -100, b".", 4)
attempt("move_mount", in_child, privileged, move)
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    for name in ["fsopen", "open_tree", "mount_setattr", "mount", "pivot_root"] {
        assert_eq!(
            inside.of(name),
            &Err("EPERM".to_owned()),
            "`{name}` got further than the filter"
        );
    }
    let outside = attack.outside();
    let namespaces = is_root() || outside.of("mount").is_ok();
    outside.prove(if namespaces {
        &["fsopen", "open_tree clone", "mount", "move_mount", "mount_setattr"]
    } else {
        &[]
    });
}

/// Calls that need no rights to do harm, each with arguments that reach the kernel's own code and change nothing.
const DANGEROUS_CALLS: &str = r##"
buffer = ctypes.create_string_buffer(4096)
def reached(number, *values):
    """Whether the kernel looked at the arguments: any answer but the two that a filter gives."""
    try:
        return call(number, *values)
    except OSError as failure:
        if failure.errno in (errno.ENOSYS, errno.EPERM):
            raise
        return explain(failure)
page = ctypes.addressof(buffer) & ~4095
calls = {
    "bpf": (321, 0, None, 0), "perf_event_open": (298, None, 0, -1, -1, 0), "userfaultfd": (323, -1), "userfaultfd 1": (323, 1),
    "add_key": (248, None, None, None, 0, 0), "keyctl": (250, 0, -3, 0), "request_key": (249, None, None, None, 0),
    "fanotify_init": (300, 0x200, 0), "kcmp": (312, os.getpid(), os.getpid(), 1, 0, 0), "vmsplice": (278, -1, None, 0, 0),
    "tee": (276, -1, -1, 0, 0), "process_vm_readv": (310, os.getpid(), None, 0, None, 0, 0),
    "process_vm_writev": (311, os.getpid(), None, 0, None, 0, 0), "memfd_secret": (447, 0), "modify_ldt": (154, 0, buffer, 16),
    "personality": (135, 0x0040000), "landlock": (444, None, 0, 1), "migrate_pages": (256, 0, 0, None, None),
    "move_pages": (279, 0, 0, None, None, None, 0), "mbind": (237, 0, 0, 0, None, 0, 0), "set_mempolicy": (238, 0, None, 0),
    "get_mempolicy": (239, None, None, 0, 0, 0), "statmount": (457, None, None, 0, 0), "listmount": (458, None, None, 0, 0),
    "lsm_get_self_attr": (459, 100, None, None, 0), "lsm_list_modules": (461, None, None, 0), "io_setup": (206, 0, None),
    "io_uring_enter": (426, -1, 0, 0, 0, None, 0), "io_uring_register": (427, -1, 0, None, 0), "mq_open": (240, None, 0, 0, None),
    "msgget": (68, 0, 0o600), "semget": (64, 0, 0, 0), "remap_file_pages": (216, 0, 0, 0, 0, 0),
    "pkey_alloc": (330, -1, 0), "process_madvise": (440, -1, None, 0, 0, 0), "process_mrelease": (448, -1, 0),
    "pidfd_getfd": (438, -1, 0, 0), "name_to_handle_at": (303, -100, None, None, None, 0),
    "open_by_handle_at": (304, -1, None, 0), "quotactl": (179, 0, None, 0, None), "quotactl_fd": (443, -1, 0, 0, None),
    "syslog": (103, 10, None, 0), "lookup_dcookie": (212, 0, None, 0), "seccomp": (317, 2, 0, None), "setns": (308, -1, 0),
    "kexec_load": (246, -1, 0, None, 0), "ptrace": (101, 0x4206, 0, 0, 0), "get_robust_list": (274, 0, None, None),
    "cachestat": (451, -1, None, None, 0), "futex_waitv": (449, None, 0, 0, None, 0), "futex_wake": (454, None, 0, 0, 0),
    "map_shadow_stack": (453, 0, 0, 0), "mseal": (462, 0, 0, 1), "openat2": (437, -100, None, None, 0),
    "io_pgetevents": (333, 0, 0, 0, None, None, None), "ioprio_set": (251, 1, 0, 0x4000), "sched_setattr": (314, 0, None, 0),
    "rt_sigqueueinfo": (129, os.getpid(), 0, None), "preadv2": (327, -1, None, 0, 0, 0, 0),
    "setxattrat": (463, -100, None, 0, None, None, 0), "file_getattr": (468, -100, None, None, 0, 0),
}
for name, values in calls.items():
    attempt(name, in_child, reached, *values)
"##;

#[test]
fn s7_dangerous_calls_do_not_reach_the_kernel() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(&site, DANGEROUS_CALLS);
    let inside = attack.inside();
    inside.assert_all_refused();
    for (name, outcome) in inside.all() {
        let why = outcome.as_ref().unwrap_err();
        assert!(
            ["EPERM", "ENOSYS"].contains(&why.as_str()),
            "`{name}` was answered by the kernel: {why}"
        );
    }
    let outside = attack.outside();
    outside.prove(&[]);
    let proven = outside.all().values().filter(|outcome| outcome.is_ok()).count();
    assert!(
        proven >= 30,
        "only {proven} of these calls reach the kernel without a sandbox"
    );
}

#[test]
fn s7_numbers_that_the_filter_does_not_know_are_absent() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    // The kernel lets 335 and 336, the entries of its own user probes, pass every filter and kills who calls them
    // elsewhere.
    let inside = Attack::new(
        &site,
        r##"
for number in list(range(337, 424)) + list(range(470, 1200)) + [2**16, 2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1]:
    attempt(str(number), call, number, 0, 0, 0, 0, 0, 0)
"##,
    )
    .inside();
    inside.assert_all_refused();
    for (number, outcome) in inside.all() {
        assert_eq!(outcome, &Err("ENOSYS".to_owned()), "call {number}");
    }
}

#[test]
fn s8_only_four_families_of_sockets_exist() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def opens(family, kind, protocol):
    descriptor = c("socket", ctypes.c_long(family), ctypes.c_long(kind), ctypes.c_long(protocol))
    os.close(descriptor)
    return descriptor
for family in range(0, 50):
    for kind in (1, 2, 3, 5, 10):
        attempt("%d %d 0" % (family, kind), opens, family, kind, 0)
for protocol in range(0, 25):
    attempt("16 3 %d" % protocol, opens, 16, 3, protocol)
for family in (2, 10):
    for kind, protocol in [(1, 6), (2, 17), (3, 1), (3, 255), (2, 1), (2, 58), (1, 132), (1, 262), (2, 136), (5, 132), (1, 33), (3, 2)]:
        attempt("%d %d %d" % (family, kind, protocol), opens, family, kind, protocol)
for family in (38, 40, 17, 44):
    attempt("%d with high bits" % family, lambda: call(41, family | 1 << 32, 1, 0))
    attempt("%d with flags" % family, opens, family, 1 | 0o2000000 | 0o4000, 0)
    attempt("pair %d" % family, lambda: call(53, family, 1, 0, ctypes.create_string_buffer(8)))
"##,
    );
    let inside = attack.inside();
    let opened: BTreeSet<_> = inside
        .all()
        .iter()
        .filter(|(_, got)| got.is_ok())
        .map(|(name, _)| name.as_str())
        .collect();
    let expected: BTreeSet<_> = [
        "1 1 0", "1 2 0", "1 3 0", "1 5 0", "2 1 0", "2 2 0", "10 1 0", "10 2 0", "16 2 0", "16 3 0", "2 1 6",
        "2 2 17", "10 1 6", "10 2 17",
    ]
    .into();
    let surplus: Vec<_> = opened.difference(&expected).collect();
    assert!(
        surplus.is_empty(),
        "sockets beyond those that programs need (family type protocol): {surplus:?}"
    );
    assert!(
        opened.contains("1 1 0") && opened.contains("2 1 0"),
        "ordinary sockets do not work: {opened:?}"
    );
    let outside = attack.outside();
    let opened_outside = outside.all().values().filter(|outcome| outcome.is_ok()).count();
    assert!(
        opened_outside > opened.len(),
        "without a sandbox there are no more families"
    );
    tell(&format!(
        "sockets that open: {} inside, {opened_outside} without a sandbox",
        opened.len()
    ));
}

#[test]
fn s9_sockets_that_lead_out_of_a_machine_cannot_be_opened() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
def vsock(address):
    client = socket.socket(40, socket.SOCK_STREAM)
    client.settimeout(1)
    return client.connect_ex(address)
def crypto():
    algorithm = socket.socket(38, 5, 0)
    algorithm.bind(("hash", "sha256"))
    return algorithm.fileno()
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).fileno())
attempt("vsock to the host", vsock, (2, 1))
attempt("vsock to itself", vsock, (1, 1))
attempt("crypto", crypto)
attempt("packets", lambda: socket.socket(17, socket.SOCK_RAW).fileno())
attempt("express data path", lambda: socket.socket(44, socket.SOCK_RAW).fileno())
attempt("bluetooth", lambda: socket.socket(31, socket.SOCK_RAW, 1).fileno())
attempt("key management", lambda: socket.socket(15, socket.SOCK_RAW, 2).fileno())
attempt("ping", lambda: socket.socket(2, socket.SOCK_DGRAM, 1).fileno())
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    let denials = inside.record["denials"].to_string();
    assert!(
        denials.contains("AF_VSOCK"),
        "the record does not name the way out: {denials}"
    );
    attack.outside().prove(if is_root() { &["packets"] } else { &[] });
}

/// A parent that traces its child and reads a word of its memory.
const TRACE: &str = r##"
def trace():
    word = ctypes.c_long(0x6f66666c)
    child = os.fork()
    if child == 0:
        libc.ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    try:
        libc.ptrace.restype = ctypes.c_long
        value = c("ptrace", 1, child, ctypes.c_void_p(ctypes.addressof(word)), 0)
        return must(value == 0x6f66666c, "another word")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
def neighbour():
    child = os.fork()
    if child == 0:
        time.sleep(60)
    try:
        return len(read("/proc/%d/environ" % child)), call(310, child, None, 0, None, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
attempt("trace", trace)
attempt("read memory", neighbour)
"##;

#[test]
fn s10_tracing_is_for_those_who_ask_for_it() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(&site, TRACE);
    attack.inside().assert_all_refused();
    attack
        .again()
        .flags(["--allow-ptrace"])
        .inside()
        .prove(&["trace", "read memory"]);
    attack.outside().prove(&["trace", "read memory"]);
}

#[test]
fn s11_a_program_cannot_loosen_its_own_filter() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        &format!(
            r##"{MACHINE_CODE}
def permissive():
    # A filter that allows everything: the stricter one still counts.
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction))
    c("prctl", 38, 1, 0, 0, 0)
    c("prctl", 22, 2, ctypes.create_string_buffer(program), 0, 0)
    return c("unshare", NEWUSER)
def supervised():
    # With a listener, by which a program would answer `continue` to what the sandbox refuses (seccomp_unotify(2)).
    c("prctl", 38, 1, 0, 0, 0)
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction))
    return os.close(call(317, 1, 8, ctypes.create_string_buffer(program)))
def executed():
    os.execv("/usr/bin/unshare", ["unshare", "-U", "true"])
def after_exec():
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        try:
            executed()
        finally:
            os._exit(9)
    return must(os.waitpid(child, 0)[1] == 0, "it failed")
def null_page():
    # mmap(0, 4096, READ|WRITE, PRIVATE|FIXED|ANONYMOUS)
    return must(call(9, 0, 4096, 3, 0x32, -1, 0) == 0, "elsewhere")
attempt("permissive filter", in_child, permissive)
attempt("own supervisor", in_child, supervised)
attempt("after exec", after_exec)
attempt("null page", in_child, null_page)
attempt("back to no filter", in_child, lambda: c("prctl", 22, 0, 0, 0, 0))
"##
        ),
    );
    attack.inside().assert_all_refused();
    let outside = attack.outside();
    outside.prove(&["own supervisor"]);
    let facts = Attack::new(
        &site,
        &format!(
            r##"{MACHINE_CODE}
def without_file():
    descriptor = os.memfd_create("program")
    with open("/usr/bin/true", "rb") as program:
        os.write(descriptor, program.read())
    child = os.fork()
    if child == 0:
        os.execve(descriptor, ["program"], {{}})
    return must(os.waitpid(child, 0)[1] == 0, "it failed")
attempt("writable and executable memory", execute, b"\xb8\x01\x00\x00\x00\xc3")
attempt("program without a file", without_file)
"##
        ),
    );
    for (name, outcome) in facts.inside().all() {
        tell(&format!(
            "{name}: {}",
            if outcome.is_ok() {
                "allowed inside, as JIT compilers need it"
            } else {
                "refused"
            }
        ));
    }
}

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
        reachable.len() <= MOST_CALLS,
        "{} system calls can be reached: {reachable:?}",
        reachable.len()
    );
    assert!(
        reachable.len() > 100,
        "an ordinary program needs more than {} calls",
        reachable.len()
    );
    assert!(
        open.len() <= MOST_INTERFACES,
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
