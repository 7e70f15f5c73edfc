//! Copies of a zygote's process: whether they are in a sandbox as its commands are, and share nothing with each other.

mod apart;
mod hostile;

use offleash_core::exec::ExecEnd;
use offleash_core::spec::{ProcessRef, ZygoteRole};
use offleash_core::units::CpuCount;
use offleash_interpreter::language::Language;
use offleash_interpreter::zygote;
use offleash_supervisor::service::message::{Selector, StartExec};
use offleash_supervisor::service::order::{LimitsOrder, Template};
use offleash_supervisor::service::{ExecNews, ExecStream, SupervisorClient};

use super::support::processes::TIMEOUT;
use super::world::{Kept, collect, shell, until, within};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const ID: &str = "0123456789abcdef0123456789abcdef";

/// Whether there is a copy, looked for from the zygote's sandbox.
const COPIES: &str =
    "cat /proc/[0-9]*/status 2>/dev/null | grep -qE '^NSpid:[[:space:]]+[0-9]+[[:space:]]+([2-9]|[1-9][0-9]+)$'";

fn test(work: impl Future<Output = ()>) {
    if offleash_sys::landlock::abi().unwrap().is_none_or(|version| version < 6) {
        return super::support::skip("this kernel cannot keep a zygote apart with Landlock (Linux 6.12)");
    }
    super::world::test(work);
}

/// A zygote, and what it writes.
struct Zygote {
    kept: Kept,
    stream: ExecStream,
}

impl Zygote {
    async fn new(template: Template) -> Self {
        let kept = Kept::with(|order| {
            order.template = template;
            order.descent = ZygoteRole::Zygote;
            order.limits = LimitsOrder::default();
        })
        .await;
        let start = StartExec {
            argv: words(&zygote::command()),
            stdin: true,
            ..StartExec::default()
        };
        let mut stream = within(kept.supervisor.start(start)).await.unwrap();
        feed(&kept.supervisor, stream.pid(), &zygote::input(&[]).unwrap()).await;
        until(&mut stream, "ready\n").await;
        Self { kept, stream }
    }

    /// A sandbox below it, for one CPU: where no group measures that out, for one of its own by chance.
    async fn sandbox(&self, template: Template) -> Kept {
        self.make(template, false).await
    }

    /// The same, with a copy that was asked for while it was made, and is there.
    async fn sandbox_with_copy(&self, template: Template) -> Kept {
        let kept = self.make(template, true).await;
        // The zygote sees what lies below it; in the sandbox it is not the first process, which is the guest.
        self.kept.output(&format!("until {COPIES}; do :; done")).await;
        kept
    }

    /// Has it take no requests any more.
    async fn close(&self) {
        let which = Selector::Pid(self.stream.pid());
        within(self.kept.supervisor.close_input(&which)).await.unwrap();
        let place = zygote::SOCKET;
        self.kept.output(&format!("while [ -e {place} ]; do :; done")).await;
    }

    async fn make(&self, template: Template, wants_copy: bool) -> Kept {
        let first = within(self.kept.supervisor.first_process()).await.unwrap();
        let kept = Kept::with(|order| {
            order.template = template;
            order.descent = ZygoteRole::Below(first);
            order.wants_copy = wants_copy;
            order.limits.cpus = Some(CpuCount { millis: 1000 });
        })
        .await;
        assert_eq!(kept.descent, ZygoteRole::Below(first));
        kept
    }
}

fn words(words: &[String]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.clone().into_bytes()).collect()
}

async fn feed(supervisor: &SupervisorClient, pid: u32, bytes: &[u8]) {
    for piece in bytes.chunks(512 * 1024) {
        within(supervisor.input(&Selector::Pid(pid), piece.to_vec()))
            .await
            .unwrap();
    }
}

fn frame(kind: &str, payload: &[u8]) -> Vec<u8> {
    [format!("{kind} {ID} {}\n", payload.len()).as_bytes(), payload].concat()
}

