//! The mount interface of Linux 5.2 and later: trees are made detached, given their attributes, then attached.
//!
//! Everything is addressed by descriptor, so that no path is walked twice. Deliberately not here: what a sandbox's
//! tree looks like (`isolation::process::tree`).

use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

/// What a mount forbids, whatever the files on it say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountRestrictions {
    /// Writing.
    pub read_only: bool,
    /// Gaining privileges by setuid files and file capabilities.
    pub no_suid: bool,
    /// Opening device nodes.
    pub no_dev: bool,
    /// Executing.
    pub no_exec: bool,
}

impl MountRestrictions {
    fn flags(self) -> MountAttrFlags {
        let mut flags = MountAttrFlags::empty();
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.read_only);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, self.no_suid);
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.no_dev);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, self.no_exec);
        flags
    }
}

/// A new file system of kind `name` with `options`, detached.
///
/// # Errors
/// What the kernel answered: `EPERM` where user namespaces may not mount it, `EINVAL` for an option.
pub fn new_filesystem(name: &CStr, options: &[(&CStr, &[u8])], attributes: MountRestrictions) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            rustix::mount::fsconfig_set_string(&context, *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes.flags(),
    )?)
}

/// A detached copy of the mounts at and below `path`.
///
/// # Errors
/// `ENOENT`, `EACCES` as for opening; `EPERM` without `CAP_SYS_ADMIN` over this mount namespace.
pub fn clone_tree(directory: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(directory, path, flags)?)
}

/// A detached copy of the mounts at and below `path`, which holds no symbolic link in any component.
///
/// For paths that were resolved before: whoever may rename something on the way cannot lead elsewhere since.
///
/// # Errors
/// `ELOOP` if a component has become a symbolic link; else as [`clone_tree`].
pub fn clone_resolved(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    clone_tree(place.as_fd(), Path::new(""))
}

/// Sets attributes on a mount and on all mounts below it. Attributes that are not named stay as they are.
///
/// `mount_setattr` since Linux 5.12 (mount_setattr(2)).
///
/// # Errors
/// `EPERM` if an attribute that the host locked would have to change.
pub fn restrict_tree(tree: BorrowedFd<'_>, attributes: MountRestrictions) -> io::Result<()> {
    set_attributes(
        tree,
        true,
        MountAttributes {
            set: u64::from(attributes.flags().bits()),
            ..MountAttributes::default()
        },
    )
}

/// Sets attributes on one mount, not on those below it.
///
/// # Errors
/// As [`restrict_tree`].
pub fn restrict_mount(mount: BorrowedFd<'_>, attributes: MountRestrictions) -> io::Result<()> {
    set_attributes(
        mount,
        false,
        MountAttributes {
            set: u64::from(attributes.flags().bits()),
            ..MountAttributes::default()
        },
    )
}

/// Cuts a tree off from mount events of the host: nothing mounted there later appears here.
///
/// # Errors
/// What the kernel answered.
pub fn make_private(tree: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(
        tree,
        true,
        MountAttributes {
            propagation: libc::MS_PRIVATE,
            ..MountAttributes::default()
        },
    )
}

/// Maps the owners of files on a detached tree through `user_namespace` (mount_setattr(2), `MOUNT_ATTR_IDMAP`).
///
/// # Errors
/// `EINVAL` where the file system cannot be id-mapped, `EPERM` without privilege over it.
pub fn map_ids(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttributes {
        set: u64::from(MountAttrFlags::MOUNT_ATTR_IDMAP.bits()),
        user_namespace: u64::from(user_namespace.as_raw_fd().cast_unsigned()),
        ..MountAttributes::default()
    };
    set_attributes(tree, true, attributes)
}

/// `struct mount_attr` (linux/mount.h).
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_attributes(tree: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `tree` is open for the whole call, the path is an empty C string, and `attributes` is a complete
    // `struct mount_attr` of the size given, which the kernel only reads (mount_setattr(2), Linux 5.12).
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Attaches a detached tree at the file or directory that `target` is.
///
/// # Errors
/// `ENOTDIR` when one is a directory and the other is not.
pub fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, c"", target, c"", flags)?)
}

/// Attaches a detached tree at `path` below `directory`.
///
/// For paths that nobody else can change: symbolic links before the last component are followed.
///
/// # Errors
/// As [`attach`]; a symbolic link as the last component is refused with `ENOTDIR` or mounted upon, never followed.
pub fn attach_at(tree: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(
        tree,
        c"",
        directory,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Mounts on `target` what is mounted on `source`, with the same attributes; both from the current directory.
///
/// One call where [`clone_tree`], [`attach_at`] and closing are three, for paths that nobody else can change: symbolic
/// links are followed.
///
/// # Errors
/// `ENOENT` if one of them does not exist, `ENOTDIR` when one is a directory and the other is not.
pub fn repeat(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Mounts a new file system of kind `name` with `options` on `target`, from the current directory.
///
/// One call where [`new_filesystem`] and [`attach_at`] are six and more, for paths that nobody else can change: symbolic
/// links are followed. Of `attributes`, reading only is the file system's and not the mount's alone.
///
/// # Errors
/// As [`new_filesystem`].
pub fn mount_new(
    name: &CStr,
    options: &[(&CStr, &[u8])],
    attributes: MountRestrictions,
    target: &Path,
) -> io::Result<()> {
    let mut data = Vec::new();
    for (key, value) in options {
        if !data.is_empty() {
            data.push(b',');
        }
        data.extend_from_slice(key.to_bytes());
        data.push(b'=');
        data.extend_from_slice(value);
    }
    let data = CString::new(data)?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, attributes.read_only);
    flags.set(MountFlags::NOSUID, attributes.no_suid);
    flags.set(MountFlags::NODEV, attributes.no_dev);
    flags.set(MountFlags::NOEXEC, attributes.no_exec);
    Ok(rustix::mount::mount(c"none", target, name, flags, data.as_c_str())?)
}

/// Opens `path` below `root` as a place to mount on; no symbolic link is followed anywhere.
///
/// # Errors
/// `ELOOP` if a component is a symbolic link, `ENOENT` if it does not exist (openat2(2), Linux 5.6).
pub fn open_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        resolve,
    )?)
}

/// Unmounts what is mounted at `path`, now or as soon as it is not in use.
///
/// # Errors
/// `EINVAL` if nothing is mounted there.
pub fn detach(path: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(
        path,
        UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
    )?)
}

/// Makes the mount `new_root` the root of this mount namespace and of this process, and drops the old one.
///
/// # Errors
/// `EINVAL` where the present root cannot be replaced, as in an initramfs (pivot_root(2)).
pub fn enter_root(new_root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(new_root)?;
    // The old root ends up on top of the new one, at the same place, from where it is detached: no directory for it
    // is needed (pivot_root(2), `pivot_root(".", ".")`).
    rustix::process::pivot_root(c".", c".")?;
    detach(Path::new("."))?;
    rustix::process::chdir(c"/")?;
    Ok(())
}

/// Opens a host path as a place, without reading it.
///
/// # Errors
/// As for open(2).
pub fn open_place(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The descriptor of the current directory, for calls that take one.
pub fn current_directory() -> BorrowedFd<'static> {
    CWD.as_fd()
}
