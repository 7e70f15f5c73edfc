//! Rules that ask: who is asked, what an answer is, and what holds without one.

use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::support::processes::{finish, wait};
use crate::support::terminal::Terminal;
use crate::support::{Site, record_of};
use crate::world::{Seen, World, world};

const TWICE: &str = r#"
attempt("first", get, "www.example.com")
attempt("second", get, "www.example.com")
"#;

/// A run at a terminal, which writes its record elsewhere.
pub(crate) struct AtTerminal {
    pub(crate) terminal: Terminal,
    child: Child,
    _site: Site,
}

impl AtTerminal {
    pub(crate) fn start(world: &World, flags: &[&str], attempts: &str) -> Self {
        let site = Site::new();
        let terminal = Terminal::new(24, 200);
        let mut command = World::in_session(&world.sandboxed(&site, flags, attempts), true);
        command
            .stdin(terminal.stream())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = terminal.spawn(&mut command);
        Self {
            terminal,
            child,
            _site: site,
        }
    }

    /// Waits until `count` questions about `place` were put, and types `keys`.
    pub(crate) fn answer(&mut self, count: usize, place: &str, keys: &str) {
        let question = format!("wants {place} ");
        crate::support::processes::eventually(&format!("{count} questions about {place}"), || {
            (self.terminal.screen().matches(&question).count() >= count).then_some(())
        });
        self.terminal.type_keys(keys.as_bytes());
    }

    fn questions(&self) -> usize {
        self.terminal.screen().matches("[offleash] python3 wants ").count()
    }

    pub(crate) fn output(self) -> Output {
        finish(self.child)
    }

    /// How many questions were put until the end.
    pub(crate) fn end_with_questions(mut self) -> (usize, Seen) {
        crate::support::processes::eventually("the end", || self.child.try_wait().unwrap());
        (self.questions(), self.end())
    }

    pub(crate) fn end(self) -> Seen {
        Seen::of_output(&self.output())
    }
}

/// Runs attempts where nobody can be asked.
pub(crate) fn without_terminal(world: &World, flags: &[&str], attempts: &str) -> Seen {
    let site = Site::new();
    let mut command = World::in_session(&world.sandboxed(&site, flags, attempts), false);
    Seen::of_output(&finish(crate::support::processes::start(&mut command)))
}

/// How each connection was decided and what became of it, in an order of their own: which ends first is chance.
fn asked<'a>(seen: &'a Seen, host: &str) -> Vec<(&'a str, &'a str)> {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let all = seen.connections(host).into_iter();
    let mut all: Vec<_> = all
        .map(|connection| (text(&connection["asked"]), text(&connection["verdict"])))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn an_answer_holds_once_or_for_the_run() {
    let Some(world) = world() else { return };
    let flags = ["--ask", "www.example.com"];
    let mut once = AtTerminal::start(world, &flags, TWICE);
    once.answer(1, "www.example.com:80", "o\n");
    once.answer(2, "www.example.com:80", "D\n");
    let screen = once.terminal.screen();
    assert!(screen.contains("allow (o)nce, for this (r)un, or (d)eny?"), "{screen}");
    let seen = once.end();
    seen.done("first");
    let said = seen.refused("second");
    assert!(
        said.contains("network.ask: www.example.com") && said.contains("the answer was to deny it"),
        "{said}"
    );
    assert_eq!(
        asked(&seen, "www.example.com"),
        [("denied", "refused"), ("once", "allowed")]
    );

    let mut run = AtTerminal::start(world, &flags, TWICE);
    run.answer(1, "www.example.com:80", "run\n");
    let (questions, seen) = run.end_with_questions();
    assert_eq!(questions, 1);
    seen.all_done();
    assert_eq!(
        asked(&seen, "www.example.com"),
        [("run", "allowed"), ("run", "allowed")]
    );
}

#[test]
fn what_was_denied_is_not_asked_again_at_any_port() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("first", get, "www.example.com")
attempt("again", get, "www.example.com")
attempt("other port", echoed, "www.example.com")
attempt("other host", get, "api.example.com")
"#;
    let flags = ["--ask", "www.example.com:80,7", "--ask", "api.example.com"];
    let mut run = AtTerminal::start(world, &flags, attempts);
    run.answer(1, "www.example.com:80", "d\n");
    run.answer(1, "api.example.com:80", "o\n");
    let (questions, seen) = run.end_with_questions();
    assert_eq!(questions, 2);
    for name in ["first", "again", "other port"] {
        seen.refused(name);
    }
    seen.done("other host");
}

#[test]
fn nobody_answers_in_time_and_it_is_refused() {
    let Some(world) = world() else { return };
    let flags = ["--ask", "*.wild.example.org", "--ask-timeout", "300ms"];
    let attempts = r#"attempt("one", get, "late.wild.example.org")"#;
    let run = AtTerminal::start(world, &flags, attempts);
    run.terminal.wait_for("there was no answer: denied");
    let seen = run.end();
    let said = seen.refused("one");
    assert!(said.contains("nobody answered in time"), "{said}");
    assert_eq!(asked(&seen, "late.wild.example.org"), [("timeout", "refused")]);
    world.assert_never_asked("late.wild.example.org");
}

