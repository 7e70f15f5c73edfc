//! A virtual machine that boots the unpacked kernel, runs the jobs from its memory and switches itself off.
//!
//! Emulated entirely, so that it works wherever tests run, virtual machines without nested virtualisation included.

use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::archive::Archive;
use super::packages::Packages;
use crate::error::TaskError;

/// The emulator, and the Debian package that prerequisites install for it.
pub(super) const EMULATOR: &str = "qemu-system-x86_64";

/// After this long the machine is taken for stuck.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Directories of the machine's root.
const DIRECTORIES: [&str; 14] = [
    "dev",
    "etc",
    "home",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr",
    "usr/bin",
    "usr/lib",
    "usr/share",
    "usr/local",
    "var",
    "vm",
];
/// Names that a merged `/usr` has outside of it.
const LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("lib", "usr/lib"),
    ("usr/sbin", "bin"),
];
/// Modules that the tests need and that the kernel has not built in.
const MODULES: [(&str, &str); 2] = [
    ("vm/overlay.ko", "fs/overlayfs/overlay.ko"),
    ("vm/brd.ko", "drivers/block/brd.ko"),
];
/// What networks of sandboxes need of packet filters, each behind those that it needs itself; a sandbox may not have them loaded.
const NETWORK_MODULES: [&str; 21] = [
    "lib/libcrc32c",
    "net/ipv4/netfilter/nf_defrag_ipv4",
    "net/ipv6/netfilter/nf_defrag_ipv6",
    "net/ipv4/netfilter/nf_reject_ipv4",
    "net/ipv6/netfilter/nf_reject_ipv6",
    "net/ipv4/netfilter/nf_tproxy_ipv4",
    "net/ipv6/netfilter/nf_tproxy_ipv6",
    "net/netfilter/nfnetlink",
    "net/netfilter/nf_tables",
    "net/netfilter/nf_conntrack",
    "net/netfilter/nf_nat",
    "net/netfilter/nft_chain_nat",
    "net/netfilter/nft_redir",
    "net/netfilter/nft_reject",
    "net/ipv4/netfilter/nft_reject_ipv4",
    "net/ipv6/netfilter/nft_reject_ipv6",
    "net/netfilter/nft_tproxy",
    "net/netfilter/x_tables",
    "net/netfilter/nft_compat",
    "net/netfilter/xt_NFQUEUE",
    "net/netfilter/nfnetlink_queue",
];
/// In which order they are loaded.
const NETWORK_MODULES_LIST: &str = "vm/network-modules";
/// Files that are written here.
const FILES: [(&str, &str); 9] = [
    ("vm/start", include_str!("start.sh")),
    ("vm/jobs.sh", include_str!("jobs.sh")),
    ("vm/in-scope", include_str!("in-scope.sh")),
    (
        "vm/offleash-in-scope",
        "#!/bin/sh\nexec /vm/in-scope /vm/offleash \"$@\"\n",
    ),
    // The first process reaps what others leave behind, and starts the rest.
    ("etc/inittab", "::once:/vm/start\n"),
    (
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\ntester:x:4242:4242::/tmp/tester:/bin/sh\n",
    ),
    ("etc/group", "root:x:0:\ntester:x:4242:\n"),
    // Who answers for names is read when a sandbox has a network; there is nobody here.
    ("etc/resolv.conf", "nameserver 192.0.2.1\n"),
    ("etc/hosts", "127.0.0.1 localhost\n"),
];

