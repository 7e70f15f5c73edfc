//! The carrier: the first process of a machine's sandbox, which starts the hypervisor and stands between the machine and its
//! supervisor.
//!
//! It has the supervisor's control socket at descriptor 3, as a guest has, and understands nothing of what goes over it. What
//! it says goes to standard error, of which the supervisor tells when the guest never spoke. When the supervisor, the
//! machine or the hypervisor is gone it ends, and all that is in the sandbox with it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use offleash_core::vm::Acceleration;
use offleash_protocol::vm::{Begin, ENTROPY};
use offleash_sys::network::sockets;
use offleash_sys::seccomp::HypervisorSupply;
use offleash_sys::spawn;
use offleash_sys::{credentials, process};
use offleash_tree::{FileOwners, TreeOptions};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;

use super::housing::TREE;
use super::hypervisor::PROGRAM_INSIDE;
use super::mux::{ChannelMux, MuxEvent};
use super::order::{CarrierOrder, ORDER_INSIDE};
use super::saying::{complain, told};
use super::starting::{self, BOOT_TIMEOUT, TemplateFiles};
use crate::process::child::CONTROL;

/// How long it may take from its beginning to its guest's first word: likewise emulated.
const BEGINNING_TIMEOUT: Duration = Duration::from_secs(60);
/// Most ports inside that are listened on outside.
const MAX_LISTENERS: usize = 256;

