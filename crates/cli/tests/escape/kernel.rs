//! Ways around the filter of system calls: S1 to S4, S7, S10, S11.

use super::arena::{Attack, knows_numbers, not_proven, tell};
use super::support::Site;

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
pub(super) const MACHINE_CODE: &str = r##"
import mmap
def execute(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
def by_program(number):
    # mov r7, number; svc 0; cmp r0, 0; movgt r0, 0; movle r0, 1; mov r7, 1; svc 0: a file of 32-bit Arm, and its header.
    code = struct.pack("<7I", 0xe3a07000 | number, 0xef000000, 0xe3500000, 0xc3a00000, 0xd3a00001, 0xe3a07001, 0xef000000)
    header = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<2H5I6H", 2, 40, 1, 0x10054, 52, 0, 0x5000000, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<8I", 1, 0, 0x10000, 0x10000, 84 + len(code), 84 + len(code), 5, 0x10000)
    file = os.memfd_create("arm")
    os.write(file, header + segment + code)
    child = os.fork()
    if child == 0:
        try:
            os.execve(file, ["arm"], {})
        finally:
            os._exit(127)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise RuntimeError("killed by " + signal.Signals(os.WTERMSIG(status)).name)
    return must(os.WEXITSTATUS(status) == 0, "nothing")
def by_interrupt(number):
    if os.uname().machine == "aarch64":
        return by_program(number)
    # push rbx; mov eax, number; int 0x80; pop rbx; ret
    result = execute(b"\x53\xb8" + struct.pack("<I", number) + b"\xcd\x80\x5b\xc3")
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return must(result, "nothing")
"##;

#[test]
pub(crate) fn s2_the_32_bit_calls_are_closed() {
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
pub(crate) fn s3_the_x32_calls_are_closed() {
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
pub(crate) fn s7_dangerous_calls_do_not_reach_the_kernel() {
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
pub(crate) fn s10_tracing_is_for_those_who_ask_for_it() {
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
pub(crate) fn s11_a_program_cannot_loosen_its_own_filter() {
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
