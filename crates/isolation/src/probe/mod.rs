//! What this machine offers: each feature tried, or read from the kernel's own files, never assumed.
//!
//! `doctor` shows the [`ProbeReport`]; nothing is changed on the machine. Nothing but runtimes of containers is started, which
//! are asked for their version, and nothing else takes longer than a few milliseconds.
//! Deliberately not here: what to do with the answer (levels are chosen in `supervisor`) and how it looks (`cli`).

mod apparmor;
mod cgroups;
mod core_dumps;
mod host;
mod kernel;
mod levels;
mod mounts;
mod namespace_limits;
mod network;
mod processor;
mod programs;
mod state;
mod subordinate_ids;
mod user_namespaces;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::text::one_line;

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ProbeReport {
    /// One entry for each feature, most important first.
    pub checks: Vec<FeatureCheck>,
    /// One entry for each level, weakest first.
    pub levels: Vec<LevelReport>,
}

/// One feature of the machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FeatureCheck {
    /// Its name, lower case with hyphens; stable, for scripts.
    pub name: &'static str,
    /// Whether it is there.
    pub status: FeatureStatus,
    /// What was found, in words.
    pub found: String,
    /// What does not work without it.
    pub needed_for: &'static str,
    /// What to do when it is not there or not whole.
    pub mend: Option<FeatureRemedy>,
}

/// Whether a feature is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureStatus {
    /// Yes.
    Ok,
    /// Partly, or in a weaker form.
    Limited,
    /// No.
    Missing,
}

/// What makes a missing feature available.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FeatureRemedy {
    /// Why it is missing and what the commands do.
    pub explanation: String,
    /// To be typed as they are, in this order; empty when no command can help.
    pub commands: Vec<String>,
}

/// Whether a level can be used.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LevelReport {
    /// Which one.
    pub level: Level,
    /// Whether it can be used here.
    pub available: bool,
    /// What it stands on, or what it lacks.
    pub why: String,
    /// The checks that fail it, by name; their remedies are what mends it.
    #[serde(skip)]
    pub lacks: Vec<&'static str>,
}

/// Whose machine is probed: what the answers depend on besides the machine itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSubject {
    /// The program that makes sandboxes; security profiles name it by its path.
    pub executable: PathBuf,
    /// Where runs are kept; need not exist yet.
    pub state_directory: PathBuf,
    /// Where programs are looked for, separated as in `PATH`.
    pub search_path: OsString,
}

impl ProbeSubject {
    /// This process, its program and its `PATH`.
    ///
    /// # Errors
    /// When `/proc` is missing, so that the program's path is unknown.
    pub fn this_process(state_directory: PathBuf) -> io::Result<Self> {
        let search_path = std::env::var_os("PATH").unwrap_or_default();
        Ok(Self {
            executable: std::env::current_exe()?,
            state_directory,
            search_path,
        })
    }
}

impl ProbeReport {
    /// The check of that name.
    pub fn check(&self, name: &str) -> Option<&FeatureCheck> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// What mends a level that cannot be used, by the name of the check that fails it.
    pub fn remedies(&self, level: Level) -> Vec<(&'static str, &FeatureRemedy)> {
        let report = self.levels.iter().find(|report| report.level == level);
        let lacking = report.into_iter().flat_map(|report| &report.lacks);
        let failing = lacking.filter_map(|name| self.check(name));
        failing
            .filter_map(|check| Some((check.name, check.mend.as_ref()?)))
            .collect()
    }

    /// Whether that level can be used.
    pub fn is_available(&self, level: Level) -> bool {
        self.levels
            .iter()
            .any(|report| report.level == level && report.available)
    }
}

impl FeatureCheck {
    fn new(name: &'static str, status: FeatureStatus, found: impl Into<String>, needed_for: &'static str) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            needed_for,
            mend: None,
        }
    }

    fn with_mend(mut self, mend: Option<FeatureRemedy>) -> Self {
        self.mend = mend;
        self
    }
}

impl FeatureRemedy {
    fn new(explanation: impl Into<String>, commands: &[&str]) -> Self {
        Self {
            explanation: explanation.into(),
            commands: commands.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Whether limits on memory, processes and CPUs hold for sandboxes as a whole; a part of [`probe`], for who wants no more.
pub fn groups() -> FeatureCheck {
    cgroups::check()
}

/// Whether sandboxes of level `process` and above can be made at all; a part of [`probe`], for who wants no more.
pub fn namespaces(executable: &Path) -> FeatureCheck {
    user_namespaces::check(executable, &host::HostSurroundings::now())
}

/// Probes the machine for `subject`.
///
/// Never fails: a feature that cannot be looked at is missing, and its check says what the kernel answered.
pub fn probe(subject: &ProbeSubject) -> ProbeReport {
    let surroundings = host::HostSurroundings::now();
    let checks = vec![
        kernel::version(),
        user_namespaces::check(&subject.executable, &surroundings),
        namespace_limits::check(),
        kernel::mount_calls(),
        kernel::seccomp(),
        kernel::landlock(),
        mounts::overlay(),
        kernel::idmapped_mounts(),
        kernel::pidfd(),
        cgroups::check(),
        subordinate_ids::check(&subject.search_path),
        state::check(&subject.state_directory),
        processor::smt(),
        processor::vulnerabilities(),
        core_dumps::check(),
        network::check(),
        host::kvm(&subject.state_directory),
        programs::container_runtimes(&subject.search_path),
        programs::hypervisors(&subject.search_path),
        programs::guest_kernel(&subject.state_directory),
        surroundings.check(),
    ];
    let levels = levels::from_checks(&checks);
    ProbeReport { checks, levels }
}

/// A path in a message, which must not drive the terminal that shows it.
fn shown(path: &Path) -> Cow<'_, str> {
    one_line(path.as_os_str().as_bytes())
}

/// The text of a kernel file without its line break; `None` if it does not exist or cannot be read.
fn read_line(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn report() -> ProbeReport {
        probe(&ProbeSubject::this_process(std::env::temp_dir().join("offleash-probe-does-not-exist")).unwrap())
    }

    #[test]
    fn every_check_has_its_own_name_and_says_what_it_found() {
        let report = report();
        let names: HashSet<_> = report.checks.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), report.checks.len());
        for check in &report.checks {
            assert!(!check.found.is_empty() && !check.needed_for.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn what_makes_the_default_level_unavailable_comes_with_a_mend() {
        let report = report();
        assert_eq!(
            report.levels.iter().map(|level| level.level).collect::<Vec<_>>(),
            Level::ALL
        );
        for check in report
            .checks
            .iter()
            .filter(|check| levels::PROCESS.contains(&check.name))
        {
            assert!(
                check.status != FeatureStatus::Missing || check.mend.is_some(),
                "{check:?}"
            );
        }
    }

    #[test]
    fn probing_writes_nothing_to_the_state_directory() {
        let state = tempfile::tempdir().unwrap();
        probe(&ProbeSubject::this_process(state.path().to_path_buf()).unwrap());
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    /// In a process of its own, because the other tests have children, too.
    #[test]
    fn probing_leaves_no_child() {
        const ALONE: &str = "OFFLEASH_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            let state = tempfile::tempdir().unwrap();
            probe(&ProbeSubject::this_process(state.path().to_path_buf()).unwrap());
            let left = rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG);
            assert_eq!(left.err(), Some(rustix::io::Errno::CHILD), "a child is left");
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the test runs itself")]
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "probe::tests::probing_leaves_no_child"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
        assert!(String::from_utf8_lossy(&alone.stdout).contains("1 passed"));
    }
}
