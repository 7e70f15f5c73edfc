//! The words of other tools: what is said of a flag of theirs that we do not have, and how a message names a flag of ours that
//! was typed in their word.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What does of another server's what `run` does here.
pub(crate) const RUN_ELSEWHERE: &str =
    "`offleash create` makes a sandbox there, and `offleash exec` runs a command in it";

/// Flags with other names, ours first.
const ALIASES: [(&str, &[&str]); 12] = [
    ("--wall-time", &["--timeout"]),
    ("--workspace-size", &["--disk"]),
    ("--memory", &["-m"]),
    ("--pids", &["--pids-limit"]),
    ("--mount", &["--bind", "--ro-bind"]),
    ("--volume", &["-v"]),
    ("--publish", &["-p"]),
    ("--network", &["--net"]),
    ("--cwd", &["--workdir", "--chdir"]),
    ("--workspace", &["-w"]),
    ("--user", &["-u"]),
    ("--env", &["-e"]),
];

/// The commands that make a sandbox from flags.
const MAKING: &[&str] = &["run", "mcp", "explain"];
const CREATE: &[&str] = &["create"];
const EXEC: &[&str] = &["exec"];
const ALL: &[&str] = &["run", "mcp", "explain", "create"];

/// Flags of other tools that we have no flag for under another name: in which commands somebody may type them, and what to do.
const FOREIGN: &[(&[&str], &[&str], &str)] = &[
    (
        &["-d", "--detach"],
        &["run"],
        "`offleash create` makes a sandbox that stays, and `offleash exec` runs commands in it",
    ),
    (
        &["--name", "-l", "--label"],
        &["run", "mcp"],
        "a run has an id of its own, which `offleash runs` lists; `offleash create --name NAME` makes a sandbox that has a name",
    ),
    (
        &[
            "--privileged",
            "--cap-add",
            "--device",
            "--gpus",
            "--group-add",
            "--pid",
            "--ipc",
            "--uts",
            "--userns",
            "--share-net",
        ],
        ALL,
        "a sandbox has nothing of the host but what a flag grants, and this cannot be granted; `offleash help run` lists what can",
    ),
    (
        &[
            "--cap-drop",
            "--security-opt",
            "--unshare-all",
            "--unshare-user",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup",
            "--die-with-parent",
            "--new-session",
            "--init",
            "--proc",
            "--dev",
            "--clearenv",
            "--as-pid-1",
        ],
        ALL,
        "leave it out: that is so of every sandbox",
    ),
    (
        &["--unshare-net", "--no-network", "--no-net", "--offline"],
        ALL,
        "leave it out, or say `--network none`",
    ),
    (
        &["-A", "--allow-all", "--allow-sys", "--allow-ffi"],
        ALL,
        "a sandbox has nothing of the host but what a flag grants, one by one: `--allow-read=PATH`, `--allow-net=HOST` …",
    ),
    (
        &["--deny-write", "--deny-env", "--deny-sys", "--deny-ffi", "--no-prompt"],
        MAKING,
        "leave it out: that is so unless a flag says otherwise",
    ),
    (
        &[
            "--allow-net",
            "--allow-read",
            "--allow-write",
            "--allow-run",
            "--allow-env",
            "--prompt",
        ],
        CREATE,
        "`--allow HOST` lets a host be reached, and `--env NAME=VALUE` sets a variable; a sandbox of the daemon sees no directory of the host",
    ),
    (
        &["--image"],
        &["explain"],
        "`explain` knows no image; `run`, `create` and `mcp` take one",
    ),
    (
        &["--from"],
        ALL,
        "`--template NAME` names what a sandbox is made from, and `run --image NAME` an image",
    ),
    (&["--entrypoint"], ALL, "write the program as the command"),
    (
        &["--env-file"],
        ALL,
        "`--env NAME` passes a variable of yours, and `--env NAME=VALUE` sets one",
    ),
    (&["--setenv"], MAKING, "`--env NAME=VALUE` sets a variable"),
    (
        &["--unsetenv"],
        MAKING,
        "leave it out: a variable that no flag names is not passed",
    ),
    (&["--dir"], MAKING, "`--tmpfs DST` adds an empty directory"),
    (
        &["--symlink", "--file", "--bind-data"],
        MAKING,
        "`--mount SRC:DST` shows a path of the host inside",
    ),
    (
        &["--bind-try", "--ro-bind-try", "--dev-bind"],
        MAKING,
        "`--bind SRC DST` and `--ro-bind SRC DST` show a path of the host inside",
    ),
    (
        &["--read-only"],
        MAKING,
        "`--workspace DIR:ro` keeps the workspace as it is",
    ),
    (
        &["--memory-swap"],
        MAKING,
        "`--swap SIZE` says how much swap there is on top of `--memory`",
    ),
    (
        &["--shm-size"],
        MAKING,
        "`--tmp-size SIZE` is the size of `/dev/shm`, too",
    ),
    (
        &["--cpu-shares", "--cpuset-cpus", "--cpu-quota", "--cpu-period"],
        ALL,
        "`--cpus N` says how many may be used at once",
    ),
    (
        &["--ulimit", "--nofile"],
        MAKING,
        "`--open-files N` says how many files may be open, and `--pids N` how many processes run",
    ),
    (&["--dns"], MAKING, "`--dns-server IP` names a server"),
    (
        &["--add-host"],
        MAKING,
        "`--allow HOST` lets a host be reached, by the address that this machine knows",
    ),
    (
        &["--proxy"],
        MAKING,
        "`--upstream-proxy URL` reaches everything through a proxy",
    ),
    (
        &["--uid", "--gid"],
        MAKING,
        "`--user root` or `--user user`, with `--root base`, says as whom a command runs",
    ),
    (
        &["--mount", "--bind", "--ro-bind"],
        CREATE,
        "a sandbox of the daemon sees no directory of the host; `offleash cp` copies files to it",
    ),
    (
        &["-p", "--publish"],
        CREATE,
        "every port is published: `offleash port ID PORT` prints its address",
    ),
    (
        &["-i", "-t", "--interactive", "--tty", "-w", "--workdir", "-u", "--user"],
        CREATE,
        "`offleash exec` takes it: `offleash create` starts no command",
    ),
    (
        &["--timeout", "--wall-time"],
        EXEC,
        "put `timeout TIME` before the command; `offleash create --timeout` says how long the sandbox lives",
    ),
    (
        &[
            "-m",
            "--memory",
            "--cpus",
            "--disk",
            "--pids",
            "--network",
            "--net",
            "--allow",
            "-v",
            "-p",
        ],
        EXEC,
        "`offleash create` says what the sandbox may use and reach",
    ),
    (
        &["--rm", "--no-cache", "--pull", "--platform", "-q"],
        &["exec"],
        "leave it out",
    ),
    (
        &["--platform", "--restart", "--sig-proxy", "--stop-timeout"],
        ALL,
        "leave it out: everything is of this machine's kind, and nothing is started again",
    ),
    (
        &["--pull"],
        &["explain", "create"],
        "leave it out: `run` and `mcp` pull images; of a server its configuration says whether it does",
    ),
];

