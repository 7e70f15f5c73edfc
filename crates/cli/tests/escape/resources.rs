//! Exhaustion of the machine's processes, memory and CPUs: R1, R2, R5, R10.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::arena::{Attack, assert_no_process, can_attack, knows_numbers, not_proven, run, tell, token};
use super::support::processes::groups_of;
use super::support::{Site, id_of, is_root, record_of};

/// Runs an attack that may well not come to its end.
pub(super) fn outcome(attack: &Attack<'_>) -> Value {
    record_of(&run(&mut attack.sandboxed()))
}

/// Whether a run ended because of this limit, or was refused something by it.
pub(super) fn hit(record: &Value, limit: &str) -> bool {
    let hits = record["limits_hit"].as_array().unwrap();
    hits.iter().any(|hit| hit["limit"] == limit)
}

#[test]
pub(crate) fn r1_fork_bombs_are_bounded() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import threading
def processes():
    children = []
    try:
        while len(children) < 80:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return must(len(children) >= 40, "%d" % len(children))
def zombies():
    children = []
    try:
        while len(children) < 80:
            child = os.fork()
            if child == 0:
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.waitpid(child, 0)
    return must(len(children) >= 40, "%d" % len(children))
def threads():
    started, stop = 0, threading.Event()
    try:
        while started < 80:
            threading.Thread(target=stop.wait, daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    stop.set()
    return must(started >= 40, "%d" % started)
attempt("processes", processes)
attempt("zombies", zombies)
attempt("threads", threads)
"##,
    )
    .flags(["--pids", "32"]);
    let inside = attack.inside();
    inside.assert_all_refused();
    assert!(
        !is_root() || hit(&inside.record, "pids"),
        "the record does not tell: {:#}",
        inside.record
    );
    attack.outside().prove(&["processes", "zombies", "threads"]);
}

#[test]
pub(crate) fn r1_a_bomb_that_never_stops_is_ended_and_leaves_nothing() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("bomb");
    let attack = Attack::new(
        &site,
        r##"
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"##,
    )
    .argument(&word)
    .flags(["--pids", "48", "--wall-time", "2s"]);
    let started = Instant::now();
    let record = outcome(&attack);
    assert!(
        started.elapsed() < Duration::from_secs(300),
        "took {:?} to end",
        started.elapsed()
    );
    let kind = record["outcome"]["kind"].as_str().unwrap();
    assert_eq!(kind, "limit_exceeded", "{:#}", record["outcome"]);
    assert_no_process(&word);
    assert_eq!(groups_of(&id_of(&record)), Vec::<std::path::PathBuf>::new());
    not_proven("an endless fork bomb", "it would stop the machine");
}

/// Ways to hold `megabytes` of memory, each until it is told to stop.
const HOARDS: &str = r##"
import mmap, socket
megabytes = int(arguments[0])
def anonymous():
    memory = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    return len(memory)
def many_processes():
    children = []
    for _ in range(16):
        child = os.fork()
        if child == 0:
            memory = bytearray(megabytes << 16)
            for page in range(0, len(memory), 4096):
                memory[page] = 1
            time.sleep(10)
            os._exit(0)
        children.append(child)
    return must(all(os.waitpid(child, 0)[1] == 0 for child in children), "killed")
def file(path):
    with open(path, "wb") as target:
        for _ in range(megabytes):
            target.write(bytes(1 << 20))
    return os.stat(path).st_size
def memory_file():
    descriptor = os.memfd_create("hoard")
    for _ in range(megabytes):
        os.write(descriptor, bytes(1 << 20))
    return os.fstat(descriptor).st_size
def system_v():
    segment = call(29, 0, megabytes << 20, 0o600)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    try:
        for page in range(0, megabytes << 20, 4096):
            ctypes.c_char.from_address(address + page).value = b"1"
    finally:
        libc.shmctl(segment, 0, None)
    return megabytes << 20
def pipes():
    # Pages in pipes are nobody's memory but the kernel's.
    held = 0
    while held < megabytes << 20:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                held += os.write(writer, bytes(65536))
        except BlockingIOError:
            pass
    return held
def sockets():
    held = 0
    while held < megabytes << 20:
        one, other = socket.socketpair()
        one.setblocking(False)
        try:
            while True:
                held += one.send(bytes(65536))
        except BlockingIOError:
            pass
        kept.append((one, other))
    return held
kept = []
hoards = {"anonymous": anonymous, "many processes": many_processes, "tmp": lambda: file("/tmp/hoard"),
          "shm": lambda: file("/dev/shm/hoard"), "home": lambda: file(os.path.expanduser("~/hoard")),
          "memory file": memory_file, "System V": system_v, "pipes": pipes, "sockets": sockets}
if arguments[1] in ("shm", "tmp", "home") and not os.path.exists("/home/user"):
    arguments[1] = "anonymous"
