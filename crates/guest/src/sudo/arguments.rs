//! The options of `sudo` that programs use (sudo(8)).

use alloc::vec::Vec;

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SudoArguments {
    pub(super) action: SudoAction,
    /// `-u`; root if absent.
    pub(super) user: Option<Vec<u8>>,
    /// `-E`, or the names of `--preserve-env=`.
    pub(super) preserved: PreservedVariables,
    /// `-H`.
    pub(super) sets_home: bool,
    pub(super) shell: ShellChoice,
    /// `NAME=VALUE` before the command.
    pub(super) assignments: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) command: Vec<Vec<u8>>,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) enum SudoAction {
    /// Run the command.
    #[default]
    Run,
    /// `-l`: say what may be run.
    List,
    /// `-k`, `-K` and `-v` without a command: there is nothing to remember or to forget.
    Nothing,
    /// `-V`.
    Version,
    /// `-h`.
    Help,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum PreservedVariables {
    #[default]
    Usual,
    Named(Vec<Vec<u8>>),
    All,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) enum ShellChoice {
    #[default]
    None,
    /// `-s`: the shell that the caller uses.
    Own,
    /// `-i`: the target's, as if it logged in.
    Login,
}

/// It is not used like that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UsageError;

impl SudoArguments {
    /// Reads what follows the program's name.
    pub(super) fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Self, UsageError> {
        let mut arguments = Self::default();
        let mut first = None;
        while let Some(word) = words.next() {
            match word {
                b"--" => break,
                [b'-', b'-', long @ ..] => arguments.long(long, &mut words)?,
                [b'-', short @ ..] if !short.is_empty() => arguments.short(short, &mut words)?,
                word => {
                    first = Some(word);
                    break;
                }
            }
        }
        let mut rest = first.into_iter().chain(words).map(<[u8]>::to_vec).peekable();
        while let Some(assignment) = rest.peek().and_then(|word| assignment(word)) {
            arguments.assignments.push(assignment);
            rest.next();
        }
        arguments.command = rest.collect();
        arguments.settle()
    }

    fn long<'a>(&mut self, option: &[u8], words: &mut impl Iterator<Item = &'a [u8]>) -> Result<(), UsageError> {
        let (name, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(place) => (&option[..place], Some(&option[place + 1..])),
            None => (option, None),
        };
        let short = match name {
            b"user" => {
                self.user = Some(value.or_else(|| words.next()).ok_or(UsageError)?.to_vec());
                return Ok(());
            }
            b"prompt" => {
                return value.or_else(|| words.next()).map(|_| ()).ok_or(UsageError);
            }
            b"preserve-env" if value.is_some() => {
                let names = value.unwrap_or_default().split(|byte| *byte == b',');
                self.preserved = PreservedVariables::Named(names.map(<[u8]>::to_vec).collect());
                return Ok(());
            }
            b"preserve-env" => b'E',
            b"set-home" => b'H',
            b"login" => b'i',
            b"shell" => b's',
            b"non-interactive" => b'n',
            b"stdin" => b'S',
            b"reset-timestamp" => b'k',
            b"remove-timestamp" => b'K',
            b"validate" => b'v',
            b"list" => b'l',
            b"version" => b'V',
            b"help" => b'h',
            _ => return Err(UsageError),
        };
        match value {
            None => self.flag(short),
            Some(_) => Err(UsageError),
        }
    }

    fn short<'a>(&mut self, letters: &[u8], words: &mut impl Iterator<Item = &'a [u8]>) -> Result<(), UsageError> {
        for (place, letter) in letters.iter().enumerate() {
            if !matches!(letter, b'u' | b'p') {
                self.flag(*letter)?;
                continue;
            }
            // Its value is the rest of the word, or the next one.
            let rest = Some(&letters[place + 1..]).filter(|rest| !rest.is_empty());
            let value = rest.or_else(|| words.next()).ok_or(UsageError)?;
            if *letter == b'u' {
                self.user = Some(value.to_vec());
            }
            return Ok(());
        }
        Ok(())
    }

    fn flag(&mut self, letter: u8) -> Result<(), UsageError> {
        match letter {
            b'E' => self.preserved = PreservedVariables::All,
            b'H' => self.sets_home = true,
            b'i' if self.shell != ShellChoice::Own => self.shell = ShellChoice::Login,
            b's' if self.shell != ShellChoice::Login => self.shell = ShellChoice::Own,
            // Nobody is asked for a password.
            b'n' | b'S' | b'A' => {}
            b'k' | b'K' | b'v' if self.action == SudoAction::Run => self.action = SudoAction::Nothing,
            b'k' | b'K' | b'v' => {}
            b'l' => self.action = SudoAction::List,
            b'V' => self.action = SudoAction::Version,
            b'h' => self.action = SudoAction::Help,
            _ => return Err(UsageError),
        }
        Ok(())
    }

    /// Whether what was asked for can be done together.
    fn settle(mut self) -> Result<Self, UsageError> {
        let has_command = !self.command.is_empty();
        match self.action {
            // As with `-k command`.
            SudoAction::Nothing if has_command => self.action = SudoAction::Run,
            SudoAction::Run if !has_command && self.shell == ShellChoice::None => return Err(UsageError),
            _ => {}
        }
        Ok(self)
    }
}

/// `NAME=VALUE`, if the name can be one.
fn assignment(word: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let end = word.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&word[..end], &word[end + 1..]);
    let is_name = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let starts_well = name.first().is_some_and(|first| !first.is_ascii_digit());
    (is_name && starts_well).then(|| (name.to_vec(), value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<SudoArguments, UsageError> {
        SudoArguments::parse(line.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes))
    }

    fn command(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn options_end_where_the_command_begins() {
        for line in [
            "-n -u bob id -u",
            "-nubob id -u",
            "--user=bob -S -- id -u",
            "--user bob -p x id -u",
        ] {
            let parsed = parse(line).expect("it is used like that");
            assert_eq!(
                (parsed.user, parsed.command),
                (Some(b"bob".to_vec()), command("id -u")),
                "{line}"
            );
        }
    }

    #[test]
    fn assignments_come_before_the_command() {
        let parsed = parse("-E A=1 B_2= env C=3").expect("it is used like that");
        let expected = [(b"A".to_vec(), b"1".to_vec()), (b"B_2".to_vec(), Vec::new())];
        assert_eq!(
            (&parsed.assignments[..], parsed.command),
            (&expected[..], command("env C=3"))
        );
        assert_eq!(parsed.preserved, PreservedVariables::All);
        assert_eq!(parse("./a=b").expect("a program").command, command("./a=b"));
        let named = parse("--preserve-env=A,B id").expect("it is used like that").preserved;
        assert_eq!(named, PreservedVariables::Named(command("A B")));
    }

    #[test]
    fn what_needs_no_command_does_without() {
        for (line, action) in [
            ("-k", SudoAction::Nothing),
            ("-v", SudoAction::Nothing),
            ("-nv", SudoAction::Nothing),
            ("-l", SudoAction::List),
            ("-V", SudoAction::Version),
            ("--version", SudoAction::Version),
            ("-k true", SudoAction::Run),
            ("-i", SudoAction::Run),
            ("-s", SudoAction::Run),
        ] {
            assert_eq!(parse(line).expect("it is used like that").action, action, "{line}");
        }
    }

    #[test]
    fn other_uses_are_refused() {
        for line in [
            "",
            "-u",
            "-Z true",
            "--what true",
            "-n",
            "-i -s",
            "--login=x",
            "A=1",
            "--",
        ] {
            assert_eq!(parse(line), Err(UsageError), "{line}");
        }
    }
}