/// The flags that say which server is asked; they stand before the command.
const BEFORE_COMMAND: [&str; 3] = ["--host", "--ca", "--insecure"];
/// The commands that a run is named to.
const OF_RUNS: [&str; 3] = ["diff", "apply", "discard"];

/// The error, and for a flag of another tool what we have instead of what is spelt alike; for one of ours where it goes, and
/// for a run that is not named which there are.
pub(crate) fn explained(mut error: clap::Error, command: &str) -> clap::Error {
    if let Some(hint) = hint_of(&error, command) {
        error.remove(ContextKind::SuggestedArg);
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

fn hint_of(error: &clap::Error, command: &str) -> Option<String> {
    match error.kind() {
        ErrorKind::MissingRequiredArgument if OF_RUNS.contains(&command) => {
            Some("`offleash runs` lists the runs whose changes are kept".to_owned())
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let given = given.split('=').next().unwrap_or_default();
            let mut foreign = FOREIGN.iter();
            let found = foreign.find(|(words, commands, _)| words.contains(&given) && commands.contains(&command));
            match found {
                Some((_, _, hint)) => Some((*hint).to_owned()),
                None if !BEFORE_COMMAND.contains(&given) => None,
                None if command == "run" => Some(RUN_ELSEWHERE.to_owned()),
                None => Some(format!(
                    "`{given}` stands before the command: `offleash --host URL {command}`"
                )),
            }
        }
        _ => None,
    }
}

/// The message with each flag called as it stands among `words`, where it stands there under another name alone.
pub(crate) fn in_words_of<'m>(message: &'m str, words: &[OsString]) -> Cow<'m, str> {
    let mut message = Cow::Borrowed(message);
    for (ours, others) in ALIASES {
        let named = format!("`{ours}");
        if !message.contains(&named) || is_among(words, ours) {
            continue;
        }
        if let Some(typed) = others.iter().find(|other| is_among(words, other)) {
            message = Cow::Owned(renamed(&message, &named, &format!("`{typed}")));
        }
    }
    message
}

