//! Assembles the file system of a sandbox, from inside its namespaces, and enters it.
//!
//! The plan's order is kept: a later entry covers an earlier one. What every sandbox has is made before there is a
//! plan ([`RootFoundation`]), while the parent still finds out what the sandbox is to be.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::spec::MountAccess;
use offleash_core::vm::{Acceleration, TemplateUse};
use offleash_sys::kvm;
use offleash_sys::mount::{self, MountRestrictions};
use rustix::fs::{Mode, OFlags};

use self::kernel::EmptyCovers;
pub(crate) use self::kernel::random_uuid;
pub(crate) use self::layers::UPPER;
use self::layers::{DetachedPart, PartStaging};
use self::root::{RootBuilder, TargetKind};
use super::child::ProcessorSet;
use super::handshake::StepFailure;
use crate::guest_image;

mod base;
mod kernel;
mod layers;
mod root;
mod shown;

/// Gives the trees that only the parent could make.
pub(crate) trait TreeGiver {
    /// The tree with this number, if it is one that the parent makes; waits for it.
    fn tree(&mut self, number: usize) -> Result<Option<OwnedFd>, StepFailure>;
}

/// The number of the tree that a bind, or the lower part of an overlay, at `entry` is made from.
pub(super) fn source_number(entry: usize) -> usize {
    entry * TREES
}

/// The number of the tree that holds the writable layer of the overlay at `entry`.
pub(super) fn layer_number(entry: usize) -> usize {
    entry * TREES + 1
}

/// The number of the tree that holds what a template has of the overlay at `entry`.
pub(super) fn template_number(entry: usize) -> usize {
    entry * TREES + 2
}

/// The number of the tree that holds what a snapshot has of the overlay at `entry`.
pub(super) fn snapshot_number(entry: usize) -> usize {
    entry * TREES + 3
}

/// The entry that the tree with this number is for.
pub(super) fn entry_of(number: usize) -> usize {
    number / TREES
}

/// How many trees an entry can have.
const TREES: usize = 4;

/// The number of the tree that is the guest's program.
pub(super) const GUEST: usize = 0xffff;

/// The number of the tree that is the runtime's program.
pub(crate) const RUNTIME: usize = 0xfffe;
/// Those that a machine's carrier is made of.
const CARRIER: usize = 0xfffd;
const HYPERVISOR: usize = 0xfffc;
const IMAGES: usize = 0xfffb;
const TEMPLATE: usize = 0xfffa;
const TEMPLATE_MEMORY: usize = 0xfff9;
const WRITABLE_MEMORY: usize = 0xfff8;
const PROCESSOR: usize = 0xfff7;
/// The program that this process is.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A file or directory of the host that what a first process becomes is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HousedFile {
    /// The number of its tree.
    pub(crate) number: usize,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// As what it is opened.
    pub(crate) access: HousedAccess,
}

/// As what such a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HousedAccess {
    /// A tree of its own, to be mounted.
    Tree,
    /// The same of the program that this process is, whatever became of its path.
    OwnProgram,
    /// A file that is read. Nobody to whom it is given can open it for writing, whatever the file's own mode says.
    Read,
    /// A file that is read and written.
    Write,
    /// A device that is spoken to.
    Device,
}

impl HousedFile {
    /// Those of a plan, in the order in which they are asked for.
    pub(crate) fn all_of(plan: &Plan) -> Vec<Self> {
        let file = |number, path: &Path| Self {
            number,
            path: path.to_owned(),
            access: HousedAccess::Tree,
        };
        let mut files = Vec::new();
        files.extend(plan.runtime.as_ref().map(|runtime| file(RUNTIME, &runtime.program)));
        if let Some(vm) = &plan.vm {
            files.extend([
                Self {
                    access: HousedAccess::OwnProgram,
                    ..file(CARRIER, Path::new(OWN_PROGRAM))
                },
                file(HYPERVISOR, &vm.hypervisor),
                file(IMAGES, &vm.images),
            ]);
            files.extend((vm.acceleration == Acceleration::Kvm).then(|| Self {
                access: HousedAccess::Device,
                ..file(PROCESSOR, Path::new(kvm::DEVICE))
            }));
            if let Some(template) = &vm.template {
                let saves = template.used == TemplateUse::Save;
                let given = |access, number, path: &Path| Self {
                    access,
                    ..file(number, path)
                };
                let access = if saves { HousedAccess::Write } else { HousedAccess::Read };
                let memory = template.memory_path();
                files.push(given(access, TEMPLATE, &template.path));
                files.push(given(HousedAccess::Read, TEMPLATE_MEMORY, &memory));
                files.extend(saves.then(|| given(HousedAccess::Write, WRITABLE_MEMORY, &memory)));
            }
        }
        files
    }

