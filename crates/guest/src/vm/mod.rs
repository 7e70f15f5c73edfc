//! The first process of a virtual machine: `/init` of its initramfs.
//!
//! It loads modules, greets over the channel and waits; there a template of the machine is saved. Told to begin, it makes the
//! machine a sandbox: randomness, time, addresses, the tree, mounts; starts the guest as the first process of a pid namespace
//! within the tree; and carries streams between the channel and what is inside until the guest ends, the channel closes or the
//! tree is gone. Then it switches the machine off. The code in the sandbox sees neither it nor the ports. Deliberately not here:
//! what a command is, which is the guest's; it runs as another process of the same program.

mod begin;
mod boot;
mod channel;
mod ends;
mod listeners;
mod mounts;
mod serve;
mod start;
mod tree;

use alloc::string::String;
use alloc::vec::Vec;

use offleash_protocol::vm::{FromVm, VmEnd};
use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::system::RebootCommand;

/// The path under which the kernel starts it.
pub(crate) const INIT: &[u8] = b"/init";

/// What could not be done.
#[derive(Debug, Clone, Copy)]
struct VmFailure {
    step: &'static str,
    errno: Errno,
}

fn step(step: &'static str) -> impl Fn(Errno) -> VmFailure {
    move |errno| VmFailure { step, errno }
}

impl From<VmFailure> for VmEnd {
    fn from(failure: VmFailure) -> Self {
        VmEnd::Failed {
            step: String::from(failure.step),
            errno: failure.errno.raw_os_error(),
        }
    }
}

/// Runs the machine; never returns, since the kernel would stop at its end.
pub(crate) fn run() -> ! {
    let mut channel = match boot::boot() {
        Ok(channel) => channel,
        Err(failure) => {
            log(failure);
            switch_off();
        }
    };
    let end = match serve::run(&mut channel) {
        Ok(end) => Some(end),
        Err(serve::VmStop::Failed(failure)) => {
            log(failure);
            Some(failure.into())
        }
        Err(serve::VmStop::ChannelClosed) => None,
    };
    if let Some(end) = end {
        channel.say_last(&FromVm::Ended(end));
    }
    switch_off();
}

/// Writes a failure to the kernel's log, which a console shows if there is one.
fn log(failure: VmFailure) {
    let mut line = Vec::from(&b"<3>offleash: "[..]);
    line.extend_from_slice(failure.step.as_bytes());
    line.extend_from_slice(b": error ");
    offleash_sys::spawn::append_decimal(&mut line, failure.errno.raw_os_error().unsigned_abs());
    line.push(b'\n');
    if let Ok(log) = rustix::fs::open(c"/dev/kmsg", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(&log, &line);
    }
}

/// Ends the machine. As a restart, because a machine without ACPI can be restarted and not switched off; whoever runs it makes of
/// that its end.
fn switch_off() -> ! {
    loop {
        let _ = rustix::system::reboot(RebootCommand::Restart);
        pause(10);
    }
}

/// Milliseconds of the clock that only goes forward.
fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Waits for some milliseconds.
fn pause(milliseconds: i64) {
    let time = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    let _ = rustix::event::poll(&mut [], Some(&time));
}
