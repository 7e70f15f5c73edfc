//! User namespaces, which everything at the `process` level stands on, and who forbids them.

use std::io;
use std::path::Path;

use offleash_sys::namespaces;

use super::host::HostSurroundings;
use super::{FeatureCheck, FeatureRemedy, FeatureStatus, apparmor, read_line};

/// Makes all namespaces of a sandbox once, and finds out who is in the way if that fails.
pub(super) fn check(executable: &Path, surroundings: &HostSurroundings) -> FeatureCheck {
    let check = |status, found: String| {
        FeatureCheck::new(
            "user-namespaces",
            status,
            found,
            "level `process`: without them `process-landlock`, `simulated` and `wasm` are left",
        )
    };
    match namespaces::try_create() {
        Ok(()) => check(FeatureStatus::Ok, "all namespaces of a sandbox were made".to_owned()),
        Err(error) => {
            let obstacle = NamespaceObstacle::find(surroundings);
            let found = format!("making the namespaces of a sandbox failed: {error}");
            check(FeatureStatus::Missing, found).with_mend(Some(obstacle.mend(&error, executable)))
        }
    }
}

/// Who forbids user namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespaceObstacle {
    /// Debian's old switch.
    Clone,
    /// The count that is allowed is zero.
    Count,
    /// Ubuntu's rule.
    AppArmor,
    /// The container around us.
    Container,
    /// Something that leaves no trace that we know.
    Unknown,
}

impl NamespaceObstacle {
    fn find(surroundings: &HostSurroundings) -> Self {
        let is_zero = |path| read_line(path).is_some_and(|value| value == "0");
        if is_zero("/proc/sys/kernel/unprivileged_userns_clone") {
            Self::Clone
        } else if is_zero("/proc/sys/user/max_user_namespaces") {
            Self::Count
        } else if surroundings.container.is_some() {
            Self::Container
        } else if apparmor::restricts_user_namespaces() {
            Self::AppArmor
        } else {
            Self::Unknown
        }
    }

    fn mend(self, error: &io::Error, executable: &Path) -> FeatureRemedy {
        match self {
            Self::AppArmor => apparmor::mend(executable),
            Self::Clone => FeatureRemedy::new(
                "the administrator's switch forbids them to ordinary users; this allows them, now and after a restart",
                &[
                    "echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/60-offleash.conf",
                    "sudo sysctl --system",
                ],
            ),
            Self::Count => FeatureRemedy::new(
                "the number of user namespaces is limited to none; this allows them, now and after a restart",
                &[
                    "echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-offleash.conf",
                    "sudo sysctl --system",
                ],
            ),
            Self::Container => FeatureRemedy::new(
                "the container around this process forbids them; they can be allowed where it is started, which opens \
                 that container's walls and leaves offleash's inside it",
                &[
                    "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined …",
                ],
            ),
            Self::Unknown => FeatureRemedy::new(
                format!(
                    "the kernel answers `{error}`, but neither its switches nor AppArmor forbid them: it may be built \
                     without CONFIG_USER_NS, this process may be in a chroot, or under a seccomp filter"
                ),
                &[],
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_obstacle_has_a_mend_that_names_it() {
        let cases = [
            (NamespaceObstacle::Clone, "unprivileged_userns_clone"),
            (NamespaceObstacle::Count, "max_user_namespaces"),
            (NamespaceObstacle::AppArmor, "apparmor_parser"),
            (NamespaceObstacle::Container, "docker run"),
            (NamespaceObstacle::Unknown, "CONFIG_USER_NS"),
        ];
        for (obstacle, word) in cases {
            let mend = obstacle.mend(&io::ErrorKind::PermissionDenied.into(), Path::new("/usr/bin/offleash"));
            let text = format!("{} {}", mend.explanation, mend.commands.join(" "));
            assert!(text.contains(word), "{obstacle:?}: {text}");
        }
    }

    #[test]
    fn the_check_agrees_with_what_the_kernel_answers() {
        let surroundings = HostSurroundings::now();
        let check = check(Path::new("/usr/bin/offleash"), &surroundings);
        assert_eq!(check.status == FeatureStatus::Ok, namespaces::try_create().is_ok());
        assert_eq!(check.mend.is_some(), check.status == FeatureStatus::Missing);
    }
}
