//! What a sandbox does to its network, or somebody to its gateway: everything else goes on, or all of it ends.

use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open};

use crate::support::processes::{children_named, eventually, finish, processes_with, read_until, start};
use crate::support::{Site, skip, stderr};
use crate::world::{World, times, world};

/// Takes what the network gives without end, on a few connections at once.
const TRANSFERS: &str = r#"
def transfer():
    with dial("www.example.com", 12) as connection:
        while connection.recv(1 << 20):
            pass
threads = [threading.Thread(target=transfer) for _ in range(4)]
for thread in threads:
    thread.start()
while sum(thread.is_alive() for thread in threads) < 4:
    pass
with dial("www.example.com", 12) as connection:
    connection.recv(4 << 20, socket.MSG_WAITALL)
os.write(1, b"going\n")
for thread in threads:
    thread.join()
"#;

#[test]
fn n12_a_thousand_connections_at_once_are_all_served() {
    let Some(world) = world() else { return };
    let files = getrlimit(Resource::Nofile).maximum;
    if files.is_some_and(|files| files < 4300) {
        return skip("offleash may not open as many files here as a thousand connections need");
    }
    let attempts = r#"
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def many():
    connections = [dial("www.example.com", 7) for _ in range(1000)]
    for number, connection in enumerate(connections):
        connection.sendall(b"%04d" % number)
    return all(connection.recv(4, socket.MSG_WAITALL) == b"%04d" % number for number, connection in enumerate(connections))
attempt("many", many)
"#;
    let seen = world.inside(&["--allow", "www.example.com:7"], attempts);
    assert_eq!(seen.done("many"), "True");
    let connections = seen.connections("www.example.com");
    assert_eq!(connections.len(), 1000);
    for connection in connections {
        assert_eq!(
            (&connection["sent_bytes"], &connection["received_bytes"]),
            (&4.into(), &4.into())
        );
    }
}

#[test]
fn n12_those_who_say_one_byte_keep_nobody_else_waiting() {
    let Some(world) = world() else { return };
    let attempts = r#"
slow = []
for port, byte in [(443, b"\x16"), (80, b"G"), (7, b"\x16"), (7, b"G")]:
    for _ in range(50):
        connection = dial("www.example.com", port)
        connection.sendall(byte)
        slow.append(connection)
attempt("meanwhile", echoed, "www.example.com")
attempt("page", get, "www.example.com")
def ended(connection):
    connection.settimeout(60)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return "ended"
for number, connection in enumerate(slow[:150]):
    attempt("slow %03d" % number, ended, connection)
attempt("afterwards", echoed, "www.example.com")
"#;
    let seen = world.inside(&["--allow", "www.example.com:7,80,443"], attempts);
    seen.all_done();
    let connections = seen.connections("www.example.com");
    let late = |port: u16| {
        let of_port = connections.iter().copied().filter(|one| one["port"] == port);
        times(of_port.filter(|one| one["verdict"] == "refused"))
    };
    assert_eq!((late(443), late(80)), (50, 50), "{:#}", seen.record["network"]);
}

#[test]
fn n12_connections_that_are_half_open_end_with_what_was_carried() {
    let Some(world) = world() else { return };
    let attempts = r#"
def closed_first(port):
    with dial("www.example.com", port) as connection:
        connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(100)
        except ConnectionError:
            return "reset"
for port in [7, 80, 443]:
    attempt("closed %d" % port, closed_first, port)
def answered_after():
    with dial("www.example.com", 9) as connection:
        connection.sendall(b"asked")
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100, socket.MSG_WAITALL).startswith(b"5 ")
attempt("answered", answered_after)
def abandoned():
    for _ in range(50):
        connection = dial("www.example.com", 11)
        connection.sendall(b"x")
        connection.shutdown(socket.SHUT_WR)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
attempt("abandoned", abandoned)
attempt("afterwards", echoed, "www.example.com")
"#;
    let seen = world.inside(&["--allow", "www.example.com:7,9,11,80,443"], attempts);
    seen.all_done();
    assert_eq!(seen.done("answered"), "True");
}

