//! A file that is being written from outside, piece by piece.

use offleash_protocol::files::{FileReply, FileRequest};
use rustix::io::Errno;

use super::entry::{self, UserNames};
use super::path::{CleanPath, LastLink, ReachedPath, reach};
use super::{Refusal, cleaned, failed, refused};
use crate::served::ServedTrees;
use crate::tree::{Annotations, FileCaller, check_annotations};
use crate::wire::{FileKind, FileOperation, MAX_PIECE};

/// A file that is being written. After a failure the rest of it is dropped.
#[derive(Debug)]
pub(super) struct FileWriting {
    begun: Result<BegunWriting, Refusal>,
    is_finished: bool,
}

#[derive(Debug)]
struct BegunWriting {
    asked: CleanPath,
    reached: ReachedPath,
    offset: u64,
    annotations: Annotations,
}

impl FileWriting {
    /// Makes the file, or empties it.
    pub(super) fn begin(path: &[u8], annotations: Annotations, trees: &mut ServedTrees, caller: FileCaller) -> Self {
        Self {
            begun: BegunWriting::new(path, annotations, trees, caller),
            is_finished: false,
        }
    }

    /// Why it cannot be written, if so.
    pub(super) fn failure(&self) -> Option<Refusal> {
        self.begun.as_ref().err().copied()
    }

    /// Whether it is complete, or was given up.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Takes what comes; answers what is to be said.
    pub(super) fn take(
        &mut self,
        request: FileRequest,
        trees: &mut ServedTrees,
        caller: FileCaller,
        names: &UserNames,
    ) -> Option<FileReply> {
        match request {
            FileRequest::Finish => {
                self.is_finished = true;
                let Ok(begun) = &mut self.begun else { return None };
                let told = begun.finish(trees, caller, names);
                Some(told.map_or_else(|(step, errno)| failed(step, errno), FileReply::Entry))
            }
            FileRequest::Data { bytes } => {
                let Ok(begun) = &mut self.begun else { return None };
                let (step, errno) = begun.append(&bytes, trees, caller).err()?;
                self.begun = Err((step, errno));
                Some(failed(step, errno))
            }
            // Nothing else comes before a file is complete.
            _ => {
                self.is_finished = true;
                Some(failed("read the request", Errno::PROTO))
            }
        }
    }
}

impl BegunWriting {
    fn new(
        path: &[u8],
        annotations: Annotations,
        trees: &mut ServedTrees,
        caller: FileCaller,
    ) -> Result<Self, Refusal> {
        let asked = cleaned(path)?;
        check_annotations(&annotations).map_err(refused("setxattr"))?;
        asked.make_parents(trees, caller).map_err(refused("mkdir"))?;
        let reached = reach(trees, caller, asked.path(), LastLink::Followed).map_err(refused("open"))?;
        match reached.facts.map(|found| found.facts.kind) {
            None | Some(FileKind::File) => {}
            Some(FileKind::Directory) => return Err(("open", Errno::ISDIR)),
            Some(_) => return Err(("open", Errno::INVAL)),
        }
        let empty = FileOperation::Replace {
            total: 0,
            bytes: Vec::new(),
        };
        let tree = trees.numbered(reached.tree).map_err(refused("open"))?;
        tree.carry_out_for(caller, &reached.inner, empty)
            .map_err(refused("open"))?;
        Ok(Self {
            asked,
            reached,
            offset: 0,
            annotations,
        })
    }

    fn append(&mut self, bytes: &[u8], trees: &mut ServedTrees, caller: FileCaller) -> Result<(), Refusal> {
        for piece in bytes.chunks(MAX_PIECE) {
            let write = FileOperation::Write {
                offset: self.offset,
                bytes: piece.to_vec(),
            };
            let tree = trees.numbered(self.reached.tree).map_err(refused("write"))?;
            tree.carry_out_for(caller, &self.reached.inner, write)
                .map_err(refused("write"))?;
            self.offset += piece.len() as u64;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        trees: &mut ServedTrees,
        caller: FileCaller,
        names: &UserNames,
    ) -> Result<offleash_protocol::files::FileEntry, Refusal> {
        let tree = trees.numbered(self.reached.tree).map_err(refused("write"))?;
        // A file that had none and gets none is not asked for them.
        if !self.annotations.is_empty() || !tree.annotations(caller, &self.reached.inner).is_empty() {
            tree.annotate(caller, &self.reached.inner, &self.annotations)
                .map_err(refused("setxattr"))?;
        }
        entry::at(trees, caller, &self.asked, names).map_err(refused("stat"))
    }
}