#[test]
fn without_a_terminal_it_is_refused_at_once_and_says_so() {
    let Some(world) = world() else { return };
    let flags = ["--ask", "*.wild.example.org", "--ask-timeout", "1h"];
    let attempts = r#"attempt("one", get, "alone.wild.example.org")"#;
    let seen = without_terminal(world, &flags, attempts);
    let said = seen.refused("one");
    assert!(said.contains("there is no terminal to ask at"), "{said}");
    assert_eq!(asked(&seen, "alone.wild.example.org"), [("no_terminal", "refused")]);
    world.assert_never_asked("alone.wild.example.org");
    let control = without_terminal(world, &["--allow", "*.wild.example.org"], attempts);
    control.done("one");
}

#[test]
fn many_connections_to_one_place_are_one_question() {
    let Some(world) = world() else { return };
    let attempts = r#"
def one(number):
    attempt("number %d" % number, get, "www.example.com")

threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"#;
    let mut run = AtTerminal::start(world, &["--ask", "www.example.com"], attempts);
    run.answer(1, "www.example.com:80", "r\n");
    let (questions, seen) = run.end_with_questions();
    assert_eq!(questions, 1);
    assert_eq!(seen.names().count(), 8);
    seen.all_done();
}

#[test]
fn an_address_that_is_never_dialled_is_not_asked_about() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("metadata", get, "169.254.169.254")
attempt("control", get, "93.184.216.34")
"#;
    let flags = ["--ask", "169.254.0.0/16", "--ask", "93.184.216.34"];
    let mut run = AtTerminal::start(world, &flags, attempts);
    run.answer(1, "93.184.216.34:80", "o\n");
    let (questions, seen) = run.end_with_questions();
    assert_eq!(questions, 1);
    seen.refused("metadata");
    seen.done("control");
}

#[test]
fn an_interrupt_denies_and_goes_to_the_command() {
    let Some(world) = world() else { return };
    let attempts = r#"
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
attempt("one", get, "www.example.com")
signal.pause()
"#;
    let mut run = AtTerminal::start(world, &["--ask", "www.example.com"], attempts);
    run.answer(1, "www.example.com:80", "\u{3}");
    let record = record_of(&run.output());
    assert_eq!(record["outcome"]["name"], "SIGINT", "{record:#}");
    for connection in record["network"]["connections"].as_array().unwrap() {
        assert_ne!(connection["verdict"], "allowed", "{record:#}");
    }
}

/// Connects while it writes what looks like questions and answers, and then tells what it was given to read.
const SPOOFS: &str = r#"
import os, select
done = threading.Event()

def one():
    attempt("one", get, "www.example.com")
    done.set()

threading.Thread(target=one).start()
os.write(1, b"SPOOF [offleash] python3 wants www.example.com:80\no\n")
while not done.wait(0.01):
    os.write(1, b"SPOOF [offleash] python3 wants www.example.com:80\no\n")
given = os.read(0, 100) if select.select([0], [], [], 0.2)[0] else b""
os.write(1, b"GIVEN %r\n" % given)
"#;

#[test]
fn pitfall_a_command_neither_answers_nor_covers_a_question() {
    let Some(world) = world() else { return };
    for tty in [&[][..], &["-t"]] {
        let site = Site::new();
        let mut terminal = Terminal::new(24, 200);
        let text = format!("{}{SPOOFS}print(json.dumps(results))\n", crate::world::CLIENT);
        let mut arguments = vec!["run", "--quiet", "--ask", "www.example.com"];
        arguments.extend_from_slice(tty);
        arguments.extend_from_slice(&["--", "/usr/bin/python3", "-I", "-S", "-c", &text]);
        let mut child = terminal.start(&mut World::in_session(&world.offleash(&site, &arguments), true));
        let question = "[offleash] python3 wants www.example.com:80 ";
        terminal.wait_for(question);
        // What a terminal answers to a command that asked for its state is no answer, nor is what only looks like one.
        for (count, keys) in [(1, "\u{1b}[24;80R\n"), (2, "\u{1b}[24;80Ro\n"), (3, "yes\n"), (4, "\n")] {
            terminal.type_keys(keys.as_bytes());
            crate::support::processes::eventually("the question is put again", || {
                (terminal.screen().matches("please answer").count() == count).then_some(())
            });
        }
        let screen = terminal.screen();
        let (_, since) = screen.split_once(question).unwrap();
        assert!(!since.contains("SPOOF"), "{tty:?}: {screen:?}");
        terminal.type_keys(b"d\n");
        let screen = terminal.wait_for("GIVEN ");
        assert!(wait(&mut child).success(), "{screen}");
        let screen = terminal.wait_for("\"refused\"");
        assert!(screen.contains("GIVEN b''"), "{tty:?}: {screen:?}");
        assert!(screen.contains("SPOOF"), "the control: it wrote all the time");
    }
}

