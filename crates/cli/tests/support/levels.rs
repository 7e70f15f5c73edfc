//! The level that the tests of a thread run at, and the runtimes that some take.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::{processes, skip};

thread_local! {
    /// Flags of `offleash run`, from [`at_level`].
    static FLAGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What virtual machines are booted and restored from, for the sites of this thread, from [`sharing_machines`].
    static MACHINES: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Does something while every `offleash run` of this thread has these flags, unless it names a level itself.
pub fn at_level<T>(flags: &[String], action: impl FnOnce() -> T) -> T {
    FLAGS.replace(flags.to_vec());
    let done = action();
    FLAGS.take();
    done
}

/// Does something while every site of this thread has the same virtual machines: one boots, and the others are restored from it.
pub fn sharing_machines<T>(action: impl FnOnce() -> T) -> T {
    let shared = tempfile::tempdir().unwrap();
    MACHINES.replace(Some(shared.path().to_owned()));
    let done = action();
    MACHINES.take();
    done
}

/// Gives a state directory the virtual machines that are shared, if any are.
pub(super) fn share_machines(state: &Path) {
    MACHINES.with_borrow(|shared| {
        if let Some(shared) = shared {
            std::os::unix::fs::symlink(shared, state.join("vm")).unwrap();
        }
    });
}

/// Whether the tests of this thread run at another level than `process`.
pub fn is_elsewhere() -> bool {
    FLAGS.with_borrow(|flags| !flags.is_empty())
}

/// Arguments of the program, with the flags of this thread's level.
pub(super) fn with_flags<I, S>(arguments: I) -> Vec<OsString>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
    let names_level = arguments.iter().any(|word| word == "--level");
    if arguments.first().is_some_and(|word| word == "run") && !names_level {
        FLAGS.with_borrow(|flags| drop(arguments.splice(1..1, flags.iter().map(OsString::from))));
    }
    arguments
}

/// The flags of level `container` with this runtime.
pub fn container_flags(runtime: &Path) -> Vec<String> {
    let runtime = runtime.to_str().unwrap();
    ["--level", "container", "--runtime", runtime].map(str::to_owned).into()
}

/// gVisor's program: beside the SDKs, or in `PATH`; says so if there is none.
pub fn runsc() -> Option<PathBuf> {
    let installed = std::env::var_os("OFFLEASH_SDKS").map(|sdks| Path::new(&sdks).join("gvisor/usr/bin/runsc"));
    let found = installed.filter(|path| path.exists());
    found.or_else(|| runtime("runsc"))
}

/// A runtime in `PATH`; says so if there is none.
pub fn runtime(name: &str) -> Option<PathBuf> {
    let found = processes::program(name);
    if found.is_none() {
        skip(&format!("there is no {name}"));
    }
    found
}

/// The flags of level `microvm`; says so where there is no QEMU or no kernel for guests.
pub fn microvm_flags() -> Option<Vec<String>> {
    let kernel = vm_kernel()?;
    let flags = ["--level", "microvm", "--vm-kernel", kernel.to_str().unwrap()];
    Some(flags.map(str::to_owned).into())
}

/// A directory with a kernel of guests: the one that the tests of control groups boot, or the machine's own. `None`, and said
/// so, where there is none, or no QEMU.
fn vm_kernel() -> Option<PathBuf> {
    if processes::program("qemu-system-x86_64").is_none() {
        skip("there is no qemu-system-x86_64");
        return None;
    }
    let unpacked = std::env::var_os("OFFLEASH_SDKS")
        .map(|sdks| Path::new(&sdks).join("../virtual-machine/linux-image-cloud-amd64"));
    let found = unpacked.filter(|path| path.exists()).or_else(|| {
        let mut boot = std::fs::read_dir("/boot").ok()?.flatten();
        let is_cloud = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with("-cloud-amd64");
        boot.any(|entry| is_cloud(&entry)).then(|| PathBuf::from("/"))
    });
    if found.is_none() {
        skip("there is no kernel for guests of virtual machines");
    }
    found
}
