//! Renamings of directories that an overlay answers with `EXDEV`, because they were there before the sandbox.
//!
//! The filter offers every renaming. Whatever is no directory on an overlay goes on to the kernel at once, and so does what
//! cannot be found out cheaply to be one for whom no worker could act. Nothing is decided by that: the kernel judges the
//! call anew. The rest is handed to a worker of the guest with the directories from which the caller's paths lead; it acts
//! as the caller's user, and the kernel judges what it does. Deliberately not here: how a directory gets another name,
//! which is `guest::rename`.
//!
//! One directory is copied at a time, so that of two that want the same one the second finds it gone.

mod before;
mod caller;

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use offleash_core::plan::Plan;
use offleash_protocol::rename::{RenameOrder, RenameWay};
use offleash_protocol::{self as protocol, GuestIds};
use offleash_sys::seccomp::{CallNotification, NotifyListener};
use offleash_sys::socket;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Pid;

use self::caller::RenameRequest;
pub(super) use self::caller::SandboxIdentity;
use crate::sandbox::DescriptorInterest;

/// Workers at a time.
const MAX_WORKERS: usize = 4;

/// The renamings that are not answered yet.
#[derive(Debug)]
pub(super) struct PendingRenames {
    kept: SandboxIdentity,
    waiting: VecDeque<OfferedCall>,
    /// What the kernel does not do by itself, until nothing else is copied.
    to_copy: VecDeque<OfferedCall>,
    running: Vec<RunningWorker>,
}

/// A call that waits.
#[derive(Debug)]
struct OfferedCall {
    call: CallNotification,
    listener: Arc<NotifyListener>,
}

/// A worker, and the call that it carries out.
#[derive(Debug)]
struct RunningWorker {
    offered: OfferedCall,
    socket: OwnedFd,
    request: RenameOrder,
    from: [OwnedFd; 2],
    user: Option<GuestIds>,
}

/// The start of a worker: its end of the socket, and as whom.
pub(super) type WorkerStart<'a> = dyn FnMut(OwnedFd, Option<GuestIds>) -> bool + 'a;

impl PendingRenames {
    /// For the sandbox with this first process.
    pub(super) fn new(first: Pid, plan: &Plan) -> Self {
        Self {
            kept: SandboxIdentity::of(first, plan),
            waiting: VecDeque::new(),
            to_copy: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Takes a renaming that the filter offers; false if it is the kernel's.
    pub(super) fn take(&mut self, call: CallNotification, listener: &Arc<NotifyListener>) -> bool {
        if !caller::may_be_directory(&call, &self.kept) {
            return false;
        }
        self.waiting.push_back(OfferedCall {
            call,
            listener: Arc::clone(listener),
        });
        true
    }

    pub(super) fn wait_on(&self) -> impl Iterator<Item = DescriptorInterest<'_>> {
        self.running.iter().map(|running| DescriptorInterest {
            descriptor: running.socket.as_fd(),
            writable: false,
        })
    }

    /// Whether there is anything to do.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.to_copy.is_empty() && self.running.is_empty()
    }

    /// Answers what is done, and begins with what waits.
    pub(super) fn advance(&mut self, start: &mut WorkerStart<'_>) {
        for running in std::mem::take(&mut self.running) {
            match answer_of(&running.socket) {
                WorkerAnswer::None => self.running.push(running),
                WorkerAnswer::Is(outcome) => self.answered(running, outcome),
                WorkerAnswer::Gone => self.settle(running, start),
            }
        }
        while self.running.len() < MAX_WORKERS {
            let (how, next) = match self.is_copying() {
                false => (
                    RenameWay::ByCopy,
                    self.to_copy.pop_front().or_else(|| self.waiting.pop_front()),
                ),
                true => (RenameWay::ByKernel, self.waiting.pop_front()),
            };
            let Some(next) = next else { return };
            self.begin(next, how, start);
        }
    }

