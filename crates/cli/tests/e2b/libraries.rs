//! The libraries of our own, as programs use them: each starts a server where none runs. The cases are beside the sources.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kits::system_python;
use crate::server::{NO_POOL, processes_of, sweep};
use crate::support::processes::{eventually, finish, start};
use crate::support::{Site, binary, sdks, skip, stderr, stdout};

/// Sources below `clients` and documents, which an ordinary user cannot read where they are.
macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../", $name)))),*]
    };
}

const PYTHON: [(&str, &str); 55] = sources![
    "clients/python/scripts/make_sync.py",
    "clients/python/src/offleash/__init__.py",
    "clients/python/src/offleash/_async/__init__.py",
    "clients/python/src/offleash/_async/api.py",
    "clients/python/src/offleash/_async/approvals.py",
    "clients/python/src/offleash/_async/backend.py",
    "clients/python/src/offleash/_async/cells.py",
    "clients/python/src/offleash/_async/checkpoints.py",
    "clients/python/src/offleash/_async/commands.py",
    "clients/python/src/offleash/_async/files.py",
    "clients/python/src/offleash/_async/pages.py",
    "clients/python/src/offleash/_async/ports.py",
    "clients/python/src/offleash/_async/sandbox.py",
    "clients/python/src/offleash/_async/snapshots.py",
    "clients/python/src/offleash/_async/tools.py",
    "clients/python/src/offleash/_async/volumes.py",
    "clients/python/src/offleash/_async/watch.py",
    "clients/python/src/offleash/_connection.py",
    "clients/python/src/offleash/_daemon.py",
    "clients/python/src/offleash/_either.py",
    "clients/python/src/offleash/_errors.py",
    "clients/python/src/offleash/_execution.py",
    "clients/python/src/offleash/_frames.py",
    "clients/python/src/offleash/_local.py",
    "clients/python/src/offleash/_logins.py",
    "clients/python/src/offleash/_models.py",
    "clients/python/src/offleash/_requests.py",
    "clients/python/src/offleash/_sync/__init__.py",
    "clients/python/src/offleash/_sync/api.py",
    "clients/python/src/offleash/_sync/approvals.py",
    "clients/python/src/offleash/_sync/backend.py",
    "clients/python/src/offleash/_sync/cells.py",
    "clients/python/src/offleash/_sync/checkpoints.py",
    "clients/python/src/offleash/_sync/commands.py",
    "clients/python/src/offleash/_sync/files.py",
    "clients/python/src/offleash/_sync/pages.py",
    "clients/python/src/offleash/_sync/ports.py",
    "clients/python/src/offleash/_sync/sandbox.py",
    "clients/python/src/offleash/_sync/snapshots.py",
    "clients/python/src/offleash/_sync/tools.py",
    "clients/python/src/offleash/_sync/volumes.py",
    "clients/python/src/offleash/_sync/watch.py",
    "clients/python/src/offleash/_tool.py",
    "clients/python/src/offleash/modal/__init__.py",
    "clients/python/src/offleash/modal/_both.py",
    "clients/python/src/offleash/modal/_tunnel.py",
    "clients/python/src/offleash/modal/app.py",
    "clients/python/src/offleash/modal/container_process.py",
    "clients/python/src/offleash/modal/exception.py",
    "clients/python/src/offleash/modal/filesystem.py",
    "clients/python/src/offleash/modal/image.py",
    "clients/python/src/offleash/modal/io_streams.py",
    "clients/python/src/offleash/modal/sandbox.py",
    "clients/python/src/offleash/modal/secret.py",
    "clients/python/src/offleash/modal/volume.py",
];

/// The first is run with the last two.
const PYTHON_CASES: [(&str, &str); 5] = sources![
    "clients/python/tests/library.py",
    "clients/python/tests/harness.py",
    "clients/python/tests/modal_cases.py",
    "docs/python.md",
    "docs/tutorials/code-interpreter.md",
];

const JAVASCRIPT: [(&str, &str); 20] = sources![
    "clients/javascript/package.json",
    "clients/javascript/src/api.js",
    "clients/javascript/src/code.js",
    "clients/javascript/src/commands.js",
    "clients/javascript/src/daemon.js",
    "clients/javascript/src/errors.js",
    "clients/javascript/src/files.js",
    "clients/javascript/src/frames.js",
    "clients/javascript/src/index.d.ts",
    "clients/javascript/src/index.js",
    "clients/javascript/src/local.js",
    "clients/javascript/src/logins.js",
    "clients/javascript/src/others.js",
    "clients/javascript/src/requests.js",
    "clients/javascript/src/sandbox.js",
    "clients/javascript/src/tools.js",
    "clients/javascript/src/vercel.d.ts",
    "clients/javascript/src/vercel.js",
    "clients/javascript/src/vercel_command.js",
    "clients/javascript/src/vercel_files.js",
];

