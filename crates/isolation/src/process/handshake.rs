//! What parent and child say to each other while a sandbox is made. Both are our own code; guest code never runs
//! before the socket is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};

/// From parent to child.
const MAPPED: u8 = b'M';
const TREE: u8 = b'T';
const START: u8 = b'S';
/// The same, with the guest's program as the first descriptor.
const START_AS: u8 = b'G';
/// From child to parent.
const FAILED: u8 = b'F';
const READY: u8 = b'R';
/// Which descriptors come with that, before those of the network: so many bytes, each one of these or a space.
const KINDS: usize = 3;
const LISTENER: u8 = b'L';
const RULESET: u8 = b'A';
const SHOWN: u8 = b'V';
const NONE: u8 = b' ';

/// A step that failed in the child.
#[derive(Debug)]
pub(crate) struct StepFailure {
    pub(crate) step: String,
    pub(crate) subject: String,
    pub(crate) source: io::Error,
}

impl StepFailure {
    pub(crate) fn new(step: &str, subject: impl Into<String>, source: io::Error) -> Self {
        Self {
            step: step.to_owned(),
            subject: subject.into(),
            source,
        }
    }
}

/// The parent's end.
#[derive(Debug)]
pub(crate) struct ParentEnd(pub(crate) OwnedFd);

/// The child's end.
#[derive(Debug)]
pub(crate) struct ChildEnd(pub(crate) OwnedFd);

/// What the child reports at last.
#[derive(Debug)]
pub(crate) struct ChildReport {
    /// What the child could not do but went on without, as `control\0reason` pairs.
    pub(crate) lacking: Vec<(String, String)>,
    /// What the child did that the parent cannot know.
    pub(crate) holding: Vec<(String, String)>,
    /// The listener of refused system calls, where there is one.
    pub(crate) listener: Option<OwnedFd>,
    /// What the child restricted itself to, for processes that enter the sandbox later.
    pub(crate) ruleset: Option<OwnedFd>,
    /// The directory in which what is shown of the limits is kept up to date.
    pub(crate) shown: Option<OwnedFd>,
    /// The sockets of the network, in their order.
    pub(crate) network: Vec<OwnedFd>,
}

pub(crate) fn pair() -> io::Result<(ParentEnd, ChildEnd)> {
    let (parent, child) = socket::message_pair()?;
    // Out of the way of the low numbers that the guest's descriptors get.
    let child = rustix::io::fcntl_dupfd_cloexec(&child, 10)?;
    Ok((ParentEnd(parent), ChildEnd(child)))
}

impl ParentEnd {
    /// The child's ids are mapped; `user` is the uid and gid to change to, if it is not them yet.
    pub(crate) fn mapped(&self, user: Option<(u32, u32)>) -> io::Result<()> {
        let mut message = vec![MAPPED];
        if let Some((uid, gid)) = user {
            message.extend(uid.to_le_bytes());
            message.extend(gid.to_le_bytes());
        }
        socket::send(self.0.as_fd(), &message, &[])
    }

    /// A detached tree for the entry at `index` that only the parent could make.
    pub(crate) fn tree(&self, index: u16, tree: BorrowedFd<'_>) -> io::Result<()> {
        let [low, high] = index.to_le_bytes();
        socket::send(self.0.as_fd(), &[TREE, low, high], &[tree])
    }

    /// All is there; enter the cgroups and become the guest, `guest` unless the child has it. `told` is what the child was
    /// not told before, a few bytes.
    pub(crate) fn start(&self, guest: Option<BorrowedFd<'_>>, entrances: &[OwnedFd], told: &[u8]) -> io::Result<()> {
        let kind = if guest.is_some() { START_AS } else { START };
        let descriptors: Vec<BorrowedFd<'_>> = guest.into_iter().chain(entrances.iter().map(AsFd::as_fd)).collect();
        socket::send(self.0.as_fd(), &[&[kind], told].concat(), &descriptors)
    }

    /// Whether waiting for the child's report would end at once.
    pub(crate) fn has_report(&self) -> bool {
        let mut waiting = [PollFd::new(&self.0, PollFlags::IN)];
        // What is wrong with the socket is told when it is read.
        !matches!(rustix::event::poll(&mut waiting, Some(&Timespec::default())), Ok(0))
    }

