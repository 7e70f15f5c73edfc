//! What the tests need besides Rust, installed where that is possible.
//!
//! On a bare Debian machine, as root, the packages are installed. Anywhere else a missing program is a counted skip:
//! the tests that need it say so themselves, and everything else still runs.

use std::process::{Command, Stdio};

use super::summary::Skip;
use crate::program;

struct Program {
    command: &'static str,
    package: &'static str,
    needed_for: &'static str,
}

const PROGRAMS: [Program; 37] = [
    Program {
        command: "bwrap",
        package: "bubblewrap",
        needed_for: "comparing with a reference sandbox",
    },
    Program {
        command: "crun",
        package: "crun",
        needed_for: "comparing with a reference container runtime",
    },
    Program {
        command: "newuidmap",
        package: "uidmap",
        needed_for: "subordinate ids",
    },
    Program {
        command: "git",
        package: "git",
        needed_for: "git inside a workspace",
    },
    Program {
        command: "python3",
        package: "python3",
        needed_for: "programs of an interpreter in a sandbox",
    },
    Program {
        command: "gcc",
        package: "gcc",
        needed_for: "attacks that are written in C",
    },
    Program {
        command: "ip",
        package: "iproute2",
        needed_for: "an internet of our own for the tests of the network",
    },
    Program {
        command: "tinyproxy",
        package: "tinyproxy-bin",
        needed_for: "the proxy of a network that has no other way out",
    },
    Program {
        command: "openssl",
        package: "openssl",
        needed_for: "certificates of the tests of the network",
    },
    Program {
        command: "curl",
        package: "curl",
        needed_for: "curl among the clients of the network",
    },
    Program {
        command: "ssh",
        package: "openssh-client",
        needed_for: "git over SSH",
    },
    Program {
        command: "sshd",
        package: "openssh-server",
        needed_for: "a server of SSH for git",
    },
    Program {
        command: "musl-gcc",
        package: "musl-tools",
        needed_for: "a client of the network with another C library",
    },
    Program {
        command: "setpriv",
        package: "util-linux",
        needed_for: "the second pass, as an ordinary user",
    },
    Program {
        command: "pip3",
        package: "python3-pip",
        needed_for: "E2B's SDK for Python",
    },
    Program {
        command: "node",
        package: "nodejs",
        needed_for: "E2B's SDK for JavaScript",
    },
    Program {
        command: "npm",
        package: "npm",
        needed_for: "installing E2B's SDK for JavaScript",
    },
    Program {
        command: "chromium",
        package: "chromium",
        needed_for: "the dashboard in a browser, and browsers in sandboxes",
    },
    Program {
        command: "Xvfb",
        package: "xvfb",
        needed_for: "desktops in sandboxes",
    },
    Program {
        command: "xdpyinfo",
        package: "x11-utils",
        needed_for: "desktops in sandboxes",
    },
    Program {
        command: "xrandr",
        package: "x11-xserver-utils",
        needed_for: "desktops in sandboxes",
    },
    Program {
        command: "xdotool",
        package: "xdotool",
        needed_for: "driving desktops in sandboxes",
    },
    Program {
        command: "scrot",
        package: "scrot",
        needed_for: "pictures of desktops in sandboxes",
    },
    Program {
        command: "x11vnc",
        package: "x11vnc",
        needed_for: "looking at desktops in sandboxes",
    },
    Program {
        command: "websockify",
        package: "novnc",
        needed_for: "looking at desktops in sandboxes from a browser",
    },
    Program {
        command: "xterm",
        package: "xterm",
        needed_for: "a window of desktops in sandboxes",
    },
    Program {
        command: "matchbox-window-manager",
        package: "matchbox-window-manager",
        needed_for: "windows of desktops in sandboxes",
    },
    Program {
        command: "netstat",
        package: "net-tools",
        needed_for: "E2B's SDKs for desktops",
    },
    Program {
        command: "pgrep",
        package: "procps",
        needed_for: "E2B's SDKs for desktops",
    },
    Program {
        command: "Rscript",
        package: "r-base-core",
        needed_for: "contexts of R",
    },
    Program {
        command: "javac",
        package: "default-jdk-headless",
        needed_for: "contexts of Java",
    },
    Program {
        command: "busybox",
        package: "busybox-static",
        needed_for: "an image of containers that is small and whole",
    },
    Program {
        command: "docker-registry",
        package: "docker-registry",
        needed_for: "a registry of images",
    },
    Program {
        command: "skopeo",
        package: "skopeo",
        needed_for: "images in each of their forms, and pushing them",
    },
    Program {
        command: "umoci",
        package: "umoci",
        needed_for: "comparing with what another tool makes of an image",
    },
    Program {
        command: "crun",
        package: "crun",
        needed_for: "an OCI runtime of the host's kernel",
    },
    Program {
        command: "qemu-system-x86_64",
        package: "qemu-system-x86",
        needed_for: "the tests in a virtual machine with cgroup v2, and level `microvm`",
    },
];

/// The tools of Rust that the checks of the sources use, by subcommand and by rustup's name.
const RUST_TOOLS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// Installs what is missing; what stays missing is returned as skips.
pub(super) fn install() -> Vec<Skip> {
    install_rust_tools();
    let missing = || {
        PROGRAMS
            .iter()
            .filter(|program| program::find(program.command).is_none())
    };
    let packages: Vec<_> = missing().map(|program| program.package).collect();
    let obstacle = if packages.is_empty() {
        None
    } else {
        install_packages(&packages).err()
    };
    missing()
        .map(|program| Skip {
            what: program.needed_for.to_owned(),
            reason: format!(
                "`{}` is missing and {}",
                program.command,
                obstacle.as_deref().unwrap_or("apt-get did not bring it")
            ),
        })
        .collect()
}

/// Installs Debian packages, or says why it cannot.
fn install_packages(packages: &[&str]) -> Result<(), String> {
    let by_hand = format!("sudo apt-get install {}", packages.join(" "));
    if program::find("apt-get").is_none() {
        return Err("this machine has no apt-get".to_owned());
    }
    if !program::is_root() {
        return Err(format!("only root can install it: {by_hand}"));
    }
    // The lists of a fresh machine are empty, those of an old one name packages that are gone: update, but only then.
    if apt_install(packages) || (apt(&["update", "--quiet"]) && apt_install(packages)) {
        return Ok(());
    }
    Err(format!("`{by_hand}` failed"))
}

fn apt_install(packages: &[&str]) -> bool {
    apt(&[&["install", "--yes", "--quiet", "--no-install-recommends"], packages].concat())
}

fn apt(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(std::io::stderr());
    program::run(&mut command)
        .inspect_err(|error| eprintln!("{error}"))
        .is_ok()
}

/// Adds what a minimal toolchain leaves out; if that fails, the step that needs it fails and says so.
fn install_rust_tools() {
    for (subcommand, component) in RUST_TOOLS {
        let works = program::cargo()
            .args([subcommand, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !works.is_ok_and(|status| status.success()) && program::find("rustup").is_some() {
            let mut command = Command::new("rustup");
            command.args(["component", "add", component]);
            program::run(&mut command).unwrap_or_else(|error| eprintln!("{error}"));
        }
    }
}
