//! Much at once: everything is answered, nothing is mixed up, and nothing grows with it that must not.

use std::path::Path;

use crate::envd::Sandbox;
use crate::server::{NO_POOL, Server, supervisor_of};
use crate::support::skip;

/// How many sandboxes are asked for at once, and how many of them live at the same time.
const SANDBOXES: &str = "OFFLEASH_TEST_SANDBOXES";
const AT_ONCE: usize = 100;
/// For each CPU.
const ALIVE: usize = 50;
const MAX_ALIVE: usize = 200;
/// Streams of one sandbox.
const STREAMS: usize = 24;

#[test]
fn many_sandboxes_are_made_at_once_and_live_together() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let alive = std::env::var(SANDBOXES).map_or((ALIVE * cpus).min(MAX_ALIVE), |text| text.parse().unwrap());
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
fn streams_beside_one_another_are_whole() {
    const LINES: usize = 3000;
    let server = Server::start(NO_POOL);
    let sandboxes: Vec<_> = (0..4)
        .map(|_| Sandbox::create(server.address, &server.key).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (sandbox, stream) in sandboxes
            .iter()
            .flat_map(|sandbox| (0..STREAMS).map(move |stream| (sandbox, stream)))
        {
            let address = server.address;
            scope.spawn(move || {
                // Written in many pieces, and no line is like that of another stream.
                let mark = format!("{}-{stream}", sandbox.id);
                let line = format!("for number in {{1..{LINES}}}; do echo {mark}-$number; done");
                let output = sandbox.output(address, &line);
                let wanted: String = (1..=LINES).map(|number| format!("{mark}-{number}\n")).collect();
                assert!(
                    output == wanted,
                    "{mark}: {} bytes instead of {}",
                    output.len(),
                    wanted.len()
                );
            });
        }
    });
    server.end();
}

#[test]
fn files_of_gigabytes_pass_through_little_memory() {
    /// What is carried each way.
    const SIZE: u64 = 2 << 30;
    /// What a process may need more than before, however large the file.
    const MORE_KIB: u64 = 64 * 1024;
    /// What has to be free on the disk besides.
    const SPARE: u64 = 8 << 30;

    // Where the disk is memory, the sandbox has it of its own.
    let server = Server::start(&format!("{NO_POOL}[limits]\ndisk_mib = 8192\nmemory_mib = 6144\n"));
    let disk = rustix::fs::statvfs(server.site.root()).unwrap();
    if disk.f_bavail * disk.f_frsize < SIZE + SPARE {
        skip("the disk has no room for a file of gigabytes");
        return server.end();
    }
    let sandbox = Sandbox::create(server.address, &server.key).unwrap();
    // Not the one that a first transfer makes.
    assert!(sandbox.write(server.address, "/home/user/small", "x"));
    let processes = [server.child().id(), supervisor_of(&server, &sandbox.id)];
    let before = processes.map(peak_kib);

    // Sparse, so that reading it costs no disk.
    server.shell(&sandbox.id, &format!("truncate -s {SIZE} /home/user/sparse"));
    let carried = sandbox.download(server.address, "/home/user/sparse").unwrap();
    assert_eq!(carried, SIZE);
    // What is written takes room, once.
    server.shell(&sandbox.id, "rm /home/user/sparse");
    let status = sandbox.upload(server.address, "/home/user/big", SIZE).unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        server.shell(&sandbox.id, "stat -c %s /home/user/big").trim(),
        SIZE.to_string()
    );
    for (process, before) in processes.into_iter().zip(before) {
        let more = peak_kib(process).saturating_sub(before);
        assert!(
            more < MORE_KIB,
            "{process} took {more} KiB more for a file of {SIZE} bytes"
        );
    }
    server.end();
}

/// The most memory that a process ever had.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    kib(pid, "VmHWM:")
}

/// The memory that a process has now.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    kib(pid, "VmRSS:")
}

fn kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
