//! Overlays: the writable view of a directory, and the read-only one.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use offleash_sys::mount::{self, Attributes};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::root::{Kind, Root};
use super::{SEALED, WRITABLE, new_tmpfs};

/// Where parts are kept for kernels that take no detached ones; gone before anything runs.
const STAGING: &str = ".staging";

/// A detached tree that an overlay is made of.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) tree: OwnedFd,
    /// Whether it was made in this namespace. What the parent sends belongs to one over which we have no privilege.
    is_ours: bool,
    /// The directory in it that is meant; the whole tree if empty.
    below: &'static str,
}

/// The directory of a layer that holds what was written.
pub(super) const UPPER: &str = "upper";

impl Part {
    /// One that was made in this namespace.
    pub(super) fn ours(tree: OwnedFd) -> Self {
        Self {
            tree,
            is_ours: true,
            below: "",
        }
    }

    /// One that the parent sent.
    pub(super) fn given(tree: OwnedFd) -> Self {
        Self {
            tree,
            is_ours: false,
            below: "",
        }
    }

    /// A directory in it, and nothing else.
    pub(super) fn below(self, below: &'static str) -> Self {
        Self { below, ..self }
    }

    /// What is meant of it, as a descriptor.
    fn open(&self) -> io::Result<OwnedFd> {
        if self.below.is_empty() {
            return self.tree.try_clone();
        }
        open_part(self.tree.as_fd(), self.below)
    }
}

fn open_part(tree: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(tree, name, flags, Mode::empty())?)
}

/// An overlay of `lowers`, the topmost first, whose changes go to `layer`, which holds `upper` and `work`.
pub(super) fn writable(root: &mut Root, lowers: &[Part], layer: &Part) -> io::Result<OwnedFd> {
    let is_ours = lowers.iter().chain([layer]).all(|part| part.is_ours);
    let layer = layer.tree.as_fd();
    // `volatile`: nothing in a sandbox needs to survive a power failure, and without it unmounting would write back
    // the host's whole file system. `userxattr`: the form that needs no privilege.
    const OPTIONS: &[(&CStr, &[u8])] = &[(c"userxattr", b""), (c"volatile", b""), (c"index", b"off")];
    let (upper, work) = (open_part(layer, UPPER)?, open_part(layer, "work")?);
    let opened = lowers.iter().map(Part::open).collect::<io::Result<Vec<_>>>()?;
    let mut parts: Vec<_> = opened.iter().map(|lower| (c"lowerdir+", lower.as_fd())).collect();
    parts.extend([(c"upperdir", upper.as_fd()), (c"workdir", work.as_fd())]);
    if is_ours && let Some(overlay) = of_detached(&parts, OPTIONS, WRITABLE)? {
        return Ok(overlay);
    }
    let names = (0..lowers.len())
        .map(|index| format!("lower{index}"))
        .collect::<Vec<_>>();
    let named = names.iter().zip(lowers).map(|(name, lower)| match lower.below {
        "" => name.clone(),
        below => format!("{name}/{below}"),
    });
    let lowerdir = named.collect::<Vec<_>>().join(":");
    let named: [(&CStr, &[u8]); 3] = [
        (c"lowerdir", lowerdir.as_bytes()),
        (c"upperdir", b"layer/upper"),
        (c"workdir", b"layer/work"),
    ];
    let mut staged: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(lowers.iter().map(|lower| lower.tree.as_fd()))
        .collect();
    staged.push(("layer", layer));
    of_staged(root, &staged, &[&named, OPTIONS].concat(), WRITABLE)
}

/// An overlay without a writable layer over `lower`.
///
/// A mount that is read-only still lets a program connect to a unix socket that lies in it, such as that of a
/// container engine. A socket of an overlay is another one, to which nobody listens.
pub(super) fn read_only(root: &mut Root, lower: &Part) -> io::Result<OwnedFd> {
    let (is_ours, lower) = (lower.is_ours, lower.tree.as_fd());
    const OPTIONS: &[(&CStr, &[u8])] = &[(c"userxattr", b"")];
    // An overlay without a writable layer needs two to read from; the second is empty.
    let empty = new_tmpfs(Some(4096), Some(1), 0o555, SEALED)?;
    let parts = [(c"lowerdir+", lower), (c"lowerdir+", empty.as_fd())];
    if is_ours && let Some(overlay) = of_detached(&parts, OPTIONS, SEALED)? {
        return Ok(overlay);
    }
    let named: [(&CStr, &[u8]); 1] = [(c"lowerdir", b"lower:layer")];
    let staged = [("lower", lower), ("layer", empty.as_fd())];
    of_staged(root, &staged, &[&named, OPTIONS].concat(), SEALED)
}

/// Made of parts that are attached nowhere, if the kernel takes such: from Linux 6.15 on. Others are not asked, because
/// they write what they refuse into the kernel's log.
fn of_detached(
    parts: &[(&CStr, BorrowedFd<'_>)],
    options: &[(&CStr, &[u8])],
    attributes: Attributes,
) -> io::Result<Option<OwnedFd>> {
    if !mount::takes_detached_layers() {
        return Ok(None);
    }
    match mount::new_filesystem_of(c"overlay", parts, options, attributes) {
        Ok(overlay) => Ok(Some(overlay)),
        Err(error) if needs_staging(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the kernel may take the same parts once they are attached: it refuses detached ones (before Linux 6.15), or
/// descriptors of parts (before 6.13), or, with the file systems' former interface, descriptors of anything (before
/// 6.5, `EOPNOTSUPP`).
fn needs_staging(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::ACCESS, Errno::PERM, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
}

/// Made of parts that are attached for the time being. They are named relative to where that is, so that the mount
/// table inside says `lower` and not where they are on the host.
fn of_staged(
    root: &mut Root,
    parts: &[(&str, BorrowedFd<'_>)],
    options: &[(&CStr, &[u8])],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    let staging = Path::new(STAGING);
    for (name, _) in parts {
        root.directory(&staging.join(name))?;
    }
    // A mount of its own, with which the parts go: each time that something is detached, the kernel waits for all
    // processors.
    mount::repeat(staging, staging)?;
    let opened = rustix::fs::openat(
        root.mount(),
        staging,
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for (name, part) in parts {
        mount::attach_at(*part, opened.as_fd(), Path::new(name))?;
    }
    rustix::process::fchdir(&opened)?;
    let overlay = mount::new_filesystem(c"overlay", options, attributes);
    rustix::process::fchdir(root.mount())?;
    mount::detach(staging)?;
    for (name, _) in parts {
        root.remove(&staging.join(name), Kind::Directory)?;
    }
    root.remove(staging, Kind::Directory)?;
    overlay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_older_kernel_answers_leads_to_attached_parts_and_other_failures_do_not() {
        let answers = [
            (Errno::OPNOTSUPP, true),
            (Errno::INVAL, true),
            (Errno::PERM, true),
            (Errno::ACCESS, true),
            (Errno::NOMEM, false),
            (Errno::NODEV, false),
        ];
        for (errno, expected) in answers {
            assert_eq!(needs_staging(&errno.into()), expected, "{errno}");
        }
    }
}
