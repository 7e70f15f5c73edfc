//! A sandbox below a zygote: where it starts, and its ids as the zygote counts them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use offleash_core::exec::UserIds;
use offleash_core::spec::{IdChoice, ProcessRef};
use offleash_sys::namespaces::{self, ForkedChild, IdMap, NamespaceSet, NestedStart};
use offleash_sys::process::start_ticks;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::identity::{IdMaps, MapWriter};
use crate::sandbox::SandboxIds;

/// A zygote, by its first process.
#[derive(Debug)]
pub(super) struct ZygoteProcess {
    first: OwnedFd,
    pid: u32,
}

impl ZygoteProcess {
    /// The zygote of this process.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub(super) fn find(process: ProcessRef) -> io::Result<Self> {
        let number = i32::try_from(process.pid).ok().filter(|pid| *pid > 0);
        let number = number.and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let first = pidfd_open(number, PidfdFlags::empty())?;
        // Held from here on; what the number means cannot change any more without this being gone.
        match start_ticks(number.as_raw_pid())? {
            Some(start) if start == process.start_ticks => Ok(Self {
                first,
                pid: process.pid,
            }),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Starts the first process of a sandbox with these ids below it.
    ///
    /// # Errors
    /// What the kernel answered; `InvalidInput` when an id is none of the zygote's.
    pub(super) fn fork(
        &self,
        ids: &SandboxIds,
        identity: &IdMaps,
        namespaces: NamespaceSet,
        body: impl FnOnce() -> i32,
    ) -> io::Result<ForkedChild> {
        let owner = owner(ids);
        let uid_map = inner(&identity.uid_map, &self.map("uid_map")?)?;
        let gid_map = inner(&identity.gid_map, &self.map("gid_map")?)?;
        let below = NestedStart {
            first: self.first.as_fd(),
            owner: (owner.uid, owner.gid),
            uid_map: &uid_map,
            gid_map: &gid_map,
            deny_setgroups: identity.writer == MapWriter::Own,
        };
        namespaces::fork_below(&below, namespaces, body)
    }

    fn map(&self, file: &str) -> io::Result<Vec<IdMap>> {
        Ok(parse(&std::fs::read_to_string(format!("/proc/{}/{file}", self.pid))?))
    }
}

/// The user, inside the zygote, whose processes are handed out. Both sandboxes have the same users.
fn owner(ids: &SandboxIds) -> UserIds {
    match ids.choice {
        IdChoice::Range => ids.worker,
        IdChoice::Single | IdChoice::Zero => UserIds {
            uid: ids.uid,
            gid: ids.gid,
        },
    }
}

/// The lines of a map (user_namespaces(7)).
fn parse(text: &str) -> Vec<IdMap> {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some(IdMap {
            inside: numbers.next()?.ok()?,
            outside: numbers.next()?.ok()?,
            count: numbers.next()?.ok()?,
        })
    };
    text.lines().filter_map(line).collect()
}

/// `map`, with what the host calls the outer ids said as the zygote, whose map is `zygote`, calls them.
fn inner(map: &[IdMap], zygote: &[IdMap]) -> io::Result<Vec<IdMap>> {
    let mut found = Vec::new();
    for line in map {
        let (mut inside, mut outside, mut left) = (line.inside, line.outside, line.count);
        while left > 0 {
            let within = |one: &&IdMap| outside >= one.outside && outside - one.outside < one.count;
            let one = zygote.iter().find(within).ok_or(io::ErrorKind::InvalidInput)?;
            let before = outside - one.outside;
            let count = left.min(one.count - before);
            found.push(IdMap {
                inside,
                outside: one.inside + before,
                count,
            });
            inside = inside.wrapping_add(count);
            outside = outside.wrapping_add(count);
            left -= count;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(inside: u32, outside: u32, count: u32) -> IdMap {
        IdMap { inside, outside, count }
    }

    #[test]
    fn ids_are_said_as_the_zygote_says_them() {
        let zygote = parse("         0       4242          1\n         1     100000      65535\n");
        assert_eq!(zygote, [line(0, 4242, 1), line(1, 100_000, 65_535)]);
        // The same ids, whichever of them is which inside.
        let same = inner(&zygote, &zygote).unwrap();
        assert_eq!(same, [line(0, 0, 1), line(1, 1, 65_535)]);
        assert_eq!(inner(&[line(1000, 4242, 1)], &zygote).unwrap(), [line(1000, 0, 1)]);
        // Over a border of the zygote's.
        let joined = [line(0, 10, 5), line(7, 15, 5)];
        assert_eq!(
            inner(&[line(0, 12, 6)], &joined).unwrap(),
            [line(0, 2, 3), line(3, 7, 3)]
        );
    }

    #[test]
    fn an_id_that_the_zygote_has_not_is_refused() {
        for outside in [line(0, 9, 2), line(0, 11, 5), line(0, u32::MAX, 1)] {
            let error = inner(&[outside], &[line(0, 10, 5)]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_process_that_is_gone_is_no_zygote() {
        let process = ProcessRef {
            pid: std::process::id(),
            start_ticks: 1,
        };
        assert_eq!(
            ZygoteProcess::find(process).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let nobody = ProcessRef { pid: 0, ..process };
        assert_eq!(ZygoteProcess::find(nobody).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
