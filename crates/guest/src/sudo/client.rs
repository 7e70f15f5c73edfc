//! The asking side: a program inside that passes its streams on, waits, forwards signals and ends as the command did.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use offleash_protocol::sudo::{SOCKET, SudoReply, SudoRequest, SudoRun};
use offleash_protocol::{ExitReport, GuestIds, MessageDecoder, StartFailure, encode};
use offleash_sys::spawn::{self, SignalQueue, SignalTarget};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use super::SOCKET_VARIABLE;
use super::arguments::{ShellChoice, SudoAction, SudoArguments, UsageError};
use super::environment::{self, Environment, SudoAsker};
use super::terminal::TerminalRelay;
use crate::accounts::{self, PASSWD, PasswdEntry, decimal, number};

const USAGE: &[u8] =
    b"usage: sudo [-EHiknSsv] [-u user] [VAR=value] [command [argument ...]]\n       sudo -l | -k | -v | -V | -h\n";

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;
const SIGWINCH: i32 = 28;

/// Passed on as they are: HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CONT, WINCH.
const PASSED_ON: [i32; 9] = [1, 2, 3, 10, 12, 14, 15, SIGCONT, SIGWINCH];

/// Exit code of what could not be done.
const FAILED: u8 = 1;

/// What is said about a failure, in parts.
type Complaint = Vec<Vec<u8>>;

/// Runs the program; answers its exit code.
pub(crate) fn run(argv: &[&CStr], env: &[&CStr]) -> u8 {
    let words = argv.iter().skip(1).map(|word| word.to_bytes());
    let Ok(arguments) = SudoArguments::parse(words) else {
        return misused(UsageError);
    };
    let env = env
        .iter()
        .filter_map(|variable| variable_of(variable.to_bytes()))
        .collect();
    match arguments.action {
        SudoAction::Help => said(1, &[USAGE]),
        SudoAction::Version => said(
            1,
            &[
                b"Sudo version 1.9, as offleash ",
                env!("CARGO_PKG_VERSION").as_bytes(),
                b" has it\n",
            ],
        ),
        SudoAction::Nothing => 0,
        SudoAction::List => match caller() {
            Ok(caller) => said(
                1,
                &[
                    b"User ",
                    &caller.name,
                    b" may run the following commands here:\n    (ALL : ALL) NOPASSWD: ALL\n",
                ],
            ),
            Err(complaint) => complained(&complaint),
        },
        SudoAction::Run => carry_out(&arguments, env).unwrap_or_else(|complaint| complained(&complaint)),
    }
}

fn variable_of(variable: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let end = variable.iter().position(|byte| *byte == b'=').filter(|end| *end > 0)?;
    Some((variable[..end].to_vec(), variable[end + 1..].to_vec()))
}

fn misused(_: UsageError) -> u8 {
    said(2, &[USAGE]);
    FAILED
}

/// Writes to standard output or error.
fn said(stream: i32, parts: &[&[u8]]) -> u8 {
    let text = parts.concat();
    // Whoever closed it does not want to know.
    let _ = spawn::copy_descriptor(stream).and_then(|stream| rustix::io::write(stream, &text));
    0
}

fn complained(complaint: &Complaint) -> u8 {
    said(2, &[b"sudo: ", &complaint.concat(), b"\n"]);
    FAILED
}

fn complaint(parts: &[&[u8]]) -> Complaint {
    parts.iter().map(|part| part.to_vec()).collect()
}

/// What failed, with the number of the error.
fn errno(what: &'static [u8]) -> impl Fn(Errno) -> Complaint {
    move |errno| complaint(&[what, b": error ", &decimal(errno.raw_os_error().unsigned_abs())])
}

