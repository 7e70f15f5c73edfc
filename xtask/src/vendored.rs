//! What is in the tree of others, the dashboard's scripts and an engine of JavaScript: packages of npm at one release each, with their
//! licences, as they were published.
//!
//! They are in the tree, so that neither a build nor the program needs npm or a network. `cargo xtask vendored` fetches the
//! releases, compares their digests with those below, and puts the files in place.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::TaskError;
use crate::program;

/// A release of a package.
pub(crate) struct Release {
    /// Its name and version.
    pub(crate) package: &'static str,
    /// What the registry says its archive's digest is; `npm` refuses an archive with another one.
    pub(crate) integrity: &'static str,
    /// Its folder below `crates`.
    folder: &'static str,
    /// Files of it, in the archive.
    files: &'static [&'static str],
}

pub(crate) const RELEASES: [Release; 3] = [
    Release {
        package: "@xterm/xterm@6.0.0",
        integrity: "sha512-TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zgc5kq5omJ+V0a8/kIM2WD3sMOYg==",
        folder: "api/ui/vendor/xterm",
        files: &["lib/xterm.mjs", "css/xterm.css", "LICENSE"],
    },
    Release {
        package: "@xterm/addon-fit@0.11.0",
        integrity: "sha512-jYcgT6xtVYhnhgxh3QgYDnnNMYTcf8ElbxxFzX0IZo+vabQqSPAjC3c1wJrKB5E19VwQei89QCiZZP86DCPF7g==",
        folder: "api/ui/vendor/xterm-addon-fit",
        files: &["lib/addon-fit.mjs", "LICENSE"],
    },
    Release {
        package: "quickjs-wasi@3.7.0",
        integrity: "sha512-6nOShBtCglrQL6yH+hptIfEdA1WlSmvY/Mm5Ypn9IvtsaDsrYIg8x+xoIXQt02w66a0f1eLTAj1lhfgAbJ4WVw==",
        folder: "wasm/vendor/quickjs-wasi",
        files: &["quickjs.wasm", "LICENSE"],
    },
];

/// Fetches the releases and puts their files in place.
///
/// # Errors
/// `Start` and `Ended` when npm or tar does not do it, `Answer` for another digest than is expected, `File`.
pub(crate) fn fetch() -> Result<(), TaskError> {
    let crates = program::workspace_root().join("crates");
    for release in &RELEASES {
        let place = tempfile::tempdir().map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
        release.unpack(place.path())?;
        let folder = crates.join(release.folder);
        fs::create_dir_all(&folder).map_err(TaskError::file("creating", &folder))?;
        for file in release.files {
            let from = place.path().join("package").join(file);
            let to = folder.join(from.file_name().unwrap_or_default());
            fs::copy(&from, &to).map_err(TaskError::file("copying", &from))?;
        }
        println!(
            "{}: its digest is right, {} files",
            release.package,
            release.files.len()
        );
    }
    Ok(())
}

impl Release {
    fn unpack(&self, place: &Path) -> Result<(), TaskError> {
        let mut npm = Command::new("npm");
        npm.args(["pack", self.package, "--json", "--pack-destination"])
            .arg(place);
        let output = npm.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(TaskError::start("npm"))?;
        let answer = |why: String| TaskError::Answer { from: "npm", why };
        let told: Value = serde_json::from_slice(&output.stdout).map_err(|error| answer(error.to_string()))?;
        let integrity = told[0]["integrity"].as_str().unwrap_or_default();
        if integrity != self.integrity {
            return Err(answer(format!("{} has digest `{integrity}`", self.package)));
        }
        // Some releases of npm tell the name of the package there, not that of the file.
        let archive = told[0]["filename"].as_str().unwrap_or_default();
        let archive = archive.trim_start_matches('@').replace('/', "-");
        program::run(
            Command::new("tar")
                .arg("-xzf")
                .arg(place.join(archive))
                .arg("-C")
                .arg(place),
        )
    }
}