    /// Opens it.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        match self.access {
            HousedAccess::Tree => mount::clone_resolved(&self.path),
            HousedAccess::OwnProgram => own_program(&self.path),
            HousedAccess::Read => read_only(&self.path),
            HousedAccess::Write => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                Ok(rustix::fs::open(&self.path, flags, Mode::empty())?)
            }
            HousedAccess::Device => kvm::open(&self.path),
        }
    }
}

/// A file by way of a mount of its own that nothing is written to: a descriptor can be opened anew, by `/proc/self/fd`, with
/// the rights of whoever does it, and owns the file where a sandbox's user is the user of the host.
fn read_only(path: &Path) -> io::Result<OwnedFd> {
    let tree = mount::clone_resolved(path)?;
    let sealed = MountRestrictions {
        no_exec: true,
        ..SEALED
    };
    mount::restrict_tree(tree.as_fd(), sealed)?;
    let link = format!("/proc/self/fd/{}", tree.as_raw_fd());
    Ok(rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The program that this process is: what the link leads to, or, for a child whose mounts are copies of those that it was started
/// from, what lies at that path.
fn own_program(link: &Path) -> io::Result<OwnedFd> {
    match mount::clone_tree(mount::current_directory(), link) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => mount::clone_resolved(&std::fs::read_link(link)?),
        cloned => cloned,
    }
}

const SEALED: MountRestrictions = MountRestrictions {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: false,
};
const WRITABLE: MountRestrictions = MountRestrictions {
    read_only: false,
    ..SEALED
};
/// For mounts that hold nothing to be executed.
const DATA: MountRestrictions = MountRestrictions {
    no_exec: true,
    ..WRITABLE
};

/// A file that every host has.
const BELOW: &str = "/dev/null";

/// A root file system that holds what every sandbox has: `/proc` and `/dev`.
#[derive(Debug)]
pub(super) struct RootFoundation {
    root: RootBuilder,
    covers: EmptyCovers,
    /// A file of the host's tree, which goes: for what is to be mounted somewhere, and not seen.
    below: OwnedFd,
}

/// Lays the foundation of a root. The calling process must be the sandbox's user by now, who owns what is made.
pub(super) fn lay_foundation() -> Result<RootFoundation, StepFailure> {
    let mount =
        new_tmpfs(Some(4 << 20), Some(8192), 0o755, WRITABLE).map_err(step("mounting a root file system", ""))?;
    let below = mount::open_place(Path::new(BELOW)).map_err(step("opening", BELOW))?;
    let place = mount::open_place(Path::new("/")).map_err(step("opening", "/"))?;
    mount::attach(mount.as_fd(), place.as_fd()).map_err(step("attaching the new root", ""))?;
    let mut root = RootBuilder::new(mount).map_err(step("opening the new root", ""))?;
    let mut covers = EmptyCovers::make(&mut root).map_err(step("preparing the new root", ""))?;
    kernel::make_dev(&mut root)?;
    kernel::mount_proc(&mut root, &mut covers)?;
    Ok(RootFoundation { root, covers, below })
}

/// What comes of entering a tree.
#[derive(Debug)]
pub(super) struct EnteredTree {
    /// The guest's program, if the plan says where it is.
    pub(super) guest: Option<OwnedFd>,
    /// The directory in which what is shown of the limits is kept up to date.
    pub(super) shown: Option<OwnedFd>,
}

impl RootFoundation {
    /// Assembles the plan's tree and makes it the root of this mount namespace.
    pub(super) fn enter(
        self,
        plan: &Plan,
        processors: &ProcessorSet,
        given: &mut dyn TreeGiver,
    ) -> Result<EnteredTree, StepFailure> {
        let Self { root, covers, below } = self;
        let guest = plan.guest.as_deref().map(|path| program(path, below.as_fd(), given));
        let guest = guest.transpose()?;
        let mut assembly = RootAssembly {
            foundation: root,
            own_root: None,
            staging: match plan.has_own_root() {
                true => PartStaging::Abandoned(0),
                false => PartStaging::Cleared,
            },
            covers,
            given,
        };
        for (number, entry) in plan.entries.iter().enumerate() {
            assembly.add(number, entry)?;
        }
        let RootAssembly {
            mut foundation,
            mut own_root,
            covers,
            ..
        } = assembly;
        let own = rustix::io::fcntl_dupfd_cloexec(foundation.mount(), 0)
            .map_err(|error| step("opening the new root", "")(error.into()))?;
        let root = own_root.as_mut().unwrap_or(&mut foundation);
        let shown = shown::show(root, own.as_fd(), plan, processors)?;
        drop(own);
        covers
            .finish(&mut foundation)
            .map_err(step("finishing the new root", ""))?;
        let sealed = mount::make_private(foundation.mount())
            .and_then(|()| mount::restrict_mount(foundation.mount(), SEALED))
            .and_then(|()| own_root.as_ref().map_or(Ok(()), base::seal));
        sealed.map_err(step("sealing the new root", ""))?;
        // The foundation lies on top of the host's root: with it as the root, what was before is one mount that goes, and
        // so it is, with all that is left on it, when its place is taken by another.
        let entered = mount::enter_root(foundation.mount())
            .and_then(|()| own_root.as_ref().map_or(Ok(()), |root| mount::enter_root(root.mount())));
        entered.map_err(step("entering the new root", ""))?;
        Ok(EnteredTree { guest, shown })
    }
}

/// The guest's program in a file of the host, which many execute at once, as a mount of its own that is read only: what
/// a sandbox could reach through `/proc/1/exe` cannot be changed there in any way.
///
/// It is attached at `place` and goes with it; a mount that is detached all its life is unmounted alone when it is closed,
/// and then the kernel waits for all processors.
fn program(path: &Path, place: BorrowedFd<'_>, given: &mut dyn TreeGiver) -> Result<OwnedFd, StepFailure> {
    let tree = match given.tree(GUEST)? {
        Some(tree) => tree,
        None => mount::clone_tree(mount::current_directory(), path).map_err(step("opening", path))?,
    };
    mount::restrict_tree(tree.as_fd(), SEALED)
        .and_then(|()| mount::attach(tree.as_fd(), place))
        .map_err(step("mounting", path))?;
    Ok(tree)
}

fn step(what: &'static str, subject: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StepFailure {
    let subject = subject.into();
    move |source| StepFailure::new(what, subject.to_string_lossy(), source)
}

/// A tmpfs; `size` in bytes.
fn new_tmpfs(size: Option<u64>, inodes: Option<u64>, mode: u32, attributes: MountRestrictions) -> io::Result<OwnedFd> {
    TmpfsOptions::new(size, inodes, mode).with(|options| mount::new_filesystem(c"tmpfs", options, attributes))
}

/// The options of a tmpfs as text (tmpfs(5)).
struct TmpfsOptions([String; 3]);

impl TmpfsOptions {
    /// `size` in bytes; without one, and without a number of inodes, there is no bound.
    fn new(size: Option<u64>, inodes: Option<u64>, mode: u32) -> Self {
        let bound = |bound: Option<u64>| bound.unwrap_or(0).to_string();
        Self([bound(size), bound(inodes), format!("{mode:o}")])
    }

    fn with<T>(&self, mount: impl FnOnce(&[(&CStr, &[u8])]) -> T) -> T {
        let [size, inodes, mode] = &self.0;
        mount(&[
            (c"size", size.as_bytes()),
            (c"nr_inodes", inodes.as_bytes()),
            (c"mode", mode.as_bytes()),
        ])
    }
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

struct RootAssembly<'a> {
    /// A tmpfs, which is the sandbox's root unless it has one of its own.
    foundation: RootBuilder,
    own_root: Option<RootBuilder>,
    staging: PartStaging,
    covers: EmptyCovers,
    given: &'a mut dyn TreeGiver,
}

impl RootAssembly<'_> {
    fn root(&mut self) -> &mut RootBuilder {
        self.own_root.as_mut().unwrap_or(&mut self.foundation)
    }

    fn add(&mut self, number: usize, entry: &PlanEntry) -> Result<(), StepFailure> {
        let target = relative(&entry.target);
        match &entry.node {
            PlanNode::Bind { source, access } | PlanNode::Volume { source, access, .. } => {
                self.bind(number, source, *access, target)
            }
            PlanNode::Overlay { lower, layer } => self.overlay(number, lower, layer, target),
            PlanNode::Base {
                lower,
                stack,
                template,
                snapshot,
                skeleton,
                layer,
            } => self.base(
                number,
                base::LowerParts {
                    lower,
                    stack,
                    template: template.as_deref(),
                    snapshot: snapshot.as_deref(),
                    skeleton: skeleton.as_deref(),
                },
                layer,
                target,
            ),
            PlanNode::Home { owner, mode } => {
                base::home(self.root(), target, *owner, *mode).map_err(step("making the home directory", &entry.target))
            }
            PlanNode::Guest => self
                .file(guest_image::GUEST, Mode::from(0o755), target)
                .map_err(step("writing", &entry.target)),
            PlanNode::Tmpfs { size, inodes, mode } => TmpfsOptions::new(size.map(|size| size.0), *inodes, *mode)
                .with(|options| self.root().mount_new(c"tmpfs", options, WRITABLE, target))
                .map_err(step("mounting a tmpfs at", &entry.target)),
            // Part of the foundation.
            PlanNode::Proc if target == Path::new(kernel::PROC) => Ok(()),
            PlanNode::Dev if target == Path::new(kernel::DEV) => Ok(()),
            PlanNode::Proc | PlanNode::Dev => {
                let elsewhere = io::Error::from(io::ErrorKind::InvalidInput);
                Err(step("mounting what is the kernel's at", &entry.target)(elsewhere))
            }
            PlanNode::Device { source } => kernel::add_device(self.root(), source, target),
            PlanNode::Directory => self
                .root()
                .directory(target)
                .map_err(step("making the directory", &entry.target)),
            PlanNode::Symlink { to } => self
                .symlink(to, target)
                .map_err(step("making the symbolic link", &entry.target)),
            PlanNode::File { contents } => self
                .file(contents, Mode::from(0o644), target)
                .map_err(step("writing", &entry.target)),
            PlanNode::Hidden { directory } => {
                let kind = if *directory {
                    TargetKind::Directory
                } else {
                    TargetKind::File
                };
                let root = self.own_root.as_ref().unwrap_or(&self.foundation);
                self.covers
                    .hide(root, target, kind)
                    .map_err(step("hiding", &entry.target))
            }
        }
    }

    /// The tree that a bind, or the lower part of an overlay, is made from.
    fn source(&mut self, number: usize, path: &Path) -> Result<OwnedFd, StepFailure> {
        match self.given.tree(source_number(number))? {
            Some(tree) => Ok(tree),
            None => mount::clone_resolved(path).map_err(step("opening", path)),
        }
    }

    /// What a template or a snapshot, which is tree `number`, holds of a directory: the upper directory of its layer.
    fn built(&mut self, number: usize, layer: &Path) -> Result<DetachedPart, StepFailure> {
        let tree = match self.given.tree(number)? {
            Some(tree) => tree,
            None => mount::clone_resolved(layer).map_err(step("opening", layer))?,
        };
        Ok(DetachedPart::from(tree).below(UPPER))
    }

    fn bind(&mut self, number: usize, source: &Path, access: MountAccess, target: &Path) -> Result<(), StepFailure> {
        let tree = self.source(number, source)?;
        let attributes = if access == MountAccess::Rw { WRITABLE } else { SEALED };
        mount::restrict_tree(tree.as_fd(), attributes).map_err(step("restricting", source))?;
        let kind = kind_of(tree.as_fd()).map_err(step("examining", source))?;
        let tree = if access == MountAccess::Ro && kind == TargetKind::Directory && !is_system(source) {
            layers::read_only(&mut self.foundation, &mut self.staging, &tree)
                .map_err(step("mounting a read-only view of", source))?
        } else {
            tree
        };
        self.root()
            .attach(tree.as_fd(), kind, target)
            .map_err(step("mounting", source))
    }

    /// The tree of the writable layer of an overlay.
    fn layer(&mut self, number: usize, layer: &Path) -> Result<OwnedFd, StepFailure> {
        match self.given.tree(layer_number(number))? {
            Some(tree) => Ok(tree),
            None => mount::clone_tree(mount::current_directory(), layer).map_err(step("opening", layer)),
        }
    }

    /// A file of ours. In a root of its own an earlier one, whatever became of it, gives way.
    fn file(&mut self, contents: &[u8], mode: Mode, target: &Path) -> io::Result<()> {
        if let Some(root) = &mut self.own_root {
            root.clear(target)?;
        }
        self.root().file(contents, mode, target)
    }

    fn symlink(&mut self, to: &Path, target: &Path) -> io::Result<()> {
        if let Some(root) = &mut self.own_root {
            root.clear(target)?;
        }
        self.root().symlink(to, target)
    }

    fn overlay(&mut self, number: usize, lower: &Path, layer: &Path, target: &Path) -> Result<(), StepFailure> {
        let lower_tree = self.source(number, lower)?;
        let layer_tree = self.layer(number, layer)?;
        let overlay = layers::writable(
            &mut self.foundation,
            &mut self.staging,
            &[lower_tree.into()],
            &layer_tree,
        )
        .map_err(step("mounting an overlay over", lower))?;
        self.root()
            .attach(overlay.as_fd(), TargetKind::Directory, target)
            .map_err(step("mounting the overlay of", lower))
    }
}

fn kind_of(tree: BorrowedFd<'_>) -> io::Result<TargetKind> {
    let stat = rustix::fs::fstat(tree)?;
    let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
    Ok(if is_directory {
        TargetKind::Directory
    } else {
        TargetKind::File
    })
}

/// A path of the plan as bytes that can be named in the child's messages.
pub(super) fn shown(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
}
