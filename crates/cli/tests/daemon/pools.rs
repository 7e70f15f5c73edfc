//! The warm pool of templates: members are of what the template is now, and stand in nobody's way.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use offleash_daemon::{Caller, Daemon, DaemonConfig, DaemonError, PoolConfig};

use super::support::Site;
use super::world::{World, create_with, eventually, output, supervisors_below, test, within};

fn pooled(config: &mut DaemonConfig) {
    config.pool.min = 0;
    config.pool.max = 4;
    config.pool.max_total = Some(3);
}

fn build(world: &World, name: &str, made: &str) {
    let script = format!("echo {made} > /usr/local/made");
    world
        .site
        .succeed(["template", "build", "-q", "--name", name, "--run", &script]);
}

fn waiting(daemon: &Daemon, template: &str) -> usize {
    let all = daemon.waiting();
    all.iter()
        .find(|(name, _)| name == template)
        .map_or(0, |(_, count)| *count)
}

/// Makes a sandbox of a template; what the build of it has left, and whether it came out of the pool.
async fn made_of(daemon: &Daemon, template: &str) -> (String, bool) {
    let warm = daemon.counts().created_warm;
    let made = create_with(daemon, |request| request.template = template.to_owned()).await;
    assert_eq!(made.template, template);
    let supervisor = daemon.supervisor(&made.id).await.unwrap();
    let left = output(&supervisor, "cat /usr/local/made").await;
    within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
    (left, daemon.counts().created_warm > warm)
}

async fn until_one_waits(daemon: &Daemon, template: &str) {
    eventually("a member of the template", || {
        (waiting(daemon, template) > 0).then_some(())
    })
    .await;
}

#[test]
fn sandboxes_of_a_template_are_made_ahead_once_it_was_asked_for_and_of_its_last_build() {
    test(async {
        let world = World::new();
        build(&world, "one", "first");
        build(&world, "two", "other");
        let daemon = world.daemon_with(pooled).await;
        // Nobody waits for a pool that is empty.
        assert_eq!(made_of(&daemon, "one").await, ("first\n".to_owned(), false));
        until_one_waits(&daemon, "one").await;
        assert_eq!(made_of(&daemon, "two").await, ("other\n".to_owned(), false));
        assert_eq!(made_of(&daemon, "one").await, ("first\n".to_owned(), true));
        until_one_waits(&daemon, "one").await;
        // Those that wait are of the build before, and nobody has looked yet.
        build(&world, "one", "second");
        assert_eq!(made_of(&daemon, "one").await, ("second\n".to_owned(), false));
        until_one_waits(&daemon, "one").await;
        assert_eq!(made_of(&daemon, "one").await, ("second\n".to_owned(), true));
        let all: usize = daemon.waiting().iter().map(|(_, count)| count).sum();
        assert!(all <= 3, "{:?}", daemon.waiting());
        within(daemon.drain()).await;
        world.emptied().await;
    });
}

#[test]
fn a_template_of_which_some_wait_is_removed_and_theirs_with_it() {
    test(async {
        let world = World::new();
        build(&world, "one", "first");
        let daemon = world.daemon_with(pooled).await;
        let me = Caller::local();
        let held = create_with(&daemon, |request| request.template = "one".to_owned()).await;
        until_one_waits(&daemon, "one").await;
        let refused = within(daemon.remove_template(&me, "one")).await;
        assert!(matches!(refused, Err(DaemonError::TemplateInUse { .. })), "{refused:?}");
        assert!(waiting(&daemon, "one") > 0, "what is not removed keeps its pool");
        within(daemon.kill(&me, &held.id)).await.unwrap();
        eventually("the end of the sandbox", || {
            daemon.counts().changing.eq(&0).then_some(())
        })
        .await;
        until_one_waits(&daemon, "one").await;
        within(daemon.remove_template(&me, "one")).await.unwrap();
        assert_eq!((waiting(&daemon, "one"), daemon.counts().pooled), (0, 0));
        within(daemon.drain()).await;
        world.emptied().await;
    });
}

#[test]
fn members_of_a_template_are_found_again_by_the_next_daemon_unless_it_changed_meanwhile() {
    test(async {
        let world = World::new();
        build(&world, "one", "first");
        build(&world, "two", "first");
        let least = |config: &mut DaemonConfig| {
            pooled(config);
            for name in ["one", "two"] {
                let own = offleash_daemon::TemplatePool {
                    min: Some(1),
                    ..Default::default()
                };
                config.pool.templates.insert(name.to_owned(), own);
            }
        };
        // Nobody has to ask first.
        let first = world.daemon_with(least).await;
        until_one_waits(&first, "one").await;
        until_one_waits(&first, "two").await;
        // Without an end: as if it had been killed.
        drop(first);
        build(&world, "two", "second");

        let second = world.daemon_with(least).await;
        assert_eq!(made_of(&second, "one").await, ("first\n".to_owned(), true));
        assert_eq!(made_of(&second, "two").await.0, "second\n");
        until_one_waits(&second, "two").await;
        assert_eq!(made_of(&second, "two").await, ("second\n".to_owned(), true));
        within(second.drain()).await;
        world.emptied().await;
    });
}

#[test]
fn a_daemon_that_ends_does_not_wait_for_what_nobody_asked_for() {
    test(async {
        // Its own base template, which is not there yet, and which nobody makes as long as this holds the lock.
        let world = World { site: Site::new() };
        let base = world.site.state().join("base");
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o700)).unwrap();
        let lock = std::fs::File::create(base.join(".making")).unwrap();
        lock.lock().unwrap();
        let daemon = world.daemon_with(one_waits).await;
        eventually("a member that is being made", || {
            supervisors_below(world.site.root())
                .iter()
                .any(|supervisor| has_opened(*supervisor, &base.join(".making")))
                .then_some(())
        })
        .await;
        // With it held: what is being made cannot be finished.
        within(daemon.drain()).await;
        world.emptied().await;
        let names = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let left: Vec<_> = std::fs::read_dir(&base).unwrap().map(names).collect();
        assert_eq!(left, [".making"], "the template was waited for");
        drop((daemon, lock));
        let next = world.daemon_with(one_waits).await;
        eventually("a member of the next", || (next.counts().pooled == 1).then_some(())).await;
        within(next.drain()).await;
        world.emptied().await;
    });
}

fn one_waits(config: &mut DaemonConfig) {
    config.pool = PoolConfig {
        min: 1,
        max: 1,
        ..PoolConfig::default()
    };
}

fn has_opened(pid: i32, path: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let open = open.into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|target| target == path)
}
