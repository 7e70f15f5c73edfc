//! Acting as the superuser of the caller's ids, for what a sandbox leaves behind.

use std::io;
use std::os::fd::AsFd;

use offleash_core::exec::UserIds;
use offleash_core::id::RunId;
use offleash_core::spec::{IdChoice, ZygoteRole};
use offleash_sys::namespaces::{self, NamespaceSet};
use offleash_sys::process;

use super::handshake::{self, ChildEnd, FromParent, StepFailure};
use super::identity::{self, IdMaps};
use super::{child, failed};
use crate::error::IsolationError;
use crate::sandbox::SandboxIds;

const SUPERUSER: UserIds = UserIds { uid: 0, gid: 0 };

/// Runs `body` in a process of its own, as uid 0 of a user namespace with the caller's range of ids: with every
/// capability over what belongs to these ids, and none over anything else.
///
/// The calling process must have one thread.
///
/// # Errors
/// When the caller has no subordinate ids, or the namespace cannot be made; what `body` answers, as far as it is an error
/// of the kernel.
pub fn as_superuser_of_range(body: impl FnOnce() -> io::Result<()>) -> Result<(), IsolationError> {
    as_superuser(IdChoice::Range, body)
}

/// As [`as_superuser_of_range`], and where there is no range as uid 0 of a user namespace with the caller's own id alone:
/// with every capability over what is the caller's. An error of `body` has it run once more.
///
/// The calling process must have one thread.
///
/// # Errors
/// When no namespace can be made; what `body` answers, as far as it is an error of the kernel.
pub fn as_superuser_of_own(body: impl Fn() -> io::Result<()>) -> Result<(), IsolationError> {
    as_superuser(IdChoice::Range, &body).or_else(|_| as_superuser(IdChoice::Single, &body))
}

fn choose(choice: IdChoice) -> io::Result<IdMaps> {
    identity::choose(&SandboxIds {
        sandbox: RunId::from_parts(0, 0),
        choice,
        uid: SUPERUSER.uid,
        gid: SUPERUSER.gid,
        worker: SUPERUSER,
        descent: ZygoteRole::Alone,
    })
}

fn as_superuser(choice: IdChoice, body: impl FnOnce() -> io::Result<()>) -> Result<(), IsolationError> {
    let identity = choose(choice).map_err(|error| failed("choosing user ids", "", error))?;
    let (parent, child) = handshake::pair().map_err(|error| failed("making the set-up socket", "", error))?;
    let namespaces = NamespaceSet {
        user: true,
        ..NamespaceSet::default()
    };
    let helper = namespaces::fork_into(namespaces, None, || {
        process::close_inherited(parent.0.as_fd());
        act(&child, body)
    })
    .map_err(|error| failed("making a user namespace", "", error))?;
    drop(child);
    let told = identity.write_maps(helper.pid).and_then(|()| parent.mapped(None));
    // One that was told nothing ends when the socket closes.
    let answer = told.map(|()| parent.report());
    drop(parent);
    let reaped = process::reap(helper.pid).map_err(|error| failed("waiting for the helper", "", error));
    match answer.map_err(|error| failed("mapping user ids", "", error))? {
        Ok(_done) => reaped.map(drop),
        Err(StepFailure { step, subject, source }) => Err(failed(step, subject, source)),
    }
}

fn act(channel: &ChildEnd, body: impl FnOnce() -> io::Result<()>) -> i32 {
    let done = match channel.next() {
        Ok(FromParent::Mapped { .. }) => process::die_with_parent().and_then(|()| body()),
        Ok(_) => Err(child::unexpected().source),
        Err(error) => Err(error),
    };
    match done.map_err(child::step("acting as the superuser of subordinate ids")) {
        Ok(()) => match channel.done() {
            Ok(()) => 0,
            Err(_) => 125,
        },
        Err(failure) => {
            channel.failed(&failure);
            125
        }
    }
}
