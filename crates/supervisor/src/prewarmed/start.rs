//! Starts supervisors, which have nothing of whoever starts them: neither streams nor terminal nor directory nor variables.

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;

use offleash_core::error::{ErrorKind, Explained};
use offleash_store::{FileError, StateDirectory};
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, SpawnError, spawn};

use super::key::{Key, VARIABLES};
use super::message::PrewarmedOrder;
use super::place::tidy;
use super::reserved::{PlaceError, SocketPlace};
use super::socket::{SELF, is_current};
use crate::frames::order_file;
use crate::roles::SupervisorRole;

/// The most sandboxes that wait in one state directory.
const MAX_COUNT: usize = 16;

/// Why no sandbox waits for later runs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Those that wait cannot be listed.
    #[error("cannot look for sandboxes that wait")]
    Directory(#[from] FileError),
    /// As many as may wait do so, for runs of other kinds.
    #[error("{MAX_COUNT} wait already, for runs with other arguments, options, variables or directories")]
    Full,
    /// There is no place for another.
    #[error("cannot reserve a place for a sandbox that waits")]
    SocketPlace(#[from] PlaceError),
    /// The order cannot be written.
    #[error("cannot write the order for a sandbox that waits")]
    Order(#[from] std::io::Error),
    /// The program cannot be started.
    #[error("cannot start the supervisor of a sandbox that waits")]
    Spawn(#[from] SpawnError),
}

impl Explained for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Directory(error) => error.kind(),
            Self::Full => ErrorKind::Conflict,
            Self::SocketPlace(_) | Self::Order(_) | Self::Spawn(_) => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Full => "`offleash warm ls` lists them, `offleash warm stop` ends them; or leave `--warm` out",
            _ => "the run itself is over; leave `--warm` out",
        };
        Some(hint.to_owned())
    }
}

/// Starts as many supervisors as it takes for `wanted` to wait for runs of `key`, and does not wait for them.
///
/// # Errors
/// [`StartError`].
pub fn start(state: &StateDirectory, key: &Key, order: &PrewarmedOrder, wanted: usize) -> Result<(), StartError> {
    let living = tidy(state)?;
    if !is_current() {
        return Ok(());
    }
    let mut free = MAX_COUNT.saturating_sub(living);
    for _ in 0..wanted {
        match SocketPlace::reserve(state, key, wanted)? {
            Some(_) if free == 0 => return Err(StartError::Full),
            Some(place) => start_one(order, place)?,
            None => break,
        }
        free -= 1;
    }
    Ok(())
}

fn start_one(order: &PrewarmedOrder, mut place: SocketPlace) -> Result<(), StartError> {
    let order = order_file(order)?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let variable = |name: &&str| Some((name.as_bytes().to_vec(), std::env::var_os(name)?.into_vec()));
    let env: Vec<_> = VARIABLES.iter().filter_map(variable).collect();
    spawn(&SpawnCommand {
        argv: &SupervisorRole::Prewarmed.arguments(SELF.as_bytes()),
        env: &env,
        cwd: Some(b"/"),
        descriptors: &[order.as_fd(), null.as_fd(), null.as_fd(), place.as_fd()],
        user: None,
        session: SessionChoice::New,
        orphaned: OrphanFate::Lives,
    })?;
    place.hand_over();
    Ok(())
}
