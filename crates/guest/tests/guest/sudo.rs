//! `sudo` inside: what it starts, as whom, and what those who speak to the guest in its place can do.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::harness::{Guest, Role, program, roles, shell, start};
use crate::users::is_root;
use offleash_protocol::sudo::{SudoReply, SudoRequest, SudoRun};
use offleash_protocol::{ExecCommand, ExitReport, GuestIds, MessageDecoder, ToGuest, encode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// A guest that serves sudo, and a directory with the program.
struct Sudo {
    guest: Guest,
    directory: tempfile::TempDir,
}

fn serve(role: Role) -> Sudo {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let guest_program = PathBuf::from(std::ffi::OsStr::from_bytes(&program()));
    // A copy, since others may not reach where it was built.
    std::fs::copy(guest_program, directory.path().join("sudo")).expect("the program");
    let mut sudo = Sudo {
        guest: start(role),
        directory,
    };
    let path = sudo.socket().as_os_str().as_bytes().to_vec();
    sudo.guest.send(&ToGuest::ServeSudo { path });
    // The answer to something later says that it listens.
    sudo.guest.usage();
    sudo
}

impl Sudo {
    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/sudo")
    }

    /// A script that finds the program; `$me` is the caller's own id.
    fn script(&self, user: Option<GuestIds>, script: &str) -> ExecCommand {
        let directory = self.directory.path().to_str().expect("text");
        let env = [
            ("PATH", format!("{directory}:/usr/local/bin:/usr/bin:/bin")),
            ("OFFLEASH_SUDO_SOCKET", format!("{directory}/run/sudo")),
            ("SECRET", "1".to_owned()),
            ("me", format!("#{}", rustix::process::geteuid().as_raw())),
        ];
        let env = env.map(|(name, value)| (name.as_bytes().to_vec(), value.into_bytes()));
        ExecCommand {
            env: env.to_vec(),
            user,
            ..shell(script)
        }
    }

    fn output(&mut self, user: Option<GuestIds>, script: &str) -> String {
        let request = self.script(user, script);
        let outcome = self.guest.run(request);
        outcome.text() + &String::from_utf8_lossy(&outcome.stderr)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        let patience = Some(std::time::Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a socket");
        stream
    }
}

const SOMEBODY: GuestIds = GuestIds {
    uid: 54_321,
    gid: 54_322,
};

#[test]
fn somebody_becomes_root_and_root_somebody() {
    if !is_root() {
        return;
    }
    let mut sudo = serve(Role::Subreaper);
    let script = "sudo id -u; sudo -u '#54323' id -u; sudo -n -E sh -c 'echo $SECRET $HOME $SUDO_UID $SUDO_GID'";
    assert_eq!(sudo.output(Some(SOMEBODY), script), "0\n54323\n1 /root 54321 54322\n");
    let script = "sudo sh -c 'echo \"$SECRET|$USER|$SUDO_COMMAND\"'; sudo -i pwd; sudo -s echo '$HOME'";
    let expected = "|root|sh -c echo \"$SECRET|$USER|$SUDO_COMMAND\"\n/root\n/root\n";
    assert_eq!(sudo.output(Some(SOMEBODY), script), expected);
    assert_eq!(
        sudo.output(None, "sudo -u '#54321' sh -c 'echo $SUDO_USER; id -u'"),
        "root\n54321\n"
    );
}

#[test]
fn a_command_has_the_callers_streams_directory_and_code() {
    for role in roles() {
        let mut sudo = serve(role);
        for (script, expected) in [
            (
                "cd /usr; echo in | sudo -u \"$me\" sh -c 'cat; pwd; echo err >&2' 2>&1",
                "in\n/usr\nerr\n",
            ),
            ("sudo -u \"$me\" sh -c 'exit 7'; echo $?", "7\n"),
            ("sudo -u \"$me\" sh -c 'kill -9 $$'; echo $?", "137\n"),
            ("sudo -u \"$me\" A=b sh -c 'echo $A'", "b\n"),
            ("sudo -k; sudo -v && echo well", "well\n"),
            (
                "sudo -u \"$me\" no-such-command; echo $?",
                "1\nsudo: no-such-command: command not found\n",
            ),
            (
                "sudo -u nobody-has-this-name true; echo $?",
                "1\nsudo: unknown user nobody-has-this-name\n",
            ),
        ] {
            assert_eq!(sudo.output(None, script), expected, "{script}");
        }
        let usage = sudo.output(None, "sudo --no-such-option; echo $?");
        assert!(usage.starts_with("1\nusage: sudo "), "{usage}");
        assert!(sudo.output(None, "sudo --version").starts_with("Sudo version "));
    }
}

#[test]
fn without_a_listener_it_says_so() {
    let mut sudo = serve(Role::Subreaper);
    std::fs::remove_file(sudo.socket()).unwrap();
    let said = sudo.output(None, "sudo true; echo $?");
    assert!(said.starts_with("1\nsudo: nobody listens at "), "{said}");
}

#[test]
fn signals_are_passed_on() {
    let mut sudo = serve(Role::Subreaper);
    let script =
        "exec sudo -u \"$me\" sh -c 'trap \"echo caught; exit 3\" TERM; echo ready; while :; do sleep 0.01; done'";
    let request = sudo.script(None, script);
    let exec = sudo.guest.exec(request);
    sudo.guest.wait_for_output(exec, "ready");
    sudo.guest.send(&ToGuest::Signal {
        exec,
        signal: 15,
        group: false,
    });
    let outcome = sudo.guest.wait(exec);
    assert_eq!(
        (outcome.text(), outcome.end),
        ("ready\ncaught\n".to_owned(), Some(ExitReport::Exited { code: 3 }))
    );
}

#[test]
fn a_command_goes_with_whoever_asked_for_it() {
    let mut sudo = serve(Role::Subreaper);
    let request = sudo.script(None, "exec sudo -u \"$me\" sh -c 'sleep 600 & echo ready; wait'");
    let exec = sudo.guest.exec(request);
    sudo.guest.wait_for_output(exec, "ready");
    sudo.guest.send(&ToGuest::Signal {
        exec,
        signal: 9,
        group: false,
    });
    sudo.guest.wait(exec);
    sudo.guest.wait_until_alone();
}

fn run(argv: &[&str]) -> SudoRequest {
    SudoRequest::Run(SudoRun {
        argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: Vec::new(),
        cwd: b"/".to_vec(),
        user: GuestIds {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
        terminal: false,
    })
}

/// Sends bytes and so many descriptors with the first of them.
fn send(stream: &UnixStream, bytes: &[u8], descriptors: usize) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let null = std::fs::File::open("/dev/null").expect("null");
    let given = vec![null.as_fd(); descriptors];
    assert!(descriptors == 0 || control.push(SendAncillaryMessage::ScmRights(&given)));
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).expect("sent");
}

