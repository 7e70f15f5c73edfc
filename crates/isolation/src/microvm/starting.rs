//! From a carrier's order to a machine that waits to be told what it is to become: restored from its template, which is made
//! first where there is none yet, or booted.
//!
//! The file of a template's memory is in no house. A hypervisor opens a path for reading and writing, whatever it does with the
//! file, and is supplied with the file by its carrier: one that may be written to while a template is made, and one
//! that cannot be for every other machine. KVM's device is supplied in the same way.

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::vm::Acceleration;
use offleash_sys::seccomp::{self, HypervisorSupply, NotifyListener};
use offleash_sys::socket;
use offleash_sys::spawn::{self, OrphanFate, SessionChoice, SpawnCommand};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use super::housing::CARRIER_INSIDE;
use super::hypervisor::{self, HANDOVER, HypervisorPlaces, VmStart};
use super::monitor::Monitor;
use super::mux::{ChannelMux, MuxEvent};
use super::order::CarrierOrder;
use super::saying::{complain, said, told};
use super::{HYPERVISOR_ROLE, NOT_RESTORED, template};
use crate::limits::SUPERVISE_COMMAND;

/// How long a machine may take to boot: emulated, on a machine with other work to do.
pub(super) const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a hypervisor may take until it has asked for the file of its memory.
const SUPPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A machine that was started.
#[derive(Debug)]
pub(super) struct StartedMachine {
    pub(super) hypervisor: StartedHypervisor,
    /// Whether it waits to be told what it is to become; otherwise it boots, and will greet.
    pub(super) was_restored: bool,
}

/// Starts the machine of an order; one that cannot be restored from its template boots, and that is said.
///
/// # Errors
/// What kept the hypervisor from starting.
pub(super) fn start(
    order: &CarrierOrder,
    files: Option<TemplateFiles>,
    device: Option<OwnedFd>,
) -> io::Result<StartedMachine> {
    let starting = MachineStarting {
        order,
        device: device.as_ref().map(AsFd::as_fd),
    };
    if let Some(files) = files {
        match starting.restore(files) {
            Ok(hypervisor) => {
                return Ok(StartedMachine {
                    hypervisor,
                    was_restored: true,
                });
            }
            Err(error) => complain(&format!("{NOT_RESTORED}: {error}")),
        }
    }
    Ok(StartedMachine {
        hypervisor: starting.start(VmStart::Boot, None)?,
        was_restored: false,
    })
}

/// What every start of one machine's hypervisor has.
#[derive(Debug, Clone, Copy)]
struct MachineStarting<'a> {
    order: &'a CarrierOrder,
    /// KVM's, if instructions are executed by it.
    device: Option<BorrowedFd<'a>>,
}

/// The files of a template that a carrier was given.
#[derive(Debug)]
pub(super) struct TemplateFiles {
    state: File,
    memory: OwnedFd,
    /// The same for who makes it.
    writable_memory: Option<OwnedFd>,
}

impl TemplateFiles {
    /// Those of these descriptors; `None` without any.
    ///
    /// # Errors
    /// `EBADF` if one is not open.
    pub(super) fn adopt(numbers: &[i32]) -> io::Result<Option<Self>> {
        let adopt =
            |number: i32| spawn::adopt_descriptor(number).map_err(|error| told("there is no template", error.into()));
        let [state, memory, more @ ..] = numbers else {
            return Ok(None);
        };
        Ok(Some(Self {
            state: adopt(*state)?.into(),
            memory: adopt(*memory)?,
            writable_memory: more.first().copied().map(adopt).transpose()?,
        }))
    }
}

impl MachineStarting<'_> {
    fn restore(&self, mut files: TemplateFiles) -> io::Result<StartedHypervisor> {
        if let Some(memory) = files.writable_memory.take() {
            let made = self.make_template(&mut files.state, memory);
            made.map_err(|error| told("making the template", error))?;
        }
        let hypervisor = self.start(VmStart::Restore, Some(files.memory.as_fd()))?;
        let restored = hypervisor.monitor().and_then(|mut monitor| {
            // Who made it stands at its end.
            files.state.rewind()?;
            monitor.restore(files.state.as_fd())?;
            monitor.go_on()
        });
        match restored {
            Ok(()) => Ok(hypervisor),
            Err(error) => {
                hypervisor.end();
                Err(error)
            }
        }
    }

    /// Boots a machine with its memory in `memory`, and ends it when it waits to be told what it is to become.
    fn make_template(&self, state: &mut File, memory: OwnedFd) -> io::Result<()> {
        let hypervisor = self.start(VmStart::MakeTemplate, Some(memory.as_fd()))?;
        let made = hypervisor
            .channel
            .try_clone()
            .and_then(|channel| await_greeting(channel, BOOT_TIMEOUT))
            .and_then(|()| hypervisor.monitor()?.save(state.as_fd()));
        // Nobody writes to its memory any more.
        hypervisor.end();
        made.and_then(|()| template::finish(state))
    }

    /// Starts it in its house, and supplies it with what it opens: the file of its memory, if that is one, and KVM's device.
    fn start(&self, start: VmStart, memory: Option<BorrowedFd<'_>>) -> io::Result<StartedHypervisor> {
        let vm = &self.order.vm;
        let measures = vm.acceleration == Acceleration::Tcg && start != VmStart::Restore;
        let counter_khz = measures.then(offleash_sys::timestamp::tsc_khz).flatten();
        let words = hypervisor::words(vm, &HypervisorPlaces::INSIDE, self.order.card, start, counter_khz);
        let supplied = hypervisor::supplied(vm, start);
        let role = [CARRIER_INSIDE, SUPERVISE_COMMAND, HYPERVISOR_ROLE, supplied.word()].map(str::to_owned);
        let argv: Vec<Vec<u8>> = role.into_iter().chain(words).map(String::into_bytes).collect();
        let hypervisor = StartedHypervisor::spawn(&argv, &said()?, supplied != HypervisorSupply::default())?;
        match hypervisor.supply(memory, self.device) {
            Ok(()) => Ok(hypervisor),
            Err(error) => {
                hypervisor.end();
                Err(error)
            }
        }
    }
}

