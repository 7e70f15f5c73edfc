//! A template with a package that does not leave its copies alone.

use std::time::{Duration, Instant};

use offleash_core::exec::ExecEnd;
use offleash_core::spec::ZygoteRole;
use offleash_core::units::{Bytes, CpuCount};
use offleash_interpreter::zygote;
use offleash_supervisor::service::ExecStream;
use offleash_supervisor::service::message::StartExec;
use offleash_supervisor::service::order::{LimitsOrder, Template};

use super::super::world::{Kept, collect, shell, until, within};
use super::{Driver, SIGKILL, Zygote, feed, said, test, words};

/// A module that finds what imports it, and can have more done before what a copy does when it is made and when it has taken
/// on everything.
const MODULE: &str = r#"
import os, sys, threading, time
frame = sys._getframe()
while "say_it_waits" not in frame.f_globals:
    frame = frame.f_back
program = frame.f_globals
def stay():
    time.sleep(1000)
    os._exit(0)
def fork(work=stay):
    if os.fork() == 0:
        work()
        os._exit(0)
def apart():
    os.setsid()
    fork()
def again_and_again():
    while os.fork() == 0:
        pass
    os._exit(0)
def before(name, work):
    real = program[name]
    def both(*arguments):
        work()
        return real(*arguments)
    program[name] = both
"#;

/// What a zygote may do to a copy: the first ones when it is made, the others while it takes on what the sandbox has, or then.
const DEEDS: [&str; 5] = [
    "before('say_it_waits', fork)",
    "before('say_it_waits', lambda: fork(apart))",
    "before('say_it_waits', lambda: fork(again_and_again))",
    "before('filter_calls', lambda: fork(apart))",
    "before('filter_calls', lambda: threading.Thread(target=stay).start())",
];
const WHEN_MADE: usize = 3;

/// The names of processes that live in a sandbox, but for the first one and the shell that looks.
const ALIVE: &str = "for process in /proc/[0-9]*; do
    case $process in /proc/1 | /proc/$$) continue ;; esac
    grep -qs '^State:[[:space:]]*[^Z[:space:]]' $process/status && cat $process/comm
done; true";

async fn hostile(deed: &str) -> Zygote {
    let (kept, mut stream) = begin(deed, LimitsOrder::default()).await;
    until(&mut stream, "ready\n").await;
    Zygote { kept, stream }
}

async fn begin(deed: &str, limits: LimitsOrder) -> (Kept, ExecStream) {
    let kept = Kept::with(|order| {
        order.descent = ZygoteRole::Zygote;
        order.limits = limits;
    })
    .await;
    let file = format!("cat > /tmp/hostile.py << 'END'\n{MODULE}\n{deed}\nEND");
    kept.output(&file).await;
    let start = StartExec {
        argv: words(&zygote::command()),
        env: vec![(b"PYTHONPATH".to_vec(), b"/tmp".to_vec())],
        stdin: true,
        ..StartExec::default()
    };
    let stream = within(kept.supervisor.start(start)).await.unwrap();
    let input = zygote::input(&["hostile".to_owned()]).unwrap();
    feed(&kept.supervisor, stream.pid(), &input).await;
    (kept, stream)
}

fn notes(sandbox: &Kept) -> String {
    std::fs::read_to_string(sandbox.directory().join("log.jsonl")).unwrap_or_default()
}

/// Whether the interpreter of a context is one that was started, or a copy.
async fn is_started(driver: &mut Driver) -> bool {
    let text = driver.run("import os; print('parent=%d' % os.getppid())").await;
    said(&text, "parent") == "1"
}

#[test]
fn a_copy_that_is_not_alone_is_refused_with_all_that_came_with_it() {
    test(async {
        for deed in DEEDS {
            let zygote = hostile(deed).await;
            for is_ahead in [true, false] {
                let sandbox = zygote.make(Template::System, is_ahead).await;
                let mut driver = Driver::new(&sandbox).await;
                assert!(is_started(&mut driver).await, "{deed}");
                assert_eq!(sandbox.output(ALIVE).await, "python3\n", "{deed}");
                let notes = notes(&sandbox);
                assert!(notes.contains("an interpreter was started anew"), "{deed}: {notes}");
            }
        }
    });
}

