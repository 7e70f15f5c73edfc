//! `kill -9` of the daemon at any moment: no sandbox, no file and no record is lost, and nothing half-made stays.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use offleash_daemon::{Caller, CreateRequest, Daemon, ListFilter};

use super::world::{World, config, eventually, output, supervisors_below, test, within};

/// Says to the test's own program that it is to be a daemon, and for which state directory.
const STATE: &str = "OFFLEASH_TEST_DAEMON_STATE";
/// How many times the daemon is killed.
const POINTS: &str = "OFFLEASH_TEST_CRASH_POINTS";

/// Not a test: what the test below starts, and kills.
#[test]
#[ignore = "the daemon that another test kills"]
fn a_daemon_that_creates_without_end() {
    let Some(state) = std::env::var_os(STATE) else { return };
    test(async {
        let daemon = Daemon::open(config(Path::new(&state))).await.unwrap();
        told("ready");
        let mut creating = tokio::task::JoinSet::new();
        for number in 0.. {
            while creating.len() >= 3 {
                creating.join_next().await;
            }
            let daemon = daemon.clone();
            creating.spawn(async move {
                let me = Caller::local();
                let made = daemon.create(&me, CreateRequest::default()).await.unwrap();
                told(&format!("made {}", made.id));
                match number % 3 {
                    0 => {
                        told(&format!("ending {}", made.id));
                        daemon.kill(&me, &made.id).await.unwrap();
                    }
                    1 => drop(daemon.pause(&me, &made.id).await),
                    _ => daemon.set_timeout(&me, &made.id, 600).await.unwrap(),
                }
            });
        }
    });
}

/// A line that is out at once, not captured, and not torn.
fn told(line: &str) {
    let mut stderr = std::io::stderr().lock();
    stderr.write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_loses_nothing() {
    let points = std::env::var(POINTS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(30);
    test(async {
        let world = World::new();
        let mut alive: Vec<String> = Vec::new();
        for point in 0..points {
            let mut random = [0; 2];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
            let wait = Duration::from_micros(u64::from(u16::from_le_bytes(random)) * 3);
            let (made, ending) = run_and_kill(&world, wait);
            let daemon = world.daemon().await;
            within(daemon.drain()).await;
            let known = || -> Vec<String> {
                let page = daemon.list(&Caller::local(), &ListFilter::default()).unwrap();
                page.sandboxes.into_iter().map(|view| view.id).collect()
            };
            let found = known();
            alive.extend(made);
            // Who was told to end may or may not have; all the others are there, and nobody else but one whose creator
            // was killed before it could tell.
            for id in alive.iter().filter(|id| !ending.contains(id)) {
                assert!(found.contains(id), "point {point}: {id} is lost");
                let (view, _) = within(daemon.connect(&Caller::local(), id, None)).await.unwrap();
                let supervisor = daemon.supervisor(&view.id).await.unwrap();
                assert_eq!(output(&supervisor, "echo here").await, "here\n", "point {point}");
            }
            // One whose daemon died before it gave an order finds the end of its input and goes.
            eventually("the end of nobody's supervisors", || {
                (supervisors_below(world.site.root()).len() == found.len()).then_some(())
            })
            .await;
            let directories = std::fs::read_dir(world.site.state().join("sandboxes")).unwrap().count();
            assert_eq!(
                directories,
                found.len(),
                "point {point}: directories of nobody's sandboxes"
            );
            for id in known() {
                within(daemon.kill(&Caller::local(), &id)).await.unwrap();
            }
            alive.clear();
            within(daemon.drain()).await;
        }
        world.emptied().await;
    });
}

/// Runs a daemon for a time and kills it; answers which sandboxes it told of, and which it was about to end.
fn run_and_kill(world: &World, wait: Duration) -> (Vec<String>, Vec<String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crashes::a_daemon_that_creates_without_end",
            "--ignored",
            "--nocapture",
        ])
        .env(STATE, world.site.state())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    let (sender, ready) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut made, mut ending) = (Vec::new(), Vec::new());
        let mut lines = lines.lines().map_while(Result::ok);
        while let Some(line) = lines.next() {
            match line.split_once(' ') {
                Some(("made", id)) => made.push(id.to_owned()),
                Some(("ending", id)) => ending.push(id.to_owned()),
                _ if line == "ready" => drop(sender.send(())),
                _ if line.contains("panicked") => panic!("{line} {:?}", lines.next()),
                _ => {}
            }
        }
        (made, ending)
    });
    let _started = ready.recv_timeout(super::support::processes::TIMEOUT);
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}
