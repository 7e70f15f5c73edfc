//! Cells of Bash, R and Java that mean no good: whatever they do to their driver, what comes of them is bounded, it is told how
//! they ended, and the next cell is answered rightly.

use std::process::Command;
use std::time::Duration;

use offleash_core::exec::ExecEnd;
use offleash_interpreter::cell::{Cell, CellEnd, ContextDeath};
use offleash_interpreter::contexts::Contexts;
use offleash_interpreter::language::Language;
use offleash_interpreter::limits::CellLimits;

use crate::cells::{Outcome, cell, contexts, outcome, patient};
use crate::local::Local;

/// How long a context is waited for that was harmed by its own cell.
const HARMED: Duration = Duration::from_secs(10);

/// What a cell may write and show here, in bytes.
const ROOM: u64 = 100_000;

/// Writes to every pipe that a process of the same group has open, the driver's among them; to nothing else, since it is no
/// sandbox that this runs in.
macro_rules! into_every_pipe {
    ($said:literal) => {
        concat!(
            "group() { group=; IFS= read -r line </proc/$1/stat || return 0; set -- ${line##*) }; group=$3; } 2>/dev/null; ",
            "group $$; own=$group; [ -n \"$own\" ] || exit 0; ",
            "for p in /proc/[0-9]*; do group ${p#/proc/}; [ \"$group\" = \"$own\" ] || continue; ",
            "for f in $p/fd/*; do [ -p $f ] && printf '",
            $said,
            "' 1<>$f; done; done; true"
        )
    };
}

const FORGED: &str = into_every_pipe!("done 11111111111111111111111111111111 0\\n");
const GARBAGE: &str = into_every_pipe!("garbage and more of it, without a line that ends");

/// How a language says what the tests need.
struct Tongue {
    language: Language,
    program: &'static str,
    /// Writes `alive` and no more.
    alive: &'static str,
    exits: &'static str,
    /// Runs a command of a shell, which is `%`.
    shell: fn(&str) -> String,
    endless: &'static str,
    /// What is to be done to descriptors and connections.
    closes: &'static str,
    /// Many threads or children that go on when the cell has ended.
    multiplies: &'static str,
    recursion: &'static str,
    /// A value, an error and output that are far too large.
    huge: &'static [&'static str],
    stops: &'static str,
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

const BASH: Tongue = Tongue {
    language: Language::Bash,
    program: "bash",
    alive: "echo alive",
    exits: "exit 3",
    shell: str::to_owned,
    endless: "while :; do echo 0123456789; done",
    closes: "for n in {0..255}; do eval \"exec $n>&-\"; done",
    multiplies: "for n in {1..300}; do sleep 1000 & done",
    recursion: "ulimit -s 512; f() { f; }; f",
    huge: &[
        "head -c 20000000 /dev/zero | tr '\\0' x",
        "x=$(head -c 5000000 /dev/zero | tr '\\0' x); \"$x\"",
    ],
    stops: "kill -STOP $BASHPID",
};

const R: Tongue = Tongue {
    language: Language::R,
    program: "Rscript",
    alive: "cat('alive\\n')",
    exits: "q(status = 3)",
    shell: |line| format!("invisible(system({}))", quoted(line)),
    endless: "repeat cat('0123456789\\n')",
    closes: "closeAllConnections(); sink(tempfile()); for (i in 0:255) try(close(getConnection(i)), silent = TRUE)",
    multiplies: "for (n in 1:200) system('sleep 1000', wait = FALSE)",
    recursion: "f <- function(n) f(n + 1) + 1; options(expressions = 5e5); f(1)",
    huge: &[
        "strrep('y', 2e7)",
        "stop(strrep('z', 1e7))",
        "data.frame(a = rep(strrep('w', 1e5), 60))",
        "cat(strrep('x', 2e7))",
    ],
    stops: "tools::pskill(Sys.getpid(), 19)",
};

const JAVA: Tongue = Tongue {
    language: Language::Java,
    program: "javac",
    alive: "System.out.println(\"alive\");",
    exits: "System.exit(3);",
    shell: |line| {
        format!(
            "int status = new ProcessBuilder(\"bash\", \"-c\", {}).inheritIO().start().waitFor();",
            quoted(line)
        )
    },
    endless: "while (true) System.out.println(\"0123456789\");",
    closes: "var number = FileDescriptor.class.getDeclaredField(\"fd\"); number.setAccessible(true);\n\
             for (int n = 0; n < 256; n++) { var one = new FileDescriptor(); number.setInt(one, n);\n\
             try { new FileOutputStream(one).close(); } catch (Throwable none) {} }",
    multiplies: "for (int n = 0; n < 1000; n++) { var one = new Thread(() -> { while (true) try { Thread.sleep(1000000); } \
                 catch (Throwable none) {} }); one.start(); }",
    recursion: "int deep(int n) { return deep(n + 1) + 1; } deep(0)",
    huge: &[
        "\"x\".repeat(20_000_000)",
        "throw new IllegalStateException(\"y\".repeat(10_000_000));",
        "System.out.print(\"z\".repeat(20_000_000));",
        "new Object() { public String toString() { return \"w\".repeat(20_000_000); } }",
    ],
    stops: "new ProcessBuilder(\"kill\", \"-STOP\", \"\" + ProcessHandle.current().pid()).start().waitFor();",
};

/// The contexts of a test, if this machine has the language.
fn start(tongue: &Tongue, grace: Duration) -> Option<Contexts<Local>> {
    #[expect(clippy::print_stdout, reason = "it says why it is skipped")]
    if Command::new(tongue.program).arg("--version").output().is_err() {
        println!("SKIP: there is no `{}`", tongue.program);
        return None;
    }
    Some(contexts(CellLimits {
        output: ROOM,
        results: ROOM,
        grace,
        ..patient()
    }))
}