/// What a cell printed: it comes in pieces that may end in the middle of a line, each in a frame of its own.
fn printed(frames: &str) -> String {
    let (mut out, mut rest) = (String::new(), frames);
    while let Some((head, after)) = rest.split_once('\n') {
        let fields: Vec<&str> = head.split(' ').collect();
        let [kind, _, length] = fields[..] else {
            panic!("{head:?} of {frames}")
        };
        let (payload, next) = after.split_at(length.parse().unwrap());
        if kind == "stdout" {
            out.push_str(payload);
        }
        rest = next;
    }
    out
}

/// The driver of a context.
struct Driver {
    supervisor: SupervisorClient,
    stream: ExecStream,
}

impl Driver {
    async fn new(sandbox: &Kept) -> Self {
        Self::with(sandbox, vec![(b"GIVEN".to_vec(), b"\xffvalue".to_vec())], b"/tmp").await
    }

    async fn with(sandbox: &Kept, env: Vec<(Vec<u8>, Vec<u8>)>, cwd: &[u8]) -> Self {
        let start = StartExec {
            argv: words(&Language::Python.command()),
            env,
            cwd: Some(cwd.to_vec()),
            stdin: true,
            ..StartExec::default()
        };
        let stream = within(sandbox.supervisor.start_copy(start)).await.unwrap();
        let source = frame("source", Language::Python.source());
        let supervisor = sandbox.supervisor.clone();
        feed(&supervisor, stream.pid(), &source).await;
        Self { supervisor, stream }
    }

    async fn begin(&mut self, code: &str) {
        let frames = [frame("code", code.as_bytes()), frame("run", b"1000000 1000000")].concat();
        feed(&self.supervisor, self.stream.pid(), &frames).await;
    }

    /// What a cell prints.
    async fn run(&mut self, code: &str) -> String {
        self.begin(code).await;
        printed(&until(&mut self.stream, &format!("done {ID} 0\n")).await)
    }

    async fn end(self) -> Option<ExecEnd> {
        collect(self.stream).await.1
    }
}

/// The lines that a cell printed, one for each word that it was to say.
fn said<'t>(text: &'t str, word: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("nothing of {word} in {text}"))
}

/// What a program can see of what it is, in a form that a shell and Python both print.
const SELF: &str = "\
for n in user pid mnt net ipc uts cgroup; do echo \"$n=$(readlink /proc/self/ns/$n)\"; done
grep -E '^(Uid|Gid|Cap...|NoNewPrivs|Seccomp|Cpus_allowed_list):' /proc/self/status | tr -d '[:blank:]' | sed 's/:/=/'
echo cgroups=$(cat /proc/self/cgroup)
echo limits=$(cat /proc/self/limits)
echo score=$(cat /proc/self/oom_score_adj)
echo host=$(cat /proc/sys/kernel/hostname)
echo mask=$(umask)
echo root=$(ls -di / | cut -d/ -f1)
";

/// The same of the process in which a cell runs; `sh` would be another one.
const SELF_OF_PYTHON: &str = "
import os
for n in 'user pid mnt net ipc uts cgroup'.split(): print(f'{n}=' + os.readlink(f'/proc/self/ns/{n}'))
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    if name in ('Uid', 'Gid', 'NoNewPrivs', 'Seccomp', 'Cpus_allowed_list') or name.startswith('Cap'):
        print(f'{name}=' + ''.join(value.split()))
read = lambda path: ' '.join(open(path).read().split())
print('cgroups=' + read('/proc/self/cgroup'))
print('limits=' + read('/proc/self/limits'))
print('score=' + read('/proc/self/oom_score_adj'))
print('host=' + read('/proc/sys/kernel/hostname'))
mask = os.umask(0); os.umask(mask)
print(f'mask={mask:04o}')
print(f'root={os.stat(\"/\").st_ino} ')
";

