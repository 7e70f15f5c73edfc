//! The guest agent: PID 1 of a sandbox, which starts what the host asks for, as the sandbox's user, and reports.
//!
//! One thread and one loop over the control socket, the signals and the commands' pipes. It holds no secret and is
//! not trusted by the host; the code in the sandbox may not look into it either, so it is not dumpable. When the host
//! is gone, or says something that is not the protocol, it kills everything and ends. Deliberately not here:
//! everything that makes the sandbox (namespaces, mounts, filters, limits), which was done before it was exec'd.
//!
//! Without the standard library: the start-up of a C library costs half of what the whole of the guest needs.

#![no_std]

extern crate alloc;

mod accounts;
mod agent;
mod connection;
mod execution;
mod files;
mod input;
mod limit_counts;
mod oom_score;
mod output;
mod processes;
mod rename;
mod sudo;
mod tools;
mod usage;
mod vm;

use core::ffi::CStr;

pub use processes::GuestRole;

/// Number of the control socket, a connected stream socket.
pub const CONTROL: i32 = 3;

/// The name of the program where it is the guest and not the init of a pid namespace.
pub const NAME: &[u8] = b"offleash-guest";

/// The argument that makes it a subreaper instead of the init of a pid namespace.
pub const SUBREAPER: &CStr = c"subreaper";

/// The argument that makes the init of a pid namespace put itself under the filter in [`FILTER`] first: where a runtime starts it
/// whose kernel is the host's.
pub const FILTERED: &CStr = c"filtered";

/// Where the filter is.
pub const FILTER: &CStr = c"/run/.offleash-filter";

/// Exit codes of the guest.
pub mod exit {
    /// It was told to shut down.
    pub const SHUTDOWN: u8 = 0;
    /// The host closed the control socket.
    pub const HOST_GONE: u8 = 70;
    /// The host sent something that is not the protocol.
    pub const PROTOCOL: u8 = 71;
    /// It could not start: no control socket, not PID 1, an unknown argument.
    pub const NOT_STARTED: u8 = 72;
    /// The kernel refused something without which it cannot go on.
    pub const KERNEL: u8 = 73;
}

/// Serves the host until it is gone; answers the code to exit with.
///
/// The program's only argument is none for the init of a pid namespace, [`SUBREAPER`] otherwise. Under the name `sudo`
/// it is that program instead, and under any other name than its own the command that calls the tool of that name.
pub fn run(argv: &[&CStr], env: &[&CStr]) -> u8 {
    let name = argv.first().map_or(&b""[..], |name| name.to_bytes());
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if name == sudo::NAME {
        return sudo::run(argv, env);
    }
    // The kernel of a virtual machine starts its first process so; anywhere else that is not the first process.
    if argv.first().is_some_and(|name| name.to_bytes() == vm::INIT) && rustix::process::getpid().as_raw_pid() == 1 {
        vm::run();
    }
    let role = match argv.get(1).copied() {
        // Killing everything means `kill(-1)` for an init; anybody else would take the host's processes down with it.
        None if rustix::process::getpid().as_raw_pid() == 1 => GuestRole::Init,
        Some(word) if word == FILTERED && rustix::process::getpid().as_raw_pid() == 1 => match filter_itself() {
            Ok(()) => GuestRole::Init,
            Err(_) => return exit::NOT_STARTED,
        },
        Some(word) if word == SUBREAPER && name == NAME => GuestRole::Subreaper,
        _ if name == NAME || rustix::process::getpid().as_raw_pid() == 1 => return exit::NOT_STARTED,
        _ => return tools::run(name, argv),
    };
    match agent::GuestAgent::start(role) {
        Ok(agent) => agent.serve(),
        Err(_) => exit::NOT_STARTED,
    }
}

/// Puts this process under the filter that lies beside it.
fn filter_itself() -> Result<(), rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags};
    // The longest that the kernel takes is 32 KiB.
    let mut program = alloc::vec![0; 40 << 10];
    let file = rustix::fs::open(FILTER, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut length = 0;
    while let Some(rest) = program.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(&file, rest)? {
            0 => break,
            read => length += read,
        }
    }
    offleash_sys::filter::install(program.get(..length).unwrap_or_default())
}
