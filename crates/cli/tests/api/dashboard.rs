//! The dashboard: who gets it, and that it works in a browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::ask;
use crate::server::{QUIET, Server};
use crate::support::{Site, id_of, sdks, skip};

/// Where browsers of distributions are.
const BROWSERS: [&str; 3] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
];

#[test]
fn a12_the_dashboard_is_for_names_of_the_server_alone_and_needs_no_key() {
    let server = Server::start_with(QUIET, &["--domain", "box.test"]);
    let status = |host: &str, head: &[(&str, &str)]| {
        let head = [&[("Host", host)], head].concat();
        ask(server.address, "GET /ui/", &head, "").status
    };
    let own = server.address.to_string();
    for host in [&*own, "localhost:3000", "box.test"] {
        assert_eq!(status(host, &[]), 200, "{host}");
    }
    // A name that points here, a page of others, a program in a sandbox.
    assert_eq!(status("evil.example", &[]), 421);
    assert_eq!(status(&own, &[("Origin", "https://evil.example")]), 403);
    assert_eq!(status("8000-i1.box.test", &[]), 502);
    let answer = ask(server.address, "GET /ui/app.js", &[], "");
    assert!(
        answer.status == 200 && answer.header("set-cookie").is_none(),
        "{answer:?}"
    );
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    // It is no way to anything else.
    for path in ["/v1/overview", "/v1/machine", "/v1/usage"] {
        ask(server.address, &format!("GET {path}"), &[], "").assert_refused(401);
    }
}

/// A server with a sandbox whose names are hostile, what drives a browser, and the arguments that it is given.
struct Visit {
    server: Server,
    browser: Command,
}

impl Visit {
    /// A server with a tool about which a person is asked.
    fn server() -> Server {
        let site = Site::sharing_templates();
        let root = site.root().display().to_string();
        let policy =
            "[[tool]]\nname = \"ask\"\ndescription = \"Pays somebody.\"\nprogram = [\"/bin/cat\"]\nask = true\n";
        std::fs::write(site.root().join("tools.toml"), policy).unwrap();
        let config = format!(
            "{QUIET}[sandboxes]\nsample_seconds = 1\ncreate_timeout_seconds = 600\n[tools]\nask_timeout_seconds = 600\npolicy = \"{root}/tools.toml\"\n"
        );
        Server::start_on(site, &config, &[])
    }

    /// One that is to do `what`; says why not, if there is no browser here.
    fn prepare(what: &str, directory: &Path) -> Option<Self> {
        let Some(chromium) = BROWSERS.iter().map(PathBuf::from).find(|path| path.exists()) else {
            skip("chromium is not installed");
            return None;
        };
        let kit = sdks::find("browser-1.65.1", "node_modules/playwright-core")?;
        let server = Self::server();
        let key = server.key(&["--scope", "admin", "--tool-grant", "ask"]);
        let body = r#"{"timeout_seconds": 600, "tools": {"grants": ["ask"]}, "metadata": {"<img src=x onerror=alert(1)>": "\u001b[31m\u202eabc"}}"#;
        let made = server.ask(&key, "POST /v1/sandboxes", body);
        assert_eq!(made.status, 201, "{made:?}");
        let hostile = made.json()["id"].as_str().unwrap().to_owned();
        let script = r#"cd /home/user && touch '<img src=x onerror=alert(1)>' $'up\u202efdp.exe' $'line\nfeed' \
            && printf '<script>alert(1)</script>\n\033]0;x\007\n' > content.html \
            && (exec -a $'\e[2J<img src=x onerror=alert(1)>' sleep 600 >/dev/null 2>&1 &) \
            && (sh -c 'for n in 1 2; do ask "{\"to\":\"<img src=x onerror=alert(1)>\u202e\",\"amount\":$n}"; done' >/dev/null 2>&1 &)"#;
        let body = serde_json::json!({ "argv": ["bash", "-c", script], "env": { "LC_ALL": "C.UTF-8" } });
        let ran = server.ask(&key, &format!("POST /v1/sandboxes/{hostile}/run"), &body.to_string());
        assert_eq!(ran.json()["exit_code"], 0, "{ran:?}");
        // A run whose changes are kept, with names as hostile.
        server.site.write("kept.txt", "one\n");
        let script = "echo two >> kept.txt; printf '<script>alert(1)</script>\\033[2J\\n' > '<img src=x onerror=alert(1)>'; \
                      mkdir -p .git/hooks; echo x > .git/hooks/pre-commit";
        let run = id_of(&server.site.record(&[], script));
        // What a file imports is looked for from where the file is.
        let place = server.site.root().join("visit");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("dashboard.mjs"), include_str!("dashboard.mjs")).unwrap();
        std::fs::write(place.join("small_png.mjs"), include_str!("small_png.mjs")).unwrap();
        std::os::unix::fs::symlink(kit.join("node_modules"), place.join("node_modules")).unwrap();
        let mut browser = Command::new("node");
        browser
            .args([Path::new("dashboard.mjs"), Path::new(what)])
            .args([format!("http://{}", server.address), key, hostile])
            .arg(directory)
            .arg(run)
            .current_dir(&place)
            .env("CHROMIUM", chromium)
            .env("HOME", &place)
            .env("TMPDIR", &place);
        Some(Self { server, browser })
    }

    fn run(mut self) -> Server {
        let output = self.browser.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {told}", output.status);
        self.server
    }
}

#[test]
fn browser_shows_what_is_hostile_as_text_and_is_usable_by_everybody() {
    if let Some(visit) = Visit::prepare("check", Path::new("")) {
        visit.run();
    }
}

/// `cargo xtask pictures` runs it.
#[test]
#[ignore = "makes the pictures of docs/ui"]
fn browser_makes_pictures_of_the_main_views() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ui");
    std::fs::create_dir_all(&pictures).unwrap();
    let Some(visit) = Visit::prepare("pictures", &pictures) else {
        panic!("a browser is needed");
    };
    let site = &visit.server.site;
    for (name, work) in [
        ("agent-1", "while :; do :; done"),
        ("agent-2", "sleep 600"),
        (
            "build",
            "python3 -c 'a = bytearray(90000000)\nimport time\nwhile True: time.sleep(.3); sum(range(3000000))'",
        ),
    ] {
        site.succeed(["create", "--name", name, "--no-internet", "--label", "team=research"]);
        site.succeed([
            "exec",
            name,
            "--",
            "sh",
            "-c",
            "curl -s -m 2 https://example.com; exit 0",
        ]);
        site.succeed(["exec", name, "--", "sh", "-c", &format!("({work}) >/dev/null 2>&1 &")]);
    }
    visit.run();
    for entry in std::fs::read_dir(pictures).unwrap() {
        let size = entry.as_ref().unwrap().metadata().unwrap().len();
        assert!(size < 60_000, "{entry:?}: {size}");
    }
}
