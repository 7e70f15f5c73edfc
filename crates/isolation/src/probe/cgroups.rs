//! Control groups: whether this process may make groups with the controllers that limits use.
//!
//! `sys::cgroup` answers, the same code that makes the groups, so that the answer here is what a run will meet.

use offleash_sys::cgroup::{ControlHierarchies, Controller, ControllerProblem, HierarchyMode, systemd_scope_available};

use super::{FeatureCheck, FeatureRemedy, FeatureStatus};

/// The controllers behind the limits on memory, processes and CPUs.
const CONTROLLERS: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

pub(super) fn check() -> FeatureCheck {
    match ControlHierarchies::discover() {
        Ok(hierarchy) => {
            let obstacles = CONTROLLERS.map(|controller| (controller, hierarchy.availability(controller).err()));
            let helper = GroupHelper::of_this_machine();
            from_findings(hierarchy.mode(), &obstacles, helper)
        }
        Err(error) => {
            let mend = FeatureRemedy::new("`/proc` is needed to find the groups that this process is in", &[]);
            of_status(FeatureStatus::Limited, error.to_string()).with_mend(Some(mend))
        }
    }
}

fn of_status(status: FeatureStatus, found: String) -> FeatureCheck {
    FeatureCheck::new(
        "cgroups",
        status,
        found,
        "limits on memory, processes and CPUs that hold for the sandbox as a whole; without them resource limits of \
         single processes and a watcher stand in",
    )
}

/// Who can hand this process a group of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupHelper {
    /// The user's systemd.
    UserSystemd,
    /// The machine's systemd, for root.
    Systemd,
    /// Nobody.
    Nobody,
}

impl GroupHelper {
    fn of_this_machine() -> Self {
        match (systemd_scope_available(), rustix::process::geteuid().is_root()) {
            (false, _) => Self::Nobody,
            (true, false) => Self::UserSystemd,
            (true, true) => Self::Systemd,
        }
    }
}

fn from_findings(
    mode: HierarchyMode,
    obstacles: &[(Controller, Option<ControllerProblem>)],
    helper: GroupHelper,
) -> FeatureCheck {
    let mode = match mode {
        HierarchyMode::None => "not mounted",
        HierarchyMode::V1 => "version 1",
        HierarchyMode::V2 => "version 2",
        HierarchyMode::Hybrid => "hybrid (versions 1 and 2)",
    };
    let usable: Vec<_> = obstacles
        .iter()
        .filter(|(_, reason)| reason.is_none())
        .map(|(name, _)| name.name())
        .collect();
    let mut found = mode.to_owned();
    if !usable.is_empty() {
        found.push_str(&format!("; {} can be used", usable.join(", ")));
    }
    let mut first = None;
    for (controller, reason) in obstacles
        .iter()
        .filter_map(|(controller, reason)| Some((controller, reason.as_ref()?)))
    {
        found.push_str(&format!("; not {controller}: {reason}"));
        first = first.or(Some(reason));
    }
    let status = if first.is_some() {
        FeatureStatus::Limited
    } else {
        FeatureStatus::Ok
    };
    of_status(status, found).with_mend(first.map(|reason| mend(reason, helper)))
}

fn mend(reason: &ControllerProblem, helper: GroupHelper) -> FeatureRemedy {
    match (reason, helper) {
        (
            ControllerProblem::ReadOnly { .. } | ControllerProblem::NotMounted | ControllerProblem::OutsideView { .. },
            _,
        ) => FeatureRemedy::new(
            "the hierarchy is read-only or not mounted, as in a container; give the container its own writable one",
            &["docker run --cgroupns=private --volume /sys/fs/cgroup:/sys/fs/cgroup:rw …"],
        ),
        (_, GroupHelper::UserSystemd) => FeatureRemedy::new(
            "control groups are not delegated to this session: start offleash in a scope that is. Where a controller \
             is still missing there, the last three commands let users have it, from their next login on",
            &[
                "systemd-run --user --scope --property=Delegate=yes offleash run …",
                "sudo mkdir -p /etc/systemd/system/user@.service.d",
                "printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf",
                "sudo systemctl daemon-reload",
            ],
        ),
        (_, GroupHelper::Systemd) => FeatureRemedy::new(
            "control groups are not delegated to this session: start offleash in a scope that is",
            &["systemd-run --scope --property=Delegate=yes offleash run …"],
        ),
        (_, GroupHelper::Nobody) => FeatureRemedy::new(
            "no service manager delegates control groups on this machine; run as root, or have root give this user \
             groups of its own, with nothing else in them",
            &[],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacles(blocked: &[(Controller, ControllerProblem)]) -> Vec<(Controller, Option<ControllerProblem>)> {
        let reason = |controller| {
            blocked
                .iter()
                .find(|(name, _)| *name == controller)
                .map(|(_, reason)| reason.clone())
        };
        CONTROLLERS.map(|controller| (controller, reason(controller))).to_vec()
    }

    #[test]
    fn anything_less_than_all_controllers_is_limited_says_why_and_has_a_mend() {
        let whole = from_findings(HierarchyMode::V2, &obstacles(&[]), GroupHelper::Nobody);
        assert_eq!((whole.status, whole.mend.is_some()), (FeatureStatus::Ok, false));
        assert_eq!(whole.found, "version 2; memory, pids, cpu can be used");

        let blocked = [(Controller::Cpu, ControllerProblem::NotDelegated { path: "/g".into() })];
        let partly = from_findings(HierarchyMode::V2, &obstacles(&blocked), GroupHelper::UserSystemd);
        assert_eq!((partly.status, partly.mend.is_some()), (FeatureStatus::Limited, true));
        assert_eq!(
            partly.found,
            "version 2; memory, pids can be used; not cpu: it is not handed down to `/g`"
        );
    }

    #[test]
    fn the_mend_is_one_that_this_machine_can_carry_out() {
        let foreign = ControllerProblem::NotPermitted {
            path: "/nowhere".into(),
        };
        let read_only = ControllerProblem::ReadOnly { path: "/g".into() };
        let cases = [
            (&foreign, GroupHelper::UserSystemd, "systemd-run --user"),
            (&foreign, GroupHelper::Systemd, "systemd-run --scope"),
            (&foreign, GroupHelper::Nobody, "run as root"),
            (&read_only, GroupHelper::UserSystemd, "docker run"),
        ];
        for (reason, helper, word) in cases {
            let mend = mend(reason, helper);
            let text = format!("{} {}", mend.explanation, mend.commands.join(" "));
            assert!(text.contains(word), "{reason:?} {helper:?}: {text}");
        }
    }

    #[test]
    fn the_check_agrees_with_the_code_that_makes_groups() {
        let hierarchy = ControlHierarchies::discover().unwrap();
        let all = CONTROLLERS
            .into_iter()
            .all(|controller| hierarchy.availability(controller).is_ok());
        assert_eq!(check().status == FeatureStatus::Ok, all);
    }
}
