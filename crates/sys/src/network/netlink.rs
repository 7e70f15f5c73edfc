//! Messages of netlink: written, sent to the kernel, and its answers read.
//!
//! The kernel handles a request while it is sent, so that all its answers are there when `send` returns and nothing is
//! ever waited for (netlink(7)). Deliberately not here: what messages mean; that is with those who write them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

mod answers;

use super::NetworkError;
use super::sockets::enable;
use answers::{FLAGS, RequestVerdict, messages};
pub(super) use answers::{KernelMessage, attributes, field};

/// Every message and every attribute begins at a multiple of this (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
const ALIGNMENT: usize = 4;
/// An attribute that holds attributes (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;
/// Largest answer: the kernel fills at most this much of one buffer with a list.
const RECEIVED_AT_ONCE: usize = 32 * 1024;

/// What a request is there for, for the error if the kernel refuses it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestStep {
    /// What it does.
    pub(super) does: &'static str,
    /// Which part of the kernel it needs, if that may be missing.
    pub(super) needs: Option<&'static str>,
}

impl From<&'static str> for RequestStep {
    fn from(does: &'static str) -> Self {
        Self { does, needs: None }
    }
}

/// Requests that are sent together and handled in turn.
#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    bytes: Vec<u8>,
    /// What each is there for, by its number.
    steps: Vec<RequestStep>,
    /// Where the last one begins.
    last: usize,
    /// The last one that the kernel must answer.
    awaited: Option<u32>,
    too_long: bool,
}

impl RequestBatch {
    /// Appends a request, whose number is the next one, and which `fill` writes behind the header.
    pub(super) fn push(
        &mut self,
        step: impl Into<RequestStep>,
        kind: u16,
        flags: i32,
        fill: impl FnOnce(&mut MessagePayload<'_>),
    ) -> &mut Self {
        let start = self.bytes.len();
        let number = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        self.last = start;
        if flags & (libc::NLM_F_ACK | libc::NLM_F_DUMP) != 0 {
            self.awaited = Some(number);
        }
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).unwrap_or(0);
        self.steps.push(step.into());
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(number.to_ne_bytes());
        self.bytes.extend([0; 4]);
        let mut payload = MessagePayload(self);
        fill(&mut payload);
        let length = self.bytes.len() - start;
        match u32::try_from(length) {
            Ok(length) => overwrite(&mut self.bytes, start, &length.to_ne_bytes()),
            Err(_) => self.too_long = true,
        }
        self
    }
}

/// What comes behind the header of a message or of a nested attribute.
#[derive(Debug)]
pub(super) struct MessagePayload<'a>(&'a mut RequestBatch);

impl MessagePayload<'_> {
    /// Appends bytes as they are: the header of a family, before its attributes.
    pub(super) fn header(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.bytes.extend(bytes);
        self.align()
    }

    /// Appends an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.write(kind, |payload| payload.0.bytes.extend(value))
    }

    /// Appends an attribute of text, which ends with a zero byte.
    pub(super) fn text(&mut self, kind: u16, text: &str) -> &mut Self {
        self.write(kind, |payload| {
            payload.0.bytes.extend(text.as_bytes());
            payload.0.bytes.push(0);
        })
    }

    /// Appends a number in network order, as nftables wants all of them.
    pub(super) fn number(&mut self, kind: u16, number: u32) -> &mut Self {
        self.attribute(kind, &number.to_be_bytes())
    }

    /// Appends an attribute that holds what `fill` writes.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut MessagePayload<'_>)) -> &mut Self {
        self.write(kind | NESTED, |payload| fill(&mut MessagePayload(payload.0)))
    }

    fn write(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.bytes.len();
        self.0.bytes.extend([0; 2]);
        self.0.bytes.extend(kind.to_ne_bytes());
        fill(self);
        // The length of an attribute does not count what aligns the next one.
        match u16::try_from(self.0.bytes.len() - start) {
            Ok(length) => overwrite(&mut self.0.bytes, start, &length.to_ne_bytes()),
            Err(_) => self.0.too_long = true,
        }
        self.align()
    }

    fn align(&mut self) -> &mut Self {
        let length = self.0.bytes.len().next_multiple_of(ALIGNMENT);
        self.0.bytes.resize(length, 0);
        self
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + with.len()) {
        place.copy_from_slice(with);
    }
}

/// Which part of the kernel a socket talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetlinkFamily {
    /// Interfaces, addresses and routes (rtnetlink(7)).
    Route,
    /// Packet filters (`nfnetlink`).
    Netfilter,
}

/// A socket to the kernel, in the network namespace in which it was made.
#[derive(Debug)]
pub(super) struct NetlinkSocket {
    socket: OwnedFd,
}

