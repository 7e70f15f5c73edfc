//! A host for one guest: starts the program, speaks the protocol with it, and collects what comes back.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use offleash_protocol::{
    ExecCommand, ExitReport, FromGuest, GuestIds, GuestStream, INPUT_WINDOW, MessageDecoder, SandboxUsage, StdinKind,
    ToGuest, encode,
};
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};

use crate::worker::Worker;

/// The longest that anything here may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the guest is to its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Init of a pid namespace of its own.
    Init,
    /// A subreaper among the processes of this machine.
    Subreaper,
}

/// The guest under test: the one that was built for these tests, or the file that `OFFLEASH_GUEST` names.
pub(crate) fn program() -> Vec<u8> {
    std::env::var("OFFLEASH_GUEST")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_offleash-guest").to_owned())
        .into_bytes()
}

/// The roles in which a guest can be started here; without user namespaces, or unshare(1), only one.
#[expect(clippy::print_stdout, reason = "the test says what it left out")]
pub(crate) fn roles() -> Vec<Role> {
    let mut roles = vec![Role::Subreaper];
    match try_start(Role::Init) {
        Some(_) => roles.push(Role::Init),
        None => println!("skipped for the init of a pid namespace: none can be made here"),
    }
    roles
}

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: Option<OwnedFd>,
    decoder: MessageDecoder<FromGuest>,
    /// What was started here: the guest, or the program around it that made the namespace.
    pid: i32,
    reaped: Option<i32>,
    next_exec: u32,
    executions: HashMap<u32, Outcome>,
    pub(crate) problems: Vec<String>,
    usage: Option<SandboxUsage>,
    ready: bool,
}

/// What is known of an execution.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) pid: Option<u32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) taken: usize,
    pub(crate) end: Option<ExitReport>,
    pub(crate) user_us: u64,
    pub(crate) max_rss_kib: u64,
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A command in the default environment.
pub(crate) fn command(argv: &[&str]) -> ExecCommand {
    ExecCommand {
        exec: 0,
        argv: words(argv),
        env: vec![(b"PATH".to_vec(), b"/usr/local/bin:/usr/bin:/bin".to_vec())],
        cwd: b"/".to_vec(),
        stdin: StdinKind::Null,
        tty: None,
        oom_score_adj: None,
        user: None,
    }
}

pub(crate) fn shell(script: &str) -> ExecCommand {
    command(&["sh", "-c", script])
}

pub(crate) fn start(role: Role) -> Guest {
    try_start(role).expect("the guest says that it is ready")
}

fn try_start(role: Role) -> Option<Guest> {
    let program = program();
    let argv = match role {
        Role::Subreaper => vec![program, b"subreaper".to_vec()],
        Role::Init => {
            let mut argv = words(&[
                "unshare",
                "--user",
                "--map-root-user",
                "--pid",
                "--fork",
                "--kill-child",
            ]);
            argv.extend(words(&["--mount-proc", "--ipc", "--"]));
            argv.push(program);
            argv
        }
    };
    let mut guest = start_program(&argv);
    guest.pump_until(|guest| guest.ready);
    guest.ready.then_some(guest)
}

/// Starts any program with a control socket.
pub(crate) fn start_program(argv: &[Vec<u8>]) -> Guest {
    let (ours, theirs) = stream_pair();
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).expect("null");
    let spawned = spawn(&SpawnCommand {
        argv,
        env: &[],
        cwd: None,
        descriptors: &[null.as_fd(), null.as_fd(), null.as_fd(), theirs.as_fd()],
        session: SessionChoice::New,
        orphaned: OrphanFate::Lives,
        user: None,
    })
    .expect("the program starts");
    Guest {
        socket: Some(ours),
        decoder: MessageDecoder::new(),
        pid: spawned.pid,
        reaped: None,
        next_exec: 1,
        executions: HashMap::new(),
        problems: Vec::new(),
        usage: None,
        ready: false,
    }
}

pub(crate) fn stream_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair")
}

