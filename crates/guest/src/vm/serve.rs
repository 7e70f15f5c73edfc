//! The loop: streams between the channel and what is inside, until one of the three ends.

use alloc::string::String;
use alloc::vec::Vec;

use offleash_protocol::vm::{Begin, CONTROL_STREAM, FromVm, MAX_UNSENT, StreamKind, ToVm, VmEnd};
use offleash_sys::spawn::{self, EndedAs, SignalQueue};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::channel::{ChannelGone, VmChannel};
use super::ends::{self, InnerEnd};
use super::listeners::{INTERVAL, ListenerTables};
use super::start::StartedGuest;
use super::tree;
use super::{VmFailure, begin, now, start, step};

/// Why the machine is of no more use.
pub(super) enum VmStop {
    ChannelClosed,
    Failed(VmFailure),
}

impl From<VmFailure> for VmStop {
    fn from(failure: VmFailure) -> Self {
        VmStop::Failed(failure)
    }
}

impl From<ChannelGone> for VmStop {
    fn from(_: ChannelGone) -> Self {
        VmStop::ChannelClosed
    }
}

fn breach() -> VmStop {
    VmStop::Failed(step("understand what the host says")(Errno::PROTO))
}

/// Waits for the beginning, makes the sandbox, and serves it to its end.
pub(super) fn run(channel: &mut VmChannel) -> Result<VmEnd, VmStop> {
    let begin = wait_for_begin(channel)?;
    begin::apply(&begin)?;
    let signals = SignalQueue::of_all().map_err(step("queue signals"))?;
    let pumps = tree::mount(&begin.tree)?;
    let StartedGuest { pid, control, report } = start::start(&begin)?;
    channel.mux.begin(InnerEnd::control(control));
    let interface = begin.network.map(|network| network.address);
    let mut serving = ServedSandbox {
        signals,
        pumps,
        guest: pid,
        report,
        interface,
        listeners: ListenerTables::open(),
        next_look: 0,
        end: None,
    };
    // Messages may have come with the beginning.
    serving.take_messages(channel)?;
    loop {
        serving.round(channel)?;
        if let Some(end) = serving
            .end
            .as_ref()
            .filter(|_| channel.mux.has_told_end(CONTROL_STREAM))
        {
            serving.write_back();
            return Ok(end.clone());
        }
    }
}

fn wait_for_begin(channel: &mut VmChannel) -> Result<Begin, VmStop> {
    loop {
        channel.flush()?;
        let mut polled = [PollFd::from_borrowed_fd(channel.port(), channel.flags())];
        let _ = rustix::event::poll(&mut polled, None);
        channel.receive()?;
        match channel.decoder.next().map_err(|_| breach())? {
            Some(ToVm::Begin(begin)) => return Ok(begin),
            Some(ToVm::Stream(_)) => return Err(breach()),
            None => {}
        }
    }
}

struct ServedSandbox {
    signals: SignalQueue,
    pumps: Vec<i32>,
    guest: i32,
    report: OwnedFd,
    interface: Option<[u8; 4]>,
    listeners: ListenerTables,
    /// When listeners are looked for next, milliseconds of the clock that only goes forward.
    next_look: i64,
    end: Option<VmEnd>,
}

impl ServedSandbox {
    fn round(&mut self, channel: &mut VmChannel) -> Result<(), VmStop> {
        channel.mux.advance();
        channel.flush()?;
        let ready = self.wait(channel);
        for (stream, flags) in ready.streams {
            let fails = PollFlags::ERR | PollFlags::HUP;
            let (readable, writable) = (PollFlags::IN | fails, PollFlags::OUT | fails);
            channel
                .mux
                .ready(stream, flags.intersects(readable), flags.intersects(writable));
        }
        if ready.channel {
            channel.receive()?;
            self.take_messages(channel)?;
        }
        if ready.signals {
            self.reap()?;
        }
        if now() >= self.next_look {
            self.next_look = now().saturating_add(INTERVAL);
            self.look_for_listeners(channel);
        }
        Ok(())
    }

