//! The carrier's end of a machine's channel: one loop's worth of work between the control socket, what came with it,
//! connections to ports inside, and the machine.
//!
//! Nothing waits: the carrier polls what [`ChannelMux::wait_on`] names, together with what else it has, and hands what came of
//! that to [`ChannelMux::turn`]. Everything that comes from the machine is hostile ([`offleash_protocol::vm`]). Deliberately not
//! here: listening on ports, starting and ending the machine.

mod ends;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use offleash_protocol::MessageDecoder;
use offleash_protocol::vm::{
    Begin, CONTROL_STREAM, FromVm, Hello, MAX_LISTENING_PORTS, MAX_PROBLEM, MAX_STREAMS, Mux, MuxBreach, StreamFrame,
    StreamKind, ToVm, VERSION, VmEnd,
};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use self::ends::CarriedEnd;

/// Most connections to ports inside at a time: the other streams are the supervisor's.
pub const MAX_CONNECTIONS: usize = MAX_STREAMS / 2;

/// Most problems that a machine may tell of; further ones are dropped.
pub const MAX_PROBLEMS: usize = 64;

/// Bytes that are taken from the machine in one turn.
const TURN_BYTES: usize = 256 * 1024;

/// The channel of one machine.
#[derive(Debug)]
pub struct ChannelMux {
    channel: OwnedFd,
    mux: Mux<ToVm, CarriedEnd>,
    decoder: MessageDecoder<FromVm>,
    buffer: Vec<u8>,
    stage: MuxStage,
    problems: usize,
    /// Whether anything has come over the control stream.
    has_spoken: bool,
    /// What the descriptors that [`Self::wait_on`] named last belong to.
    waited_for: Vec<WaitedEnd>,
}

#[derive(Debug)]
enum MuxStage {
    /// The machine boots.
    Booting,
    /// It has said so.
    Greeted,
    /// It was told to begin.
    Begun,
    /// It has said its last word; what is left for the control socket is handed on.
    Ended(VmEnd),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitedEnd {
    Channel,
    Stream(u32),
}

/// What a turn brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MuxEvent {
    /// The machine has booted and may be told to begin.
    Greeted(Hello),
    /// Something listens on these ports inside, and on no others.
    ListenersChanged(BTreeSet<u16>),
    /// For a log; what it says is the machine's.
    Problem(String),
}

