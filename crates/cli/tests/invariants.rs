//! What keeps the rooms apart, checked over `cargo metadata` and the sources.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "invariants/circles.rs"]
mod circles;
#[path = "invariants/program.rs"]
mod program;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use offleash_sys::seccomp;
use serde_json::Value;

/// Which rooms a room uses, as in ARCHITECTURE.md; an arrow that is not drawn there is not allowed in advance either.
const ARROWS: [(&str, &[&str]); 24] = [
    ("bashkit", &[]),
    ("browser", &["core"]),
    ("desktop", &[]),
    ("simulated", &["bashkit", "core", "isolation", "protocol", "sys"]),
    ("wasm", &["core", "isolation", "simulated", "sys"]),
    ("core", &[]),
    ("protocol", &[]),
    ("sys", &[]),
    ("guest", &["protocol", "sys"]),
    ("isolation", &["core", "protocol", "sys", "tree"]),
    ("kubernetes", &["core", "images"]),
    ("tree", &["sys"]),
    ("store", &["core", "protocol"]),
    ("gateway", &["core", "sys"]),
    ("images", &["core", "store", "sys"]),
    ("buckets", &["core", "images", "store"]),
    ("tools", &["core", "images", "protocol"]),
    ("interpreter", &["core"]),
    ("planner", &["core", "isolation", "protocol", "store", "sys"]),
    (
        "supervisor",
        &[
            "buckets",
            "core",
            "gateway",
            "images",
            "interpreter",
            "isolation",
            "planner",
            "protocol",
            "simulated",
            "store",
            "sys",
            "tools",
            "wasm",
        ],
    ),
    (
        "daemon",
        &[
            "browser",
            "core",
            "desktop",
            "images",
            "interpreter",
            "supervisor",
            "planner",
            "store",
            "sys",
        ],
    ),
    ("ssh", &["api", "core"]),
    ("api", &["core", "daemon", "interpreter", "supervisor", "protocol"]),
    (
        "cli",
        &[
            "api",
            "core",
            "daemon",
            "images",
            "isolation",
            "kubernetes",
            "supervisor",
            "planner",
            "simulated",
            "ssh",
            "store",
            "sys",
            "wasm",
        ],
    ),
];

/// All that `core` may use of others: data, and no door to the outside.
const CRATES_OF_CORE: [&str; 7] = ["idna", "psl", "serde", "serde_json", "thiserror", "toml", "zeroize"];

/// All that goes into the program inside every sandbox.
const CRATES_OF_THE_GUEST: [&str; 3] = ["offleash-protocol", "offleash-sys", "rustix"];

/// Lines that a source may have; and files of tests, which are lists.
const MAX_SOURCE: usize = 700;
const MAX_LIST_OF_TESTS: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    #[expect(clippy::disallowed_methods, reason = "cargo itself is asked")]
    let mut command = std::process::Command::new(cargo);
    command
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The folder of a package below `crates`; `None` for xtask.
fn room(package: &Value) -> Option<String> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    let folder = manifest.parent().unwrap().strip_prefix(root()).unwrap();
    Some(folder.strip_prefix("crates").ok()?.to_str()?.to_owned())
}

/// What a package uses when it is built, tests aside.
fn dependencies(package: &Value) -> BTreeSet<String> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|dependency| dependency["kind"] != "dev")
        .map(|dependency| dependency["name"].as_str().unwrap().to_owned())
        .collect()
}

fn package_of(wanted: &str) -> Value {
    packages()
        .into_iter()
        .find(|package| room(package).as_deref() == Some(wanted))
        .unwrap()
}

/// The sources of a room, tests in files of their own left out.
fn sources(room: &str) -> Vec<(PathBuf, String)> {
    rust_files(&root().join("crates").join(room).join("src"))
        .into_iter()
        .filter(|path| !is_test_file(path))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

fn is_test_file(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name == "tests.rs"
        || name == "testing.rs"
        || name.ends_with("_tests.rs")
        || path.components().any(|part| part.as_os_str() == "tests")
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_path_buf()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// The lines of code before the tests of a file, comments left out.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let before_tests = text
        .lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    before_tests
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number + 1, line))
}

fn rooms() -> impl Iterator<Item = &'static str> {
    ARROWS.iter().map(|(room, _)| *room)
}