fn carry_out(arguments: &SudoArguments, own: Environment) -> Result<u8, Complaint> {
    crate::agent::occupy_standard_streams().map_err(errno(b"opening /dev/null"))?;
    let caller = caller()?;
    let target = target(arguments)?;
    let socket = connect(environment::get(&own, SOCKET_VARIABLE).unwrap_or(SOCKET.as_bytes()))?;
    let argv = command(arguments, &target, &own);
    let cwd = match arguments.shell {
        ShellChoice::Login => target.home.clone(),
        _ => rustix::process::getcwd(Vec::new()).map_or_else(|_| Vec::from(&b"/"[..]), |path| path.into_bytes()),
    };
    let asked = SudoAsker {
        arguments,
        caller: &caller,
        target: &target,
        command: &argv,
    };
    let env = environment::compose(&asked, own);
    let program = argv.first().cloned().unwrap_or_default();
    let user = GuestIds {
        uid: target.uid,
        gid: target.gid,
    };
    // From here on they are passed on.
    let signals = SignalQueue::of_all().map_err(errno(b"signals"))?;
    let copy = |number| spawn::copy_descriptor(number).map_err(errno(b"copying a descriptor"));
    let streams = [copy(0)?, copy(1)?, copy(2)?];
    let (mut relay, streams) = TerminalRelay::between(streams).map_err(errno(b"making a terminal"))?;
    let run = SudoRun {
        argv,
        env,
        cwd,
        user,
        terminal: relay.is_some(),
    };
    ask(&socket, &SudoRequest::Run(run), streams)?;
    let end = wait(&socket, &signals, relay.as_mut());
    // It shows the last of what was written, and gives the terminal back.
    drop(relay);
    exit_code(end?, &program)
}

/// Who asks.
fn caller() -> Result<PasswdEntry, Complaint> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let text = accounts::read(PASSWD).map_err(errno(b"reading /etc/passwd"))?;
    let mut caller = PasswdEntry::find(&text, |account| account.uid == uid).unwrap_or_else(|| nameless(uid));
    caller.gid = gid;
    Ok(caller)
}

fn nameless(uid: u32) -> PasswdEntry {
    PasswdEntry {
        name: decimal(uid),
        uid,
        gid: uid,
        home: Vec::from(&b"/"[..]),
        shell: Vec::from(&b"/bin/sh"[..]),
    }
}

/// As whom: the user of that name or, behind `#`, of that number.
fn target(arguments: &SudoArguments) -> Result<PasswdEntry, Complaint> {
    let name = arguments.user.as_deref().unwrap_or(b"root");
    let text = accounts::read(PASSWD).map_err(errno(b"reading /etc/passwd"))?;
    let by_number = name.strip_prefix(b"#").and_then(number);
    let found = match by_number {
        Some(uid) => Some(PasswdEntry::find(&text, |account| account.uid == uid).unwrap_or_else(|| nameless(uid))),
        None => PasswdEntry::find(&text, |account| account.name == name),
    };
    let mut target = found.ok_or_else(|| complaint(&[b"unknown user ", name]))?;
    if let Some((uid, gid)) = only_ids() {
        // Every name means them there.
        (target.uid, target.gid) = (uid, gid);
    }
    Ok(target)
}

/// The ids of this process, if this user namespace has no others.
fn only_ids() -> Option<(u32, u32)> {
    let ids: u64 = crate::processes::read(b"/proc/self/uid_map")
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            line.split(|byte| *byte == b' ')
                .filter(|field| !field.is_empty())
                .nth(2)
        })
        .filter_map(number)
        .map(u64::from)
        .sum();
    (ids == 1).then(|| (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()))
}

/// What is to be started: the command, or a shell that is given it.
fn command(arguments: &SudoArguments, target: &PasswdEntry, own: &Environment) -> Vec<Vec<u8>> {
    let usual = || match target.shell.is_empty() {
        true => Vec::from(&b"/bin/sh"[..]),
        false => target.shell.clone(),
    };
    let mut argv = match arguments.shell {
        ShellChoice::None => return arguments.command.clone(),
        ShellChoice::Login => Vec::from([usual(), Vec::from(&b"-l"[..])]),
        ShellChoice::Own => {
            let shell = environment::get(own, b"SHELL").filter(|shell| !shell.is_empty());
            Vec::from([shell.map_or_else(usual, <[u8]>::to_vec)])
        }
    };
    if !arguments.command.is_empty() {
        argv.push(Vec::from(&b"-c"[..]));
        let words: Vec<Vec<u8>> = arguments.command.iter().map(|word| escaped(word)).collect();
        argv.push(words.join(&b' '));
    }
    argv
}

