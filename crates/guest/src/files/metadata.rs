//! What files are annotated with: extended attributes `user.e2b.NAME` (xattr(7)).

use alloc::vec::Vec;

use offleash_protocol::files::MAX_METADATA;
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::failure::{FileFailure, failed};

/// Names and values.
pub(super) type MetadataPairs = Vec<(Vec<u8>, Vec<u8>)>;

const PREFIX: &[u8] = b"user.e2b.";

/// Longest name with its prefix (limits.h, `XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;

/// Longest value, and all names and values of a file together.
const MAX_VALUE: usize = 4096;
const MAX_COUNT: usize = 16 * 1024;

/// Longest list of names that the kernel gives (limits.h, `XATTR_LIST_MAX`).
const MAX_LIST: usize = 64 * 1024;

/// The file whose attributes are meant.
#[derive(Debug, Clone, Copy)]
pub(super) enum AttributeTarget<'a> {
    /// By path, a link itself.
    Path(&'a [u8]),
    /// One that is open for reading or writing.
    File(BorrowedFd<'a>),
}

impl AttributeTarget<'_> {
    /// What the file is annotated with, as far as it can be read and is not more than could have been written here.
    pub(super) fn metadata(self) -> MetadataPairs {
        let mut metadata = MetadataPairs::new();
        let mut left = MAX_COUNT;
        for name in self.names().into_iter().take(MAX_METADATA) {
            let mut value = [0; MAX_VALUE];
            let Ok(length) = self.get(&name, &mut value) else {
                continue;
            };
            let name = &name[PREFIX.len()..];
            let Some(rest) = left.checked_sub(name.len() + length) else {
                break;
            };
            left = rest;
            metadata.push((name.to_vec(), value[..length].to_vec()));
        }
        metadata
    }

    /// The whole names of our attributes.
    fn names(self) -> Vec<Vec<u8>> {
        let mut few = [0; 512];
        let mut many = Vec::new();
        let list = match self.list(&mut few) {
            Ok(length) => &few[..length],
            Err(Errno::RANGE) => {
                many.resize(MAX_LIST, 0);
                let length = self.list(&mut many).unwrap_or(0);
                &many[..length]
            }
            // Many a file system has none.
            Err(_) => return Vec::new(),
        };
        let names = list.split(|byte| *byte == 0);
        names
            .filter(|name| name.len() > PREFIX.len() && name.starts_with(PREFIX))
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn list(self, into: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AttributeTarget::Path(path) => rustix::fs::llistxattr(path, into),
            AttributeTarget::File(file) => rustix::fs::flistxattr(file, into),
        }
    }

    fn get(self, name: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
        match self {
            AttributeTarget::Path(path) => rustix::fs::lgetxattr(path, name, into),
            AttributeTarget::File(file) => rustix::fs::fgetxattr(file, name, into),
        }
    }
}

/// Whether all of it can be an annotation.
pub(super) fn check(metadata: &MetadataPairs) -> Result<(), FileFailure> {
    let fits = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let longest = MAX_NAME - PREFIX.len();
        (1..=longest).contains(&name.len()) && !name.contains(&0) && value.len() <= MAX_VALUE
    };
    if !metadata.iter().all(fits) {
        return Err(failed("setxattr")(Errno::INVAL));
    }
    let size: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    match size <= MAX_COUNT {
        true => Ok(()),
        false => Err(failed("setxattr")(Errno::TOOBIG)),
    }
}

/// Makes `metadata` all that the file is annotated with.
pub(super) fn replace(file: BorrowedFd<'_>, metadata: &MetadataPairs) -> Result<(), FileFailure> {
    for name in AttributeTarget::File(file).names() {
        if !metadata.iter().any(|(kept, _)| name[PREFIX.len()..] == kept[..]) {
            rustix::fs::fremovexattr(file, &name[..]).map_err(failed("removexattr"))?;
        }
    }
    set(file, metadata)
}

/// Annotates a file that has no annotation of these names.
pub(super) fn set(file: BorrowedFd<'_>, metadata: &MetadataPairs) -> Result<(), FileFailure> {
    for (name, value) in metadata {
        let name = [PREFIX, name].concat();
        rustix::fs::fsetxattr(file, &name[..], value, XattrFlags::empty()).map_err(failed("setxattr"))?;
    }
    Ok(())
}
