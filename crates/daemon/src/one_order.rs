//! A process that carries out one order for the daemon: another one of our own program, which ends with the daemon.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use offleash_supervisor::frames::{Message, only, order_file};
use offleash_supervisor::roles::SupervisorRole;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use crate::launch::{OWN_PROGRAM, Process};

/// Variables of the daemon that such a process has too: where certificate authorities, the owner's directories and the
/// programs are that keep passwords.
const PASSED_ON: [&str; 6] = [
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "DOCKER_CONFIG",
];

/// What is in front of a frame at most, bytes.
const FRAME_HEAD: u64 = 64;

/// Has a process of that role carry the order out.
///
/// # Errors
/// When there is no such process, or it ended without an answer.
pub(crate) async fn carried_out<O: Message, A: Message>(
    program: Option<&Path>,
    role: SupervisorRole,
    order: &O,
) -> io::Result<A> {
    let order = order_file(order)?;
    let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let program = program.unwrap_or(Path::new(OWN_PROGRAM));
    let value = |name: &&str| Some((name.as_bytes().to_vec(), std::env::var_os(name)?.into_vec()));
    let env: Vec<_> = PASSED_ON.iter().filter_map(value).collect();
    let spawned = spawn(&SpawnCommand {
        argv: &role.arguments(program.as_os_str().as_bytes()),
        env: &env,
        cwd: Some(b"/"),
        descriptors: &[order.as_fd(), theirs.as_fd(), null.as_fd()],
        user: None,
        session: SessionChoice::New,
        // Threads of the event loop end with the daemon.
        orphaned: OrphanFate::Dies,
    })
    .map_err(io::Error::other)?;
    drop(theirs);
    // Not reaped yet, so its number is still its own.
    let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
    let process = Process::new(pidfd_open(pid, PidfdFlags::empty())?);
    rustix::io::ioctl_fionbio(&answer, true)?;
    let mut text = Vec::new();
    let answer = pipe::Receiver::from_owned_fd(answer)?;
    // One more than a frame has is none.
    let most = u64::try_from(A::MAX_FRAME)
        .unwrap_or(u64::MAX)
        .saturating_add(FRAME_HEAD);
    answer.take(most).read_to_end(&mut text).await?;
    let _reaped = process.ended().await?;
    only(&text)
}