const WORDS: [&str; 23] = [
    "user",
    "pid",
    "mnt",
    "net",
    "ipc",
    "uts",
    "cgroup",
    "Uid",
    "Gid",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed_list",
    "cgroups",
    "limits",
    "score",
    "host",
    "mask",
    "root",
];

async fn is_as_its_commands_are(template: Template, is_ahead: bool) {
    let zygote = Zygote::new(template.clone()).await;
    let sandbox = match is_ahead {
        true => zygote.sandbox_with_copy(template).await,
        false => zygote.sandbox(template).await,
    };
    if is_ahead {
        // So there is no other one than that.
        zygote.close().await;
    }
    let mut driver = Driver::new(&sandbox).await;
    let copy = driver.run(SELF_OF_PYTHON).await;
    let command = sandbox.output(SELF).await;
    for word in WORDS {
        assert_eq!(
            said(&copy, word).trim(),
            said(&command, word).trim(),
            "{word}\n{copy}\n{command}"
        );
    }
    let zygotes_own = zygote.kept.output(SELF).await;
    for word in ["user", "pid", "mnt", "net", "ipc", "uts"] {
        assert_ne!(said(&copy, word), said(&zygotes_own, word), "{word}");
    }
    // Of the zygote it has nothing open, no thread, no variable, and its parent is none that it can see.
    let own = driver
        .run(
            "import os, signal, threading\n\
              print('number=%d' % os.getpid(), 'parent=%d' % os.getppid())\n\
              kinds = sorted(set(os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in os.listdir('/proc/self/fd')\
               if os.path.exists(f'/proc/self/fd/{n}')))\n\
              print('open=' + ' '.join(kinds))\n\
              print('threads=' + ' '.join(sorted(thread.name for thread in threading.enumerate())))\n\
              print('tasks=%d' % len(os.listdir('/proc/self/task')))\n\
              print('given=' + repr(os.environb[b'GIVEN']), 'variables=%d' % len(os.environ))\n\
              print('where=' + os.getcwd())\n\
              print('shared=' + ' '.join(line for line in open('/proc/self/maps') if line.split()[1][1::2] == 'ws'))\n\
              print('handler=%r' % signal.getsignal(signal.SIGCHLD))\n",
        )
        .await;
    assert!(own.contains("parent=0"), "{own}");
    assert_eq!(said(&own, "threads"), "MainThread");
    // The one that runs cells, and the driver's.
    assert_eq!(said(&own, "tasks"), "2");
    assert!(own.contains(r"given=b'\xffvalue'"), "{own}");
    assert_eq!(said(&own, "where"), "/tmp");
    assert_eq!(said(&own, "shared"), "");
    for kind in said(&own, "open").split(' ') {
        assert!(
            ["/dev/null", "pipe", "/proc/"]
                .iter()
                .any(|fine| kind.starts_with(fine)),
            "{own}"
        );
    }
    let plain = sandbox.output("env | wc -l").await;
    assert!(!plain.is_empty());
    // It can be counted, found and ended like any command.
    let listed = within(sandbox.supervisor.processes()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].pid, driver.stream.pid());
    driver.begin("import os; os._exit(7)").await;
    assert_eq!(driver.end().await, Some(ExecEnd::Exited { code: 7 }));
    let notes = std::fs::read_to_string(sandbox.directory().join("log.jsonl")).unwrap_or_default();
    assert!(!notes.contains("started anew"), "{notes}");
}

#[test]
fn a_copy_of_a_zygote_is_in_a_sandbox_as_its_commands_are() {
    test(is_as_its_commands_are(Template::System, false));
}

#[test]
fn a_copy_of_a_zygote_is_in_a_sandbox_with_a_root_of_its_own_as_its_commands_are() {
    test(is_as_its_commands_are(Template::Base, false));
}

#[test]
fn a_copy_that_was_asked_for_ahead_is_in_a_sandbox_as_its_commands_are() {
    test(is_as_its_commands_are(Template::System, true));
}

