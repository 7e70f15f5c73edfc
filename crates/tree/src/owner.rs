//! As whom a thread makes files.

use offleash_sys::ownership;
use rustix::io::Errno;

use crate::error::{TreeError, setup};
use crate::options::FileOwners;

/// Makes the calling thread one that makes files for whoever asks.
#[derive(Debug)]
pub(crate) struct FileMaker {
    owners: FileOwners,
    /// User and group that files are made for now, if that was ever set.
    current: Option<(u32, u32)>,
}

impl FileMaker {
    /// For the calling thread, whose files have the modes that are asked for from here on.
    pub(crate) fn new(owners: FileOwners) -> Result<Self, TreeError> {
        ownership::own_file_mask().map_err(setup("giving a thread a mask for modes of its own"))?;
        if owners == FileOwners::Requester {
            ownership::keep_capabilities_for_other_owners()
                .map_err(setup("keeping capabilities while files are made for others"))?;
        }
        Ok(Self { owners, current: None })
    }

    /// What is made from here on is made for `uid` and `gid`.
    ///
    /// # Errors
    /// `EINVAL` for ids that are not mapped here.
    pub(crate) fn make_for(&mut self, uid: u32, gid: u32) -> Result<(), Errno> {
        if self.owners == FileOwners::Server || self.current == Some((uid, gid)) {
            return Ok(());
        }
        self.current = None;
        ownership::make_files_for(uid, gid).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        self.current = Some((uid, gid));
        Ok(())
    }
}