impl Guest {
    /// Sends bytes that need not be the protocol.
    pub(crate) fn send_bytes(&mut self, mut bytes: &[u8]) {
        let socket = self.socket.as_ref().expect("not hung up");
        while !bytes.is_empty() {
            let count = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).expect("the guest listens");
            bytes = &bytes[count..];
        }
    }

    pub(crate) fn send(&mut self, message: &ToGuest) {
        self.send_bytes(&encode(message).expect("it fits"));
    }

    /// Sends bytes of the protocol and descriptors with the first of them.
    pub(crate) fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let socket = self.socket.as_ref().expect("not hung up");
        let first = [IoSlice::new(&bytes[..1])];
        rustix::net::sendmsg(socket, &first, &mut control, SendFlags::NOSIGNAL).expect("the guest listens");
        self.send_bytes(&bytes[1..]);
    }

    /// Asks for a file worker and answers this end of its socket.
    pub(crate) fn open_files(&mut self, user: Option<GuestIds>) -> Worker {
        let (ours, theirs) = stream_pair();
        let request = encode(&ToGuest::Files { user }).expect("it fits");
        self.send_with(&request, &[theirs.as_fd()]);
        Worker::new(ours)
    }

    /// The process that was started here.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Asks for a command and answers its number.
    pub(crate) fn exec(&mut self, mut request: ExecCommand) -> u32 {
        request.exec = self.next_exec;
        self.next_exec += 1;
        let exec = request.exec;
        self.executions.insert(exec, Outcome::default());
        self.send(&ToGuest::Exec(request));
        exec
    }

    /// Asks for a command and waits for its end.
    pub(crate) fn run(&mut self, request: ExecCommand) -> Outcome {
        let exec = self.exec(request);
        self.wait(exec)
    }

    /// Waits for the end of a command.
    pub(crate) fn wait(&mut self, exec: u32) -> Outcome {
        self.pump_until(|guest| guest.executions[&exec].end.is_some());
        let outcome = self.executions[&exec].clone();
        assert!(
            outcome.end.is_some(),
            "the guest was gone before the end of the command: {outcome:?}"
        );
        outcome
    }

    pub(crate) fn outcome(&self, exec: u32) -> &Outcome {
        &self.executions[&exec]
    }

    /// Waits until a command has written `text`.
    pub(crate) fn wait_for_output(&mut self, exec: u32, text: &str) {
        self.pump_until(|guest| guest.executions[&exec].text().contains(text));
        assert!(
            self.executions[&exec].text().contains(text),
            "{:?}",
            self.executions[&exec]
        );
    }

    /// Feeds a command, as fast as it takes it, and closes its input.
    pub(crate) fn feed(&mut self, exec: u32, bytes: &[u8]) {
        let mut sent = 0;
        while sent < bytes.len() {
            let window = INPUT_WINDOW - (sent - self.executions[&exec].taken);
            let piece = window.min(60_000).min(bytes.len() - sent);
            if piece == 0 {
                let taken = self.executions[&exec].taken;
                self.pump_until(|guest| guest.executions[&exec].taken > taken);
                continue;
            }
            self.send(&ToGuest::Input {
                exec,
                bytes: bytes[sent..sent + piece].to_vec(),
            });
            sent += piece;
            self.pump(Duration::ZERO);
        }
        self.send(&ToGuest::CloseInput { exec });
    }

    pub(crate) fn usage(&mut self) -> SandboxUsage {
        self.usage = None;
        self.send(&ToGuest::Usage);
        self.pump_until(|guest| guest.usage.is_some());
        self.usage.clone().expect("the guest answers")
    }

    /// Waits until no process but the guest is left.
    pub(crate) fn wait_until_alone(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.usage().processes > 0 {
            assert!(Instant::now() < deadline, "processes are left");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Takes what the guest sends until `done` or the guest is gone.
    pub(crate) fn pump_until(&mut self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < deadline, "the guest did not do it in time: {self:?}");
            if !self.pump(Duration::from_secs(1)) {
                return;
            }
        }
    }

    /// Takes what the guest has sent, waiting at most so long for something; answers whether it is still there.
    pub(crate) fn pump(&mut self, wait: Duration) -> bool {
        let socket = self.socket.as_ref().expect("not hung up");
        let timeout = Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&timeout)) != Ok(1) {
            return true;
        }
        let mut buffer = vec![0; 256 * 1024];
        let count = rustix::io::read(socket, &mut buffer).unwrap_or(0);
        self.decoder.push(&buffer[..count]);
        while let Some(message) = self.decoder.next().expect("the guest keeps to the protocol") {
            self.take(message);
        }
        count > 0
    }

    fn take(&mut self, message: FromGuest) {
        match message {
            FromGuest::Ready { version } => {
                assert_eq!(version, offleash_protocol::VERSION);
                self.ready = true;
            }
            FromGuest::Started { exec, pid } => self.unended(exec).pid = Some(pid),
            FromGuest::Output {
                exec,
                stream: GuestStream::Stdout,
                bytes,
            } => self.unended(exec).stdout.extend(bytes),
            FromGuest::Output {
                exec,
                stream: GuestStream::Stderr,
                bytes,
            } => self.unended(exec).stderr.extend(bytes),
            FromGuest::InputTaken { exec, count } => self.unended(exec).taken += count as usize,
            FromGuest::Ended {
                exec,
                end,
                user_us,
                max_rss_kib,
                ..
            } => {
                let outcome = self.unended(exec);
                (outcome.end, outcome.user_us, outcome.max_rss_kib) = (Some(end), user_us, max_rss_kib);
            }
            FromGuest::UsageReport(usage) => self.usage = Some(usage),
            FromGuest::Problem { text } => self.problems.push(text),
        }
    }

    fn unended(&mut self, exec: u32) -> &mut Outcome {
        let outcome = self.executions.get_mut(&exec).expect("a command that was asked for");
        assert_eq!(outcome.end, None, "nothing follows the end of {exec}");
        outcome
    }

    /// Closes the control socket.
    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Waits until the guest has exited; answers its code.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let deadline = Instant::now() + TIMEOUT;
        while self.reaped.is_none() {
            assert!(Instant::now() < deadline, "the guest did not exit");
            self.try_reap();
            std::thread::sleep(Duration::from_millis(2));
        }
        self.reaped.expect("set by the loop")
    }

    fn try_reap(&mut self) {
        let pid = Pid::from_raw(self.pid);
        if let Ok(Some((_, status))) = rustix::process::waitpid(pid, WaitOptions::NOHANG) {
            self.reaped = Some(status.exit_status().unwrap_or(-1));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.socket = None;
        if !std::thread::panicking() {
            self.exit_code();
        }
    }
}

/// Whether a process of this machine is there and not dead.
pub(crate) fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Waits until `done`.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
