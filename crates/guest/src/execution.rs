//! One command that the host asked for, from its start to the report of its end.

use alloc::vec::Vec;

use offleash_protocol::{
    ExecCommand, ExitReport, FromGuest, GuestIds, GuestStream, OUTPUT_CHUNK, StartFailure, StdinKind,
};
use offleash_sys::pty::{self, Pty};
use offleash_sys::spawn::{
    self, ChildStarter, EndedAs, EndedChild, OrphanFate, SessionChoice, SpawnCommand, SpawnError, SpawnUser,
    SpawnedChild,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::DumpableBehavior;

use crate::connection::HostConnection;
use crate::input::{ExecInput, InputKind, InputOverrun};
use crate::output::{ExecOutput, OutputKind};

/// A command that was started and whose end was not reported yet.
pub(crate) struct RunningExec {
    pub(crate) exec: u32,
    /// Its process, which is also its session and its first process group; reaped once `ended` is set.
    pub(crate) pid: i32,
    pub(crate) input: ExecInput,
    pub(crate) outputs: Vec<ExecOutput>,
    /// Whether the host wants no output of it now.
    pub(crate) held: bool,
    /// The controlling side, if the command has a terminal.
    terminal: Option<OwnedFd>,
    ended: Option<EndedChild>,
}

/// Our ends of a command's streams and what it gets.
struct ExecStreams {
    input: ExecInput,
    outputs: Vec<ExecOutput>,
    terminal: Option<OwnedFd>,
    /// What becomes descriptors 0, 1 and 2, closed here after the start.
    given: [OwnedFd; 3],
}

impl RunningExec {
    /// Starts a command.
    pub(crate) fn start(starter: ChildStarter, request: &ExecCommand) -> Result<Self, StartFailure> {
        let user = request.user.map(user_of).transpose()?;
        let ExecStreams {
            input,
            outputs,
            terminal,
            given,
        } = match request.tty {
            Some((rows, columns)) => terminal_streams(rows, columns, request.stdin)?,
            None => pipe_streams(request.stdin)?,
        };
        if let Some(user) = user {
            give_to(user, &given, terminal.is_some());
        }
        let command = SpawnCommand {
            argv: &request.argv,
            env: &request.env,
            cwd: Some(&request.cwd),
            descriptors: &[given[0].as_fd(), given[1].as_fd(), given[2].as_fd()],
            session: if terminal.is_some() {
                SessionChoice::WithTerminal
            } else {
                SessionChoice::New
            },
            // When the guest is gone its commands are of no use; where it is an init the kernel sees to that anyway.
            orphaned: OrphanFate::Dies,
            user,
        };
        let spawned = spawn_as_told(starter, &command)?;
        Ok(Self {
            exec: request.exec,
            pid: spawned.pid,
            input,
            outputs,
            held: false,
            terminal,
            ended: None,
        })
    }

    /// Queues input and writes what the command takes at once; answers how many bytes are done with.
    pub(crate) fn push_input(&mut self, bytes: &[u8]) -> Result<usize, InputOverrun> {
        self.input.push(bytes)?;
        Ok(self.input.advance())
    }

    /// Sends a signal to the process group, and to what is in the terminal's foreground.
    pub(crate) fn signal_group(&self, signal: i32) {
        // Whoever is not there any more needs no signal.
        let _ = spawn::signal(spawn::SignalTarget::Group(self.pid), signal);
        let foreground = self.terminal.as_ref().and_then(pty::foreground_group);
        if let Some(group) = foreground.filter(|group| *group != self.pid) {
            let _ = spawn::signal(spawn::SignalTarget::Group(group), signal);
        }
    }

    /// Gives the terminal another size, if there is one.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = &self.terminal {
            // The size is a courtesy; the command goes on with the old one.
            let _ = pty::resize(terminal, rows, columns);
        }
    }

    /// Whether signals can reach it: its process id is its own until it has been reaped.
    pub(crate) fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Notes that the command's process has ended.
    pub(crate) fn command_ended(&mut self, ended: EndedChild) {
        self.ended = Some(ended);
        for output in &mut self.outputs {
            output.command_ended();
        }
    }

    /// Reads one piece from an output and sends it; answers whether there was one.
    pub(crate) fn forward(&mut self, output: usize, connection: &mut HostConnection, buffer: &mut [u8]) -> bool {
        let Some(output) = self.outputs.get_mut(output) else {
            return false;
        };
        // Small reads of what little room is left would only cost system calls.
        if self.held || connection.room() < OUTPUT_CHUNK {
            return false;
        }
        let length = output.read(buffer, OUTPUT_CHUNK);
        if length > 0 {
            self.input.note_output();
            let bytes = buffer[..length].to_vec();
            connection.send(&FromGuest::Output {
                exec: self.exec,
                stream: output.stream(),
                bytes,
            });
        }
        length > 0
    }

    /// Forwards what a command that has ended left in its outputs, as far as there is room; answers the report of its
    /// end once all was sent.
    pub(crate) fn wind_up(&mut self, connection: &mut HostConnection, buffer: &mut [u8]) -> Option<FromGuest> {
        let ended = self.ended?;
        for output in 0..self.outputs.len() {
            while self.forward(output, connection, buffer) {}
        }
        if !self.outputs.iter().all(ExecOutput::is_done) {
            return None;
        }
        let end = end_of(ended.how);
        let EndedChild {
            user_us,
            system_us,
            max_rss_kib,
            ..
        } = ended;
        Some(FromGuest::Ended {
            exec: self.exec,
            end,
            user_us,
            system_us,
            max_rss_kib,
        })
    }

    /// What stays open for processes that the command left behind, so that they are not killed by SIGPIPE or SIGHUP.
    pub(crate) fn into_leftovers(self) -> impl Iterator<Item = OwnedFd> {
        self.outputs.into_iter().filter_map(ExecOutput::into_leftover)
    }
}

