//! The files that show a sandbox its limits: `/sys/fs/cgroup`, and of `/proc` what tells how much memory and how many
//! processors there are.
//!
//! They lie on a tmpfs of their own that is mounted twice: once so that the supervisor can write, in the place where the
//! other, which is read only, covers it. What is written there is believed by nobody but the sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use offleash_core::plan::Plan;
use offleash_core::spec::ZygoteRole;
use offleash_sys::mount::{self, MountRestrictions};
use rustix::fs::{Mode, OFlags};

use super::kernel::NOTHING;
use super::root::{RootBuilder, TargetKind};
use super::{DATA, TmpfsOptions, step};
use crate::limits::shown::{GroupForm, ShownFile, ShownLimits, UsedAmounts, cpu_list, cpuinfo_of, stat_of};
use crate::process::child::ProcessorSet;
use crate::process::handshake::StepFailure;
use crate::process::showing::{GROUPS, MEMINFO, STAT};

/// Where it is mounted.
const SYS: &str = "sys";
/// What is mounted there.
const PART_OF_SYS: &str = "sys";
const CPUINFO: &str = "proc/cpuinfo";
const CPUS: &str = "sys/devices/system/cpu";
/// Links of version 1, where controllers may lie together.
const LINK: (&str, &str) = ("cpu", "sys/fs/cgroup/cpu,cpuacct");
const BYTES: u64 = 8 << 20;
const INODES: u64 = 8192;

/// What of it is writable.
const WRITABLE: MountRestrictions = DATA;

/// Shows the limits of `plan` below `root`; answers the directory in which they are kept up to date.
pub(super) fn show(
    root: &mut RootBuilder,
    own: BorrowedFd<'_>,
    plan: &Plan,
    processors: &ProcessorSet,
) -> Result<Option<OwnedFd>, StepFailure> {
    if plan.descent == ZygoteRole::Zygote {
        return Ok(None);
    }
    let machine = rustix::system::sysinfo();
    let bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
    let Some(shown) = ShownLimits::of(&plan.limits, processors.usable.clone(), bytes) else {
        return Ok(None);
    };
    let failed = || step("showing the limits in", "/sys");
    let made = TmpfsOptions::new(Some(BYTES), Some(INODES), 0o755)
        .with(|options| mount::new_filesystem(c"tmpfs", options, WRITABLE))
        .map_err(failed())?;
    let form = GroupForm::of(&read(own, Path::new("proc/self/cgroup")).map_err(failed())?);
    let of_proc = fill(&made, &shown, form, own, processors).map_err(failed())?;
    attach(root, &made, &of_proc).map_err(failed())?;
    Ok(Some(made))
}

/// Writes all files, and answers those that cover others.
fn fill(
    made: &OwnedFd,
    shown: &ShownLimits,
    form: GroupForm,
    own: BorrowedFd<'_>,
    processors: &ProcessorSet,
) -> io::Result<Vec<&'static str>> {
    let used = UsedAmounts::default();
    let mut of_proc = Vec::new();
    let groups = Path::new(GROUPS);
    for (name, text) in shown.group(form, &used) {
        write(made, &groups.join(name), &text)?;
    }
    if form == GroupForm::V1 {
        rustix::fs::symlinkat(LINK.0, made, LINK.1)?;
    }
    if let Some(text) = shown.meminfo(&used) {
        write(made, Path::new(MEMINFO), &text)?;
        of_proc.push(MEMINFO);
    }
    if processors.are_some_of_all {
        let cpus = processors.usable.as_slice();
        let files: [ShownFile; 2] = [
            (CPUINFO, cpuinfo_of(&read(own, Path::new(CPUINFO))?, cpus)),
            (STAT, stat_of(&read(own, Path::new(STAT))?, cpus)),
        ];
        for (name, text) in files {
            write(made, Path::new(name), &text)?;
            of_proc.push(name);
        }
        let list = format!("{}\n", cpu_list(cpus));
        for name in ["online", "possible", "present"] {
            write(made, &Path::new(CPUS).join(name), &list)?;
        }
        for cpu in cpus {
            rustix::fs::mkdirat(made, Path::new(CPUS).join(format!("cpu{cpu}")), Mode::from(0o755))?;
        }
    }
    Ok(of_proc)
}

