//! `cargo xtask dist`: each package is installed where nothing else is, without a network, and runs a sandbox.
//!
//! One test, since one run of the task makes all packages: of the debug build without its symbols, and not compressed.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn each_package_runs_where_it_is_installed() {
    let Some(binary) = built() else {
        return skip("`offleash` is not built beside `xtask`");
    };
    let site = Site::new();
    site.make_packages(&binary);
    site.the_archive_is_whole();
    site.the_deb_unpacks_and_runs();
    site.the_deb_installs_and_leaves_nothing();
    site.the_npm_packages_bring_command_and_library();
    site.the_wheel_brings_command_and_library();
}

#[test]
fn what_cannot_be_packaged_is_refused() {
    let site = Site::new();
    let script = site.path("script");
    fs::write(&script, "#!/bin/sh\necho offleash 0.1.0\n").unwrap();
    let refused = site.dist(&script).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("no 64-bit ELF program"),
        "{said}"
    );
    assert!(!site.path("dist").exists(), "nothing is made of it");
    let missing = site.dist(&site.path("nothing")).output().unwrap();
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("No such file"), "{said}");
}

/// A program that answers as Rust's compiler does of which one target is asked for.
const COMPILER_WITHOUT_LIBRARIES: &str = "#!/bin/sh\necho /nowhere/$4\n";

#[test]
fn what_another_processor_takes_is_told_before_anything_is_built() {
    let site = Site::new();
    let compiler = site.path("rustc");
    fs::write(&compiler, COMPILER_WITHOUT_LIBRARIES).unwrap();
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    let dist = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(["dist", "--output"])
            .arg(site.path("dist"))
            .args(arguments);
        let refused = command.env("RUSTC", &compiler).output().unwrap();
        assert!(!refused.status.success());
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    let target = match cfg!(target_arch = "x86_64") {
        true => "aarch64-unknown-linux-gnu",
        false => "x86_64-unknown-linux-gnu",
    };
    let said = dist(&["--target", target]);
    assert!(said.contains("`--references-from`"), "{said}");
    let compiler = compiler.to_str().unwrap();
    let said = dist(&["--target", target, "--references-from", compiler]);
    let library = format!("Rust's standard library for {target} in `/nowhere/{target}`");
    assert!(said.contains(&library) && said.contains("libstd-rust-dev:"), "{said}");
    let said = dist(&["--target", "riscv64gc-unknown-linux-gnu"]);
    assert!(said.contains("[possible values: x86_64-unknown-linux-gnu"), "{said}");
    assert!(!site.path("dist").exists(), "nothing is made");
}

#[test]
fn the_unit_is_hardened_by_nothing_that_breaks_sandboxes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/offleash.service");
    let unit = fs::read_to_string(path).unwrap();
    let sets = |name: &str| {
        unit.lines()
            .any(|line| line.split_once('=').is_some_and(|(set, _)| set == name))
    };
    for name in ["ProtectSystem", "ProtectHome", "PrivateTmp", "CapabilityBoundingSet"] {
        assert!(sets(name), "{name}");
    }
    // Sandboxes with more than one user need `newuidmap`, and those of a user namespace a `/proc` of which nothing is covered.
    let breaking = [
        "NoNewPrivileges",
        "SystemCallFilter",
        "SystemCallArchitectures",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "DynamicUser",
        "PrivateDevices",
        "PrivateUsers",
        "ProcSubset",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectProc",
    ];
    for name in breaking {
        assert!(!sets(name), "{name}");
    }
}

/// The program beside the task, as a build of the workspace leaves it.
fn built() -> Option<PathBuf> {
    let named = std::env::var_os("OFFLEASH_BINARY").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("offleash");
    named.into_iter().chain([beside]).find(|path| path.exists())
}

fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// A directory of its own, with what installed programs write.
struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        // Short: sockets lie below it.
        let directory = tempfile::Builder::new().prefix("dist-").tempdir().unwrap();
        fs::create_dir(directory.path().join("home")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn dist(&self, binary: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["dist", "--stored", "--binary"]).arg(binary);
        command.arg("--output").arg(self.path("dist"));
        command
    }

    fn make_packages(&self, binary: &Path) {
        let bare = self.path("offleash");
        let stripped = Command::new("strip").arg("-o").arg(&bare).arg(binary).status();
        if !stripped.is_ok_and(|status| status.success()) {
            fs::copy(binary, &bare).unwrap();
        }
        succeed(&mut self.dist(&bare));
    }

    /// The package whose name ends so.
    fn package(&self, end: &str) -> PathBuf {
        let found = fs::read_dir(self.path("dist"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut found = found.filter(|path| path.to_string_lossy().ends_with(end));
        found.next().unwrap_or_else(|| panic!("no package *{end}"))
    }

    /// A program as a user has it, with nothing of this test's environment.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.path("home"));
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("xdg"))
            .env("OFFLEASH_STATE", self.path("state"));
        command
    }

    /// The installed program runs a sandbox.
    fn runs_true(&self, program: &Path) {
        let said = succeed(self.command(program).arg("--version"));
        assert_eq!(said, format!("offleash {VERSION}\n"));
        succeed(
            self.command(program)
                .args(["run", "-q", "--no-workspace", "--", "true"]),
        );
    }

    fn the_archive_is_whole(&self) {
        succeed(
            self.command("sha256sum")
                .args(["--check", "--strict", "SHA256SUMS"])
                .current_dir(self.path("dist")),
        );
        let archive = self.package("-linux-x86_64.tar.gz");
        succeed(
            self.command("tar")
                .arg("-xzf")
                .arg(archive)
                .current_dir(self.path("home")),
        );
        let unpacked = self.path("home").join(format!("offleash-{VERSION}-linux-x86_64"));
        self.runs_true(&unpacked.join("offleash"));
        let text = fs::read_to_string(unpacked.join("sbom.cdx.json")).unwrap();
        let sbom: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = sbom["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        for name in [
            "clap",
            "libsqlite3-sys",
            "sqlite",
            "quickjs-wasi",
            "rust-std",
            "offleash-sys",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.contains(&"xtask") && !names.contains(&"proptest"), "{names:?}");
        assert!(unpacked.join("man/man1/offleash-run.1").exists());
        fs::remove_dir_all(unpacked).unwrap();
    }

    fn the_deb_unpacks_and_runs(&self) {
        let root = self.path("unpacked");
        succeed(
            self.command("dpkg-deb")
                .arg("-x")
                .arg(self.package("_amd64.deb"))
                .arg(&root),
        );
        self.runs_true(&root.join("usr/bin/offleash"));
        for file in [
            "usr/share/man/man1/offleash-snapshot-create.1.gz",
            "usr/share/bash-completion/completions/offleash",
            "usr/lib/systemd/system/offleash.service",
            "etc/offleash/offleash-serve.toml",
        ] {
            let mode = root.join(file).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o644, "{file}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    /// Into a root that has a shell, and no C library.
    fn the_deb_installs_and_leaves_nothing(&self) {
        if !rustix::process::geteuid().is_root() {
            return skip("only root installs a Debian package into another root");
        }
        let Some(root) = self.bare_root() else {
            return skip("busybox-static is not installed");
        };
        let dpkg = |arguments: &[&str]| {
            let mut command = self.command("dpkg");
            command.arg(format!("--root={}", root.display())).args(arguments);
            succeed(&mut command)
        };
        let package = self.package("_amd64.deb");
        let package = package.to_str().unwrap();
        dpkg(&["--install", package]);
        assert!(dpkg(&["--status", "offleash"]).contains("Status: install ok installed"));
        let profile = root.join("etc/apparmor.d/offleash");
        assert!(!profile.exists(), "an AppArmor that cannot read it is given none");
        assert!(!root.join("etc/systemd/system").exists(), "nothing is enabled");
        self.runs_true_in(&root);
        fs::create_dir_all(root.join("etc/apparmor.d/abi")).unwrap();
        fs::write(root.join("etc/apparmor.d/abi/4.0"), "").unwrap();
        dpkg(&["--install", package]);
        assert!(fs::read_to_string(&profile).unwrap().contains("userns,"));
        dpkg(&["--purge", "offleash"]);
        for path in [
            "usr/bin/offleash",
            "etc/offleash",
            "etc/apparmor.d/offleash",
            "usr/share/offleash",
        ] {
            assert!(!root.join(path).exists(), "{path} is left");
        }
    }

    /// A root directory with busybox and the database of dpkg.
    fn bare_root(&self) -> Option<PathBuf> {
        let busybox = ["/usr/bin/busybox", "/bin/busybox"]
            .map(Path::new)
            .into_iter()
            .find(|path| path.exists())?;
        let root = self.path("root");
        for directory in [
            "bin",
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "etc",
            "tmp",
            "proc",
            "dev",
            "old",
        ] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for applet in ["sh", "cp", "rm", "cmp", "true", "env", "umount"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        Some(root)
    }

    /// As the root directory of a mount namespace: in a `chroot` nobody may make user namespaces.
    fn runs_true_in(&self, root: &Path) {
        let mut command = self.command("unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-c", ENTER, "sh"]);
        succeed(command.arg(root));
    }

    fn the_npm_packages_bring_command_and_library(&self) {
        let Some(node) = self.node() else {
            return skip("npm, or Node.js 20 or newer, is not installed");
        };
        let (library, platform) = (self.package("offleash-0.1.0.tgz"), self.package("-x64-0.1.0.tgz"));
        let npm = |prefix: &str, packages: &[&Path]| {
            let mut command = self.command("npm");
            command.args([
                "install",
                "--global",
                "--offline",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                "--prefix",
            ]);
            command.arg(self.path(prefix)).args(packages);
            command
        };
        succeed(&mut npm("npm", &[&platform, &library]));
        let prefix = self.path("npm");
        self.runs_true(&prefix.join("bin/offleash"));
        let script = prefix.join("lib/script.mjs");
        fs::write(&script, JAVASCRIPT).unwrap();
        assert_eq!(succeed(self.command(&node).arg(&script)), "hi\n");

        succeed(npm("npm-alone", &[&library]).arg("--omit=optional"));
        let alone = self
            .command(self.path("npm-alone").join("bin/offleash"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&alone.stderr).into_owned();
        assert_eq!(alone.status.code(), Some(125), "{said}");
        assert!(
            said.contains("`offleash-linux-x64` is not installed") && said.contains("hint: "),
            "{said}"
        );

        let elsewhere = self.path("elsewhere.cjs");
        fs::write(
            &elsewhere,
            "Object.defineProperty(process, 'arch', { value: 'riscv64' })\n",
        )
        .unwrap();
        let mut wrong = npm("npm-wrong", &[&platform]);
        let wrong = wrong
            .env("NODE_OPTIONS", format!("--require={}", elsewhere.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(!wrong.status.success() && said.contains("EBADPLATFORM"), "{said}");
    }

    fn node(&self) -> Option<String> {
        let version = self.command("node").arg("--version").output().ok()?;
        self.command("npm").arg("--version").output().ok()?;
        let major: u32 = String::from_utf8_lossy(&version.stdout)
            .trim()
            .strip_prefix('v')?
            .split('.')
            .next()?
            .parse()
            .ok()?;
        (major >= 20).then(|| "node".to_owned())
    }

    fn the_wheel_brings_command_and_library(&self) {
        let Some(httpx) = httpx() else {
            return skip("`httpx-0.28.1` is not installed, which `cargo xtask sdks` does");
        };
        let python = "/usr/bin/python3";
        let environment = self.path("venv");
        succeed(
            self.command(python)
                .args(["-m", "venv", "--without-pip"])
                .arg(&environment),
        );
        let own = environment.join("bin/python");
        let packages = succeed(
            self.command(&own)
                .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
        );
        succeed(self.command("cp").arg("-R").arg(httpx.join(".")).arg(packages.trim()));
        let wheel = self.package(".whl");
        let pip = |arguments: &[&str]| {
            let mut command = self.command(python);
            command
                .args(["-m", "pip", "--disable-pip-version-check", "--python"])
                .arg(&own);
            command
                .args(["install", "--quiet", "--no-index", "--no-compile"])
                .args(arguments);
            command
        };
        succeed(pip(&[]).arg(&wheel));
        let installed = environment.join("bin/offleash");
        self.runs_true(&installed);
        assert_eq!(
            succeed(self.command(&own).args(["-m", "offleash", "--version"])),
            format!("offleash {VERSION}\n")
        );
        let said = succeed(self.command(&own).args(["-c", PYTHON]));
        assert_eq!(said, format!("{}\nhi\n", installed.display()));

        let elsewhere = [
            "--only-binary=:all:",
            "--no-deps",
            "--dry-run",
            "--target",
            "elsewhere",
            "--find-links",
        ];
        let found_for = |platform: &str| {
            let mut command = pip(&elsewhere);
            command
                .arg(self.path("dist"))
                .args(["--platform", platform, "offleash"]);
            command.output().unwrap()
        };
        let musl = found_for("musllinux_1_1_x86_64");
        assert!(musl.status.success(), "{}", String::from_utf8_lossy(&musl.stderr));
        for platform in ["macosx_14_0_arm64", "manylinux_2_17_aarch64"] {
            let refused = found_for(platform);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(
                !refused.status.success() && said.contains("No matching distribution"),
                "{platform}: {said}"
            );
        }
    }
}

/// Makes a directory the root and runs a sandbox in it.
const ENTER: &str = "\
cd \"$1\" && mount --bind . . && cd \"$1\" && mount --rbind /proc proc && mount --rbind /dev dev && pivot_root . old &&
exec /bin/busybox sh -c 'cd / && umount -l /old &&
    exec env -i PATH=/usr/bin:/bin /usr/bin/offleash --state /tmp/state run -q --no-workspace -- true'
";

/// Starts a server by the program of its own package.
const JAVASCRIPT: &str = "\
import { Sandbox } from 'offleash'
const sandbox = await Sandbox.create()
process.stdout.write((await sandbox.commands.run('echo hi')).stdout)
await sandbox.kill()
";

/// Ends the server of another package, and starts one by the program of its own.
const PYTHON: &str = "\
import offleash
from offleash import Sandbox
offleash.daemon.stop()
print(offleash.daemon.find_binary())
with Sandbox.create() as sandbox:
    print(sandbox.commands.run('echo hi').stdout, end='')
offleash.daemon.stop()
";

/// Where `cargo xtask sdks` puts what the library for Python is made on.
fn httpx() -> Option<PathBuf> {
    let named = std::env::var_os("OFFLEASH_SDKS").map(PathBuf::from);
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .ancestors()
        .map(|directory| directory.join("sdks"));
    let found = named.into_iter().chain(built).map(|sdks| sdks.join("httpx-0.28.1"));
    found.into_iter().find(|directory| directory.join("httpx").is_dir())
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

impl Drop for Site {
    /// A test that failed may have left a server.
    fn drop(&mut self) {
        let place = self.directory.path().to_string_lossy().into_owned();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(number) = entry.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&place) {
                // It may have ended meanwhile.
                let _ended = Pid::from_raw(number).map(|process| kill_process(process, Signal::KILL));
            }
        }
    }
}
