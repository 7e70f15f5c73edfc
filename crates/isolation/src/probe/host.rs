//! What is around this process: a container, a virtual machine's guest kernel, and whether it may make machines itself.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, kernel, read_line};
use crate::microvm::kvm;

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

/// How long the least guest may run.
const GUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a guest by `/dev/kvm`, unless a machine was tried by it since the host booted.
pub(super) fn kvm(state_directory: &Path) -> FeatureCheck {
    let opened = open(offleash_sys::kvm::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let ran = |device| match kvm::known(state_directory) {
        Some(Ok(())) => Ok(KvmFinding::Machine),
        Some(Err(why)) => Err(why),
        None => ran(device).map(|()| KvmFinding::LeastGuest),
    };
    kvm_from_result(opened.map(ran))
}

/// What was found to run by KVM.
#[derive(Debug, Clone, Copy)]
enum KvmFinding {
    /// A guest of one instruction.
    LeastGuest,
    /// What sandboxes boot.
    Machine,
}

/// Why the least guest did not run, if so. One that never comes back is left to a thread that ends with this program.
fn ran(device: OwnedFd) -> Result<(), String> {
    let (told, telling) = mpsc::channel();
    let runs = move || {
        // Whoever gave up waiting is told nothing.
        let _told = told.send(offleash_sys::kvm::run_least_guest(device.as_fd()));
    };
    let started = std::thread::Builder::new().name("kvm".to_owned()).spawn(runs);
    started.map_err(|error| error.to_string())?;
    match telling.recv_timeout(GUEST_TIMEOUT) {
        Ok(outcome) => outcome.map_err(|fault| fault.to_string()),
        Err(_) => Err(format!("it did not come back within {} s", GUEST_TIMEOUT.as_secs())),
    }
}

fn kvm_from_result(opened: Result<Result<KvmFinding, String>, Errno>) -> FeatureCheck {
    let check = |status, found: String| FeatureCheck::new("kvm", status, found, "level `microvm` at full speed");
    match opened {
        Ok(Ok(KvmFinding::Machine)) => check(FeatureStatus::Ok, "a machine that was tried boots by KVM".to_owned()),
        Ok(Ok(KvmFinding::LeastGuest)) => check(
            FeatureStatus::Ok,
            "KVM runs the least guest, which is less than a kernel; a machine is tried where `--acceleration kvm` asks for it".to_owned(),
        ),
        Ok(Err(why)) => check(
            FeatureStatus::Limited,
            format!("/dev/kvm can be opened and runs no machine: {why}"),
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
        assert_eq!(
            kvm_from_result(Ok(Ok(KvmFinding::LeastGuest))).status,
            FeatureStatus::Ok
        );
        let opens = kvm_from_result(Ok(Err("running it: Input/output error".to_owned())));
        assert_eq!(opens.status, FeatureStatus::Limited);
        assert!(
            opens.found.ends_with("runs no machine: running it: Input/output error"),
            "{opens:?}"
        );
        assert!(kvm_from_result(Err(Errno::ACCESS)).mend.is_some());
        assert!(kvm_from_result(Err(Errno::NOENT)).mend.is_none());
        let tried = kvm_from_result(Ok(Ok(KvmFinding::Machine)));
        assert_eq!(
            (tried.status, tried.found.as_str()),
            (FeatureStatus::Ok, "a machine that was tried boots by KVM")
        );
    }
}