/// The user of these ids, if they can be somebody's.
pub(crate) fn user_of(ids: GuestIds) -> Result<SpawnUser, StartFailure> {
    let GuestIds { uid, gid } = ids;
    match uid != u32::MAX && gid != u32::MAX {
        true => Ok(SpawnUser { uid, gid }),
        false => Err(failed("change the user")(Errno::INVAL)),
    }
}

/// Starts a program.
pub(crate) fn spawn_as_told(starter: ChildStarter, request: &SpawnCommand<'_>) -> Result<SpawnedChild, StartFailure> {
    let spawned = starter.spawn(request);
    if request.user.is_some() {
        // The child shared our memory, whose protection a change of user may lower (`fs.suid_dumpable`).
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
    spawned.map_err(start_failure)
}

/// How a process ended, as the host is told.
pub(crate) fn end_of(how: EndedAs) -> ExitReport {
    match how {
        EndedAs::Exited(code) => ExitReport::Exited { code },
        EndedAs::Signaled(signal) => ExitReport::Signaled { signal },
    }
}

/// Makes pipes and terminals the user's own, so that they can be opened again by name (`/dev/stderr`).
pub(crate) fn give_to(user: SpawnUser, streams: &[OwnedFd], is_terminal: bool) {
    let owner = Uid::from_raw(user.uid);
    if owner == rustix::process::getuid() {
        return;
    }
    for stream in streams {
        let is_pipe =
            || rustix::fs::fstat(stream).is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Fifo);
        if is_terminal || is_pipe() {
            // Without the capability for it the command has them as they are.
            let _ = rustix::fs::fchown(stream, Some(owner), None);
        }
    }
}

fn start_failure(error: SpawnError) -> StartFailure {
    match error {
        SpawnError::NotFound => StartFailure::NotFound,
        SpawnError::NotExecutable { errno } => StartFailure::NotExecutable {
            errno: errno.raw_os_error(),
        },
        SpawnError::Directory { errno } => StartFailure::Directory {
            errno: errno.raw_os_error(),
        },
        SpawnError::Step { step, errno } => failed(step)(errno),
    }
}

fn failed(step: &'static str) -> impl Fn(Errno) -> StartFailure {
    move |errno| StartFailure::Other {
        step: step.into(),
        errno: errno.raw_os_error(),
    }
}

fn pipe_streams(stdin: StdinKind) -> Result<ExecStreams, StartFailure> {
    let (input, given_input) = match stdin {
        StdinKind::Stream => {
            let (theirs, ours) = pipe()?;
            set_nonblocking(&ours)?;
            (Some(ours), theirs)
        }
        StdinKind::Null => (None, null_input()?),
    };
    let (stdout, given_stdout) = pipe()?;
    set_nonblocking(&stdout)?;
    let (stderr, given_stderr) = pipe()?;
    set_nonblocking(&stderr)?;
    let outputs = [(stdout, GuestStream::Stdout), (stderr, GuestStream::Stderr)]
        .map(|(descriptor, stream)| ExecOutput::new(descriptor, OutputKind::Pipe, stream));
    Ok(ExecStreams {
        input: ExecInput::new(input, InputKind::Pipe),
        outputs: Vec::from(outputs),
        terminal: None,
        given: [given_input, given_stdout, given_stderr],
    })
}

fn terminal_streams(rows: u16, columns: u16, stdin: StdinKind) -> Result<ExecStreams, StartFailure> {
    let Pty { controller, terminal } = pty::open(rows, columns).map_err(failed("open a terminal"))?;
    let input = match stdin {
        StdinKind::Stream => Some(copy(&controller)?),
        StdinKind::Null => None,
    };
    let output = ExecOutput::new(copy(&controller)?, OutputKind::Terminal, GuestStream::Stdout);
    Ok(ExecStreams {
        input: ExecInput::new(input, InputKind::Terminal),
        outputs: Vec::from([output]),
        terminal: Some(controller),
        given: [copy(&terminal)?, copy(&terminal)?, terminal],
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), StartFailure> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))
}

fn null_input() -> Result<OwnedFd, StartFailure> {
    rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open /dev/null"))
}

fn copy(descriptor: &OwnedFd) -> Result<OwnedFd, StartFailure> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 3).map_err(failed("dup"))
}

/// Only for our end: the command's is another open file, and commands do not expect `EAGAIN`.
fn set_nonblocking(descriptor: impl AsFd) -> Result<(), StartFailure> {
    let descriptor: BorrowedFd<'_> = descriptor.as_fd();
    rustix::io::ioctl_fionbio(descriptor, true).map_err(failed("make a pipe non-blocking"))
}
