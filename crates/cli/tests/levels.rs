//! One suite of behaviour over every level: what each does, refuses, or does in another way, as `docs/levels.md` says.
//!
//! `OFFLEASH_UPDATE_DOCS=1 cargo test -p offleash --test levels` writes the table anew.

#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "which feature is shown is told where it fails")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

#[path = "levels/behaviour.rs"]
mod behaviour;
#[path = "levels/container.rs"]
mod container;
#[path = "levels/gpu.rs"]
mod gpu;
#[path = "levels/microvm.rs"]
mod microvm;
mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use behaviour::FEATURES;
use support::levels::{container_flags, microvm_flags, runsc, runtime, sharing_machines};
use support::{Site, is_root, skip, stderr};

/// What holds the code, as the columns of the table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Simulated,
    Landlock,
    Process,
    Gvisor,
    Crun,
    Microvm,
}

impl Column {
    const ALL: [Column; 6] = [
        Column::Simulated,
        Column::Landlock,
        Column::Process,
        Column::Gvisor,
        Column::Crun,
        Column::Microvm,
    ];

    fn heading(self) -> &'static str {
        match self {
            Column::Simulated => "`simulated`",
            Column::Landlock => "`process-landlock`",
            Column::Process => "`process`",
            Column::Gvisor => "`container`, gVisor",
            Column::Crun => "`container`, crun",
            Column::Microvm => "`microvm`",
        }
    }

    /// The flags that ask for it; `None`, and said so, where it is not to be had.
    pub(crate) fn flags(self) -> Option<Vec<String>> {
        let level = |name: &str| vec!["--level".to_owned(), name.to_owned()];
        let with_runtime = |path: PathBuf| container_flags(&path);
        match self {
            Column::Simulated => Some(level("simulated")),
            Column::Landlock => Some(level("process-landlock")),
            Column::Process => Some(level("process")),
            Column::Gvisor => runsc().map(with_runtime),
            Column::Crun => runtime("crun").map(with_runtime),
            Column::Microvm => microvm_flags(),
        }
    }
}

/// How a level has a feature.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell {
    Yes,
    /// It is refused before anything starts, with these words.
    Refused(&'static str),
    /// It does so in its own way, which is tested as such.
    Differs(&'static str),
}

/// A feature, with what shows that it is there.
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    /// In the order of the columns.
    pub(crate) cells: [Cell; 6],
    pub(crate) needs_root: bool,
    /// Fails where the feature is not there as its cell says.
    pub(crate) show: fn(&Site, Column, &[&str]),
    /// Arguments of a run that asks for it, for a level that refuses.
    pub(crate) ask: &'static [&'static str],
}

/// Shows every feature in one column.
fn show_all(column: Column) {
    if let Some(flags) = column.flags() {
        sharing_machines(|| show_all_with(column, &flags));
    }
}

/// Shows every feature as a column has it, with these flags.
fn show_all_with(column: Column, flags: &[String]) {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for feature in FEATURES {
        if feature.needs_root && !is_root() {
            skip(feature.name);
            continue;
        }
        eprintln!("── {}", feature.name);
        let site = Site::sharing_templates();
        match feature.cells[Column::ALL.iter().position(|other| *other == column).unwrap()] {
            Cell::Yes | Cell::Differs(_) => (feature.show)(&site, column, &flags),
            Cell::Refused(why) => {
                if feature.ask.contains(&"--volume") {
                    site.succeed(["volume", "create", "v"]);
                }
                let arguments = [&["run"], flags.as_slice(), feature.ask].concat();
                let output = site.offleash(arguments).output().unwrap();
                let said = stderr(&output);
                assert_eq!(output.status.code(), Some(125), "{}: {said}", feature.name);
                assert!(said.contains(why), "{}: {said}", feature.name);
            }
        }
    }
}

#[test]
fn simulated_does_what_the_table_says() {
    show_all(Column::Simulated);
}

#[test]
fn process_landlock_does_what_the_table_says() {
    show_all(Column::Landlock);
}

#[test]
fn process_does_what_the_table_says() {
    show_all(Column::Process);
}

#[test]
fn gvisor_does_what_the_table_says() {
    show_all(Column::Gvisor);
}

#[test]
fn crun_does_what_the_table_says() {
    show_all(Column::Crun);
}

#[test]
fn runc_does_what_the_table_says_of_crun() {
    if let Some(program) = runtime("runc") {
        show_all_with(Column::Crun, &container_flags(&program));
    }
}

#[test]
fn microvm_does_what_the_table_says() {
    show_all(Column::Microvm);
}

const BEGIN: &str = "<!-- Made by crates/cli/tests/levels.rs; change what is tested there. -->\n";
const END: &str = "<!-- The end of what is made. -->\n";

#[test]
fn the_reference_has_the_table_that_is_tested() {
    let mut table = format!("{BEGIN}\n| feature |");
    Column::ALL
        .iter()
        .for_each(|column| write!(table, " {} |", column.heading()).unwrap());
    table.push_str("\n|---|---|---|---|---|---|---|\n");
    for feature in FEATURES {
        write!(table, "| {} |", feature.name).unwrap();
        for cell in feature.cells {
            match cell {
                Cell::Yes => table.push_str(" yes |"),
                Cell::Refused(why) => write!(table, " no: \"{why}\" |").unwrap(),
                Cell::Differs(how) => write!(table, " {how} |").unwrap(),
            }
        }
        table.push('\n');
    }
    table.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/levels.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let wanted = format!("{before}{table}{END}{after}");
    if std::env::var_os("OFFLEASH_UPDATE_DOCS").is_some() {
        return std::fs::write(&path, wanted).unwrap();
    }
    assert_eq!(text, wanted, "write it anew with OFFLEASH_UPDATE_DOCS=1");
}
