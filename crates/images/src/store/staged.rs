//! Files that come before it is known which blobs they are.
//!
//! Where the file system can, they have no name until they are kept, so that nothing stays of who is killed.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::{ImageStore, PARTIAL, blobs::is_at, lock, sync_directory_of};
use crate::digest::ImageDigest;
use crate::error::ImageError;

/// What the name of one begins with that needs one.
const STAGED: &str = "staged-";

/// A new file, which is gone unless it is kept.
#[derive(Debug)]
pub(crate) struct StagedBlob {
    pub(crate) file: File,
    /// Its name, where the file system has no files without.
    path: Option<PathBuf>,
    directory: PathBuf,
}

impl Drop for StagedBlob {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A blob has another name by now; what stays is removed when others are.
            let _removed = fs::remove_file(path);
        }
    }
}

impl StagedBlob {
    /// Where it is, for messages.
    pub(crate) fn place(&self) -> &Path {
        self.path.as_deref().unwrap_or(&self.directory)
    }

    fn link(&self, place: &Path) -> io::Result<()> {
        match &self.path {
            Some(path) => fs::hard_link(path, place),
            // It takes no privilege by this way (open(2), "O_TMPFILE").
            None => {
                let opened = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                Ok(rustix::fs::linkat(CWD, opened, CWD, place, AtFlags::SYMLINK_FOLLOW)?)
            }
        }
    }
}

impl ImageStore {
    /// A new file.
    pub(crate) fn stage(&self) -> Result<StagedBlob, ImageError> {
        let directory = self.path.join(PARTIAL);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(&directory, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(StagedBlob {
                file: file.into(),
                path: None,
                directory,
            }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => self.stage_named(directory),
            Err(error) => Err(ImageError::file("making a file in", &directory)(error)),
        }
    }

    /// One with a name, which is locked as long as somebody writes to it.
    fn stage_named(&self, directory: PathBuf) -> Result<StagedBlob, ImageError> {
        self.sweep_staged(&directory)?;
        loop {
            let mut bytes = [0; 8];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
                .map_err(ImageError::file("drawing a name in", &directory))?;
            let path = directory.join(format!("{STAGED}{:016x}", u64::from_le_bytes(bytes)));
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(ImageError::file("making", &path))?;
            let is_ours = lock::try_lock(&file).map_err(ImageError::file("locking", &path))?;
            // Who sweeps may have come between the two.
            if is_ours && is_at(&file, &path).map_err(ImageError::file("examining", &path))? {
                return Ok(StagedBlob {
                    file,
                    path: Some(path),
                    directory,
                });
            }
        }
    }

    /// Removes files of who was killed.
    fn sweep_staged(&self, directory: &Path) -> Result<(), ImageError> {
        let found = fs::read_dir(directory).map_err(ImageError::file("listing", directory))?;
        for path in found.flatten().map(|entry| entry.path()) {
            let is_staged = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(STAGED.as_bytes()));
            if is_staged && lock::is_free(&path)? {
                // Somebody else may have done so.
                let _removed = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    /// Makes a staged file a blob, under as many digests as one likes.
    pub(crate) fn keep_staged(&self, staged: &StagedBlob, digest: &ImageDigest) -> Result<(), ImageError> {
        if self.has_blob(digest) {
            return Ok(());
        }
        let place = self.blob_path(digest);
        let kept = staged.file.sync_all().and_then(|()| match staged.link(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        kept.and_then(|()| sync_directory_of(&place))
            .map_err(ImageError::file("keeping", &place))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(store: &ImageStore) -> usize {
        fs::read_dir(store.path.join(PARTIAL)).unwrap().count()
    }

    #[test]
    fn a_staged_file_is_kept_or_gone_with_and_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        let without = |store: &ImageStore| store.stage().unwrap();
        let named = |store: &ImageStore| store.stage_named(store.path.join(PARTIAL)).unwrap();
        let ways: [&dyn Fn(&ImageStore) -> StagedBlob; 2] = [&without, &named];
        for (number, way) in ways.into_iter().enumerate() {
            drop(way(&store));
            let text = format!("text {number}");
            let mut staged = way(&store);
            staged.file.write_all(text.as_bytes()).unwrap();
            let digest = ImageDigest::of(text.as_bytes());
            store.keep_staged(&staged, &digest).unwrap();
            store.keep_staged(&staged, &digest).unwrap();
            drop(staged);
            assert_eq!(fs::read_to_string(store.blob_path(&digest)).unwrap(), text);
            assert_eq!(names(&store), 0);
        }
    }

    #[test]
    fn what_somebody_left_who_was_killed_goes_and_what_somebody_writes_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        fs::write(store.path.join(PARTIAL).join("staged-left"), "half").unwrap();
        let one = store.stage_named(store.path.join(PARTIAL)).unwrap();
        let other = store.stage_named(store.path.join(PARTIAL)).unwrap();
        assert_eq!(names(&store), 2);
        drop((one, other));
        assert_eq!(names(&store), 0);
    }
}
