//! Makes a machine that waited one of its own: randomness, time, name, addresses.

use offleash_protocol::vm::{Begin, ENTROPY, VERSION};
use offleash_sys::machine;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use super::{VmFailure, step};

/// The network card, of which there is one at most.
const INTERFACE: &core::ffi::CStr = c"eth0";

/// Applies all of `begin` that is not about the tree. Randomness comes first: nothing may draw any before.
pub(super) fn apply(begin: &Begin) -> Result<(), VmFailure> {
    if begin.version != VERSION || begin.entropy.len() != ENTROPY {
        return Err(step("understand how to begin")(Errno::PROTO));
    }
    let random = rustix::fs::open(c"/dev/urandom", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let seeded = random.and_then(|random| machine::seed(random, &begin.entropy));
    seeded.map_err(step("seed the random numbers"))?;
    let now = Timespec {
        tv_sec: i64::try_from(begin.seconds).unwrap_or(0),
        tv_nsec: begin.nanoseconds.into(),
    };
    rustix::time::clock_settime(ClockId::Realtime, now).map_err(step("set the clock"))?;
    rustix::system::sethostname(&begin.hostname).map_err(step("set the host's name"))?;
    if let Some(network) = begin.network {
        machine::set_address(INTERFACE, network.address, network.prefix, network.gateway)
            .map_err(step("set the network's address"))?;
    }
    Ok(())
}
