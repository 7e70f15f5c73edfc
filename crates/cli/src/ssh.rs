//! `offleash ssh` and `ssh-config`: sandboxes for OpenSSH's client, and for programs that use it.
//!
//! OpenSSH starts `offleash ssh --stdio ID`, which is the server of its one connection and asks the sandbox's services. Nothing
//! listens, and who may enter is who may ask the daemon.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use offleash_core::id::{RunId, SandboxName};
use offleash_core::text::Text;
use offleash_ssh::HostKey;

use crate::args::SshArgs;
use crate::failure::Failure;
use crate::logins::config_directory;
use crate::server_at::ServerAt;
use crate::terminal;

/// What stands behind the id of a sandbox in names of hosts.
const SUFFIX: &str = ".offleash";
/// What OpenSSH knows the key by, whatever the sandbox.
const ALIAS: &str = "offleash";

pub(crate) fn ssh(arguments: &SshArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let given = arguments.id.strip_suffix(SUFFIX).unwrap_or(&arguments.id);
    check(given)?;
    let client = at.client()?;
    let id = client.id_of(given)?;
    if arguments.stdio {
        return speak(&client, &id);
    }
    // Told here, where it is read.
    client.running(&id)?;
    let files = KeyFiles::kept()?;
    let user = arguments.user.as_deref().unwrap_or("user");
    let words = Words::of(at, &files)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "this process becomes the user's own `ssh`, with the user's environment, terminal and descriptors"
    )]
    let mut command = Command::new("ssh");
    for option in words.options() {
        command.arg("-o").arg(option);
    }
    command.arg("-o").arg(os(&[OsStr::new("User="), OsStr::new(user)]));
    // Options of `ssh` go before the host, which is not theirs.
    let (options, rest) = split(&arguments.arguments);
    command.args(options).arg("--").arg(format!("{id}{SUFFIX}")).args(rest);
    let error = command.exec();
    Err(Failure::from_error(&error)
        .while_trying("starting `ssh`")
        .with_hint("install OpenSSH's client; `offleash exec -it` needs none"))
}

/// That it could be an id or a name: it is written into what a shell reads.
fn check(given: &str) -> Result<(), Failure> {
    if given.parse::<RunId>().is_ok() {
        return Ok(());
    }
    given.parse::<SandboxName>().map(drop).map_err(|error| {
        Failure::from_error(&error).with_hint("`offleash ls` lists the sandboxes that there are, by name and id")
    })
}

/// Is the server of one connection.
fn speak(client: &offleash_api::client::Client, id: &str) -> Result<ExitCode, Failure> {
    let key = KeyFiles::kept()?.key;
    let services = client.services(id, None)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start an event loop: {error}")))?;
    let (input, output) = terminal::conversation();
    let served = runtime.block_on(offleash_ssh::serve(input, output, &key, services));
    // Nobody waits for what may still be read.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS).map_err(Failure::from)
}

