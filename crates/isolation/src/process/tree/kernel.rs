//! What every root has of the kernel: `/proc` without what it tells of the machine, and a `/dev` of a few nodes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_sys::mount::{self, MountRestrictions};
use rustix::fs::Mode;

use super::root::{RootBuilder, TargetKind};
use super::{DATA, SEALED, step};
use crate::process::handshake::StepFailure;
use crate::process::masks;

/// Where they are; nowhere else.
pub(super) const PROC: &str = "proc";
pub(super) const DEV: &str = "dev";

/// For mounts that allow nothing.
pub(super) const NOTHING: MountRestrictions = MountRestrictions {
    no_exec: true,
    ..SEALED
};
/// For devices: the one place where they may be opened.
const DEVICES: MountRestrictions = MountRestrictions {
    read_only: false,
    no_suid: true,
    no_dev: false,
    no_exec: true,
};

const EMPTY_FILE: &str = ".empty-file";
const EMPTY_DIRECTORY: &str = ".empty-directory";
const BOOT_ID: &str = ".boot-id";

/// What things are hidden by: an empty file and an empty directory, each a mount that allows nothing.
#[derive(Debug)]
pub(super) struct EmptyCovers {
    file: EmptyCover,
    directory: EmptyCover,
}

#[derive(Debug)]
struct EmptyCover {
    /// One that is not in use yet.
    spare: Option<OwnedFd>,
    /// Where one is in use. The others are copies of that one: older kernels copy attached mounts only.
    used: PathBuf,
}

impl EmptyCovers {
    pub(super) fn make(root: &mut RootBuilder) -> io::Result<Self> {
        root.file(&[], Mode::empty(), Path::new(EMPTY_FILE))?;
        rustix::fs::mkdirat(root.mount(), EMPTY_DIRECTORY, Mode::empty())?;
        let cover = |name: &str| {
            let tree = mount::clone_tree(root.mount(), Path::new(name))?;
            mount::restrict_tree(tree.as_fd(), NOTHING)?;
            Ok::<_, io::Error>(EmptyCover {
                spare: Some(tree),
                used: PathBuf::new(),
            })
        };
        Ok(Self {
            file: cover(EMPTY_FILE)?,
            directory: cover(EMPTY_DIRECTORY)?,
        })
    }

