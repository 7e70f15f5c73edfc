//! Cells in great number and with much to say: neither the server nor a supervisor nor a driver grows with them.

use serde_json::{Value, json};

use crate::client::{ask, chunked};
use crate::loads::{peak_kib, resident_kib};
use crate::server::{NO_POOL, Server, supervisor_of};

/// How many cells are run in one context.
const CELLS: &str = "OFFLEASH_TEST_CELLS";
const USUAL_CELLS: u64 = 4000;

/// Runs a cell in the default context of a language; answers the lines of what happened.
fn execute(server: &Server, id: &str, language: &str, code: &str) -> Vec<Vec<u8>> {
    let request = format!("POST /v1/sandboxes/{id}/execute");
    let body = json!({ "code": code, "language": language }).to_string();
    let (status, answer) = ask(server.address, &server.key, &request, "", body.as_bytes()).unwrap();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    let body = chunked(&mut answer.as_slice(), code);
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(<[u8]>::to_vec).collect()
}

/// Whether a line tells of output. Its kind comes early, and is not looked for in the output itself.
fn is_output(line: &[u8]) -> bool {
    let head = &line[..line.len().min(80)];
    head.windows(15).any(|part| part == b"\"kind\":\"stdout\"")
}

/// What happened, but for output and signs of life.
fn events(lines: &[Vec<u8>]) -> Vec<Value> {
    let others = lines.iter().filter(|line| !is_output(line));
    let events = others.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    events.filter(|event| event["kind"] != "keepalive").collect()
}

/// The text of a cell's value, which must have one.
fn value(server: &Server, id: &str, code: &str) -> String {
    let events = events(&execute(server, id, "python", code));
    let text = events[1]["result"]["forms"]["text/plain"].as_str();
    text.unwrap_or_else(|| panic!("{code}: {events:?}")).to_owned()
}

#[test]
fn a_gigabyte_of_output_is_cut_and_passes_through_little_memory() {
    /// Of the output of a cell.
    const KEPT: u64 = 64 << 20;
    /// What a process may need more than before.
    const MORE_KIB: u64 = 64 * 1024;

    let server = Server::start(NO_POOL);
    let id = server.create();
    let processes = [server.child().id(), supervisor_of(&server, &id)];
    for code in [
        "line = 'x' * 1023\nfor _ in range(1 << 20): print(line)",
        "import subprocess\nsubprocess.run('yes | head -c 1073741824', shell=True)",
    ] {
        // Not what a first cell takes.
        execute(&server, &id, "python", "");
        let before = processes.map(peak_kib);
        let lines = execute(&server, &id, "python", code);
        let kept: usize = lines.iter().filter(|line| is_output(line)).map(Vec::len).sum();
        // As it is written in JSON.
        assert!(u64::try_from(kept).unwrap() > KEPT, "{code}: {kept}");
        assert!(u64::try_from(kept).unwrap() < 2 * KEPT, "{code}: {kept}");
        let told = events(&lines);
        let truncated = json!({ "kind": "truncated", "what": "output", "limit": KEPT });
        assert_eq!(
            told.iter().filter(|event| **event == truncated).count(),
            1,
            "{code}: {told:?}"
        );
        assert_eq!(
            told.last().unwrap(),
            &json!({ "kind": "end", "outcome": "done" }),
            "{code}"
        );
        for (process, before) in processes.into_iter().zip(before) {
            let more = peak_kib(process).saturating_sub(before);
            assert!(more < MORE_KIB, "{code}: {process} took {more} KiB more");
        }
    }
    assert_eq!(value(&server, &id, "1 + 1"), "2");
    server.end();
}

#[test]
fn thousands_of_cells_in_one_context_take_no_more_memory() {
    /// What a process may have more at the end than after the first quarter: what allocators keep, and caches.
    const MORE_KIB: u64 = 4 * 1024;

    let cells = std::env::var(CELLS).map_or(USUAL_CELLS, |text| text.parse().unwrap());
    let server = Server::start(NO_POOL);
    let id = server.create();
    let driver = "next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmRSS:'))";
    let resident = || {
        let of_driver: u64 = value(&server, &id, driver).parse().unwrap();
        [
            resident_kib(server.child().id()),
            resident_kib(supervisor_of(&server, &id)),
            of_driver,
        ]
    };
    let mut before = None;
    for number in 0..cells {
        if number == cells / 4 {
            before = Some(resident());
        }
        let text = value(&server, &id, &format!("x = {number}\nprint(x)\nx + 1"));
        assert_eq!(text, (number + 1).to_string());
    }
    let (before, after) = (before.unwrap(), resident());
    for (process, (before, after)) in ["server", "supervisor", "driver"]
        .iter()
        .zip(before.into_iter().zip(after))
    {
        let more = after.saturating_sub(before);
        assert!(
            more < MORE_KIB,
            "the {process} has {more} KiB more than {before} KiB after {cells} cells"
        );
    }
    server.end();
}
