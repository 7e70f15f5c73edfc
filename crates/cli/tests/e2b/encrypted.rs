//! The server over TLS, with a certificate of an authority that only the clients' variables name.

use std::process::Command;

use crate::client;
use crate::kits::Kit;
use crate::languages::{run, started};
use crate::server::{NO_POOL, Server, WITH_POOL};
use crate::support::openssl::certify_loopback;
use crate::support::{Site, skip, stdout};

/// What names authorities to the SDKs.
const AUTHORITIES: [&str; 4] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
];

#[test]
fn the_python_sdk_speaks_tls() {
    assert_works("python", &["lifecycle", "async_commands", "async_files"]);
}

#[test]
fn the_javascript_sdk_speaks_tls() {
    assert_works("javascript", &["commands", "files"]);
}

fn assert_works(sdk: &str, modules: &[&str]) {
    let Some(kit) = Kit::find(sdk) else {
        return;
    };
    let site = Site::sharing_templates();
    if let Err(reason) = certify_loopback(site.root()) {
        return skip(&format!("no certificate: {reason}"));
    }
    let path = |name: &str| site.root().join(name);
    let (authority, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let files = format!("tls_cert = {certificate:?}\ntls_key = {key:?}\n");
    let mut server = Server::start_on(site, None, &format!("{files}{WITH_POOL}"));
    assert!(server.url().starts_with("https://"), "{}", server.url());

    let trusting = |mut program: Command| {
        for name in AUTHORITIES {
            program.env(name, &authority);
        }
        program.env_remove("SSL_CERT_DIR");
        program
    };
    run(&server, trusting(kit.program(server.site.root(), modules)));

    // Nobody is served by accident: neither who does not know the authority, nor who does not speak TLS.
    let mut stranger = kit.program(server.site.root(), &modules[..1]);
    for name in AUTHORITIES {
        stranger.env_remove(name);
    }
    // A certificate does not become known by asking again.
    stranger.env("E2B_CONNECTION_RETRIES", "0");
    let refused = started(&server, &mut stranger);
    let said = stdout(&refused);
    assert!(!refused.status.success() && !said.contains("\nok "), "{said}");
    let plain = client::ask(server.address, &server.key, "GET /v2/sandboxes", "", b"");
    assert!(plain.is_err(), "{plain:?}");

    server.start_again_with(NO_POOL);
    server.end();
}
