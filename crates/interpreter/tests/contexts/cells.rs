//! Cells of Python in processes of this machine, and what comes of them.

use std::time::Duration;

use offleash_core::exec::OutputStream;
use offleash_interpreter::cell::{Cell, CellEnd, CellEvent};
use offleash_interpreter::contexts::Contexts;
use offleash_interpreter::language::Language;
use offleash_interpreter::limits::CellLimits;
use offleash_interpreter::result::ResultForm;
use tokio::sync::mpsc::Receiver;

use crate::local::Local;

/// Longer than anything here takes, on a machine that does something else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn patient() -> CellLimits {
    CellLimits {
        grace: TIMEOUT,
        start: TIMEOUT,
        answer: TIMEOUT,
        ..CellLimits::default()
    }
}

pub(crate) fn cell(code: &str) -> Cell {
    Cell {
        code: code.to_owned(),
        ..Cell::default()
    }
}

/// What came of a cell.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) text: Option<String>,
    pub(crate) omitted: Vec<String>,
    pub(crate) errors: Vec<String>,
    pub(crate) truncated: bool,
    pub(crate) count: u64,
    pub(crate) end: Option<CellEnd>,
}

pub(crate) async fn outcome(events: &mut Receiver<CellEvent>) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some(event) = tokio::time::timeout(TIMEOUT, events.recv()).await.unwrap() {
        assert_eq!(outcome.end, None, "nothing follows the end: {event:?}");
        match event {
            CellEvent::Begin { count } => outcome.count = count,
            CellEvent::Output {
                stream: OutputStream::Stdout,
                text,
                ..
            } => outcome.stdout.push_str(&text),
            CellEvent::Output { .. } | CellEvent::ResultsTruncated { .. } => {}
            CellEvent::OutputTruncated { .. } => outcome.truncated = true,
            CellEvent::Error(error) => outcome.errors.push(error.name),
            CellEvent::End(end) => outcome.end = Some(end),
            CellEvent::Result(result) => {
                outcome.omitted.extend(result.omitted.into_keys());
                if let (true, Some(ResultForm::Text(text))) = (result.is_main, result.forms.get("text/plain")) {
                    outcome.text = Some(text.clone());
                }
            }
        }
    }
    outcome
}

pub(crate) async fn begin(contexts: &Contexts<Local>, cell: Cell) -> Receiver<CellEvent> {
    contexts.execute_in_default(Language::Python, cell).await.unwrap()
}

pub(crate) async fn run(contexts: &Contexts<Local>, code: &str) -> Outcome {
    outcome(&mut begin(contexts, cell(code)).await).await
}

/// Waits until a cell has written something.
pub(crate) async fn first_output(events: &mut Receiver<CellEvent>) {
    loop {
        match tokio::time::timeout(TIMEOUT, events.recv()).await.unwrap().unwrap() {
            CellEvent::Output { .. } => return,
            CellEvent::Begin { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn contexts(limits: CellLimits) -> Contexts<Local> {
    Contexts::new(Local::default(), limits)
}
