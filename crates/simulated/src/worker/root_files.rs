//! The root directory of a sandbox with a root of its own: a served tree, and devices in the worker's memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use offleash_bashkit::{DirEntry, FileSystem, FileSystemExt, FsLimits, InMemoryFs, Metadata, Result};

use super::remote_files::RemoteFiles;

/// What is in memory, whatever the tree has there.
pub(super) const IN_MEMORY: [&str; 2] = ["/dev", "/proc"];

/// The root directory.
pub(super) struct RootFiles {
    pub(super) served: RemoteFiles,
    pub(super) memory: Arc<InMemoryFs>,
}

impl RootFiles {
    /// Who has what is at `path`, which is absolute and clean.
    fn holder(&self, path: &Path) -> &dyn FileSystem {
        match IN_MEMORY.iter().any(|directory| path.starts_with(directory)) {
            true => &*self.memory,
            false => &self.served,
        }
    }

    fn is_one(&self, from: &Path, to: &Path) -> bool {
        std::ptr::addr_eq(self.holder(from), self.holder(to))
    }
}

impl FileSystemExt for RootFiles {
    fn backend_kind(&self) -> &'static str {
        self.served.backend_kind()
    }

    fn limits(&self) -> FsLimits {
        self.memory.limits()
    }
}

#[async_trait]
impl FileSystem for RootFiles {
    async fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        self.holder(path).read_file(path).await
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.holder(path).write_file(path, content).await
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.holder(path).append_file(path, content).await
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> Result<()> {
        self.holder(path).mkdir(path, recursive).await
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        self.holder(path).remove(path, recursive).await
    }

    async fn stat(&self, path: &Path) -> Result<Metadata> {
        self.holder(path).stat(path).await
    }

    async fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.holder(path).read_dir(path).await
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        self.holder(path).exists(path).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        if self.is_one(from, to) {
            return self.holder(from).rename(from, to).await;
        }
        self.copy(from, to).await?;
        self.holder(from).remove(from, false).await
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        if self.is_one(from, to) {
            return self.holder(from).copy(from, to).await;
        }
        let content = self.holder(from).read_file(from).await?;
        self.holder(to).write_file(to, &content).await
    }

    async fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        self.holder(link).symlink(target, link).await
    }

    async fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.holder(path).read_link(path).await
    }

    async fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        self.holder(path).chmod(path, mode).await
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> Result<()> {
        self.holder(path).set_modified_time(path, time).await
    }
}
