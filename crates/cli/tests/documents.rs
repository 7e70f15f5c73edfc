//! The reference in `docs/` is made here, from the program itself, and compared with what is committed; every link
//! between documents leads somewhere; and what they show of the command line is there.
//!
//! `OFFLEASH_UPDATE_DOCS=1 cargo test -p offleash --test documents` writes it anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "documents/examples.rs"]
mod examples;
#[path = "documents/index.rs"]
mod index;
#[path = "documents/links.rs"]
mod links;
#[path = "documents/prose.rs"]
mod prose;
#[path = "documents/record.rs"]
mod record;
#[path = "documents/routes.rs"]
mod routes;
mod support;
#[path = "documents/walk.rs"]
mod walk;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::limits::{LimitName, LimitUnit};
use offleash_core::monitor::{BUILTIN_RULES, FigureKind, MonitorFigure};
use offleash_core::policy::{KeyDoc, Policy, reference};
use offleash_core::protected::{GIT_LINK, PROTECTED_NAMES};
use support::{Site, stdout};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Compares a document with the committed one, or writes it when that was asked for.
fn assert_committed(name: &str, text: &str) {
    let path = root().join("docs").join(name);
    if std::env::var_os("OFFLEASH_UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(&path, text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(committed.lines()).position(|(new, old)| new != old);
    assert!(
        committed == text,
        "docs/{name} is not what the program says, first at line {}; write it anew with OFFLEASH_UPDATE_DOCS=1",
        differs.unwrap_or(text.lines().count().min(committed.lines().count())) + 1
    );
}

const MADE: &str = "<!-- Made by crates/cli/tests/documents.rs; change the program, not this file. -->\n";

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

// ---- docs/cli.md

/// Every command, each with its own help.
const COMMANDS: [&[&str]; 114] = [
    &[],
    &["run"],
    &["diff"],
    &["apply"],
    &["discard"],
    &["runs"],
    &["warm"],
    &["warm", "ls"],
    &["warm", "stop"],
    &["create"],
    &["ls"],
    &["exec"],
    &["cp"],
    &["logs"],
    &["stop"],
    &["rm"],
    &["inspect"],
    &["stats"],
    &["top"],
    &["pause"],
    &["resume"],
    &["fork"],
    &["snapshot"],
    &["snapshot", "create"],
    &["snapshot", "ls"],
    &["snapshot", "rm"],
    &["snapshot", "inspect"],
    &["snapshot", "export"],
    &["snapshot", "import"],
    &["checkpoint"],
    &["checkpoints"],
    &["restore"],
    &["port"],
    &["port-forward"],
    &["ssh"],
    &["ssh-config"],
    &["sync"],
    &["login"],
    &["logout"],
    &["browser"],
    &["browser", "create"],
    &["browser", "ls"],
    &["browser", "url"],
    &["browser", "release"],
    &["browser", "logs"],
    &["browser", "har"],
    &["browser", "contexts"],
    &["browser", "forget"],
    &["desktop"],
    &["desktop", "create"],
    &["desktop", "ls"],
    &["desktop", "url"],
    &["desktop", "release"],
    &["doctor"],
    &["self-check"],
    &["explain"],
    &["explain", "path"],
    &["explain", "env"],
    &["explain", "limit"],
    &["explain", "syscall"],
    &["explain", "connect"],
    &["tools"],
    &["tools", "ls"],
    &["tools", "call"],
    &["tools", "serve"],
    &["approvals"],
    &["approvals", "ls"],
    &["approvals", "approve"],
    &["approvals", "deny"],
    &["approvals", "allowed"],
    &["approvals", "forget"],
    &["policy"],
    &["policy", "check"],
    &["policy", "keys"],
    &["audit"],
    &["audit", "verify"],
    &["audit", "show"],
    &["audit", "rotate"],
    &["serve"],
    &["front"],
    &["drain"],
    &["controller"],
    &["mcp"],
    &["key"],
    &["key", "create"],
    &["key", "ls"],
    &["key", "rm"],
    &["template"],
    &["template", "build"],
    &["template", "ls"],
    &["template", "inspect"],
    &["template", "rm"],
    &["template", "prune"],
    &["image"],
    &["image", "pull"],
    &["image", "load"],
    &["image", "tag"],
    &["image", "save"],
    &["image", "ls"],
    &["image", "inspect"],
    &["image", "rm"],
    &["image", "prune"],
    &["vm"],
    &["vm", "kernel"],
    &["volume"],
    &["volume", "create"],
    &["volume", "ls"],
    &["volume", "inspect"],
    &["volume", "rm"],
    &["volume", "cp"],
    &["volume", "resize"],
    &["volume", "prune"],
    &["volume", "sync"],
    &["man"],
];
const LAST_COMMAND: &[&str] = &["completions"];

fn help_of(site: &Site, command: &[&str]) -> String {
    let mut arguments = command.to_vec();
    arguments.push("--help");
    let output = site.offleash(arguments).env_remove("OFFLEASH_STATE").output().unwrap();
    assert!(output.status.success());
    stdout(&output)
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

fn cli_document() -> String {
    let site = Site::new();
    let mut text = format!("# Command line\n\n{MADE}\n");
    text.push_str(prose::CLI_BEGINNING);
    text.push_str("## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (code, meaning) in [
        ("the command's own", "the command ended by itself"),
        (
            "1",
            "also: the command succeeded, and not everything that it changed was written back in mode `rw`; the last line says so",
        ),
        ("124", "the limit of wall time ended the run"),
        (
            "125",
            "a failure of offleash itself, arguments that cannot be understood among them: nothing was run, or the run was lost; \
             standard error says why",
        ),
        ("126", "the command cannot be executed, or a rule refused it"),
        ("127", "there is no such command in the sandbox"),
        (
            "128 + N",
            "signal N ended the command; 130 after Ctrl-C, 141 when nobody read its output any more",
        ),
        (
            "137",
            "also: a limit other than wall time ended the run, out of memory among them; the record says which",
        ),
    ] {
        writeln!(text, "| {code} | {meaning} |").unwrap();
    }
    text.push('\n');
    text.push_str(prose::AFTER_EXIT_CODES);
    text.push_str(&limits_table());
    text.push_str("\n## Commands\n");
    for command in COMMANDS.into_iter().chain([LAST_COMMAND]) {
        let title = ["offleash"]
            .iter()
            .chain(command)
            .copied()
            .collect::<Vec<_>>()
            .join(" ");
        write!(text, "\n### {title}\n\n```text\n{}```\n", help_of(&site, command)).unwrap();
    }
    text
}

fn limits_table() -> String {
    let mut text = format!(
        "{}| flag | policy key | default | takes | at least | bounds |\n|---|---|---|---|---|---|\n",
        prose::LIMITS_BEGINNING
    );
    for row in LimitName::ALL.map(LimitName::row) {
        let takes = match row.unit {
            LimitUnit::Cpus => "CPUs",
            LimitUnit::Time => "time",
            LimitUnit::Size => "size",
            LimitUnit::Count => "count",
        };
        let (flag, word, default, least) = (row.flag, row.word, row.name.default_text(), row.show(row.least));
        writeln!(
            text,
            "| `{flag}` | `limits.{word}` | {default} | {takes} | {least} | {} |",
            cell(row.doc)
        )
        .unwrap();
    }
    text
}

#[test]
fn the_reference_of_the_command_line_is_what_the_program_says() {
    assert_committed("cli.md", &cli_document());
}

#[test]
fn no_command_is_left_out_of_the_reference() {
    let site = Site::new();
    let described: BTreeSet<Vec<&str>> = COMMANDS
        .iter()
        .chain([&LAST_COMMAND])
        .map(|command| command.to_vec())
        .collect();
    for command in &described {
        let help = help_of(&site, command);
        let listed = help
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| line.starts_with("  "));
        for line in listed.filter(|line| !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap();
            let mut whole = command.clone();
            whole.push(name);
            assert!(
                name == "help" || described.contains(&whole),
                "{whole:?} is not in the reference"
            );
        }
    }
}

// ---- docs/policy.md

fn policy_document() -> String {
    let mut text = format!("# Policy files\n\n{MADE}\n");
    text.push_str(prose::POLICY_BEGINNING);
    let keys = reference();
    let top: Vec<&KeyDoc> = keys.iter().filter(|key| !key.key.contains('.')).collect();
    text.push_str(&key_table("Keys", &top));
    let table_of = |key: &KeyDoc| Some(key.key.rsplit_once('.')?.0.to_owned());
    let mut tables: Vec<String> = Vec::new();
    for table in keys.iter().filter_map(table_of) {
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    for table in tables {
        let title = match table.strip_suffix("[]") {
            Some(name) => format!("[[{name}]]"),
            None => format!("[{table}]"),
        };
        let inner: Vec<&KeyDoc> = keys
            .iter()
            .filter(|key| table_of(key).as_ref() == Some(&table))
            .collect();
        text.push_str(&key_table(&title, &inner));
    }
    write!(text, "\n## Example\n\n```toml\n{EXAMPLE}```\n").unwrap();
    text.push_str(prose::PROTECTED_BEGINNING);
    text.push_str("| names | because |\n|---|---|\n");
    let mut reasons: Vec<&str> = PROTECTED_NAMES.iter().map(|name| name.why).collect();
    reasons.dedup();
    for why in reasons {
        let names: Vec<_> = PROTECTED_NAMES
            .iter()
            .filter(|name| name.why == why)
            .map(|name| format!("`{}`", name.pattern))
            .collect();
        writeln!(text, "| {} | {} |", names.join(" "), cell(why)).unwrap();
    }
    writeln!(
        text,
        "| `{}`, if it is no directory | {} |",
        GIT_LINK.pattern,
        cell(GIT_LINK.why)
    )
    .unwrap();
    text.push_str(prose::PROTECTED_END);
    text
}

fn key_table(title: &str, keys: &[&KeyDoc]) -> String {
    let mut text = format!("\n## {title}\n\n| key | takes | default | meaning | example |\n|---|---|---|---|---|\n");
    for key in keys {
        let name = key.key.rsplit('.').next().unwrap();
        let (kind, default, doc, example) = (cell(key.kind), cell(&key.default), cell(key.doc), cell(&key.example));
        writeln!(text, "| `{name}` | {kind} | {default} | {doc} | `{example}` |").unwrap();
    }
    text
}

const EXAMPLE: &str = r#"level = "process"
network = "none"
toolchains = ["cargo"]

[filesystem]
workspace = "overlay"
read = ["~/data"]
deny = ["**/.env", "secrets"]
protect = ["Makefile"]

[commands]
deny = ["curl", "ssh"]

[env]
pass = ["CI"]
set = { PYTHONDONTWRITEBYTECODE = "1" }

[limits]
memory = "2G"
wall_time = "10m"
"#;

#[test]
fn the_reference_of_policies_is_what_core_reads() {
    Policy::parse(EXAMPLE).unwrap();
    assert_committed("policy.md", &policy_document());
}

// ---- docs/monitoring.md

fn monitoring_document() -> String {
    let mut text = format!("# Monitoring\n\n{MADE}\n{}", prose::MONITORING_BEGINNING);
    text.push_str("\n## What is watched\n\n| figure | counts | how | what it is |\n|---|---|---|---|\n");
    for figure in MonitorFigure::ALL {
        let how = match figure.kind() {
            FigureKind::Count => "within the window",
            FigureKind::CpuTime => "on average over the window",
            FigureKind::Level => "the least during the window",
        };
        writeln!(
            text,
            "| `{figure}` | {} | {how} | {} |",
            figure.unit(),
            cell(figure.doc())
        )
        .unwrap();
    }
    text.push_str(prose::MONITORING_FIGURES_END);
    text.push_str(
        "\n## Built-in rules\n\n| rule | watches | from | within | action | a sign of |\n|---|---|---|---|---|---|\n",
    );
    for rule in BUILTIN_RULES {
        let (name, watch, from, window, action) = (rule.name, rule.watch, rule.threshold, rule.window, rule.action);
        writeln!(
            text,
            "| `{name}` | `{watch}` | {from} | {window} | {action} | {} |",
            cell(rule.why)
        )
        .unwrap();
    }
    text.push_str(prose::MONITORING_END);
    text
}

#[test]
fn the_reference_of_monitoring_is_what_core_watches() {
    assert_committed("monitoring.md", &monitoring_document());
}
