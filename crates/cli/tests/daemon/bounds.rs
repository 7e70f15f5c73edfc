//! What takes too long, and what has no room: forks end with an error that says so, sandboxes with their time, and nobody else
//! is harmed.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::{Caller, Daemon, DaemonError, ForkRequest, ForksConfig, ListFilter, SandboxView};
use offleash_interpreter::language::Language;

use super::carried::{cell, of, supervisor};
use super::support::disks::SmallDisk;
use super::support::{is_root, skip};
use super::world::{World, create, create_with, eventually, output, supervisors_below, test, within};

/// Why there is no fork.
async fn refused(daemon: &Daemon, source: &SandboxView) -> DaemonError {
    match within(daemon.fork(&Caller::local(), &source.id, ForkRequest::default())).await {
        Err(error) => error,
        Ok(mut forks) => forks.remove(0).expect_err("there is a fork"),
    }
}

/// The source has what it had, and there is no other sandbox.
async fn only_the_source_goes_on(daemon: &Daemon, source: &SandboxView) {
    let listed = || daemon.list(&Caller::local(), &ListFilter::default()).unwrap().sandboxes;
    eventually("the fork is gone", || (listed().len() == 1).then_some(())).await;
    assert_eq!(cell(daemon, &source.id, "print(n)").await, "1\n");
    assert_eq!(
        output(&supervisor(daemon, source).await, "ls -A ~ | grep offleash; true").await,
        ""
    );
}

/// A fork of a sandbox in which `code` has run, with these bounds.
async fn bounded(code: &str, forks: ForksConfig) -> DaemonError {
    let world = World::new();
    let daemon = world.daemon_with(|config| config.forks = forks).await;
    let source = create(&daemon).await;
    assert_eq!(cell(&daemon, &source.id, code).await, "");
    let error = refused(&daemon, &source).await;
    only_the_source_goes_on(&daemon, &source).await;
    error
}

