//! What files are annotated with: extended attributes `user.e2b.NAME` (xattr(7)), and no others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use offleash_protocol::files::MAX_METADATA;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{FileCaller, Found, InnerPath, ServedTree};

/// Names without their prefix, and values.
pub(crate) type Annotations = Vec<(Vec<u8>, Vec<u8>)>;

const PREFIX: &[u8] = b"user.e2b.";
/// Longest name with its prefix (limits.h, `XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;
/// Longest value, and all names and values of a file together.
const MAX_VALUE: usize = 4096;
const MAX_BYTES: usize = 16 * 1024;
/// Longest list of names that the kernel gives (limits.h, `XATTR_LIST_MAX`).
const MAX_LIST: usize = 64 * 1024;

impl ServedTree {
    /// What a file or a directory is annotated with, as far as it can be read.
    pub(crate) fn annotations(&mut self, caller: FileCaller, path: &InnerPath) -> Annotations {
        self.caller = caller;
        if let Ok(file) = self.open_to_annotate(path) {
            return of_file(file.as_fd());
        }
        Annotations::new()
    }

    /// Makes these all that a file is annotated with, which is in the layer.
    ///
    /// # Errors
    /// `EINVAL`, `E2BIG`; as the kernel numbers them.
    pub(crate) fn annotate(
        &mut self,
        caller: FileCaller,
        path: &InnerPath,
        annotations: &Annotations,
    ) -> Result<(), Errno> {
        check(annotations)?;
        self.caller = caller;
        let file = self.open_to_annotate(path)?;
        for (name, _) in of_file(file.as_fd()) {
            if !annotations.iter().any(|(kept, _)| *kept == name) {
                rustix::fs::fremovexattr(&file, [PREFIX, &name].concat().as_slice())?;
            }
        }
        set(file.as_fd(), annotations)
    }

    fn open_to_annotate(&mut self, path: &InnerPath) -> Result<OwnedFd, Errno> {
        let Some((parent, name)) = path.split() else {
            return Err(Errno::INVAL);
        };
        match self.directory(&parent)?.find(name)? {
            Found::Directory(mut found) => {
                let upper = found.upper.take();
                let top = upper.or_else(|| found.lowers.into_iter().next().map(|lower| lower.directory));
                top.ok_or(Errno::NOENT)
            }
            _ => self.open_to_read(path),
        }
    }
}

/// Whether all of it can be an annotation.
///
/// # Errors
/// `EINVAL`, `E2BIG`.
pub(crate) fn check(annotations: &Annotations) -> Result<(), Errno> {
    let fits = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let longest = MAX_NAME - PREFIX.len();
        (1..=longest).contains(&name.len()) && !name.contains(&0) && value.len() <= MAX_VALUE
    };
    if !annotations.iter().all(fits) {
        return Err(Errno::INVAL);
    }
    let size: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    match size <= MAX_BYTES {
        true => Ok(()),
        false => Err(Errno::TOOBIG),
    }
}

/// Has a copy annotated as what it is of.
pub(super) fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    set(to.as_fd(), &of_file(from.as_fd()))
}

fn set(file: BorrowedFd<'_>, annotations: &Annotations) -> Result<(), Errno> {
    annotations.iter().try_for_each(|(name, value)| {
        rustix::fs::fsetxattr(file, [PREFIX, name].concat().as_slice(), value, XattrFlags::empty())
    })
}

/// As far as it can be read and is not more than could have been written here.
fn of_file(file: BorrowedFd<'_>) -> Annotations {
    let mut names = [0_u8; 1024];
    let names = match rustix::fs::flistxattr(file, &mut names) {
        Ok(length) => names.get(..length).unwrap_or_default().to_vec(),
        Err(Errno::RANGE) => {
            let mut many = vec![0_u8; MAX_LIST];
            let length = rustix::fs::flistxattr(file, many.as_mut_slice()).unwrap_or(0);
            many.truncate(length);
            many
        }
        // Many a file system has none.
        Err(_) => return Annotations::new(),
    };
    let ours = names
        .split(|byte| *byte == 0)
        .filter_map(|name| name.strip_prefix(PREFIX));
    let mut left = MAX_BYTES;
    let mut found = Annotations::new();
    for name in ours.filter(|name| !name.is_empty()).take(MAX_METADATA) {
        let mut value = [0_u8; MAX_VALUE];
        let whole = [PREFIX, name].concat();
        let Ok(length) = rustix::fs::fgetxattr(file, whole.as_slice(), &mut value) else {
            continue;
        };
        let Some(rest) = left.checked_sub(name.len() + length) else {
            break;
        };
        left = rest;
        found.push((name.to_vec(), value.get(..length).unwrap_or_default().to_vec()));
    }
    found
}
