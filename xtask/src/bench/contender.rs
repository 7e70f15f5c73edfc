//! Who is compared, and the command lines that make the comparison fair.
//!
//! All see the host's `/usr` read-only, an own `/proc`, `/dev` and `/tmp`, and a cleared environment; the reference
//! sandboxes make all namespaces. None of the reference tools filters system calls here; offleash does, and so does the
//! program that says what the least is.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::helper::Helper;
use super::sample::{CommandLine, Sample};
use crate::error::TaskError;
use crate::program;

/// The name of a process without any sandbox.
pub(super) const PLAIN: &str = "plain";
/// The name of bubblewrap.
pub(super) const BUBBLEWRAP: &str = "bwrap";
/// The name of crun.
pub(super) const CRUN: &str = "crun";
/// The name of the least that a sandbox costs: the namespaces and mounts of bubblewrap in as few calls, and a filter.
pub(super) const LEAST: &str = "least";
/// Our name.
pub(super) const OFFLEASH: &str = "offleash";
/// Our name where the run takes a sandbox that waits.
pub(super) const WARM: &str = "offleash, warm";
/// Our name where that one has a Python that waits, too.
pub(super) const PYTHON: &str = "warm, --python";

/// The template of [`PYTHON`]: the host's Python, and what it has imported.
const RECIPE: &str = "name = \"code-interpreter\"\nrun = [\"true\"]\nimports = [\"json\"]\n";

/// How long a sandbox may take to be made for the next run.
const READY: Duration = Duration::from_secs(10);

/// bubblewrap as a careful user configures it.
const BUBBLEWRAP_OPTIONS: &str = "--unshare-all --die-with-parent --new-session --clearenv --setenv PATH /usr/bin:/bin \
    --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
    --symlink usr/sbin /sbin --proc /proc --dev /dev --tmpfs /tmp --";

/// The program of [`LEAST`].
const LEAST_PROGRAM: &str = include_str!("least.c");

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Nothing.
    True,
    /// A Python program that prints one line.
    Python,
    /// A process that waits until it is killed.
    Idle,
}

impl Workload {
    const ALL: [Self; 3] = [Self::True, Self::Python, Self::Idle];

    /// As it is named in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Python => "python3",
            Self::Idle => "sleep",
        }
    }

    fn command(self) -> &'static [&'static str] {
        match self {
            Self::True => &["/usr/bin/true"],
            Self::Python => &["/usr/bin/python3", "-c", "print(1)"],
            Self::Idle => &["/usr/bin/sleep", "600"],
        }
    }
}

/// The directories that the contenders work in; removed at the end.
#[derive(Debug)]
pub(super) struct Arena {
    directory: TempDir,
    binary: PathBuf,
}

impl Drop for Arena {
    /// What was killed while it waited left its cgroups to the next start, and after this there is none.
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(200));
        let reaping = Command::new(&self.binary)
            .arg("runs")
            .env("OFFLEASH_STATE", self.state())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        // A binary that cannot do it has left nothing.
        let _ = reaping;
        for state in [self.state(), self.state_with_python()] {
            let _ = self.offleash_in(&state, &["warm", "stop"]).command().status();
        }
    }
}

