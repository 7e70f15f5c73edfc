//! Sessions with a real Chromium, driven by Playwright and Puppeteer as they are released: pages of the test's own, and
//! pages that attack.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::sandboxes::run;
use crate::server::{QUIET, Server};
use crate::support::{sdks, skip};

/// Where browsers of distributions are.
const BROWSERS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];

/// Serves the page that the driver visits, inside the sandbox of the session: no network is needed for it.
const SITE: &str = include_str!("chromium_site.py");

pub(crate) fn has_chromium() -> bool {
    let found = BROWSERS.iter().any(|path| Path::new(path).exists());
    if !found {
        skip("chromium is not installed");
    }
    found
}

/// Has `script` drive the browser of a new session, once `prepared` ran in its sandbox; answers what it says at the end.
fn driven(kit: &Path, script: &str, what: &str) {
    let server = Server::start_with(QUIET, &[]);
    let key = server.key(&[]);
    server.ask(&key, "POST /v1/contexts", r#"{"name": "shop"}"#);
    let place = server.site.root().join("drive");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("drive.mjs"), script).unwrap();
    std::os::unix::fs::symlink(kit.join("node_modules"), place.join("node_modules")).unwrap();
    let mut last = json!(null);
    // A service of the machine's own, to which nobody is to come.
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    own.set_nonblocking(true).unwrap();
    let port = own.local_addr().unwrap().port().to_string();
    for visit in ["first", what] {
        let body = json!({
            "timeout": 300, "allow": ["nothing.invalid"], "locale": "de-DE", "timezone": "Asia/Tokyo",
            "browserSettings": { "context": { "id": "shop", "persist": true }, "viewport": { "width": 800, "height": 600 } },
        });
        let made = server.ask(&key, "POST /v1/sessions", &body.to_string());
        assert_eq!(made.status, 201, "{made:?}");
        let session = made.json();
        let id = session["id"].as_str().unwrap();
        let line = format!(
            "cat >/tmp/site.py <<'END'\n{SITE}END\n(setsid python3 /tmp/site.py >/tmp/site.log 2>&1 </dev/null &)\n\
             until grep -q ready /tmp/site.log; do sleep 0.02; done"
        );
        run(&server, &key, id, &line);
        let mut driver = Command::new("node");
        driver
            .args(["drive.mjs", session["connectUrl"].as_str().unwrap(), visit, &port])
            .current_dir(&place)
            .env("HOME", &place)
            .env("TMPDIR", &place);
        let output = driver.output().unwrap();
        assert!(
            output.status.success(),
            "{visit}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let told = String::from_utf8_lossy(&output.stdout);
        if visit == "first" && what == "attack" {
            // What it downloaded is a file of the sandbox. Playwright has downloads put where it looks for them itself.
            assert_eq!(run(&server, &key, id, "cat /home/user/Downloads/*"), "the file");
        }
        if visit == "first" {
            let har = server.ask(&key, &format!("GET /v1/sessions/{id}/har"), "").body;
            assert!(!har.contains("sesame"), "{har}");
            std::fs::write(place.join("first.har"), har).unwrap();
        }
        let logged = server.ask(&key, &format!("GET /v1/sessions/{id}/logs"), "").body;
        assert!(
            logged.contains("http://localhost:8000/") && logged.contains("from the page"),
            "{told}: {logged}"
        );
        let released = server.ask(&key, &format!("POST /v1/sessions/{id}/release"), "");
        assert_eq!(released.status, 200, "{released:?}");
        last = released.json();
        assert!(!last["message"].as_str().unwrap().contains("not saved"), "{last}");
    }
    assert_eq!(last["status"], "COMPLETED");
    assert!(own.accept().is_err());
}

#[test]
fn playwright_drives_a_session_and_finds_its_context_again() {
    let Some(kit) = sdks::find("browser-1.65.1", "node_modules/playwright-core") else {
        return;
    };
    if has_chromium() {
        driven(&kit, include_str!("chromium_playwright.mjs"), "second");
    }
}

#[test]
fn puppeteer_drives_a_session_whose_pages_attack() {
    let Some(kit) = sdks::find("puppeteer-25.16.0", "node_modules/puppeteer-core") else {
        return;
    };
    if has_chromium() {
        driven(&kit, include_str!("chromium_puppeteer.mjs"), "attack");
    }
}
