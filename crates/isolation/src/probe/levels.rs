//! Which levels the findings add up to.

use offleash_core::level::Level;

use super::{FeatureCheck, FeatureStatus, LevelReport};

/// What level `process` cannot be without, unless degrading is allowed.
pub(super) const PROCESS: [&str; 6] = [
    "kernel",
    "user-namespaces",
    "namespace-limits",
    "mount-calls",
    "seccomp",
    "landlock",
];
/// What level `container` cannot be without.
const CONTAINER: [&str; 6] = [
    "kernel",
    "user-namespaces",
    "namespace-limits",
    "mount-calls",
    "seccomp",
    "container-runtimes",
];
/// What level `microvm` cannot be without.
const MICROVM: [&str; 7] = [
    "kernel",
    "user-namespaces",
    "namespace-limits",
    "mount-calls",
    "seccomp",
    "hypervisors",
    "guest-kernel",
];
/// What level `simulated` cannot be without.
const SIMULATED: [&str; 2] = ["kernel", "seccomp"];
/// What level `process-landlock` cannot be without.
const PROCESS_LANDLOCK: [&str; 3] = ["kernel", "landlock", "seccomp"];

/// All levels, weakest first.
pub(super) fn from_checks(checks: &[FeatureCheck]) -> Vec<LevelReport> {
    Level::ALL.map(|level| of_level(level, checks)).to_vec()
}

fn of_level(level: Level, checks: &[FeatureCheck]) -> LevelReport {
    match level {
        // It is no level of processes, and is not among those that are asked about.
        Level::Simulated | Level::Wasm => from_needs(level, &SIMULATED, checks),
        Level::ProcessLandlock => weaker(from_needs(level, &PROCESS_LANDLOCK, checks), checks),
        Level::Process => from_needs(level, &PROCESS, checks),
        Level::Container => from_needs(level, &CONTAINER, checks),
        Level::Microvm => emulated(from_needs(level, &MICROVM, checks), checks),
    }
}

/// An old Landlock holds this level only in part, and then it runs only where degrading is allowed.
fn weaker(report: LevelReport, checks: &[FeatureCheck]) -> LevelReport {
    let limited = checks
        .iter()
        .any(|check| check.name == "landlock" && check.status == FeatureStatus::Limited);
    if report.available && limited {
        let why =
            "the kernel's Landlock is too old to hold it alone; `--degrade allow` runs it and reports that".to_owned();
        return LevelReport {
            available: false,
            why,
            lacks: vec!["landlock"],
            ..report
        };
    }
    report
}

/// Machines are emulated unless KVM is asked for, which is for whoever asks for this level to know.
fn emulated(report: LevelReport, checks: &[FeatureCheck]) -> LevelReport {
    let kvm = checks.iter().find(|check| check.name == "kvm");
    let kvm = kvm.map_or_else(String::new, |check| format!("; {}", check.found));
    let emulation = match report.available {
        true => format!("; its instructions are emulated (TCG){kvm}"),
        false => String::new(),
    };
    LevelReport {
        why: format!("{}{emulation}", report.why),
        ..report
    }
}

fn from_needs(level: Level, needs: &[&'static str], checks: &[FeatureCheck]) -> LevelReport {
    let is_missing = |need: &&'static str| {
        !checks
            .iter()
            .any(|check| check.name == *need && check.status != FeatureStatus::Missing)
    };
    let missing: Vec<_> = needs.iter().copied().filter(is_missing).collect();
    let why = if missing.is_empty() {
        format!("has {}", needs.join(", "))
    } else {
        format!("lacks {}", missing.join(", "))
    };
    LevelReport {
        level,
        available: missing.is_empty(),
        why,
        lacks: missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(missing: &[&'static str]) -> Vec<FeatureCheck> {
        let names = [
            "kernel",
            "user-namespaces",
            "namespace-limits",
            "mount-calls",
            "seccomp",
            "landlock",
            "container-runtimes",
            "hypervisors",
            "guest-kernel",
        ];
        let status = |name| {
            if missing.contains(&name) {
                FeatureStatus::Missing
            } else {
                FeatureStatus::Ok
            }
        };
        names
            .map(|name| FeatureCheck::new(name, status(name), "/usr/bin/crun", "a test"))
            .to_vec()
    }

    fn available(missing: &[&'static str]) -> Vec<Level> {
        from_checks(&checks(missing))
            .into_iter()
            .filter(|report| report.available)
            .map(|report| report.level)
            .collect()
    }

    #[test]
    fn a_level_is_available_when_nothing_it_needs_is_missing() {
        assert_eq!(available(&[]), Level::ALL);
        assert_eq!(
            available(&["container-runtimes"]),
            [Level::ProcessLandlock, Level::Process, Level::Microvm]
        );
        assert_eq!(available(&["guest-kernel"]), Level::ALL[..3]);
        assert_eq!(available(&["hypervisors"]), Level::ALL[..3]);
        assert_eq!(available(&["user-namespaces"]), [Level::ProcessLandlock]);
        assert_eq!(available(&["namespace-limits"]), [Level::ProcessLandlock]);
        assert_eq!(available(&["landlock"]), [Level::Container, Level::Microvm]);
        assert_eq!(available(&["seccomp"]), []);
    }

    #[test]
    fn an_old_landlock_is_a_second_wall_and_no_first_one() {
        let mut checks = checks(&[]);
        for check in checks.iter_mut().filter(|check| check.name == "landlock") {
            check.status = FeatureStatus::Limited;
        }
        let reports = from_checks(&checks);
        assert_eq!([reports[0].available, reports[1].available], [false, true]);
        assert!(reports[0].why.contains("--degrade allow"), "{}", reports[0].why);
        assert_eq!(reports[0].lacks, ["landlock"]);
    }

    #[test]
    fn a_level_says_what_it_lacks_and_whether_it_is_emulated() {
        let reports = from_checks(&checks(&["user-namespaces", "mount-calls"]));
        assert_eq!(reports[1].why, "lacks user-namespaces, mount-calls");
        assert_eq!(reports[1].lacks, ["user-namespaces", "mount-calls"]);
        assert_eq!(reports[3].why, "lacks user-namespaces, mount-calls");
        let whole = from_checks(&checks(&[]));
        assert!(whole[3].why.ends_with("emulated (TCG)"), "{}", whole[3].why);
    }
}
