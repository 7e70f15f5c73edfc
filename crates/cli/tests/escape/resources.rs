//! Exhaustion of the machine and of its owner's patience: R1 to R7, R9 to R11.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::arena::{Attack, assert_no_process, can_attack, knows_numbers, not_proven, run, tell, token};
use super::support::processes::{eventually, groups_of, wait};
use super::support::{Site, id_of, is_root, record_of, stderr};

/// Runs an attack that may well not come to its end.
fn outcome(attack: &Attack<'_>) -> Value {
    record_of(&run(&mut attack.sandboxed()))
}

/// Whether a run ended because of this limit, or was refused something by it.
fn hit(record: &Value, limit: &str) -> bool {
    let hits = record["limits_hit"].as_array().unwrap();
    hits.iter().any(|hit| hit["limit"] == limit)
}

#[test]
fn r1_fork_bombs_are_bounded() {
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
fn r1_a_bomb_that_never_stops_is_ended_and_leaves_nothing() {
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
        started.elapsed() < Duration::from_secs(40),
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
fn r2_memory_of_every_kind_is_bounded() {
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
fn r3_the_disk_is_bounded_in_bytes_inodes_and_apparent_size() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def fill():
    with open("big", "wb", buffering=0) as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
    return os.stat("big").st_size
def fill_without_name():
    with open("nameless", "wb", buffering=0) as file:
        os.unlink("nameless")
        for _ in range(32):
            file.write(bytes(1 << 20))
        time.sleep(8 if os.path.exists("/home/user") else 0)
    return 32
def allocate():
    with open("allocated", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 32 << 20)
    return os.stat("allocated").st_blocks
def inodes():
    for number in range(3000):
        open("file-%d" % number, "w").close()
    return 3000
def links():
    open("one", "w").close()
    for number in range(3000):
        os.link("one", "link-%d" % number)
    return 3000
def directories():
    for number in range(3000):
        os.mkdir("directory-%d" % number)
    return 3000
def sparse():
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
    return os.stat("sparse").st_size
def sparse_by_seek():
    with open("seeked", "wb") as file:
        file.seek((1 << 40) - 1)
        file.write(b"x")
    return os.stat("seeked").st_size
def deep():
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    return 1200
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def stays():
    answer = globals()[arguments[0]]()
    # Long enough for whoever watches to look.
    if os.path.exists("/home/user"):
        time.sleep(8)
    return answer
attempt("disk", stays)
"##,
    )
    .flags(["--workspace-size", "16M", "--inodes", "500", "--file-size", "40M"]);
    let kinds = [
        ("fill", "workspace"),
        ("fill_without_name", "workspace"),
        ("allocate", "workspace"),
        ("inodes", "inodes"),
        ("links", "inodes"),
        ("directories", "inodes"),
        ("deep", "inodes"),
        ("sparse", "file_size"),
        ("sparse_by_seek", "file_size"),
    ];
    std::thread::scope(|scope| {
        for (what, limit) in kinds {
            let attack = &attack;
            scope.spawn(move || {
                let site = Site::new();
                assert_disk_is_bounded(&site, &attack.at(&site).with_arguments([what]), what, limit);
            });
        }
    });
    for what in ["fill", "allocate", "inodes", "links", "sparse", "deep"] {
        let scratch = Site::new();
        attack
            .at(&scratch)
            .with_arguments([what])
            .outside()
            .prove(if what == "sparse" { &[] } else { &["disk"] });
    }
}

/// One way to fill a disk is ended or refused, and what it left can be removed.
fn assert_disk_is_bounded(site: &Site, attack: &Attack<'_>, what: &str, limit: &str) {
    let record = outcome(attack);
    let written = record["stdout"]["data"].as_str().unwrap();
    assert!(
        !written.contains("\tdone\t"),
        "{what} succeeded: {:#}",
        record["outcome"]
    );
    if limit != "file_size" {
        // No file may be larger than the whole workspace, so that one alone may be refused before the watcher looks.
        assert!(hit(&record, limit) || written.contains("EFBIG"), "{what}: {record:#}");
    }
    let id = id_of(&record);
    let discarded = run(&mut site.offleash(["discard", &id]));
    let runs = run(&mut site.offleash(["runs"]));
    let listed = String::from_utf8_lossy(&runs.stdout).contains(&id);
    assert!(
        discarded.status.success() || !listed,
        "{what} cannot be removed: {}",
        stderr(&discarded)
    );
}

#[test]
fn r4_descriptors_are_bounded() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import resource
def many():
    descriptors = []
    try:
        while len(descriptors) < 200:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return len(descriptors)
def raised():
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
    except ValueError as failure:
        raise RuntimeError(str(failure))
attempt("raise", raised)
attempt("many", many)
"##,
    )
    .flags(["--open-files", "64"]);
    attack.inside().assert_all_refused();
    attack.outside().prove(&["many"]);
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
fn r6_floods_of_output_are_bounded() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    for (name, script) in [
        ("lines", "yes"),
        ("no newline", "tr '\\0' x < /dev/zero"),
        ("binary", "cat /dev/urandom"),
        ("standard error", "yes >&2"),
        ("both, from many", "for i in 1 2 3 4; do (yes; yes >&2) & done; yes"),
        ("terminal escapes", "yes \"$(printf '\\033]52;c;x\\007')\""),
    ] {
        let record = site.record(&["--output", "1M", "--wall-time", "60s"], script);
        assert_eq!(
            record["outcome"]["kind"], "limit_exceeded",
            "{name}: {:#}",
            record["outcome"]
        );
        assert_eq!(record["outcome"]["limit"], "output", "{name}");
        let kept: usize = ["stdout", "stderr"]
            .iter()
            .map(|stream| record[stream]["data"].as_str().unwrap().len())
            .sum();
        assert!(kept < 3 << 20, "{name}: {kept} bytes are in the record");
    }
    let mut command = site.offleash(["run", "--quiet", "--output", "1M", "--", "yes"]);
    let output = run(&mut command);
    assert!(
        output.stdout.len() <= (1 << 20) + (1 << 17),
        "{} bytes were passed on",
        output.stdout.len()
    );
    let state = directory_size(&site.state());
    assert!(state < 4 << 20, "the state directory grew to {state} bytes");
    not_proven("endless output", "it would never end");
}

