//! User namespaces by which mounts show files as a sandbox's own.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use offleash_sys::namespaces::{IdMap, UserNamespace};

use super::identity::{self, IdMaps};

/// Namespaces for id-mapped mounts; most sandboxes need one.
pub(super) struct OwnerMaps<'a> {
    identity: &'a IdMaps,
    made: Vec<([Vec<IdMap>; 2], UserNamespace)>,
}

impl<'a> OwnerMaps<'a> {
    /// None yet.
    pub(super) fn new(identity: &'a IdMaps) -> Self {
        Self {
            identity,
            made: Vec::new(),
        }
    }

    /// Shows `owner` as the user who works in the sandbox.
    pub(super) fn of_worker(&mut self, owner: (u32, u32)) -> io::Result<BorrowedFd<'_>> {
        self.map(owner, self.identity.worker, 1)
    }

    /// Shows the users of a volume, of which `owner` stands for whoever works in a sandbox, as those of this one.
    pub(super) fn of_volume(&mut self, owner: (u32, u32)) -> io::Result<BorrowedFd<'_>> {
        let ranges = self.identity.range_start().and_then(|start| {
            let lines = |owner: u32, worker: u32| identity::volume_ids(owner, start, worker - start);
            Some([
                lines(owner.0, self.identity.worker.0)?,
                lines(owner.1, self.identity.worker.1)?,
            ])
        });
        match ranges {
            Some(maps) => self.namespace(maps),
            None => self.of_worker(owner),
        }
    }

    /// Shows the users of the host as those of the sandbox with the same numbers, or, where it has one id, `owner` as
    /// that.
    pub(super) fn of_system(&mut self, owner: (u32, u32)) -> io::Result<BorrowedFd<'_>> {
        match self.identity.range_start() {
            Some(start) => self.map((0, 0), (start, start), identity::RANGE),
            None => self.map(owner, self.identity.outside, 1),
        }
    }

    /// Shows the users of an earlier sandbox, of which `owner` is the first process's, as those of this one.
    pub(super) fn of_earlier(&mut self, owner: (u32, u32)) -> io::Result<BorrowedFd<'_>> {
        let count = self.identity.range_start().map_or(1, |_| identity::RANGE);
        self.map(owner, self.identity.outside, count)
    }

    /// Processes that have made one, and may not have ended yet.
    pub(super) fn makers(&self) -> Vec<rustix::process::Pid> {
        self.made.iter().map(|(_, namespace)| namespace.maker()).collect()
    }

    fn map(&mut self, from: (u32, u32), to: (u32, u32), count: u32) -> io::Result<BorrowedFd<'_>> {
        let line = |inside, outside| vec![IdMap { inside, outside, count }];
        self.namespace([line(from.0, to.0), line(from.1, to.1)])
    }

    fn namespace(&mut self, maps: [Vec<IdMap>; 2]) -> io::Result<BorrowedFd<'_>> {
        let position = match self.made.iter().position(|(made, _)| *made == maps) {
            Some(position) => position,
            None => {
                let namespace = UserNamespace::new(&maps[0], &maps[1])?;
                self.made.push((maps, namespace));
                self.made.len() - 1
            }
        };
        Ok(self.made[position].1.as_fd())
    }
}