    /// Waits for the child's report.
    pub(crate) fn report(&self) -> Result<ChildReport, StepFailure> {
        let lost = |source| StepFailure::new("waiting for the first process", "", source);
        // A line for each control, or a path with what failed there.
        let mut buffer = vec![0; 8 * 1024];
        let received = match socket::receive(self.0.as_fd(), &mut buffer) {
            // A child that failed has not read what it was sent; the kernel says so first, and only then hands out the
            // message in which it said why (unix(7); `sock_error` in `__skb_try_recv_datagram`).
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                socket::receive(self.0.as_fd(), &mut buffer)
            }
            received => received,
        };
        let (length, descriptors) = received.map_err(lost)?;
        match buffer.get(..length).and_then(<[u8]>::split_first) {
            Some((&READY, rest)) => Ok(decode_report(rest, descriptors)),
            Some((&FAILED, rest)) => Err(decode_failure(rest)),
            _ => Err(lost(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

fn decode_report(bytes: &[u8], descriptors: Vec<OwnedFd>) -> ChildReport {
    let (kinds, text) = bytes.split_at(bytes.len().min(KINDS));
    let text = String::from_utf8_lossy(text);
    let mut descriptors = descriptors.into_iter();
    let mut of_kind = |kind| kinds.contains(&kind).then(|| descriptors.next()).flatten();
    let mut report = ChildReport {
        lacking: Vec::new(),
        holding: Vec::new(),
        listener: of_kind(LISTENER),
        ruleset: of_kind(RULESET),
        shown: of_kind(SHOWN),
        network: descriptors.collect(),
    };
    for line in text.split('\n') {
        let mut fields = line.split('\0');
        if let (Some(kind), Some(control), Some(detail)) = (fields.next(), fields.next(), fields.next()) {
            let pair = (control.to_owned(), detail.to_owned());
            if kind == "-" {
                report.lacking.push(pair)
            } else {
                report.holding.push(pair)
            }
        }
    }
    report
}

fn decode_failure(bytes: &[u8]) -> StepFailure {
    let text = String::from_utf8_lossy(bytes);
    let mut fields = text.split('\0');
    let errno = fields
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(libc_eio());
    StepFailure {
        step: fields.next().unwrap_or_default().to_owned(),
        subject: fields.next().unwrap_or_default().to_owned(),
        source: io::Error::from_raw_os_error(errno),
    }
}

/// `EIO`, for an error without a number.
fn libc_eio() -> i32 {
    5
}

/// Descriptors that the child hands over at last.
#[derive(Debug, Default)]
pub(crate) struct HandedDescriptors<'a> {
    pub(crate) listener: Option<BorrowedFd<'a>>,
    pub(crate) ruleset: Option<BorrowedFd<'a>>,
    pub(crate) shown: Option<BorrowedFd<'a>>,
    pub(crate) network: Vec<BorrowedFd<'a>>,
}

/// What the child waits for.
#[derive(Debug)]
pub(crate) enum FromParent {
    Mapped {
        /// The uid and gid to change to.
        user: Option<(u32, u32)>,
    },
    Tree {
        index: usize,
        tree: OwnedFd,
    },
    Start {
        /// The guest's program, unless the child has it.
        guest: Option<OwnedFd>,
        entrances: Vec<OwnedFd>,
        told: Vec<u8>,
    },
    /// The parent is gone.
    Gone,
}

impl ChildEnd {
    pub(crate) fn next(&self) -> io::Result<FromParent> {
        let mut buffer = [0; 32];
        let (length, descriptors) = socket::receive(self.0.as_fd(), &mut buffer)?;
        let mut descriptors = descriptors.into_iter();
        if let [START, told @ ..] = &buffer[..length] {
            return Ok(FromParent::Start {
                guest: None,
                entrances: descriptors.collect(),
                told: told.to_vec(),
            });
        }
        match (&buffer[..length], descriptors.next()) {
            ([MAPPED], None) => Ok(FromParent::Mapped { user: None }),
            (&[MAPPED, u0, u1, u2, u3, g0, g1, g2, g3], None) => Ok(FromParent::Mapped {
                user: Some((
                    u32::from_le_bytes([u0, u1, u2, u3]),
                    u32::from_le_bytes([g0, g1, g2, g3]),
                )),
            }),
            ([TREE, low, high], Some(tree)) => Ok(FromParent::Tree {
                index: usize::from(u16::from_le_bytes([*low, *high])),
                tree,
            }),
            ([START_AS, told @ ..], Some(guest)) => Ok(FromParent::Start {
                guest: Some(guest),
                entrances: descriptors.collect(),
                told: told.to_vec(),
            }),
            _ => Ok(FromParent::Gone),
        }
    }

    /// Everything is in place; only exec remains.
    pub(crate) fn ready(&self, report: &[(char, &str, String)], with: &HandedDescriptors<'_>) -> io::Result<()> {
        let kind = |there: bool, kind| if there { kind } else { NONE };
        let mut message = vec![
            READY,
            kind(with.listener.is_some(), LISTENER),
            kind(with.ruleset.is_some(), RULESET),
            kind(with.shown.is_some(), SHOWN),
        ];
        for (kind, control, detail) in report {
            message.extend_from_slice(format!("{kind}\0{control}\0{detail}\n").as_bytes());
        }
        let descriptors: Vec<BorrowedFd<'_>> = with
            .listener
            .iter()
            .chain(&with.ruleset)
            .chain(&with.shown)
            .chain(&with.network)
            .copied()
            .collect();
        socket::send(self.0.as_fd(), &message, &descriptors)
    }

    /// What was to be done is done; nothing follows.
    pub(crate) fn done(&self) -> io::Result<()> {
        socket::send(self.0.as_fd(), &[READY], &[])
    }

    pub(crate) fn failed(&self, failure: &StepFailure) {
        let errno = failure.source.raw_os_error().unwrap_or(libc_eio());
        let message = format!("{}{errno}\0{}\0{}", char::from(FAILED), failure.step, failure.subject);
        // Nobody is left to be told if this fails; the parent then sees the socket close.
        let _unsent = socket::send(self.0.as_fd(), message.as_bytes(), &[]);
    }
}