pub(crate) fn config(at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let files = KeyFiles::kept()?;
    let words = Words::of(at, &files)?;
    let mut text = format!("Host *{SUFFIX}\n").into_bytes();
    for option in words.options() {
        let (name, value) = split_option(option.as_bytes());
        text.extend(b"    ");
        text.extend(name);
        text.push(b' ');
        text.extend(value);
        text.push(b'\n');
    }
    text.extend(b"    User user\n");
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The key that OpenSSH knows us by, and where it is told so.
struct KeyFiles {
    key: HostKey,
    known_hosts: PathBuf,
}

impl KeyFiles {
    /// Those in the user's configuration, which are made if they are not there.
    fn kept() -> Result<Self, Failure> {
        let directory = config_directory()?;
        let path = directory.join("ssh_host_key");
        let key = HostKey::kept(&path).map_err(|error| {
            Failure::from_error(&error).while_trying(format!("reading the key `{}`", Text::from(path.as_path())))
        })?;
        let known_hosts = directory.join("ssh_known_hosts");
        let line = format!("{ALIAS} {}\n", key.public());
        if std::fs::read(&known_hosts).ok().as_deref() != Some(line.as_bytes()) {
            write_new(&known_hosts, line.as_bytes()).map_err(|error| {
                Failure::from_error(&error).while_trying(format!("writing `{}`", Text::from(known_hosts.as_path())))
            })?;
        }
        Ok(Self { key, known_hosts })
    }
}

fn write_new(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(text).and_then(|()| std::fs::rename(&new, path));
    written.inspect_err(|_| {
        // What is told is why it could not be written.
        let _gone = std::fs::remove_file(&new);
    })
}

/// What OpenSSH is told.
struct Words {
    proxy: OsString,
    known_hosts: OsString,
}

impl Words {
    fn of(at: &ServerAt<'_>, files: &KeyFiles) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::from_error(&error).while_trying("finding this program"))?;
        let mut words: Vec<OsString> = vec![program.into()];
        match at {
            ServerAt::Here(None) => {}
            ServerAt::Here(Some(state)) => {
                let absolute = std::path::absolute(state)
                    .map_err(|error| Failure::from_error(&error).while_trying("finding the state directory"))?;
                words.extend(["--state".into(), absolute.into()]);
            }
            ServerAt::There(server) => words.extend(server.flags()?),
        }
        words.extend(["ssh".into(), "--stdio".into(), "--".into()]);
        let mut proxy = OsString::new();
        for word in &words {
            proxy.push(quoted(word));
            proxy.push(" ");
        }
        // OpenSSH puts the host's name there, which may be anybody's word, as in a link.
        proxy.push("'%n'");
        Ok(Self {
            proxy,
            known_hosts: files.known_hosts.clone().into(),
        })
    }

    fn options(&self) -> [OsString; 5] {
        [
            os(&[OsStr::new("ProxyCommand="), &self.proxy]),
            OsString::from(format!("HostKeyAlias={ALIAS}")),
            os(&[OsStr::new("UserKnownHostsFile=\""), &self.known_hosts, OsStr::new("\"")]),
            OsString::from("StrictHostKeyChecking=yes"),
            // It would be learned otherwise which other keys there are, of which there are none.
            OsString::from("UpdateHostKeys=no"),
        ]
    }
}

fn os(parts: &[&OsStr]) -> OsString {
    let mut whole = OsString::new();
    parts.iter().for_each(|part| whole.push(part));
    whole
}

fn split_option(option: &[u8]) -> (&[u8], &[u8]) {
    let place = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
    let (name, value) = option.split_at(place);
    (name, value.get(1..).unwrap_or_default())
}

/// A word of the command that OpenSSH gives a shell, after it has put values in the place of `%` letters.
fn quoted(word: &OsStr) -> OsString {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:=+,@[]".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return word.to_owned();
    }
    let mut out = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            b'%' => out.extend(b"%%"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    OsStr::from_bytes(&out).to_owned()
}

/// Options of `ssh`, and the command behind them. Those that take a value have it in the same word or the next.
fn split(words: &[String]) -> (&[String], &[String]) {
    const WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";
    let mut place = 0;
    while let Some(word) = words.get(place) {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            break;
        };
        if letters == "-" {
            return (
                words.get(..place).unwrap_or_default(),
                words.get(place + 1..).unwrap_or_default(),
            );
        }
        let takes = letters.find(|letter| WITH_VALUE.contains(letter));
        place += if takes.is_some_and(|at| at + 1 == letters.len()) {
            2
        } else {
            1
        };
    }
    words.split_at(place.min(words.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ssh_go_before_the_host_and_a_command_behind_it() {
        for (words, options) in [
            (&["ls", "-l"][..], 0),
            (&["-L", "8080:localhost:80", "ls"], 2),
            (&["-L8080:localhost:80", "-N"], 2),
            (&["-vN", "-p", "22", "--", "-x"], 3),
            (&["-tt", "top"], 1),
            (&["-o"], 1),
        ] {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(split(&words).0.len(), options, "{words:?}");
        }
        let dashes: Vec<String> = ["--", "-x"].map(str::to_owned).into();
        assert_eq!(split(&dashes), (&[][..], &dashes[1..]));
    }

    #[test]
    fn only_what_could_be_a_sandbox_is_given_to_openssh() {
        for good in ["work", "my-box_2.x", "i1234567890123456789"] {
            check(good).unwrap();
        }
        for bad in ["", "-oProxyCommand=x", "a;touch x", "$(x)", "a'b", "a b", "a/b"] {
            assert!(check(bad).is_err(), "{bad}");
        }
        // Between quotes, whatever name a client of OpenSSH is given.
        let files = KeyFiles {
            key: HostKey::kept(&tempfile::tempdir().unwrap().path().join("key")).unwrap(),
            known_hosts: PathBuf::from("/k"),
        };
        let words = Words::of(&ServerAt::Here(None), &files).unwrap();
        assert!(words.proxy.to_string_lossy().ends_with(" ssh --stdio -- '%n'"));
    }

    #[test]
    fn words_of_the_command_are_one_for_the_shell() {
        for (word, expected) in [
            ("/usr/bin/offleash", "/usr/bin/offleash"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("100%", "'100%%'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), OsString::from(expected));
        }
    }
}
