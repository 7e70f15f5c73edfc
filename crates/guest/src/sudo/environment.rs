//! What of the caller's environment a command gets, and what it gets besides.

use alloc::vec::Vec;

use super::arguments::{PreservedVariables, ShellChoice, SudoArguments};
use crate::accounts::{PasswdEntry, decimal};

/// An environment: names and values, each name once.
pub(super) type Environment = Vec<(Vec<u8>, Vec<u8>)>;

/// Where commands are looked for, whatever the caller's path was.
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is kept of the caller's, besides `LC_*` and what leads to the network.
const KEPT: [&[u8]; 6] = [b"TERM", b"LANG", b"LANGUAGE", b"COLORTERM", b"DISPLAY", b"XAUTHORITY"];

/// The variables by which programs know proxies and authorities; without them they could not reach the network here.
const LEADING: [&[u8]; 7] = [
    b"SSL_CERT_FILE",
    b"SSL_CERT_DIR",
    b"REQUESTS_CA_BUNDLE",
    b"CURL_CA_BUNDLE",
    b"NODE_EXTRA_CA_CERTS",
    b"GIT_SSL_CAINFO",
    b"PIP_CERT",
];

/// Who asks, for whom, and for what.
pub(super) struct SudoAsker<'a> {
    pub(super) arguments: &'a SudoArguments,
    pub(super) caller: &'a PasswdEntry,
    pub(super) target: &'a PasswdEntry,
    /// The command with its arguments, as it is told to itself.
    pub(super) command: &'a [Vec<u8>],
}

/// The environment of a command.
pub(super) fn compose(asked: &SudoAsker<'_>, own: Environment) -> Environment {
    let SudoAsker {
        arguments,
        caller,
        target,
        command,
    } = asked;
    let is_kept = |name: &[u8]| match &arguments.preserved {
        PreservedVariables::All => true,
        PreservedVariables::Named(names) if names.iter().any(|named| named == name) => true,
        PreservedVariables::Named(_) | PreservedVariables::Usual => is_usual(name),
    };
    let mut env = own;
    env.retain(|(name, _)| is_kept(name));
    let keeps_home =
        arguments.preserved == PreservedVariables::All && !arguments.sets_home && arguments.shell != ShellChoice::Login;
    if !(keeps_home && get(&env, b"HOME").is_some()) {
        set(&mut env, b"HOME", &target.home);
    }
    if get(&env, b"TERM").is_none() {
        set(&mut env, b"TERM", b"unknown");
    }
    let mail = [b"/var/mail/", &target.name[..]].concat();
    for (name, value) in [
        (&b"PATH"[..], PATH),
        (b"USER", &target.name),
        (b"LOGNAME", &target.name),
        (b"SHELL", &target.shell),
        (b"MAIL", &mail),
        (b"SUDO_USER", &caller.name),
        (b"SUDO_UID", &decimal(caller.uid)),
        (b"SUDO_GID", &decimal(caller.gid)),
        (b"SUDO_COMMAND", &command.join(&b' ')),
    ] {
        set(&mut env, name, value);
    }
    for (name, value) in &arguments.assignments {
        set(&mut env, name, value);
    }
    env
}

fn is_usual(name: &[u8]) -> bool {
    let is_proxy = name.len() > 6 && name[name.len() - 6..].eq_ignore_ascii_case(b"_proxy");
    KEPT.contains(&name) || LEADING.contains(&name) || name.starts_with(b"LC_") || is_proxy
}

/// The value of a variable.
pub(super) fn get<'a>(env: &'a Environment, name: &[u8]) -> Option<&'a [u8]> {
    env.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
}

fn set(env: &mut Environment, name: &[u8], value: &[u8]) {
    env.retain(|(known, _)| known != name);
    env.push((name.to_vec(), value.to_vec()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, uid: u32) -> PasswdEntry {
        let text = |text: alloc::string::String| text.into_bytes();
        PasswdEntry {
            name: text(name.into()),
            uid,
            gid: uid + 1,
            home: text(alloc::format!("/home/{name}")),
            shell: text("/bin/sh".into()),
        }
    }

    fn composed(line: &str) -> Environment {
        let own = [
            ("TERM", "xterm"),
            ("LC_ALL", "C"),
            ("HOME", "/mine"),
            ("SECRET", "x"),
            ("https_proxy", "p"),
        ];
        let own = own.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        let arguments = SudoArguments::parse(line.split(' ').map(str::as_bytes)).expect("it is used like that");
        let asked = SudoAsker {
            arguments: &arguments,
            caller: &account("me", 1000),
            target: &account("root", 0),
            command: &arguments.command,
        };
        compose(&asked, own.to_vec())
    }

    #[test]
    fn little_of_the_callers_is_kept_and_much_is_said() {
        let env = composed("A=1 id -u");
        for (name, value) in [
            ("TERM", "xterm"),
            ("LC_ALL", "C"),
            ("https_proxy", "p"),
            ("HOME", "/home/root"),
            ("USER", "root"),
            ("SUDO_USER", "me"),
            ("SUDO_UID", "1000"),
            ("SUDO_GID", "1001"),
            ("SUDO_COMMAND", "id -u"),
            ("A", "1"),
        ] {
            assert_eq!(get(&env, name.as_bytes()), Some(value.as_bytes()), "{name}");
        }
        assert_eq!(get(&env, b"SECRET"), None);
    }

    #[test]
    fn what_is_to_be_preserved_is() {
        assert_eq!(get(&composed("--preserve-env=SECRET id"), b"SECRET"), Some(&b"x"[..]));
        for (line, home) in [("-E id", "/mine"), ("-E -H id", "/home/root"), ("-E -i", "/home/root")] {
            let env = composed(line);
            assert_eq!(
                (get(&env, b"SECRET"), get(&env, b"HOME")),
                (Some(&b"x"[..]), Some(home.as_bytes()))
            );
            assert_eq!(get(&env, b"PATH"), Some(PATH));
        }
    }
}
