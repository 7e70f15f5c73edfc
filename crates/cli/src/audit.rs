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
            terminal::print(format!("{} lines, unbroken\n", report.lines).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Some(bad) => {
            let broken = Failure::new(format!("the audit log is broken at line {}: {}", bad.line, bad.why)).with_hint(
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

fn show(audit: &AuditLog) -> Result<ExitCode, Failure> {
    let mut out = Vec::new();
    for line in audit.show()? {
        out.extend(terminal::json_line(&line?)?);
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
