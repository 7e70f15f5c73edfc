//! The reference in `docs/` is made here, from the program itself, and compared with what is committed; and every link
//! between documents leads somewhere.
//!
//! `OFFLEASH_UPDATE_DOCS=1 cargo test -p offleash --test documents` writes it anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "documents/record.rs"]
mod record;
#[path = "documents/routes.rs"]
mod routes;
mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::limits::{LIMITS, LimitUnit};
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
const COMMANDS: [&[&str]; 46] = [
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
    &["pause"],
    &["resume"],
    &["fork"],
    &["port"],
    &["doctor"],
    &["explain"],
    &["explain", "path"],
    &["explain", "env"],
    &["explain", "limit"],
    &["explain", "syscall"],
    &["explain", "connect"],
    &["policy"],
    &["policy", "check"],
    &["policy", "keys"],
    &["audit"],
    &["audit", "verify"],
    &["audit", "show"],
    &["serve"],
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
    &["image"],
    &["image", "pull"],
    &["image", "load"],
    &["image", "ls"],
    &["image", "inspect"],
    &["image", "rm"],
    &["image", "prune"],
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
    text.push_str(
        "`offleash run` makes a sandbox, runs one command in it and ends when the command does. What the command changed\n\
         in the workspace is kept until `apply` or `discard`. [policy.md](policy.md) is the reference of policy files,\n\
         [record.md](record.md) that of the record that `--json` and `--report` write.\n\n\
         Runs and the audit log are kept in one directory, which `--state` or `OFFLEASH_STATE` names: `/var/lib/offleash` for\n\
         root, else `offleash` in `XDG_STATE_HOME` or `~/.local/state`, or `/var/tmp/offleash-UID` for a user without a home\n\
         directory. `offleash doctor` says which it is.\n\n\
         ## What a command has of its caller\n\n\
         Its standard input, output and error are pipes that `run` passes on as they come, or with `-t` a terminal. So a run takes what\n\
         there is of standard input, also what the command never reads: in a loop that reads lines give it `</dev/null`. What it\n\
         writes to its two outputs is in order in each, and between them only about: for one order join them inside, `-c '… 2>&1'`.\n\
         Variables are passed by a short list (`--env`); the umask is 022; limits are those below, or lower ones of the caller.\n\
         A relative `--cwd` is taken from where `run` is called.\n\n\
         ## What git compares\n\n\
         Files have other owners inside, and other numbers and change times once they were written to, and git would read every\n\
         file of a repository again. So `/etc/gitconfig` is the sandbox's own and tells it to compare size, time and mode alone\n\
         (`core.checkStat`, `core.trustctime`); configuration of a user or a repository goes over it. A file that was changed to the\n\
         same size, and has its old time again, is not seen. The host's file is not shown. make, cargo, rsync and\n\
         Python's compiled files compare size and time by themselves.\n\n\
         ## Words of other tools\n\n\
         Flags of Docker, E2B and bubblewrap that have a flag of ours for the same thing are that flag: `--timeout` is `--wall-time`,\n\
         `--disk` is `--workspace-size`, `-v` and `--volume` are `--mount` (read-only unless `:rw` stands behind it, other than Docker's),\n\
         `--net none`, `-m`, `-p`, `-u`, `--workdir`, `--bind` and `--ro-bind` are what they say, and `--rm` and `-i` change nothing. What\n\
         is said afterwards names the flag that was typed. A flag of theirs that we have nothing for is refused with what there is instead.\n\
         `-w` is the workspace for `run`, which is where a command starts, and the directory inside for `exec`.\n\n",
    );
    text.push_str(
        "## What the overlay shows\n\n\
         The workspace, a root of the sandbox's own and its templates are overlays over what was there before (not at level\n\
         `process-landlock`). Programs see it in these places:\n\n\
         - A directory that was there before is renamed by copying: the new name appears as a whole, then the old one goes. Until then\n\
         \x20\x20both are there, and beside the new one `.offleash-rename-…` or `.offleash-renamed-…`. Whoever works in the directory\n\
         \x20\x20meanwhile is left in one that is gone, watches of it end, and its inode is another one. Files stay the same files; those\n\
         \x20\x20that the kernel keeps from being linked, as files of other owners, are copied and become the caller's.\n\
         - It is refused as between file systems (`EXDEV`): two directories exchanged (`RENAME_EXCHANGE`); one that holds directories\n\
         \x20\x20of other owners, unreadable ones, ones with a setgid bit that their owner may not write to, or more than 1024 levels; by a process in a root of\n\
         \x20\x20its own (`chroot`), or with other ids or fewer capabilities than its user has; a mount in the directory answers `EBUSY`.\n\
         - The first write to a file that was there before gives it an inode of its own: hard links of it show what it was, and who\n\
         \x20\x20had it open for reading reads what it was.\n\
         - A unix socket or a pipe that was there before leads to nobody.\n\n",
    );
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
    text.push_str(
        "\nArguments that cannot be understood end every command with 125, as `docker run`, `env` and `timeout` have it: 2 is what many a\n\
         command ends with by itself.\n\n\
         What is held back is told by `run` in mode `rw` and by `apply` alike, `not applied: PATH: WHY` for each change; both answer\n\
         1 then, `run` unless the command's own code is another. What `diff` shows it marks beforehand: `protected`, or a link that\n\
         leads out of the workspace. Links to what the sandbox saw read-only of the host (`/usr`, toolchains, `--read`) are applied.\n\n\
         `apply` answers 1 also when the host changed meanwhile, `audit verify` when the log was\n\
         changed, `doctor` when no level is available, `cp` when it left something out: links to nowhere, on the way in all\n\
         links, and what is neither file nor directory. It copies contents and names; modes and times are those of new files.\n\n",
    );
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
    let mut text =
        "## Limits\n\nEvery limit may be `unlimited`. A size is a number of bytes or has a unit (`K`, `M`, `G`, \
                    `T`, by 1024); a time is\na number of seconds or has a unit (`ms`, `s`, `m`, `h`). With a unit, and of CPUs, there may be a fraction.\n\n\
                    | flag | policy key | default | takes | at least | bounds |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for row in &LIMITS {
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
    text.push_str(
        "A policy is a TOML file: `offleash run --policy FILE`, checked by `offleash policy check FILE`; `offleash policy\n\
         keys` prints what follows here. Unknown keys and values that make no sense are errors with line and column. Flags win over the policy, the policy over defaults;\n\
         lists of paths, variables, mounts and denied commands add up. Of rules for paths the most specific wins.\n\n\
         An `offleash.toml` in the workspace is used without being named, and may only restrict: it may have come with\n\
         the code. Whatever gives more than the defaults do counts only in a file that is named with `--policy`.\n\n\
         Settings of Anthropic's sandbox-runtime are read with `--srt-settings FILE`: its file rules, and its domains at\n\
         every port that they do not limit; what cannot be honoured is an error that names the key.\n",
    );
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
    text.push_str(
        "\n## Protected names\n\nChanges to these names in a workspace are not applied unless they are named, at any depth, \
         in capital or small letters, and with\neverything beneath, because something runs or trusts them later, outside the sandbox.\n\n\
         | names | because |\n|---|---|\n",
    );
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
    text.push_str(
        "\nSo are other names of the same things, whatever they are called; `diff` shows them with what leads there:\n\n\
         - where links lead that have such a name, or are in such a directory, or stand in place of a directory above one, by as many\n  \
         links as there are; and what `protect` covers\n\
         - repositories that lie elsewhere: where a `.git` that is no directory points, and what `commondir` says\n\
         - what git configuration names, included files and that of the user (`~/.gitconfig`, `~/.config/git/config`) and the\n  \
         machine among it: `core.hooksPath`, `include`, `init.templateDir`, and files in the command lines of filters, drivers, editors,\n  \
         pagers, helpers, `core.fsmonitor`, `core.sshCommand`, aliases with `!` and their like\n\
         - programs and plugins that `.npmrc`, `.yarnrc`, `.yarnrc.yml`, `.cargo/config.toml`, `bunfig.toml`, `.hg/hgrc`,\n  \
         `.pre-commit-config.yaml`, `lefthook.yml`, `.mcp.json` and `.claude/settings.json` name\n\
         - where a protected name of the home directory leads that is a link into the workspace\n\n\
         Each is looked at as the host has it and as the run left it, whenever changes are shown or applied. A configuration of git\n\
         that cannot be read, or is longer than 4 MiB, holds back everything in its repository.\n",
    );
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

// ---- docs/record.md

fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![root()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                let is_ours = name != "target" && !name.to_string_lossy().starts_with('.');
                todo.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The targets of `[text](target)`, code left out.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        for piece in line.split("](").skip(1).filter(|_| !in_code) {
            found.extend(piece.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// How a heading is named in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    kept.map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(path)
            };
            assert!(target.exists(), "{}: `{link}` leads nowhere", document.display());
            if !fragment.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
                let target_text = fs::read_to_string(&target).unwrap();
                let there = target_text
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == fragment);
                assert!(there, "{}: `{link}`: no such heading", document.display());
            }
        }
    }
}
