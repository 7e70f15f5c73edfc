//! Python's library, which this build has as one archive: a file that is read and not written, at the path where the interpreter
//! looks for it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{
    FileAnswer, FileFacts, FileKind, FileOperation, FileRequest, MountPoint, ScriptHost, ScriptLanguage,
};
use rustix::io::Errno;

use crate::artifacts::{PYTHON_LIBRARY, PYTHON_LIBRARY_PATH};

/// How much of it is given at once: it is read here and there.
const PIECE: usize = 64 * 1024;

/// What answers about the library, and passes all else on.
struct LibraryHost {
    outer: Arc<dyn ScriptHost>,
    library: u32,
}

/// The host and the mounts with the library.
pub(super) fn with_library(
    outer: Arc<dyn ScriptHost>,
    mut mounts: Vec<MountPoint>,
) -> (Arc<dyn ScriptHost>, Vec<MountPoint>) {
    let library = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
    mounts.push(MountPoint {
        path: PYTHON_LIBRARY_PATH.to_vec(),
    });
    (Arc::new(LibraryHost { outer, library }), mounts)
}

fn answer(path: &[u8], operation: &FileOperation) -> Result<FileAnswer, Errno> {
    if !path.is_empty() {
        return Err(Errno::NOTDIR);
    }
    match operation {
        FileOperation::Stat => Ok(FileAnswer::Facts(FileFacts {
            kind: FileKind::File,
            mode: 0o444,
            size: PYTHON_LIBRARY.len() as u64,
            seconds: 0,
            nanoseconds: 0,
        })),
        FileOperation::Read { offset } => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX).min(PYTHON_LIBRARY.len());
            let end = PYTHON_LIBRARY.len().min(start + PIECE);
            Ok(FileAnswer::Piece {
                bytes: PYTHON_LIBRARY.get(start..end).unwrap_or_default().to_vec(),
                total: PYTHON_LIBRARY.len() as u64,
            })
        }
        FileOperation::List => Err(Errno::NOTDIR),
        FileOperation::ReadLink => Err(Errno::INVAL),
        _ => Err(Errno::ROFS),
    }
}

impl ScriptHost for LibraryHost {
    fn files(&self, request: FileRequest) -> FileAnswer {
        if request.mount != self.library {
            return self.outer.files(request);
        }
        answer(&request.path, &request.operation).unwrap_or_else(|errno| FileAnswer::Failed {
            errno: errno.raw_os_error(),
        })
    }

    fn interpreter(&self, language: ScriptLanguage) -> Result<OwnedFd, String> {
        self.outer.interpreter(language)
    }

    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool {
        self.outer.output(stream, bytes)
    }
}
