//! Assembles the file system of a sandbox, from inside its namespaces, and enters it.
//!
//! Every target is opened below our own root without following a symbolic link, and mounted upon by descriptor. The
//! plan's order is kept: a later entry covers an earlier one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use offleash_core::plan::{Entry, Node, Plan};
use offleash_core::spec::Access;
use offleash_core::units::Bytes;
use offleash_sys::mount::{self, Attributes};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::handshake::StepFailure;
use super::masks;

/// Gives the trees that only the parent could make.
pub(super) trait Given {
    /// The tree with this number, if it is one that the parent makes; waits for it.
    fn tree(&mut self, number: usize) -> Result<Option<OwnedFd>, StepFailure>;
}

/// The number of the tree that a bind, or the lower part of an overlay, at `entry` is made from.
pub(super) fn source_number(entry: usize) -> usize {
    entry * 2
}

/// The number of the tree that holds the writable layer of the overlay at `entry`.
pub(super) fn layer_number(entry: usize) -> usize {
    entry * 2 + 1
}

const SEALED: Attributes = Attributes {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: false,
};
const WRITABLE: Attributes = Attributes {
    read_only: false,
    ..SEALED
};
/// For mounts that hold nothing to be executed.
const DATA: Attributes = Attributes {
    no_exec: true,
    ..WRITABLE
};

/// A root under construction.
struct Assembly<'a> {
    root: OwnedFd,
    given: &'a mut dyn Given,
}

/// Assembles the plan's tree and makes it the root of this mount namespace.
pub(super) fn enter(plan: &Plan, given: &mut dyn Given) -> Result<(), StepFailure> {
    let root =
        new_tmpfs(Some(Bytes::mib(4)), Some(8192), 0o755, WRITABLE).map_err(step("mounting a root file system", ""))?;
    let place = mount::open_place(Path::new("/")).map_err(step("opening", "/"))?;
    mount::attach(root.as_fd(), place.as_fd()).map_err(step("attaching the new root", ""))?;
    let mut assembly = Assembly { root, given };
    assembly.make_staging().map_err(step("preparing the new root", ""))?;
    for (number, entry) in plan.entries.iter().enumerate() {
        assembly.add(number, entry)?;
    }
    assembly.remove_staging().map_err(step("finishing the new root", ""))?;
    let sealed =
        mount::make_private(assembly.root.as_fd()).and_then(|()| mount::restrict_mount(assembly.root.as_fd(), SEALED));
    sealed.map_err(step("sealing the new root", ""))?;
    mount::enter_root(assembly.root.as_fd()).map_err(step("entering the new root", ""))
}

fn step(what: &'static str, subject: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StepFailure {
    let subject = subject.into();
    move |source| StepFailure::new(what, subject.to_string_lossy(), source)
}

fn new_tmpfs(size: Option<Bytes>, inodes: Option<u64>, mode: u32, attributes: Attributes) -> io::Result<OwnedFd> {
    let size = size.map_or_else(|| "0".to_owned(), |size| size.0.to_string());
    let inodes = inodes.unwrap_or(0).to_string();
    let mode = format!("{mode:o}");
    let options = [
        (c"size", size.as_bytes()),
        (c"nr_inodes", inodes.as_bytes()),
        (c"mode", mode.as_bytes()),
    ];
    mount::new_filesystem(c"tmpfs", &options, attributes)
}

fn relative(target: &Path) -> &Path {
    target.strip_prefix("/").unwrap_or(target)
}

/// Whether a path belongs to the operating system, so that everybody may read what is meant to be read there.
pub(super) fn is_system(path: &Path) -> bool {
    const SYSTEM: [&str; 9] = [
        "/usr",
        "/etc",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/nix/store",
    ];
    SYSTEM.iter().any(|system| path.starts_with(system))
}

/// What kind of thing a target must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