const JAVASCRIPT_CASES: [(&str, &str); 2] = sources!["clients/javascript/tests/library.mjs", "docs/javascript.md"];

const HOOK: [(&str, &str); 2] = sources![
    "integrations/claude_code/offleash_hook.py",
    "integrations/claude_code/test.py",
];

/// The oldest Node.js that the library is for.
const OLDEST_NODE: u32 = 20;

#[test]
fn the_python_library_does_what_it_says() {
    let Some(libraries) = sdks::find("httpx-0.28.1", "httpx") else {
        return;
    };
    let place = LibrarySite::new();
    place.write(&PYTHON);
    place.write(&PYTHON_CASES);
    let mut checked = Command::new(system_python());
    checked.arg("-s").arg(place.of(PYTHON[0].0)).arg("--check");
    assert_good(checked);
    let mut command = Command::new(system_python());
    let [program, _, _, documents @ ..] = PYTHON_CASES.map(|(name, _)| place.of(name));
    command.arg("-s").arg(program).args(documents);
    let paths = [place.of("clients/python/src"), libraries];
    place.run(command, &[("PYTHONPATH", std::env::join_paths(paths).unwrap())]);
    place.end();
}

#[test]
fn the_javascript_library_does_what_it_says() {
    match node_version() {
        Some(version) if version >= OLDEST_NODE => {}
        _ => return skip(&format!("Node.js {OLDEST_NODE} or newer is not there")),
    }
    let place = LibrarySite::new();
    place.write(&JAVASCRIPT);
    place.write(&JAVASCRIPT_CASES);
    let mut command = Command::new("node");
    command
        .arg(place.of(JAVASCRIPT_CASES[0].0))
        .arg(place.of("clients/javascript/src/index.js"))
        .arg(place.of(JAVASCRIPT_CASES[1].0));
    place.run(command, &[]);
    sweep(place.site.root());
    place.end();
}

#[test]
fn a_hook_of_an_agent_has_its_shell_run_in_a_sandbox() {
    let place = LibrarySite::new();
    place.write(&HOOK);
    let mut command = Command::new(system_python());
    command.arg("-s").arg(place.of(HOOK[1].0));
    place.run(command, &[]);
    place.end();
}

fn node_version() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let said = stdout(&output);
    said.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Where a program with a library lives, which has no server yet.
struct LibrarySite {
    site: Site,
}

impl LibrarySite {
    fn new() -> Self {
        let site = Site::sharing_templates();
        // Where the library has its server: the site's state, under the name that the library looks for.
        let home = site.root().join("xdg");
        fs::create_dir(&home).unwrap();
        let state = home.join("offleash-library");
        fs::rename(site.state(), &state).unwrap();
        std::os::unix::fs::symlink(&state, site.state()).unwrap();
        let config = format!("listen = \"127.0.0.1:0\"\n{NO_POOL}");
        fs::write(state.join("library.toml"), config).unwrap();
        Self { site }
    }

    fn of(&self, name: &str) -> PathBuf {
        self.site.root().join(name)
    }

    fn write(&self, sources: &[(&str, &str)]) {
        for (name, text) in sources {
            let path = self.of(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    /// Runs a program that must succeed, as a user has it.
    fn run(&self, mut command: Command, variables: &[(&str, OsString)]) {
        let root = self.site.root();
        command.env_clear().current_dir(root);
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", root)
            .env("XDG_STATE_HOME", root.join("xdg"))
            .env("OFFLEASH_STATE", root.join("nobody"))
            .env("OFFLEASH_BINARY", binary())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs(variables.iter().map(|(name, value)| (name, value)));
        assert_good(command);
    }

    /// Nothing of a server or a sandbox stays.
    fn end(self) {
        let root: &Path = self.site.root();
        eventually("the end of every process", || {
            processes_of(root).is_empty().then_some(())
        });
    }
}

impl Drop for LibrarySite {
    fn drop(&mut self) {
        sweep(self.site.root());
    }
}

fn assert_good(mut command: Command) {
    let output = finish(start(&mut command));
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
}