/// Replaces `from` where it is a whole word: `--cpu` is not the beginning of `--cpu-time`.
fn renamed(message: &str, from: &str, to: &str) -> String {
    let mut renamed = String::new();
    let mut rest = message;
    while let Some((before, behind)) = rest.split_once(from) {
        let goes_on = behind.starts_with(|next: char| next == '-' || next.is_ascii_alphanumeric());
        renamed.push_str(before);
        renamed.push_str(if goes_on { from } else { to });
        rest = behind;
    }
    renamed + rest
}

/// Whether a flag was typed, before a command that stands behind dashes.
fn is_among(words: &[OsString], flag: &str) -> bool {
    let is_short = !flag.starts_with("--");
    let mut flags = words
        .iter()
        .map_while(|word| word.to_str().filter(|word| *word != "--"));
    flags.any(|word| match word.strip_prefix(flag) {
        Some("") => true,
        Some(rest) => is_short || rest.starts_with('='),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::{Arguments, RunInvocation};

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_flag_is_called_as_it_was_typed() {
        let message = "raise it with `--wall-time`; `--memory 1G`, `--workspace-size`, `--workspace DIR`, `--cpu-time`";
        for (typed, told) in [
            ("run -- true", message.to_owned()),
            ("run --timeout 1s -- true", message.replace("--wall-time", "--timeout")),
            ("run --timeout=1s -- true", message.replace("--wall-time", "--timeout")),
            ("run --timeouts 1s", message.to_owned()),
            ("run --wall-time 1s -- x --timeout", message.to_owned()),
            ("run -- x --timeout", message.to_owned()),
            ("run -m 64M -- x", message.replace("--memory", "-m")),
            ("run -m64M -- x", message.replace("--memory", "-m")),
            (
                "run --disk 1G -w . -- x",
                message
                    .replace("--workspace-size", "--disk")
                    .replace("--workspace ", "-w "),
            ),
        ] {
            assert_eq!(in_words_of(message, &words(typed)), told, "{typed}");
        }
    }

    #[test]
    fn every_other_name_is_one_that_the_parser_knows_and_help_tells_of() {
        let run = RunInvocation::command();
        for (ours, others) in ALIASES {
            let ours = ours.trim_start_matches('-');
            let flag = run.get_arguments().find(|flag| flag.get_long() == Some(ours)).unwrap();
            for other in others {
                let known = match other.strip_prefix("--") {
                    // Those take two values, and are flags of their own.
                    Some("bind" | "ro-bind") => true,
                    Some(long) => flag.get_visible_aliases().is_some_and(|names| names.contains(&long)),
                    None => flag.get_short() == other.chars().nth(1),
                };
                assert!(known, "{other} of {ours}");
            }
        }
    }

    #[test]
    fn a_server_that_is_named_behind_the_command_and_a_run_that_is_not_named_are_told_of() {
        for (words, hint) in [
            (&["ls", "--host", "https://box"][..], "`offleash --host URL ls`"),
            (&["stop", "--insecure", "x"], "`--insecure` stands before the command"),
            (&["diff"], "`offleash runs` lists"),
            (&["discard"], "`offleash runs` lists"),
        ] {
            let error = Arguments::try_parse_from(std::iter::once("offleash").chain(words.iter().copied()));
            let told = explained(error.unwrap_err(), words[0]).to_string();
            assert!(told.contains(hint), "{told}");
        }
        let run = RunInvocation::try_parse_from(["offleash", "--host", "https://box", "--", "true"]);
        let told = explained(run.unwrap_err(), "run").to_string();
        assert!(told.contains(RUN_ELSEWHERE), "{told}");
    }

    #[test]
    fn a_flag_of_another_tool_is_answered_with_ours_and_none_of_ours_is_taken_for_one() {
        let commands = Arguments::command();
        for (given, of, hint) in FOREIGN {
            for (word, name) in given.iter().flat_map(|word| of.iter().map(move |name| (word, name))) {
                let words: &[&str] = match *name {
                    "explain" => &["offleash", "explain", "path", word, "/x"],
                    "exec" => &["offleash", "exec", word, "id", "true"],
                    name => &["offleash", name, word],
                };
                let parsed = Arguments::try_parse_from(words);
                let error = explained(parsed.unwrap_err(), name).to_string();
                assert!(error.contains(hint), "{name} {word}: {error}");
                assert!(!error.contains("similar"), "{name} {word}: {error}");
            }
            for name in *of {
                assert!(commands.find_subcommand(name).is_some(), "{name}");
            }
        }
        let misspelt = RunInvocation::try_parse_from(["offleash", "--wall-tiem", "1s"]).unwrap_err();
        assert!(explained(misspelt, "run").to_string().contains("'--wall-time'"));
    }
}