/// Carries the machine of this sandbox until it ends; answers why it ended. `given` has the numbers of descriptors: of KVM's device,
/// if it is one of KVM's, and of its template, if it has one.
///
/// # Errors
/// What kept it from carrying one.
pub fn carry(given: &[i32]) -> io::Result<String> {
    let order: CarrierOrder = read_order()?;
    let control = spawn::adopt_descriptor(CONTROL).map_err(|error| told("there is no control socket", error.into()))?;
    let (device, template) = match (order.vm.acceleration, given) {
        (Acceleration::Kvm, [device, template @ ..]) => (Some(spawn::adopt_descriptor(*device)?), template),
        (_, template) => (None, template),
    };
    let files = TemplateFiles::adopt(template)?;
    let machine = starting::start(&order, files, device)?;
    let options = TreeOptions {
        owners: match has_one_id()? {
            true => FileOwners::Server,
            false => FileOwners::Requester,
        },
        ..TreeOptions::default()
    };
    let root = rustix::fs::open(
        TREE,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let tree = machine.hypervisor.tree.try_clone()?;
    std::thread::Builder::new()
        .name("tree".to_owned())
        .spawn(move || serve_tree(root, tree, &options))?;
    let channel = machine.hypervisor.channel.try_clone()?;
    let mut carrier = MachineCarrier::new(channel, control, order.begin);
    if machine.was_restored {
        carrier.channel.greeted();
        carrier.begin()?;
    }
    let ended = carrier.carry(&CarrierTimes::default());
    // Its sockets were open for as long as it may speak to them.
    drop(machine);
    ended
}

fn serve_tree(root: OwnedFd, channel: OwnedFd, options: &TreeOptions) {
    let served = offleash_tree::serve(root, channel, options);
    // The machine is of no use without: its channel ends with it.
    if let Err(error) = served {
        complain(&format!("the tree is not served any more: {error}"));
    }
}

fn read_order() -> io::Result<CarrierOrder> {
    let mut bytes = Vec::new();
    File::open(ORDER_INSIDE)?.read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Whether the sandbox has one user id.
fn has_one_id() -> io::Result<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    Ok(map.split_whitespace().nth(2) == Some("1"))
}

/// Becomes the hypervisor, with `words`: what it is supplied with, then its own, its name first. It is without any capability, and behind a filter that has nothing of
/// mounts, namespaces and other processes. Answers why it could not.
pub fn become_hypervisor(words: &[OsString]) -> io::Error {
    let become_it = || -> io::Result<std::convert::Infallible> {
        credentials::drop_capabilities()?;
        process::die_with_parent()?;
        let (supplied, words) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let supplied = supplied.to_str().and_then(HypervisorSupply::parse);
        starting::enter_filter(supplied.ok_or(io::ErrorKind::InvalidInput)?)?;
        let program = File::open(Path::new(PROGRAM_INSIDE))?;
        let words: Result<Vec<_>, _> = words
            .iter()
            .map(|word| std::ffi::CString::new(word.as_bytes()))
            .collect();
        let words = words?;
        let words: Vec<_> = words.iter().map(std::ffi::CString::as_c_str).collect();
        Err(process::exec_with(program.as_fd(), &words))
    };
    match become_it() {
        Ok(never) => match never {},
        Err(error) => told("starting the hypervisor", error),
    }
}

/// How long what is waited for may take.
#[derive(Debug, Clone, Copy)]
struct CarrierTimes {
    /// The machine's greeting.
    boot: Duration,
    /// The guest's first word, once the machine was told what it is to become.
    beginning: Duration,
}

impl Default for CarrierTimes {
    fn default() -> Self {
        Self {
            boot: BOOT_TIMEOUT,
            beginning: BEGINNING_TIMEOUT,
        }
    }
}

/// A machine while it is carried.
#[derive(Debug)]
struct MachineCarrier {
    channel: ChannelMux,
    /// Until the machine begins.
    control: Option<OwnedFd>,
    begin: Option<Begin>,
    /// By the port inside that they lead to.
    listeners: BTreeMap<u16, OwnedFd>,
}

/// What a carrier woke for.
#[derive(Debug)]
struct CarrierWake {
    /// What is ready of the channel.
    ready: Vec<PollFlags>,
    /// Connections, with the ports inside that they lead to.
    connected: Vec<(OwnedFd, u16)>,
}

impl MachineCarrier {
    fn new(channel: OwnedFd, control: OwnedFd, begin: Begin) -> Self {
        Self {
            channel: ChannelMux::new(channel),
            control: Some(control),
            begin: Some(begin),
            listeners: BTreeMap::new(),
        }
    }

    /// Until the machine ends; answers why.
    fn carry(mut self, times: &CarrierTimes) -> io::Result<String> {
        let mut waited_since = Instant::now();
        let mut boots = self.control.is_some();
        loop {
            if boots && self.control.is_none() {
                (boots, waited_since) = (false, Instant::now());
            }
            let (what, allowed) = match boots {
                true => ("boot", times.boot),
                false => ("become what it was told to", times.beginning),
            };
            let waits = boots || !self.channel.has_spoken();
            let left = waits.then(|| allowed.saturating_sub(waited_since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(format!("the machine did not {what} within {} s", allowed.as_secs()));
            }
            let wake = self.wait(left)?;
            for (connection, port) in wake.connected {
                self.channel.connect(connection, port);
            }
            let events = match self.channel.turn(&wake.ready) {
                Ok(events) => events,
                Err(end) => return Ok(end.to_string()),
            };
            for event in events {
                self.take(event)?;
            }
        }
    }

    /// Waits, takes connections, and answers what is ready of the channel.
    fn wait(&mut self, left: Option<Duration>) -> io::Result<CarrierWake> {
        let takes = self.channel.takes_connections();
        let listeners: Vec<(u16, BorrowedFd<'_>)> = self
            .listeners
            .iter()
            .map(|(port, listener)| (*port, listener.as_fd()))
            .collect();
        let waited = self.channel.wait_on();
        let mut polled: Vec<PollFd<'_>> = waited
            .iter()
            .map(|(end, flags)| PollFd::from_borrowed_fd(*end, *flags))
            .collect();
        if takes {
            polled.extend(
                listeners
                    .iter()
                    .map(|(_, listener)| PollFd::from_borrowed_fd(*listener, PollFlags::IN)),
            );
        }
        let timeout = left.map(rustix::event::Timespec::try_from).transpose();
        let timeout = timeout.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, timeout.as_ref()))?;
        let ready: Vec<PollFlags> = polled.iter().take(waited.len()).map(PollFd::revents).collect();
        let connected = polled
            .iter()
            .skip(waited.len())
            .zip(&listeners)
            .filter(|(polled, _)| polled.revents().contains(PollFlags::IN))
            // One that is gone again is no connection.
            .filter_map(|(_, (port, listener))| {
                let connection =
                    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
                Some((connection, *port))
            })
            .collect();
        Ok(CarrierWake { ready, connected })
    }

    fn begin(&mut self) -> io::Result<()> {
        let (Some(begin), Some(control)) = (self.begin.take(), self.control.take()) else {
            return Ok(());
        };
        self.channel.begin(timely(begin)?, control).map_err(io::Error::other)
    }

    fn take(&mut self, event: MuxEvent) -> io::Result<()> {
        match event {
            MuxEvent::Greeted(_) => self.begin(),
            MuxEvent::ListenersChanged(ports) => {
                self.listeners.retain(|port, _| ports.contains(port));
                for port in ports {
                    if self.listeners.len() < MAX_LISTENERS && !self.listeners.contains_key(&port) {
                        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
                        // Another process of ours has it, such as the gateway's sockets.
                        if let Ok(listener) = sockets::listen(address) {
                            listener.set_nonblocking(true)?;
                            self.listeners.insert(port, listener.into());
                        }
                    }
                }
                Ok(())
            }
            MuxEvent::Problem(text) => {
                complain(&format!("the machine says: {text}"));
                Ok(())
            }
        }
    }
}

/// The same with randomness and the time.
fn timely(begin: Begin) -> io::Result<Begin> {
    let mut entropy = vec![0; ENTROPY];
    let mut filled = 0;
    while filled < entropy.len() {
        filled += rustix::rand::getrandom(&mut entropy[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Begin {
        entropy,
        seconds: now.as_secs(),
        nanoseconds: now.subsec_nanos(),
        ..begin
    })
}
