//! Too much at once, and what dies under it: every answer says what is the matter, and nothing is left.

use std::io::Read as _;
use std::net::TcpStream;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::envd::Sandbox;
use crate::server::{NO_POOL, Server, children_of, keeper_of, send_kill};
use crate::support::processes::{PATIENCE, eventually};
use crate::support::skip;

/// How many sandboxes are asked for at once, and how many of them live at the same time.
const SANDBOXES: &str = "OFFLEASH_TEST_SANDBOXES";
const AT_ONCE: usize = 100;
const ALIVE: usize = 50;

#[test]
fn many_sandboxes_are_made_at_once_and_live_together() {
    let alive = std::env::var(SANDBOXES).map_or(ALIVE, |text| text.parse().unwrap());
    let server = Server::start(NO_POOL);
    let mut made = Vec::new();
    while made.len() < alive {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let clients = (0..AT_ONCE).map(|_| scope.spawn(|| Sandbox::create(server.address, &server.key)));
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for answer in answers {
            match answer {
                Ok(sandbox) => made.push(sandbox),
                // The machine is short of something, and says so at once.
                Err((503, said)) if said.contains("\"code\":503") => {}
                Err(refused) => panic!("{refused:?}"),
            }
        }
        if made.is_empty() {
            skip("the machine has no room for a sandbox at this moment");
            return server.end();
        }
        let more = made.len().saturating_sub(alive);
        for sandbox in made.drain(..more) {
            assert_eq!(sandbox.kill(server.address, &server.key), 204);
        }
    }
    for sandbox in &made {
        assert_eq!(server.shell(&sandbox.id, "hostname >/dev/null; echo alive"), "alive\n");
    }
    server.end();
}

#[test]
fn a_server_without_descriptors_says_so_and_recovers() {
    let server = Server::start(NO_POOL);
    let sandbox = Sandbox::create(server.address, &server.key).unwrap();
    let pid = Pid::from_child(server.child());
    let usual = prlimit(Some(pid), Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .unwrap()
        .count() as u64;
    let few = Rlimit {
        current: Some(open + 12),
        maximum: usual.maximum,
    };
    prlimit(Some(pid), Resource::Nofile, few).unwrap();
    let idle: Vec<_> = (0..10).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    // The next ones wait, are cut, or are answered with what is missing; none hangs, and none is told a lie.
    let mut answers = Vec::new();
    for _ in 0..4 {
        match Sandbox::create(server.address, &server.key) {
            Ok(made) => assert_eq!(made.kill(server.address, &server.key), 204),
            Err(refused) => answers.push(refused),
        }
    }
    for (status, said) in &answers {
        assert!([0, 429, 500, 503].contains(status), "{answers:?}");
        assert!(*status == 0 || said.contains("\"message\":"), "{answers:?}");
        assert!(!said.contains("/tmp"), "{answers:?}");
    }
    drop(idle);
    prlimit(Some(pid), Resource::Nofile, usual).unwrap();
    let made = eventually("another sandbox", || Sandbox::create(server.address, &server.key).ok());
    assert_eq!(server.shell(&made.id, "echo alive"), "alive\n");
    assert_eq!(server.shell(&sandbox.id, "echo alive"), "alive\n");
    server.end();
}

#[test]
fn a_sandbox_that_is_killed_from_outside_is_gone() {
    let server = Server::start(NO_POOL);
    let bystander = server.create();
    type Victims = fn(u32) -> Vec<u32>;
    let deaths: [(&str, Victims); 2] = [("keeper", |keeper| vec![keeper]), ("guest", children_of)];
    for (death, victims) in deaths {
        let sandbox = Sandbox::create(server.address, &server.key).unwrap();
        let mut stream = sandbox.stream(server.address, "echo begun; exec sleep 3600").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = Vec::new();
        while !seen.windows(3).any(|three| three == b"pid") {
            let mut piece = [0; 1024];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "{death}: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..read]);
        }
        for victim in victims(keeper_of(&server, &sandbox.id)) {
            send_kill(victim);
        }
        // The stream ends, however: by a reset, or by an end that is none of the command's.
        let _cut = stream.read_to_end(&mut seen);
        let said = String::from_utf8_lossy(&seen);
        assert!(!said.contains("\"exited\":true"), "{death}: {said}");
        eventually("it is gone", || (!server.list().contains(&sandbox.id)).then_some(()));
        assert_eq!(
            server.ask(&format!("GET /sandboxes/{}", sandbox.id), "").0,
            404,
            "{death}"
        );
        assert_eq!(
            server.ask(&format!("DELETE /sandboxes/{}", sandbox.id), "").0,
            404,
            "{death}"
        );
        let (status, body) = sandbox.ask(server.address, "GET /health", "text/plain", b"");
        assert_eq!(status, 502, "{death}: {}", String::from_utf8_lossy(&body));
        eventually("its directory is gone", || {
            (server.directories() == [bystander.clone()]).then_some(())
        });
        assert_eq!(server.shell(&bystander, "echo alive"), "alive\n", "{death}");
    }
    server.end();
}