#[test]
fn what_came_with_a_copy_is_gone_before_anything_else_runs() {
    test(async {
        for deed in &DEEDS[..WHEN_MADE] {
            let zygote = hostile(deed).await;
            let sandbox = zygote.make(Template::System, true).await;
            assert_eq!(sandbox.output(ALIVE).await, "", "{deed}");
        }
    });
}

#[test]
fn what_a_sandbox_has_started_itself_is_left_alone_when_a_copy_is_refused() {
    test(async {
        for deed in DEEDS {
            let zygote = hostile(deed).await;
            let sandbox = zygote.make(Template::System, false).await;
            let own = "(setsid sleep 1000 &) & sleep 1000";
            let own = within(sandbox.supervisor.start(shell(own))).await.unwrap();
            let both = "until [ \"$(cat /proc/[0-9]*/comm | grep -c '^sleep$')\" = 2 ]; do :; done";
            sandbox.output(both).await;
            // What is started, and leaves others behind, at the same time.
            let busy = "while :; do (setsid true &); done";
            let busy = within(sandbox.supervisor.start(shell(busy))).await.unwrap();
            let mut driver = Driver::new(&sandbox).await;
            assert!(is_started(&mut driver).await, "{deed}");
            let alive = sandbox.output(ALIVE).await;
            let count = |name: &str| alive.lines().filter(|line| *line == name).count();
            assert_eq!((count("sleep"), count("python3")), (2, 1), "{deed}: {alive}");
            drop((own, busy));
        }
    });
}

#[test]
fn a_copy_comes_in_where_others_come_and_go() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let sandbox = zygote.make(Template::System, false).await;
        let busy = "while :; do (setsid sleep 0.001 &); sleep 0.001; done";
        let busy = within(sandbox.supervisor.start(shell(busy))).await.unwrap();
        for _ in 0..3 {
            let mut driver = Driver::new(&sandbox).await;
            assert!(!is_started(&mut driver).await, "{}", notes(&sandbox));
        }
        drop(busy);
    });
}

#[test]
fn a_copy_that_says_nothing_is_not_waited_for_long() {
    test(async {
        let zygote = hostile("before('say_it_waits', stay)").await;
        let sandbox = zygote.make(Template::System, true).await;
        let asked = Instant::now();
        assert_eq!(sandbox.output(ALIVE).await, "");
        assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    });
}

fn limits() -> LimitsOrder {
    LimitsOrder {
        cpus: Some(CpuCount { millis: 1000 }),
        memory: Some(Bytes::mib(96)),
        disk: Some(Bytes::mib(64)),
        pids: Some(24),
    }
}

#[test]
fn what_is_imported_takes_no_more_than_the_zygote_may_have() {
    test(async {
        let greedy = "held = bytearray(b'x') * (256 << 20)";
        let (kept, stream) = begin(greedy, limits()).await;
        if !kept.hello.enforced.contains_key("limit.memory") {
            return super::super::support::skip("no control group bounds memory here");
        }
        let (said, end) = collect(stream).await;
        assert_eq!(end, Some(ExecEnd::Signaled { signal: SIGKILL }), "{said}");
        // With its first process all would end that lies below it.
        assert_eq!(kept.output("echo here").await, "here\n");
        let many = "
try:
    for _ in range(100):
        fork()
except OSError as error:
    print('refused=%d' % error.errno, flush=True)";
        let (kept, mut stream) = begin(many, limits()).await;
        assert!(kept.hello.enforced.contains_key("limit.pids"));
        until(&mut stream, "refused=11\n").await;
    });
}

#[test]
fn a_copy_of_a_zygote_with_limits_has_those_of_its_sandbox() {
    test(async {
        let (kept, mut stream) = begin("", limits()).await;
        until(&mut stream, "ready\n").await;
        let zygote = Zygote { kept, stream };
        for is_ahead in [true, false] {
            let sandbox = zygote.make(Template::System, is_ahead).await;
            let mut driver = Driver::new(&sandbox).await;
            assert!(!is_started(&mut driver).await, "{}", notes(&sandbox));
            let more = "held = bytearray(b'x') * (160 << 20); print('held=%d' % (len(held) >> 20))";
            assert_eq!(said(&driver.run(more).await, "held"), "160");
        }
    });
}
