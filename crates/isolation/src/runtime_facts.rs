//! What is found out about a runtime by starting it: its version, what is known of that, and gVisor's platform.

use std::io;
use std::path::Path;
use std::time::Duration;

use offleash_core::runtime::{RuntimeAdvisory, RuntimeFacts, RuntimeKind, RuntimePlatform};
use offleash_core::text::one_line;
use offleash_sys::process::{ask_helper, try_helper};

/// How long a runtime may take to tell its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to run a program that does nothing.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of an answer is read, bytes.
const MAX_ANSWER: usize = 4096;
/// The longest version that is told, bytes.
const MAX_VERSION: usize = 64;

/// Finds out all of it; with gVisor it takes half a second. `scratch` is a directory that does not exist, which it may
/// make and remove.
pub fn find_out(kind: RuntimeKind, program: &Path, scratch: &Path) -> RuntimeFacts {
    RuntimeFacts {
        version: version(program),
        platform: (kind == RuntimeKind::Runsc)
            .then(|| platform(program, scratch))
            .flatten(),
    }
}

/// What the runtime says of its version; `None` where it says nothing.
pub fn version(program: &Path) -> Option<String> {
    let program = program.to_str()?;
    let (succeeded, answer) = ask_helper(program, &["--version"], b"", MAX_ANSWER, VERSION_TIMEOUT).ok()?;
    succeeded
        .then(|| version_in(&String::from_utf8_lossy(&answer)))
        .flatten()
}

/// `crun version 1.8.1`, `youki version: 0.5.7`, `kata-runtime  : 3.2.0`: the last word of the first line.
fn version_in(answer: &str) -> Option<String> {
    let word = answer.lines().next()?.split_whitespace().next_back()?;
    let has_number = word.bytes().any(|byte| byte.is_ascii_digit());
    (has_number && word.len() <= MAX_VERSION).then(|| one_line(word.as_bytes()).into_owned())
}

/// Why a version is better not used; `None` if nothing is known against it.
pub fn advised_against(kind: RuntimeKind, version: &str) -> Option<String> {
    let ids: Vec<&str> = RuntimeAdvisory::of(kind, version)
        .flat_map(|one| one.ids)
        .copied()
        .collect();
    (!ids.is_empty()).then(|| {
        format!(
            "{kind} {version} has known ways out ({}) unless its distribution has mended it",
            ids.join(", ")
        )
    })
}

/// The best platform on which gVisor runs a program that does nothing.
fn platform(program: &Path, scratch: &Path) -> Option<RuntimePlatform> {
    let mut all = RuntimePlatform::ALL.into_iter();
    all.find(|platform| runs_on(program, *platform, scratch).unwrap_or(false))
}

fn runs_on(program: &Path, platform: RuntimePlatform, scratch: &Path) -> io::Result<bool> {
    let (Some(program), Some(root)) = (program.to_str(), scratch.to_str()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    std::fs::create_dir(scratch)?;
    let platform = format!("--platform={}", platform.name());
    let words = [
        "--root",
        root,
        "--rootless",
        "--ignore-cgroups",
        "--network=none",
        &platform,
        "do",
        "/bin/true",
    ];
    let ran = try_helper(program, &words, PROBE_TIMEOUT);
    let removed = std::fs::remove_dir_all(scratch);
    ran.and_then(|ran| removed.map(|()| ran))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_last_word_of_the_first_line() {
        for (answer, version) in [
            (
                "runsc version release-20240729.0\nspec: 1.1.0-rc.1\n",
                Some("release-20240729.0"),
            ),
            ("runc version 1.1.5+ds1\ncommit: 1\n", Some("1.1.5+ds1")),
            ("youki version: 0.5.7\n", Some("0.5.7")),
            ("kata-runtime  : 3.2.0\n", Some("3.2.0")),
            ("no version\n", None),
            ("", None),
        ] {
            assert_eq!(version_in(answer).as_deref(), version, "{answer}");
        }
        assert_eq!(version_in(&"1".repeat(MAX_VERSION + 1)), None);
    }

    #[test]
    fn a_version_with_known_ways_out_is_advised_against_by_their_names() {
        let told = advised_against(RuntimeKind::Runc, "1.1.5+ds1").unwrap();
        assert!(
            told.contains("CVE-2024-21626") && told.contains("CVE-2025-31133"),
            "{told}"
        );
        assert_eq!(advised_against(RuntimeKind::Runc, "1.3.3"), None);
    }

    #[test]
    fn a_program_that_is_no_runtime_tells_nothing_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let facts = find_out(
            RuntimeKind::Runsc,
            Path::new("/bin/false"),
            &place.path().join("scratch"),
        );
        assert_eq!(facts, RuntimeFacts::default());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
