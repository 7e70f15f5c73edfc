//! Cells of code, whichever door they come through: begun in one place, and what happens to them rendered once.
//!
//! [`RenderedEvent`] is the one model. E2B's code interpreter, the native REST and the tools of agent hosts write their own
//! form from it, and look at no event of the interpreter themselves.

mod event;
mod refusal;
mod stream;

use offleash_daemon::SandboxContexts;
use offleash_interpreter::cell::{Cell, CellEvent};
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use tokio::sync::mpsc::Receiver;

pub(crate) use self::event::{CellOutcome, RenderedEnd, RenderedEvent, TruncatedPart};
pub(crate) use self::refusal::context_refusal;
pub(crate) use self::stream::{CellDialect, CellLines, NDJSON, streamed};

/// What the body of a cell may have: its code may have 16 MiB, and JSON writes some characters longer.
pub(crate) const MAX_CELL_BODY: usize = 32 * 1024 * 1024;

/// Where a cell runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellTarget<'a> {
    /// In the context of this id.
    Context(&'a str),
    /// In the default context of a language, which is made if it is not there.
    Default(Language),
}

/// The events of a cell as they come. Dropping it interrupts the cell.
#[derive(Debug)]
pub(crate) struct CellEvents {
    receiver: Receiver<CellEvent>,
}

impl CellEvents {
    /// Begins a cell.
    ///
    /// # Errors
    /// When there is no such context, or the cell cannot be run in it.
    pub(crate) async fn begin(
        contexts: &SandboxContexts,
        target: CellTarget<'_>,
        cell: Cell,
    ) -> Result<Self, ContextError> {
        let receiver = match target {
            CellTarget::Context(id) => contexts.execute(id, cell).await?,
            CellTarget::Default(language) => contexts.execute_in_default(language, cell).await?,
        };
        Ok(Self { receiver })
    }

    /// The next event; `None` when what runs cells is gone before it told of an end.
    pub(crate) async fn next(&mut self) -> Option<RenderedEvent> {
        self.receiver.recv().await.map(RenderedEvent::from)
    }
}

/// The language of that name; Python if absent.
///
/// # Errors
/// When there is no such language.
pub(crate) fn language(name: Option<&str>) -> Result<Language, ContextError> {
    let name = name.unwrap_or(Language::Python.name());
    Language::parse(name).ok_or_else(|| ContextError::Language {
        name: name.chars().take(60).collect(),
    })
}
