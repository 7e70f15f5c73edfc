//! What dies or runs out under the server: every answer says what is the matter, and nothing is left.

use std::io::Read as _;
use std::net::TcpStream;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::client::json;
use crate::envd::Sandbox;
use crate::server::{NO_POOL, Server, children_of, send_kill, supervisor_of};
use crate::support::processes::{TIMEOUT, eventually};
use crate::support::{is_root, skip};

/// Streams of a sandbox that is killed.
const STREAMS: usize = 24;

/// What a supervisor that waits for the next sandbox holds of the server: its pipes and its process.
const OF_A_WAITING_SUPERVISOR: u64 = 6;

#[test]
fn a_server_without_descriptors_says_so_and_recovers() {
    let server = Server::start(NO_POOL);
    let sandbox = Sandbox::create(server.address, &server.key).unwrap();
    let pid = Pid::from_child(server.child());
    let usual = prlimit(Some(pid), Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    let open = || {
        let all = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
        all.unwrap().count() as u64
    };
    let before = open();
    let mut short = 0;
    // From too few to take a connection to enough for all of it: every step on the way fails once.
    for more in 0..24 {
        let limit = Rlimit {
            current: Some(before + more),
            maximum: usual.maximum,
        };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
        // Nobody hears anything of a connection that is not taken.
        if more <= 2 {
            let idle = TcpStream::connect(server.address).unwrap();
            assert!(idle.peer_addr().is_ok());
        } else {
            // One of them may find a supervisor that waits, which has what it needs.
            let create = || Sandbox::create(server.address, &server.key);
            let taken =
                std::thread::scope(|scope| [scope.spawn(create), scope.spawn(create)].map(|one| one.join().unwrap()));
            prlimit(Some(pid), Resource::Nofile, usual).unwrap();
            for made in taken {
                match made {
                    Ok(made) => assert_eq!(made.kill(server.address, &server.key), 204),
                    Err((status, said)) => {
                        assert_eq!(status, 503, "{more}: {said}");
                        let body = json(said.as_bytes());
                        assert_eq!(body["code"], 503, "{more}: {said}");
                        assert!(body["message"].is_string() && !said.contains("/tmp"), "{more}: {said}");
                        short += 1;
                    }
                }
            }
        }
        prlimit(Some(pid), Resource::Nofile, usual).unwrap();
        eventually("the end of what was begun", || {
            (open() <= before + OF_A_WAITING_SUPERVISOR).then_some(())
        });
    }
    assert!(short > 0, "there were always enough");
    eventually("only one has a directory", || {
        (server.directories() == [sandbox.id.clone()]).then_some(())
    });
    assert_eq!(server.shell(&sandbox.id, "echo alive"), "alive\n");
    server.end();
}

#[test]
fn a_full_disk_is_told_and_mended_by_making_room() {
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let config = format!("{NO_POOL}[admission]\nmin_disk_mib = 24\n");
    let Some(server) = Server::start_on_small_disk(96, &config) else {
        return skip("a tmpfs cannot be mounted here");
    };
    let sandbox = Sandbox::create(server.address, &server.key).unwrap();
    assert!(sandbox.write(server.address, "/home/user/kept", "as it was"));
    // Of one message's length, so that whoever is refused has sent all of it.
    let mut full = None;
    for number in 0..96 {
        let request = format!("POST /files?path=/home/user/{number}");
        let (status, body) = sandbox.ask(server.address, &request, "application/octet-stream", &[1; 2 << 20]);
        if status != 200 {
            full = Some((status, body));
            break;
        }
    }
    let (status, body) = full.unwrap();
    let said = json(&body);
    assert_eq!((status, &said["code"]), (507, &507.into()), "{said}");
    assert!(said["message"].as_str().unwrap().contains("disk space"), "{said}");
    assert!(!said.to_string().contains("sandboxes/"), "{said}");
    // Another one is not even begun.
    let (status, said) = Sandbox::create(server.address, &server.key).unwrap_err();
    assert_eq!((status, &json(said.as_bytes())["code"]), (503, &503.into()), "{said}");
    assert!(said.contains("disk space") && !said.contains("/tmp"), "{said}");
    // What is there is there, can be asked for, and can be made room in.
    assert_eq!(sandbox.read(&server, "/home/user/kept"), "as it was");
    assert_eq!(server.ask(&format!("GET /sandboxes/{}", sandbox.id), "").0, 200);
    let remove = |path: String| {
        let message = serde_json::json!({ "path": path }).to_string();
        let request = "POST /filesystem.Filesystem/Remove";
        sandbox
            .ask(server.address, request, "application/json", message.as_bytes())
            .0
    };
    for number in 0..96 {
        assert_eq!(remove(format!("/home/user/{number}")), 200);
    }
    assert!(sandbox.write(server.address, "/home/user/again", "room"));
    let other = eventually("room for another", || Sandbox::create(server.address, &server.key).ok());
    assert_eq!(server.shell(&other.id, "echo alive"), "alive\n");
    server.end();
}

/// The gateway is a thread of the supervisor, and ends with it.
#[test]
fn a_sandbox_that_is_killed_from_outside_is_gone() {
    let server = Server::start(NO_POOL);
    let bystander = server.create();
    type Victims = fn(u32) -> Vec<u32>;
    let deaths: [(&str, Victims); 2] = [("supervisor", |supervisor| vec![supervisor]), ("guest", children_of)];
    for (death, victims) in deaths {
        let sandbox = Sandbox::create(server.address, &server.key).unwrap();
        let mut streams: Vec<_> = (0..STREAMS).map(|_| begun(&server, &sandbox)).collect();
        for victim in victims(supervisor_of(&server, &sandbox.id)) {
            send_kill(victim);
        }
        for stream in &mut streams {
            // It ends, however: by a reset, or by an end that is none of the command's.
            let said = until_cut(death, "a command's stream", stream);
            assert!(!said.contains("\"exited\":true"), "{death}: {said}");
        }
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

/// The stream of a command that runs.
fn begun(server: &Server, sandbox: &Sandbox) -> TcpStream {
    let mut stream = sandbox.stream(server.address, "echo begun; exec sleep 3600").unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut seen = Vec::new();
    while !seen.windows(3).any(|three| three == b"pid") {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    stream
}

/// What comes until the connection is closed or reset, its first part; it must be.
fn until_cut(death: &str, what: &str, stream: &mut TcpStream) -> String {
    let (mut first, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => first.extend_from_slice(&piece[..length.min((1 << 16) - first.len().min(1 << 16))]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{death}: {what} is not cut: {error}"),
        }
    }
    String::from_utf8_lossy(&first).into_owned()
}
