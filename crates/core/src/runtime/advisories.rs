//! Advisories of runtimes by which code came out of a container, and the versions that they are of.
//!
//! Only what code in a sandbox of ours could begin: none of its images' devices, hooks, consoles or `exec` calls reach a
//! runtime here, and `/dev` is always a new file system. So these are left out: crun's CVE-2026-88264 and CVE-2026-88265 (an
//! image's `/dev`), CVE-2022-27650 (capabilities of `exec`); gVisor's CVE-2026-96812 (devices that are passed through);
//! runc's CVE-2026-41579 (an image's `/dev`). A distribution may have mended a version without another number.

use super::RuntimeKind;

/// What is known of some versions of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeAdvisory {
    kind: RuntimeKind,
    /// Its names in public databases.
    pub ids: &'static [&'static str],
    /// Where it is described.
    pub source: &'static str,
    /// The first version of each line of releases that is mended, oldest first; older lines are not.
    mended: &'static [&'static str],
}

/// All of them.
const ADVISORIES: &[RuntimeAdvisory] = &[
    RuntimeAdvisory {
        kind: RuntimeKind::Runc,
        ids: &["CVE-2024-21626"],
        source: "https://github.com/opencontainers/runc/security/advisories/GHSA-xr7r-f8xq-vfvv",
        mended: &["1.1.12"],
    },
    RuntimeAdvisory {
        kind: RuntimeKind::Runc,
        ids: &["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"],
        source: "https://github.com/opencontainers/runc/security/advisories/GHSA-9493-h29p-rfm2",
        mended: &["1.2.8", "1.3.3", "1.4.0-rc.3"],
    },
    RuntimeAdvisory {
        kind: RuntimeKind::Crun,
        ids: &["CVE-2019-18837"],
        source: "https://github.com/advisories/GHSA-992m-xc3g-r7rj",
        mended: &["0.10.5"],
    },
    RuntimeAdvisory {
        kind: RuntimeKind::Youki,
        ids: &["CVE-2025-62161", "CVE-2025-62596"],
        source: "https://github.com/youki-dev/youki/security/advisories/GHSA-4g74-7cff-xcv8",
        mended: &["0.5.7"],
    },
];

impl RuntimeAdvisory {
    /// Those of a version as the runtime tells it; none where it cannot be read.
    pub fn of(kind: RuntimeKind, version: &str) -> impl Iterator<Item = &'static RuntimeAdvisory> + use<> {
        let version = ReleaseNumber::parse(version);
        ADVISORIES
            .iter()
            .filter(move |one| one.kind == kind && version.is_some_and(|version| one.concerns(version)))
    }

    fn concerns(&self, version: ReleaseNumber) -> bool {
        let mended = self.mended.iter().filter_map(|text| ReleaseNumber::parse(text));
        let Some(newest) = mended.clone().next_back() else {
            return true;
        };
        let is_mended = |first: ReleaseNumber| first.line() == version.line() && version >= first;
        version.line() <= newest.line() && !mended.into_iter().any(is_mended)
    }
}

/// What a version is compared by: three numbers, and which candidate of the release it is, if it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReleaseNumber {
    numbers: [u32; 3],
    candidate: u32,
}

impl ReleaseNumber {
    /// Of `1.1.5+ds1`, `1.4.0-rc.2`, `1.20`.
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let (numbers, rest) = text.split_at(end.unwrap_or(text.len()));
        let mut parts = numbers.split('.');
        let first = parts.next()?.parse().ok()?;
        let mut next = || parts.next().map_or(Some(0), |part| part.parse().ok());
        let numbers = [first, next()?, next()?];
        let candidate = rest.strip_prefix("-rc").map(|rest| rest.trim_start_matches('.'));
        let candidate = candidate.map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next());
        let candidate = candidate
            .flatten()
            .map_or(u32::MAX, |number| number.parse().unwrap_or(0));
        Some(Self { numbers, candidate })
    }

    fn line(self) -> (u32, u32) {
        (self.numbers[0], self.numbers[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_the_advisories_that_its_line_of_releases_was_not_mended_of() {
        for (kind, version, count) in [
            (RuntimeKind::Runc, "1.1.5+ds1", 4),
            (RuntimeKind::Runc, "1.0.0-rc93", 4),
            (RuntimeKind::Runc, "1.1.12", 3),
            (RuntimeKind::Runc, "1.2.7", 3),
            (RuntimeKind::Runc, "1.2.8", 0),
            (RuntimeKind::Runc, "1.3.2", 3),
            (RuntimeKind::Runc, "1.3.3", 0),
            (RuntimeKind::Runc, "1.4.0-rc.2", 3),
            (RuntimeKind::Runc, "1.4.0-rc.3", 0),
            (RuntimeKind::Runc, "1.4.0", 0),
            (RuntimeKind::Runc, "1.5.0", 0),
            (RuntimeKind::Crun, "0.10.4", 1),
            (RuntimeKind::Crun, "0.10.5", 0),
            (RuntimeKind::Crun, "1.8.1", 0),
            (RuntimeKind::Youki, "0.5.6", 2),
            (RuntimeKind::Youki, "0.6.0", 0),
            (RuntimeKind::Runsc, "0.0~20240729.0", 0),
            (RuntimeKind::Runc, "unknown", 0),
            (RuntimeKind::Runc, "", 0),
        ] {
            let ids: usize = RuntimeAdvisory::of(kind, version).map(|one| one.ids.len()).sum();
            assert_eq!(ids, count, "{kind} {version}");
        }
    }

    #[test]
    fn every_advisory_names_versions_in_order() {
        for advisory in ADVISORIES {
            let mended: Vec<_> = advisory.mended.iter().map(|text| ReleaseNumber::parse(text)).collect();
            assert!(mended.iter().all(Option::is_some) && mended.is_sorted(), "{advisory:?}");
            assert!(!mended.is_empty() && !advisory.ids.is_empty(), "{advisory:?}");
        }
    }
}
