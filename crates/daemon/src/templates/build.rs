//! The process that builds a template: another one of our own program, which ends with the daemon.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use offleash_core::text::one_line;
use offleash_supervisor::builds::BuildOrder;
use offleash_supervisor::roles::SupervisorRole;
use offleash_supervisor::templates::BuildEvent;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitIdStatus, pidfd_open};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until};

use crate::launch::{OWN_PROGRAM, Process};

/// How long a builder that is told to end may take; it takes apart the sandbox of its step.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Carries an order out in a process of its own, and tells how that goes on, the last event included. When `stop` is ready the
/// process is told to end.
///
/// # Errors
/// When there is no such process, or it ended without its last event.
pub(crate) async fn build(
    program: Option<&Path>,
    order: &BuildOrder,
    tell: impl Fn(&BuildEvent),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    let (told, telling) = pipe_with(PipeFlags::CLOEXEC)?;
    let argv = program
        .unwrap_or(Path::new(OWN_PROGRAM))
        .as_os_str()
        .as_bytes()
        .to_vec();
    let env = owners_variables();
    let spawned = spawn(&SpawnCommand {
        argv: &SupervisorRole::BuildTemplate.arguments(&argv),
        env: &env,
        cwd: Some(b"/"),
        descriptors: &[theirs.as_fd(), telling.as_fd(), telling.as_fd()],
        user: None,
        session: SessionChoice::New,
        // Threads of the event loop end with the daemon.
        orphaned: OrphanFate::Dies,
    })
    .map_err(io::Error::other)?;
    drop((theirs, telling));
    // Not reaped yet, so its number is still its own.
    let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
    let process = Process::new(pidfd_open(pid, PidfdFlags::empty())?);
    rustix::io::ioctl_fionbio(&ours, true)?;
    rustix::io::ioctl_fionbio(&told, true)?;
    let mut pipe = pipe::Sender::from_owned_fd(ours)?;
    // One that does not take its order says why.
    let _sent = pipe.write_all(&serde_json::to_vec(order)?).await;
    drop(pipe);
    let (mut has_ended, mut other) = (false, None);
    let mut lines = BufReader::new(pipe::Receiver::from_owned_fd(told)?).split(b'\n');
    let mut stop = pin!(stop);
    let (mut is_stopped, mut deadline) = (false, None);
    loop {
        let line = tokio::select! {
            line = lines.next_segment() => line,
            () = &mut stop, if !is_stopped => {
                is_stopped = true;
                deadline = Some(Instant::now() + END_TIMEOUT);
                let _gone = process.terminate();
                continue;
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                deadline = None;
                // What its sandbox is made of dies with it.
                let _gone = process.kill();
                continue;
            }
        };
        let Ok(Some(line)) = line else { break };
        match serde_json::from_slice::<BuildEvent>(&line) {
            Ok(event) => {
                has_ended |= event.is_last();
                tell(&event);
            }
            // A loader that warns, or a builder that is out of order.
            Err(_) => {
                other.get_or_insert(line);
            }
        }
    }
    let ended = process.ended().await?;
    if has_ended {
        return Ok(());
    }
    let said = other.map_or(String::new(), |line| format!("; it said: {}", one_line(&line)));
    Err(io::Error::other(format!("{}{said}", how_it_ended(ended))))
}

/// How a builder ended that did not say it.
fn how_it_ended(ended: Option<WaitIdStatus>) -> String {
    let of_signal = |ended: &WaitIdStatus| ended.terminating_signal();
    let of_exit = |ended: &WaitIdStatus| ended.exit_status();
    match (ended.as_ref().and_then(of_signal), ended.as_ref().and_then(of_exit)) {
        (Some(signal), _) => format!("it was killed by signal {signal}"),
        (None, Some(code)) => format!("it ended with exit code {code} and did not say why"),
        (None, None) => "it ended and did not say how".to_owned(),
    }
}

/// The variables by which a builder finds the configuration of the owner's package managers.
fn owners_variables() -> Vec<(Vec<u8>, Vec<u8>)> {
    const KNOWN: [&str; 7] = [
        "HOME",
        "XDG_CONFIG_HOME",
        "XDG_CONFIG_DIRS",
        "PIP_CONFIG_FILE",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_TRUSTED_HOST",
    ];
    let is_known = |name: &OsString| {
        let of_npm = name
            .to_str()
            .is_some_and(|name| name.to_ascii_lowercase().starts_with("npm_config_"));
        of_npm || KNOWN.iter().any(|known| name == known)
    };
    let known = std::env::vars_os().filter(|(name, _)| is_known(name));
    known.map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn told_of(script: &str) -> String {
        let null = std::fs::File::open("/dev/null").unwrap();
        let spawned = spawn(&SpawnCommand {
            argv: &["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()),
            env: &[],
            cwd: None,
            descriptors: &[null.as_fd(); 3],
            user: None,
            session: SessionChoice::New,
            orphaned: OrphanFate::Dies,
        });
        let pid = Pid::from_raw(spawned.unwrap().pid).unwrap();
        let process = Process::new(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        how_it_ended(process.ended().await.unwrap())
    }

    #[tokio::test]
    async fn how_a_builder_died_is_told() {
        assert_eq!(told_of("kill -SEGV $$").await, "it was killed by signal 11");
        assert_eq!(told_of("exit 3").await, "it ended with exit code 3 and did not say why");
        assert_eq!(how_it_ended(None), "it ended and did not say how");
    }
}