    /// Some of what is hidden exists everywhere; should nothing have been covered, covering does not work.
    fn work(&self) -> io::Result<()> {
        if self.file.is_used() && self.directory.is_used() {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Removes the names of the covers, after which nothing more can be covered.
    pub(super) fn finish(self, root: &mut RootBuilder) -> io::Result<()> {
        root.remove(Path::new(EMPTY_FILE), TargetKind::File)?;
        root.remove(Path::new(EMPTY_DIRECTORY), TargetKind::Directory)
    }

    /// Covers `target`, if it exists, by something empty that can be neither opened nor replaced.
    pub(super) fn hide(&mut self, root: &RootBuilder, target: &Path, kind: TargetKind) -> io::Result<()> {
        self.cover(kind).put(root, target, |tree| {
            mount::attach(tree.as_fd(), mount::open_below(root.mount(), target)?.as_fd())
        })
    }

    /// As [`Self::hide`], for what lies in `/proc`, where no symbolic link leads astray, and with the root as the current
    /// directory.
    fn hide_in_proc(&mut self, root: &RootBuilder, target: &Path, kind: TargetKind) -> io::Result<()> {
        let cover = self.cover(kind);
        if cover.spare.is_none() && mount::repeat(&cover.used, target).is_ok() {
            return Ok(());
        }
        // The first one, or the target is not there, or why it cannot be covered is to be known.
        cover.put(root, target, |tree| {
            mount::attach_at(tree.as_fd(), root.mount(), target)
        })
    }

    fn cover(&mut self, kind: TargetKind) -> &mut EmptyCover {
        match kind {
            TargetKind::File => &mut self.file,
            TargetKind::Directory => &mut self.directory,
        }
    }
}

impl EmptyCover {
    fn is_used(&self) -> bool {
        !self.used.as_os_str().is_empty()
    }

    /// Covers `target` by `attach`, if it exists.
    fn put(
        &mut self,
        root: &RootBuilder,
        target: &Path,
        attach: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        let tree = match self.spare.take() {
            Some(spare) => spare,
            // A copy of a mount has its attributes.
            None => mount::clone_tree(root.mount(), &self.used)?,
        };
        match attach(&tree) {
            Ok(()) => {
                if !self.is_used() {
                    self.used = target.to_owned();
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.spare = Some(tree);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Mounts a procfs and covers what of it is not the sandbox's business.
pub(super) fn mount_proc(root: &mut RootBuilder, covers: &mut EmptyCovers) -> Result<(), StepFailure> {
    let mounted = root.mount_new(c"proc", &[], DATA, Path::new(PROC));
    mounted.map_err(step("mounting procfs at", "/proc"))?;
    let hide = |(files, kind): (&[&str], TargetKind)| {
        let mut paths = files.iter().map(Path::new);
        paths.try_for_each(|path| covers.hide_in_proc(root, path, kind))
    };
    [
        (masks::FILES.as_slice(), TargetKind::File),
        (masks::DIRECTORIES.as_slice(), TargetKind::Directory),
    ]
    .into_iter()
    .try_for_each(hide)
    .and_then(|()| covers.work())
    .and_then(|()| make_read_only(root, Path::new(masks::READ_ONLY)))
    .and_then(|()| replace_boot_id(root))
    .map_err(step("covering files in", "/proc"))
}

fn make_read_only(root: &RootBuilder, target: &Path) -> io::Result<()> {
    let tree = mount::clone_tree(root.mount(), target)?;
    let attributes = MountRestrictions {
        read_only: true,
        ..DATA
    };
    mount::restrict_tree(tree.as_fd(), attributes)?;
    mount::attach_at(tree.as_fd(), root.mount(), target)
}

fn replace_boot_id(root: &mut RootBuilder) -> io::Result<()> {
    let name = Path::new(BOOT_ID);
    root.file(random_uuid()?.as_bytes(), Mode::from(0o644), name)?;
    let own = mount::clone_tree(root.mount(), name)?;
    mount::restrict_tree(own.as_fd(), NOTHING)?;
    match mount::attach_at(own.as_fd(), root.mount(), Path::new(masks::BOOT_ID)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        attached => attached?,
    }
    // What is mounted keeps its file.
    root.remove(name, TargetKind::File)
}

/// A random UUID (version 4) and a newline, as in `/proc/sys/kernel/random/boot_id`.
pub(crate) fn random_uuid() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(37);
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text.push('\n');
    Ok(text)
}

/// Makes a `/dev` of the nodes that everything needs, and its own pseudo terminals.
pub(super) fn make_dev(root: &mut RootBuilder) -> Result<(), StepFailure> {
    let directory = Path::new(DEV);
    for name in masks::DEVICES {
        let host = Path::new("/dev").join(name);
        add_device(root, &host, &directory.join(name))?;
    }
    for (name, to) in masks::DEVICE_LINKS {
        root.symlink(Path::new(to), &directory.join(name))
            .map_err(step("linking", name))?;
    }
    let options: [(&CStr, &[u8]); 3] = [(c"ptmxmode", b"0666"), (c"mode", b"0620"), (c"max", b"128")];
    let mounted = root.mount_new(c"devpts", &options, DEVICES, &directory.join("pts"));
    mounted.map_err(step("mounting devpts at", "/dev/pts"))
}

/// Puts a device of the host at `target`.
pub(super) fn add_device(root: &mut RootBuilder, host: &Path, target: &Path) -> Result<(), StepFailure> {
    let node = mount::clone_tree(mount::current_directory(), host).map_err(step("opening", host))?;
    let attached =
        mount::restrict_tree(node.as_fd(), DEVICES).and_then(|()| root.attach(node.as_fd(), TargetKind::File, target));
    attached.map_err(step("mounting the device", host))
}