#[test]
fn keys_go_to_a_question_and_then_to_the_command_again() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let mut terminal = Terminal::new(24, 200);
    let before = terminal.settings();
    // Hides what follows, and begins a string that has no end.
    let attempts = r#"
import os
os.write(1, b"\033[8m\033]0;")
sys.stdin.readline()
attempt("one", get, "www.example.com")
os.write(1, b"READY %s\n" % results["one"].get("done", "refused").split("\n")[0].encode())
os.write(1, b"READ %r\n" % sys.stdin.readline())
"#;
    let text = format!("{}{attempts}", crate::world::CLIENT);
    let arguments = [
        "run",
        "-q",
        "-t",
        "--ask",
        "www.example.com",
        "--",
        "/usr/bin/python3",
        "-I",
        "-S",
        "-c",
        &text,
    ];
    let mut child = terminal.start(&mut World::in_session(&world.offleash(&site, &arguments), true));
    // What the command writes and what it connects to come by different ways: only what was shown is before the question.
    terminal.wait_for("\u{1b}]0;");
    terminal.type_keys(b"\r");
    let screen = terminal.wait_for("wants www.example.com:80 ");
    let (hidden, shown) = screen.split_once("\u{1b}]0;").unwrap();
    assert!(hidden.contains("\u{1b}[8m"), "{screen:?}");
    assert!(
        // The echo of the key comes first.
        shown.trim_start().starts_with("\u{18}\u{1b}\\") && shown.contains("\u{1b}[0m\r\n"),
        "{screen:?}"
    );
    terminal.type_keys(b"o\n");
    terminal.wait_for("READY HTTP/1.1 200 OK");
    terminal.type_keys(b"words\r");
    terminal.wait_for("READ 'words\\n'");
    assert!(wait(&mut child).success(), "{}", terminal.screen());
    let after = terminal.settings();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
}

#[test]
fn always_is_written_to_the_policy_that_was_named_and_holds_from_then_on() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let policy = site.root().join("policy.toml");
    let text = "# mine\n[network] # reach\nask = [\"www.example.com\"] # both ports\n";
    std::fs::write(&policy, text).unwrap();
    let flags = ["--policy", policy.to_str().unwrap()];
    let mut run = AtTerminal::start(world, &flags, TWICE);
    run.answer(1, "www.example.com:80", "a\n");
    run.terminal.wait_for("written to `");
    let seen = run.end();
    seen.all_done();
    assert_eq!(
        asked(&seen, "www.example.com"),
        [("always", "allowed"), ("always", "allowed")]
    );
    assert_eq!(
        std::fs::read_to_string(&policy).unwrap(),
        "# mine\n[network] # reach\nask = [\"www.example.com:443\"] # both ports\nallow = [\"www.example.com:80\"]\n"
    );
    let later = without_terminal(world, &flags, TWICE);
    later.all_done();
    assert!(later.connections("www.example.com")[0]["asked"].is_null());
}

#[test]
fn always_is_not_offered_without_a_policy_to_write_it_to() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let (policy, link) = (site.root().join("policy.toml"), site.root().join("link.toml"));
    std::fs::write(&policy, "[network]\nask = [\"www.example.com\"]\n").unwrap();
    std::os::unix::fs::symlink(&policy, &link).unwrap();
    for flags in [["--ask", "www.example.com"], ["--policy", link.to_str().unwrap()]] {
        let mut run = AtTerminal::start(world, &flags, TWICE);
        run.answer(1, "www.example.com:80", "a\n");
        let screen = run.terminal.wait_for("there is no policy to write it to");
        assert!(!screen.contains("(a)lways"), "{screen}");
        run.terminal.type_keys(b"r\n");
        run.end().all_done();
    }
    assert_eq!(
        std::fs::read_to_string(&policy).unwrap(),
        "[network]\nask = [\"www.example.com\"]\n"
    );
}

#[test]
fn always_is_not_written_to_a_policy_that_changed_meanwhile() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let policy = site.root().join("policy.toml");
    std::fs::write(&policy, "[network]\nask = [\"www.example.com\"]\n").unwrap();
    let mut run = AtTerminal::start(world, &["--policy", policy.to_str().unwrap()], TWICE);
    run.terminal.wait_for("(a)lways");
    let changed = "[network]\nask = [\"www.example.com\"]\ndeny = [\"api.example.com\"]\n";
    std::fs::write(&policy, changed).unwrap();
    run.answer(1, "www.example.com:80", "a\n");
    run.terminal.wait_for("allowed for this run only");
    let seen = run.end();
    seen.all_done();
    assert_eq!(asked(&seen, "www.example.com")[0], ("run", "allowed"));
    assert_eq!(std::fs::read_to_string(&policy).unwrap(), changed);
}
