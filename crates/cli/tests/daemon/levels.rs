//! Sandboxes of several levels on one server.

use std::path::PathBuf;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::level::Level;
use offleash_daemon::{Caller, CreateRequest, LEVEL_LABEL};

use super::carried::supervisor;
use super::snapshots::{of_snapshot, snapshot};
use super::support::skip;
use super::world::{World, create_with, eventually, output, test, within};

/// gVisor's program, beside the SDKs.
fn runsc() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("OFFLEASH_SDKS")?).join("gvisor/usr/bin/runsc");
    path.exists().then_some(path)
}

#[test]
fn one_server_has_sandboxes_of_two_levels() {
    let Some(runtime) = runsc() else {
        return skip("there is no runsc beside the SDKs");
    };
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(|config| config.runtime = Some(runtime)).await;
        let asked = |request: &mut CreateRequest| {
            request.metadata.insert(LEVEL_LABEL.to_owned(), "container".to_owned());
        };
        let usual = create_with(&daemon, |_| {}).await;
        let sandbox = create_with(&daemon, asked).await;
        assert_eq!((usual.level.as_str(), sandbox.level.as_str()), ("process", "container"));
        let (below, above) = (supervisor(&daemon, &usual).await, supervisor(&daemon, &sandbox).await);
        let kernel = "uname -v";
        assert_ne!(output(&below, kernel).await, output(&above, kernel).await);

        output(&above, "echo kept >~/file").await;
        within(daemon.pause(&Caller::local(), &sandbox.id)).await.unwrap();
        within(daemon.resume(&Caller::local(), &sandbox.id, None))
            .await
            .unwrap();
        let kept = snapshot(&daemon, &sandbox.id).await;
        let copy = of_snapshot(&daemon, &kept.id).await;
        let copied = supervisor(&daemon, &copy).await;
        assert_eq!(output(&copied, "cat ~/file").await, "kept\n");
        for sandbox in [&usual, &sandbox, &copy] {
            within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
        }
        within(daemon.remove_snapshot(&Caller::local(), &kept.id))
            .await
            .unwrap();
        eventually("nothing is left", || world.is_empty().then_some(())).await;
    });
}

#[test]
fn a_level_that_is_none_is_refused_and_a_weaker_one_is_the_owner_s() {
    let Some(runtime) = runsc() else {
        return skip("there is no runsc beside the SDKs");
    };
    test(async {
        let world = World::new();
        let daemon = world
            .daemon_with(|config| {
                config.runtime = Some(runtime);
                config.level = Some(Level::Container);
            })
            .await;
        let request = |level: &str| {
            let mut request = CreateRequest::default();
            request.metadata.insert(LEVEL_LABEL.to_owned(), level.to_owned());
            request
        };
        let refused = within(daemon.create(&Caller::local(), request("chroot")))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let key = Caller {
            key_id: "k".to_owned(),
            ..Caller::local()
        };
        let refused = within(daemon.create(&key, request("process"))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    });
}
