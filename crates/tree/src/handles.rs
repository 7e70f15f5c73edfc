//! What the other side has open, by number.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::io::Errno;

use crate::position::DirectoryPosition;

/// Something open.
#[derive(Debug, Clone)]
pub(crate) enum OpenHandle {
    /// A file, and the node that it was opened by.
    File(Arc<OpenFile>),
    /// A directory.
    Directory(Arc<OpenDirectory>),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) descriptor: OwnedFd,
    pub(crate) node: u64,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) descriptor: OwnedFd,
    pub(crate) node: u64,
    pub(crate) position: Mutex<DirectoryPosition>,
}

/// All that is open.
#[derive(Debug)]
pub(crate) struct HandleTable {
    open: RwLock<(u64, HashMap<u64, OpenHandle>)>,
    most: usize,
}

impl HandleTable {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            open: RwLock::new((1, HashMap::new())),
            most,
        }
    }

    /// Numbers it.
    ///
    /// # Errors
    /// `ENFILE` if it would be one too many.
    pub(crate) fn add(&self, handle: OpenHandle) -> Result<u64, Errno> {
        let mut guard = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let (next, open) = &mut *guard;
        if open.len() >= self.most {
            return Err(Errno::NFILE);
        }
        let number = *next;
        *next += 1;
        open.insert(number, handle);
        Ok(number)
    }

    /// # Errors
    /// `EBADF` if no file has this number.
    pub(crate) fn file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        match self.get(number)? {
            OpenHandle::File(file) => Ok(file),
            OpenHandle::Directory(_) => Err(Errno::BADF),
        }
    }

    /// # Errors
    /// `EBADF` if no directory has this number.
    pub(crate) fn directory(&self, number: u64) -> Result<Arc<OpenDirectory>, Errno> {
        match self.get(number)? {
            OpenHandle::Directory(directory) => Ok(directory),
            OpenHandle::File(_) => Err(Errno::BADF),
        }
    }

    fn get(&self, number: u64) -> Result<OpenHandle, Errno> {
        let guard = self.open.read().unwrap_or_else(PoisonError::into_inner);
        guard.1.get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Forgets it; it is closed when nobody uses it any more.
    pub(crate) fn remove(&self, number: u64) {
        let mut guard = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let removed = guard.1.remove(&number);
        drop(guard);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_bounded() {
        let handles = HandleTable::new(2);
        let file = || {
            let descriptor = std::fs::File::open("/").unwrap().into();
            OpenHandle::File(Arc::new(OpenFile { descriptor, node: 1 }))
        };
        let first = handles.add(file()).unwrap();
        handles.add(file()).unwrap();
        assert_eq!(handles.add(file()), Err(Errno::NFILE));
        handles.remove(first);
        assert!(handles.file(first).is_err());
        assert_ne!(handles.add(file()), Ok(first));
    }
}
