//! `cargo xtask bench levels`: what a sandbox of each level costs, beside the same program without one and beside runtimes
//! with a bundle of the same: its start, files of its workspace, and a stream into a file.
//!
//! Whole runs are timed, interleaved; the work in them is what a row has more than the row of `true`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use super::helper::Helper;
use super::report::Machine;
use super::sample::{CommandLine, Series, milliseconds};
use super::{released, write_json};
use crate::error::TaskError;
use crate::{gvisor, program, test};

/// Options of `cargo xtask bench levels`.
#[derive(Debug, clap::Args)]
pub(crate) struct LevelsOptions {
    /// How often each command is run
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is run: its name, and a script of the shell.
const WORK: [(&str, &str); 3] = [
    ("true", "true"),
    (
        "500 files made, read, removed",
        "i=0; while [ $i -lt 500 ]; do echo x >f$i; i=$((i+1)); done; cat f* >all; rm -f f* all",
    ),
    (
        "128 MiB written",
        "dd if=/dev/zero of=large bs=1M count=128 2>/dev/null; rm large",
    ),
];

/// Whom it is run by.
struct Way {
    name: &'static str,
    /// Makes the command line of a run, by the script's number and the run's.
    command: Box<dyn Fn(usize, u64) -> CommandLine>,
    helper: Option<Helper>,
}

/// One cell of the table.
#[derive(Debug, serde::Serialize)]
struct LevelTiming {
    way: &'static str,
    work: &'static str,
    wall_us: Series,
    cpu_us: Series,
}

/// Measures and prints a table.
///
/// # Errors
/// When the release does not build or a run fails.
pub(crate) fn run(options: &LevelsOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let place = tempfile::tempdir().map_err(TaskError::file("creating", "a temporary directory"))?;
    let mut ways = ways(&binary, &place)?;
    let mut timings = Vec::new();
    for (number, (work, _)) in WORK.into_iter().enumerate() {
        eprintln!("── {work}, {} rounds", options.rounds);
        let mut samples: Vec<Vec<_>> = ways.iter().map(|_| Vec::new()).collect();
        // The first is not counted: a runtime that was never seen is asked for its version, and caches are cold.
        for round in 0..=options.rounds {
            for (way, samples) in ways.iter_mut().zip(&mut samples) {
                let command = (way.command)(number, u64::from(round));
                let sample = match &mut way.helper {
                    Some(helper) => helper.sample(&command)?,
                    None => command.sample()?,
                };
                samples.extend((round > 0).then_some(sample));
            }
        }
        for (way, samples) in ways.iter().zip(&samples) {
            timings.push(LevelTiming {
                way: way.name,
                work,
                wall_us: Series::of(samples.iter().map(|sample| sample.wall_us)),
                cpu_us: Series::of(samples.iter().map(|sample| sample.cpu_us)),
            });
        }
    }
    print_table(&ways, &timings);
    match &options.json {
        Some(path) => write_json(&json!({ "machine": Machine::this(), "timings": timings }), path),
        None => Ok(()),
    }
}

fn print_table(ways: &[Way], timings: &[LevelTiming]) {
    println!(
        "| ms, median (95 of 100) | {} |",
        WORK.map(|(work, _)| work).join(" | ")
    );
    println!("|---|{}", "---|".repeat(WORK.len()));
    for way in ways {
        let cells = timings.iter().filter(|timing| timing.way == way.name);
        let shown = cells.map(|timing| {
            let Series { median, p95 } = timing.wall_us;
            format!("{:.1} ({:.1})", milliseconds(median * 1000), milliseconds(p95 * 1000))
        });
        println!("| {} | {} |", way.name, shown.collect::<Vec<_>>().join(" | "));
    }
}

/// All that this machine has; who is missing is told.
fn ways(binary: &Path, place: &TempDir) -> Result<Vec<Way>, TaskError> {
    let path = |name: &str| place.path().join(name);
    for name in ["workspace", "home", "runtimes"] {
        fs::create_dir(path(name)).map_err(TaskError::file("creating", path(name)))?;
    }
    let (workspace, home) = (path("workspace"), path("home"));
    let environment: Vec<(OsString, OsString)> = [
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("HOME".into(), home.clone().into_os_string()),
        ("OFFLEASH_STATE".into(), path("state").into_os_string()),
    ]
    .into();
    let line = move |words: Vec<OsString>, directory: &Path| CommandLine {
        arguments: words,
        environment: environment.clone(),
        directory: directory.to_owned(),
    };
    let script = |work: usize| ["/bin/sh", "-c", WORK[work].1].map(OsString::from);
    let offleash = |name: &'static str, flags: Vec<OsString>| {
        let (line, workspace, binary) = (line.clone(), workspace.clone(), binary.to_owned());
        Way {
            name,
            command: Box::new(move |work, _| {
                let mut words = vec![binary.clone().into(), "run".into(), "--quiet".into()];
                words.extend(flags.iter().cloned());
                words.push("--".into());
                words.extend(script(work));
                line(words, &workspace)
            }),
            helper: None,
        }
    };
    let runtime = |name: &'static str, words: Vec<OsString>, helper: Option<Helper>| -> Result<Way, TaskError> {
        let bundles = path("runtimes").join(name);
        for (work, (_, script)) in WORK.into_iter().enumerate() {
            write_bundle(&bundles.join(work.to_string()), script, &workspace)?;
        }
        let line = line.clone();
        Ok(Way {
            name,
            command: Box::new(move |work, run| {
                let bundle = bundles.join(work.to_string());
                let mut words = words.clone();
                words.extend(["run".into(), "--bundle".into(), bundle.clone().into_os_string()]);
                words.push(format!("levels-{}-{work}-{run}", std::process::id()).into());
                line(words, &bundle)
            }),
            helper,
        })
    };
    let container = |program: &Path| -> Vec<OsString> {
        let level = ["--level", "container", "--runtime"].map(OsString::from);
        [&level[..], &[program.to_owned().into_os_string()]].concat()
    };

    let mut ways = vec![
        Way {
            name: "plain",
            command: {
                let (line, workspace) = (line.clone(), workspace.clone());
                Box::new(move |work, _| line(script(work).into(), &workspace))
            },
            helper: None,
        },
        offleash("`process`", Vec::new()),
    ];
    let runsc = Some(gvisor::program()).filter(|path| path.exists());
    match runsc.or_else(|| program::find("runsc")) {
        Some(program) => {
            ways.push(offleash("`container`, gVisor", container(&program)));
            let mut words = vec![
                program.into_os_string(),
                "--root".into(),
                path("runsc").into_os_string(),
            ];
            let options = "--network=none --ignore-cgroups --overlay2=none --file-access=shared --platform=systrap";
            words.extend(options.split(' ').map(OsString::from));
            ways.push(runtime("`runsc run`", words, None)?);
        }
        None => eprintln!("there is no runsc"),
    }
    match program::find("crun") {
        Some(program) => {
            ways.push(offleash("`container`, crun", container(&program)));
            let mut words = vec![program.into_os_string(), "--root".into(), path("crun").into_os_string()];
            words.push("--cgroup-manager=disabled".into());
            let is_hybrid = Path::new("/sys/fs/cgroup/unified").is_dir();
            let helper = is_hybrid.then(Helper::without_unified_cgroups).transpose()?;
            ways.push(runtime("`crun run`", words, helper)?);
        }
        None => eprintln!("there is no crun"),
    }
    match (program::find("qemu-system-x86_64"), test::install_kernel()) {
        (Some(_), Ok(kernel)) => {
            // Its first run, which is not counted, makes the template from which all others are restored.
            let mut flags = ["--level", "microvm", "--vm-kernel"].map(OsString::from).to_vec();
            flags.push(kernel.into_os_string());
            ways.push(offleash("`microvm`, QEMU that emulates", flags));
        }
        (None, _) => eprintln!("there is no qemu-system-x86_64"),
        (_, Err(why)) => eprintln!("there is no kernel for guests of virtual machines: {why}"),
    }
    Ok(ways)
}

/// A bundle with the host's `/usr`, read-only, and the workspace.
fn write_bundle(bundle: &Path, script: &str, workspace: &Path) -> Result<(), TaskError> {
    let root = bundle.join("rootfs");
    for directory in ["usr", "proc", "dev", "tmp", "workspace"] {
        let path = root.join(directory);
        fs::create_dir_all(&path).map_err(TaskError::file("creating", path))?;
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        let path = root.join(link);
        std::os::unix::fs::symlink(format!("usr/{link}"), &path).map_err(TaskError::file("creating", path))?;
    }
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": source, "options": options });
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/sh", "-c", script],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/workspace",
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "sandbox",
        "mounts": [
            mount("/usr", "bind", "/usr", &["rbind", "ro", "nosuid", "nodev"]),
            mount("/proc", "proc", "proc", &[]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
            mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev"]),
            mount("/workspace", "bind", &workspace.to_string_lossy(), &["rbind", "rw", "nosuid", "nodev"]),
        ],
        "linux": { "namespaces": namespaces },
    });
    let path = bundle.join("config.json");
    fs::write(&path, config.to_string()).map_err(TaskError::file("writing", path))
}