def held():
    answer = hoards[arguments[1]]()
    # Long enough for whoever watches to look.
    time.sleep(2)
    return answer
attempt("hoard", held)
"##;

#[test]
pub(crate) fn r2_memory_of_every_kind_is_bounded() {
    if !knows_numbers() {
        return;
    }
    let kinds = [
        "anonymous",
        "many processes",
        "tmp",
        "shm",
        "home",
        "memory file",
        "System V",
        "pipes",
        "sockets",
    ];
    let site = Site::new();
    let attack = Attack::new(&site, HOARDS).flags(["--memory", "64M", "--open-files", "4096"]);
    let mut unbounded = Vec::new();
    for kind in kinds {
        let record = outcome(&attack.with_arguments(["192", kind]));
        let written = record["stdout"]["data"].as_str().unwrap();
        let held = written.contains("\tdone\t");
        let ended = record["outcome"]["kind"] == "out_of_memory";
        let refused = written.contains("\trefused\t") || record["outcome"]["kind"] == "signaled";
        if held || !(ended || refused) {
            unbounded.push(format!("{kind}: {:#}", record["outcome"]));
        }
    }
    // Without a memory group nobody counts what the kernel holds for pipes and sockets; `RLIMIT_NOFILE` and the
    // kernel's own bounds per pipe and user are what remains.
    let kernels_own = |kind: &String| kind.starts_with("pipes") || kind.starts_with("sockets");
    if !is_root() {
        for kind in unbounded.iter().filter(|kind| kernels_own(kind)) {
            tell(&format!("not bounded without a memory group: {kind}"));
        }
        unbounded.retain(|kind| !kernels_own(kind));
    }
    assert!(
        unbounded.is_empty(),
        "192 MiB were held in a sandbox of 64 MiB: {unbounded:?}"
    );
    for kind in ["anonymous", "memory file", "System V", "pipes"] {
        attack
            .with_arguments(["192", kind])
            .outside()
            .prove(if kind == "pipes" { &[] } else { &["hoard"] });
    }
}

#[test]
fn r5_spinning_is_bounded_and_nobody_gets_priority() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("spin");
    let attack = Attack::new(
        &site,
        r##"
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        break
while True:
    pass
"##,
    )
    .argument(&word)
    .flags(["--cpu-time", "1s", "--wall-time", "60s"]);
    let record = outcome(&attack);
    assert_eq!(record["outcome"]["kind"], "limit_exceeded", "{:#}", record["outcome"]);
    assert_eq!(record["outcome"]["limit"], "cpu_time");
    let used = record["usage"]["user_cpu_us"].as_u64().unwrap() + record["usage"]["system_cpu_us"].as_u64().unwrap();
    assert!(used < 5_000_000, "{used} µs of CPU time were used of 1 s");
    assert_no_process(&word);
    let priority = Attack::new(
        &site,
        r##"
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt("nice of all", lambda: os.setpriority(os.PRIO_USER, 0, -5))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("real time, reset on fork", lambda: os.sched_setscheduler(0, os.SCHED_RR | 0x40000000, os.sched_param(1)))
attempt("I/O", lambda: call(251, 1, 0, 1 << 13))
"##,
    );
    priority.inside().assert_all_refused();
    not_proven("endless spinning", "it would never end");
}

#[test]
fn r10_the_kernel_prefers_the_sandbox_when_memory_runs_out() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let attack = Attack::new(
        &site,
        r##"
def score():
    return int(read("/proc/self/oom_score_adj"))
def lowered(score):
    write("/proc/self/oom_score_adj", score.encode())
attempt("score", score)
attempt("child", in_child, score)
attempt("first process", lambda: int(read("/proc/1/oom_score_adj")))
attempt("as the supervisor", in_child, lowered, arguments[0])
attempt("below the supervisor", in_child, lowered, arguments[1])
attempt("protect", lambda: write("/proc/self/oom_score_adj", b"-1000"))
attempt("protect a little", lambda: write("/proc/self/oom_score_adj", b"-1"))
attempt("protect of old", lambda: write("/proc/self/oom_adj", b"-17"))
attempt("protect init", lambda: write("/proc/1/oom_score_adj", b"-1000"))
"##,
    )
    .argument(own.to_string())
    .argument((own - 1).to_string());
    let inside = attack.inside();
    // Of the first process too, or one that starts quickly would be asked before it was told.
    for name in ["score", "child", "first process"] {
        let score: i32 = inside.got(name).trim_matches('\'').parse().unwrap();
        assert!(score >= own + 300, "{name}: {score}, and the supervisor has {own}");
    }
    // The kernel lets anybody take back what was added without `CAP_SYS_RESOURCE`, and nobody more (`__set_oom_adj` in
    // `fs/proc/base.c`); what was added is for programs that do not mean to harm.
    inside.assert_refused_except(&["score", "child", "first process", "as the supervisor"]);
    attack.outside().prove(&["score", "as the supervisor"]);
}
