//! What a client asks of a session (RFC 4254, section 6).

use offleash_core::exec::TerminalSize;

use crate::error::SshError;
use crate::wire::WireReader;

/// Variables of one session, and bytes of one.
const MAX_VARIABLES: usize = 128;
const MAX_VARIABLE: usize = 16 << 10;

/// What a session is to do before it begins.
#[derive(Debug, Default, Clone)]
pub(crate) struct SessionSetup {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) tty: Option<TerminalSize>,
}

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionRequest {
    Terminal {
        kind: String,
        size: TerminalSize,
    },
    Variable(String, String),
    Shell,
    Command(String),
    Subsystem(String),
    Resize(TerminalSize),
    Signal(i32),
    /// Something that there is not here.
    Unknown,
}

impl SessionRequest {
    /// Reads a request of the kind `kind`.
    pub(crate) fn read(kind: &str, mut fields: WireReader<'_>) -> Result<Self, SshError> {
        Ok(match kind {
            "pty-req" => {
                let term = fields.text()?.to_owned();
                let size = size(&mut fields)?;
                Self::Terminal { kind: term, size }
            }
            "env" => Self::Variable(fields.text()?.to_owned(), fields.text()?.to_owned()),
            "shell" => Self::Shell,
            "exec" => match std::str::from_utf8(fields.string()?) {
                Ok(command) => Self::Command(command.to_owned()),
                Err(_) => Self::Unknown,
            },
            "subsystem" => Self::Subsystem(fields.text()?.to_owned()),
            "window-change" => Self::Resize(size(&mut fields)?),
            "signal" => signal(fields.text()?).map_or(Self::Unknown, Self::Signal),
            _ => Self::Unknown,
        })
    }
}

impl SessionSetup {
    /// Takes a variable; `false` where there are too many, or it can be none.
    pub(crate) fn set(&mut self, name: String, value: String) -> bool {
        let is_name = !name.is_empty()
            && !name.starts_with(|letter: char| letter.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let fits = self.env.len() < MAX_VARIABLES && name.len() + value.len() <= MAX_VARIABLE;
        if !is_name || !fits || value.contains('\0') {
            return false;
        }
        self.env.retain(|(known, _)| *known != name);
        self.env.push((name, value));
        true
    }
}

fn size(fields: &mut WireReader<'_>) -> Result<TerminalSize, SshError> {
    let (columns, rows) = (fields.number()?, fields.number()?);
    // Pixels, which nobody asks for.
    let _pixels = (fields.number()?, fields.number()?);
    let bounded = |cells: u32, usual: u16| match u16::try_from(cells) {
        Ok(0) => usual,
        Ok(cells) => cells,
        Err(_) => u16::MAX,
    };
    Ok(TerminalSize {
        rows: bounded(rows, 24),
        columns: bounded(columns, 80),
    })
}

/// The number of a signal that is passed on (section 6.9).
fn signal(name: &str) -> Option<i32> {
    Some(match name {
        "HUP" => 1,
        "INT" => 2,
        "QUIT" => 3,
        "KILL" => 9,
        "TERM" => 15,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireWriter;

    fn read(kind: &str, fields: WireWriter) -> Result<SessionRequest, SshError> {
        SessionRequest::read(kind, WireReader::new(&fields.0))
    }

    #[test]
    fn requests_are_read_as_clients_write_them() {
        let terminal = WireWriter::default()
            .string("xterm")
            .number(100)
            .number(0)
            .number(0)
            .number(0)
            .string("");
        let size = TerminalSize { rows: 24, columns: 100 };
        let kind = "xterm".to_owned();
        assert_eq!(
            read("pty-req", terminal).unwrap(),
            SessionRequest::Terminal { kind, size }
        );
        let command = WireWriter::default().string("ls -l");
        assert_eq!(
            read("exec", command).unwrap(),
            SessionRequest::Command("ls -l".to_owned())
        );
        let signal = read("signal", WireWriter::default().string("TERM"));
        assert_eq!(signal.unwrap(), SessionRequest::Signal(15));
        let agent = read("auth-agent-req@openssh.com", WireWriter::default());
        assert_eq!(agent.unwrap(), SessionRequest::Unknown);
        assert!(read("exec", WireWriter::default().number(100)).is_err());
        assert!(read("window-change", WireWriter::default().number(1)).is_err());
    }

    #[test]
    fn variables_have_names_and_bounds() {
        let mut setup = SessionSetup::default();
        let mut set = |name: &str, value: &str| setup.set(name.to_owned(), value.to_owned());
        assert!(set("LANG", "C") && set("LANG", "de_DE.UTF-8"));
        for (name, value) in [("", "a"), ("1A", "a"), ("A-B", "a"), ("A=B", "a"), ("A", "\0")] {
            assert!(!set(name, value), "{name:?}");
        }
        assert!(!set("LONG", &"a".repeat(MAX_VARIABLE)));
        assert_eq!(setup.env, [("LANG".to_owned(), "de_DE.UTF-8".to_owned())]);
    }
}