    fn look_for_listeners(&mut self, channel: &mut VmChannel) {
        // Not while nobody takes what was said before: nothing else bounds how much that becomes.
        if channel.mux.unsent().len() > 2 * MAX_UNSENT {
            return;
        }
        if let Some(ports) = self.listeners.changed() {
            channel.mux.send(&FromVm::ListenersChanged { ports });
        }
    }

    fn wait(&self, channel: &VmChannel) -> ReadyEnds {
        let left = self.next_look.saturating_sub(now()).clamp(1, INTERVAL);
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: left * 1_000_000,
        };
        let mut polled = Vec::from([
            PollFd::from_borrowed_fd(channel.port(), channel.flags()),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ]);
        let mut streams = Vec::new();
        for (interest, end) in channel.mux.interests() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.reads);
            flags.set(PollFlags::OUT, interest.writes);
            if let Some(socket) = end.socket() {
                streams.push(interest.stream);
                polled.push(PollFd::from_borrowed_fd(socket, flags));
            }
        }
        if rustix::event::poll(&mut polled, Some(&time)).is_err() {
            return ReadyEnds::default();
        }
        let mut ready = polled.iter().map(PollFd::revents);
        let (channel, signals) = (ready.next(), ready.next());
        let is_ready = |flags: Option<PollFlags>| flags.is_some_and(|flags| !flags.is_empty());
        ReadyEnds {
            channel: channel.is_some_and(|flags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)),
            signals: is_ready(signals),
            streams: streams
                .into_iter()
                .zip(ready)
                .filter(|(_, flags)| !flags.is_empty())
                .collect(),
        }
    }

    fn take_messages(&mut self, channel: &mut VmChannel) -> Result<(), VmStop> {
        while let Some(message) = channel.decoder.next().map_err(|_| breach())? {
            let ToVm::Stream(frame) = message else {
                return Err(breach());
            };
            if let Some((stream, kind)) = channel.mux.take(frame).map_err(|_| breach())? {
                self.open(channel, stream, kind)?;
            }
        }
        Ok(())
    }

    fn open(&self, channel: &mut VmChannel, stream: u32, kind: StreamKind) -> Result<(), VmStop> {
        let end = match kind {
            StreamKind::Port { number } => ends::dial(number, self.interface),
            StreamKind::Descriptor => {
                let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
                let (ours, theirs) = pair.map_err(step("make a socket for the guest"))?;
                let place = channel.mux.received(CONTROL_STREAM);
                if let Some(control) = channel.mux.end_mut(CONTROL_STREAM) {
                    control.attach(place, theirs);
                }
                InnerEnd::Socket(ours)
            }
        };
        channel.mux.accept(stream, end).map_err(|_| breach())
    }

    fn reap(&mut self) -> Result<(), VmStop> {
        self.signals.clear();
        while let Ok(Some(ended)) = spawn::reap() {
            if self.pumps.contains(&ended.pid) {
                return Err(step("carry the tree")(Errno::IO).into());
            }
            if ended.pid == self.guest {
                self.end = Some(self.guests_end(ended.how));
            }
        }
        Ok(())
    }

    fn guests_end(&self, how: EndedAs) -> VmEnd {
        let mut said = [0; 128];
        let count = rustix::net::recv(&self.report, &mut said[..], RecvFlags::DONTWAIT).map_or(0, |(count, _)| count);
        if let Some((errno, step)) = said.get(..count).and_then(|said| said.split_first_chunk::<4>()) {
            return VmEnd::Failed {
                step: String::from_utf8_lossy(step).into_owned(),
                errno: i32::from_ne_bytes(*errno),
            };
        }
        match how {
            EndedAs::Exited(code) => VmEnd::Exited { code },
            EndedAs::Signaled(signal) => VmEnd::Signaled { signal },
        }
    }

    /// What programs wrote by way of memory is still to be told to who serves the tree.
    fn write_back(&self) {
        if !self.pumps.is_empty() {
            rustix::fs::sync();
        }
    }
}

#[derive(Default)]
struct ReadyEnds {
    channel: bool,
    signals: bool,
    streams: Vec<(u32, PollFlags)>,
}