/// Puts the files where programs look for them.
fn attach(root: &mut RootBuilder, made: &OwnedFd, of_proc: &[&str]) -> io::Result<()> {
    root.attach(made.as_fd(), TargetKind::Directory, Path::new(SYS))?;
    for name in of_proc {
        let tree = mount::clone_tree(made.as_fd(), Path::new(name))?;
        mount::restrict_tree(tree.as_fd(), NOTHING)?;
        mount::attach(tree.as_fd(), mount::open_below(root.mount(), Path::new(name))?.as_fd())?;
    }
    let tree = mount::clone_tree(made.as_fd(), Path::new(PART_OF_SYS))?;
    mount::restrict_tree(tree.as_fd(), NOTHING)?;
    mount::attach(tree.as_fd(), made.as_fd())
}

fn write(made: &OwnedFd, path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let create = || rustix::fs::openat(made, path, flags, Mode::from(0o644));
    let file = match create() {
        Err(rustix::io::Errno::NOENT) => {
            make_way(made, path.parent().unwrap_or(Path::new("")))?;
            create()?
        }
        created => created?,
    };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn make_way(made: &OwnedFd, directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    match rustix::fs::mkdirat(made, directory, Mode::from(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(rustix::io::Errno::NOENT) => {
            make_way(made, directory.parent().unwrap_or(Path::new("")))?;
            Ok(rustix::fs::mkdirat(made, directory, Mode::from(0o755))?)
        }
        Err(error) => Err(error.into()),
    }
}

/// A file of the new `/proc`, which is in the foundation.
fn read(own: BorrowedFd<'_>, path: &Path) -> io::Result<String> {
    let file = rustix::fs::openat(own, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(file), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use offleash_core::limits::Limits;
    use offleash_core::units::{Bytes, CpuCount};

    use super::*;

    fn filled(form: GroupForm, are_some_of_all: bool) -> (tempfile::TempDir, Vec<&'static str>) {
        let limits = Limits {
            memory: Some(Bytes::mib(100)),
            cpus: Some(CpuCount { millis: 1000 }),
            ..Limits::default()
        };
        let scratch = tempfile::tempdir().unwrap();
        let made = std::fs::File::open(scratch.path()).unwrap();
        let own = std::fs::File::open("/").unwrap();
        let shown = ShownLimits::of(&limits, vec![0], 1 << 40).unwrap();
        let processors = ProcessorSet {
            usable: vec![0],
            are_some_of_all,
        };
        let of_proc = fill(&made.into(), &shown, form, own.as_fd(), &processors).unwrap();
        (scratch, of_proc)
    }

    #[test]
    fn each_form_has_its_files_where_programs_look_for_them() {
        for (form, file, link) in [
            (GroupForm::V2, "memory.swap.max", false),
            (GroupForm::V2, "cgroup.controllers", false),
            (GroupForm::V1, "memory/memory.limit_in_bytes", true),
            (GroupForm::V1, "cpu,cpuacct/cpu.cfs_quota_us", true),
        ] {
            let (scratch, of_proc) = filled(form, false);
            let groups = scratch.path().join(GROUPS);
            assert!(groups.join(file).is_file(), "{file}");
            assert_eq!(groups.join("cpu,cpuacct").exists(), link);
            assert_eq!(
                std::fs::read_to_string(groups.join("memory.max")).unwrap(),
                "104857600\n"
            );
            assert_eq!(
                std::fs::read_to_string(groups.join("cpu.max")).unwrap(),
                "100000 100000\n"
            );
            assert_eq!(of_proc, [MEMINFO]);
            assert!(!scratch.path().join(CPUS).exists());
        }
    }

    #[test]
    fn processors_are_shown_where_they_are_not_all() {
        let (scratch, of_proc) = filled(GroupForm::V2, true);
        assert_eq!(of_proc, [MEMINFO, CPUINFO, STAT]);
        let cpus = scratch.path().join(CPUS);
        assert_eq!(std::fs::read_to_string(cpus.join("online")).unwrap(), "0\n");
        assert!(cpus.join("cpu0").is_dir());
        let stat = std::fs::read_to_string(scratch.path().join(STAT)).unwrap();
        assert_eq!(stat.lines().filter(|line| line.starts_with("cpu")).count(), 2, "{stat}");
    }
}
