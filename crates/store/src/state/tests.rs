use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::testing::{chmod, is_root};

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn host(base: &Path) -> HostIdentity {
    HostIdentity {
        euid: 4242,
        home_env: None,
        xdg_state_home: None,
        passwd: base.join("passwd"),
        root_state: base.join("root-state"),
        shared_temporary: base.join("tmp"),
    }
}

#[test]
fn the_default_is_found_without_trusting_the_environment() {
    let scratch = tempfile::tempdir().unwrap();
    let base = scratch.path();
    for home in ["home", "entry"] {
        fs::create_dir(base.join(home)).unwrap();
    }
    let passwd = format!(
        "x:x:1:1::/nowhere:/bin/sh\nme:x:{}:1::{}:/bin/sh\n",
        me() + 1,
        base.join("entry").display()
    );
    fs::write(base.join("passwd"), passwd).unwrap();
    let with = |euid: u32, home: Option<&str>, xdg: Option<PathBuf>| HostIdentity {
        euid,
        home_env: home.map(|home| base.join(home)),
        xdg_state_home: xdg,
        ..host(base)
    };
    if !is_root() {
        for (identity, found) in [
            (with(me(), Some("home"), None), base.join("home/.local/state/offleash")),
            (
                with(me(), Some("home"), Some(base.join("xdg/deep"))),
                base.join("xdg/deep/offleash"),
            ),
            (
                with(me(), Some("home"), Some("relative".into())),
                base.join("home/.local/state/offleash"),
            ),
            (
                with(me(), Some("missing"), None),
                base.join(format!("tmp/offleash-{}", me())),
            ),
        ] {
            assert_eq!(identity.default_state(), found, "{identity:?}");
        }
    }
    // The directories belong to us; for anybody else they are foreign.
    let other = me() + 1;
    assert_eq!(
        with(other, Some("home"), Some(base.join("xdg"))).default_state(),
        base.join(format!("tmp/offleash-{other}"))
    );
    assert_eq!(
        with(0, Some("home"), Some(base.join("xdg"))).default_state(),
        base.join("root-state")
    );
}

#[test]
fn the_home_of_the_user_database_is_used_if_home_belongs_to_another() {
    if !is_root() {
        eprintln!("skipped: only root can give directories away");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let base = scratch.path();
    fs::create_dir_all(base.join("theirs")).unwrap();
    std::os::unix::fs::chown(base.join("theirs"), Some(4242), None).unwrap();
    let identity = HostIdentity {
        home_env: Some("/root".into()),
        ..host(base)
    };
    assert_eq!(identity.default_state(), base.join("tmp/offleash-4242"));
    fs::write(
        base.join("passwd"),
        format!("u:x:4242:1::{}:/bin/sh\n", base.join("theirs").display()),
    )
    .unwrap();
    assert_eq!(identity.default_state(), base.join("theirs/.local/state/offleash"));
}

#[test]
fn it_is_made_private_and_opened_again() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a/b/state");
    let state = StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap();
    assert_eq!(state.path(), path);
    for made in ["a/b/state", "a/b/state/runs", "a/b/state/live"] {
        let mode = fs::metadata(scratch.path().join(made)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{made}");
    }
    StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap();
}

#[test]
fn one_that_others_could_have_prepared_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let open = |name: &str| StateDirectory::open(Some(&at(name)), &HostIdentity::of_this_process());
    fs::create_dir(at("real")).unwrap();
    symlink(at("real"), at("link")).unwrap();
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("open")).unwrap();
    chmod(at("open"), 0o770);
    assert!(matches!(open("link"), Err(StateError::NotADirectory { .. })));
    assert!(matches!(open("file"), Err(StateError::NotADirectory { .. })));
    assert!(matches!(
        open("open"),
        Err(StateError::WritableByOthers { mode: 0o770, .. })
    ));
    symlink(at("real"), at("open/runs")).unwrap();
    chmod(at("open"), 0o700);
    assert!(
        matches!(open("open"), Err(StateError::Unusable { .. })),
        "a link in the place of `runs`"
    );
    let other = HostIdentity {
        euid: me() + 1,
        ..HostIdentity::of_this_process()
    };
    let error = StateDirectory::open(Some(&at("real")), &other).unwrap_err();
    assert!(matches!(error, StateError::ForeignOwner { .. }));
    assert!(error.hint().unwrap().contains("--state DIR"));
}

#[test]
fn one_that_cannot_be_made_says_what_to_do() {
    let error = StateDirectory::open(Some(Path::new("/proc/offleash")), &HostIdentity::of_this_process()).unwrap_err();
    assert!(matches!(error, StateError::Unusable { .. }));
    assert!(error.hint().unwrap().contains("OFFLEASH_STATE"));
    assert_eq!(error.to_string(), "cannot use the state directory `/proc/offleash`");
}