impl NetlinkSocket {
    /// Opens one.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` where the kernel has no such part.
    pub(super) fn open(family: NetlinkFamily) -> io::Result<Self> {
        let protocol = match family {
            // Number 0, which rustix writes as no number.
            NetlinkFamily::Route => None,
            NetlinkFamily::Netfilter => Some(NETFILTER),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // Both only make answers better and shorter (Linux 4.12, 4.3); without them a refusal has no words.
        let _words = enable(&socket, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK);
        let _short = enable(&socket, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK);
        Ok(Self { socket })
    }

    /// Opens one for [`NetlinkFamily::Route`] that hears what the kernel tells these groups (`RTMGRP_…`).
    ///
    /// # Errors
    /// When there is no socket to be had.
    pub(super) fn open_to_hear(groups: i32) -> io::Result<Self> {
        let netlink = Self::open(NetlinkFamily::Route)?;
        // The kernel gives it a port of its own.
        let address = SocketAddrNetlink::new(0, u32::try_from(groups).map_err(io::Error::other)?);
        rustix::net::bind(&netlink.socket, &address)?;
        Ok(netlink)
    }

    /// One that was made elsewhere.
    pub(super) fn from_descriptor(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.socket
    }

    /// Sends requests of which no answer is awaited.
    ///
    /// # Errors
    /// If they cannot be sent.
    pub(super) fn post(&self, requests: &RequestBatch) -> Result<(), Errno> {
        if requests.too_long {
            return Err(Errno::MSGSIZE);
        }
        rustix::net::send(&self.socket, &requests.bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// Gives what the kernel has told by itself, one datagram of it, to `take`; `false` if there is nothing.
    ///
    /// # Errors
    /// `ENOBUFS` if it told more than there was room for; what it told since can be read.
    pub(super) fn listen(&self, mut take: impl FnMut(&KernelMessage<'_>)) -> Result<bool, Errno> {
        let mut buffer = vec![0; RECEIVED_AT_ONCE];
        let Some(length) = self.receive(&mut buffer)? else {
            return Ok(false);
        };
        for message in messages(buffer.get(..length).unwrap_or_default()).flatten() {
            take(&message);
        }
        Ok(true)
    }

    /// Sends the requests and gives every answer that is not an acknowledgement to `take`; returns all refusals, in
    /// the order of the requests.
    ///
    /// # Errors
    /// If they cannot be sent, if answers cannot be understood, or if the last one that asks for an answer (`NLM_F_ACK`,
    /// `NLM_F_DUMP`) had none.
    pub(super) fn send(
        &self,
        requests: &RequestBatch,
        mut take: impl FnMut(&KernelMessage<'_>),
    ) -> Result<Vec<RequestRefusal>, NetworkError> {
        let what = requests.steps.first().copied().unwrap_or_default().does;
        let failed = |source: Errno| NetworkError::Talking {
            step: what,
            source: source.into(),
        };
        if requests.too_long {
            return Err(failed(Errno::MSGSIZE));
        }
        let sent = rustix::net::send(&self.socket, &requests.bytes, SendFlags::NOSIGNAL).map_err(failed)?;
        if sent != requests.bytes.len() {
            return Err(failed(Errno::MSGSIZE));
        }
        let mut refusals = Vec::new();
        let mut buffer = vec![0; RECEIVED_AT_ONCE];
        let mut last_answered = None;
        while let Some(length) = self.receive(&mut buffer).map_err(failed)? {
            let answers = buffer.get(..length).ok_or(failed(Errno::MSGSIZE))?;
            for message in messages(answers) {
                let message = message.ok_or(failed(Errno::BADMSG))?;
                match message.verdict().ok_or(failed(Errno::BADMSG))? {
                    RequestVerdict::None => take(&message),
                    RequestVerdict::Done => last_answered = last_answered.max(Some(message.number)),
                    RequestVerdict::Refused { errno, words } => {
                        last_answered = last_answered.max(Some(message.number));
                        let step = requests.step(message.number);
                        refusals.push(RequestRefusal {
                            number: message.number,
                            step: step.does,
                            needs: step.needs,
                            source: errno,
                            words: words.to_owned(),
                        });
                    }
                }
            }
        }
        refusals.sort_by_key(|refusal| refusal.number);
        if refusals.is_empty() && last_answered < requests.awaited {
            return Err(failed(Errno::PROTO));
        }
        Ok(refusals)
    }

    /// One datagram of answers; `None` when there is none left.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recvfrom(&self.socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
            });
            let (_, length, from) = match received {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error),
            };
            // Other processes can send here too; the kernel's port is 0.
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if from.is_some_and(|from| from.pid() == 0) {
                return Ok(Some(length));
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl RequestBatch {
    /// Has the kernel answer the last request so far even if all is well. It answers those that it refuses in any case.
    pub(super) fn await_last(&mut self) {
        if let Some(flags) = field(&self.bytes, self.last + FLAGS).map(u16::from_ne_bytes) {
            let acknowledge = u16::try_from(libc::NLM_F_ACK).unwrap_or(0);
            overwrite(&mut self.bytes, self.last + FLAGS, &(flags | acknowledge).to_ne_bytes());
            self.awaited = u32::try_from(self.steps.len())
                .ok()
                .and_then(|count| count.checked_sub(1));
        }
    }

    fn step(&self, number: u32) -> RequestStep {
        let index = usize::try_from(number).ok();
        index
            .and_then(|index| self.steps.get(index))
            .copied()
            .unwrap_or_default()
    }
}

/// A request that the kernel did not carry out.
#[derive(Debug, Clone)]
pub(super) struct RequestRefusal {
    /// Which request.
    pub(super) number: u32,
    /// What was asked for.
    pub(super) step: &'static str,
    /// What it needs.
    pub(super) needs: Option<&'static str>,
    /// Why not.
    pub(super) source: Errno,
    /// The kernel's own words, if it has any.
    pub(super) words: String,
}

impl From<RequestRefusal> for NetworkError {
    fn from(refusal: RequestRefusal) -> Self {
        Self::Refused {
            step: refusal.step,
            words: refusal.words,
            source: refusal.source.into(),
        }
    }
}

#[cfg(test)]
mod tests;
