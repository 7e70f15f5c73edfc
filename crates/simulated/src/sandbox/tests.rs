//! The supervisor's end of a worker, beside one whose part a test plays.

use std::cell::RefCell;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, OutputStream, Stdin};
use offleash_isolation::sandbox::{EnforcementReport, Sandbox as _, SandboxEvent};
use offleash_protocol::{MessageDecoder, encode};

use super::{MAX_ANSWERED, MAX_OUTPUT, MAX_UNSENT, SimulatedSandbox, TAKE_TIMEOUT};
use crate::backend::SHELL;
use crate::code::CodeOfFiles;
use crate::engine::ScriptLanguage;
use crate::fixture::{PlanFixture, WORKSPACE};
use crate::interpreters::Interpreters;
use crate::next_level::NextLevel;
use crate::served::ServedTrees;
use crate::wire::{
    ByteWord, FileAnswer, FileOperation, FileRequest, FromWorker, InterpreterAnswer, MAX_INPUT, MAX_PIECE,
    ProgramPlace, ProgramRequest, ProgramRun, ShellCommand, ShellEnd, ShellOutcome, Shortfall, ShortfallKind, ToWorker,
    WorkerSetup, WorkerWalls,
};
use crate::worker_process::WorkerProcess;

/// A sandbox, and the worker's end of its socket.
struct Scripted {
    sandbox: SimulatedSandbox,
    worker: UnixStream,
    heard: MessageDecoder<ToWorker>,
    /// Of the program that runs, which does nothing.
    _program: Option<UnixStream>,
    fixture: PlanFixture,
}

/// Whether programs run at the next level.
enum Programs {
    OutOfReach,
    CanRun,
    /// One runs, in a sandbox whose worker the test plays as well.
    OneRuns,
}

fn setup(trees: &ServedTrees) -> WorkerSetup {
    WorkerSetup {
        memory: None,
        cpu_seconds: None,
        output: None,
        tmp: None,
        file_size: None,
        mounts: trees.mount_points(),
        user: "user".to_owned(),
        home: b"/home/user".to_vec(),
        hostname: "sandbox".to_owned(),
    }
}

fn sandbox(fixture: &PlanFixture, next_level: Option<NextLevel>) -> (SimulatedSandbox, UnixStream) {
    let (process, socket) = WorkerProcess::scripted().unwrap();
    let trees = ServedTrees::open(&fixture.plan).unwrap();
    let (limits, setup) = (fixture.plan.limits.clone(), setup(&trees));
    let (enforcement, code) = (EnforcementReport::default(), CodeOfFiles::new(None));
    let trees = Rc::new(RefCell::new(trees));
    let interpreters = Interpreters::new(None);
    let made = SimulatedSandbox::new(
        SHELL,
        process,
        trees,
        limits,
        enforcement,
        next_level,
        code,
        interpreters,
        &setup,
    );
    (made.unwrap(), socket.into())
}

fn request(stdin: Stdin) -> ExecRequest {
    ExecRequest {
        argv: vec!["true".into()],
        env: Vec::new(),
        cwd: WORKSPACE.into(),
        stdin,
        tty: None,
        user: None,
    }
}

impl Scripted {
    fn new(programs: &Programs) -> Self {
        let fixture = PlanFixture::new();
        let mut inner_worker = None;
        let next_level = match programs {
            Programs::OutOfReach => None,
            Programs::CanRun => Some(NextLevel::new(&fixture.plan)),
            Programs::OneRuns => {
                let (mut inner, program) = sandbox(&fixture, None);
                let exec = inner.exec(&request(Stdin::Null)).unwrap();
                let next_level = NextLevel::running_in(&fixture.plan, Box::new(inner), exec);
                inner_worker = Some(program);
                Some(next_level)
            }
        };
        let (sandbox, worker) = sandbox(&fixture, next_level);
        let mut scripted = Self {
            sandbox,
            worker,
            heard: MessageDecoder::new(),
            _program: inner_worker,
            fixture,
        };
        assert!(matches!(scripted.hear(), ToWorker::Setup(_)));
        scripted
    }

    /// One that carries a command out.
    fn busy(programs: &Programs) -> Self {
        let mut scripted = Self::new(programs);
        scripted.sandbox.exec(&request(Stdin::Null)).unwrap();
        assert!(matches!(scripted.hear(), ToWorker::Exec(_)));
        scripted
    }

    fn say(&mut self, message: &FromWorker) {
        self.worker.write_all(&encode(message).unwrap()).unwrap();
    }

