//! A process that is to be a gateway and serves nothing yet.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use offleash_sys::{process, socket};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus};

use crate::journal_entries::LossCause;
use crate::order_socket::OrderSocket;
use crate::wire::frames::{Incoming, MAX_REPORT, Received};
use crate::wire::{Order, Report};

/// How long it may take to make an authority.
const TIMEOUT: Duration = Duration::from_secs(30);

/// It waits for orders, and makes itself ready meanwhile. Dropping it ends it.
#[derive(Debug)]
pub struct GatewayProcess {
    pub(crate) orders: OrderSocket,
    pub(crate) incoming: Incoming,
    pub(crate) child: Child,
}

/// What is known of the process itself.
#[derive(Debug)]
pub(crate) struct Child {
    /// `None` of one that is none but a thread of a test, or has been reaped.
    pidfd: Option<OwnedFd>,
}

impl GatewayProcess {
    /// Starts this program anew, as a gateway: with nothing of this process but a socket, in a session of its own so that
    /// nobody's terminal sends it signals, and ended by the kernel with the thread that calls this.
    ///
    /// # Errors
    /// When it cannot be executed, or there are no more processes or descriptors.
    #[cfg(not(test))]
    pub fn start() -> io::Result<Self> {
        use offleash_sys::spawn::{self, OrphanFate, SessionChoice, SpawnCommand};
        use rustix::fs::{Mode, OFlags};

        let (ours, theirs) = socket::stream_pair()?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let request = SpawnCommand {
            argv: &[crate::wire::PROCESS_NAME.as_bytes().to_vec()],
            env: &[],
            cwd: Some(b"/"),
            descriptors: &[theirs.as_fd(), nothing.as_fd(), nothing.as_fd()],
            session: SessionChoice::New,
            orphaned: OrphanFate::Dies,
            user: None,
        };
        let spawned = spawn::spawn_file(b"/proc/self/exe", &request).map_err(io::Error::other)?;
        let pid = rustix::process::Pid::from_raw(spawned.pid).ok_or(io::ErrorKind::NotFound)?;
        // It is not reaped before this, so that the number is its own.
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        Self::at(ours, Some(pidfd))
    }

    /// In a test of this room the program is that test, and the process a thread of it.
    ///
    /// # Errors
    /// As otherwise.
    #[cfg(test)]
    pub fn start() -> io::Result<Self> {
        Self::on_thread(|link| {
            let _ended = crate::process::serve(link, crate::serve::event_loop().unwrap());
        })
    }

    #[cfg(test)]
    pub(crate) fn on_thread(serve: impl FnOnce(crate::link::Link) + Send + 'static) -> io::Result<Self> {
        let (ours, theirs) = socket::stream_pair()?;
        let link = crate::link::Link::new(theirs)?;
        std::thread::spawn(move || serve(link));
        Self::at(ours, None)
    }

    fn at(ours: OwnedFd, pidfd: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            orders: OrderSocket::new(ours)?,
            incoming: Incoming::new(MAX_REPORT),
            child: Child { pidfd },
        })
    }

    /// Has it make the authority of the sandbox, if it has none; [`Self::authority`] is what came of it.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn ask_for_authority(&self) -> io::Result<()> {
        self.orders.send(&Order::MakeAuthority, &[])
    }

    /// The certificate of the authority that was asked for, in DER.
    ///
    /// # Errors
    /// When it cannot be made, or the process is gone or does not answer.
    pub(crate) fn authority(&mut self) -> io::Result<Vec<u8>> {
        let until = Instant::now() + TIMEOUT;
        loop {
            match self.incoming.next()? {
                Some((Report::Authority(made), _)) => return made.map_err(io::Error::other),
                Some((Report::Ready(Err(error)), _)) => return Err(error.into()),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.incoming.receive(self.orders.as_fd())? {
                Received::Something => {}
                Received::Nothing if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
                Received::Nothing => self.orders.wait_for_reports(left)?,
                Received::End => return Err(io::Error::other("the gateway ended while it started")),
            }
        }
    }
}

impl Child {
    /// Ends it, if it has not ended, and says how it did; `None` if it was reaped before.
    pub(crate) fn end(&mut self) -> Option<LossCause> {
        let pidfd = self.pidfd.take()?;
        // Whatever it says, what is told of the end is how it came to it.
        let _killed = process::kill(pidfd.as_fd());
        let status = loop {
            match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
                Ok(status) => break status,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        };
        status.as_ref().map(cause)
    }
}

fn cause(status: &WaitIdStatus) -> LossCause {
    match status.terminating_signal() {
        Some(signal) => LossCause::Signaled(signal),
        None => LossCause::Exited(status.exit_status().unwrap_or(-1)),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}