/// Fails when one of `words` stands in the code of `room`.
fn assert_free_of(room: &str, words: &[&str], except: &[&str]) {
    for (path, text) in sources(room) {
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if except.iter().any(|allowed| name.ends_with(allowed)) {
            continue;
        }
        for (number, line) in code(&text) {
            for word in words {
                assert!(!line.contains(word), "{name}:{number}: `{word}` in {line}");
            }
        }
    }
}

#[test]
fn every_room_is_in_the_table() {
    let found: BTreeSet<String> = packages().iter().filter_map(room).collect();
    assert_eq!(found, rooms().map(str::to_owned).collect());
}

#[test]
fn rooms_use_the_rooms_that_the_table_says() {
    for (name, allowed) in ARROWS {
        let used = dependencies(&package_of(name));
        let rooms: BTreeSet<&str> = used.iter().filter_map(|used| used.strip_prefix("offleash-")).collect();
        assert_eq!(rooms, allowed.iter().copied().collect(), "what {name} uses");
        assert!(!used.contains("offleash"), "{name} uses the program");
    }
}

#[test]
fn core_has_no_door_to_the_outside() {
    let used = dependencies(&package_of("core"));
    let allowed: BTreeSet<String> = CRATES_OF_CORE.map(str::to_owned).into();
    assert!(used.is_subset(&allowed), "core uses {:?}", used.difference(&allowed));
    let doors = [
        "tokio",
        "async fn",
        ".await",
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "std::io::std",
        "std::thread",
        "std::os::fd",
        "SystemTime",
        "Instant::now",
        "rustix",
        "libc::",
    ];
    assert_free_of("core", &doors, &[]);
}

#[test]
fn the_guest_stays_small() {
    let used = dependencies(&package_of("guest"));
    assert_eq!(used, CRATES_OF_THE_GUEST.map(str::to_owned).into());
}

#[test]
fn unsafe_code_is_in_sys_alone() {
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let text = fs::read_to_string(&manifest).unwrap();
        // Sys may use it; the entry point of the guest is written by a macro of sys, which says so where it does.
        let own_lints: &[&str] = match room(&package).as_deref() {
            // What is another's, laid down by its build script, has none of ours.
            Some("sys" | "bashkit") => &[],
            Some("guest") => &["unsafe_code = \"deny\""],
            _ => &["[lints]\nworkspace = true"],
        };
        assert!(
            own_lints.iter().all(|lint| text.contains(lint)),
            "{}: {own_lints:?}",
            manifest.display()
        );
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"forbid\""));
    for room in rooms().filter(|room| *room != "sys") {
        for (path, text) in sources(room) {
            for (number, line) in code(&text) {
                let words = line.split(|character: char| !character.is_alphanumeric() && character != '_');
                let is_unsafe =
                    words.clone().any(|word| word == "unsafe") || words.clone().any(|word| word == "unsafe_code");
                assert!(!is_unsafe, "{}:{number}: {line}", path.display());
            }
        }
    }
}

#[test]
fn rooms_with_lints_of_their_own_have_those_of_the_workspace() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lints: Vec<&str> = workspace
        .lines()
        .skip_while(|line| !line.starts_with("[workspace.lints."))
        .take_while(|line| !line.starts_with("[profile"))
        .filter(|line| line.contains(" = ") && !line.starts_with("unsafe_code"))
        .collect();
    assert!(lints.len() > 10, "{lints:?}");
    for room in ["sys", "guest"] {
        let manifest = fs::read_to_string(root().join("crates").join(room).join("Cargo.toml")).unwrap();
        for lint in &lints {
            assert!(manifest.lines().any(|line| line == *lint), "{room} does without {lint}");
        }
    }
}

#[test]
fn only_the_command_line_prints() {
    let prints = [
        "println!",
        "eprintln!",
        "print!(",
        "eprint!(",
        "dbg!",
        "io::stdout()",
        "io::stderr()",
        "stdio::stdout",
        "stdio::stderr",
    ];
    for room in rooms().filter(|room| *room != "cli") {
        assert_free_of(room, &prints, &[]);
    }
    // And of the command line, its terminal.
    assert_free_of("cli", &prints, &["src/terminal.rs", "src/terminal/exec_io.rs"]);
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for lint in ["print_stdout", "print_stderr", "dbg_macro"] {
        assert!(workspace.contains(&format!("{lint} = \"deny\"")), "{lint}");
    }
}

