//! `offleash audit`.

use std::path::Path;
use std::process::ExitCode;

use offleash_core::text::Text;
use offleash_manager::lifecycle::open_state;
use offleash_store::Audit;

use crate::args::{AuditAction, AuditArgs};
use crate::failure::Failure;
use crate::terminal;

/// The log was changed.
const EXIT_CHANGED: u8 = 1;

pub(crate) fn audit(arguments: &AuditArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    // A directory that is mistyped must not pass for a log without a fault.
    if let Some(directory) = state.filter(|directory| !directory.exists()) {
        let what = format!("the state directory `{}` does not exist", Text::from(directory));
        return Err(Failure::new(what).with_hint("name the one that the runs had, with `--state` or OFFLEASH_STATE"));
    }
    let audit = Audit::new(&open_state(state)?);
    match arguments.action {
        AuditAction::Verify => verify(&audit),
        AuditAction::Show => show(&audit),
    }
}

fn verify(audit: &Audit) -> Result<ExitCode, Failure> {
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

fn show(audit: &Audit) -> Result<ExitCode, Failure> {
    let mut out = Vec::new();
    for line in audit.show()? {
        out.extend(terminal::json_line(&line?)?);
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
