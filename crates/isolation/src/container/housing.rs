//! The small root that a runtime lives in, with the sandbox's tree as one of its directories.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_core::plan::Plan;
use offleash_core::runtime::{RuntimeKind, RuntimePlan, RuntimePlatform};
use offleash_sys::mount::{self, MountRestrictions};
use offleash_sys::rlimit::{self, LimitedResource};
use offleash_sys::{credentials, landlock, process, seccomp};
use rustix::fs::{CWD, Mode, OFlags};

use super::bundle;
use crate::limits::HeldByGroup;
use crate::process::child::{HousedProgram, ReportLine, step};
use crate::process::handshake::StepFailure;
use crate::process::tree::{RUNTIME as RUNTIME_TREE, TreeGiver, random_uuid};

/// The sandbox's tree, as the runtime sees it.
pub(super) const TREE: &str = "/tree";
/// The bundle's directory.
const BUNDLE: &str = "/bundle";
/// An id of a start of the machine that is the sandbox's own.
pub(super) const BOOT_ID: &str = "/bundle/boot-id";
/// Where the runtime keeps its state.
const STATE: &str = "/state";
/// What it says.
const SAID: &str = "said";
/// The name of the container, of which there is one.
const CONTAINER: &str = "sandbox";
/// How many threads are a runtime's own, beside those of its code.
const OWN_THREADS: u64 = 64;
/// How large its own files may become together, bytes.
const MAX_OWN_FILES: &[u8] = b"16777216";

const OWN: MountRestrictions = MountRestrictions {
    read_only: false,
    no_suid: true,
    no_dev: false,
    no_exec: false,
};
const READ_ONLY: MountRestrictions = MountRestrictions {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: true,
};
const PROGRAM: MountRestrictions = MountRestrictions {
    read_only: true,
    no_suid: true,
    no_dev: true,
    no_exec: false,
};

/// What was fetched, in order.
const PROCFS: usize = 0;
const RUNTIME: usize = 1;

/// Has a first process become a runtime.
#[derive(Debug)]
pub(super) struct RuntimeHousing;

impl HousedProgram for RuntimeHousing {
    fn fetch(&self, plan: &Plan, given: &mut dyn TreeGiver) -> Result<Vec<OwnedFd>, StepFailure> {
        // Made now, while a procfs is there of which nothing is covered: without, no further one may be made, by a runtime
        // either.
        let procfs = mount::new_filesystem(c"proc", &[], OWN).map_err(step("mounting a procfs for the runtime"))?;
        let Some(runtime) = &plan.runtime else {
            return Err(step("finding the runtime")(io::ErrorKind::NotFound.into()));
        };
        let opened = match given.tree(RUNTIME_TREE)? {
            Some(tree) => Ok(tree),
            None => mount::clone_resolved(&runtime.program),
        };
        let opened = opened.and_then(|tree| {
            mount::restrict_tree(tree.as_fd(), PROGRAM)?;
            Ok(tree)
        });
        let shown = runtime.program.to_string_lossy();
        let program = opened.map_err(|error| StepFailure::new("opening the runtime", shown, error))?;
        let mut fetched = vec![procfs, program];
        if runtime.kind != RuntimeKind::Runsc {
            // The others are linked with libraries, which only they see.
            for (directory, _) in libraries() {
                let tree = mount::clone_tree(CWD, &directory).and_then(|tree| {
                    mount::restrict_tree(tree.as_fd(), PROGRAM)?;
                    Ok(tree)
                });
                let shown = directory.to_string_lossy();
                fetched.push(tree.map_err(|error| StepFailure::new("opening the runtime's libraries", shown, error))?);
            }
        }
        Ok(fetched)
    }

    fn house(&self, plan: &Plan, held: HeldByGroup, fetched: &[OwnedFd]) -> Result<OwnedFd, StepFailure> {
        let root = build(plan, held, fetched).map_err(step("making the runtime's own root"))?;
        bound_processes(plan, held)?;
        Ok(root)
    }