#[test]
fn a_copy_that_was_asked_for_ahead_is_in_a_sandbox_with_a_root_of_its_own_as_its_commands_are() {
    test(is_as_its_commands_are(Template::Base, true));
}

#[test]
fn a_copy_that_waits_is_gone_before_anything_else_runs() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.sandbox_with_copy(Template::System).await;
        // Whoever made it may not have taken note yet that it has ended.
        let alive = "for process in /proc/[0-9]*; do
            grep -qs '^State:[[:space:]]*[^Z[:space:]]' $process/status && echo \"${process#/proc/}=$$\"
        done; true";
        let seen = sandbox.output(alive).await;
        assert!(seen.starts_with("1="), "{seen}");
        for line in seen.lines() {
            let (process, shell) = line.split_once('=').unwrap();
            assert!(process == "1" || process == shell, "{seen}");
        }
        // Another one comes in as ever.
        let mut driver = Driver::new(&sandbox).await;
        let text = driver.run("import os; print('parent=%d' % os.getppid())").await;
        assert_eq!(said(&text, "parent"), "0");
        let notes = std::fs::read_to_string(sandbox.directory().join("log.jsonl")).unwrap_or_default();
        assert!(!notes.contains("started anew"), "{notes}");
        // The sandbox ends with one that waits.
        let waiting = zygote.sandbox_with_copy(Template::System).await;
        within(waiting.supervisor.kill()).await.unwrap();
        within(sandbox.supervisor.kill()).await.unwrap();
        zygote.kept.output(&format!("while {COPIES}; do :; done")).await;
    });
}

#[test]
fn two_copies_share_nothing_and_find_different_numbers() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let code = "import os, random, ssl, tempfile, uuid\n\
                    print('random=%r' % random.random())\n\
                    print('uuid1=%s' % uuid.uuid1()); print('uuid4=%s' % uuid.uuid4())\n\
                    print('ssl=%s' % ssl.RAND_bytes(16).hex())\n\
                    print('name=%s' % next(tempfile._get_candidate_names()))\n\
                    try:\n    import numpy\n    print('numpy=%r' % numpy.random.rand())\n\
                    except ImportError:\n    print('numpy=%d' % os.stat('/proc/self/ns/mnt').st_ino)\n\
                    for n in sorted(os.listdir('/proc/self/fd')):\n\
                    \x20   try: print('open', os.fstat(int(n)).st_ino, os.readlink(f'/proc/self/fd/{n}'))\n\
                    \x20   except OSError: pass\n\
                    state = 1\n";
        let (one, other) = (
            zygote.sandbox(Template::System).await,
            zygote.sandbox(Template::System).await,
        );
        let (mut first, mut second) = (Driver::new(&one).await, Driver::new(&other).await);
        let (a, b) = (first.run(code).await, second.run(code).await);
        for word in ["random", "uuid1", "uuid4", "ssl", "name", "numpy"] {
            assert_ne!(said(&a, word), said(&b, word), "{word}");
        }
        let pipes = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.contains(" pipe:"));
            lines.map(str::to_owned).collect()
        };
        assert!(!pipes(&a).is_empty());
        assert!(pipes(&a).iter().all(|pipe| !pipes(&b).contains(pipe)), "{a}{b}");
        first.run("import sys; state = 'mine'; sys.mine = 1").await;
        let seen = second
            .run("import sys; print('seen=%r' % [state, hasattr(sys, 'mine')])")
            .await;
        assert_eq!(said(&seen, "seen"), "[1, False]");
        // A third one of the same zygote has nothing of either.
        let third = zygote.sandbox(Template::System).await;
        let fresh = Driver::new(&third)
            .await
            .run("print('new=%r' % ('state' in globals()))")
            .await;
        assert_eq!(said(&fresh, "new"), "False");
    });
}

