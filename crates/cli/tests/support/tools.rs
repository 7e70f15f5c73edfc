//! `offleash mcp`, as agent hosts call it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use super::{Site, processes};

/// What the tools of `offleash mcp` with `flags` answer to calls, one after the other. It has ended then.
pub fn told(site: &Site, flags: &[&str], calls: &[Value]) -> Vec<String> {
    let mut command = site.offleash([&["mcp", "--no-workspace"], flags].concat());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = processes::start(&mut command);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut say = |message: Value| writeln!(input, "{message}").unwrap();
    let client = json!({ "name": "test", "version": "1" });
    say(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client } }));
    lines.next().unwrap().unwrap();
    say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let mut told = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        say(json!({ "jsonrpc": "2.0", "id": number + 1, "method": "tools/call", "params": call }));
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        told.push(answer["result"]["content"][0]["text"].as_str().unwrap().to_owned());
    }
    drop(input);
    processes::wait(&mut child);
    told
}
