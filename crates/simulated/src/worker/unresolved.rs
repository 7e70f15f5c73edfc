//! Commands that the engine does not have.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use offleash_bashkit::{Builtin, BuiltinContext, CommandResolver, ExecResult};

use crate::engine::{EngineHost, ProgramPlace, ProgramRequest, Shortfall, ShortfallKind};
use crate::wire::{ByteWord, MAX_PROGRAM_BYTES, ShellCommand};

/// What a shell answers of a file that it found and cannot execute.
const EXIT_NOT_EXECUTABLE: i32 = 126;
/// How many different ones are remembered; the supervisor keeps fewer.
const MAX_NOTED: usize = 1000;

/// What was not carried out so far.
#[derive(Debug, Default)]
pub(super) struct Noted(Mutex<Vec<Shortfall>>);

impl Noted {
    pub(super) fn note(&self, kind: ShortfallKind, what: impl Into<String>) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < MAX_NOTED {
            noted.push(Shortfall {
                kind,
                what: what.into(),
            });
        }
    }

    pub(super) fn take(&self) -> Vec<Shortfall> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Commands of the engine that say that it is done, and do not do it: owners stay, and nobody waits for a lock.
const GESTURES: [&str; 3] = ["chgrp", "chown", "flock"];

/// Answers for programs that a level with processes would have.
pub(super) struct ProgramsElsewhere {
    pub(super) host: Arc<dyn EngineHost>,
    pub(super) noted: Arc<Noted>,
}

impl ProgramsElsewhere {
    /// Commands that stand in for those of the engine, by name.
    pub(super) fn in_place_of_gestures(&self) -> impl Iterator<Item = (&'static str, Box<dyn Builtin>)> {
        GESTURES.into_iter().map(|name| {
            let command: Box<dyn Builtin> = Box::new(self.elsewhere(name, None));
            (name, command)
        })
    }

    fn elsewhere(&self, name: &str, can_be_run: Option<bool>) -> ProgramElsewhere {
        ProgramElsewhere {
            name: name.to_owned(),
            can_be_run,
            host: self.host.clone(),
            noted: self.noted.clone(),
        }
    }
}

impl CommandResolver for ProgramsElsewhere {
    fn resolve(&self, name: &str) -> Option<Arc<dyn Builtin>> {
        match self.host.find_program(name) {
            ProgramPlace::Nowhere => None,
            ProgramPlace::OutOfReach => Some(Arc::new(self.elsewhere(name, Some(false)))),
            ProgramPlace::NextLevel => Some(Arc::new(self.elsewhere(name, Some(true)))),
        }
    }
}

struct ProgramElsewhere {
    name: String,
    /// Whether the next level runs it; asked when it is called where that is not known.
    can_be_run: Option<bool>,
    host: Arc<dyn EngineHost>,
    noted: Arc<Noted>,
}

impl ProgramElsewhere {
    /// Runs it at the next level; `None` where that cannot be told what it needs.
    fn run(&self, context: &BuiltinContext<'_>) -> Option<ExecResult> {
        let word = |text: &str| ByteWord(text.as_bytes().to_vec());
        let input = context.stdin.map(|input| input.as_bytes().to_vec()).unwrap_or_default();
        if input.len() > MAX_PROGRAM_BYTES {
            let what = format!("more than {MAX_PROGRAM_BYTES} bytes of input for a program of level process");
            let line = format!("bash: {}: limit: {what}\n", self.name);
            self.noted.note(ShortfallKind::Limit, what);
            return Some(ExecResult::err(line, EXIT_NOT_EXECUTABLE));
        }
        let words = std::iter::once(self.name.as_str()).chain(context.args.iter().map(String::as_str));
        let run = self.host.run_program(ProgramRequest {
            command: ShellCommand {
                argv: words.map(word).collect(),
                env: context
                    .env
                    .iter()
                    .map(|(name, value)| (word(name), word(value)))
                    .collect(),
                cwd: word(context.cwd.to_str()?),
            },
            input,
        })?;
        let kind = match run.has_run {
            true => ShortfallKind::RanAtProcess,
            false => ShortfallKind::NeedsProcess,
        };
        self.noted.note(kind, &self.name);
        let mut result = ExecResult::ok_bytes(run.stdout);
        result.stderr = run.stderr.into();
        result.exit_code = i32::from(run.status);
        Some(result)
    }
}

#[async_trait]
impl Builtin for ProgramElsewhere {
    async fn execute(&self, context: BuiltinContext<'_>) -> offleash_bashkit::Result<ExecResult> {
        let at_next_level = || matches!(self.host.find_program(&self.name), ProgramPlace::NextLevel);
        if let Some(result) = self
            .can_be_run
            .unwrap_or_else(at_next_level)
            .then(|| self.run(&context))
            .flatten()
        {
            return Ok(result);
        }
        self.noted.note(ShortfallKind::NeedsProcess, &self.name);
        let line = format!(
            "bash: {}: needs level process: it is a program, and this level has none\n",
            self.name
        );
        Ok(ExecResult::err(line, EXIT_NOT_EXECUTABLE))
    }
}
