//! Home directories of a sandbox with a root of its own.

use std::path::Path;

use offleash_core::exec::UserIds;
use offleash_core::plan::{Plan, PlanNode};
use rustix::io::Errno;

use super::ServedTrees;
use crate::tree::FileCaller;
use crate::wire::{FileAnswer, FileKind, FileOperation};

/// What a new home is filled with.
const SKELETON: &str = "/etc/skel";
/// Files of it up to this size.
const COPIED_UP_TO: u64 = 64 << 10;
const SUPERUSER: FileCaller = FileCaller { uid: 0, gid: 0 };

/// The name of a file of a new home, and what is in it.
type SkeletonFile = (Vec<u8>, Vec<u8>);

impl ServedTrees {
    /// Makes the home directories that the plan asks for, with what is in `/etc/skel`, where they are not there.
    ///
    /// # Errors
    /// As the kernel numbers them.
    pub(crate) fn make_homes(&mut self, plan: &Plan) -> Result<(), Errno> {
        for entry in &plan.entries {
            if let PlanNode::Home { owner, mode } = entry.node {
                self.make_home(&entry.target, owner, mode)?;
            }
        }
        Ok(())
    }

    fn make_home(&mut self, home: &Path, owner: UserIds, mode: u32) -> Result<(), Errno> {
        let Some((number, inner)) = self.locate(home) else {
            return Ok(());
        };
        let tree = self.numbered(number)?;
        match tree.carry_out_for(SUPERUSER, &inner, FileOperation::MakeDirectory) {
            Ok(_) => {}
            // Whatever is there, a link too, is the sandbox's.
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        tree.carry_out_for(SUPERUSER, &inner, FileOperation::Chmod { mode })?;
        tree.give(SUPERUSER, &inner, (owner.uid, owner.gid))?;
        let caller = FileCaller {
            uid: owner.uid,
            gid: owner.gid,
        };
        // A system without such files is none the worse for it.
        for (name, bytes) in self.skeleton().unwrap_or_default() {
            let total = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let replace = FileOperation::Replace { total, bytes };
            self.numbered(number)?
                .carry_out_for(caller, &inner.join(&name), replace)?;
        }
        Ok(())
    }

    fn skeleton(&mut self) -> Result<Vec<SkeletonFile>, Errno> {
        let (number, inner) = self.locate(Path::new(SKELETON)).ok_or(Errno::NOENT)?;
        let tree = self.numbered(number)?;
        let FileAnswer::Entries(entries) = tree.carry_out_for(SUPERUSER, &inner, FileOperation::List)? else {
            return Err(Errno::PROTO);
        };
        let mut files = Vec::new();
        for entry in entries {
            if entry.facts.kind != FileKind::File || entry.facts.size > COPIED_UP_TO {
                continue;
            }
            let read = FileOperation::Read { offset: 0 };
            if let FileAnswer::Piece { bytes, .. } = tree.carry_out_for(SUPERUSER, &inner.join(&entry.name), read)? {
                files.push((entry.name, bytes));
            }
        }
        Ok(files)
    }
}
