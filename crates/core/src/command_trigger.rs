//! Commands that are named by their words, before which something is to be done, such as `rm -rf` or `git reset --hard`.
//!
//! Pure, and a convenience: a program that is started by another one, behind a variable or in a script file is not seen.
//! What may be run at all is decided elsewhere, on the resolved executable ([`crate::command`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most words of one trigger, and the most bytes.
const MAX_WORDS: usize = 16;
const MAX_BYTES: usize = 256;
/// The most bytes of a line for a shell that are looked at.
const MAX_LINE: usize = 64 * 1024;

/// A command that is meant: an executable by name, or by its absolute path, and words that are among its arguments in that
/// order. Letters of short options may stand together or apart: `rm -rf` means `rm -f -r x`, too.
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
        self.matches_words(&argv) || line_of(&argv).is_some_and(|line| self.is_in_line(line))
    }

    fn is_in_line(&self, line: &str) -> bool {
        let end = (0..=line.len().min(MAX_LINE))
            .rev()
            .find(|end| line.is_char_boundary(*end));
        let commands = commands_of(&line[..end.unwrap_or(0)]);
        commands.iter().any(|command| {
            // A shell in the line is looked into as well, one deep.
            self.matches_words(command)
                || line_of(without_prefixes(command))
                    .is_some_and(|inner| commands_of(inner).iter().any(|command| self.matches_words(command)))
        })
    }

    fn matches_words(&self, words: &[String]) -> bool {
        let Some((executable, arguments)) = without_prefixes(words).split_first() else {
            return false;
        };
        self.is_executable(executable) && self.are_among(arguments)
    }

    fn is_executable(&self, given: &str) -> bool {
        match self.executable.starts_with('/') {
            true => self.executable == given,
            false => given.rsplit('/').next() == Some(&self.executable),
        }
    }

    fn are_among(&self, arguments: &[String]) -> bool {
        let options: Vec<&String> = arguments.iter().take_while(|word| *word != "--").collect();
        let letters: String = options.iter().filter_map(|word| letters_of(word)).collect();
        let mut rest = arguments.iter();
        self.words.iter().all(|word| match letters_of(word) {
            Some(wanted) => wanted.chars().all(|letter| letters.contains(letter)),
            None if word.starts_with("--") => options.iter().any(|given| {
                *given == word
                    || given
                        .strip_prefix(word.as_str())
                        .is_some_and(|rest| rest.starts_with('='))
            }),
            None => rest.any(|given| given == word),
        })
    }
}

/// The letters of short options that stand in one word.
fn letters_of(word: &str) -> Option<&str> {
    word.strip_prefix('-')
        .filter(|letters| !letters.is_empty() && !letters.starts_with('-'))
}

/// Programs whose arguments are a command, with how many words belong to themselves beside options and variables, and the
/// options of which the next word is the value.
const PREFIXES: [(&str, usize, &[&str]); 9] = [
    ("command", 0, &[]),
    ("env", 0, &["-u", "-C"]),
    ("exec", 0, &["-a"]),
    ("nice", 0, &["-n"]),
    ("nohup", 0, &[]),
    ("stdbuf", 0, &["-i", "-o", "-e"]),
    ("sudo", 0, &["-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T"]),
    ("time", 0, &["-f", "-o"]),
    ("timeout", 1, &["-k", "-s"]),
];

/// The command that such programs begin: their own words and variables that are set for it are left out.
fn without_prefixes(mut words: &[String]) -> &[String] {
    loop {
        while words.first().is_some_and(|word| is_assignment(word)) {
            words = &words[1..];
        }
        let Some((first, rest)) = words.split_first() else {
            return words;
        };
        let name = first.rsplit('/').next().unwrap_or_default();
        let Some((_, own, with_value)) = PREFIXES.iter().find(|(prefix, ..)| *prefix == name) else {
            return words;
        };
        let mut skipped = 0;
        while let Some(option) = rest.get(skipped).filter(|word| word.starts_with('-')) {
            skipped += if with_value.contains(&option.as_str()) { 2 } else { 1 };
        }
        words = rest.get(skipped + own..).unwrap_or_default();
    }
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()))
}

/// The line that a command gives a shell: `bash -l -c LINE`.
fn line_of(argv: &[String]) -> Option<&str> {
    let name = argv.first()?.rsplit('/').next()?;
    if !matches!(name, "sh" | "bash" | "dash" | "zsh" | "ash") {
        return None;
    }
    let place = argv
        .iter()
        .position(|word| letters_of(word).is_some_and(|letters| letters.ends_with('c')))?;
    argv.get(place + 1).map(String::as_str)
}

/// The simple commands of a line for a shell, in words, as far as they can be told without running it.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut characters = line.chars().peekable();
    let mut quote = None;
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some('"') | None, '\\') => {
                if let Some(next) = characters.next().filter(|next| *next != '\n') {
                    word.get_or_insert_default().push(next);
                }
            }
            // What stands between quotes is part of a word, but for commands in it.
            (Some('"'), '`') | (None, '`') | (None, ';' | '&' | '|' | '\n' | '(' | ')') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (Some('"'), '$') | (None, '$') if characters.peek() == Some(&'(') => {
                characters.next();
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
                quote = None;
            }
            (Some(_), inside) => word.get_or_insert_default().push(inside),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(character);
            }
            (None, '#') if word.is_none() => while characters.next_if(|next| *next != '\n').is_some() {},
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (None, plain) => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    commands.push(words);
    for command in &mut commands {
        let reserved = |word: &String| {
            matches!(
                word.as_str(),
                "{" | "}" | "!" | "if" | "then" | "else" | "elif" | "while" | "until" | "do"
            )
        };
        let leading = command.iter().take_while(|word| reserved(word)).count();
        command.drain(..leading);
    }
    commands.retain(|command| !command.is_empty());
    commands
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
            ("git reset", &["git", "log", "resets"], false),
            ("rm -rf", &["sudo", "-u", "root"], false),
            ("rm -rf", &["sudo", "-n", "-u", "root", "rm", "-rf", "x"], true),
            ("rm -rf", &["sudo", "-uroot", "rm", "-rf", "x"], true),
            ("rm -rf", &["nice", "-n", "5", "rm", "-rf", "x"], true),
            ("rm -rf", &["env", "A=b", "nice", "rm", "-rf", "x"], true),
            ("rm -rf", &["timeout", "-k", "5", "10", "rm", "-rf", "x"], true),
            ("rm -rf", &["timeout", "5", "rm", "-rf", "x"], true),
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
    fn what_names_no_command_is_refused() {
        for text in ["", "  ", "-rf", "bin/rm -rf", &"x ".repeat(17), &"x".repeat(300)] {
            assert!(text.parse::<CommandTrigger>().is_err(), "{text:?}");
        }
        let trigger: CommandTrigger = serde_json::from_str("\" git  reset --hard\"").unwrap();
        assert_eq!(serde_json::to_string(&trigger).unwrap(), "\"git reset --hard\"");
    }
}
