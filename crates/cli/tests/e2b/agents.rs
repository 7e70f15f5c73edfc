//! Agent hosts, with the official client of the Model Context Protocol, over standard streams and over HTTP.

use std::process::Command;

use crate::kits::Kit;
use crate::languages::run;
use crate::server::{NO_POOL, Server};
use crate::support::processes::eventually;
use crate::support::{Site, binary, stderr, stdout};

/// The cases.
const CASES: (&str, &str) = ("agents.py", include_str!("python/agents.py"));

#[test]
fn an_agent_host_speaks_over_standard_streams() {
    let Some(kit) = Kit::find("python_mcp") else {
        return;
    };
    let site = Site::sharing_templates();
    site.write("given.txt", "from outside");
    let mut cases = program(&kit, site.root(), "stdio");
    let environment = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
        ("HOME", site.root().join("home").into_os_string()),
        ("OFFLEASH_STATE", site.state().into_os_string()),
        ("OFFLEASH", binary().into_os_string()),
    ];
    std::fs::create_dir(site.root().join("home")).unwrap();
    let output = cases.envs(environment).current_dir(site.workspace()).output().unwrap();
    let said = stdout(&output);
    assert!(output.status.success(), "{said}\n{}", stderr(&output));
    assert_eq!(
        std::fs::read_to_string(site.workspace().join("given.txt")).unwrap(),
        "from outside"
    );
    // The directory of one that was killed is removed by the next that is started.
    let own = site.state().join("own");
    eventually("the directories of sandboxes are gone", || {
        let next = site.offleash(["mcp"]).output().unwrap();
        assert!(next.status.success() && next.stdout.is_empty(), "{}", stderr(&next));
        (std::fs::read_dir(&own).unwrap().count() == 0).then_some(())
    });
}

/// Sandboxes that a case can fill.
fn small_disks() -> String {
    format!("{NO_POOL}[limits]\ndisk_mib = 128\n")
}

#[test]
fn an_agent_host_speaks_over_http() {
    let Some(kit) = Kit::find("python_mcp") else {
        return;
    };
    let server = Server::start(&small_disks());
    let key = || {
        let made = server.site.offleash(["key", "create"]).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        stdout(&made).trim().to_owned()
    };
    let mut cases = program(&kit, server.site.root(), "http");
    cases
        .env("URL", server.url())
        .env("KEY", &server.key)
        .env("OTHER_KEY", key())
        .env("FULL_KEY", key());
    run(&server, cases);
    // Those of sessions ended with them.
    eventually("no sandbox is left", || server.list().is_empty().then_some(()));
    server.end();
}

#[test]
fn an_agent_host_reaches_a_server_over_standard_streams() {
    let Some(kit) = Kit::find("python_mcp") else {
        return;
    };
    let server = Server::start(&small_disks());
    let mut cases = program(&kit, server.site.root(), "server");
    cases
        .env("OFFLEASH_STATE", server.site.state())
        .env("OFFLEASH", binary());
    run(&server, cases);
    // Of whoever made it: these are no key's.
    eventually("no sandbox is left", || {
        let left = server.site.offleash(["ls", "--quiet"]).output().unwrap();
        (left.status.success() && left.stdout.is_empty()).then_some(())
    });
    // What is said of a sandbox is the server's matter, and without a server there is nobody to be spoken to.
    let refused = |flags: &[&str]| {
        let output = server.site.offleash(flags).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{flags:?}");
        stderr(&output)
    };
    let other_options = refused(&["mcp", "--server", "--memory", "64M"]);
    assert!(
        other_options.contains("`--server` goes with no option") && other_options.contains("hint:"),
        "{other_options}"
    );
    let site = Site::sharing_templates();
    let output = site.offleash(["mcp", "--server"]).output().unwrap();
    let told = stderr(&output);
    assert!(
        told.contains("no daemon answers") && told.contains("hint: start one"),
        "{told}"
    );
    server.end();
}

#[test]
fn only_keys_that_may_make_sandboxes_speak() {
    let server = Server::start(NO_POOL);
    let reader = server
        .site
        .offleash(["key", "create", "--scope", "read"])
        .output()
        .unwrap();
    assert!(reader.status.success(), "{}", stderr(&reader));
    let ask = |key: &str, headers: &str| {
        let headers =
            format!("Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{headers}");
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        crate::client::ask(server.address, key, "POST /mcp", &headers, body)
            .unwrap()
            .0
    };
    assert_eq!(ask("e2b_nobody", ""), 401);
    assert_eq!(ask(stdout(&reader).trim(), ""), 403);
    assert_eq!(ask(&server.key, "Origin: http://evil.example\r\n"), 403);
    let session = "Mcp-Session-Id: 00000000-0000-4000-8000-000000000000\r\n";
    assert_eq!(ask(&server.key, session), 404);
    server.end();
}

fn program(kit: &Kit, place: &std::path::Path, kind: &str) -> Command {
    let script = place.join(CASES.0);
    std::fs::write(&script, CASES.1).unwrap();
    let mut program = kit.python(&script);
    program.arg(kind);
    program
}
