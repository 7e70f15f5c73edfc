//! E2B's SDKs and other clients as they are released, and the libraries that code in sandboxes uses, installed by name
//! from their registries for the tests that need them.
//!
//! Each is a directory that an interpreter can be pointed at, so that it can be copied to where an ordinary user reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::TaskError;
use crate::gvisor;
use crate::program;

/// An SDK, or libraries.
struct Sdk {
    /// Its directory.
    name: &'static str,
    /// What the installer is asked for.
    packages: &'static [&'static str],
    /// What is there when it is installed; `npm` installs what is in `node_modules`, `pip` everything else.
    inside: &'static str,
}

/// Servers have been broken by what changed between releases, so old ones are tried as well: those that still make and
/// connect to sandboxes by the first version of these calls.
const SDKS: [Sdk; 19] = [
    Sdk {
        name: "python",
        packages: &["e2b"],
        inside: "e2b",
    },
    Sdk {
        name: "python-2.45.1",
        packages: &["e2b==2.45.1"],
        inside: "e2b",
    },
    Sdk {
        name: "javascript",
        packages: &["e2b@latest"],
        inside: "node_modules/e2b",
    },
    Sdk {
        name: "javascript-2.45.0",
        packages: &["e2b@2.45.0"],
        inside: "node_modules/e2b",
    },
    Sdk {
        name: "python_code_interpreter",
        packages: &["e2b-code-interpreter"],
        inside: "e2b_code_interpreter",
    },
    Sdk {
        name: "javascript_code_interpreter",
        packages: &["@e2b/code-interpreter@latest"],
        inside: "node_modules/@e2b/code-interpreter",
    },
    Sdk {
        name: "python_desktop",
        packages: &["e2b-desktop"],
        inside: "e2b_desktop",
    },
    Sdk {
        name: "javascript_desktop",
        packages: &["@e2b/desktop@latest"],
        inside: "node_modules/@e2b/desktop",
    },
    // Other APIs' clients, which doors of their own serve.
    Sdk {
        name: "python_daytona",
        packages: &["daytona"],
        inside: "daytona",
    },
    Sdk {
        name: "javascript_daytona",
        packages: &["@daytona/sdk@latest"],
        inside: "node_modules/@daytona/sdk",
    },
    Sdk {
        name: "python_piston",
        packages: &["piston-rspy"],
        inside: "piston_rspy",
    },
    Sdk {
        name: "python_judge0",
        packages: &["judge0"],
        inside: "judge0",
    },
    // What our own library for Python is made on.
    Sdk {
        name: "httpx-0.28.1",
        packages: &["httpx==0.28.1"],
        inside: "httpx",
    },
    // The official client of the Model Context Protocol.
    Sdk {
        name: "python_mcp",
        packages: &["mcp"],
        inside: "mcp",
    },
    // What drives a browser, and what looks whether everybody can use a page.
    Sdk {
        name: "browser-1.65.1",
        packages: &["playwright-core@1.65.1", "axe-core@4.14.1"],
        inside: "node_modules/playwright-core",
    },
    // What drives browsers in sandboxes beside that.
    Sdk {
        name: "puppeteer-25.16.0",
        packages: &["puppeteer-core@25.16.0"],
        inside: "node_modules/puppeteer-core",
    },
    // What reads the network log of a browser, by its format's schema.
    Sdk {
        name: "har-validator-5.1.5",
        packages: &["har-validator@5.1.5"],
        inside: "node_modules/har-validator",
    },
    // A server of S3, for volumes that have a bucket.
    Sdk {
        name: "moto",
        packages: &["moto[server]"],
        inside: "moto",
    },
    // What the drivers of contexts are tested with, and sandboxes in which code has data and charts.
    Sdk {
        name: "interpreter",
        packages: &["ipython", "numpy", "pandas", "matplotlib"],
        inside: "IPython",
    },
];

/// Where they are.
pub(crate) fn directory() -> PathBuf {
    program::target_directory().join("sdks")
}

/// Installs or renews them; answers those that are not there in the end, and why.
pub(crate) fn install() -> Vec<(&'static str, String)> {
    let installed = SDKS.iter().map(|sdk| (sdk.name, sdk.install()));
    let installed = installed.chain([("gVisor's runsc", gvisor::install())]);
    installed
        .filter_map(|(name, result)| Some((name, result.err()?)))
        .collect()
}

/// The same as a task of its own.
///
/// # Errors
/// `Failed` when one is missing; why is on standard error.
pub(crate) fn install_or_fail() -> Result<(), TaskError> {
    let missing = install();
    for (name, reason) in &missing {
        eprintln!("{name}: {reason}");
    }
    match missing.len() {
        0 => Ok(()),
        count => Err(TaskError::Failed { count }),
    }
}

impl Sdk {
    /// Installs it, unless a pinned release is there already.
    fn install(&self) -> Result<(), String> {
        let target = directory().join(self.name);
        let mut command = if self.inside.starts_with("node_modules") {
            npm()
        } else {
            pip()
        };
        let installed = target.join(self.inside);
        // A release never changes; the newest does.
        let is_pinned = self.name.contains('-');
        if is_pinned && installed.exists() {
            return Ok(());
        }
        fs::create_dir_all(&target).map_err(|error| format!("creating `{}`: {error}", target.display()))?;
        let outcome = output(command.arg(&target).args(self.packages));
        // One of yesterday is better than none.
        if installed.exists() {
            Ok(())
        } else {
            outcome.and(Err("the installer did not bring it".to_owned()))
        }
    }
}

fn pip() -> Command {
    // The one that an ordinary user has, too, where there is one.
    let python = Path::new("/usr/bin/python3");
    let mut command = Command::new(if python.exists() { python } else { Path::new("python3") });
    command.args(["-m", "pip", "install", "--quiet", "--upgrade"]);
    command.args([
        "--no-input",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
        "--target",
    ]);
    command
}

fn npm() -> Command {
    let mut command = Command::new("npm");
    // No code of packages is run.
    command.args([
        "install",
        "--loglevel=error",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
    ]);
    command
}

/// Runs an installer to its end; the last line that it said is why it failed, all of it is on standard error.
fn output(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("starting `{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    let last = said.trim().lines().last().unwrap_or("it said nothing");
    Err(format!("`{program}` ended with {}: {last}", output.status))
}
