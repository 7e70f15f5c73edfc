//! `offleash audit`.

use std::path::Path;
use std::process::ExitCode;

use offleash_core::text::Text;
use offleash_store::AuditLog;
use offleash_supervisor::lifecycle::open_existing_state;

use crate::args::{AuditAction, AuditArgs};
use crate::failure::Failure;
use crate::terminal;

/// The log was changed.
const EXIT_CHANGED: u8 = 1;
/// What is said of a log in which nothing was ever written.
const NO_LINES: &[u8] = b"0 lines, unbroken\n";

pub(crate) fn audit(arguments: &AuditArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    // A directory that is mistyped must not pass for a log without a fault.
    let audit = open_existing_state(state)?.map(|state| AuditLog::new(&state));
    match (arguments.action, audit) {
        (AuditAction::Verify, Some(audit)) => verify(&audit),
        (AuditAction::Show, Some(audit)) => show(&audit),
        (AuditAction::Rotate, Some(audit)) => rotate(&audit),
        (AuditAction::Rotate, None) => Err(nothing_to_rotate()),
        (AuditAction::Verify, None) => {
            terminal::print(NO_LINES)?;
            Ok(ExitCode::SUCCESS)
        }
        (AuditAction::Show, None) => Ok(ExitCode::SUCCESS),
    }
}

fn verify(audit: &AuditLog) -> Result<ExitCode, Failure> {
    let report = audit.verify()?;
    match &report.first_bad {
        None => {
            let elsewhere = match report.moved_away {
                0 => String::new(),
                lines => format!("; {lines} before them are not here"),
            };
            // Nobody who removed the log is to be told that it is whole.
            let goes_on = match report.is_archive {
                true => "; they were set aside, and neither the log that goes on after them nor `audit.head` is here",
                false => "",
            };
            terminal::print(format!("{} lines, unbroken{elsewhere}{goes_on}\n", report.lines).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Some(bad) => {
            let of = bad
                .file
                .as_ref()
                .map_or_else(String::new, |file| format!(" of `{}`", Text::from(file.as_str())));
            let broken = Failure::new(format!("the audit log is broken at line {}{of}: {}", bad.line, bad.why)).with_hint(
                format!(
                    "trust nothing from that line on; a new log begins when `{}` and the `audit.head` beside it are moved \
                     away",
                    Text::from(&audit.path())
                ),
            );
            terminal::complain(&broken.to_string());
            Ok(ExitCode::from(EXIT_CHANGED))
        }
    }
}

/// Prints where the log is now.
fn rotate(audit: &AuditLog) -> Result<ExitCode, Failure> {
    let aside = audit.rotate()?.ok_or_else(nothing_to_rotate)?;
    terminal::print(format!("{}\n", Text::from(&aside)).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_to_rotate() -> Failure {
    Failure::new("there is no audit log yet")
}

fn show(audit: &AuditLog) -> Result<ExitCode, Failure> {
    let mut out = Vec::new();
    for line in audit.show()? {
        out.extend(terminal::json_line(&line?)?);
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
