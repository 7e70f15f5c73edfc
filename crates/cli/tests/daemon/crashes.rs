//! `kill -9` of the daemon at any moment: no sandbox, no file and no record is lost, and nothing half-made stays.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use offleash_daemon::{Caller, CreateRequest, Daemon, ListFilter, SnapshotFilter, SnapshotRequest};

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

/// Not a test: what the test below starts, and kills.
#[test]
#[ignore = "the daemon that another test kills"]
fn a_daemon_that_makes_snapshots_without_end() {
    let Some(state) = std::env::var_os(STATE) else { return };
    test(async {
        let daemon = Daemon::open(config(Path::new(&state))).await.unwrap();
        let me = Caller::local();
        let page = daemon.list(&me, &ListFilter::default()).unwrap();
        let sandbox = page.sandboxes.into_iter().next().unwrap();
        told("ready");
        for number in 0_u32.. {
            let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
            output(&supervisor, &format!("echo {number} >~/number")).await;
            let request = SnapshotRequest::default();
            let snapshot = daemon.create_snapshot(&me, &sandbox.id, request).await.unwrap();
            told(&format!("made {} {number}", snapshot.id));
            let checkpoint = daemon.create_checkpoint(&me, &sandbox.id, None).await.unwrap();
            told(&format!("checkpoint {} {number}", checkpoint.id));
            daemon.restore(&me, &sandbox.id, &checkpoint.id).await.unwrap();
            if number % 2 == 1 {
                told(&format!("ending {}", snapshot.id));
                daemon.remove_snapshot(&me, &snapshot.id).await.unwrap();
            }
        }
    });
}

