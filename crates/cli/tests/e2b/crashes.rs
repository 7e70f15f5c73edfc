//! The server is killed at any moment: whatever it has answered is still true when the next one has started.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use crate::envd::Sandbox;
use crate::server::{NO_POOL, Server, supervisors_of};
use crate::support::processes::{eventually, groups_of};

/// How often the server is killed.
const POINTS: &str = "OFFLEASH_TEST_CRASHES";
const USUAL_POINTS: u64 = 30;
/// Who asks at the same time.
const CLIENTS: usize = 3;
/// Sandboxes that live through the next crash, too.
const KEPT: usize = 3;

/// What a client was told of a sandbox that it asked for.
#[derive(Debug, Clone)]
struct Known {
    sandbox: Sandbox,
    has_file: bool,
    pid: Option<u32>,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotAskedFor,
    /// No answer came, so that both may be true.
    AskedFor,
    Answered,
}

#[test]
fn what_was_answered_is_true_when_the_server_was_killed() {
    let points = std::env::var(POINTS).map_or(USUAL_POINTS, |text| text.parse().unwrap());
    let mut server = Server::start(NO_POOL);
    let mut before = Vec::new();
    for point in 0..points {
        let known = Mutex::new(before);
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (known, server) = (&known, &server);
                scope.spawn(move || client(server.address, &server.key, number, known));
            }
            // Every moment of a create, which takes some ten or hundred milliseconds, on a machine of any speed.
            std::thread::sleep(Duration::from_millis(random(600)));
            server.kill_now();
        });
        server.wait_and_start_again();
        before = check(&server, point, known.into_inner().unwrap());
    }
    drop(before);
    server.end();
}

/// Makes, uses and kills sandboxes until nobody answers.
fn client(address: SocketAddr, key: &str, number: usize, known: &Mutex<Vec<Known>>) {
    let note = |index: usize, change: &dyn Fn(&mut Known)| change(&mut known.lock().unwrap()[index]);
    for round in number.. {
        let sandbox = match Sandbox::create(address, key) {
            Ok(sandbox) => sandbox,
            Err((0, _)) => return,
            Err(refused) => panic!("{refused:?}"),
        };
        let index = {
            let mut known = known.lock().unwrap();
            known.push(Known {
                sandbox: sandbox.clone(),
                has_file: false,
                pid: None,
                end: End::NotAskedFor,
            });
            known.len() - 1
        };
        let has_file = sandbox.write(address, "/home/user/mark", &sandbox.id);
        note(index, &|known| known.has_file = has_file);
        if let Ok(pid) = sandbox.start(address, "exec sleep 3600") {
            note(index, &|known| known.pid = Some(pid));
        }
        if round % 2 == 0 {
            note(index, &|known| known.end = End::AskedFor);
            match sandbox.kill(address, key) {
                204 => note(index, &|known| known.end = End::Answered),
                0 => return,
                status => panic!("killing {} was answered with {status}", sandbox.id),
            }
        }
    }
}

/// Checks everything that was answered, kills most of what is there, and answers the rest.
fn check(server: &Server, point: u64, known: Vec<Known>) -> Vec<Known> {
    let there: HashSet<String> = server.list().into_iter().collect();
    let mut kept = Vec::new();
    for known in known {
        let (id, is_there) = (&known.sandbox.id, there.contains(&known.sandbox.id));
        match known.end {
            End::NotAskedFor => assert!(is_there, "point {point}: {id} is lost"),
            End::Answered => assert!(!is_there, "point {point}: {id} was killed and is there"),
            End::AskedFor => {}
        }
        if !is_there {
            eventually("the end of its groups", || groups_of(id).is_empty().then_some(()));
            continue;
        }
        if known.has_file {
            assert_eq!(known.sandbox.read(server, "/home/user/mark"), *id, "point {point}");
        }
        if let Some(pid) = known.pid {
            let running = known.sandbox.processes(server);
            assert!(
                running.contains(&pid.into()),
                "point {point}: {id}: {pid} in {running:?}"
            );
        }
        kept.push(known);
    }
    let mut kept: Vec<_> = kept.into_iter().filter(|known| known.end == End::NotAskedFor).collect();
    kept.drain(..kept.len().saturating_sub(KEPT));
    let keeps = |id: &String| kept.iter().any(|known| known.sandbox.id == *id);
    for id in there.iter().filter(|id| !keeps(id)) {
        // One whose creator had no answer works as every other does.
        assert_eq!(server.shell(id, "echo alive"), "alive\n", "point {point}: {id}");
        assert_eq!(
            server.ask(&format!("DELETE /sandboxes/{id}"), "").0,
            204,
            "point {point}: {id}"
        );
    }
    let wanted: HashSet<String> = kept.iter().map(|known| known.sandbox.id.clone()).collect();
    assert_eq!(
        server.list().into_iter().collect::<HashSet<_>>(),
        wanted,
        "point {point}"
    );
    eventually("only what is kept has a directory", || {
        (server.directories().into_iter().collect::<HashSet<_>>() == wanted).then_some(())
    });
    eventually("only what is kept has a supervisor", || {
        (supervisors_of(server) == wanted.len()).then_some(())
    });
    kept
}

fn random(below: u64) -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_ne_bytes(bytes) % below
}
