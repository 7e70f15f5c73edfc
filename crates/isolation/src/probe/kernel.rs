//! The kernel itself: its version, and the calls that a sandbox is built with.

use std::io;

use offleash_sys::landlock;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, read_line};

/// The first kernel with all that level `process` needs: Landlock came last.
const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 13 };
/// The first with `mount_setattr`(2) and id-mapped mounts.
const IDMAPPED_MOUNTS: KernelVersion = KernelVersion { major: 5, minor: 12 };
/// The first with overlays in user namespaces.
pub(super) const OVERLAY_IN_USER_NAMESPACE: KernelVersion = KernelVersion { major: 5, minor: 11 };
/// The Landlock version that keeps signals and abstract sockets inside; what came before it is weaker.
const WHOLE_LANDLOCK_ABI: u32 = 6;

/// The two numbers of a kernel release that features came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelVersion {
    major: u32,
    minor: u32,
}

impl KernelVersion {
    /// The running kernel's; `None` if its release does not begin with two numbers.
    pub(super) fn running() -> Option<Self> {
        Self::parse(&release())
    }

    fn parse(release: &str) -> Option<Self> {
        let mut numbers = release
            .split(|character: char| !character.is_ascii_digit())
            .map(str::parse);
        Some(Self {
            major: numbers.next()?.ok()?,
            minor: numbers.next()?.ok()?,
        })
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The running kernel's release, as `uname -r` prints it.
pub(super) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub(super) fn version() -> FeatureCheck {
    let is_new_enough = KernelVersion::running().is_some_and(|running| running >= OLDEST);
    let status = if is_new_enough {
        FeatureStatus::Ok
    } else {
        FeatureStatus::Missing
    };
    let mend = FeatureRemedy::new(format!("Linux {OLDEST} or newer is needed"), &[]);
    FeatureCheck::new(
        "kernel",
        status,
        format!("Linux {}", release()),
        "every level of real processes",
    )
    .with_mend((!is_new_enough).then_some(mend))
}

/// The mount calls by descriptor, tried on the root directory, which needs no privilege.
pub(super) fn mount_calls() -> FeatureCheck {
    let tried = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC).map(drop);
    from_call(
        "mount-calls",
        "open_tree",
        tried,
        "level `process`: the sandbox's file system is assembled with them",
    )
}

pub(super) fn pidfd() -> FeatureCheck {
    let tried = pidfd_open(getpid(), PidfdFlags::empty()).map(drop);
    from_call(
        "pidfd",
        "pidfd_open",
        tried,
        "waiting for and killing exactly the processes that were started",
    )
}

/// A system call that was tried: it is there, the kernel does not know it, or something forbids it.
fn from_call(name: &'static str, call: &str, tried: Result<(), Errno>, needed_for: &'static str) -> FeatureCheck {
    match tried {
        Ok(()) => FeatureCheck::new(name, FeatureStatus::Ok, format!("`{call}` works"), needed_for),
        Err(error) => {
            let why = match error {
                Errno::NOSYS => "the kernel does not know it, or a container's seccomp filter hides it",
                _ => "a seccomp filter or a security module forbids it",
            };
            FeatureCheck::new(
                name,
                FeatureStatus::Missing,
                format!("`{call}` failed: {error}"),
                needed_for,
            )
            .with_mend(Some(FeatureRemedy::new(
                format!("{why}; use Linux {OLDEST} or newer, outside such a container"),
                &[],
            )))
        }
    }
}

/// Only the version tells: making such a mount needs privilege over the file system's superblock.
pub(super) fn idmapped_mounts() -> FeatureCheck {
    let is_there = KernelVersion::running().is_some_and(|running| running >= IDMAPPED_MOUNTS);
    let needed_for = "files that keep their owner when root runs a sandbox with other ids";
    if !is_there {
        let mend = FeatureRemedy::new(format!("Linux {IDMAPPED_MOUNTS} or newer has them"), &[]);
        let check = FeatureCheck::new(
            "idmapped-mounts",
            FeatureStatus::Missing,
            "not in this kernel",
            needed_for,
        );
        return check.with_mend(Some(mend));
    }
    if rustix::process::geteuid().is_root() {
        return FeatureCheck::new(
            "idmapped-mounts",
            FeatureStatus::Ok,
            "in this kernel, on the file systems that support them",
            needed_for,
        );
    }
    FeatureCheck::new(
        "idmapped-mounts",
        FeatureStatus::Limited,
        "in this kernel, but only root can make them",
        needed_for,
    )
}

/// What a seccomp filter may answer (seccomp(2), "/proc interfaces").
pub(super) fn seccomp() -> FeatureCheck {
    let actions = read_line("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    seccomp_from_actions(&actions)
}

fn seccomp_from_actions(actions: &str) -> FeatureCheck {
    let check = |status, found: &str| {
        FeatureCheck::new(
            "seccomp",
            status,
            found,
            "every level of real processes: it closes what a program never needs of the kernel",
        )
    };
    let offers = |action| actions.split_whitespace().any(|word| word == action);
    if !(offers("errno") && offers("kill_process")) {
        let mend = FeatureRemedy::new(
            "the kernel is built without CONFIG_SECCOMP_FILTER, or `/proc` is hidden",
            &[],
        );
        return check(FeatureStatus::Missing, "filters are not offered").with_mend(Some(mend));
    }
    if !offers("user_notif") {
        let mend = FeatureRemedy::new("Linux 5.0 or newer can ask a supervisor about a call", &[]);
        return check(FeatureStatus::Limited, "filters, without user notification").with_mend(Some(mend));
    }
    check(FeatureStatus::Ok, "filters with user notification")
}

pub(super) fn landlock() -> FeatureCheck {
    landlock_from_abi(landlock::abi())
}

fn landlock_from_abi(abi: io::Result<Option<u32>>) -> FeatureCheck {
    let check = |status, found: String| {
        FeatureCheck::new(
            "landlock",
            status,
            found,
            "a second wall behind the mounts; the only one of level `process-landlock`",
        )
    };
    let switch_on = || {
        FeatureRemedy::new(
            "Landlock is not built in or not switched on: see whether this prints `landlock`; if it does not, put \
             `landlock,` before the other names of the kernel's `lsm=` boot option",
            &["cat /sys/kernel/security/lsm"],
        )
    };
    match abi {
        Ok(Some(abi)) if abi >= WHOLE_LANDLOCK_ABI => check(FeatureStatus::Ok, format!("version {abi}")),
        Ok(Some(abi)) => {
            let mend = FeatureRemedy::new(
                "Linux 6.12 or newer also keeps signals and abstract sockets inside",
                &[],
            );
            check(
                FeatureStatus::Limited,
                format!("version {abi}, of {WHOLE_LANDLOCK_ABI} that are used"),
            )
            .with_mend(Some(mend))
        }
        Ok(None) => check(FeatureStatus::Missing, "not in this kernel".to_owned()).with_mend(Some(switch_on())),
        Err(error) => {
            check(FeatureStatus::Missing, format!("asking for it failed: {error}")).with_mend(Some(switch_on()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_any_distributions_release() {
        let cases = [
            ("6.18.44-generic", Some((6, 18))),
            ("5.13.0", Some((5, 13))),
            ("5.4.0-150-generic", Some((5, 4))),
            ("5.15.167.4-microsoft-standard-WSL2", Some((5, 15))),
            ("6.1+deb12", Some((6, 1))),
            ("", None),
            ("next", None),
        ];
        for (release, expected) in cases {
            let parsed = KernelVersion::parse(release).map(|version| (version.major, version.minor));
            assert_eq!(parsed, expected, "{release}");
        }
    }

    #[test]
    fn a_later_version_is_greater_also_when_its_second_number_has_more_digits() {
        let version = |release| KernelVersion::parse(release).unwrap();
        assert!(version("5.13") > version("5.4"));
        assert!(version("6.1") > version("5.13"));
    }

    #[test]
    fn seccomp_status_follows_the_actions_on_offer() {
        let cases = [
            (
                "kill_process kill_thread trap errno user_notif trace log allow",
                FeatureStatus::Ok,
            ),
            (
                "kill_process kill_thread trap errno trace log allow",
                FeatureStatus::Limited,
            ),
            ("kill_thread trap errno trace allow", FeatureStatus::Missing),
            ("", FeatureStatus::Missing),
        ];
        for (actions, expected) in cases {
            let check = seccomp_from_actions(actions);
            assert_eq!(
                (check.status, check.mend.is_some()),
                (expected, expected != FeatureStatus::Ok),
                "{actions}"
            );
        }
    }

    #[test]
    fn landlock_status_follows_the_version() {
        let cases = [
            (Ok(Some(7)), FeatureStatus::Ok),
            (Ok(Some(6)), FeatureStatus::Ok),
            (Ok(Some(1)), FeatureStatus::Limited),
            (Ok(None), FeatureStatus::Missing),
            (Err(io::ErrorKind::PermissionDenied.into()), FeatureStatus::Missing),
        ];
        for (abi, expected) in cases {
            let check = landlock_from_abi(abi);
            assert_eq!(
                (check.status, check.mend.is_some()),
                (expected, expected != FeatureStatus::Ok),
                "{check:?}"
            );
        }
    }

    #[test]
    fn a_call_that_fails_is_missing_and_says_why() {
        assert_eq!(from_call("a", "call", Ok(()), "x").status, FeatureStatus::Ok);
        for errno in [Errno::NOSYS, Errno::PERM] {
            let check = from_call("a", "call", Err(errno), "x");
            assert_eq!(check.status, FeatureStatus::Missing);
            assert!(check.mend.is_some());
        }
    }
}