#[test]
fn a_daemon_that_is_killed_while_it_makes_snapshots_loses_none_and_leaves_no_half_of_one() {
    let points = std::env::var(POINTS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(8);
    test(async {
        let world = World::new();
        let me = Caller::local();
        for point in 0..points {
            let daemon = world.daemon().await;
            let sandbox = within(daemon.create(&me, CreateRequest::default())).await.unwrap();
            let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
            output(&supervisor, "seq 2000 >~/lines; echo none >~/number").await;
            within(daemon.drain()).await;
            world.close(daemon).await;
            let mut random = [0; 2];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
            let wait = Duration::from_micros(u64::from(u16::from_le_bytes(random)) * 10);
            let lines = lines_of_killed(&world, "crashes::a_daemon_that_makes_snapshots_without_end", wait);
            let told = |word: &str| -> Vec<(String, String)> {
                let of_word = lines.iter().filter_map(|line| line.strip_prefix(word));
                of_word
                    .map(|line| line.trim_start().split_once(' ').unwrap_or((line.trim_start(), "")))
                    .map(|(id, number)| (id.to_owned(), number.to_owned()))
                    .collect()
            };
            let daemon = world.daemon().await;
            let page = daemon.list_snapshots(&me, &SnapshotFilter::default()).unwrap();
            let listed: Vec<String> = page.snapshots.into_iter().map(|view| view.id).collect();
            let ending = told("ending ");
            for (id, number) in told("made ") {
                if ending.iter().any(|(ended, _)| *ended == id) {
                    continue;
                }
                assert!(listed.contains(&id), "point {point}: snapshot {id} is lost: {lines:?}");
                let request = CreateRequest {
                    snapshot: Some(id),
                    ..CreateRequest::default()
                };
                let copy = within(daemon.create(&me, request)).await.unwrap();
                let its = daemon.supervisor(&copy.id).await.unwrap();
                let said = output(&its, "cat ~/number; wc -l <~/lines").await;
                assert_eq!(said, format!("{number}\n2000\n"), "point {point}");
                within(daemon.kill(&me, &copy.id)).await.unwrap();
            }
            let (checkpoints, _) = daemon.list_checkpoints(&me, &sandbox.id).unwrap();
            for (id, _) in told("checkpoint ") {
                assert!(
                    checkpoints.iter().any(|view| view.id == id),
                    "point {point}: checkpoint {id} is lost"
                );
            }
            // Whatever was being done with it, it is there, with what it had at some moment.
            let supervisor = within(daemon.supervisor(&sandbox.id)).await.unwrap();
            assert_eq!(output(&supervisor, "wc -l <~/lines").await, "2000\n", "point {point}");
            let known: Vec<String> = checkpoints.into_iter().map(|view| view.id).chain(listed).collect();
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
            within(daemon.drain()).await;
            world.close(daemon).await;
            // What was still used a moment ago goes with the next start.
            let daemon = world.daemon().await;
            let found = std::fs::read_dir(world.site.state().join("snapshots"))
                .unwrap()
                .flatten();
            let unknown: Vec<_> = found
                .map(|found| found.file_name().into_string().unwrap())
                .filter(|name| !known.contains(name))
                .collect();
            assert!(unknown.is_empty(), "point {point}: {unknown:?} are nobody's");
            let page = daemon.list_snapshots(&me, &SnapshotFilter::default()).unwrap();
            for view in page.snapshots {
                within(daemon.remove_snapshot(&me, &view.id)).await.unwrap();
            }
            within(daemon.drain()).await;
            world.close(daemon).await;
            let left = std::fs::read_dir(world.site.state().join("snapshots")).unwrap().count();
            assert_eq!(left, 0, "point {point}");
        }
        world.emptied().await;
    });
}

/// Not a test: what the test below starts, and kills.
#[test]
#[ignore = "the daemon that another test kills"]
fn a_daemon_that_puts_away_and_wakes_without_end() {
    let Some(state) = std::env::var_os(STATE) else { return };
    test(async {
        let daemon = Daemon::open(config(Path::new(&state))).await.unwrap();
        let me = Caller::local();
        let page = daemon.list(&me, &ListFilter::default()).unwrap();
        let sandbox = page.sandboxes.into_iter().next().unwrap();
        told("ready");
        for number in 1_u32.. {
            let (view, _) = daemon.connect(&me, &sandbox.id, None).await.unwrap();
            let supervisor = daemon.supervisor(&view.id).await.unwrap();
            output(&supervisor, &format!("echo {number} >~/number")).await;
            told(&format!("wrote {number}"));
            daemon.put_away(&me, &sandbox.id).await.unwrap();
            told("away");
        }
    });
}

#[test]
fn a_daemon_that_is_killed_while_it_puts_away_and_wakes_loses_no_file() {
    let points = std::env::var(POINTS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(24);
    test(async {
        let world = World::new();
        let me = Caller::local();
        let daemon = world.daemon().await;
        let sandbox = within(daemon.create(&me, CreateRequest::default())).await.unwrap();
        let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
        output(&supervisor, "seq 2000 >~/lines; echo 0 >~/number").await;
        drop(supervisor);
        within(daemon.drain()).await;
        world.close(daemon).await;
        for point in 0..points {
            let mut random = [0; 2];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
            let wait = Duration::from_micros(u64::from(u16::from_le_bytes(random)) * 10);
            let lines = lines_of_killed(&world, "crashes::a_daemon_that_puts_away_and_wakes_without_end", wait);
            let was = world.registry().sandboxes().unwrap()[0].state;
            let daemon = world.daemon().await;
            let (view, _) = within(daemon.connect(&me, &sandbox.id, None)).await.unwrap();
            assert_eq!(view.id, sandbox.id, "point {point}");
            let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
            let said = output(&supervisor, "cat ~/number; wc -l <~/lines").await;
            let (number, rest) = said.split_once('\n').unwrap();
            let wrote = lines.iter().filter_map(|line| line.strip_prefix("wrote ")).next_back();
            let (number, wrote): (u32, u32) = (number.parse().unwrap(), wrote.map_or(0, |text| text.parse().unwrap()));
            // What was written before it was told is there; one that was about to tell may have written more.
            assert!(
                number >= wrote,
                "point {point} ({was}): {number} after {wrote}: {lines:?}"
            );
            assert_eq!(rest, "2000\n", "point {point} ({was})");
            output(&supervisor, "echo 0 >~/number").await;
            drop(supervisor);
            eventually("the end of other supervisors", || {
                (supervisors_below(world.site.root()).len() == 1).then_some(())
            })
            .await;
            within(daemon.drain()).await;
            world.close(daemon).await;
        }
        let daemon = world.daemon().await;
        within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        world.emptied().await;
    });
}

/// Runs a daemon for a time after it is ready, and kills it; answers what it told.
fn lines_of_killed(world: &World, name: &str, wait: Duration) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(STATE, world.site.state())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let ready = lines.find(|line| line == "ready" || line.contains("panicked"));
    assert_eq!(ready.as_deref(), Some("ready"));
    let reader = std::thread::spawn(move || lines.collect::<Vec<String>>());
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = reader.join().unwrap();
    assert!(!lines.iter().any(|line| line.contains("panicked")), "{lines:?}");
    lines
}
