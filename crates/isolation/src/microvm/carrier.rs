//! The carrier: the first process of a machine's sandbox, which starts the hypervisor and stands between the machine and its
//! supervisor.
//!
//! It has the supervisor's control socket at descriptor 3, as a guest has, and understands nothing of what goes over it. What
//! it says goes to standard error, of which the supervisor tells when the guest never spoke. When the supervisor, the
//! machine or the hypervisor is gone it ends, and all that is in the sandbox with it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use offleash_core::vm::TemplateUse;
use offleash_protocol::vm::{Begin, ENTROPY};
use offleash_sys::network::sockets;
use offleash_sys::spawn::{self, OrphanFate, SessionChoice, SpawnCommand};
use offleash_sys::{credentials, process, socket};
use offleash_tree::{FileOwners, TreeOptions};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;

use super::housing::{CARRIER_INSIDE, TREE};
use super::hypervisor::PROGRAM_INSIDE;
use super::monitor::Monitor;
use super::mux::{ChannelMux, MuxEvent};
use super::order::{CarrierOrder, ORDER_INSIDE};
use super::{HYPERVISOR_ROLE, template};
use crate::limits::SUPERVISE_COMMAND;
use crate::process::child::CONTROL;

/// How long a machine may take to boot: emulated, on a machine with other work to do.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// Most ports inside that are listened on outside.
const MAX_LISTENERS: usize = 256;

/// Carries the machine of this sandbox until it ends; answers why it ended. `template` is the number of the descriptor of its
/// template, if it has one.
///
/// # Errors
/// What kept it from carrying one.
pub fn carry(template: Option<i32>) -> io::Result<String> {
    let order: CarrierOrder = read_order()?;
    let control = spawn::adopt_descriptor(CONTROL).map_err(|error| told("there is no control socket", error.into()))?;
    let (channel, channel_end) = pair()?;
    let (tree, tree_end) = pair()?;
    let (monitor, monitor_end) = pair()?;
    let null = File::options().read(true).open("/dev/null")?;
    let said = said()?;
    start_hypervisor(
        &order,
        &[
            null.as_fd(),
            said.as_fd(),
            said.as_fd(),
            channel_end.as_fd(),
            tree_end.as_fd(),
            monitor_end.as_fd(),
        ],
    )?;
    drop((channel_end, tree_end, monitor_end));
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
    std::thread::Builder::new()
        .name("tree".to_owned())
        .spawn(move || serve_tree(root, tree, &options))?;
    let mut carrier = MachineCarrier {
        channel: ChannelMux::new(channel),
        control: Some(control),
        begin: Some(order.begin),
        listeners: BTreeMap::new(),
        monitor,
        saves: None,
    };
    match (order.template, template) {
        (Some(TemplateUse::Restore), Some(file)) => {
            carrier
                .restore(&File::from(adopt(file)?))
                .map_err(|error| told("restoring the machine", error))?;
        }
        (Some(TemplateUse::Save), Some(file)) => carrier.saves = Some(adopt(file)?.into()),
        _ => {}
    }
    carrier.carry()
}

fn adopt(number: i32) -> io::Result<OwnedFd> {
    spawn::adopt_descriptor(number).map_err(|error| told("there is no template", error.into()))
}

fn serve_tree(root: OwnedFd, channel: OwnedFd, options: &TreeOptions) {
    let served = offleash_tree::serve(root, channel, options);
    // The machine is of no use without: its channel ends with it.
    if let Err(error) = served {
        complain(&format!("the tree is not served any more: {error}"));
    }
}

/// What it was started with for what goes wrong: its supervisor's file.
fn said() -> io::Result<File> {
    const STANDARD_ERROR: i32 = 2;
    Ok(File::from(spawn::copy_descriptor(STANDARD_ERROR)?))
}

/// Says something there.
fn complain(what: &str) {
    use std::io::Write as _;
    // Nobody can be told otherwise.
    let _said = said().and_then(|mut said| writeln!(said, "{what}"));
}

fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket::stream_pair().map_err(|error| told("making a socket pair", error))
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

fn start_hypervisor(order: &CarrierOrder, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let role = [CARRIER_INSIDE, SUPERVISE_COMMAND, HYPERVISOR_ROLE].map(str::to_owned);
    let argv: Vec<Vec<u8>> = role
        .iter()
        .chain(&order.words)
        .map(|word| word.clone().into_bytes())
        .collect();
    let command = SpawnCommand {
        argv: &argv,
        env: &[],
        cwd: None,
        descriptors,
        session: SessionChoice::Same,
        orphaned: OrphanFate::Dies,
        user: None,
    };
    let started = spawn::spawn(&command);
    started.map_err(|error| told("starting the hypervisor", io::Error::other(error)))?;
    Ok(())
}

/// Becomes the hypervisor, with `words`, its name first: without any capability, and behind a filter that has nothing of
/// mounts, namespaces and other processes. Answers why it could not.
pub fn become_hypervisor(words: &[OsString]) -> io::Error {
    let become_it = || -> io::Result<std::convert::Infallible> {
        credentials::drop_capabilities()?;
        process::die_with_parent()?;
        offleash_sys::seccomp::compile_hypervisor().install()?;
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

/// A machine while it is carried.
#[derive(Debug)]
struct MachineCarrier {
    channel: ChannelMux,
    /// Until the machine begins.
    control: Option<OwnedFd>,
    begin: Option<Begin>,
    /// By the port inside that they lead to.
    listeners: BTreeMap<u16, OwnedFd>,
    /// The hypervisor's.
    monitor: OwnedFd,
    /// Where the machine's state goes once it has booted.
    saves: Option<File>,
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
    fn carry(mut self) -> io::Result<String> {
        let boot_end = std::time::Instant::now() + BOOT_TIMEOUT;
        loop {
            let booting = self.control.is_some();
            let left = booting.then(|| boot_end.saturating_duration_since(std::time::Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(format!("the machine did not boot within {} s", BOOT_TIMEOUT.as_secs()));
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

    fn restore(&mut self, file: &File) -> io::Result<()> {
        let mut monitor = Monitor::open(rustix::io::fcntl_dupfd_cloexec(&self.monitor, 0)?)?;
        monitor.restore(file.as_fd())?;
        monitor.go_on()?;
        self.channel.greeted();
        self.begin()
    }

    /// Saves the machine's state, and lets it go on.
    fn save(&mut self, mut file: File) -> io::Result<()> {
        let mut monitor = Monitor::open(rustix::io::fcntl_dupfd_cloexec(&self.monitor, 0)?)?;
        let saved = monitor.save(file.as_fd());
        monitor.go_on()?;
        saved.and_then(|()| template::finish(&mut file))
    }

    fn take(&mut self, event: MuxEvent) -> io::Result<()> {
        match event {
            MuxEvent::Greeted(_) => {
                if let Some(file) = self.saves.take() {
                    // Later machines boot then.
                    if let Err(error) = self.save(file) {
                        complain(&format!("the machine's template is not saved: {error}"));
                    }
                }
                self.begin()
            }
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
