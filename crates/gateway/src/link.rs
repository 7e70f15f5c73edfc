//! The gateway's end of the socket to its supervisor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::wire::Report;
use crate::wire::frames::encode;

/// How much may wait for a supervisor that takes its time; beyond it, what is for the record is counted together.
const MAX_UNSENT: usize = 1024 * 1024;
/// How long the last of it may take.
const LAST: Duration = Duration::from_secs(5);

/// Passes on what there is to tell. Nothing waits for it: what the socket does not take now it takes later.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: OwnedFd,
    unsent: Mutex<Unsent>,
    /// That something is to be told which has time.
    woken: Notify,
}

#[derive(Debug, Default)]
struct Unsent {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

/// Messages, and what goes with the first byte.
#[derive(Debug)]
struct Piece {
    bytes: Zeroizing<Vec<u8>>,
    sent: usize,
    descriptor: Option<OwnedFd>,
}

impl Link {
    /// # Errors
    /// When the socket cannot be told not to wait.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(Arc::new(Inner {
            socket,
            unsent: Mutex::default(),
            woken: Notify::new(),
        })))
    }

    /// Tells `report`, before this returns if the supervisor takes it.
    pub(crate) fn send(&self, report: &Report) {
        self.send_with(report, None);
    }

    /// The same, with a descriptor.
    pub(crate) fn send_with(&self, report: &Report, descriptor: Option<OwnedFd>) {
        if let Ok(bytes) = encode(report) {
            self.put(bytes, descriptor);
        }
    }

    /// Tells all of them at once.
    pub(crate) fn send_all(&self, reports: impl Iterator<Item = Report>) {
        let mut all = Vec::new();
        for report in reports {
            if let Ok(bytes) = encode(&report) {
                all.extend_from_slice(&bytes);
            }
        }
        if !all.is_empty() {
            self.put(Zeroizing::new(all), None);
        }
    }

    fn put(&self, bytes: Zeroizing<Vec<u8>>, descriptor: Option<OwnedFd>) {
        let mut unsent = self.unsent();
        unsent.bytes += bytes.len();
        let sent = 0;
        unsent.pieces.push_back(Piece {
            bytes,
            sent,
            descriptor,
        });
        self.flush(&mut unsent);
    }

    /// Sends what the socket takes; what it never will is dropped.
    fn flush(&self, unsent: &mut Unsent) {
        while let Some(piece) = unsent.pieces.front_mut() {
            let rest = piece.bytes.get(piece.sent..).unwrap_or_default();
            let descriptor = piece.descriptor.as_ref().map(AsFd::as_fd);
            match socket::send_now(self.as_fd(), rest, descriptor.as_slice()) {
                Ok(sent) => {
                    piece.descriptor = None;
                    piece.sent += sent;
                    unsent.bytes = unsent.bytes.saturating_sub(sent);
                    if piece.sent == piece.bytes.len() {
                        unsent.pieces.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.wake();
                    return;
                }
                // The supervisor is gone, which is noticed where orders are read.
                Err(_) => *unsent = Unsent::default(),
            }
        }
    }

    /// Whether more may be told that is for the record.
    pub(crate) fn has_room(&self) -> bool {
        self.unsent().bytes < MAX_UNSENT
    }

    /// Says that there is something to be told which has time.
    pub(crate) fn wake(&self) {
        self.0.woken.notify_one();
    }

    /// Returns when something said so.
    pub(crate) async fn woken(&self) {
        self.0.woken.notified().await;
    }

    /// Sends what waits, if the socket takes it now; whether all of it is sent.
    pub(crate) fn send_rest(&self) -> bool {
        let mut unsent = self.unsent();
        self.flush(&mut unsent);
        unsent.pieces.is_empty()
    }

    /// Sends all that waits, for as long as that may take at the end.
    pub(crate) fn send_last(&self) {
        let until = Instant::now() + LAST;
        while !self.send_rest() && Instant::now() < until {
            let _ready = self.wait_for(PollFlags::OUT, LAST);
        }
    }

    /// Returns when there is an order, or there will never be one.
    ///
    /// # Errors
    /// What poll(2) answers.
    pub(crate) fn wait_for_orders(&self) -> io::Result<()> {
        self.wait_for(PollFlags::IN, Duration::from_secs(60))
    }

    fn wait_for(&self, flags: PollFlags, patience: Duration) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.0.socket, flags)];
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match rustix::event::poll(&mut polled, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.0.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

/// The same one for as long as it lives; no other descriptor of the socket is made, so that it is closed when this process
/// is killed before what it serves.
impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
