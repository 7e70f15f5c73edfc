//! Where a supervisor sends its orders to a gateway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use offleash_core::approval::ApprovalAnswer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::wire::Order;
use crate::wire::frames::{encode, send};

/// How long the gateway may take to take an order. It waits for nobody, so that this is long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where orders go.
#[derive(Debug, Clone)]
pub(crate) struct OrderSocket(Arc<OrderEnd>);

#[derive(Debug)]
struct OrderEnd {
    socket: OwnedFd,
    /// Held while an order is sent.
    sending: Mutex<()>,
}

impl OrderSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let sending = Mutex::default();
        Ok(Self(Arc::new(OrderEnd { socket, sending })))
    }

    /// Sends an order whole, and wipes what it was written to.
    ///
    /// # Errors
    /// When the gateway is gone, or does not take it.
    pub(crate) fn send(&self, order: &Order, descriptors: &[OwnedFd]) -> io::Result<()> {
        let bytes = encode(order)?;
        let _one_at_a_time = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        send(self.as_fd(), &bytes, descriptors, TIMEOUT)
    }

    /// Answers a question. Where the gateway is gone, nobody waits for it.
    pub(crate) fn answer(&self, question: u64, approval: ApprovalAnswer) {
        let _told = self.send(&Order::Answer { question, approval }, &[]);
    }

    /// Returns when something was said, or after this time.
    pub(crate) fn wait_for_reports(&self, patience: Duration) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.0.socket, PollFlags::IN)];
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match rustix::event::poll(&mut polled, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for OrderSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}