fn directory_size(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => directory_size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn r6_a_flood_of_refusals_does_not_grow_the_record() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
deadline = time.time() + 1
count = 0
while time.time() < deadline:
    libc.unshare(NEWUSER)
    for port in range(1, 50):
        try:
            with socket.socket() as client:
                client.setblocking(False)
                client.connect(("10.%d.%d.%d" % (count >> 16 & 255, count >> 8 & 255, count & 255), port))
        except OSError:
            pass
    count += 1
attempt("flood", lambda: count)
"##,
    );
    let inside = attack.inside();
    let denials = inside.record["denials"].as_array().unwrap();
    assert!(
        denials.len() <= 400,
        "{} kinds of refusals are told apart",
        denials.len()
    );
    let audit = directory_size(&site.state());
    assert!(audit < 1 << 20, "the state directory grew to {audit} bytes");
}

#[test]
fn r7_time_ends_whatever_a_program_does_about_it() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    for (name, program) in [
        ("sleep", "time.sleep(3600)"),
        (
            "ignored signals",
            "for n in range(1, 65):\n    if n not in (9, 19, 32, 33): signal.signal(n, signal.SIG_IGN)\ntime.sleep(3600)",
        ),
        (
            "blocked signals",
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(3600)",
        ),
        ("stopped", "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(3600)"),
        ("own session", "if os.fork() == 0: os.setsid()\ntime.sleep(3600)"),
        ("other group", "if os.fork() == 0: os.setpgid(0, 0)\ntime.sleep(3600)"),
        ("closed streams", "os.closerange(0, 100)\ntime.sleep(3600)"),
        (
            "vfork",
            "libc.syscall(58) if False else os.posix_spawn('/bin/sleep', ['sleep', '3600'], {})\ntime.sleep(3600)",
        ),
        ("full pipe", "os.write(1, bytes(1 << 22))\ntime.sleep(3600)"),
    ] {
        let word = token("sleeper");
        let attack = Attack::new(&site, program)
            .argument(&word)
            .flags(["--wall-time", "500ms"]);
        let started = Instant::now();
        let output = run(&mut attack.sandboxed());
        let took = started.elapsed();
        let record = record_of(&output);
        assert_eq!(output.status.code(), Some(124), "{name}: {:#}", record["outcome"]);
        assert!(took < Duration::from_secs(20), "{name}: ended after {took:?}");
        assert_no_process(&word);
    }
    not_proven("endless sleeping", "it would never end");
}

