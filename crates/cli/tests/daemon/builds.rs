//! Templates that are built when they are asked for, and what is told of that.

use std::sync::{Arc, Mutex};

use offleash_core::template::{Recipe, TemplateName};
use offleash_daemon::{Caller, CreateRequest, Daemon, DaemonError};
use offleash_supervisor::templates::{BuildEvent, BuildWatcher};

use super::world::{World, test, within};

/// What was told.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<BuildEvent>>);

impl BuildWatcher for Told {
    fn tell(&self, name: &TemplateName, event: &BuildEvent) {
        assert!(name.is_code_interpreter());
        self.0.lock().unwrap().push(event.clone());
    }
}

/// A daemon whose template is built by a command, without a package from anywhere.
async fn building(world: &World, command: &str) -> (Daemon, Arc<Told>) {
    let told = Arc::new(Told::default());
    let watcher = Arc::clone(&told);
    let daemon = world.daemon_with(|config| {
        config.build_watcher = Some(watcher);
        config.templates.code_interpreter = Recipe {
            run: vec![command.to_owned()],
            ..Recipe::default()
        };
    });
    (daemon.await, told)
}

fn of_the_template() -> CreateRequest {
    CreateRequest {
        template: "code-interpreter-v1".to_owned(),
        ..CreateRequest::default()
    }
}

#[test]
fn two_who_ask_at_once_wait_for_one_build_of_which_every_step_is_told() {
    test(async {
        let world = World::new();
        let (daemon, told) = building(&world, "sleep 0.5; echo made | tee /usr/local/made").await;
        let me = Caller::local();
        let both = async {
            tokio::join!(
                daemon.create(&me, of_the_template()),
                daemon.create(&me, of_the_template())
            )
        };
        let (first, second) = within(both).await;
        assert_eq!(first.unwrap().template, second.unwrap().template);
        let told = told.0.lock().unwrap();
        let installs = "1 command".to_owned();
        let line = "made".to_owned();
        assert_eq!(told.first(), Some(&BuildEvent::Begins { installs }));
        assert!(matches!(told[1], BuildEvent::Step { number: 1, of: 2, .. }), "{told:?}");
        assert_eq!(told[2], BuildEvent::Line { line });
        assert!(
            matches!(told.last(), Some(BuildEvent::Built { files: 1.., .. })),
            "{told:?}"
        );
        assert_eq!(told.iter().filter(|event| event.is_last()).count(), 1, "{told:?}");
    });
}

#[test]
fn a_build_that_fails_is_told_with_what_it_said_last() {
    test(async {
        let world = World::new();
        let (daemon, told) = building(&world, "echo no such thing >&2; exit 3").await;
        let refused = within(daemon.create(&Caller::local(), of_the_template())).await;
        assert!(
            matches!(refused, Err(DaemonError::TemplateFailed { .. })),
            "{refused:?}"
        );
        let told = told.0.lock().unwrap();
        let Some(BuildEvent::Failed {
            last_lines, told: why, ..
        }) = told.last()
        else {
            panic!("{told:?}");
        };
        assert_eq!(last_lines, &["no such thing"]);
        assert!(why.contains("exit code 3"), "{why}");
    });
}

#[test]
fn a_builder_that_is_no_builder_is_told_too() {
    test(async {
        let world = World::new();
        let told = Arc::new(Told::default());
        let watcher = Arc::clone(&told);
        let daemon = world.daemon_with(|config| {
            config.build_watcher = Some(watcher);
            config.program = Some("/bin/echo".into());
        });
        let refused = within(daemon.await.create(&Caller::local(), of_the_template())).await;
        assert!(
            matches!(refused, Err(DaemonError::TemplateFailed { .. })),
            "{refused:?}"
        );
        let told = told.0.lock().unwrap();
        let Some(BuildEvent::Failed { told: why, .. }) = told.last() else {
            panic!("{told:?}");
        };
        assert!(
            why.starts_with("the builder came to nothing: it ended with exit code 0"),
            "{why}"
        );
    });
}
