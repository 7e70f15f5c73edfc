//! `offleash template-builder`: builds a template for a daemon. Nobody calls it by hand, so no help names it.

use std::io::{self, Read as _};
use std::process::ExitCode;

use offleash_core::template::TemplateName;
use offleash_manager::lifecycle::open_state;
use offleash_manager::templates::{self, BuildOrder, Progress, TemplateError};
use serde_json::json;

use crate::failure::{EXIT_FAILURE, Failure};
use crate::serve::write_line;

/// Reads an order on standard input and carries it out; how that goes on stands in the daemon's log.
pub(crate) fn builder() -> ExitCode {
    let order = match read_order() {
        Ok(order) => order,
        Err(failure) => return failure.print(),
    };
    let mut told = Told(order.name.clone());
    told.tell("info", &format!("built on first use: {}", order.recipe.summary()));
    let built = open_state(Some(order.state.as_path()))
        .map_err(Failure::from)
        .and_then(|state| templates::build(&state, &order.request(), &mut told).map_err(|error| told.failed(error)));
    match built {
        Ok(record) => {
            told.tell(
                "info",
                &format!("built: {} bytes in {} files", record.bytes, record.files),
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            told.tell("error", &failure.to_string());
            ExitCode::from(EXIT_FAILURE)
        }
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

/// Lines in the log of a daemon.
struct Told(TemplateName);

impl Told {
    fn tell(&self, level: &str, line: &str) {
        write_line(json!({ "level": level, "event": "template", "template": self.0.as_str(), "told": line }));
    }

    /// What the step said last stands before why it failed.
    fn failed(&self, error: TemplateError) -> Failure {
        if let TemplateError::Step { last_lines, .. } = &error {
            last_lines.iter().for_each(|line| self.tell("error", line));
        }
        Failure::from(error)
    }
}

impl Progress for Told {
    fn step(&mut self, number: usize, of: usize, title: &str) {
        self.tell("info", &format!("[{number}/{of}] {title}"));
    }

    fn line(&mut self, _line: &str) {}

    fn idle(&mut self) {}
}