impl Assembly<'_> {
    fn add(&mut self, number: usize, entry: &Entry) -> Result<(), StepFailure> {
        let target = relative(&entry.target);
        match &entry.node {
            Node::Bind { source, access } => self.bind(number, source, *access, target),
            Node::Overlay { lower, layer } => self.overlay(number, lower, layer, target),
            Node::Tmpfs { size, inodes, mode } => self
                .tmpfs(*size, *inodes, *mode, target)
                .map_err(step("mounting a tmpfs at", &entry.target)),
            Node::Proc => self.proc(target).map_err(step("mounting procfs at", &entry.target)),
            Node::Dev => self.dev(target),
            Node::Directory => self
                .place(target, Kind::Directory)
                .map(drop)
                .map_err(step("making the directory", &entry.target)),
            Node::Symlink { to } => self
                .symlink(to, target)
                .map_err(step("making the symbolic link", &entry.target)),
            Node::File { contents } => self.file(contents, target).map_err(step("writing", &entry.target)),
            Node::Hidden { directory } => self.hide(target, *directory).map_err(step("hiding", &entry.target)),
        }
    }

    /// Opens `target`, made as `kind` if it does not exist.
    fn place(&self, target: &Path, kind: Kind) -> io::Result<OwnedFd> {
        if target.as_os_str().is_empty() {
            return self.root.try_clone();
        }
        match mount::open_below(self.root.as_fd(), target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let parent = self.parent(target)?;
        let name = target.file_name().unwrap_or_default();
        match kind {
            Kind::Directory => rustix::fs::mkdirat(&parent, name, Mode::from(0o755))?,
            Kind::File => drop(self.create(parent.as_fd(), name)?),
        }
        mount::open_below(self.root.as_fd(), target)
    }

    fn parent(&self, target: &Path) -> io::Result<OwnedFd> {
        self.place(target.parent().unwrap_or(Path::new("")), Kind::Directory)
    }

    fn create(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(directory, name, flags, Mode::from(0o644))?)
    }

    fn bind(&mut self, number: usize, source: &Path, access: Access, target: &Path) -> Result<(), StepFailure> {
        let tree = match self.given.tree(source_number(number))? {
            Some(tree) => tree,
            None => mount::clone_resolved(source).map_err(step("opening", source))?,
        };
        let attributes = if access == Access::Rw { WRITABLE } else { SEALED };
        mount::restrict_tree(tree.as_fd(), attributes).map_err(step("restricting", source))?;
        let kind = kind_of(tree.as_fd()).map_err(step("examining", source))?;
        let tree = if access == Access::Ro && kind == Kind::Directory && !is_system(source) {
            self.read_only_view(tree.as_fd())
                .map_err(step("mounting a read-only view of", source))?
        } else {
            tree
        };
        let place = self
            .place(target, kind)
            .map_err(step("making the mount point", target))?;
        mount::attach(tree.as_fd(), place.as_fd()).map_err(step("mounting", source))
    }

    /// Mounts an overlay. Its parts are attached below a staging directory, because older kernels take no detached
    /// parts; named relative to it, so that the mount table inside says `lower` and not where they are on the host.
    fn overlay(&mut self, number: usize, lower: &Path, layer: &Path, target: &Path) -> Result<(), StepFailure> {
        for (tree, path, name) in [
            (source_number(number), lower, "lower"),
            (layer_number(number), layer, "layer"),
        ] {
            let tree = match self.given.tree(tree)? {
                Some(tree) => tree,
                None if name == "lower" => mount::clone_resolved(path).map_err(step("opening", path))?,
                None => mount::clone_tree(mount::current_directory(), path).map_err(step("opening", path))?,
            };
            let place = self.place(&Path::new(STAGING).join(name), Kind::Directory);
            let attached = place.and_then(|place| mount::attach(tree.as_fd(), place.as_fd()));
            attached.map_err(step("staging", path))?;
        }
        let overlay = self.in_staging(|| {
            // `volatile`: nothing in a sandbox needs to survive a power failure, and without it unmounting would
            // write back the host's whole file system. `userxattr`: the form that needs no privilege.
            let options: [(&std::ffi::CStr, &[u8]); 6] = [
                (c"lowerdir", b"lower"),
                (c"upperdir", b"layer/upper"),
                (c"workdir", b"layer/work"),
                (c"userxattr", b""),
                (c"volatile", b""),
                (c"index", b"off"),
            ];
            let overlay = mount::new_filesystem(c"overlay", &options, WRITABLE)?;
            mount::detach(Path::new("lower"))?;
            mount::detach(Path::new("layer"))?;
            Ok(overlay)
        });
        let overlay = overlay.map_err(step("mounting an overlay over", lower))?;
        let place = self
            .place(target, Kind::Directory)
            .map_err(step("making the mount point", target))?;
        mount::attach(overlay.as_fd(), place.as_fd()).map_err(step("mounting the overlay of", lower))
    }

    /// An overlay without a writable layer over `tree`.
    ///
    /// A mount that is read-only still lets a program connect to a unix socket that lies in it, such as that of a
    /// container engine. A socket of an overlay is another one, to which nobody listens.
    fn read_only_view(&self, tree: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // An overlay without a writable layer needs two to read from; the second is empty.
        let empty = new_tmpfs(Some(Bytes(4096)), Some(1), 0o555, SEALED)?;
        for (name, tree) in [("lower", tree), ("layer", empty.as_fd())] {
            let place = self.place(&Path::new(STAGING).join(name), Kind::Directory)?;
            mount::attach(tree, place.as_fd())?;
        }
        self.in_staging(|| {
            let options: [(&std::ffi::CStr, &[u8]); 2] = [(c"lowerdir", b"lower:layer"), (c"userxattr", b"")];
            let view = mount::new_filesystem(c"overlay", &options, SEALED)?;
            mount::detach(Path::new("lower"))?;
            mount::detach(Path::new("layer"))?;
            Ok(view)
        })
    }

    fn tmpfs(&self, size: Option<Bytes>, inodes: Option<u64>, mode: u32, target: &Path) -> io::Result<()> {
        let tmpfs = new_tmpfs(size, inodes, mode, WRITABLE)?;
        let place = self.place(target, Kind::Directory)?;
        mount::attach(tmpfs.as_fd(), place.as_fd())
    }

    fn proc(&self, target: &Path) -> io::Result<()> {
        let proc = mount::new_filesystem(c"proc", &[], DATA)?;
        let place = self.place(target, Kind::Directory)?;
        mount::attach(proc.as_fd(), place.as_fd())?;
        for file in masks::FILES {
            self.hide(Path::new(file), false)?;
        }
        for directory in masks::DIRECTORIES {
            self.hide(Path::new(directory), true)?;
        }
        self.bind_onto_itself(Path::new(masks::READ_ONLY))?;
        self.replace_boot_id()
    }

    fn bind_onto_itself(&self, target: &Path) -> io::Result<()> {
        let tree = mount::clone_tree(self.root.as_fd(), target)?;
        mount::restrict_tree(
            tree.as_fd(),
            Attributes {
                read_only: true,
                ..DATA
            },
        )?;
        let place = mount::open_below(self.root.as_fd(), target)?;
        mount::attach(tree.as_fd(), place.as_fd())
    }

    fn replace_boot_id(&self) -> io::Result<()> {
        let own = self.staged(OsStr::new("boot_id"), random_uuid()?.as_bytes())?;
        match mount::open_below(self.root.as_fd(), Path::new(masks::BOOT_ID)) {
            Ok(place) => mount::attach(own.as_fd(), place.as_fd()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn dev(&self, target: &Path) -> Result<(), StepFailure> {
        let directory = self.place(target, Kind::Directory).map_err(step("making", target))?;
        for name in masks::DEVICES {
            let host = Path::new("/dev").join(name);
            let node = mount::clone_tree(mount::current_directory(), &host).map_err(step("opening", &host))?;
            // No `no_dev` here: these six are the devices that a sandbox has.
            let attributes = Attributes {
                no_suid: true,
                no_exec: true,
                ..Attributes::default()
            };
            let attached = mount::restrict_tree(node.as_fd(), attributes)
                .and_then(|()| self.create(directory.as_fd(), OsStr::new(name)))
                .and_then(|_file| mount::attach_at(node.as_fd(), directory.as_fd(), Path::new(name)));
            attached.map_err(step("mounting the device", &host))?;
        }
        for (name, to) in masks::DEVICE_LINKS {
            rustix::fs::symlinkat(to, &directory, name).map_err(|error| step("linking", name)(error.into()))?;
        }
        self.pts(&target.join("pts"))
            .map_err(step("mounting devpts at", target))
    }

    fn pts(&self, target: &Path) -> io::Result<()> {
        let attributes = Attributes {
            no_suid: true,
            no_exec: true,
            ..Attributes::default()
        };
        let options: [(&std::ffi::CStr, &[u8]); 3] = [(c"ptmxmode", b"0666"), (c"mode", b"0620"), (c"max", b"128")];
        let pts = mount::new_filesystem(c"devpts", &options, attributes)?;
        let place = self.place(target, Kind::Directory)?;
        mount::attach(pts.as_fd(), place.as_fd())
    }

    fn symlink(&self, to: &Path, target: &Path) -> io::Result<()> {
        let parent = self.parent(target)?;
        Ok(rustix::fs::symlinkat(
            to,
            &parent,
            target.file_name().unwrap_or_default(),
        )?)
    }

    fn file(&self, contents: &[u8], target: &Path) -> io::Result<()> {
        let parent = self.parent(target)?;
        let file = self.create(parent.as_fd(), target.file_name().unwrap_or_default())?;
        write_all(file.as_fd(), contents)
    }

    /// Covers `target`, if it exists, by something empty that can be neither opened nor replaced.
    fn hide(&self, target: &Path, directory: bool) -> io::Result<()> {
        let place = match mount::open_below(self.root.as_fd(), target) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let cover = Path::new(STAGING).join(if directory { EMPTY_DIRECTORY } else { EMPTY_FILE });
        // A copy of a mount has its attributes.
        let cover = mount::clone_tree(self.root.as_fd(), &cover)?;
        mount::attach(cover.as_fd(), place.as_fd())
    }

    /// Makes what hidden things are covered with: an empty file and an empty directory, each a mount that allows
    /// nothing.
    fn make_staging(&self) -> io::Result<()> {
        let staging = self.place(Path::new(STAGING), Kind::Directory)?;
        rustix::fs::mkdirat(&staging, EMPTY_DIRECTORY, Mode::empty())?;
        let file = self.create(staging.as_fd(), OsStr::new(EMPTY_FILE))?;
        rustix::fs::fchmod(&file, Mode::empty())?;
        for name in [EMPTY_DIRECTORY, EMPTY_FILE] {
            let cover = mount::clone_tree(staging.as_fd(), Path::new(name))?;
            mount::restrict_tree(
                cover.as_fd(),
                Attributes {
                    no_exec: true,
                    ..SEALED
                },
            )?;
            mount::attach_at(cover.as_fd(), staging.as_fd(), Path::new(name))?;
        }
        Ok(())
    }

    /// Removes the names; what was mounted from there keeps its files.
    fn remove_staging(&self) -> io::Result<()> {
        let staging = self.place(Path::new(STAGING), Kind::Directory)?;
        self.in_staging(|| {
            mount::detach(Path::new(EMPTY_DIRECTORY))?;
            mount::detach(Path::new(EMPTY_FILE))
        })?;
        for name in [EMPTY_FILE, "boot_id"] {
            remove(staging.as_fd(), name, AtFlags::empty())?;
        }
        for name in [EMPTY_DIRECTORY, "lower", "layer"] {
            remove(staging.as_fd(), name, AtFlags::REMOVEDIR)?;
        }
        remove(self.root.as_fd(), STAGING, AtFlags::REMOVEDIR)
    }

    /// A file of ours as a detached tree.
    fn staged(&self, name: &OsStr, contents: &[u8]) -> io::Result<OwnedFd> {
        let staging = self.place(Path::new(STAGING), Kind::Directory)?;
        let file = self.create(staging.as_fd(), name)?;
        write_all(file.as_fd(), contents)?;
        let tree = mount::clone_tree(staging.as_fd(), Path::new(name))?;
        mount::restrict_tree(
            tree.as_fd(),
            Attributes {
                no_exec: true,
                ..SEALED
            },
        )?;
        Ok(tree)
    }

    fn in_staging<T>(&self, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let staging = rustix::fs::openat(&self.root, STAGING, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::process::fchdir(&staging)?;
        let result = action();
        rustix::process::chdir("/")?;
        result
    }
}

/// Where parts are kept while the root is assembled; gone before anything runs.
const STAGING: &str = ".staging";
const EMPTY_DIRECTORY: &str = "empty-directory";
const EMPTY_FILE: &str = "empty-file";

fn remove(directory: BorrowedFd<'_>, name: &str, flags: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn kind_of(tree: BorrowedFd<'_>) -> io::Result<Kind> {
    let stat = rustix::fs::fstat(tree)?;
    let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
    Ok(if is_directory { Kind::Directory } else { Kind::File })
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// A random UUID (version 4) and a newline, as in `/proc/sys/kernel/random/boot_id`.
fn random_uuid() -> io::Result<String> {
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

/// A path of the plan as bytes that can be named in the child's messages.
pub(super) fn shown(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
}
