//! Whether a sandbox can be given a network that leads to the gateway.

use std::io::{self, Read as _};

use offleash_core::plan::{MAX_LISTENERS, NetworkDoors};
use offleash_sys::namespaces::{self, NamespaceSet};
use offleash_sys::process;
use rustix::pipe::PipeFlags;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus};
use crate::process::network::{self, RedirectWay};

/// What a child that made filters says.
const AT_ONCE: &str = "refuses at once";
const BY_RESET: &str = "refuses by reset";

/// Makes such a network once, in namespaces that are gone at once.
pub(super) fn check() -> FeatureCheck {
    let check = |status, found: &str| {
        FeatureCheck::new(
            "network-gateway",
            status,
            found,
            "letting a sandbox reach the hosts that `--allow` names",
        )
    };
    match try_making() {
        Ok(ProbeOutcome::Filters(RefusalKind::AtOnce)) => check(
            FeatureStatus::Ok,
            "every connection of a sandbox can be led to the gateway, and refused before it is made",
        ),
        Ok(ProbeOutcome::Filters(RefusalKind::ByReset)) => {
            let mend = FeatureRemedy::new(
                "refused connections are made and then reset; for `ECONNREFUSED` it needs, as root:",
                &["modprobe -a nfnetlink_queue nft_compat xt_NFQUEUE"],
            );
            let found = "every connection of a sandbox can be led to the gateway, and is made before it is refused";
            check(FeatureStatus::Ok, found).with_mend(Some(mend))
        }
        Ok(ProbeOutcome::Listeners(reason)) => {
            let found = format!(
                "only connections to at most {MAX_LISTENERS} ports that rules name, at which no program of the sandbox \
                 can listen then; others are refused and not recorded: {reason}"
            );
            check(FeatureStatus::Limited, &found).with_mend(Some(mend()))
        }
        Ok(ProbeOutcome::Neither(reason)) => check(FeatureStatus::Missing, &reason).with_mend(Some(mend())),
        Err(error) => check(FeatureStatus::Limited, &format!("it could not be tried: {error}")),
    }
}

fn mend() -> FeatureRemedy {
    FeatureRemedy::new(
        "it needs nf_tables with TPROXY or REDIRECT, and user namespaces; as root, where they are modules:",
        &["modprobe -a nf_tables nft_tproxy nft_redir nft_reject_ipv4 nft_reject_ipv6"],
    )
}

/// What came of making one.
enum ProbeOutcome {
    /// Every connection is led to the gateway.
    Filters(RefusalKind),
    /// Those to certain ports are, and why not the others.
    Listeners(String),
    /// None is, and why.
    Neither(String),
}

/// How a program learns that its connection is refused.
enum RefusalKind {
    /// From `connect(2)`.
    AtOnce,
    /// By a reset.
    ByReset,
}

/// What a child that made no filters says first.
const LISTENERS: &str = "listeners\n";

fn try_making() -> io::Result<ProbeOutcome> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let namespaces = NamespaceSet {
        user: true,
        network: true,
        ..NamespaceSet::default()
    };
    let child = namespaces::fork_into(namespaces, None, || {
        match network::make(&[80, 443], &NetworkDoors::default()) {
            Ok((sockets, RedirectWay::ByFilters)) => {
                let says = if sockets.first_packets.is_some() {
                    AT_ONCE
                } else {
                    BY_RESET
                };
                let _told = rustix::io::write(&writer, says.as_bytes());
                0
            }
            Ok((_sockets, RedirectWay::ByListeners(missing))) => {
                let _told = rustix::io::write(&writer, format!("{LISTENERS}{missing}").as_bytes());
                0
            }
            Err(failure) => {
                let reason = format!("{}: {}: {}", failure.step, failure.subject, failure.source);
                // The pipe has room for it; without a reader there is nobody to be told.
                let _told = rustix::io::write(&writer, reason.as_bytes());
                1
            }
        }
    });
    let child = match child {
        Ok(child) => child,
        // Where namespaces cannot be made, `user-namespaces` says why and what to do.
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::DEADLK.raw_os_error()) => {
            return Ok(ProbeOutcome::Neither(format!(
                "a network namespace cannot be made: {error}"
            )));
        }
        Err(error) => return Err(error),
    };
    drop(writer);
    let mut reason = String::new();
    let read = std::fs::File::from(reader).take(4096).read_to_string(&mut reason);
    process::reap(child.pid)?;
    read?;
    Ok(match reason.strip_prefix(LISTENERS) {
        Some(missing) => ProbeOutcome::Listeners(missing.to_owned()),
        None if reason == AT_ONCE => ProbeOutcome::Filters(RefusalKind::AtOnce),
        None if reason == BY_RESET => ProbeOutcome::Filters(RefusalKind::ByReset),
        None => ProbeOutcome::Neither(reason),
    })
}
