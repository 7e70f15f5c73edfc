//! As whom commands run.
//!
//! Only root outside of any namespace can become anybody here; for others, what is refused is looked at.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{Role, eventually, lives, shell, start};
use offleash_protocol::{ExecCommand, ExitReport, GuestIds, StartFailure};

const EXITED_WELL: Option<ExitReport> = Some(ExitReport::Exited { code: 0 });

const SOMEBODY: GuestIds = GuestIds {
    uid: 54_321,
    gid: 54_322,
};

fn own() -> GuestIds {
    GuestIds {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// Whether other users can be tried here, which is said if not.
#[expect(clippy::print_stdout, reason = "the test says what it left out")]
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped for other users: only root can become them");
    }
    is_root
}

fn as_user(user: GuestIds, script: &str) -> ExecCommand {
    ExecCommand {
        user: Some(user),
        ..shell(script)
    }
}

fn not_changed(errno: i32) -> Option<ExitReport> {
    Some(ExitReport::NotStarted(StartFailure::Other {
        step: "change the user".to_owned(),
        errno,
    }))
}

#[test]
fn a_command_runs_as_its_user_and_has_no_capability() {
    if !is_root() {
        return;
    }
    let script = "id -u; id -g; id -G; grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u";
    let outcome = start(Role::Subreaper).run(as_user(SOMEBODY, script));
    assert_eq!(outcome.text(), "54321\n54322\n54322\n0000000000000000\n", "{outcome:?}");
    assert_eq!(outcome.end, EXITED_WELL);
}

#[test]
fn streams_can_be_opened_again_by_name() {
    if !is_root() {
        return;
    }
    let mut guest = start(Role::Subreaper);
    let request = as_user(SOMEBODY, "echo out > /dev/stdout; echo err > /dev/stderr");
    let outcome = guest.run(request.clone());
    assert_eq!(
        (&outcome.stdout[..], &outcome.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let with_terminal = ExecCommand {
        tty: Some((24, 80)),
        ..request
    };
    assert_eq!(guest.run(with_terminal).text(), "out\r\nerr\r\n");
}

#[test]
fn the_directory_is_entered_as_the_user() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let allow = |mode| {
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    allow(0o700);
    let mut guest = start(Role::Subreaper);
    let cwd = directory.path().to_str().expect("text").as_bytes().to_vec();
    let request = ExecCommand {
        cwd,
        ..as_user(SOMEBODY, "pwd")
    };
    let refused = ExitReport::NotStarted(StartFailure::Directory { errno: 13 });
    assert_eq!(guest.run(request.clone()).end, Some(refused));
    allow(0o755);
    assert_eq!(guest.run(request).end, EXITED_WELL);
}

#[test]
fn whoever_the_guest_is_already_needs_no_change() {
    let outcome = start(Role::Subreaper).run(as_user(own(), "id -u; id -g"));
    let GuestIds { uid, gid } = own();
    assert_eq!(outcome.text(), format!("{uid}\n{gid}\n"), "{outcome:?}");
}

#[test]
fn what_is_nobody_is_refused() {
    let nobody = u32::MAX;
    let mut guest = start(Role::Subreaper);
    for (uid, gid) in [(nobody, 1), (1, nobody), (nobody, nobody)] {
        assert_eq!(guest.run(as_user(GuestIds { uid, gid }, "true")).end, not_changed(22));
    }
    if own().uid != 0 {
        assert_eq!(guest.run(as_user(SOMEBODY, "true")).end, not_changed(1));
    }
    // One id is mapped there.
    if crate::harness::roles().contains(&Role::Init) {
        let outcome = start(Role::Init).run(as_user(SOMEBODY, "true"));
        assert!(
            matches!(&outcome.end, Some(ExitReport::NotStarted(StartFailure::Other { step, .. })) if step == "change the user")
        );
    }
    assert_eq!(guest.run(shell("true")).end, EXITED_WELL);
}

#[test]
fn a_command_of_another_user_dies_with_the_guest() {
    if !is_root() {
        return;
    }
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(as_user(SOMEBODY, "echo ready; exec sleep 600"));
    guest.wait_for_output(exec, "ready");
    let pid = guest.outcome(exec).pid.expect("it started");
    let guest_pid = rustix::process::Pid::from_raw(guest.pid()).expect("it runs");
    rustix::process::kill_process(guest_pid, rustix::process::Signal::KILL).expect("ours");
    eventually("the command dies", || !lives(pid));
}