/// Waits until the machine at the other end of `channel` has booted.
pub(super) fn await_greeting(channel: OwnedFd, timeout: Duration) -> io::Result<()> {
    let mut channel = ChannelMux::new(channel);
    let end = Instant::now() + timeout;
    loop {
        let waited: Vec<(BorrowedFd<'_>, PollFlags)> = channel.wait_on();
        let mut polled: Vec<PollFd<'_>> = waited
            .iter()
            .map(|(end, flags)| PollFd::from_borrowed_fd(*end, *flags))
            .collect();
        poll_until(&mut polled, end)?;
        let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        for event in channel.turn(&ready).map_err(io::Error::other)? {
            match event {
                MuxEvent::Greeted(_) => return Ok(()),
                MuxEvent::Problem(text) => complain(&format!("the machine says: {text}")),
                MuxEvent::ListenersChanged(_) => {}
            }
        }
    }
}

/// As poll(2).
///
/// # Errors
/// `TimedOut` at `end`.
fn poll_until(polled: &mut [PollFd<'_>], end: Instant) -> io::Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = rustix::event::Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    match rustix::io::retry_on_intr(|| rustix::event::poll(polled, Some(&timeout)))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// A hypervisor that runs, and this end of its sockets.
#[derive(Debug)]
pub(super) struct StartedHypervisor {
    pid: Pid,
    /// The machine's streams.
    pub(super) channel: OwnedFd,
    /// The machine's files.
    pub(super) tree: OwnedFd,
    monitor: OwnedFd,
    handover: OwnedFd,
}

impl StartedHypervisor {
    /// Starts `argv` with its descriptors; what it says goes to `said`. One that is supplied with something hands a listener over.
    pub(super) fn spawn(argv: &[Vec<u8>], said: &File, is_supplied: bool) -> io::Result<Self> {
        let (channel, channel_end) = pair()?;
        let (tree, tree_end) = pair()?;
        let (monitor, monitor_end) = pair()?;
        let (handover, handover_end) = pair()?;
        let null = File::options().read(true).open("/dev/null")?;
        let mut descriptors = vec![
            null.as_fd(),
            said.as_fd(),
            said.as_fd(),
            channel_end.as_fd(),
            tree_end.as_fd(),
            monitor_end.as_fd(),
        ];
        if is_supplied {
            descriptors.push(handover_end.as_fd());
        }
        let command = SpawnCommand {
            argv,
            env: &[],
            cwd: None,
            descriptors: &descriptors,
            session: SessionChoice::Same,
            orphaned: OrphanFate::Dies,
            user: None,
        };
        let started = spawn::spawn(&command);
        let started = started.map_err(|error| told("starting the hypervisor", io::Error::other(error)))?;
        let pid = Pid::from_raw(started.pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            pid,
            channel,
            tree,
            monitor,
            handover,
        })
    }

    /// Supplies it with what there is of these, once each.
    fn supply(&self, memory: Option<BorrowedFd<'_>>, device: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (mut memory, mut device) = (memory, device);
        if memory.is_none() && device.is_none() {
            return Ok(());
        }
        let end = Instant::now() + SUPPLY_TIMEOUT;
        poll_until(&mut [PollFd::new(&self.handover, PollFlags::IN)], end)?;
        let (_, listeners) = socket::receive(self.handover.as_fd(), &mut [0])?;
        let listener = listeners.into_iter().next().map(NotifyListener::from);
        let listener = listener.ok_or_else(|| io::Error::other("the hypervisor did not start"))?;
        while memory.is_some() || device.is_some() {
            let mut polled = [PollFd::new(&listener, PollFlags::IN)];
            poll_until(&mut polled, end)?;
            if !polled[0].revents().contains(PollFlags::IN) {
                return Err(io::Error::other("the hypervisor ended before it had its memory"));
            }
            let Some(opening) = listener.receive()? else { continue };
            let wanted = match opening.opens_device() {
                true => device.take(),
                false => memory.take(),
            };
            let wanted = wanted.ok_or_else(|| io::Error::other("the hypervisor opened a file twice"))?;
            listener.supply(&opening, wanted)?;
        }
        Ok(())
    }

    fn monitor(&self) -> io::Result<Monitor> {
        Monitor::open(rustix::io::fcntl_dupfd_cloexec(&self.monitor, 0)?)
    }

    /// Ends it, and waits for that.
    pub(super) fn end(self) {
        // It may be gone already.
        let _killed = rustix::process::kill_process(self.pid, Signal::KILL);
        let _reaped = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// Puts the calling thread behind the filter of a hypervisor, whose listener its carrier gets where it is `supplied` with
/// something.
///
/// # Errors
/// What seccomp(2) answers.
pub(super) fn enter_filter(supplied: HypervisorSupply) -> io::Result<()> {
    let filter = seccomp::compile_hypervisor(supplied);
    if supplied == HypervisorSupply::default() {
        return filter.install();
    }
    let handover = spawn::adopt_descriptor(HANDOVER)?;
    let listener = filter.install_with_listener()?;
    socket::send(handover.as_fd(), b"l", &[listener.as_fd()])
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket::stream_pair().map_err(|error| told("making a socket pair", error))
}
