//! Programs on this machine that stronger levels would use.

use std::ffi::OsStr;
use std::path::Path;

use offleash_core::runtime::RuntimeKind;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus, shown};
use crate::microvm::error::KERNEL_COMMANDS;
use crate::microvm::{hypervisor, kernel};
use crate::runtime_facts as facts;
use crate::search_path::find_program;

/// gVisor, as every release of Debian can have it: a static program in the package of Debian 13.
const INSTALL_GVISOR: [&str; 6] = [
    "mkdir -p /opt/gvisor/lists/partial && cd /opt/gvisor",
    "echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' >sources.list",
    "apt-get -o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists update",
    "apt-get -o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists download runsc",
    "dpkg-deb -x runsc_*.deb .",
    "ln -s /opt/gvisor/usr/bin/runsc /usr/local/bin/runsc",
];
const HYPERVISORS: [&str; 1] = [hypervisor::PROGRAM];

/// The runtimes that level `container` takes, with their versions and what is known against those.
pub(super) fn container_runtimes(search_path: &OsStr) -> FeatureCheck {
    let found: Vec<_> = RuntimeKind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind, find_program(kind.name(), search_path)?)))
        .map(|(kind, path)| (kind, facts::version(&path), path))
        .collect();
    let check = |status, found: String| FeatureCheck::new("container-runtimes", status, found, "level `container`");
    let has_gvisor = found.iter().any(|(kind, ..)| *kind == RuntimeKind::Runsc);
    let gvisor = (!has_gvisor).then(install_gvisor);
    if found.is_empty() {
        let names = RuntimeKind::ALL.map(RuntimeKind::name).join(", ");
        return check(FeatureStatus::Missing, format!("none of {names} in PATH")).with_mend(gvisor);
    }
    let told = found.iter().map(|(_, version, path)| match version {
        Some(version) => format!("{} ({version})", shown(path)),
        None => format!("{} (of an unknown version)", shown(path)),
    });
    let mut told = told.collect::<Vec<_>>().join(", ");
    let against = found
        .iter()
        .filter_map(|(kind, version, _)| facts::advised_against(*kind, version.as_deref()?));
    let against: Vec<_> = against.collect();
    if !has_gvisor {
        told.push_str("; without gVisor (`runsc`) code speaks to the host's kernel");
    }
    for reason in &against {
        told.push_str("; ");
        told.push_str(reason);
    }
    let is_whole = has_gvisor && against.is_empty();
    let status = if is_whole {
        FeatureStatus::Ok
    } else {
        FeatureStatus::Limited
    };
    let mend = gvisor.or_else(|| {
        (!against.is_empty()).then(|| FeatureRemedy::new("bring the runtimes up to date, or take gVisor", &[]))
    });
    check(status, told).with_mend(mend)
}

fn install_gvisor() -> FeatureRemedy {
    let why = "gVisor is one program, unpacked here from the package of Debian 13 without a change to the machine's own \
               packages (on Debian 13 itself `apt-get install runsc` does); `apt-get install crun` gives a runtime of the \
               host's kernel; kata-runtime is in no package of Debian";
    FeatureRemedy::new(why, &INSTALL_GVISOR)
}

pub(super) fn hypervisors(search_path: &OsStr) -> FeatureCheck {
    if let Err(error) = hypervisor::require_processor() {
        return FeatureCheck::new(
            "hypervisors",
            FeatureStatus::Missing,
            error.to_string(),
            "level `microvm`",
        );
    }
    let check = any_of("hypervisors", &HYPERVISORS, search_path, "level `microvm`");
    let mend = (check.status == FeatureStatus::Missing)
        .then(|| FeatureRemedy::new("install QEMU", &["apt install qemu-system-x86"]));
    check.with_mend(mend)
}

/// The kernel of guests that `offleash vm kernel` finds.
pub(super) fn guest_kernel(state_directory: &Path) -> FeatureCheck {
    let check = |status, found: String| FeatureCheck::new("guest-kernel", status, found, "level `microvm`");
    match kernel::find(None, state_directory) {
        Ok(found) => check(
            FeatureStatus::Ok,
            format!("{} ({})", found.release, shown(&found.image)),
        ),
        Err(error) => check(FeatureStatus::Missing, error.to_string()).with_mend(Some(FeatureRemedy::new(
            "fetch Debian's kernel for virtual machines, and have it unpacked into the state directory",
            &KERNEL_COMMANDS,
        ))),
    }
}

fn any_of(name: &'static str, programs: &[&str], search_path: &OsStr, needed_for: &'static str) -> FeatureCheck {
    let found: Vec<_> = programs
        .iter()
        .filter_map(|program| find_program(program, search_path))
        .collect();
    if found.is_empty() {
        return FeatureCheck::new(
            name,
            FeatureStatus::Missing,
            format!("none of {} in PATH", programs.join(", ")),
            needed_for,
        );
    }
    let found: Vec<_> = found.iter().map(|path| shown(path).into_owned()).collect();
    FeatureCheck::new(name, FeatureStatus::Ok, found.join(", "), needed_for)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::search_path::tests::three_of_crun;

    #[test]
    fn without_gvisor_the_runtimes_that_are_found_are_limited() {
        let directory = tempfile::tempdir().unwrap();
        let search_path = three_of_crun(directory.path());
        let runtimes = container_runtimes(&search_path);
        assert_eq!(runtimes.status, FeatureStatus::Limited, "without gVisor: {runtimes:?}");
        assert!(
            runtimes.found.contains("b/crun (of an unknown version)"),
            "{runtimes:?}"
        );
        assert!(!runtimes.mend.unwrap().commands.is_empty());
        assert_eq!(hypervisors(&search_path).status, FeatureStatus::Missing);
    }

    #[test]
    fn runtimes_are_told_with_their_versions_and_what_is_known_against_them() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str, says: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let nothing = container_runtimes(OsStr::new("/no/such"));
        assert_eq!(nothing.status, FeatureStatus::Missing);
        assert!(nothing.mend.unwrap().commands.iter().any(|line| line.contains("runsc")));
        place("runsc", "runsc version 0.0~20240729.0");
        let gvisor = container_runtimes(directory.path().as_os_str());
        assert_eq!((gvisor.status, gvisor.mend), (FeatureStatus::Ok, None));
        place("runc", "runc version 1.1.5+ds1");
        let both = container_runtimes(directory.path().as_os_str());
        assert_eq!(both.status, FeatureStatus::Limited);
        assert!(
            both.found.contains("runc (1.1.5+ds1)") && both.found.contains("CVE-2024-21626"),
            "{both:?}"
        );
        assert!(both.mend.is_some());
    }
}
