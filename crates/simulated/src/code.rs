//! Code in files that are served, for engines that compile it, and what they made of it.
//!
//! The file is read here, so that it is this process that says which code something was made of. A worker can answer for
//! the code that it was given and for no other, once, before it says anything else of it.

use rustix::io::Errno;

use crate::engine::CompiledStore;
use crate::served::ServedTrees;
use crate::wire::{CodePiece, FileAnswer, FileOperation, FileRequest, MAX_CODE, MAX_COMPILED, MAX_PIECE, ToWorker};

/// The code that a worker was given.
#[derive(Debug)]
pub(crate) struct CodeOfFiles {
    store: Option<Box<dyn CompiledStore>>,
    /// What a worker has made of it so far, while that is expected.
    coming: Option<Vec<u8>>,
}

impl CodeOfFiles {
    pub(crate) fn new(store: Option<Box<dyn CompiledStore>>) -> Self {
        Self { store, coming: None }
    }

    /// What a worker is answered that needs the code in a file.
    pub(crate) fn pieces(&mut self, trees: &mut ServedTrees, mount: u32, path: &[u8], anew: bool) -> Vec<ToWorker> {
        self.coming = None;
        let source = match read(trees, mount, path) {
            Ok(source) => source,
            Err(errno) => return vec![ToWorker::NoCode { errno }],
        };
        let compiled = self.store.as_mut().and_then(|store| store.find(&source));
        let compiled = compiled.filter(|_| !anew);
        match compiled {
            Some(compiled) => cut(&compiled, true),
            None => {
                self.coming = self.store.is_some().then(Vec::new);
                cut(&source, false)
            }
        }
    }

    /// Takes a piece of what was made of it; whether it was owed.
    pub(crate) fn take_compiled(&mut self, bytes: &[u8], is_last: bool) -> bool {
        // Without a store there is nobody who keeps it.
        let Some(store) = &mut self.store else { return true };
        let Some(coming) = &mut self.coming else { return false };
        if bytes.len() > MAX_PIECE || coming.len() + bytes.len() > MAX_COMPILED {
            return false;
        }
        coming.extend_from_slice(bytes);
        if is_last {
            store.keep(coming);
            self.coming = None;
        }
        true
    }
}

fn read(trees: &mut ServedTrees, mount: u32, path: &[u8]) -> Result<Vec<u8>, i32> {
    let mut source = Vec::new();
    loop {
        let offset = u64::try_from(source.len()).unwrap_or(u64::MAX);
        let request = FileRequest {
            mount,
            path: path.to_vec(),
            operation: FileOperation::Read { offset },
        };
        match trees.answer(request) {
            FileAnswer::Piece { total, .. } if total > MAX_CODE as u64 => return Err(Errno::FBIG.raw_os_error()),
            FileAnswer::Piece { bytes, .. } if bytes.is_empty() => return Ok(source),
            FileAnswer::Piece { bytes, .. } => source.extend_from_slice(&bytes),
            FileAnswer::Failed { errno } => return Err(errno),
            _ => return Err(Errno::PROTO.raw_os_error()),
        }
        if source.len() > MAX_CODE {
            return Err(Errno::FBIG.raw_os_error());
        }
    }
}

/// At least one piece, the last of which says so.
fn cut(code: &[u8], is_compiled: bool) -> Vec<ToWorker> {
    let count = code.len().div_ceil(MAX_PIECE).max(1);
    let piece = |number: usize| {
        let start = number * MAX_PIECE;
        let end = code.len().min(start + MAX_PIECE);
        ToWorker::Code(CodePiece {
            is_compiled,
            is_last: number + 1 == count,
            bytes: code.get(start..end).unwrap_or_default().to_vec(),
        })
    };
    (0..count).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct NothingKept;

    impl CompiledStore for NothingKept {
        fn find(&mut self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }

        fn keep(&mut self, _: &[u8]) {}
    }

    #[test]
    fn what_was_made_is_taken_once_and_only_of_code_that_was_given() {
        let mut code = CodeOfFiles::new(Some(Box::new(NothingKept)));
        assert!(!code.take_compiled(b"of nothing", true));
        code.coming = Some(Vec::new());
        assert!(code.take_compiled(b"some", false) && code.take_compiled(b"thing", true));
        assert!(!code.take_compiled(b"again", true));
        code.coming = Some(Vec::new());
        assert!(!code.take_compiled(&vec![0; MAX_PIECE + 1], true));
    }

    #[test]
    fn code_is_cut_into_pieces_of_which_the_last_says_so() {
        let lengths = |code: &[u8]| -> Vec<(usize, bool)> {
            let pieces = cut(code, false).into_iter().map(|message| match message {
                ToWorker::Code(piece) => (piece.bytes.len(), piece.is_last),
                other => panic!("{other:?}"),
            });
            pieces.collect()
        };
        assert_eq!(lengths(b""), [(0, true)]);
        assert_eq!(lengths(&vec![0; MAX_PIECE]), [(MAX_PIECE, true)]);
        assert_eq!(lengths(&vec![0; MAX_PIECE + 1]), [(MAX_PIECE, false), (1, true)]);
    }
}