/// Looks in all memory of the process that it runs in. What is looked for is given with one added to each byte, and so is
/// memory before it is compared: neither the search nor what it has read is what is found.
const SCAN: &str = "
import re
shift = bytes((byte + 1) % 256 for byte in range(256))
def count(wanted):
    found = 0
    with open('/proc/self/maps') as maps:
        areas = re.findall(r'^([0-9a-f]+)-([0-9a-f]+) r', maps.read(), re.M)
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        for begin, end in ((int(begin, 16), int(end, 16)) for begin, end in areas):
            for at in range(begin, end, 1 << 20):
                try:
                    memory.seek(at)
                    data = memory.read(min((1 << 20) + len(wanted) - 1, end - at))
                except (OSError, OverflowError):
                    continue
                found += data.translate(shift).count(wanted)
    return found
";

/// How often something is in the memory of a copy.
async fn count_in(driver: &mut Driver, wanted: &[u8]) -> usize {
    let shifted: String = wanted
        .iter()
        .map(|byte| format!("{:02x}", byte.wrapping_add(1)))
        .collect();
    let text = driver
        .run(&format!("print('found=%d' % count(bytes.fromhex('{shifted}')))"))
        .await;
    said(&text, "found").parse().unwrap()
}

#[test]
fn nothing_of_one_sandbox_is_in_the_memory_of_the_next_copy() {
    test(async {
        const SECRET: &str = "k3y-0f-0ne-t3nant;";
        let zygote = Zygote::new(Template::System).await;
        let one = zygote.sandbox(Template::System).await;
        let place = format!("/tmp/{SECRET}");
        one.output(&format!("mkdir '{place}'")).await;
        let variable = |name: String, value: String| (name.into_bytes(), value.into_bytes());
        let mut env: Vec<_> = (0..100)
            .map(|number| variable(format!("{SECRET}{number}"), format!("{number}{SECRET}")))
            .collect();
        // Of many sizes: where memory that was freed is used anew differs by size.
        for times in [5, 22, 45, 200] {
            env.push(variable(format!("LONG_{times}"), SECRET.repeat(times)));
        }
        let hexadecimal: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut first = Driver::with(&one, env, place.as_bytes()).await;
        first.run(SCAN).await;
        assert_ne!(count_in(&mut first, SECRET.as_bytes()).await, 0);
        within(one.supervisor.kill()).await.unwrap();
        for _ in 0..2 {
            let other = zygote.sandbox(Template::System).await;
            let mut next = Driver::new(&other).await;
            next.run(SCAN).await;
            let found = (
                count_in(&mut next, SECRET.as_bytes()).await,
                count_in(&mut next, hexadecimal.as_bytes()).await,
            );
            assert_eq!(found, (0, 0));
            // It was a copy.
            let parent = next.run("import os; print('parent=%d' % os.getppid())").await;
            assert_eq!(said(&parent, "parent"), "0");
        }
    });
}

#[test]
fn a_copy_can_be_interrupted_and_killed_with_all_that_it_started() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.sandbox(Template::System).await;
        let mut driver = Driver::new(&sandbox).await;
        let which = Selector::Pid(driver.stream.pid());
        driver
            .begin("import time; print('begun', flush=True); time.sleep(1000)")
            .await;
        until(&mut driver.stream, "begun").await;
        within(sandbox.supervisor.signal(&which, SIGINT)).await.unwrap();
        let text = until(&mut driver.stream, &format!("done {ID} 0\n")).await;
        assert!(text.contains("KeyboardInterrupt"), "{text}");
        driver
            .run("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
            .await;
        // Its name is that of its program a moment after `Popen` has heard that it was executed.
        let found = "until cat /proc/[0-9]*/comm | grep '^sleep$'; do :; done";
        assert_eq!(sandbox.output(found).await.trim(), "sleep");
        within(sandbox.supervisor.pause()).await.unwrap();
        within(sandbox.supervisor.resume()).await.unwrap();
        within(sandbox.supervisor.signal(&which, SIGKILL)).await.unwrap();
        assert_eq!(driver.end().await, Some(ExecEnd::Signaled { signal: SIGKILL }));
        // With it ends its group, if the kernel can do that, and with the sandbox everything.
        let mut again = Driver::new(&sandbox).await;
        let pid = again.run("import os; print('outside=%d' % os.getpid())").await;
        assert!(!pid.is_empty());
        within(sandbox.supervisor.kill()).await.unwrap();
        assert_eq!(again.end().await, None);
    });
}

