//! The small root that a machine's carrier and its hypervisor live in, with the sandbox's tree as one of its directories.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_core::plan::Plan;
use offleash_sys::credentials::CapabilitySet;
use offleash_sys::mount::{self, MountRestrictions};
use offleash_sys::{credentials, landlock, process, seccomp};
use rustix::fs::{CWD, Mode, OFlags};

use super::hypervisor::{IMAGES_INSIDE, PROGRAM_INSIDE, SAID_INSIDE};
use super::order::ORDER_INSIDE;
use super::{CARRY_ROLE, beginning};
use crate::limits::{HeldByGroup, SUPERVISE_COMMAND};
use crate::process::child::{HousedProgram, ReportLine, step};
use crate::process::handshake::StepFailure;
use crate::process::tree::{HousedAccess, HousedFile, TreeGiver};

/// The sandbox's tree, as the carrier sees it.
pub(super) const TREE: &str = "/tree";
/// Our program there.
pub(super) const CARRIER_INSIDE: &str = "/offleash";
/// How large its own files may become together, bytes: what the machine's console says among them.
const MAX_OWN_FILES: &[u8] = b"8388608";

const OWN: MountRestrictions = MountRestrictions {
    read_only: false,
    no_suid: true,
    no_dev: false,
    no_exec: false,
};
const PROGRAM: MountRestrictions = MountRestrictions {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: false,
};
const DATA: MountRestrictions = MountRestrictions {
    no_exec: true,
    ..PROGRAM
};

/// What the carrier keeps: over files as the machine's users ask for them, over ports below 1024 of its own network, and to
/// take all of it away from the hypervisor.
const CARRIER: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Has a first process become the carrier of a machine.
#[derive(Debug)]
pub(super) struct CarrierHousing;

/// What was fetched first, in order; directories of the system follow.
const PROCFS: usize = 0;
const CARRIER_PROGRAM: usize = 1;
const HYPERVISOR: usize = 2;
const IMAGES: usize = 3;
const SYSTEM: usize = 4;

impl HousedProgram for CarrierHousing {
    fn fetch(&self, plan: &Plan, given: &mut dyn TreeGiver) -> Result<Vec<OwnedFd>, StepFailure> {
        // Made now, while a procfs is there of which nothing is covered: without, no further one may be made.
        let procfs = mount::new_filesystem(c"proc", &[], OWN).map_err(step("mounting a procfs for the carrier"))?;
        let mut fetched = vec![procfs];
        let mut passed_on = Vec::new();
        for file in HousedFile::all_of(plan) {
            let opened = match given.tree(file.number)? {
                Some(tree) => Ok(tree),
                None => file.open(),
            };
            if is_passed_on(&file) {
                let shown = file.path.to_string_lossy();
                passed_on.push(opened.map_err(|error| StepFailure::new("opening for the hypervisor", shown, error))?);
                continue;
            }
            let restrictions = if fetched.len() == IMAGES { DATA } else { PROGRAM };
            fetched.push(restricted(opened, restrictions, &file.path)?);
        }
        if fetched.len() != SYSTEM {
            return Err(step("finding the hypervisor")(io::ErrorKind::NotFound.into()));
        }
        for (directory, _) in system_parts() {
            let tree = mount::clone_tree(CWD, &directory);
            fetched.push(restricted(tree, PROGRAM, &directory)?);
        }
        // Behind all that is mounted.
        fetched.extend(passed_on);
        Ok(fetched)
    }

    fn house(&self, plan: &Plan, _held: HeldByGroup, fetched: &[OwnedFd]) -> Result<OwnedFd, StepFailure> {
        build(plan, fetched).map_err(step("making the machine's own root"))
    }

    fn confine(&self, _plan: &Plan) -> Result<Vec<ReportLine>, StepFailure> {
        let mut report = Vec::new();
        credentials::become_user(0, 0).map_err(step("becoming the superuser of the namespaces"))?;
        process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
        credentials::drop_capabilities_but(CARRIER).map_err(step("dropping capabilities"))?;
        match landlock::isolate_self() {
            Ok(()) => report.push((
                '+',
                "landlock",
                "signals stay inside; paths are held by mounts".to_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(step("keeping signals inside")(error)),
        }
        let filter = seccomp::compile_runtime();
        filter.install().map_err(step("installing the system call filter"))?;
        let said = format!(
            "the machine's kernel is its own; the hypervisor's own filter within one of ours, {} instructions",
            filter.instructions()
        );
        report.push(('+', "seccomp", said));
        Ok(report)
    }

    fn exec(&self, plan: &Plan, fetched: &[OwnedFd]) -> io::Error {
        let Some(program) = fetched.get(CARRIER_PROGRAM) else {
            return io::ErrorKind::NotFound.into();
        };
        let mut words = vec![c"offleash".into(), word(SUPERVISE_COMMAND), word(CARRY_ROLE)];
        let others = fetched.len().saturating_sub(passed_on(plan));
        for file in fetched.iter().skip(others) {
            if let Err(error) = rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()) {
                return error.into();
            }
            words.push(word(&file.as_raw_fd().to_string()));
        }
        let words: Vec<&CStr> = words.iter().map(AsRef::as_ref).collect();
        process::exec_with(program.as_fd(), &words)
    }
}

fn passed_on(plan: &Plan) -> usize {
    HousedFile::all_of(plan)
        .iter()
        .filter(|file| is_passed_on(file))
        .count()
}

/// Whether the carrier is given a descriptor of it, and no path: the files of a template, and KVM's device.
fn is_passed_on(file: &HousedFile) -> bool {
    use HousedAccess::{Device, Read, Write};
    matches!(file.access, Device | Read | Write)
}

/// A word of ours, none of which has a zero byte.
fn word(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text).unwrap_or_default()
}

