//! Control groups: which versions are mounted, and whether this process may make groups with the controllers that
//! limits use.
//!
//! Only looks; the groups themselves are made by `sys::cgroup`.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::mounts::{self, Mount};
use super::{Check, Mend, Status};

/// The controllers behind the limits on memory, processes and CPUs.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// How a controller can be used by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// In version 2.
    Unified,
    /// In version 1.
    Legacy,
    /// Not at all.
    Not,
}

pub(super) fn check() -> Check {
    let mounts = mounts::all();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let uses = CONTROLLERS.map(|controller| (controller, controller_use(controller, &mounts, &own)));
    let mend = mend(
        rustix::process::geteuid().is_root(),
        Path::new("/run/systemd/system").is_dir(),
    );
    from_uses(mode(&mounts), &uses, mend)
}

/// Which versions are mounted.
fn mode(mounts: &[Mount]) -> &'static str {
    let unified = mounts.iter().any(|mount| mount.kind == "cgroup2");
    let legacy = mounts.iter().any(|mount| mount.kind == "cgroup");
    match (unified, legacy) {
        (true, false) => "version 2",
        (true, true) => "hybrid (versions 1 and 2)",
        (false, true) => "version 1",
        (false, false) => "not mounted",
    }
}

fn from_uses(mode: &str, uses: &[(&str, Use)], mend: Mend) -> Check {
    let named = |wanted: &[Use]| {
        let names = uses
            .iter()
            .filter(|(_, used)| wanted.contains(used))
            .map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    let (usable, unusable) = (named(&[Use::Unified, Use::Legacy]), named(&[Use::Not]));
    let found = match (usable.is_empty(), unusable.is_empty()) {
        (_, true) => format!("{mode}; {usable} can be used"),
        (true, _) => format!("{mode}; none of {unusable} can be used"),
        (false, false) => format!("{mode}; {usable} can be used, {unusable} cannot"),
    };
    let status = if unusable.is_empty() {
        Status::Ok
    } else {
        Status::Limited
    };
    Check::new(
        "cgroups",
        status,
        found,
        "limits on memory, processes and CPUs that hold for the sandbox as a whole; without them resource limits of \
         single processes and a watcher stand in",
    )
    .with_mend((status != Status::Ok).then_some(mend))
}

fn mend(is_root: bool, has_systemd: bool) -> Mend {
    match (is_root, has_systemd) {
        (false, true) => Mend::new(
            "control groups are not delegated to this session: start offleash in a scope that is. Where `cpu` is still \
             missing there, the last three commands let users have it, from their next login on",
            &[
                "systemd-run --user --scope --property=Delegate=yes offleash run …",
                "sudo mkdir -p /etc/systemd/system/user@.service.d",
                "printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf",
                "sudo systemctl daemon-reload",
            ],
        ),
        (false, false) => Mend::new(
            "control groups belong to root and nobody delegates them on this machine; run as root, or have root give \
             you a directory below /sys/fs/cgroup",
            &[],
        ),
        (true, _) => Mend::new(
            "the hierarchy is read-only or not mounted, as in a container; give the container its own writable one",
            &["docker run --cgroupns=private --volume /sys/fs/cgroup:/sys/fs/cgroup:rw …"],
        ),
    }
}

fn controller_use(controller: &str, mounts: &[Mount], own: &str) -> Use {
    let legacy = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup" && has_word(&mount.options, ',', controller));
    if let Some(mount) = legacy {
        let usable = own_directory(own, |names| has_word(names, ',', controller))
            .is_some_and(|directory| is_ours(mount, directory));
        return if usable { Use::Legacy } else { Use::Not };
    }
    let unified = mounts.iter().find(|mount| mount.kind == "cgroup2");
    let unified = unified.zip(own_directory(own, str::is_empty));
    let usable = unified.is_some_and(|(mount, directory)| {
        let offered = std::fs::read_to_string(on_host(mount, directory).join("cgroup.controllers")).unwrap_or_default();
        has_word(offered.trim_end(), ' ', controller) && is_ours(mount, directory)
    });
    if usable { Use::Unified } else { Use::Not }
}

/// The path of this process in the hierarchy whose controllers match (cgroups(7), `/proc/PID/cgroup`).
fn own_directory(own: &str, controllers: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next()?;
        controllers(names).then(|| fields.next())?
    })
}