#[test]
fn r7_a_grandchild_that_holds_the_output_does_not_hold_the_run() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("holder");
    let attack = Attack::new(
        &site,
        r##"
# A daemon that keeps standard output open; whoever waits for its end waits for an hour.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600 if os.path.exists("/home/user") else 6)
    os._exit(0)
attempt("started", lambda: True)
"##,
    )
    .argument(&word);
    let started = Instant::now();
    let inside = attack.inside();
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "the run waited for {:?}",
        started.elapsed()
    );
    assert_eq!(inside.record["exit_code"], 0);
    assert_no_process(&word);
    // Without a sandbox whoever reads to the end waits for the daemon.
    let started = Instant::now();
    attack.outside().prove(&["started"]);
    assert!(
        started.elapsed() >= Duration::from_secs(5),
        "the daemon did not hold the output"
    );
}

#[test]
fn r9_many_short_runs_leave_nothing() {
    let site = Site::new();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_this_site = |mounts: &str| {
        mounts
            .lines()
            .filter(|line| line.contains(&*site.root().to_string_lossy()))
            .count()
    };
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let commands: Vec<_> = (0..12)
                .map(|_| site.offleash(["run", "--json", "--", "/bin/true"]))
                .collect();
            std::thread::spawn(move || {
                let outputs = commands.into_iter().map(|mut command| run(&mut command));
                outputs.map(|output| record_of(&output)).collect::<Vec<_>>()
            })
        })
        .collect();
    let records: Vec<Value> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert_eq!(records.len(), 48);
    for record in &records {
        assert_eq!(record["exit_code"], 0, "{record:#}");
        assert_eq!(groups_of(&id_of(record)), Vec::<std::path::PathBuf>::new());
    }
    let mut ids: Vec<_> = records.iter().map(id_of).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 48, "two runs had one id");
    assert_eq!(of_this_site(&mounts()), 0, "a mount is left");
    for directory in ["runs", "live"] {
        let left: Vec<_> = std::fs::read_dir(site.state().join(directory))
            .unwrap()
            .flatten()
            .collect();
        assert!(left.is_empty(), "left in `{directory}`: {left:?}");
    }
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

#[test]
fn r11_no_process_slips_out_of_the_group_or_past_the_end() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let word = token("slipper");
    // Each process forks and dies, so that whoever kills what it has listed always comes too late.
    let attack = Attack::new(
        &site,
        r##"
sys.stderr.write("running\n")
sys.stderr.flush()
while True:
    try:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
    except OSError:
        pass
"##,
    )
    .argument(&word)
    .flags(["--wall-time", "30s"]);
    let line: Vec<_> = attack.command_line();
    let mut arguments: Vec<std::ffi::OsString> = ["run", "--quiet", "--wall-time", "1s", "--", "/bin/sh", "-c"]
        .map(Into::into)
        .into();
    arguments.push("\"$@\"; sleep 60".into());
    arguments.push("sh".into());
    arguments.extend(line);
    let mut child = site
        .offleash(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    let groups = live_groups(&site);
    for group in &groups {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        assert!(members.lines().count() > 0 || members.is_empty(), "{}", group.display());
    }
    let status = wait(&mut child);
    assert_eq!(status.code(), Some(124));
    assert_no_process(&word);
    for group in groups {
        assert!(!group.exists(), "{} is left", group.display());
    }
}

/// The groups of the runs that are going on in this site.
fn live_groups(site: &Site) -> Vec<std::path::PathBuf> {
    let live = std::fs::read_dir(site.state().join("live")).unwrap().flatten();
    live.flat_map(|entry| groups_of(&entry.file_name().to_string_lossy()))
        .collect()
}

#[test]
fn r11_the_first_instruction_is_already_bounded() {
    if !can_attack() || !is_root() {
        return;
    }
    let site = Site::new();
    let word = token("bounded");
    let attack = Attack::new(
        &site,
        "sys.stderr.write('running\\n')\nsys.stderr.flush()\ntime.sleep(60)",
    )
    .argument(&word);
    let mut child = attack
        .sandboxed()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let member = eventually("the start of the attack", || {
        let supervisor = child.id();
        super::support::processes::processes_with(&word)
            .into_iter()
            .find(|pid| *pid != supervisor && speaks_python(*pid))
    });
    let groups = std::fs::read_to_string(format!("/proc/{member}/cgroup")).unwrap_or_default();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_no_process(&word);
    if groups.contains("offleash-") {
        return;
    }
    // A machine without a group for us bounds by other means, and the record says so.
    let record = site.record(&[], "true");
    let means = record["enforced"]["limit.pids"].as_str().unwrap_or_default().to_owned();
    assert!(
        !means.starts_with("cgroup"),
        "the process is in {groups:?}, and the record says {means}"
    );
}

fn speaks_python(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("python"))
}
