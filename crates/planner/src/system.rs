//! The system that every sandbox has: the host's programs read-only, and what it has for itself.

use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::limits::Limits;
use offleash_core::plan::{PlanEntry, PlanNode, SandboxUser};
use offleash_core::spec::{IdChoice, MountAccess};

use super::etc;

/// Parts of the root that are links into `/usr` on most systems and directories on others.
pub const ROOT_NAMES: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Read-only trees of the host, where they exist: programs, and what Nix has instead.
const PROGRAMS: [&str; 2] = ["/usr", "/nix/store"];

/// The user inside, whoever the caller is.
pub fn user() -> SandboxUser {
    SandboxUser {
        uid: 1000,
        gid: 1000,
        name: "user".to_owned(),
        home: PathBuf::from("/home/user"),
        shell: etc::shell().into(),
    }
}

/// The user who works in a sandbox with such ids.
pub(crate) fn usual(ids: IdChoice) -> SandboxUser {
    match ids {
        IdChoice::Single | IdChoice::Range => user(),
        IdChoice::Zero => SandboxUser {
            uid: 0,
            gid: 0,
            ..user()
        },
    }
}

/// What the superuser is called, also where that is the usual user's other name.
pub const SUPERUSER: &str = "root";

/// The superuser of a sandbox with a range of ids.
pub fn superuser() -> SandboxUser {
    SandboxUser {
        uid: 0,
        gid: 0,
        name: SUPERUSER.to_owned(),
        home: PathBuf::from("/root"),
        shell: etc::shell().into(),
    }
}

/// How much memory there must be for each file in memory, in bytes: as the kernel has it by itself (tmpfs(5)). A file without
/// content takes about one KiB of the kernel's memory, which nothing bounds where no cgroup does.
const MEMORY_OF_A_FILE: u64 = 8 << 10;

/// How many files a directory in memory may hold.
pub(super) fn inodes_in_memory(limits: &Limits) -> Option<u64> {
    // Enough for what a system has there by itself.
    let by_memory = limits.memory.map(|memory| (memory.0 / MEMORY_OF_A_FILE).max(1024));
    [limits.inodes, by_memory].into_iter().flatten().min()
}

/// The entries of the system, `/etc` excepted.
pub(super) fn entries(limits: &Limits, user: &SandboxUser) -> Vec<PlanEntry> {
    let mut entries = Vec::new();
    entries.extend(
        PROGRAMS
            .iter()
            .filter(|path| Path::new(path).is_dir())
            .map(|path| bind(Path::new(path))),
    );
    entries.extend(
        ROOT_NAMES
            .iter()
            .filter_map(|name| root_name(&Path::new("/").join(name))),
    );
    let memory = |mode| PlanNode::Tmpfs {
        size: limits.tmp,
        inodes: inodes_in_memory(limits),
        mode,
    };
    entries.extend([
        system("/proc", PlanNode::Proc),
        system("/dev", PlanNode::Dev),
        system("/dev/shm", memory(0o1777)),
        system("/tmp", memory(0o1777)),
        system("/run", PlanNode::Directory),
        system("/var", PlanNode::Directory),
        system("/var/tmp", memory(0o1777)),
        system("/var/run", PlanNode::Symlink { to: "/run".into() }),
        system(&user.home, memory(0o700)),
    ]);
    entries
}

fn root_name(path: &Path) -> Option<PlanEntry> {
    match fs::read_link(path) {
        Ok(to) => Some(system(path, PlanNode::Symlink { to })),
        Err(_) if path.is_dir() => Some(bind(path)),
        Err(_) => None,
    }
}

pub(super) fn bind(path: &Path) -> PlanEntry {
    system(
        path,
        PlanNode::Bind {
            source: path.to_path_buf(),
            access: MountAccess::Ro,
        },
    )
}

pub(super) fn system(target: impl AsRef<Path>, node: PlanNode) -> PlanEntry {
    let target = target.as_ref().to_path_buf();
    let rule = format!("system: {}", target.display());
    PlanEntry { target, node, rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offleash_core::units::Bytes;

    #[test]
    fn files_in_memory_are_bounded_by_the_number_of_files_and_by_the_memory() {
        let inodes = |inodes, memory: Option<u64>| {
            let limits = Limits {
                inodes,
                memory: memory.map(Bytes),
                ..Limits::default()
            };
            inodes_in_memory(&limits)
        };
        assert_eq!(inodes(Some(2_000_000), Some(512 << 20)), Some(65536));
        assert_eq!(inodes(Some(16), Some(512 << 20)), Some(16));
        assert_eq!(inodes(None, Some(1 << 20)), Some(1024));
        assert_eq!(inodes(Some(16), None), Some(16));
        assert_eq!(inodes(None, None), None);
    }
}