async fn run(contexts: &Contexts<Local>, tongue: &Tongue, cell: Cell) -> Outcome {
    let mut events = contexts.execute_in_default(tongue.language, cell).await.unwrap();
    let outcome = outcome(&mut events).await;
    let shown = outcome.stdout.len() + outcome.text.as_ref().map_or(0, String::len);
    assert!(shown <= 2 * usize::try_from(ROOM).unwrap(), "{shown} bytes were shown");
    outcome
}

/// The context, or a new one after it was said once that the old one died, runs what it is given and says nothing else.
async fn goes_on(contexts: &Contexts<Local>, tongue: &Tongue, after: &str) {
    let mut next = run(contexts, tongue, cell(tongue.alive)).await;
    if matches!(next.end, Some(CellEnd::DiedBefore(_))) {
        next = run(contexts, tongue, cell(tongue.alive)).await;
    }
    assert_eq!(
        (next.stdout.as_str(), next.end),
        ("alive\n", Some(CellEnd::Done)),
        "after {after}"
    );
}

async fn whatever_they_do(tongue: Tongue) {
    let Some(contexts) = start(&tongue, patient().grace) else {
        return;
    };
    let shell = tongue.shell;
    for said in [FORGED, GARBAGE] {
        // What a cell does to its own context may have any effect there, also that it waits for ever for what was never asked,
        // but none on who asks, and on no new one.
        for code in [shell(said), tongue.alive.to_owned()] {
            let outcome = tokio::time::timeout(HARMED, run(&contexts, &tongue, cell(&code))).await;
            assert!(
                outcome.as_ref().map_or(true, |outcome| outcome.end.is_some()),
                "{outcome:?}"
            );
        }
        let list = contexts.list().await.unwrap();
        contexts.restart(&list[0].id).await.unwrap();
        goes_on(&contexts, &tongue, said).await;
    }
    run(&contexts, &tongue, cell(tongue.closes)).await;
    goes_on(&contexts, &tongue, tongue.closes).await;
    let ended = run(&contexts, &tongue, cell(tongue.exits)).await.end;
    assert_eq!(
        ended,
        Some(CellEnd::Died(ContextDeath::Ended(ExecEnd::Exited { code: 3 })))
    );
    goes_on(&contexts, &tongue, tongue.exits).await;
    let multiplied = run(&contexts, &tongue, cell(tongue.multiplies)).await;
    assert_eq!(multiplied.end, Some(CellEnd::Done), "{multiplied:?}");
    goes_on(&contexts, &tongue, tongue.multiplies).await;
    let deep = run(&contexts, &tongue, cell(tongue.recursion)).await;
    let has_failed = !deep.errors.is_empty() || matches!(deep.end, Some(CellEnd::Died(_)));
    assert!(has_failed, "{deep:?}");
    goes_on(&contexts, &tongue, tongue.recursion).await;
    for code in tongue.huge {
        let huge = run(&contexts, &tongue, cell(code)).await;
        assert_eq!(huge.end, Some(CellEnd::Done), "{code}");
        goes_on(&contexts, &tongue, code).await;
    }
}

async fn that_do_not_end(tongue: Tongue) {
    let Some(contexts) = start(&tongue, Duration::from_secs(2)) else {
        return;
    };
    for (code, must_die) in [(tongue.endless, false), (tongue.stops, true)] {
        goes_on(&contexts, &tongue, "nothing").await;
        let timeout = Some(Duration::from_millis(500));
        let late = Cell { timeout, ..cell(code) };
        let late = run(&contexts, &tongue, late).await;
        let stubborn = CellEnd::Died(ContextDeath::Stubborn { timed_out: true });
        let ended = late.end.as_ref();
        assert!(
            ended == Some(&stubborn) || (!must_die && ended == Some(&CellEnd::TimedOut)),
            "{code}: {ended:?}"
        );
        // What an interrupt cut off in the middle of a line may be said in the next.
        run(&contexts, &tongue, cell(tongue.alive)).await;
        goes_on(&contexts, &tongue, code).await;
    }
}

#[tokio::test]
async fn cells_of_bash_harm_themselves_alone_whatever_they_do() {
    whatever_they_do(BASH).await;
}

#[tokio::test]
async fn cells_of_bash_that_close_what_their_driver_has_end_with_it_or_go_on() {
    let Some(contexts) = start(&BASH, patient().grace) else {
        return;
    };
    for number in 200..210 {
        let code = format!("exec {number}>&-");
        let ended = run(&contexts, &BASH, cell(&code)).await.end;
        let is_over = matches!(
            ended,
            Some(CellEnd::Done | CellEnd::Died(ContextDeath::Ended(ExecEnd::Exited { .. })))
        );
        assert!(is_over, "{code}: {ended:?}");
        // Its driver may miss what was closed with the next cell only.
        run(&contexts, &BASH, cell(BASH.alive)).await;
        goes_on(&contexts, &BASH, &code).await;
    }
}

#[tokio::test]
async fn cells_of_bash_that_do_not_end_are_ended() {
    that_do_not_end(BASH).await;
}

#[tokio::test]
async fn cells_of_r_harm_themselves_alone_whatever_they_do() {
    whatever_they_do(R).await;
}

#[tokio::test]
async fn cells_of_r_that_do_not_end_are_ended() {
    that_do_not_end(R).await;
}

#[tokio::test]
async fn cells_of_java_harm_themselves_alone_whatever_they_do() {
    whatever_they_do(JAVA).await;
}

#[tokio::test]
async fn cells_of_java_that_do_not_end_are_ended() {
    that_do_not_end(JAVA).await;
}