    /// Leaves all that waits to itself: everything inside is gone.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.to_copy.clear();
        self.running.clear();
    }

    fn is_copying(&self) -> bool {
        self.running
            .iter()
            .any(|running| running.request.how != RenameWay::ByKernel)
    }

    fn begin(&mut self, offered: OfferedCall, how: RenameWay, start: &mut WorkerStart<'_>) {
        let asked = RenameRequest::by(&offered.call, &self.kept);
        if !offered.listener.still_waits_for(&offered.call) {
            // Whoever asked is gone, and what was opened may be another's.
            return;
        }
        let Some(RenameRequest {
            paths,
            from,
            replaces,
            user,
        }) = asked
        else {
            return offered.leave_to_kernel();
        };
        let [old, new] = paths;
        let token = RandomState::new().hash_one(offered.call.id);
        let request = RenameOrder {
            old,
            new,
            replaces,
            token,
            how,
        };
        self.start(offered, request, from, user, start);
    }

    fn start(
        &mut self,
        offered: OfferedCall,
        request: RenameOrder,
        from: [OwnedFd; 2],
        user: Option<GuestIds>,
        start: &mut WorkerStart<'_>,
    ) {
        match ask(&request, &from, user, start) {
            Some(socket) => self.running.push(RunningWorker {
                offered,
                socket,
                request,
                from,
                user,
            }),
            None => offered.leave_to_kernel(),
        }
    }

    fn answered(&mut self, running: RunningWorker, outcome: Result<(), Errno>) {
        if running.request.how == RenameWay::ByKernel && outcome == Err(Errno::XDEV) {
            return self.to_copy.push_back(running.offered);
        }
        running.offered.complete(outcome);
    }

    /// A worker ended without an answer: whoever lives in the sandbox may end it, or there were too many processes. Another
    /// one finishes what it began, or undoes it.
    fn settle(&mut self, running: RunningWorker, start: &mut WorkerStart<'_>) {
        match running.request.how {
            RenameWay::ByCopy => {
                let request = RenameOrder {
                    how: RenameWay::Settle,
                    ..running.request
                };
                self.start(running.offered, request, running.from, running.user, start);
            }
            RenameWay::ByKernel | RenameWay::Settle => running.offered.leave_to_kernel(),
        }
    }
}

impl OfferedCall {
    /// The caller may be gone by now, and what cannot be answered ends with the sandbox.
    fn leave_to_kernel(&self) {
        let _answered = self.listener.proceed(&self.call);
    }

    /// As [`Self::leave_to_kernel`].
    fn complete(&self, outcome: Result<(), Errno>) {
        let _answered = self.listener.complete(&self.call, outcome);
    }
}

/// What a worker said.
enum WorkerAnswer {
    None,
    Is(Result<(), Errno>),
    Gone,
}

fn answer_of(socket: &OwnedFd) -> WorkerAnswer {
    let mut errno = [0; 4];
    match rustix::net::recv(socket, &mut errno[..], RecvFlags::DONTWAIT) {
        Ok((4, _)) => {
            // From inside, so it is an error number or none at all.
            WorkerAnswer::Is(match i32::from_ne_bytes(errno) {
                0 => Ok(()),
                errno @ 1..4096 => Err(Errno::from_raw_os_error(errno)),
                _ => Err(Errno::XDEV),
            })
        }
        Err(Errno::AGAIN | Errno::INTR) => WorkerAnswer::None,
        _ => WorkerAnswer::Gone,
    }
}

/// Has a worker started, and sends it the request.
fn ask(
    request: &RenameOrder,
    from: &[OwnedFd; 2],
    user: Option<GuestIds>,
    start: &mut WorkerStart<'_>,
) -> Option<OwnedFd> {
    let frame = protocol::encode(request).ok()?;
    let (ours, theirs) = socket::stream_pair().ok()?;
    let descriptors = [from[0].as_fd(), from[1].as_fd()];
    // A new socket has room for far more.
    let sent = socket::send_now(ours.as_fd(), &frame, &descriptors).ok()?;
    (sent == frame.len() && start(theirs, user)).then_some(ours)
}

/// How a place is opened that is only named, or looked at.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