    /// The next message for the worker, which is there.
    fn hear(&mut self) -> ToWorker {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if let Some(message) = self.heard.next().unwrap() {
                return message;
            }
            let count = self.worker.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the supervisor has closed the socket");
            self.heard.push(buffer.get(..count).unwrap());
        }
    }

    fn turn(&mut self) -> Vec<SandboxEvent> {
        self.sandbox.turn(true).unwrap()
    }

    /// What a question about files is answered.
    fn files(&mut self, path: &str, operation: FileOperation) -> FileAnswer {
        self.say(&files(path, operation));
        self.turn();
        match self.hear() {
            ToWorker::Files(answer) => answer,
            message => panic!("{message:?}"),
        }
    }

    /// What is on record at the end: subject, name, rule.
    fn record(&mut self) -> Vec<(String, String, String)> {
        let denials = self.sandbox.kill().unwrap().denials.into_iter();
        denials
            .map(|denial| (denial.subject, denial.name.to_string(), denial.rule))
            .collect()
    }

    /// Asserts that the worker was ended for what it did, and says with which words.
    fn assert_ended(&mut self, why: &str) {
        let events = self.turn();
        let said: Vec<u8> = events.iter().flat_map(output_of).collect();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains(why), "{said}");
        let ended = |event: &SandboxEvent| {
            matches!(
                event,
                SandboxEvent::Exec {
                    event: ExecEvent::Ended(ExecEnd::Signaled { signal: 9 }),
                    ..
                }
            )
        };
        assert!(events.iter().any(ended), "{events:?}");
        assert!(events.iter().any(|event| matches!(event, SandboxEvent::Gone)));
        assert!(self.sandbox.wait_on(true).is_empty(), "nothing more is read of it");
    }
}

fn files(path: &str, operation: FileOperation) -> FromWorker {
    FromWorker::Files(FileRequest {
        mount: 0,
        path: path.into(),
        operation,
    })
}

fn output_of(event: &SandboxEvent) -> Vec<u8> {
    match event {
        SandboxEvent::Exec {
            event: ExecEvent::Output { bytes, .. },
            ..
        } => bytes.clone(),
        _ => Vec::new(),
    }
}

fn ready() -> FromWorker {
    FromWorker::Ready(WorkerWalls {
        has_empty_root: true,
        has_landlock: true,
    })
}

fn program(name: &[u8]) -> FromWorker {
    FromWorker::Run(ProgramRequest {
        command: ShellCommand {
            argv: vec![ByteWord(name.to_vec())],
            env: Vec::new(),
            cwd: ByteWord(WORKSPACE.into()),
        },
        input: Vec::new(),
    })
}

fn ended(shortfalls: Vec<Shortfall>) -> FromWorker {
    FromWorker::Ended(ShellEnd {
        outcome: ShellOutcome::Exited(0),
        shortfalls,
    })
}

#[test]
fn a_worker_that_says_what_none_has_reason_to_say_is_ended() {
    let append = FileOperation::Append(b"x".to_vec());
    for (programs, said, why) in [
        (Programs::OutOfReach, vec![ready(), ready()], "no reason to say"),
        (
            Programs::OutOfReach,
            vec![FromWorker::Output {
                stream: OutputStream::Stdout,
                bytes: vec![0; MAX_PIECE + 1],
            }],
            "no reason to say",
        ),
        (
            Programs::OutOfReach,
            vec![program(b"ls")],
            "asks for a program, and has none",
        ),
        // Beside a program nothing is written into the layer, and no other is asked for.
        (Programs::OneRuns, vec![files("f", append)], "no reason to say"),
        (Programs::OneRuns, vec![program(b"ls")], "no reason to say"),
        (
            Programs::OneRuns,
            vec![FromWorker::Program("ls".to_owned())],
            "no reason to say",
        ),
        (Programs::OneRuns, vec![ended(Vec::new())], "no reason to say"),
    ] {
        let mut scripted = Scripted::busy(&programs);
        let bytes: Vec<u8> = said.iter().flat_map(|message| encode(message).unwrap()).collect();
        let mut worker = scripted.worker.try_clone().unwrap();
        // More than the socket takes at once is written while it is read.
        let writer = std::thread::spawn(move || worker.write_all(&bytes));
        let mut events = Vec::new();
        let until = Instant::now() + Duration::from_secs(20);
        while !scripted.sandbox.is_gone && Instant::now() < until {
            let told = scripted.sandbox.news(true).unwrap();
            events.extend(told);
        }
        let text: Vec<u8> = events.iter().flat_map(output_of).collect();
        assert!(String::from_utf8_lossy(&text).contains(why), "{said:?}");
        assert!(!scripted.fixture.upper().join("f").exists());
        drop(scripted);
        // It may have found nobody to take the rest.
        let _written = writer.join().unwrap();
    }
}

