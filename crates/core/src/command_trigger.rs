//! Commands that are named by their words, before which something is to be done, such as `rm -rf` or `git reset --hard`.
//!
//! Pure, and a convenience: a program that is started by another one, behind a variable or in a script file is not seen.
//! What cannot be looked at, because it is too long or too deep, is taken for what is meant. What may be run at all is decided
//! elsewhere, on the resolved executable ([`crate::command`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::shell_line::ShellLine;

mod braces;
mod shell_line;

/// The most words of one trigger, and the most bytes.
const MAX_WORDS: usize = 16;
const MAX_BYTES: usize = 256;
/// The most bytes of a line for a shell that are looked at, and of all lines in it.
const MAX_LINE: usize = 64 * 1024;
const MAX_LINES: usize = 4 * MAX_LINE;
/// How many lines may lie in each other.
const MAX_DEPTH: usize = 8;
/// The most words of a program that runs others.
const MAX_ARGUMENTS: usize = 1024;

/// A command that is meant: an executable by name, or by its absolute path, and words that are among its arguments in that
/// order. Letters of short options may stand together or apart, and for a long option that begins with the letter: `rm -rf` means
/// `rm -f --recursive x`, too, and `git push --force` means `git push -f`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommandTrigger {
    executable: String,
    words: Vec<String>,
}

/// A trigger that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandTriggerError {
    /// There is nothing, or an option where the executable is to be.
    #[error("`{}` names no command: write an executable and words of its arguments, as in `git reset --hard`", .0.escape_debug())]
    NoCommand(String),
    /// It is a path, and not an absolute one.
    #[error("`{}` is neither a name nor an absolute path", .0.escape_debug())]
    Relative(String),
    /// It is longer than a command is named by.
    #[error("it is longer than {MAX_WORDS} words or {MAX_BYTES} bytes")]
    TooLong,
}

impl CommandTrigger {
    /// Whether the command with these arguments, the executable first, is meant, or a line that it gives a shell has one that is.
    pub fn matches(&self, argv: &[Vec<u8>]) -> bool {
        let argv: Vec<String> = argv
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        self.matches_words(&argv, 0, &mut { MAX_LINES })
    }

    /// Whether a line for a shell has a command that is meant; `left` is what may be looked at of all lines.
    fn is_in_line(&self, line: &str, depth: usize, left: &mut usize) -> bool {
        if line.len() > MAX_LINE.min(*left) || depth >= MAX_DEPTH {
            return true;
        }
        *left -= line.len();
        let ShellLine {
            commands,
            lines,
            is_too_deep,
        } = shell_line::read(line);
        // What a shell reads is written by another command of the line.
        let is_read = commands.iter().any(|command| reads_its_input(command));
        let words = commands
            .iter()
            .flatten()
            .filter(|word| is_read && word.contains(BLANKS));
        is_too_deep
            || commands
                .iter()
                .any(|command| self.matches_words(command, depth + 1, left))
            || words.chain(&lines).any(|line| self.is_in_line(line, depth + 1, left))
    }

    fn matches_words(&self, words: &[String], depth: usize, left: &mut usize) -> bool {
        let words = without_assignments(words);
        let Some((executable, arguments)) = words.split_first() else {
            return false;
        };
        if self.is_executable(executable) && self.are_among(arguments) {
            return true;
        }
        let name = base_name(executable);
        if is_shell(name) {
            return self.is_of_shell(words, depth, left);
        }
        match name {
            "eval" => self.is_in_line(&arguments.join(" "), depth, left),
            _ if RUNS_OTHERS.contains(&name) || name.starts_with('$') => self.is_run_by(arguments, depth, left),
            _ => false,
        }
    }

    /// Whether a shell is given a line that has it, or a line that runs its further arguments, which are it.
    fn is_of_shell(&self, argv: &[String], depth: usize, left: &mut usize) -> bool {
        let Some((line, arguments)) = line_of(argv).and_then(|place| argv[place..].split_first()) else {
            return false;
        };
        self.is_in_line(line, depth, left) || (names_arguments(line) && self.is_run_by(arguments, depth, left))
    }

    /// Whether one is meant that begins somewhere among the arguments of a program that runs others, or a line among them has it.
    /// Which options have values is theirs to know.
    fn is_run_by(&self, arguments: &[String], depth: usize, left: &mut usize) -> bool {
        if arguments.len() > MAX_ARGUMENTS {
            return true;
        }
        (0..arguments.len()).any(|place| {
            let (word, rest) = (&arguments[place], &arguments[place + 1..]);
            (self.is_executable(word) && self.are_among(rest))
                || (is_shell(base_name(word)) && self.is_of_shell(&arguments[place..], depth, left))
                || lines_in(word).any(|line| self.is_in_line(line, depth, left))
        })
    }

