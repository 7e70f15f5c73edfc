//! `offleash doctor`: what this machine offers, as a table or as JSON.
//!
//! What is found out, and how, is `isolation::probe` and, of code in contexts, `supervisor::probe`; this only shows it.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_core::text::one_line;
use offleash_isolation::probe::{FeatureCheck, FeatureRemedy, FeatureStatus, ProbeReport};
use offleash_store::HostIdentity;

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::terminal;

/// Exit code when code cannot be run at any level.
const EXIT_NO_LEVEL: u8 = 1;

/// Probes the machine and prints the report; success means that at least one level is available.
pub(crate) fn doctor(options: &DoctorArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let state = state.map_or_else(|| HostIdentity::of_this_process().default_state(), PathBuf::from);
    let report = offleash_supervisor::probe::machine(state).map_err(|error| Failure::from_error(&error))?;
    let mut text = Vec::new();
    let rendered = if options.json {
        render_json(&report, &mut text)
    } else {
        render(&report, &mut text)
    };
    rendered.map_err(|error| Failure::from_error(&error))?;
    terminal::print(&text)?;
    let is_usable = report.levels.iter().any(|level| level.available);
    Ok(if is_usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO_LEVEL)
    })
}

/// Writes the report for people: levels first, then every check, and below each that is not whole what to do.
///
/// # Errors
/// Those of `out`.
pub(crate) fn render(report: &ProbeReport, out: &mut dyn Write) -> io::Result<()> {
    let level_width = report
        .levels
        .iter()
        .map(|level| level.level.name().len())
        .max()
        .unwrap_or(0);
    for level in &report.levels {
        let word = if level.available { "available" } else { "not here" };
        writeln!(out, "{:<level_width$}  {word:<9}  {}", level.level.name(), level.why)?;
    }
    writeln!(out)?;
    let name_width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in &report.checks {
        writeln!(
            out,
            "{:<7}  {:<name_width$}  {}",
            word(check.status),
            check.name,
            shown(&check.found)
        )?;
        render_details(check, out)?;
    }
    Ok(())
}

/// Findings name paths, which must not drive the terminal.
fn shown(text: &str) -> Cow<'_, str> {
    one_line(text.as_bytes())
}

fn word(status: FeatureStatus) -> &'static str {
    match status {
        FeatureStatus::Ok => "ok",
        FeatureStatus::Limited => "limited",
        FeatureStatus::Missing => "missing",
    }
}

fn render_details(check: &FeatureCheck, out: &mut dyn Write) -> io::Result<()> {
    if check.status == FeatureStatus::Ok {
        return Ok(());
    }
    writeln!(out, "         for: {}", check.needed_for)?;
    let Some(FeatureRemedy { explanation, commands }) = &check.mend else {
        return Ok(());
    };
    writeln!(out, "         mend: {}", shown(explanation))?;
    if commands.is_empty() {
        return Ok(());
    }
    // Commands stand at the left margin: a here-document does not end at an indented word.
    writeln!(out)?;
    for command in commands {
        writeln!(out, "{command}")?;
    }
    writeln!(out)
}

/// Writes the report as one JSON document.
///
/// # Errors
/// Those of `out`.
pub(crate) fn render_json(report: &ProbeReport, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&terminal::json_document(report)?)
}

#[cfg(test)]
mod tests {
    use offleash_core::level::Level;
    use offleash_isolation::probe::LevelReport;

    use super::*;

    fn report() -> ProbeReport {
        let check = |name, status, mend| FeatureCheck {
            name,
            status,
            found: format!("{name} found"),
            needed_for: "runs",
            mend,
        };
        let mend = FeatureRemedy {
            explanation: "write it".to_owned(),
            commands: vec!["tee x <<'EOF'\nline\nEOF".to_owned()],
        };
        ProbeReport {
            checks: vec![
                check("kernel", FeatureStatus::Ok, None),
                check("landlock", FeatureStatus::Limited, Some(mend)),
                check("kvm", FeatureStatus::Missing, None),
            ],
            levels: vec![LevelReport {
                level: Level::Process,
                available: true,
                why: "has kernel".to_owned(),
                lacks: Vec::new(),
            }],
        }
    }

    #[test]
    fn what_is_not_whole_says_what_for_and_its_mend_can_be_pasted() {
        let mut text = Vec::new();
        render(&report(), &mut text).unwrap();
        let expected = "\
process  available  has kernel

ok       kernel    kernel found
limited  landlock  landlock found
         for: runs
         mend: write it

tee x <<'EOF'
line
EOF

missing  kvm       kvm found
         for: runs
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn json_names_levels_and_states_as_flags_and_policies_do() {
        let mut text = Vec::new();
        render_json(&report(), &mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["levels"][0]["level"], "process");
        assert_eq!(value["checks"][1]["status"], "limited");
        assert_eq!(value["checks"][1]["mend"]["commands"][0], "tee x <<'EOF'\nline\nEOF");
        assert!(value["checks"][2]["mend"].is_null());
    }
}