#[test]
fn a_worker_that_may_receive_no_file_is_told_that_there_is_no_interpreter() {
    for (has_empty_root, why) in [(false, "no empty root directory"), (true, "this build has none")] {
        let mut scripted = Scripted::busy(&Programs::OutOfReach);
        scripted.say(&FromWorker::Ready(WorkerWalls {
            has_empty_root,
            has_landlock: true,
        }));
        scripted.say(&FromWorker::Interpreter(ScriptLanguage::Python));
        scripted.turn();
        let told = scripted.hear();
        assert!(
            matches!(&told, ToWorker::Interpreter(InterpreterAnswer::NotHere { why: told }) if told.contains(why)),
            "{told:?}"
        );
    }
}

#[test]
fn output_is_passed_on_while_a_program_runs() {
    let mut scripted = Scripted::busy(&Programs::OneRuns);
    let (stream, bytes) = (OutputStream::Stderr, b"words".to_vec());
    scripted.say(&FromWorker::Output { stream, bytes });
    let said: Vec<u8> = scripted.turn().iter().flat_map(output_of).collect();
    assert_eq!(said, b"words");
}

#[test]
fn bytes_that_are_no_message_end_the_worker() {
    let mut scripted = Scripted::busy(&Programs::OutOfReach);
    scripted.worker.write_all(&[0xff; 64]).unwrap();
    scripted.assert_ended("the simulated shell was ended");
}

#[test]
fn a_worker_that_does_not_take_what_it_is_sent_keeps_nobody_waiting_and_is_ended() {
    let mut scripted = Scripted::new(&Programs::OutOfReach);
    let exec = scripted.sandbox.exec(&request(Stdin::Stream)).unwrap();
    let mut given = 0;
    while scripted.sandbox.input_window(exec) > 0 {
        let window = scripted.sandbox.input_window(exec);
        scripted.sandbox.input(exec, &vec![b'x'; window]).unwrap();
        given += window;
        assert!(given < 4 * MAX_UNSENT, "what waits is bounded");
    }
    let interests = scripted.sandbox.wait_on(true);
    assert!(interests.iter().any(|interest| interest.writable));
    drop(interests);
    assert!(scripted.sandbox.next_turn() <= Instant::now() + TAKE_TIMEOUT);
    scripted.sandbox.untaken_since = Instant::now().checked_sub(TAKE_TIMEOUT);
    scripted.assert_ended("does not take what it is sent");
}

#[test]
fn a_worker_that_takes_something_again_has_its_time_anew() {
    let mut scripted = Scripted::new(&Programs::OutOfReach);
    let exec = scripted.sandbox.exec(&request(Stdin::Stream)).unwrap();
    while scripted.sandbox.input_window(exec) > 0 {
        scripted.sandbox.input(exec, &[b'x'; 64 * 1024]).unwrap();
    }
    scripted.sandbox.untaken_since = Instant::now().checked_sub(TAKE_TIMEOUT);
    assert!(matches!(scripted.hear(), ToWorker::Input(_)));
    scripted.turn();
    assert!(!scripted.sandbox.is_gone);
}

#[test]
fn a_worker_that_is_gone_with_bytes_unsent_is_noticed() {
    let mut scripted = Scripted::new(&Programs::OutOfReach);
    let exec = scripted.sandbox.exec(&request(Stdin::Stream)).unwrap();
    while scripted.sandbox.input_window(exec) > 0 {
        scripted.sandbox.input(exec, &[b'x'; 64 * 1024]).unwrap();
    }
    let (other, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut scripted.worker, other));
    let events = scripted.turn();
    assert!(
        events.iter().any(|event| matches!(event, SandboxEvent::Gone)),
        "{events:?}"
    );
}

#[test]
fn input_beyond_its_bound_ends_the_command_and_is_on_record_as_the_supervisors_word() {
    let mut scripted = Scripted::new(&Programs::OutOfReach);
    let exec = scripted.sandbox.exec(&request(Stdin::Stream)).unwrap();
    scripted.sandbox.input(exec, &vec![0; MAX_INPUT + 1]).unwrap();
    let events = scripted.turn();
    let refused = |event: &SandboxEvent| {
        matches!(
            event,
            SandboxEvent::Exec {
                event: ExecEvent::Ended(ExecEnd::Exited { code: 1 }),
                ..
            }
        )
    };
    assert!(events.iter().any(refused));
    let record = scripted.record();
    assert_eq!(
        (record[0].0.as_str(), record[0].2.as_str()),
        ("limit", "limit of level simulated")
    );
}

