//! Interpreters of scripts, which a worker is handed as files: looked for where the owner keeps them, and made by a process of
//! ours that nothing of a tenant reaches. A worker says which one it needs, and nothing of what is in it.

use offleash_isolation::sandbox::DescriptorInterest;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use crate::engine::{InterpreterStore, InterpreterStoreMaker, ScriptLanguage};
use crate::worker_process::WorkerProcess;

/// How much is said of why one was not made.
const MAX_REASON: usize = 300;

/// Where the interpreters of a sandbox are kept.
#[derive(Debug, Clone)]
pub(crate) struct InterpreterPlace {
    pub(crate) make: InterpreterStoreMaker,
    /// The state directory.
    pub(crate) state: PathBuf,
}

impl InterpreterPlace {
    /// Those of one worker.
    pub(crate) fn open(place: Option<&Self>) -> Interpreters {
        Interpreters::new(place.map(|Self { make, state }| make(state)))
    }
}

/// The interpreters of one worker.
#[derive(Debug)]
pub(crate) struct Interpreters {
    store: Option<Box<dyn InterpreterStore>>,
    making: Option<InterpreterMaking>,
}

/// One that is being made.
#[derive(Debug)]
struct InterpreterMaking {
    language: ScriptLanguage,
    process: WorkerProcess,
}

/// What became of asking for one.
#[derive(Debug)]
pub(crate) enum InterpreterTurn {
    /// Its file.
    Here(OwnedFd),
    /// There is none, and why.
    NotHere(String),
    /// It is being made.
    Later,
}

impl Interpreters {
    pub(crate) fn new(store: Option<Box<dyn InterpreterStore>>) -> Self {
        Self { store, making: None }
    }

    /// Looks for one, and has it made if it is not there.
    pub(crate) fn ask(&mut self, language: ScriptLanguage) -> InterpreterTurn {
        let Some(store) = &mut self.store else {
            return InterpreterTurn::NotHere("this build has none (feature `wasm`)".to_owned());
        };
        if let Some(file) = store.find(language) {
            return InterpreterTurn::Here(file);
        }
        match WorkerProcess::start_maker(&store.maker(language)) {
            Ok(process) => {
                self.making = Some(InterpreterMaking { language, process });
                InterpreterTurn::Later
            }
            Err(error) => InterpreterTurn::NotHere(format!("compiling it cannot start: {error}")),
        }
    }

    pub(crate) fn is_making(&self) -> bool {
        self.making.is_some()
    }

    pub(crate) fn wait_on(&self) -> Option<DescriptorInterest<'_>> {
        self.making.as_ref().map(|making| DescriptorInterest {
            descriptor: making.process.pidfd.as_fd(),
            writable: false,
        })
    }

    /// What became of one that was being made, once.
    ///
    /// # Errors
    /// When the kernel does not know of its process any more.
    pub(crate) fn turn(&mut self) -> io::Result<Option<InterpreterTurn>> {
        let Some(making) = self.making.take_if(|making| making.process.has_ended()) else {
            return Ok(None);
        };
        let InterpreterMaking { language, mut process } = making;
        let end = process.end()?;
        if let Some(file) = self.store.as_mut().and_then(|store| store.find(language)) {
            return Ok(Some(InterpreterTurn::Here(file)));
        }
        let said = end.map(|end| end.complaint).unwrap_or_default();
        let said: String = said.trim().chars().take(MAX_REASON).collect();
        Ok(Some(InterpreterTurn::NotHere(match said.as_str() {
            "" => "compiling it ended without it".to_owned(),
            said => format!("compiling it failed: {said}"),
        })))
    }
}