#[test]
fn what_a_copy_must_not_do_is_refused_and_counted() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.sandbox(Template::System).await;
        let mut driver = Driver::new(&sandbox).await;
        let text = driver
            .run(
                "import ctypes, os\n\
                  libc = ctypes.CDLL(None, use_errno=True)\n\
                  def tried(what):\n\
                  \x20   try: return what() and 'done'\n\
                  \x20   except OSError as error: return error.errno\n\
                  print('setns=%r' % libc.setns(os.open('/proc/self/ns/net', 0), 0))\n\
                  print('unshare=%r' % libc.unshare(0x10000000))\n\
                  print('mount=%r' % libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))\n\
                  print('uid=%r' % tried(lambda: os.setuid(0) or 'done'))\n\
                  print('zygote=%r' % any(name.startswith('.offleash-zygote') for name in os.listdir('/tmp')))\n\
                  print('first=%r' % tried(lambda: os.kill(1, 9) or 'done'))\n",
            )
            .await;
        assert_eq!(said(&text, "unshare"), "-1", "{text}");
        assert_eq!(said(&text, "mount"), "-1", "{text}");
        // Neither is there such a user, nor may it be another one.
        assert!(["1", "22"].contains(&said(&text, "uid")), "{text}");
        assert_eq!(said(&text, "setns"), "-1", "{text}");
        assert_ne!(said(&text, "first"), "'done'", "{text}");
        assert_eq!(said(&text, "zygote"), "False", "{text}");
        // The sandbox goes on.
        assert_eq!(sandbox.output("echo here").await, "here\n");
    });
}

#[test]
fn a_sandbox_whose_zygote_is_gone_is_made_below_none_and_says_so() {
    test(async {
        // Of that number and another time.
        let gone = ProcessRef {
            pid: std::process::id(),
            start_ticks: 1,
        };
        let kept = Kept::with(|order| order.descent = ZygoteRole::Below(gone)).await;
        assert_eq!(kept.descent, ZygoteRole::Alone);
        let mut driver = Driver::new(&kept).await;
        assert_eq!(said(&driver.run("print('sum=%d' % (1 + 1))").await, "sum"), "2");
    });
}

#[test]
fn without_a_zygote_the_program_itself_is_started() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.sandbox(Template::System).await;
        let mut stream = zygote.stream;
        within(zygote.kept.supervisor.close_input(&Selector::Pid(stream.pid())))
            .await
            .unwrap();
        loop {
            match within(stream.next()).await.unwrap() {
                Some(ExecNews::Ended(end)) => {
                    assert_eq!(end, ExecEnd::Exited { code: 0 });
                    break;
                }
                Some(_) => {}
                None => panic!("the zygote's sandbox is gone"),
            }
        }
        let mut driver = Driver::new(&sandbox).await;
        assert_eq!(said(&driver.run("print('sum=%d' % (1 + 1))").await, "sum"), "2");
        // A sandbox that lies below none never asks one.
        let alone = Kept::new().await;
        let mut driver = Driver::new(&alone).await;
        assert_eq!(said(&driver.run("print('sum=%d' % (1 + 1))").await, "sum"), "2");
    });
}

#[test]
fn with_the_zygotes_sandbox_ends_what_lies_below_it() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.sandbox(Template::System).await;
        let stream = within(sandbox.supervisor.start(shell("sleep 1000"))).await.unwrap();
        within(zygote.kept.supervisor.kill()).await.unwrap();
        assert_eq!(collect(stream).await.1, None);
        let deadline = std::time::Instant::now() + TIMEOUT;
        while super::world::is_supervisor(sandbox.hello.pid) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
}
