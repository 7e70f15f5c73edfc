//! Whether the limits of a user namespace can be set, which is done by files of `/proc/sys`.

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus};

/// What a sandbox writes before it starts.
const FILE: &str = "/proc/sys/user/max_inotify_instances";

/// Looks at how the file system is mounted: a container mounts `/proc/sys` read-only, and namespaces inside have it so, too.
pub(super) fn check() -> FeatureCheck {
    judged(statvfs(FILE).map(|found| found.f_flag))
}

fn judged(mounted: Result<StatVfsMountFlags, Errno>) -> FeatureCheck {
    let check = |status, found: &str| {
        FeatureCheck::new(
            "namespace-limits",
            status,
            found,
            "level `process`: a sandbox leaves inotify instances to the host",
        )
    };
    match mounted {
        Ok(flags) if flags.contains(StatVfsMountFlags::RDONLY) => {
            let explanation = "the container around this process mounts `/proc/sys` read-only; where it is started, that can be left out, which \
                               opens that container's walls and leaves offleash's inside it";
            let commands = ["docker run --security-opt systempaths=unconfined …"];
            check(FeatureStatus::Missing, "`/proc/sys` is mounted read-only")
                .with_mend(Some(FeatureRemedy::new(explanation, &commands)))
        }
        Ok(_) => check(FeatureStatus::Ok, "can be set"),
        // Before Linux 4.13, or without inotify: nothing is counted for a namespace.
        Err(_) => check(FeatureStatus::Ok, "this kernel has none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_file_system_lets_nobody_set_them_and_a_kernel_without_them_needs_none() {
        let read_only = judged(Ok(StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID));
        assert_eq!(read_only.status, FeatureStatus::Missing);
        assert!(read_only.mend.unwrap().commands[0].contains("systempaths"));
        assert_eq!(judged(Ok(StatVfsMountFlags::NOSUID)).status, FeatureStatus::Ok);
        assert_eq!(judged(Err(Errno::NOENT)).status, FeatureStatus::Ok);
    }
}