fn restricted(tree: io::Result<OwnedFd>, restrictions: MountRestrictions, path: &Path) -> Result<OwnedFd, StepFailure> {
    let opened = tree.and_then(|tree| {
        mount::restrict_tree(tree.as_fd(), restrictions)?;
        Ok(tree)
    });
    opened.map_err(|error| StepFailure::new("opening for the machine", path.to_string_lossy(), error))
}

/// What a hypervisor needs of the host: the libraries that it is linked with, and its firmware. Directories, and where they are
/// in its house.
fn system_parts() -> Vec<(PathBuf, &'static str)> {
    let is_directory = |path: &str| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let all = [
        ("/usr/lib", "usr/lib"),
        ("/usr/lib64", "usr/lib64"),
        ("/usr/share/qemu", "usr/share/qemu"),
        ("/usr/share/seabios", "usr/share/seabios"),
        ("/lib", "lib"),
        ("/lib64", "lib64"),
    ];
    let there = all.into_iter().filter(|(path, _)| is_directory(path));
    there.map(|(path, inside)| (PathBuf::from(path), inside)).collect()
}

/// The links at the root that lead to some of them.
fn system_links() -> Vec<(&'static str, PathBuf)> {
    let link = |name| Some((name, std::fs::read_link(Path::new("/").join(name)).ok()?));
    ["lib", "lib64"].into_iter().filter_map(link).collect()
}

/// Makes the root and enters it; answers the file for what the carrier, the hypervisor and the machine's console say.
fn build(plan: &Plan, fetched: &[OwnedFd]) -> io::Result<OwnedFd> {
    let order = postcard::to_allocvec(&beginning::order(plan)?).map_err(io::Error::other)?;
    let options: [(&CStr, &[u8]); 2] = [(c"size", MAX_OWN_FILES), (c"mode", b"755")];
    let root = mount::new_filesystem(c"tmpfs", &options, OWN)?;
    let tree = mount::clone_tree(CWD, Path::new("/"))?;
    mount::attach(root.as_fd(), mount::open_place(Path::new("/"))?.as_fd())?;
    let root = root.as_fd();
    for directory in ["tree", "images", "proc", "dev", "tmp", "usr", "usr/bin", "usr/share"] {
        rustix::fs::mkdirat(root, directory, Mode::from(0o755))?;
    }
    // Before the tree is attached: these are devices of the tree.
    let devices = mount::clone_tree(CWD, Path::new("/dev"))?;
    attach_below(root, &tree, TREE)?;
    attach_below(root, &devices, "dev")?;
    attach_fetched(root, fetched, PROCFS, "proc")?;
    attach_fetched(root, fetched, IMAGES, IMAGES_INSIDE)?;
    for (index, place) in [(CARRIER_PROGRAM, CARRIER_INSIDE), (HYPERVISOR, PROGRAM_INSIDE)] {
        write(root, place, b"")?;
        attach_fetched(root, fetched, index, place)?;
    }
    for ((_, place), tree) in system_parts().into_iter().zip(fetched.iter().skip(SYSTEM)) {
        rustix::fs::mkdirat(root, place, Mode::from(0o755))?;
        attach_below(root, tree, place)?;
    }
    for (name, to) in system_links() {
        rustix::fs::symlinkat(to, root, name)?;
    }
    write(root, ORDER_INSIDE, &order)?;
    let said = write(root, SAID_INSIDE, b"")?;
    // The hypervisor opens it by its name, and has no capability to do so.
    rustix::fs::fchmod(&said, Mode::from(0o666))?;
    mount::enter_root(root)?;
    // The machine has its own of both.
    for covered in ["tree/proc", "tree/dev"] {
        match mount::detach(Path::new(covered)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
            detached => detached?,
        }
    }
    Ok(said)
}

fn attach_fetched(root: BorrowedFd<'_>, fetched: &[OwnedFd], index: usize, place: &str) -> io::Result<()> {
    match fetched.get(index) {
        Some(tree) => attach_below(root, tree, place),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

fn attach_below(root: BorrowedFd<'_>, tree: &OwnedFd, place: &str) -> io::Result<()> {
    mount::attach_at(tree.as_fd(), root, below(place))
}

fn below(place: &str) -> &Path {
    Path::new(place.trim_start_matches('/'))
}

fn write(root: BorrowedFd<'_>, place: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::openat(root, below(place), flags, Mode::from(0o644))?);
    file.write_all(bytes)?;
    Ok(file.into())
}