#[test]
fn n12_clients_that_never_read_are_sent_no_more_than_fits_and_others_are_served() {
    let Some(world) = world() else { return };
    let attempts = r#"
held = [dial("www.example.com", 12) for _ in range(80)]
for number in range(3):
    attempt("meanwhile %d" % number, echoed, "www.example.com", 7, b"x" * 20000)
def large():
    with dial("www.example.com", 9) as connection:
        for _ in range(16):
            connection.sendall(b"x" * (1 << 20))
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100, socket.MSG_WAITALL).startswith(b"%d " % (16 << 20))
attempt("large", large)
"#;
    let seen = world.inside(&["--allow", "www.example.com:7,9,12"], attempts);
    seen.all_done();
    assert_eq!(seen.done("large"), "True");
    for connection in seen.connections("www.example.com") {
        let received = connection["received_bytes"].as_u64().unwrap();
        assert!(received < 64 << 20, "{connection:#}");
    }
}

#[test]
fn what_was_carried_before_a_reset_is_counted_to_the_byte() {
    let Some(world) = world() else { return };
    let attempts = r#"
def reset_after(size):
    connection = dial("www.example.com", 7)
    block = b"x" * size
    sender = threading.Thread(target=connection.sendall, args=(block,))
    sender.start()
    left = size
    while left:
        left -= len(connection.recv(min(left, 1 << 16)))
    sender.join()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
for size in [1, 70000, 3 << 20]:
    attempt("reset after %d" % size, reset_after, size)
"#;
    let seen = world.inside(&["--allow", "www.example.com:7"], attempts);
    seen.all_done();
    let mut counted: Vec<_> = seen
        .connections("www.example.com")
        .iter()
        .map(|one| (one["sent_bytes"].as_u64(), one["received_bytes"].as_u64()))
        .collect();
    counted.sort_unstable();
    let expected = [1, 70_000, 3 << 20].map(|size| (Some(size), Some(size)));
    assert_eq!(counted, expected, "{:#}", seen.record["network"]);
}

/// A run in the middle of transfers. Its command line has `word`.
fn transferring(world: &World, site: &Site, word: &str) -> Child {
    let program = format!("{}\n{TRANSFERS}", include_str!("client.py"));
    let flags = ["run", "--allow", "www.example.com:7,12", "--"];
    let mut arguments = flags.to_vec();
    arguments.extend_from_slice(&["/usr/bin/python3", "-I", "-S", "-c", &program, word]);
    let mut run = start(world.offleash(site, &arguments).stdin(Stdio::null()));
    read_until(run.stdout.as_mut().unwrap(), "going\n");
    run
}

#[test]
fn n12_a_gateway_that_ends_in_the_middle_of_transfers_leaves_the_run_without_a_network() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let run = transferring(world, &site, "gateway");
    // What the gateway listens at is taken from it, which no sandbox can do: it has nothing left to serve then.
    let gateway = children_named(run.id(), "offleash: gateway")[0];
    let listener = match listener_of(gateway) {
        Ok(listener) => listener,
        Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => {
            let mut run = run;
            run.kill().unwrap();
            run.wait().unwrap();
            return skip("the descriptors of other processes cannot be had here");
        }
        Err(error) => panic!("{error}"),
    };
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    let output = finish(run);
    assert!(
        output.status.code().is_some_and(|code| code < 125),
        "{}",
        stderr(&output)
    );
    let line = "the gateway of the sandbox's network ended by itself with code 1; there is no network any more";
    assert!(stderr(&output).contains(line), "{}", stderr(&output));
    // The next one is not harmed.
    let seen = world.inside(
        &["--allow", "www.example.com:7"],
        "attempt(\"next\", echoed, \"www.example.com\")",
    );
    assert_eq!(seen.done("next"), "True");
}

/// A descriptor of a socket at which a process listens.
fn listener_of(process: u32) -> rustix::io::Result<OwnedFd> {
    let number = Pid::from_raw(process.cast_signed()).unwrap();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return Err(rustix::io::Errno::PERM);
    };
    let process = pidfd_open(number, PidfdFlags::empty())?;
    for entry in entries {
        let number: i32 = entry.unwrap().file_name().to_string_lossy().parse().unwrap();
        let copy = match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(copy) => copy,
            // It was closed meanwhile.
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => return Err(error),
        };
        if rustix::net::sockopt::socket_acceptconn(&copy) == Ok(true) {
            return Ok(copy);
        }
    }
    panic!("it listens nowhere");
}

#[test]
fn r8_a_supervisor_killed_in_the_middle_of_transfers_leaves_no_process() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let word = format!("transfers-{}", std::process::id());
    let mut run = transferring(world, &site, &word);
    assert!(processes_with(&word).len() > 1);
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("the end of the sandbox", || {
        processes_with(&word).is_empty().then_some(())
    });
}