#[test]
fn a_state_that_takes_too_long_to_be_saved_is_an_error() {
    test(async {
        let code = "class Slow:\n  def __reduce__(self):\n    while True: pass\nn, slow = 1, Slow()";
        let save = Duration::from_secs(1);
        let error = bounded(
            code,
            ForksConfig {
                save,
                ..ForksConfig::default()
            },
        )
        .await;
        assert!(matches!(error, DaemonError::Contexts { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        assert!(error.hint().unwrap().contains("`none`"), "{error:?}");
    });
}

#[test]
fn a_state_that_takes_too_long_to_be_loaded_is_an_error() {
    test(async {
        // What lies in memory is not carried: where it is missing, this has no end.
        let code = "import os\nopen('/dev/shm/here', 'w').close()\ndef spin():\n  import os\n  while not os.path.exists('/dev/shm/here'): pass\n\
                    class Slow:\n  def __reduce__(self): return spin, ()\nn, slow = 1, Slow()";
        let load = Duration::from_secs(1);
        let error = bounded(
            code,
            ForksConfig {
                load,
                ..ForksConfig::default()
            },
        )
        .await;
        assert!(matches!(error, DaemonError::Contexts { .. }), "{error:?}");
        assert!(
            error.to_string().contains("was not loaded: it took longer than 1 s"),
            "{error}"
        );
    });
}

#[test]
fn files_that_take_too_long_to_be_copied_are_an_error() {
    test(async {
        let copy = Duration::ZERO;
        let error = bounded(
            "n = 1",
            ForksConfig {
                copy,
                ..ForksConfig::default()
            },
        )
        .await;
        assert!(matches!(error, DaemonError::NotCopied { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    });
}

#[test]
fn a_cell_that_does_not_end_keeps_forks_waiting_for_so_long_and_goes_on() {
    test(async {
        let world = World::new();
        let (wait, save) = (Duration::from_millis(300), Duration::from_millis(300));
        let daemon = world
            .daemon_with(|config| {
                config.forks = ForksConfig {
                    wait,
                    save,
                    ..ForksConfig::default()
                }
            })
            .await;
        let source = create(&daemon).await;
        let contexts = within(daemon.contexts(&source.id)).await.unwrap();
        let code = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nn = 1";
        let mut events = within(contexts.execute_in_default(Language::Python, of(code)))
            .await
            .unwrap();
        let _begun = within(events.recv()).await;
        let error = refused(&daemon, &source).await;
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        output(&supervisor(&daemon, &source).await, "touch /tmp/go").await;
        while within(events.recv()).await.is_some() {}
        only_the_source_goes_on(&daemon, &source).await;
    });
}

#[test]
fn a_state_that_does_not_fit_below_the_limit_of_the_disk_does_not_end_its_source() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let source = create_with(&daemon, |request| request.limits.disk_mib = Some(64)).await;
        let code =
            "import os\nopen('much', 'wb').write(os.urandom(40 << 20)) and None\nn, large = 1, os.urandom(40 << 20)";
        assert_eq!(cell(&daemon, &source.id, code).await, "");
        // What room there is was measured, not what was written in this moment.
        let measured = supervisor(&daemon, &source).await;
        while within(measured.usage()).await.unwrap().disk_bytes < 40 << 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = refused(&daemon, &source).await;
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
        assert!(error.to_string().contains("it is too large"), "{error}");
        // Longer than anything is looked at.
        tokio::time::sleep(Duration::from_secs(3)).await;
        only_the_source_goes_on(&daemon, &source).await;
        cell(&daemon, &source.id, "del large").await;
        let forks = within(daemon.fork(&Caller::local(), &source.id, ForkRequest::default())).await;
        forks.unwrap().remove(0).unwrap();
    });
}

#[test]
fn a_machine_s_disk_that_is_full_is_an_error_and_the_source_goes_on() {
    let world = World::new();
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let state = world.site.state();
    std::fs::create_dir_all(&state).unwrap();
    let Some(_mounted) = SmallDisk::mount(&state, 96) else {
        return skip("a tmpfs cannot be mounted here");
    };
    // So that it goes first, and finds its supervisors while their directory is there.
    let world = world;
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    test(async {
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let code = "import os\nn, large = 1, os.urandom(60 << 20)";
        assert_eq!(cell(&daemon, &source.id, code).await, "");
        std::fs::write(state.join("filler"), vec![1; 50 << 20]).unwrap();
        let error = refused(&daemon, &source).await;
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
        assert!(error.to_string().contains("disk of the sandbox is full"), "{error}");
        only_the_source_goes_on(&daemon, &source).await;
        // What was saved fits, and a copy of it does not.
        cell(&daemon, &source.id, "large = large[:30 << 20]").await;
        let error = refused(&daemon, &source).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        // That is found before it is copied, where less than a MiB is left, or meanwhile.
        let is_short = matches!(error, DaemonError::Short { .. } | DaemonError::Overloaded { .. });
        assert!(is_short, "{error:?}");
        only_the_source_goes_on(&daemon, &source).await;
        std::fs::remove_file(state.join("filler")).unwrap();
        within(daemon.kill(&Caller::local(), &source.id)).await.unwrap();
        world.emptied().await;
    });
}

/// Only a server ends a sandbox whose time is up, or the next one.
#[test]
fn the_time_of_a_sandbox_ends_it_as_soon_as_there_is_a_daemon() {
    test(async {
        let world = World::new();
        let first = world.daemon().await;
        create_with(&first, |request| request.timeout_seconds = Some(1)).await;
        drop(first);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(
            supervisors_below(world.site.root()).len(),
            1,
            "nobody is there to end it"
        );
        let second = world.daemon().await;
        eventually("it has ended", || {
            supervisors_below(world.site.root()).is_empty().then_some(())
        })
        .await;
        drop(second);
    });
}