/// Why a channel is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum MuxEnd {
    /// The supervisor closed the control socket.
    #[error("the supervisor closed the control socket")]
    ControlClosed,
    /// The machine is gone without having said why.
    #[error("the virtual machine closed its channel")]
    ChannelClosed,
    /// The machine has switched itself off.
    #[error("the virtual machine has ended: {0:?}")]
    Ended(VmEnd),
    /// The machine broke the rules.
    #[error("the virtual machine broke the rules of its channel")]
    Breach(#[from] MuxBreach),
    /// The machine is of another build.
    #[error("the virtual machine speaks version {version}, and this program {VERSION}")]
    OtherVersion {
        /// Its version.
        version: u32,
    },
    /// The kernel refused.
    #[error("{step}")]
    Kernel {
        /// What was tried.
        step: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

impl ChannelMux {
    /// The channel of a machine that boots. `channel` is a stream socket; nothing here waits for it.
    pub fn new(channel: OwnedFd) -> Self {
        Self {
            channel,
            mux: Mux::new(),
            decoder: MessageDecoder::new(),
            buffer: vec![0; TURN_BYTES],
            stage: MuxStage::Booting,
            problems: 0,
            has_spoken: false,
            waited_for: Vec::new(),
        }
    }

    /// Takes note that the machine has greeted before, whoever it spoke to then: it was restored.
    pub fn greeted(&mut self) {
        if matches!(self.stage, MuxStage::Booting) {
            self.stage = MuxStage::Greeted;
        }
    }

    /// Whether the guest of a machine that was begun has said anything.
    pub fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    /// Makes a machine that has greeted a sandbox, whose guest speaks with whoever has the other end of `control`.
    ///
    /// # Errors
    /// `OutOfPlace` for a machine that has not greeted, or has begun before.
    pub fn begin(&mut self, begin: Begin, control: OwnedFd) -> Result<(), MuxEnd> {
        if !matches!(self.stage, MuxStage::Greeted) {
            let what = "a machine that does not wait for its beginning";
            return Err(MuxBreach::OutOfPlace { what }.into());
        }
        self.stage = MuxStage::Begun;
        self.mux.send(&ToVm::Begin(begin));
        self.mux.begin(CarriedEnd::control(control));
        self.flush()
    }

    /// Whether a further connection can be taken.
    pub fn takes_connections(&self) -> bool {
        matches!(self.stage, MuxStage::Begun) && self.mux.streams() < MAX_CONNECTIONS
    }

    /// Leads a connection to a port inside; one that is not taken ([`Self::takes_connections`]) is closed.
    pub fn connect(&mut self, connection: OwnedFd, port: u16) {
        if self.takes_connections() {
            // Nothing is opened beyond the bound that was asked for.
            let _ = self
                .mux
                .open(StreamKind::Port { number: port }, CarriedEnd::socket(connection));
        }
    }

    /// What to wait for, in an order that [`Self::turn`] knows.
    pub fn wait_on(&mut self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut polled = Vec::with_capacity(1 + self.mux.streams());
        let mut waited_for = std::mem::take(&mut self.waited_for);
        waited_for.clear();
        // After its last word nothing of the machine counts, and its end would wake who waits for the control socket.
        if !matches!(self.stage, MuxStage::Ended(_)) {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.mux.unsent().is_empty());
            waited_for.push(WaitedEnd::Channel);
            polled.push((self.channel.as_fd(), flags));
        }
        for (interest, end) in self.mux.interests() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.reads);
            flags.set(PollFlags::OUT, interest.writes);
            waited_for.push(WaitedEnd::Stream(interest.stream));
            polled.push((end.as_fd(), flags));
        }
        self.waited_for = waited_for;
        polled
    }

    /// Does what is due; `ready` is what poll answered for each that [`Self::wait_on`] named last, in that order.
    ///
    /// # Errors
    /// Why the channel is of no more use. Nothing is to be called after that.
    pub fn turn(&mut self, ready: &[PollFlags]) -> Result<Vec<MuxEvent>, MuxEnd> {
        let mut events = Vec::new();
        let waited_for = std::mem::take(&mut self.waited_for);
        let mut reads_channel = false;
        for (end, ready) in waited_for.iter().zip(ready) {
            let (fails, reads) = (PollFlags::ERR | PollFlags::NVAL, PollFlags::IN | PollFlags::HUP);
            let readable = ready.intersects(reads | fails);
            match end {
                WaitedEnd::Channel => reads_channel = readable,
                WaitedEnd::Stream(stream) => {
                    let writable = ready.intersects(PollFlags::OUT | PollFlags::HUP | fails);
                    self.mux.ready(*stream, readable, writable);
                }
            }
        }
        self.waited_for = waited_for;
        if reads_channel && !matches!(self.stage, MuxStage::Ended(_)) {
            self.receive(&mut events)?;
        }
        self.mux.advance();
        if self.mux.end(CONTROL_STREAM).is_some_and(CarriedEnd::has_ended) {
            return Err(MuxEnd::ControlClosed);
        }
        if let MuxStage::Ended(end) = &self.stage {
            return match self.mux.is_drained(CONTROL_STREAM) || self.is_stuck() {
                true => Err(MuxEnd::Ended(end.clone())),
                false => Ok(events),
            };
        }
        self.flush()?;
        Ok(events)
    }

    /// Whether the machine's last word came without the end of its control stream: there is nothing to wait for.
    fn is_stuck(&self) -> bool {
        let has_incoming = |stream| {
            self.mux
                .interests()
                .any(|(interest, _)| interest.stream == stream && interest.writes)
        };
        !has_incoming(CONTROL_STREAM)
    }

    fn receive(&mut self, events: &mut Vec<MuxEvent>) -> Result<(), MuxEnd> {
        let received = rustix::net::recv(&self.channel, &mut self.buffer[..], RecvFlags::DONTWAIT);
        let count = match received {
            Ok((count, _)) if count > 0 => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Ok(_) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(MuxEnd::ChannelClosed),
            Err(error) => return Err(kernel("receive from the virtual machine", error)),
        };
        self.decoder.push(self.buffer.get(..count).unwrap_or_default());
        while let Some(message) = self.decoder.next().map_err(MuxBreach::from)? {
            events.extend(self.take(message)?);
            if matches!(self.stage, MuxStage::Ended(_)) {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, message: FromVm) -> Result<Option<MuxEvent>, MuxEnd> {
        let out_of_place = |what| Err(MuxBreach::OutOfPlace { what }.into());
        match (message, &self.stage) {
            (FromVm::Hello(hello), MuxStage::Booting) => {
                let version = hello.version;
                if version != VERSION {
                    return Err(MuxEnd::OtherVersion { version });
                }
                self.stage = MuxStage::Greeted;
                return Ok(Some(MuxEvent::Greeted(hello)));
            }
            (FromVm::Hello(_), _) => return out_of_place("a second greeting"),
            (FromVm::Ended(end), MuxStage::Booting | MuxStage::Greeted | MuxStage::Begun) => {
                self.stage = MuxStage::Ended(end);
            }
            (FromVm::Problem { text }, MuxStage::Booting | MuxStage::Greeted | MuxStage::Begun) => {
                if text.len() > MAX_PROBLEM {
                    return out_of_place("a problem told at too great length");
                }
                self.problems = self.problems.saturating_add(1);
                return Ok((self.problems <= MAX_PROBLEMS).then_some(MuxEvent::Problem(text)));
            }
            (FromVm::Stream(frame), MuxStage::Begun) => {
                self.has_spoken |= matches!(
                    &frame,
                    StreamFrame::Data {
                        stream: CONTROL_STREAM,
                        ..
                    }
                );
                if let Some((stream, _)) = self.mux.take(frame)? {
                    return Err(MuxBreach::NotToOpen { stream }.into());
                }
            }
            (FromVm::ListenersChanged { ports }, MuxStage::Begun) => {
                if ports.len() > MAX_LISTENING_PORTS {
                    return out_of_place("more listening ports than are told of");
                }
                return Ok(Some(MuxEvent::ListenersChanged(ports.into_iter().collect())));
            }
            _ => return out_of_place("a message before the beginning or after the end"),
        }
        Ok(None)
    }

    fn flush(&mut self) -> Result<(), MuxEnd> {
        while !self.mux.unsent().is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.channel, self.mux.unsent(), flags) {
                Ok(count) => self.mux.sent(count),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // What the machine said before is still read, and then its end.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    let count = self.mux.unsent().len();
                    self.mux.sent(count);
                }
                Err(error) => return Err(kernel("send to the virtual machine", error)),
            }
        }
        Ok(())
    }
}

fn kernel(step: &'static str, error: Errno) -> MuxEnd {
    MuxEnd::Kernel {
        step,
        source: error.into(),
    }
}