/// In `api`, and where connections are opened, requests are read and answered; registries, buckets, browsers and API servers of
/// Kubernetes are asked.
#[test]
fn status_codes_of_http_are_known_where_requests_are_answered() {
    const OPENED: &str = "/crates/gateway/src/opened/";
    const REGISTRY: &str = "/crates/images/src/registry/";
    const BUCKET: &str = "/crates/buckets/src/client";
    const BROWSER: &str = "/crates/browser/src/";
    const API_SERVER: &str = "/crates/kubernetes/src/access.rs";
    for room in rooms() {
        for (path, text) in sources(room) {
            let name = path.to_string_lossy().into_owned();
            if room == "api"
                || [OPENED, REGISTRY, BUCKET, BROWSER, API_SERVER]
                    .iter()
                    .any(|asked| name.contains(asked))
            {
                continue;
            }
            for (number, line) in code(&text) {
                for word in ["StatusCode", "axum", "hyper::"] {
                    assert!(!line.contains(word), "{name}:{number}: `{word}` in {line}");
                }
            }
        }
    }
}

#[test]
fn every_lint_that_is_switched_off_says_why() {
    for directory in ["crates", "xtask"] {
        for path in rust_files(&root().join(directory)) {
            let text = fs::read_to_string(&path).unwrap();
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                let switches_off = line.starts_with("#[allow(")
                    || line.starts_with("#[expect(")
                    || line.starts_with("#![allow(")
                    || line.starts_with("#![expect(");
                if !switches_off {
                    continue;
                }
                let rest: String = text
                    .lines()
                    .skip(number)
                    .take_while(|line| !line.trim_end().ends_with(")]"))
                    .collect();
                assert!(
                    line.contains("reason") || rest.contains("reason"),
                    "{}:{}: {line}",
                    path.display(),
                    number + 1
                );
            }
        }
    }
}

#[test]
fn no_file_is_too_long_to_read() {
    for directory in ["crates", "xtask"] {
        for path in rust_files(&root().join(directory)) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            let most = if is_test_file(&path) {
                MAX_LIST_OF_TESTS
            } else {
                MAX_SOURCE
            };
            assert!(lines <= most, "{} has {lines} lines", path.display());
        }
    }
}

#[test]
fn every_room_says_what_it_is_for() {
    for room in rooms() {
        for (path, text) in sources(room) {
            let first = text.lines().next().unwrap_or_default();
            assert!(first.starts_with("//!"), "{} begins with {first:?}", path.display());
        }
    }
}

/// Rustdoc goes through all sources of a room to find that there is no example in it: where there is one, and only there, it is
/// asked to.
#[test]
fn examples_in_documents_are_run_where_there_are_any() {
    for room in rooms() {
        let directory = root().join("crates").join(room);
        if !directory.join("src/lib.rs").exists() {
            continue;
        }
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        let mut lines = sources(room).into_iter().map(|(_, text)| text);
        let has_examples = lines.any(|text| {
            let mut documents = text.lines().map(str::trim_start);
            documents.any(|line| line.starts_with("/// ```") || line.starts_with("//! ```"))
        });
        let are_run = !manifest.contains("doctest = false");
        assert_eq!(are_run, has_examples, "{room}");
    }
}

#[test]
fn every_entry_of_the_system_call_filter_says_who_needs_it() {
    let mut count = 0;
    for name in seccomp::known_names() {
        let explanation = seccomp::explain(name).unwrap();
        assert!(explanation.reason.len() > 3, "{name}: {:?}", explanation.reason);
        count += 1;
    }
    assert!(count > 300, "{count} system calls");
}

#[test]
fn the_sources_speak_of_the_project_alone() {
    // Paths of one machine have no place in a project that is built on many.
    for directory in ["crates", "xtask"] {
        for path in rust_files(&root().join(directory)) {
            let text = fs::read_to_string(&path).unwrap();
            let machine = ["/wo", "rk/"].concat();
            for (number, line) in text.lines().enumerate() {
                let mentions = line
                    .split('"')
                    .chain(line.split(' '))
                    .any(|word| word.starts_with(&machine) && word.contains("main"));
                assert!(!mentions, "{}:{}: {line}", path.display(), number + 1);
            }
        }
    }
}