/// Puts the machine's first files together in `directory`: its root, `jobs`, and executables by the name they get.
///
/// # Errors
/// `File` when one of them cannot be read or the archive cannot be written.
pub(super) fn assemble(
    directory: &Path,
    packages: &Packages,
    executables: &[(String, PathBuf)],
    jobs: &str,
) -> Result<PathBuf, TaskError> {
    let path = directory.join("files");
    let read = |path: &Path| fs::read(path).map_err(TaskError::file("reading", path));
    let busybox = read(&packages.busybox)?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, module) in MODULES {
        files.push((name.to_owned(), read(&packages.modules.join(module))?));
    }
    let mut list = String::new();
    for module in NETWORK_MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        files.push((
            format!("vm/{name}.ko"),
            read(&packages.modules.join(format!("{module}.ko")))?,
        ));
        list.push_str(&format!("{name}\n"));
    }
    files.push((NETWORK_MODULES_LIST.to_owned(), list.into()));
    for (name, executable) in executables {
        files.push((format!("vm/{name}"), read(executable)?));
    }
    files.extend(FILES.map(|(name, text)| (name.to_owned(), text.into())));
    files.push(("vm/jobs".to_owned(), jobs.into()));
    files.push(("usr/bin/busybox".to_owned(), busybox));
    write_archive(&path, &files, &applets(&packages.busybox)?).map_err(TaskError::file("writing", &path))?;
    Ok(path)
}

fn write_archive(path: &Path, files: &[(String, Vec<u8>)], applets: &[String]) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(fs::File::create(path)?));
    archive.directory("dev")?;
    archive.device("dev/console", (5, 1))?;
    archive.file("init", include_bytes!("init.sh"))?;
    archive.directory("system")?;
    for name in DIRECTORIES {
        archive.directory(&format!("system/{name}"))?;
    }
    archive.device("system/dev/console", (5, 1))?;
    for (name, target) in LINKS {
        archive.link(&format!("system/{name}"), target)?;
    }
    for (name, contents) in files {
        archive.file(&format!("system/{name}"), contents)?;
    }
    for name in applets {
        archive.link(&format!("system/usr/bin/{name}"), "busybox")?;
    }
    archive.finish().map(drop)
}

/// The names under which busybox is to be found.
fn applets(busybox: &Path) -> Result<Vec<String>, TaskError> {
    let output = Command::new(busybox).arg("--list").output();
    let output = output.map_err(TaskError::start("busybox"))?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = listing.lines().filter(|name| *name != "busybox").map(str::to_owned);
    Ok(names.collect())
}

/// Boots the machine and waits until it switches itself off; answers what it wrote of its jobs.
///
/// # Errors
/// `Start` when the emulator cannot be started, `Ended` when it does not end well or in time; what was written until
/// then is in `directory`.
pub(super) fn boot(directory: &Path, kernel: &Path, files: &Path) -> Result<String, TaskError> {
    let lines = ["console", "jobs-0", "jobs-1"].map(|name| directory.join(name));
    let mut command = Command::new(EMULATOR);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-append", "console=ttyS0 loglevel=4 panic=-1 cgroup_no_v1=all"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(files);
    for line in &lines {
        command.arg("-serial").arg(format!("file:{}", line.display()));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    wait(&mut command)?;
    let mut text = String::new();
    for line in &lines[1..] {
        let bytes = fs::read(line).map_err(TaskError::file("reading", line))?;
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    if text.is_empty() {
        let console = fs::read(&lines[0]).unwrap_or_default();
        return Err(TaskError::Answer {
            from: "the virtual machine",
            why: format!("no test ran:\n{}", String::from_utf8_lossy(&console)),
        });
    }
    Ok(text)
}

fn wait(command: &mut Command) -> Result<(), TaskError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut child = command.spawn().map_err(TaskError::start(EMULATOR))?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(TaskError::start(EMULATOR))? {
            break status.to_string();
        }
        if Instant::now() > deadline {
            child
                .kill()
                .and_then(|()| child.wait())
                .map_err(TaskError::start(EMULATOR))?;
            // What came to its end counts; the rest is reported missing, job by job.
            eprintln!("{EMULATOR}: killed after {} s", TIMEOUT.as_secs());
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if status == "exit status: 0" {
        return Ok(());
    }
    Err(TaskError::Ended {
        command: EMULATOR.to_owned(),
        status,
        stderr: String::new(),
    })
}