impl Arena {
    /// Makes the directories.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn new(binary: PathBuf) -> Result<Self, TaskError> {
        // Not in `/tmp`, which may be in memory, where the layers of a workspace would cost less than usually.
        let directory = tempfile::Builder::new()
            .prefix("offleash-bench-")
            .tempdir_in("/var/tmp");
        let directory = directory.map_err(TaskError::file("creating a directory in", "/var/tmp"))?;
        let arena = Self { directory, binary };
        for name in ["workspace", "home", "crun"] {
            fs::create_dir(arena.path(name)).map_err(TaskError::file("creating", arena.path(name)))?;
        }
        Ok(arena)
    }

    /// A path in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The offleash that is measured.
    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Puts a program into the directory in which everybody works.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn copy_into_workspace(&self, program: &Path, name: &str) -> Result<PathBuf, TaskError> {
        let copy = self.path("workspace").join(name);
        fs::copy(program, &copy).map_err(TaskError::file("copying", program))?;
        Ok(copy)
    }

    fn offleash(&self, words: &[&str]) -> CommandLine {
        let program = self.binary.clone().into_os_string();
        self.command(
            std::iter::once(program)
                .chain(words.iter().map(OsString::from))
                .collect(),
        )
    }

    fn offleash_in(&self, state: &Path, words: &[&str]) -> CommandLine {
        let mut command = self.offleash(words);
        command.arguments.extend(["--state".into(), state.into()]);
        command
    }

    fn state(&self) -> PathBuf {
        self.path("home").join("state")
    }

    /// One of its own, so that what waits there is known to be that.
    fn state_with_python(&self) -> PathBuf {
        self.path("home").join("state-python")
    }

    /// Waits until a sandbox waits for the next run.
    fn wait_for_a_sandbox(&self, state: &Path) -> Result<(), TaskError> {
        let asked = Instant::now();
        let ask = self.offleash_in(state, &["warm", "ls", "--json"]);
        loop {
            let told = ask.output()?;
            let waiting: Vec<Value> = serde_json::from_str(&told).unwrap_or_default();
            if !waiting.is_empty() {
                return Ok(());
            }
            if asked.elapsed() > READY {
                return Err(TaskError::Answer {
                    from: WARM,
                    why: "no sandbox waits for the next run".to_owned(),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Throws away what runs left.
    ///
    /// # Errors
    /// `Start`, `Ended`, and `Answer` when the list cannot be read.
    pub(super) fn discard_runs(&self) -> Result<(), TaskError> {
        if !self.state().exists() {
            return Ok(());
        }
        let told = self.offleash(&["runs", "--json"]).output()?;
        let runs: Vec<Value> = serde_json::from_str(&told).map_err(|error| TaskError::Answer {
            from: OFFLEASH,
            why: error.to_string(),
        })?;
        let mut command = self.offleash(&["discard"]);
        let ids = runs.iter().filter_map(|run| run["id"].as_str());
        command.arguments.extend(ids.map(OsString::from));
        if runs.is_empty() { Ok(()) } else { command.check() }
    }

    fn command_line(&self, wrapper: Vec<OsString>, workload: Workload) -> CommandLine {
        let words = workload.command().iter().map(OsString::from);
        self.command(wrapper.into_iter().chain(words).collect())
    }

    /// A command line with the same directory and small environment for everyone.
    pub(super) fn command(&self, arguments: Vec<OsString>) -> CommandLine {
        let home = self.path("home");
        let variables = [
            ("HOME", home.clone()),
            ("OFFLEASH_STATE", self.state()),
            ("XDG_RUNTIME_DIR", home),
        ];
        let mut environment: Vec<_> = variables
            .map(|(name, value)| (name.into(), value.into_os_string()))
            .to_vec();
        environment.push(("PATH".into(), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".into()));
        CommandLine {
            arguments,
            environment,
            directory: self.path("workspace"),
        }
    }
}

/// One way to run a workload.
#[derive(Debug)]
pub(super) struct Contender {
    /// As it is named in reports.
    pub(super) name: &'static str,
    way: Way,
    /// A measuring process with mounts of its own, where the contender cannot live with the machine's.
    helper: Option<Helper>,
    runs: u64,
}

#[derive(Debug)]
enum Way {
    /// Words before the workload's own.
    Wrapper(Vec<OsString>),
    /// The same, where something that was there before does the work; what waits is kept in `state`.
    Handed { words: Vec<OsString>, state: PathBuf },
    /// The same for words of Python.
    HandedPython { words: Vec<OsString>, state: PathBuf },
    /// A bundle directory for each workload, and a new container id for each run.
    Bundles { program: PathBuf },
}

impl Contender {
    /// All contenders, or why one cannot even be prepared.
    pub(super) fn all(arena: &Arena) -> [Result<Self, (&'static str, TaskError)>; 7] {
        let named = |name: &'static str| move |error| (name, error);
        let ours = |words: &[&str]| arena.offleash(words).arguments;
        [
            Ok(Self::wrapper(PLAIN, Vec::new())),
            Self::bubblewrap().map_err(named(BUBBLEWRAP)),
            Self::crun(arena).map_err(named(CRUN)),
            Self::least(arena).map_err(named(LEAST)),
            Ok(Self::wrapper(OFFLEASH, ours(&["run", "--"]))),
            Ok(Self {
                way: Way::Handed {
                    words: ours(&["run", "--warm", "1", "--"]),
                    state: arena.state(),
                },
                ..Self::wrapper(WARM, Vec::new())
            }),
            Self::python(arena).map_err(named(PYTHON)),
        ]
    }

    fn python(arena: &Arena) -> Result<Self, TaskError> {
        let (recipe, state) = (arena.path("recipe.toml"), arena.state_with_python());
        fs::write(&recipe, RECIPE).map_err(TaskError::file("writing", &recipe))?;
        let mut build = arena.offleash_in(&state, &["template", "build", "--quiet", "--file"]);
        let place = build.arguments.len() - 2;
        build.arguments.insert(place, recipe.into());
        build.check()?;
        let run = arena.offleash_in(&state, &["run", "--warm", "1", "--python"]);
        Ok(Self {
            way: Way::HandedPython {
                words: run.arguments,
                state,
            },
            ..Self::wrapper(PYTHON, Vec::new())
        })
    }

    /// Whether it runs that at all.
    pub(super) fn runs(&self, workload: Workload) -> bool {
        workload == Workload::Python || !matches!(self.way, Way::HandedPython { .. })
    }

    fn wrapper(name: &'static str, words: Vec<OsString>) -> Self {
        Self {
            name,
            way: Way::Wrapper(words),
            helper: None,
            runs: 0,
        }
    }

    fn bubblewrap() -> Result<Self, TaskError> {
        Ok(Self::wrapper(BUBBLEWRAP, bubblewrap_words()?))
    }

    fn least(arena: &Arena) -> Result<Self, TaskError> {
        let compiler = installed("cc")?;
        let (source, program) = (arena.path("least.c"), arena.path("least"));
        fs::write(&source, LEAST_PROGRAM).map_err(TaskError::file("writing", &source))?;
        let words: [OsString; 5] = [
            compiler.into(),
            "-O2".into(),
            "-o".into(),
            program.clone().into(),
            source.into(),
        ];
        arena.command(words.into()).check()?;
        Ok(Self::wrapper(LEAST, vec![program.into_os_string()]))
    }

    fn crun(arena: &Arena) -> Result<Self, TaskError> {
        let program = installed("crun")?;
        for workload in Workload::ALL {
            write_bundle(&arena.path("crun").join(workload.name()), workload)?;
        }
        let helper = if Path::new("/sys/fs/cgroup/unified").is_dir() {
            Some(Helper::without_unified_cgroups()?)
        } else {
            None
        };
        Ok(Self {
            name: CRUN,
            way: Way::Bundles { program },
            helper,
            runs: 0,
        })
    }

    /// The command line of the next run.
    pub(super) fn next_command(&mut self, arena: &Arena, workload: Workload) -> CommandLine {
        self.runs += 1;
        self.command_line(arena, workload, self.runs)
    }

    /// The command line of run number `run`; no number may be used twice at the same time.
    pub(super) fn command_line(&self, arena: &Arena, workload: Workload, run: u64) -> CommandLine {
        match &self.way {
            Way::Wrapper(words) | Way::Handed { words, .. } => arena.command_line(words.clone(), workload),
            Way::HandedPython { words, .. } => {
                let code = workload.command().iter().skip(1).map(OsString::from);
                arena.command(words.iter().cloned().chain(code).collect())
            }
            Way::Bundles { program } => {
                let home = arena.path("crun");
                let mut command = arena.command_line(Vec::new(), workload);
                let words = ["--cgroup-manager=cgroupfs", "run", "--bundle", workload.name()].map(OsString::from);
                command.arguments = vec![program.clone().into(), "--root".into(), home.join("state").into()];
                command.arguments.extend(words);
                command
                    .arguments
                    .push(format!("bench-{}-{run}", std::process::id()).into());
                command.directory = home;
                command
            }
        }
    }

    /// Whether a run can be started from any thread of this process, and ends when the process that was started ends.
    ///
    /// Containers of crun need the helper's mounts on some machines, and outlive their launcher on all; a sandbox that
    /// waited belongs to the process that held it.
    pub(super) fn is_one_process_tree(&self) -> bool {
        matches!(self.way, Way::Wrapper(_))
    }

    /// Runs each workload that ends once, untimed.
    ///
    /// # Errors
    /// Why it does not work on this machine.
    pub(super) fn check(&mut self, arena: &Arena) -> Result<(), TaskError> {
        for workload in [Workload::True, Workload::Python] {
            if !self.runs(workload) {
                continue;
            }
            let command = self.next_command(arena, workload);
            match &mut self.helper {
                Some(helper) => helper.sample(&command).map(|_| ())?,
                None => command.check()?,
            }
            self.settle(arena)?;
        }
        Ok(())
    }

    /// Runs `workload` once and measures it.
    ///
    /// # Errors
    /// When the run fails.
    pub(super) fn sample(&mut self, arena: &Arena, workload: Workload) -> Result<Sample, TaskError> {
        let command = self.next_command(arena, workload);
        let sample = match &mut self.helper {
            Some(helper) => helper.sample(&command),
            None => command.sample(),
        };
        self.settle(arena)?;
        sample
    }

    /// Waits for the end of what the run left to be done: the next contender shall not pay for it.
    fn settle(&self, arena: &Arena) -> Result<(), TaskError> {
        match &self.way {
            Way::Handed { state, .. } | Way::HandedPython { state, .. } => arena.wait_for_a_sandbox(state),
            _ => Ok(()),
        }
    }
}

/// bubblewrap with its options, and `--` at the end.
///
/// # Errors
/// When it is not installed.
pub(super) fn bubblewrap_words() -> Result<Vec<OsString>, TaskError> {
    let program = installed("bwrap")?.into_os_string();
    let options = BUBBLEWRAP_OPTIONS.split_whitespace().map(OsString::from);
    Ok(std::iter::once(program).chain(options).collect())
}

fn installed(name: &'static str) -> Result<PathBuf, TaskError> {
    program::find(name).ok_or_else(|| TaskError::start(name)(std::io::ErrorKind::NotFound.into()))
}

/// Writes an OCI bundle: a read-only root with links into `/usr`, which is bound from the host.
fn write_bundle(bundle: &Path, workload: Workload) -> Result<(), TaskError> {
    let root = bundle.join("rootfs");
    for directory in ["usr", "proc", "dev", "tmp"] {
        let path = root.join(directory);
        fs::create_dir_all(&path).map_err(TaskError::file("creating", path))?;
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        let path = root.join(link);
        std::os::unix::fs::symlink(format!("usr/{link}"), &path).map_err(TaskError::file("creating", path))?;
    }
    let path = bundle.join("config.json");
    fs::write(&path, bundle_config(workload).to_string()).map_err(TaskError::file("writing", path))
}

/// The runtime configuration (<https://github.com/opencontainers/runtime-spec/blob/main/config.md>).
fn bundle_config(workload: Workload) -> Value {
    let none: [&str; 0] = [];
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": source, "options": options });
    let ids = |id: u32| json!([{ "containerID": 0, "hostID": id, "size": 1 }]);
    let namespaces = ["user", "pid", "network", "ipc", "uts", "mount", "cgroup"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": workload.command(),
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": { "bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none },
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "sandbox",
        "mounts": [
            mount("/usr", "bind", "/usr", &["rbind", "ro", "nosuid", "nodev"]),
            mount("/proc", "proc", "proc", &[]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
            mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev"]),
        ],
        "linux": {
            "uidMappings": ids(rustix::process::geteuid().as_raw()),
            "gidMappings": ids(rustix::process::getegid().as_raw()),
            "namespaces": namespaces,
        },
    })
}
