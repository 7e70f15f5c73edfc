//! What is around this process: a container, a virtual machine's guest kernel, and whether it may make machines itself.

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, kernel, read_line};

/// Files that container engines leave, and whose they are.
const MARKS: [(&str, &str); 3] = [
    ("/.dockerenv", "Docker"),
    ("/run/.containerenv", "Podman"),
    ("/run/systemd/container", "a container that systemd knows"),
];
/// Parts of a control group's path, and who makes such paths.
const GROUPS: [(&str, &str); 5] = [
    ("/docker", "Docker"),
    ("/kubepods", "Kubernetes"),
    ("/lxc", "LXC"),
    ("/libpod", "Podman"),
    ("/containerd", "containerd"),
];

/// What this process runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostSurroundings {
    /// The container's kind, if we are in one.
    pub(super) container: Option<&'static str>,
    /// Whether the kernel is Windows's own.
    is_wsl: bool,
}

impl HostSurroundings {
    /// Looks around.
    pub(super) fn now() -> Self {
        let marked = MARKS
            .iter()
            .find(|(path, _)| Path::new(path).exists())
            .map(|(_, engine)| *engine);
        let group = read_line("/proc/self/cgroup").unwrap_or_default();
        Self {
            container: marked.or_else(|| engine_of_group(&group)),
            is_wsl: kernel::release().contains("microsoft"),
        }
    }

    /// As a check, for people: nothing is missing, but it explains what is.
    pub(super) fn check(&self) -> FeatureCheck {
        let found = match (self.container, self.is_wsl) {
            (Some(engine), _) => format!("looks like the inside of a container ({engine})"),
            (None, true) => "Windows Subsystem for Linux".to_owned(),
            (None, false) => "no container around this process".to_owned(),
        };
        FeatureCheck::new(
            "surroundings",
            FeatureStatus::Ok,
            found,
            "understanding refusals: a container forbids what the machine would allow",
        )
    }
}

fn engine_of_group(group: &str) -> Option<&'static str> {
    GROUPS
        .iter()
        .find(|(part, _)| group.contains(part))
        .map(|(_, engine)| *engine)
}

/// Opens `/dev/kvm`, which only looks.
pub(super) fn kvm() -> FeatureCheck {
    kvm_from_result(open("/dev/kvm", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(drop))
}

fn kvm_from_result(opened: Result<(), Errno>) -> FeatureCheck {
    let check = |status, found: String| FeatureCheck::new("kvm", status, found, "level `microvm` at full speed");
    match opened {
        Ok(()) => check(
            FeatureStatus::Ok,
            "/dev/kvm can be opened, which does not tell whether guests run; machines are emulated in this version"
                .to_owned(),
        ),
        Err(Errno::ACCESS | Errno::PERM) => {
            let mend = FeatureRemedy::new(
                "the device belongs to the group `kvm`; join it and log in again",
                &["sudo usermod --append --groups kvm \"$USER\""],
            );
            check(
                FeatureStatus::Missing,
                "/dev/kvm exists, but not for this user".to_owned(),
            )
            .with_mend(Some(mend))
        }
        Err(error) => check(FeatureStatus::Missing, format!("opening /dev/kvm failed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_their_control_groups() {
        let cases = [
            ("0::/docker/3f4a", Some("Docker")),
            ("11:pids:/kubepods/besteffort/pod1/2\n0::/", Some("Kubernetes")),
            ("0::/user.slice/user-1000.slice/session-2.scope", None),
            ("0::/", None),
        ];
        for (group, expected) in cases {
            assert_eq!(engine_of_group(group), expected, "{group}");
        }
    }

    #[test]
    fn only_a_device_that_others_may_open_has_a_mend() {
        assert_eq!(kvm_from_result(Ok(())).status, FeatureStatus::Ok);
        assert!(kvm_from_result(Err(Errno::ACCESS)).mend.is_some());
        assert!(kvm_from_result(Err(Errno::NOENT)).mend.is_none());
    }
}