    fn is_executable(&self, given: &str) -> bool {
        match self.executable.starts_with('/') {
            true => self.executable == given,
            false => base_name(given) == self.executable,
        }
    }

    fn are_among(&self, arguments: &[String]) -> bool {
        let options: Vec<&String> = arguments.iter().take_while(|word| *word != "--").collect();
        let short: String = options.iter().filter_map(|word| letters_of(word)).collect();
        let long: String = options.iter().filter_map(|word| first_of_long(word)).collect();
        let mut rest = arguments.iter();
        self.words
            .iter()
            .all(|word| match (letters_of(word), first_of_long(word)) {
                (Some(wanted), _) => wanted
                    .chars()
                    .all(|letter| short.contains(letter) || long.contains(letter)),
                (None, Some(first)) => short.contains(first) || options.iter().any(|given| is_option(given, word)),
                (None, None) => rest.any(|given| given == word),
            })
    }
}

/// The letters of short options that stand in one word.
fn letters_of(word: &str) -> Option<&str> {
    word.strip_prefix('-')
        .filter(|letters| !letters.is_empty() && !letters.starts_with('-'))
}

/// The letter that a long option begins with, which often is its short form.
fn first_of_long(word: &str) -> Option<char> {
    word.strip_prefix("--")?.chars().next()
}

/// Whether a word is this long option, with a value or not: programs take the beginning of its name, too.
fn is_option(given: &str, option: &str) -> bool {
    let name = given.split_once('=').map_or(given, |(name, _)| name);
    name.len() > "--".len() && option.starts_with(name)
}

/// Programs, and words of shells, whose arguments have a command among them, or a line for a shell.
const RUNS_OTHERS: [&str; 44] = [
    "alias",
    "builtin",
    "busybox",
    "chroot",
    "chrt",
    "command",
    "coproc",
    "doas",
    "env",
    "exec",
    "find",
    "flock",
    "function",
    "ionice",
    "linux32",
    "linux64",
    "ltrace",
    "nice",
    "nohup",
    "nsenter",
    "numactl",
    "parallel",
    "prlimit",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "time",
    "timeout",
    "toybox",
    "trap",
    "unbuffer",
    "unshare",
    "watch",
    "xargs",
    "xvfb-run",
];

fn base_name(executable: &str) -> &str {
    executable.rsplit('/').next().unwrap_or_default()
}

/// A command without the variables that are set for it.
fn without_assignments(words: &[String]) -> &[String] {
    let count = words.iter().take_while(|word| is_assignment(word)).count();
    &words[count..]
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()))
}

/// What may be a line for a shell in a word of another program: the word, its value, and what is behind an option's letter.
fn lines_in(word: &str) -> impl Iterator<Item = &str> {
    let value = word.split_once('=').map(|(_, value)| value);
    let glued = word.strip_prefix('-').and_then(|rest| rest.get(1..));
    let all = [Some(word), value, glued].into_iter().flatten();
    all.filter(|line| line.contains(BLANKS))
}

/// What a line of more than one word has.
const BLANKS: [char; 3] = [' ', '\t', '\n'];

/// Whether a command is a shell, or ends with one, that is given neither a line nor a script.
fn reads_its_input(command: &[String]) -> bool {
    let shell = command.iter().rposition(|word| is_shell(base_name(word)));
    shell.is_some_and(|place| command[place + 1..].iter().all(|word| word.starts_with(['-', '+'])))
}

fn is_shell(name: &str) -> bool {
    matches!(name, "sh" | "bash" | "dash" | "zsh" | "ash" | "ksh" | "mksh" | "rbash")
}

/// Where the line is that a command gives a shell: `bash -l -c LINE`. Options may stand behind `-c`, too, and letters behind its
/// letter.
fn line_of(argv: &[String]) -> Option<usize> {
    let (mut place, mut has_line) = (1, false);
    while let Some(word) = argv.get(place) {
        place += match word.strip_prefix(['-', '+']) {
            // The end of options.
            Some("" | "-") => return Some(place + 1).filter(|_| has_line),
            Some("-rcfile" | "-init-file") => 2,
            Some(letters) if letters.starts_with('-') => 1,
            Some(letters) => {
                has_line |= letters.contains('c');
                1 + letters.matches(['o', 'O']).count()
            }
            None => return Some(place).filter(|_| has_line),
        };
    }
    None
}

