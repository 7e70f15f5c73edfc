//! What failed, and what ran out.

use std::io;

use super::*;

#[test]
fn an_image_that_is_not_here_is_named_by_its_digest() {
    for (image, name) in [
        ("docker.io/library/python:3.12", "docker.io/library/python@sha256:1"),
        ("localhost:5000/a/b:t", "localhost:5000/a/b@sha256:1"),
        ("localhost:5000/a", "localhost:5000/a@sha256:1"),
        ("a@sha256:1", "a@sha256:1"),
    ] {
        let missing = DaemonError::MissingOrigin {
            image: image.to_owned(),
            digest: "sha256:1".to_owned(),
        };
        assert!(missing.hint().unwrap().contains(&format!("pull {name}`")), "{image}");
    }
}

fn not_made(kind: ErrorKind) -> SupervisorError {
    SupervisorError::NotMade {
        kind,
        message: "cannot start a sandbox in `/srv`".to_owned(),
        hint: Some("`offleash doctor` says more".to_owned()),
    }
}

#[test]
fn what_a_machine_cannot_make_is_no_shortage_and_its_cause_is_the_owners() {
    let error = DaemonError::of_making(not_made(ErrorKind::Unsupported));
    assert!(matches!(error, DaemonError::Unmakeable { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(!error.to_string().contains("/srv"), "{error}");
    let failed = DaemonError::of_making(not_made(ErrorKind::Internal));
    assert!(matches!(failed, DaemonError::Supervisor { .. }), "{failed:?}");
    for error in [error, failed] {
        let (cause, hint) = error.cause_for_owner().unwrap();
        assert!(cause.contains("/srv") && hint.unwrap().contains("doctor"));
    }
    assert!(DaemonError::Draining.cause_for_owner().is_none());
}

#[test]
fn what_ran_out_is_found_behind_what_failed() {
    let errno = |errno: Errno| io::Error::from(errno);
    let step = SpawnError::Step {
        step: "clone",
        errno: Errno::AGAIN,
    };
    let io = SupervisorError::Io {
        action: "connect to a supervisor",
        source: errno(Errno::NFILE),
    };
    for (error, what) in [
        (
            DaemonError::host("start a supervisor")(errno(Errno::MFILE)),
            Some("file descriptors"),
        ),
        (
            DaemonError::host("start a supervisor")(io::Error::other(errno(Errno::NOSPC))),
            Some("disk space"),
        ),
        (
            DaemonError::host("start a supervisor")(io::Error::other(step)),
            Some("processes"),
        ),
        (DaemonError::supervisor("make a sandbox", io), Some("file descriptors")),
        (DaemonError::host("start a supervisor")(errno(Errno::ACCESS)), None),
        (DaemonError::supervisor("make a sandbox", SupervisorError::Gone), None),
        (
            DaemonError::of_making(not_made(ErrorKind::Exhausted)),
            Some("disk space or memory"),
        ),
    ] {
        match (&error, what) {
            (DaemonError::Short { what, .. }, Some(wanted)) if *what == wanted => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
            (DaemonError::Host { .. } | DaemonError::Supervisor { .. }, None) => {}
            _ => panic!("{error:?} instead of {what:?}"),
        }
    }
}