#[test]
fn one_turn_takes_a_bounded_amount_of_output() {
    const PIECES: usize = 8;
    let mut scripted = Scripted::busy(&Programs::OutOfReach);
    let mut worker = scripted.worker.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let (stream, bytes) = (OutputStream::Stdout, vec![b'x'; MAX_PIECE]);
        let message = encode(&FromWorker::Output { stream, bytes }).unwrap();
        (0..PIECES).for_each(|_| worker.write_all(&message).unwrap());
    });
    let mut all = 0;
    while all < PIECES * MAX_PIECE {
        let taken: usize = scripted.turn().iter().map(|event| output_of(event).len()).sum();
        assert!(taken < MAX_OUTPUT + MAX_PIECE, "{taken}");
        all += taken;
    }
    writer.join().unwrap();
    assert_eq!(all, PIECES * MAX_PIECE);
}

#[test]
fn one_turn_answers_a_bounded_number_of_questions_and_says_that_more_wait() {
    let mut scripted = Scripted::busy(&Programs::OutOfReach);
    let question = encode(&FromWorker::Program("none-of-that-name".to_owned())).unwrap();
    scripted.worker.write_all(&question.repeat(MAX_ANSWERED + 1)).unwrap();
    scripted.turn();
    assert!(scripted.sandbox.next_turn() <= Instant::now());
    scripted.turn();
    for _ in 0..=MAX_ANSWERED {
        assert_eq!(scripted.hear(), ToWorker::Program(ProgramPlace::Nowhere));
    }
}

#[test]
fn what_the_shell_says_of_programs_counts_only_for_those_that_it_was_refused() {
    let mut scripted = Scripted::busy(&Programs::OutOfReach);
    scripted.say(&FromWorker::Program("ls".to_owned()));
    scripted.turn();
    assert_eq!(scripted.hear(), ToWorker::Program(ProgramPlace::OutOfReach));
    let said = [
        (ShortfallKind::NeedsProcess, "ls"),
        (ShortfallKind::NeedsProcess, "cat"),
        (ShortfallKind::RanAtProcess, "rm"),
        (ShortfallKind::Limit, "forged"),
    ];
    let said = said.map(|(kind, what)| Shortfall {
        kind,
        what: what.to_owned(),
    });
    scripted.say(&ended(said.to_vec()));
    scripted.turn();
    let record = scripted.record();
    let line = |subject: &str, name: &str, rule: &str| (subject.to_owned(), name.to_owned(), rule.to_owned());
    assert_eq!(
        record,
        [
            line("limit", "forged", "limit of the simulated shell, by its own word"),
            line("command", "ls", "needs level process")
        ]
    );
}

#[test]
fn a_program_for_which_there_is_no_sandbox_is_answered_and_does_not_count_as_one_that_ran() {
    let mut scripted = Scripted::busy(&Programs::CanRun);
    let mut asked = program(b"ls");
    if let FromWorker::Run(request) = &mut asked {
        request.input = vec![0; crate::wire::MAX_PROGRAM_BYTES + 1];
    }
    let mut worker = scripted.worker.try_clone().unwrap();
    let writer = std::thread::spawn(move || worker.write_all(&encode(&asked).unwrap()).unwrap());
    let answered = |scripted: &mut Scripted| {
        let until = Instant::now() + Duration::from_secs(20);
        while scripted.sandbox.account.denials().is_empty() && Instant::now() < until {
            scripted.turn();
            scripted.sandbox.account.hear(vec![Shortfall {
                kind: ShortfallKind::NeedsProcess,
                what: "ls".to_owned(),
            }]);
        }
        scripted.hear()
    };
    let ToWorker::Ran(ProgramRun { has_run, status, .. }) = answered(&mut scripted) else {
        panic!("it is answered")
    };
    assert_eq!((has_run, status), (false, 126));
    writer.join().unwrap();
    let rules: Vec<String> = scripted.record().into_iter().map(|line| line.2).collect();
    assert_eq!(rules, ["needs level process"]);
}

#[test]
fn files_are_served_of_the_trees_that_there_are() {
    let mut scripted = Scripted::busy(&Programs::OutOfReach);
    fs::write(scripted.fixture.lower().join("f"), "old").unwrap();
    assert_eq!(
        scripted.files("f", FileOperation::Append(b"new".to_vec())),
        FileAnswer::Done
    );
    assert_eq!(fs::read(scripted.fixture.upper().join("f")).unwrap(), b"oldnew");
    scripted.say(&FromWorker::Files(FileRequest {
        mount: 1,
        path: b"f".to_vec(),
        operation: FileOperation::Stat,
    }));
    scripted.turn();
    assert!(matches!(scripted.hear(), ToWorker::Files(FileAnswer::Failed { .. })));
}
