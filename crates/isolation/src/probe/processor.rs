//! The processor: what two programs on it may learn of each other.

use std::fs;

use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{CoreSchedulingScope, core_scheduling_cookie};

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, read_line};

const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";

/// Sibling threads of one core, and whether the kernel can keep strangers off them (`PR_SCHED_CORE`).
pub(super) fn smt() -> FeatureCheck {
    let is_active = read_line("/sys/devices/system/cpu/smt/active").map(|text| text == "1");
    let cookie = core_scheduling_cookie(getpid(), CoreSchedulingScope::Thread).map(drop);
    smt_from_findings(is_active, cookie)
}

fn smt_from_findings(is_active: Option<bool>, cookie: Result<(), Errno>) -> FeatureCheck {
    let check = |status, found: &str| {
        FeatureCheck::new(
            "smt",
            status,
            found,
            "keeping the code of a sandbox off the sibling thread of other programs",
        )
    };
    match (is_active, cookie) {
        (Some(false), _) => check(FeatureStatus::Ok, "no two threads share a core"),
        (_, Ok(())) => check(
            FeatureStatus::Ok,
            "threads share cores, and the kernel can schedule by core",
        ),
        (None, Err(_)) => check(
            FeatureStatus::Limited,
            "the kernel does not say whether threads share cores",
        ),
        (Some(true), Err(error)) => {
            let mend = FeatureRemedy::new(
                "the kernel is built without CONFIG_SCHED_CORE; this switches sibling threads off until the next start",
                &["echo off | sudo tee /sys/devices/system/cpu/smt/control"],
            );
            let found = format!("threads share cores, and scheduling by core failed: {error}");
            check(FeatureStatus::Limited, &found).with_mend(Some(mend))
        }
    }
}

/// What the kernel says about the processor's known weaknesses.
pub(super) fn vulnerabilities() -> FeatureCheck {
    let files = fs::read_dir(VULNERABILITIES).into_iter().flatten().flatten();
    let mut states: Vec<_> = files
        .filter_map(|file| {
            Some((
                file.file_name().into_string().ok()?,
                fs::read_to_string(file.path()).ok()?,
            ))
        })
        .collect();
    states.sort();
    from_states(&states)
}

fn from_states(states: &[(String, String)]) -> FeatureCheck {
    let check = |status, found: String| {
        FeatureCheck::new(
            "processor-vulnerabilities",
            status,
            found,
            "keeping secrets of the host from code that measures the processor",
        )
    };
    let open: Vec<_> = states
        .iter()
        .filter(|(_, state)| is_open(state))
        .map(|(name, _)| name.as_str())
        .collect();
    if states.is_empty() {
        return check(FeatureStatus::Limited, "the kernel does not say".to_owned());
    }
    if open.is_empty() {
        return check(FeatureStatus::Ok, format!("{} known, none open", states.len()));
    }
    let mend = FeatureRemedy::new(
        "these need newer microcode or a newer kernel, or the boot option `mitigations=auto` where it is `off`; the \
         details:",
        &["grep -r . /sys/devices/system/cpu/vulnerabilities"],
    );
    check(
        FeatureStatus::Limited,
        format!("{} known, open: {}", states.len(), open.join(", ")),
    )
    .with_mend(Some(mend))
}

/// The kernel writes `Not affected`, `Mitigation: …`, `Vulnerable…` or, for KVM, `KVM: Vulnerable`.
fn is_open(state: &str) -> bool {
    state.trim_start_matches("KVM: ").starts_with("Vulnerable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smt_is_limited_only_where_siblings_exist_and_cannot_be_kept_apart() {
        let cases = [
            (Some(false), Err(Errno::NODEV), FeatureStatus::Ok),
            (Some(true), Ok(()), FeatureStatus::Ok),
            (Some(true), Err(Errno::INVAL), FeatureStatus::Limited),
            (None, Err(Errno::INVAL), FeatureStatus::Limited),
        ];
        for (is_active, cookie, expected) in cases {
            assert_eq!(
                smt_from_findings(is_active, cookie).status,
                expected,
                "{is_active:?} {cookie:?}"
            );
        }
    }

    #[test]
    fn open_vulnerabilities_are_named_and_mitigated_ones_are_not() {
        let state = |name: &str, state: &str| (name.to_owned(), state.to_owned());
        let check = from_states(&[
            state("itlb_multihit", "KVM: Vulnerable\n"),
            state("meltdown", "Not affected\n"),
            state("mds", "Vulnerable: Clear CPU buffers attempted, no microcode\n"),
            state(
                "spectre_v2",
                "Mitigation: Retpolines; STIBP: disabled; BHI: Vulnerable\n",
            ),
        ]);
        assert_eq!(check.found, "4 known, open: itlb_multihit, mds");
        assert_eq!(
            from_states(&[state("meltdown", "Not affected\n")]).status,
            FeatureStatus::Ok
        );
        assert_eq!(from_states(&[]).status, FeatureStatus::Limited);
    }
}