fn has_word(list: &str, separator: char, word: &str) -> bool {
    list.split(separator).any(|each| each == word)
}

/// Where the group `directory` of a hierarchy is in the file system.
fn on_host(mount: &Mount, directory: &str) -> PathBuf {
    let directory = Path::new(directory);
    let below = directory
        .strip_prefix(&mount.root)
        .or_else(|_| directory.strip_prefix("/"))
        .unwrap_or(directory);
    mount.target.join(below)
}

/// Whether groups can be made in that group and processes moved into them: the kernel's own answer, which covers
/// owner, mode and a read-only mount.
fn is_ours(mount: &Mount, directory: &str) -> bool {
    let path = on_host(mount, directory);
    access(&path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && access(path.join("cgroup.procs"), Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, target: &Path, kind: &str, options: &str) -> Mount {
        Mount {
            root: root.into(),
            target: target.into(),
            kind: kind.to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn mode_follows_what_is_mounted() {
        let two = mount("/", Path::new("/sys/fs/cgroup/unified"), "cgroup2", "rw");
        let one = mount("/", Path::new("/sys/fs/cgroup/memory"), "cgroup", "rw,memory");
        assert_eq!(mode(std::slice::from_ref(&two)), "version 2");
        assert_eq!(mode(std::slice::from_ref(&one)), "version 1");
        assert_eq!(mode(&[one, two]), "hybrid (versions 1 and 2)");
        assert_eq!(mode(&[]), "not mounted");
    }

    #[test]
    fn a_unified_controller_counts_when_the_group_offers_it_and_is_writable() {
        let hierarchy = tempfile::tempdir().unwrap();
        let group = hierarchy.path().join("user");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.controllers"), "cpuset memory\n").unwrap();
        let mounts = [mount("/", hierarchy.path(), "cgroup2", "rw")];
        assert_eq!(
            controller_use("memory", &mounts, "0::/user\n"),
            Use::Not,
            "cgroup.procs is missing"
        );
        std::fs::write(group.join("cgroup.procs"), "").unwrap();
        assert_eq!(controller_use("memory", &mounts, "0::/user\n"), Use::Unified);
        assert_eq!(
            controller_use("cpu", &mounts, "0::/user\n"),
            Use::Not,
            "cpuset is not cpu"
        );
        assert_eq!(controller_use("memory", &mounts, ""), Use::Not);
    }

    #[test]
    fn a_controller_of_version_1_is_looked_for_there_also_on_a_hybrid_machine() {
        let hierarchy = tempfile::tempdir().unwrap();
        let group = hierarchy.path().join("group");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), "").unwrap();
        let mounts = [
            mount("/", Path::new("/nowhere"), "cgroup2", "rw"),
            mount("/outer", hierarchy.path(), "cgroup", "rw,cpu,cpuacct"),
        ];
        let own = "4:cpu,cpuacct:/outer/group\n0::/\n";
        assert_eq!(controller_use("cpu", &mounts, own), Use::Legacy);
        assert_eq!(controller_use("memory", &mounts, own), Use::Not);
    }

    #[test]
    fn anything_less_than_all_controllers_is_limited_and_has_a_mend() {
        let mend = || mend(false, true);
        let all = [("memory", Use::Unified), ("pids", Use::Legacy), ("cpu", Use::Unified)];
        assert_eq!(from_uses("version 2", &all, mend()).status, Status::Ok);
        let some = [("memory", Use::Unified), ("pids", Use::Unified), ("cpu", Use::Not)];
        let check = from_uses("version 2", &some, mend());
        assert_eq!(check.found, "version 2; memory, pids can be used, cpu cannot");
        assert_eq!((check.status, check.mend.is_some()), (Status::Limited, true));
    }
}