/// A word that a shell takes for one; `$` is left to it, as sudo does.
fn escaped(word: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(word.len());
    for byte in word {
        if !byte.is_ascii_alphanumeric() && !matches!(byte, b'_' | b'-' | b'$') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

fn connect(path: &[u8]) -> Result<OwnedFd, Complaint> {
    let failed = |errno: Errno| {
        let number = decimal(errno.raw_os_error().unsigned_abs());
        complaint(&[
            b"nobody listens at ",
            path,
            b" (error ",
            &number,
            b"): there is no sudo in this sandbox",
        ])
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(errno(b"socket"))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
    Ok(socket)
}

/// Sends the request, the streams with its first byte.
fn ask(socket: &OwnedFd, request: &SudoRequest, streams: [OwnedFd; 3]) -> Result<(), Complaint> {
    let frame = encode(request).map_err(|_| complaint(&[b"the arguments and the environment are too long"]))?;
    let streams = [streams[0].as_fd(), streams[1].as_fd(), streams[2].as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&streams));
    let (first, rest) = frame.split_at(1);
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(first)], &mut control, SendFlags::NOSIGNAL);
    sent.and_then(|_| send_all(socket, rest))
        .map_err(errno(b"asking for the command"))
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Waits for the command's end, and passes on signals meanwhile and, with a terminal of its own, what is typed and shown.
fn wait(
    socket: &OwnedFd,
    signals: &SignalQueue,
    mut relay: Option<&mut TerminalRelay>,
) -> Result<ExitReport, Complaint> {
    let mut decoder = MessageDecoder::<SudoReply>::new();
    let gone = || complaint(&[b"the sandbox's init is gone"]);
    loop {
        let mut polled = Vec::from([
            PollFd::new(socket, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ]);
        polled.extend(relay.iter().flat_map(|relay| relay.interests()));
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(errno(b"poll")(error)),
        }
        drop(polled);
        if let Some(relay) = relay.as_mut() {
            relay.carry();
        }
        while let Some(signal) = signals.next() {
            match (signal, relay.as_mut()) {
                (SIGWINCH, Some(relay)) => relay.resize(),
                (SIGTSTP, Some(relay)) => {
                    relay.leave();
                    pass_on(socket, signal);
                    relay.take();
                }
                _ => pass_on(socket, signal),
            }
        }
        let mut buffer = [0; 1024];
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(gone()),
            Ok((count, _)) => decoder.push(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Err(gone()),
        }
        if let Some(reply) = decoder.next().map_err(|_| gone())? {
            return Ok(reply.end);
        }
    }
}

fn pass_on(socket: &OwnedFd, signal: i32) {
    let send = |signal| {
        if let Ok(frame) = encode(&SudoRequest::Signal { signal }) {
            // If nobody is there any more, that is heard of next.
            let _ = send_all(socket, &frame);
        }
    };
    match signal {
        // In a session of its own nothing is stopped by the signal for that.
        SIGTSTP => {
            send(SIGSTOP);
            // What continues this process is passed on, too.
            let _ = spawn::signal(SignalTarget::Process(rustix::process::getpid().as_raw_pid()), SIGSTOP);
        }
        signal if PASSED_ON.contains(&signal) => send(signal),
        _ => {}
    }
}

/// The exit code for an end, as shells have it.
fn exit_code(end: ExitReport, program: &[u8]) -> Result<u8, Complaint> {
    let number = |errno: i32| decimal(errno.unsigned_abs());
    match end {
        ExitReport::Exited { code } => Ok(code),
        ExitReport::Signaled { signal } => {
            Ok(u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)))
        }
        ExitReport::NotStarted(StartFailure::NotFound) => Err(complaint(&[program, b": command not found"])),
        ExitReport::NotStarted(StartFailure::NotExecutable { errno }) => Err(complaint(&[
            b"unable to execute ",
            program,
            b": error ",
            &number(errno),
        ])),
        ExitReport::NotStarted(StartFailure::Directory { errno }) => {
            Err(complaint(&[b"unable to enter the directory: error ", &number(errno)]))
        }
        ExitReport::NotStarted(StartFailure::Other { step, errno }) => {
            Err(complaint(&[step.as_bytes(), b": error ", &number(errno)]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_escaped_but_for_its_variables() {
        assert_eq!(escaped(b"a b;$X-_'"), b"a\\ b\\;$X-_\\'");
    }

    #[test]
    fn ends_are_exit_codes() {
        for (end, code) in [
            (ExitReport::Exited { code: 3 }, 3),
            (ExitReport::Signaled { signal: 15 }, 143),
        ] {
            assert_eq!(exit_code(end, b"x"), Ok(code));
        }
        let missing = exit_code(ExitReport::NotStarted(StartFailure::NotFound), b"x").expect_err("not there");
        assert_eq!(missing.concat(), b"x: command not found");
    }
}
