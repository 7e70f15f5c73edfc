//! What the record and the audit log have of the network.

use serde_json::Value;

use crate::support::processes::{finish, start};
use crate::support::{Site, stdout};
use crate::world::{Seen, World, world};

fn run(world: &World, site: &Site, flags: &[&str], attempts: &str) -> Seen {
    Seen::of_output(&finish(start(&mut world.sandboxed(site, flags, attempts))))
}

/// The lines of the log of the run that `seen` is of.
fn logged(site: &Site, seen: &Seen) -> Vec<Value> {
    assert!(site.succeed(["audit", "verify"]).contains("unbroken"));
    let log = stdout(&site.offleash(["audit", "show"]).output().unwrap());
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["run"] == seen.record["id"]).collect()
}

#[test]
fn every_connection_is_in_the_record_and_in_the_audit_log() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
attempt("reached", echoed, "www.example.com")
attempt("refused", echoed, "www.example.com", 22)
attempt("address", get, "93.184.216.35")
attempt("nobody there", echoed, "www.example.com", 12345)
attempt("no such name", get, "api.example.com")
"#;
    let seen = run(world, &site, &["--allow", "www.example.com:7,12345"], attempts);
    seen.done("reached");
    for name in ["refused", "address", "nobody there", "no such name"] {
        seen.refused(name);
    }
    let all = seen.connections("www.example.com");
    let at = |port: u16| *all.iter().find(|connection| connection["port"] == port).unwrap();
    let (reached, refused, failed) = (at(7), at(22), at(12345));
    assert_eq!(reached["verdict"], "allowed");
    assert_eq!(reached["rule"], "network.allow: www.example.com:7,12345");
    assert_eq!(reached["address"], "93.184.216.34");
    assert_eq!(
        (&reached["sent_bytes"], &reached["received_bytes"]),
        (&5.into(), &5.into())
    );
    assert!(reached["at"].as_str().unwrap().ends_with('Z') && reached["duration_ms"].is_u64());
    assert!(reached["reason"].is_null() && reached["asked"].is_null());
    assert_eq!(refused["verdict"], "refused");
    assert!(refused["rule"].is_null() && refused["address"].is_null());
    assert_eq!(failed["verdict"], "failed");
    assert!(failed["reason"].as_str().unwrap().contains("12345"), "{failed}");
    let address = seen.connection("93.184.216.35");
    assert_eq!((&address["verdict"], &address["port"]), (&"refused".into(), &80.into()));
    assert!(seen.refused_name("api.example.com") >= Some(1));
    let logged = logged(&site, &seen);
    assert_eq!(logged.last().unwrap()["event"], "run_ended");
    assert_eq!(logged.last().unwrap()["data"]["network"], seen.record["network"]);
}

#[test]
fn no_number_of_connections_keeps_them_from_the_audit_log() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
for number in range(1500):
    attempt("refused", echoed, "93.184.216.35", 1000 + number)
attempt("allowed", get, "www.example.com")
"#;
    let seen = run(world, &site, &["--allow", "www.example.com"], attempts);
    seen.refused("refused");
    seen.done("allowed");
    let count = seen.record["network"]["connections"].as_array().unwrap().len();
    assert_eq!(count, 1501);
    let logged = logged(&site, &seen);
    let ended = &logged.last().unwrap()["data"];
    assert_eq!(
        ended["outcome"]["kind"], "exited",
        "the line of the run is whole: {ended}"
    );
    let used: Vec<&Value> = logged.iter().filter(|line| line["event"] == "network_used").collect();
    let hosts: Vec<&Value> = used
        .iter()
        .flat_map(|line| line["data"]["connections"].as_array().unwrap())
        .map(|connection| &connection["host"])
        .collect();
    assert_eq!(hosts.len(), count);
    assert_eq!(ended["network"]["lines"], used.len());
    assert!(hosts.contains(&&"www.example.com".into()));
}

#[test]
fn a_name_that_nobody_answers_for_is_an_error_that_says_so() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
attempt("silent", get, "silent.example.com")
attempt("control", get, "www.example.com")
"#;
    let seen = run(world, &site, &["--allow", "*.example.com"], attempts);
    seen.done("control");
    let said = seen.refused("silent");
    assert!(
        said.contains("502") && said.contains("resolving `silent.example.com`"),
        "{said}"
    );
    let connection = seen.connection("silent.example.com");
    assert_eq!(connection["verdict"], "failed");
    assert_eq!(connection["rule"], "network.allow: *.example.com");
    assert!(connection["address"].is_null(), "{connection}");
}

#[test]
fn a_gateway_that_cannot_be_started_is_no_run_without_one() {
    let Some(world) = world() else { return };
    let attempts = r#"attempt("refused", get, "93.184.216.35")"#;
    let mut failed = 0;
    for files in 8..48 {
        let site = Site::new();
        let mut command = world.sandboxed_with_files(&site, files, &["--allow", "www.example.com"], attempts);
        let output = finish(start(&mut command));
        let record: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let ran = record
            .as_ref()
            .is_some_and(|record| record["outcome"]["kind"] == "exited");
        if ran && output.status.success() {
            let seen = Seen::of_output(&output);
            seen.refused("refused");
            assert_eq!(seen.connection("93.184.216.35")["verdict"], "refused");
        } else if output.status.code() == Some(125) {
            failed += 1;
        }
    }
    assert!(failed > 0, "it never failed");
    let site = Site::new();
    let mut control = world.sandboxed_with_files(&site, 256, &["--allow", "www.example.com"], attempts);
    Seen::of_output(&finish(start(&mut control))).refused("refused");
}

#[test]
fn n13_what_was_sent_is_told_as_sent_however_the_program_hangs_up() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let attempts = r#"
def reset():
    with dial("www.example.com", 80) as connection:
        response = say(connection, "GET /n13-reset HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return response
def half():
    with dial("www.example.com", 80) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: 9\r\n\r\nhalf")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
attempt("reset", reset)
attempt("half", half)
"#;
    let seen = run(world, &site, &["--allow", "www.example.com"], attempts);
    seen.done("reset");
    let connections = seen.connections("www.example.com");
    assert_eq!(connections.len(), 2);
    for connection in connections {
        assert_eq!(connection["verdict"], "allowed", "{connection:#}");
        assert!(connection["sent_bytes"].as_u64().unwrap() > 0, "{connection:#}");
    }
}