/// Whether a line says something of the arguments that stand behind it.
fn names_arguments(line: &str) -> bool {
    let mut behind = line.split('$').skip(1);
    behind.any(|rest| {
        let name = rest.trim_start_matches('{');
        name.starts_with(|first: char| first.is_ascii_digit() || first == '@' || first == '*')
    })
}

impl FromStr for CommandTrigger {
    type Err = CommandTriggerError;

    fn from_str(text: &str) -> Result<Self, CommandTriggerError> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let executable = words.next().filter(|word| !word.starts_with('-'));
        let executable = executable.ok_or_else(|| CommandTriggerError::NoCommand(text.to_owned()))?;
        let words: Vec<String> = words.collect();
        if words.len() >= MAX_WORDS || text.len() > MAX_BYTES {
            return Err(CommandTriggerError::TooLong);
        }
        match executable.contains('/') && !executable.starts_with('/') {
            true => Err(CommandTriggerError::Relative(executable)),
            false => Ok(Self { executable, words }),
        }
    }
}

impl TryFrom<String> for CommandTrigger {
    type Error = CommandTriggerError;

    fn try_from(text: String) -> Result<Self, CommandTriggerError> {
        text.parse()
    }
}

impl From<CommandTrigger> for String {
    fn from(trigger: CommandTrigger) -> Self {
        trigger.to_string()
    }
}