    fn confine(&self, plan: &Plan) -> Result<Vec<ReportLine>, StepFailure> {
        let mut report = Vec::new();
        // It has every capability over its namespaces, and is the superuser there: that is what it takes to be a runtime.
        credentials::become_user(0, 0).map_err(step("becoming the superuser of the namespaces"))?;
        process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
        match landlock::isolate_self() {
            Ok(()) => report.push((
                '+',
                "landlock",
                "signals stay inside; paths are held by mounts".to_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(step("keeping signals inside")(error)),
        }
        let kernel = plan.runtime.as_ref().map(|runtime| runtime.kind);
        if matches!(kernel, Some(RuntimeKind::Runc | RuntimeKind::Youki)) {
            mount_groups().map_err(step("mounting control groups for the runtime"))?;
        }
        let filter = seccomp::compile_runtime();
        filter.install().map_err(step("installing the system call filter"))?;
        let said = match kernel {
            Some(RuntimeKind::Runsc) => "gVisor's own of its sentry, within one of ours",
            Some(RuntimeKind::Kata) => "one of ours around the runtime",
            _ => "that of level `process`, by the guest; the runtime's own within one of ours",
        };
        report.push((
            '+',
            "seccomp",
            format!("{said}, {} instructions", filter.instructions()),
        ));
        Ok(report)
    }

    fn exec(&self, plan: &Plan, fetched: &[OwnedFd]) -> io::Error {
        let (Some(runtime), Some(program)) = (&plan.runtime, fetched.get(RUNTIME)) else {
            return io::ErrorKind::NotFound.into();
        };
        let words: Result<Vec<CString>, _> = words(runtime, plan).into_iter().map(CString::new).collect();
        match words {
            Ok(words) => {
                let words: Vec<&CStr> = words.iter().map(CString::as_c_str).collect();
                process::exec_with(program.as_fd(), &words)
            }
            Err(error) => error.into(),
        }
    }
}

/// Some runtimes do not start where there are no control groups. These are of the sandbox's own namespace: its group is the
/// uppermost, and nothing of it can be changed.
fn mount_groups() -> io::Result<()> {
    let groups = mount::new_filesystem(c"cgroup2", &[], READ_ONLY)?;
    mount::attach_at(groups.as_fd(), CWD, Path::new("/sys/fs/cgroup"))
}

/// Bounds the threads of the runtime and all that it starts, where no group counts them: gVisor takes one of the host for each of
/// its code's. Set in the user namespace, it is compared with what is there.
fn bound_processes(plan: &Plan, held: HeldByGroup) -> Result<(), StepFailure> {
    let Some(pids) = plan.limits.pids.filter(|_| !held.pids) else {
        return Ok(());
    };
    let most = pids.saturating_add(OWN_THREADS);
    let bounded = rlimit::lower(LimitedResource::Processes, most);
    bounded.map_err(|error| step("bounding the runtime's threads")(error.source.into()))?;
    Ok(())
}

/// Where the libraries of programs are: directories of the host, and what links to them.
fn libraries() -> Vec<(PathBuf, Vec<(&'static str, PathBuf)>)> {
    let mut directories: Vec<(PathBuf, Vec<(&'static str, PathBuf)>)> = vec![(PathBuf::from("/usr"), Vec::new())];
    for name in ["lib", "lib64"] {
        let path = Path::new("/").join(name);
        match std::fs::read_link(&path) {
            Ok(to) => {
                if let Some((_, links)) = directories.first_mut() {
                    links.push((name, to));
                }
            }
            Err(_) if path.is_dir() => directories.push((path, Vec::new())),
            Err(_) => {}
        }
    }
    directories
}

/// What the runtime is started with.
fn words(runtime: &RuntimePlan, plan: &Plan) -> Vec<String> {
    let platform = runtime.facts.platform.unwrap_or(RuntimePlatform::Systrap);
    let platform = format!("--platform={}", platform.name());
    let words: &[&str] = match runtime.kind {
        RuntimeKind::Runsc => &[
            "runsc",
            "--root",
            STATE,
            // The network namespace is ours, where every connection leads to the gateway; without one there is none.
            if plan.network {
                "--network=host"
            } else {
                "--network=none"
            },
            "--ignore-cgroups",
            // Changes are to be in the layers of the tree.
            "--overlay2=none",
            // Whoever works with the files outside sees what was written, and the other way round.
            "--file-access=shared",
            "--host-uds=none",
            &platform,
            // Code reaches the driver of the host through calls that gVisor knows.
            if plan.gpu_nodes().is_empty() {
                "--nvproxy=false"
            } else {
                "--nvproxy=true"
            },
            "run",
            "--pass-fd=3:3",
            "--bundle",
            BUNDLE,
            CONTAINER,
        ],
        RuntimeKind::Crun => &[
            "crun",
            "--root",
            STATE,
            "--cgroup-manager=disabled",
            "run",
            // The kernel's keys are not to be had here.
            "--no-new-keyring",
            "--preserve-fds=1",
            "--bundle",
            BUNDLE,
            CONTAINER,
        ],
        RuntimeKind::Runc => &[
            "runc",
            "--root",
            STATE,
            "run",
            "--no-new-keyring",
            "--preserve-fds",
            "1",
            "--bundle",
            BUNDLE,
            CONTAINER,
        ],
        RuntimeKind::Youki => &[
            "youki",
            "--root",
            STATE,
            "run",
            "--no-new-keyring",
            "--preserve-fds",
            "1",
            "--bundle",
            BUNDLE,
            CONTAINER,
        ],
        RuntimeKind::Kata => &["kata-runtime", "--root", STATE, "run", "--bundle", BUNDLE, CONTAINER],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Makes the root and enters it; answers the file for what the runtime says.
fn build(plan: &Plan, held: HeldByGroup, fetched: &[OwnedFd]) -> io::Result<OwnedFd> {
    let options: [(&CStr, &[u8]); 2] = [(c"size", MAX_OWN_FILES), (c"mode", b"755")];
    let root = mount::new_filesystem(c"tmpfs", &options, OWN)?;
    let tree = mount::clone_tree(CWD, Path::new("/"))?;
    mount::attach(root.as_fd(), mount::open_place(Path::new("/"))?.as_fd())?;
    let root = root.as_fd();
    for directory in [
        "tree",
        "bundle",
        "state",
        "proc",
        "dev",
        "tmp",
        "etc",
        // Where runtimes look for control groups, of which there are none.
        "sys",
        "sys/fs",
        "sys/fs/cgroup",
    ] {
        rustix::fs::mkdirat(root, directory, Mode::from(0o755))?;
    }
    // Before the tree is attached: these are devices of the tree.
    let devices = mount::clone_tree(CWD, Path::new("/dev"))?;
    attach_below(root, &tree, "tree")?;
    attach_below(root, &devices, "dev")?;
    if let Some(procfs) = fetched.get(PROCFS) {
        attach_below(root, procfs, "proc")?;
    }
    if let Some(program) = fetched.get(RUNTIME) {
        write(root, "runtime", b"")?;
        attach_below(root, program, "runtime")?;
    }
    for ((directory, links), tree) in libraries().into_iter().zip(fetched.iter().skip(RUNTIME + 1)) {
        let name = directory.strip_prefix("/").unwrap_or(&directory);
        rustix::fs::mkdirat(root, name, Mode::from(0o755))?;
        attach_below(root, tree, &name.to_string_lossy())?;
        for (link, to) in links {
            rustix::fs::symlinkat(to, root, link)?;
        }
    }
    write(root, "bundle/config.json", &bundle::describe(plan, held)?)?;
    if bundle::has_own_boot_id(plan) {
        let name = BOOT_ID.trim_start_matches('/');
        write(root, name, random_uuid()?.as_bytes())?;
        // What a runtime binds it from is read-only already.
        let file = mount::clone_tree(root, Path::new(name))?;
        mount::restrict_tree(file.as_fd(), READ_ONLY)?;
        attach_below(root, &file, name)?;
    }
    let said = write(root, SAID, b"")?;
    mount::enter_root(root)?;
    // The runtime has its own of both.
    for covered in ["tree/proc", "tree/dev"] {
        match mount::detach(Path::new(covered)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
            detached => detached?,
        }
    }
    Ok(said)
}

fn attach_below(root: BorrowedFd<'_>, tree: &OwnedFd, name: &str) -> io::Result<()> {
    mount::attach_at(tree.as_fd(), root, Path::new(name))
}

fn write(root: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::openat(root, name, flags, Mode::from(0o644))?);
    file.write_all(bytes)?;
    Ok(file.into())
}
