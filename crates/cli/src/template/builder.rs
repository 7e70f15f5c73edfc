//! `offleash template-builder`: builds a template for a daemon. Nobody calls it by hand, so no help names it.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use offleash_store::{StateDirectory, TemplateRecord};
use offleash_supervisor::builds::{self, BuildOrder, InstructionBuild, InstructionOrder};
use offleash_supervisor::lifecycle::open_state;
use offleash_supervisor::templates::{self, BuildEvent, Progress, TemplateError};

use crate::failure::{EXIT_FAILURE, Failure};
use crate::terminal;

/// Reads an order on standard input and carries it out; how that goes on it tells the daemon on standard output.
pub(crate) fn builder() -> ExitCode {
    let ended = match read_order().and_then(|order| carry_out(&order)) {
        Ok(built) => built,
        Err(failure) => failed(&failure, Vec::new(), None),
    };
    let is_built = matches!(ended, BuildEvent::Built { .. });
    tell(&ended);
    if is_built {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILURE)
    }
}

fn read_order() -> Result<BuildOrder, Failure> {
    let mut text = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut text);
    read.map_err(|error| Failure::new(format!("cannot read the order on standard input: {error}")))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::new(format!("the order on standard input cannot be understood: {error}"))
            .with_hint("`offleash serve` starts builders; use `offleash template build`")
    })
}

fn carry_out(order: &BuildOrder) -> Result<BuildEvent, Failure> {
    let state = open_state(Some(order.state.as_path()))?;
    let built = match &order.instructions {
        Some(instructions) => build_instructions(&state, order, instructions),
        None => templates::build(&state, &order.request(), &mut Told::default()),
    };
    let built = match built {
        Ok(record) => BuildEvent::Built {
            bytes: record.bytes,
            files: record.files,
        },
        Err(mut error) => {
            let last_lines = match &mut error {
                TemplateError::Step { last_lines, .. } => std::mem::take(last_lines),
                _ => Vec::new(),
            };
            let shown = error.shown();
            failed(&Failure::from(error), last_lines, shown)
        }
    };
    Ok(built)
}

/// Builds what a client of the API asked for.
fn build_instructions(
    state: &StateDirectory,
    order: &BuildOrder,
    instructions: &InstructionOrder,
) -> Result<TemplateRecord, TemplateError> {
    let mut told = ToldWhole {
        of: Vec::new(),
        count: instructions.instructions.len(),
    };
    told.begin(0, &format!("FROM {}", instructions.base));
    let InstructionBuild { build, of } = builds::of_instructions(state, &order.name, instructions)?;
    told.of = of;
    builds::build(state, &build, &mut told)
}

fn failed(failure: &Failure, last_lines: Vec<String>, shown: Option<String>) -> BuildEvent {
    let told = failure.to_string();
    BuildEvent::Failed {
        last_lines,
        told,
        shown,
    }
}

/// A daemon that is gone takes its builder with it.
fn tell(event: &BuildEvent) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let _told = terminal::print(&line);
    }
}

/// How often a line is told at most, and how much of it: who watches sees the latest one.
const TOLD_EVERY: Duration = Duration::from_millis(100);
const MAX_LENGTH: usize = 200;

/// What a build is told to, for the daemon.
#[derive(Default)]
struct Told(Option<Instant>);

impl Progress for Told {
    fn step(&mut self, number: usize, of: usize, title: &str) {
        let title = title.to_owned();
        tell(&BuildEvent::Step { number, of, title });
    }

    fn note(&mut self, told: &str) {
        let told = told.to_owned();
        tell(&BuildEvent::Note { told });
    }

    fn line(&mut self, line: &str) {
        let is_soon = self.0.is_some_and(|told| told.elapsed() < TOLD_EVERY);
        // The build is not held up by a daemon that does not listen.
        if is_soon || !terminal::takes_output() {
            return;
        }
        self.0 = Some(Instant::now());
        let line = line.chars().take(MAX_LENGTH).collect();
        tell(&BuildEvent::Line { line });
    }

    fn left_out(&mut self, packages: &str, why: &str) {
        let (packages, why) = (packages.to_owned(), why.to_owned());
        tell(&BuildEvent::LeftOut { packages, why });
    }

    fn idle(&mut self) {}
}

/// The longest line that is told of a build whose log is kept.
const MAX_LINE: usize = 2_000;

/// What a build of instructions is told to, for whoever reads its log: every line, by the instruction that it is of.
struct ToldWhole {
    of: Vec<usize>,
    count: usize,
}

impl ToldWhole {
    fn begin(&self, number: usize, title: &str) {
        let (of, title) = (self.count, title.to_owned());
        tell(&BuildEvent::Step { number, of, title });
    }
}

impl Progress for ToldWhole {
    fn step(&mut self, number: usize, _of: usize, title: &str) {
        let instruction = number.checked_sub(1).and_then(|index| self.of.get(index));
        self.begin(instruction.copied().unwrap_or(self.count), title);
    }

    fn note(&mut self, told: &str) {
        let told = told.to_owned();
        tell(&BuildEvent::Note { told });
    }

    fn line(&mut self, line: &str) {
        let line = line.chars().take(MAX_LINE).collect();
        tell(&BuildEvent::Line { line });
    }

    fn left_out(&mut self, packages: &str, why: &str) {
        let (packages, why) = (packages.to_owned(), why.to_owned());
        tell(&BuildEvent::LeftOut { packages, why });
    }

    fn idle(&mut self) {}
}
