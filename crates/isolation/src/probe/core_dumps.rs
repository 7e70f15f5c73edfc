//! Core dumps: whether those of a sandbox can reach a handler of the host.

use offleash_sys::rlimit::{self, LimitedResource};

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, read_line};

/// Where the kernel sends core dumps, and whether a limit of ours keeps it from doing so.
pub(super) fn check() -> FeatureCheck {
    let pattern = read_line("/proc/sys/kernel/core_pattern");
    let (_, hard) = rlimit::current(LimitedResource::Core);
    from_findings(pattern.as_deref(), hard)
}

/// A program that the pattern pipes to is not started under a soft limit of exactly 1, which a hard limit of 0 forbids
/// to set; a socket (Linux 6.16) is connected to whatever the limit (`fs/coredump.c`).
fn from_findings(pattern: Option<&str>, hard: Option<u64>) -> FeatureCheck {
    let check = |status, found: &str| {
        FeatureCheck::new(
            "core-dumps",
            status,
            found,
            "keeping the memory of crashed programs from a handler that runs as root",
        )
    };
    match (pattern.and_then(|pattern| pattern.chars().next()), hard) {
        (Some('@'), _) => {
            let mend = FeatureRemedy::new(
                "no limit keeps the kernel from connecting to it; a program that is piped to is not started for sandboxes:",
                &["sysctl kernel.core_pattern"],
            );
            check(
                FeatureStatus::Limited,
                "the kernel sends them to a socket, those of sandboxes too",
            )
            .with_mend(Some(mend))
        }
        (Some('|'), Some(0)) => {
            let mend = FeatureRemedy::new(
                "with a hard limit of 0 the program is started all the same, with 1 it is not; in a unit of systemd \
                 that is `LimitCORE=1`, in a shell of root:",
                &["ulimit -Hc 1"],
            );
            let found = "the kernel pipes them to a program, and the hard limit of 0 does not keep it from that";
            check(FeatureStatus::Limited, found).with_mend(Some(mend))
        }
        (Some('|'), _) => check(
            FeatureStatus::Ok,
            "the kernel pipes them to a program, but not those of sandboxes",
        ),
        (Some(_), _) => check(
            FeatureStatus::Ok,
            "the kernel writes them to files, but not those of sandboxes",
        ),
        (None, _) => check(FeatureStatus::Ok, "the kernel makes none, or does not say"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_handler_that_no_limit_holds_back_is_a_weakness() {
        for (pattern, hard, expected) in [
            (Some("core"), Some(0), FeatureStatus::Ok),
            (Some("/var/cores/%e"), None, FeatureStatus::Ok),
            (Some("|/usr/lib/systemd/systemd-coredump %P"), None, FeatureStatus::Ok),
            (
                Some("|/usr/lib/systemd/systemd-coredump %P"),
                Some(1),
                FeatureStatus::Ok,
            ),
            (
                Some("|/usr/lib/systemd/systemd-coredump %P"),
                Some(0),
                FeatureStatus::Limited,
            ),
            (Some("@/run/coredump.socket"), None, FeatureStatus::Limited),
            (Some("@@/run/coredump.socket"), Some(1), FeatureStatus::Limited),
            (None, Some(0), FeatureStatus::Ok),
            (Some(""), Some(0), FeatureStatus::Ok),
        ] {
            let check = from_findings(pattern, hard);
            assert_eq!(check.status, expected, "{pattern:?} {hard:?}");
            assert_eq!(check.mend.is_some(), expected == FeatureStatus::Limited, "{pattern:?}");
        }
    }
}