impl fmt::Display for CommandTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.executable)?;
        self.words.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_meant(trigger: &str, argv: &[&str]) -> bool {
        let argv: Vec<Vec<u8>> = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
        trigger.parse::<CommandTrigger>().unwrap().matches(&argv)
    }

    #[test]
    fn a_command_is_meant_by_its_executable_and_words_of_its_arguments() {
        for (trigger, argv, expected) in [
            ("rm -rf", &["rm", "-rf", "x"][..], true),
            ("rm -rf", &["/bin/rm", "-f", "-vr", "x"], true),
            ("rm -rf", &["rm", "-r", "x"], false),
            ("rm -rf", &["rm", "-r", "--", "-f"], false),
            ("rm -rf", &["rmdir", "-rf"], false),
            ("rm", &["rm", "x"], true),
            ("/bin/rm", &["rm", "x"], false),
            (
                "git reset --hard",
                &["git", "-C", "x", "reset", "--hard", "HEAD~"],
                true,
            ),
            ("git reset --hard", &["git", "reset", "HEAD"], false),
            ("git push --force", &["git", "push", "--force=yes"], true),
            ("git push --force", &["git", "push", "--force-with-lease"], false),
            ("git reset --hard", &["git", "reset", "--har"], true),
            ("rm -rf", &["rm", "--recursive", "--force", "x"], true),
            ("rm -rf", &["rm", "-r", "--verbose", "x"], false),
            ("git push --force", &["git", "push", "-f"], true),
            ("git push --force", &["git", "push", "-q"], false),
            ("git reset --hard", &["git", "reset", "--"], false),
            ("git reset", &["git", "log", "resets"], false),
            ("rm -rf", &["sudo", "-u", "root"], false),
            ("rm -rf", &["sudo", "-n", "-u", "root", "rm", "-rf", "x"], true),
            ("rm -rf", &["sudo", "-uroot", "rm", "-rf", "x"], true),
            ("rm -rf", &["nice", "-n", "5", "rm", "-rf", "x"], true),
            ("rm -rf", &["env", "A=b", "nice", "rm", "-rf", "x"], true),
            ("rm -rf", &["timeout", "-k", "5", "10", "rm", "-rf", "x"], true),
            ("rm -rf", &["timeout", "5", "rm", "-rf", "x"], true),
            ("rm -rf", &["env", "--unset", "A", "setsid", "rm", "-rf", "x"], true),
            ("rm -rf", &["xargs", "-n", "1", "rm", "-rf"], true),
            ("rm -rf", &["find", ".", "-exec", "rm", "-rf", "{}", "+"], true),
            ("rm -rf", &["env", "-S", "rm -rf x"], true),
            ("rm -rf", &["env", "--split-string=rm -rf x"], true),
            ("rm -rf", &["env", "-Srm -rf x"], true),
            ("rm -rf", &["sudo", "bash", "-c", "rm -rf x"], true),
            ("rm -rf", &["busybox", "sh", "-c", "rm -rf x"], true),
            ("rm -rf", &["find", ".", "-name", "rm"], false),
        ] {
            assert_eq!(is_meant(trigger, argv), expected, "{trigger}: {argv:?}");
        }
    }

    #[test]
    fn lines_for_shells_are_looked_into() {
        for (line, expected) in [
            ("rm -rf x", true),
            ("cd /tmp && rm -rf x", true),
            ("if true; then rm -rf x; fi", true),
            ("echo $(rm -r -f x)", true),
            ("echo \"$(rm -rf x)\"", true),
            ("A=1 sudo rm -rf x", true),
            ("sh -c 'rm -rf x'", true),
            ("'r'm \"-rf\" x", true),
            ("echo $(true)#; rm -rf x", true),
            ("echo \"$(date) it's\"; rm -rf x; echo \"it's\"", true),
            ("echo \"`rm -rf x`\"", true),
            ("cat <<E\nit's\nE\nrm -rf x", true),
            ("bash <<<'rm -rf x'", true),
            ("bash <<E\nrm -rf x\nE", true),
            ("echo $((1<<2))\nrm -rf x", true),
            ("rm>/dev/null -rf x", true),
            ("2>/dev/null rm -rf x", true),
            ("rm &>/dev/null -rf x", true),
            ("{rm,-rf,x}>/dev/null", true),
            ("$'rm' -rf x", true),
            ("rm$IFS-rf${IFS}x", true),
            ("r$@m -rf x", true),
            ("$nothing rm -rf x", true),
            ("eval 'rm -rf' x", true),
            ("echo x | xargs rm -rf", true),
            ("trap 'rm -rf x' EXIT", true),
            ("alias q='rm -rf'", true),
            ("coproc rm -rf x", true),
            ("echo 'rm -rf x' | sudo sh -e", true),
            ("printf '%s\n' 'rm -rf x' | tee script", false),
            ("function f { rm -rf x; }; f", true),
            ("sh -c \"sh -c 'rm -rf x'\"", true),
            ("for a in b; do case $a in b) rm -rf x;; esac; done", true),
            ("echo a\u{a0}# ; rm -rf x", true),
            ("cat <<E\nit's\nE\nrm x", false),
            ("rm x # -rf", false),
            ("rm x >-rf", false),
            ("echo 'rm -rf x'", false),
            ("echo rm -rf x", false),
            ("# rm -rf x", false),
            ("rm x; ls -rf", false),
            ("", false),
            ("'\"`\\", false),
        ] {
            assert_eq!(is_meant("rm -rf", &["/bin/bash", "-l", "-c", line]), expected, "{line}");
            assert_eq!(is_meant("rm -rf", &["sh", "-lc", line]), expected, "{line}");
        }
        assert!(!is_meant("rm -rf", &["python3", "-c", "rm -rf x"]));
    }

    #[test]
    fn a_line_is_found_behind_the_options_of_a_shell() {
        for (argv, expected) in [
            (&["sh", "-ce", "rm -rf x"][..], true),
            (&["bash", "-c", "-e", "rm -rf x"], true),
            (&["bash", "-c", "--", "rm -rf x"], true),
            (&["bash", "--norc", "-o", "pipefail", "+x", "-c", "rm -rf x"], true),
            (&["bash", "-ec", "-o", "pipefail", "rm -rf x"], true),
            (&["bash", "--rcfile", "y", "-ceo", "pipefail", "rm -rf x"], true),
            (&["sh", "-c", "\"$@\"", "sh", "rm", "-rf", "x"], true),
            (&["sh", "-c", "$1 ${2} x", "sh", "rm", "-rf"], true),
            (&["sh", "-c", "echo $x", "sh", "rm", "-rf"], false),
            (&["sh", "script", "-c", "rm -rf x"], false),
            (&["sh"], false),
        ] {
            assert_eq!(is_meant("rm -rf", argv), expected, "{argv:?}");
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_meant() {
        let long = format!(": {}\n", "x".repeat(MAX_LINE));
        let deep = "$(".repeat(1000);
        let mut nested = "true".to_owned();
        for _ in 0..MAX_DEPTH {
            nested = format!("eval {nested}");
        }
        for line in [&long, &deep, &nested] {
            assert!(is_meant("rm -rf", &["sh", "-c", line]));
        }
        let many = vec!["x"; MAX_ARGUMENTS + 1];
        assert!(is_meant("rm -rf", &[&["xargs"][..], &many].concat()));
        assert!(!is_meant("rm -rf", &[&["echo"][..], &many].concat()));
    }

    #[test]
    fn what_names_no_command_is_refused() {
        for text in ["", "  ", "-rf", "bin/rm -rf", &"x ".repeat(17), &"x".repeat(300)] {
            assert!(text.parse::<CommandTrigger>().is_err(), "{text:?}");
        }
        let trigger: CommandTrigger = serde_json::from_str("\" git  reset --hard\"").unwrap();
        assert_eq!(serde_json::to_string(&trigger).unwrap(), "\"git reset --hard\"");
    }
}
