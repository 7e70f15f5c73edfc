//! The gateway's own process: it gives up all but its sockets, and then serves.
//!
//! It is this program, started anew by [`crate::Gateway`] with nothing but a socket to its supervisor, so that nothing of the
//! supervisor's memory is in it. Before the first order is read it has an id of its own where there is one, no capability,
//! no file system, no way to start anything, and a filter of system calls ([`offleash_sys::seclusion`]). What it cannot
//! make under these it is sent: descriptors, the machine's list of resolvers, its authorities. Values of secrets and the key
//! of the sandbox's authority are in its memory alone.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use offleash_sys::rlimit::{self, LimitedResource};
use offleash_sys::{process, seccomp, seclusion};
use tokio::runtime::Runtime;

use crate::inbound::Published;
use crate::link::Link;
use crate::own::Own;
use crate::serve::{self, Keys, OPEN_FILES, Setup, Ties, new_rules};
use crate::wire::frames::{Incoming, MAX_ORDER, Received};
use crate::wire::{Order, OwnOrder, Report, StartOrder};

/// What lists of processes show, and by what this program knows that it is to be a gateway.
pub const PROCESS_NAME: &str = crate::wire::PROCESS_NAME;
/// The same where 15 bytes are shown.
const SHORT_NAME: &std::ffi::CStr = c"gateway";
/// How much memory it may have: more than all its connections need at once, and less than it takes to do harm.
const MAX_MEMORY: u64 = 4 * 1024 * 1024 * 1024;
/// Limits of what it has no need for at all.
const NOTHING: [LimitedResource; 7] = [
    LimitedResource::Core,
    LimitedResource::FileSize,
    LimitedResource::LockedMemory,
    LimitedResource::MessageQueues,
    LimitedResource::Nice,
    LimitedResource::Processes,
    LimitedResource::RealtimePriority,
];

/// Is the gateway whose supervisor's socket is descriptor 0, until it is told to end or the supervisor is gone.
///
/// # Errors
/// What keeps it from being one; the supervisor is told.
pub fn run() -> io::Result<()> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 0)?;
    let link = Link::new(socket)?;
    // Where one of the libraries gets its randomness from must be open before nothing can be opened.
    getrandom::fill(&mut [0]).map_err(io::Error::other)?;
    match serve::event_loop().and_then(|runtime| seclude().map(|()| runtime)) {
        Ok(runtime) => serve(link, runtime),
        Err(error) => {
            link.send(&Report::Ready(Err((&error).into())));
            Err(error)
        }
    }
}

/// Gives up all that a gateway does not need, for good.
fn seclude() -> io::Result<()> {
    let limited = |error: rlimit::RlimitError| io::Error::from(error.source);
    rlimit::raise_soft(LimitedResource::OpenFiles, OPEN_FILES).map_err(limited)?;
    rlimit::lower(LimitedResource::OpenFiles, OPEN_FILES).map_err(limited)?;
    rlimit::lower(LimitedResource::Data, MAX_MEMORY).map_err(limited)?;
    for resource in NOTHING {
        rlimit::lower(resource, 0).map_err(limited)?;
    }
    let _as_far_as_it_goes = seclusion::leave_files();
    seclusion::become_own_user()?;
    seclusion::hide_memory(SHORT_NAME)?;
    // Now, because another id clears it. A supervisor that is gone already is noticed by its socket.
    process::die_with_parent()?;
    seccomp::compile_service().install()
}

/// Does what it is told before it serves, and serves.
pub(crate) fn serve(link: Link, runtime: Runtime) -> io::Result<()> {
    let mut incoming = Incoming::new(MAX_ORDER);
    let mut keys = Keys::default();
    loop {
        let Some(order) = next_order(&link, &mut incoming)? else {
            // The supervisor is gone, or has no use for it.
            return Ok(());
        };
        match order {
            Order::MakeAuthority => link.send(&Report::Authority(keys.certificate())),
            Order::Start(start) => {
                let descriptors: Vec<OwnedFd> = incoming.descriptors().drain(..).collect();
                let ties = Ties::new(link, incoming, keys)?;
                return serve::run(ties, runtime, |ties| {
                    let (setup, sockets) = setup(*start, descriptors, &mut ties.keys)?;
                    serve::begin(setup, sockets, ties)
                });
            }
            // There is nothing yet that it could be about.
            _ => return Ok(()),
        }
    }
}

/// Waits for the next order; `None` at the end.
pub(crate) fn next_order(link: &Link, incoming: &mut Incoming) -> io::Result<Option<Order>> {
    loop {
        if let Some((order, _)) = incoming.next()? {
            return Ok(Some(order));
        }
        match incoming.receive(link.as_fd())? {
            Received::Something => {}
            Received::Nothing => link.wait_for_orders()?,
            Received::End => return Ok(None),
        }
    }
}

/// What was ordered, with what it needs.
fn setup(
    start: StartOrder,
    descriptors: Vec<OwnedFd>,
    keys: &mut Keys,
) -> io::Result<(Setup, offleash_sys::network::NetworkSockets)> {
    let missing = || io::Error::other("a descriptor is missing");
    let mut descriptors = descriptors.into_iter();
    let sockets = start.sockets.take(&mut descriptors).ok_or_else(missing)?;
    let own = match start.own {
        OwnOrder::Known(known) => Own::from(known),
        OwnOrder::Watched => {
            let both = [descriptors.next(), descriptors.next()];
            let [Some(changes), Some(routes)] = both else {
                return Err(missing());
            };
            Own::from_descriptors([changes, routes])
        }
    };
    let mut published = Vec::with_capacity(start.published.len());
    for port in start.published {
        let listener = descriptors.next().ok_or_else(missing)?.into();
        published.push(Published { listener, port });
    }
    let mut reach = start.reach;
    let trust = reach.roots.take().map(|roots| keys.trust(roots)).transpose()?;
    let setup = Setup {
        rules: new_rules(reach, trust),
        own,
        host_ports: start.host_ports,
        published,
        limits: start.limits,
        asks: start.asks,
        audience: start.audience,
    };
    Ok((setup, sockets))
}
