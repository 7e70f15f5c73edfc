//! Scratch state directories, workspaces and what a sandbox would leave in a layer.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{FileType, Mode, XattrFlags};

use crate::{
    ApplyReport, ApplyRequest, ChangeSelection, HostIdentity, LayerChange, LiveRun, NewRun, StateDirectory, StoredRun,
};

/// A state directory and a workspace; gone when dropped.
pub(crate) struct TestScratch {
    _directory: tempfile::TempDir,
    pub(crate) base: PathBuf,
    pub(crate) workspace: PathBuf,
    pub(crate) state: StateDirectory,
}

impl Drop for TestScratch {
    /// Also what forbids its owner to look.
    fn drop(&mut self) {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        if let Ok(parent) = rustix::fs::open(self.base.parent().unwrap(), flags, Mode::empty()) {
            let _ = crate::removal::remove_tree(&parent, self.base.file_name().unwrap());
        }
    }
}

impl TestScratch {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let workspace = base.join("workspace");
        fs::create_dir(&workspace).unwrap();
        let state = StateDirectory::open(Some(&base.join("state")), &HostIdentity::of_this_process()).unwrap();
        Self {
            _directory: directory,
            base,
            workspace,
            state,
        }
    }

    pub(crate) fn start(&self) -> LiveRun {
        self.start_with(&[&self.workspace], &[])
    }

    pub(crate) fn start_with(&self, layers: &[&Path], protect: &[&str]) -> LiveRun {
        let new = NewRun {
            id: fresh_id(),
            command: vec![Text::from("true")],
            purpose: None,
            layers: layers.iter().map(|path| path.to_path_buf()).collect(),
            protect: protect.iter().map(|pattern| Text::from(*pattern)).collect(),
            home: None,
            host_paths: Vec::new(),
        };
        LiveRun::create(&self.state, new).unwrap()
    }

    /// A run that is over and did `edit` to its workspace layer.
    pub(crate) fn ran(&self, edit: impl FnOnce(&Path)) -> StoredRun {
        let live = self.start();
        edit(&upper(&live));
        live.finish().unwrap().run.unwrap()
    }

    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.workspace.join(path)
    }
}

pub(crate) fn fresh_id() -> RunId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    RunId::from_parts(1_700_000_000_000 + NEXT.fetch_add(1, Ordering::Relaxed), 0)
}

pub(crate) fn upper(live: &LiveRun) -> PathBuf {
    live.layer_directory(0).join("upper")
}

pub(crate) fn all() -> ApplyRequest {
    ApplyRequest {
        selection: ChangeSelection::All,
        named: Vec::new(),
    }
}

pub(crate) fn paths(paths: &[&str]) -> ApplyRequest {
    ApplyRequest {
        selection: ChangeSelection::Paths(paths.iter().map(PathBuf::from).collect()),
        named: Vec::new(),
    }
}

pub(crate) fn named(paths: &[&str]) -> ApplyRequest {
    ApplyRequest {
        selection: ChangeSelection::All,
        named: paths.iter().map(PathBuf::from).collect(),
    }
}

pub(crate) fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

pub(crate) fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A whiteout as overlayfs makes it for root, and in the form of attributes where devices cannot be made.
pub(crate) fn whiteout(path: impl AsRef<Path>) {
    if is_root() {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path.as_ref(),
            FileType::CharacterDevice,
            Mode::empty(),
            0,
        )
        .unwrap();
    } else {
        whiteout_attribute(path);
    }
}

pub(crate) fn whiteout_attribute(path: impl AsRef<Path>) {
    fs::write(&path, b"").unwrap();
    set_attribute(path, "user.overlay.whiteout", b"y");
}

pub(crate) fn opaque(path: impl AsRef<Path>) {
    set_attribute(path, "user.overlay.opaque", b"y");
}

pub(crate) fn set_attribute(path: impl AsRef<Path>, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path.as_ref(), name, value, XattrFlags::empty()).unwrap();
}

/// Lets the coarse clock of file systems tick, so that what follows is later than what was.
pub(crate) fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(12));
}

/// Everything in a tree, directories marked with `/`: mode, contents or target, and time of modification of files.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>, i64)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let contents = if metadata.is_dir() {
                waiting.push(path.clone());
                b"/".to_vec()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else if metadata.is_file() {
                fs::read(&path).unwrap_or_else(|_| b"unreadable".to_vec())
            } else {
                b"special".to_vec()
            };
            let time = if metadata.is_file() { metadata.mtime_nsec() } else { 0 };
            found.insert(
                path.strip_prefix(root).unwrap().to_owned(),
                (metadata.mode(), contents, time),
            );
        }
    }
    found
}

/// `kind path` for each change, as one would list them.
pub(crate) fn shown(changes: &[LayerChange]) -> Vec<String> {
    changes
        .iter()
        .map(|change| format!("{:?} {}", change.kind, Text::from(&change.path)))
        .collect()
}

pub(crate) fn applied(report: &ApplyReport) -> Vec<String> {
    shown(&report.applied)
}

pub(crate) fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