/// What comes until the guest closes the connection.
fn answers(mut stream: UnixStream) -> Vec<SudoReply> {
    let (mut bytes, mut decoder, mut replies) = (Vec::new(), MessageDecoder::new(), Vec::new());
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    decoder.push(&bytes);
    while let Some(reply) = decoder.next().expect("the guest keeps to the protocol") {
        replies.push(reply);
    }
    replies
}

#[test]
fn whoever_speaks_otherwise_is_shown_the_door() {
    let mut sudo = serve(Role::Subreaper);
    let command = encode(&run(&["true"])).expect("it fits");
    let signal = encode(&SudoRequest::Signal { signal: 15 }).expect("it fits");
    let too_large = u32::MAX.to_le_bytes();
    for (bytes, descriptors) in [
        (&command[..], 0),
        (&command, 2),
        (&command, 4),
        (&signal, 0),
        (&signal, 3),
        (&too_large, 0),
        (b"\x04\0\0\0\xff\xff\xff\xff", 3),
    ] {
        let stream = sudo.connect();
        send(&stream, bytes, descriptors);
        assert_eq!(answers(stream), [], "{descriptors}");
    }
    let stream = sudo.connect();
    send(&stream, &command, 3);
    assert_eq!(answers(stream).len(), 1);
    // Twice, and a signal that is not passed on, while the command runs.
    let sleeper = encode(&run(&["sleep", "600"])).expect("it fits");
    for second in [&sleeper, &encode(&SudoRequest::Signal { signal: 9 }).expect("it fits")] {
        let stream = sudo.connect();
        send(&stream, &sleeper, 3);
        send(&stream, second, 0);
        assert_eq!(answers(stream), []);
    }
    assert_eq!(sudo.output(None, "sudo -u \"$me\" echo well"), "well\n");
    sudo.guest.wait_until_alone();
}

#[test]
fn those_who_say_nothing_keep_nobody_out() {
    let mut sudo = serve(Role::Subreaper);
    let mut idle: Vec<UnixStream> = (0..100).map(|_| sudo.connect()).collect();
    for stream in &mut idle {
        // Half a frame, which never goes on; some are gone already.
        let _ = stream.write_all(&[100, 0]);
    }
    assert_eq!(sudo.output(None, "sudo -u \"$me\" echo well"), "well\n");
    drop(idle);
    assert_eq!(sudo.output(None, "sudo -u \"$me\" echo well"), "well\n");
}

#[test]
fn only_so_many_run_at_once_and_the_others_wait() {
    let mut sudo = serve(Role::Subreaper);
    let sleeper = encode(&run(&["sleep", "600"])).expect("it fits");
    let mut running: Vec<UnixStream> = (0..64).map(|_| sudo.connect()).collect();
    for stream in &running {
        send(stream, &sleeper, 3);
    }
    let request = sudo.script(None, "sudo -u \"$me\" echo well");
    let waiting = sudo.guest.exec(request);
    sudo.guest.usage();
    assert_eq!(sudo.guest.outcome(waiting).end, None);
    running.clear();
    assert_eq!(sudo.guest.wait(waiting).text(), "well\n");
    sudo.guest.wait_until_alone();
}
