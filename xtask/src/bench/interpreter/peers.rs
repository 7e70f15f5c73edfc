//! What we are compared with: a plain `python3`, a Jupyter kernel started through `jupyter_client`, copies of a Python that do
//! nothing but answer, the least that any copy can take here, and a Python that CRIU restores.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::bench::api::client::{answered, nanoseconds};
use crate::error::TaskError;
use crate::program;

/// Starts a kernel when it is told `first`, and uses one that it keeps for `again`; answers with what that took, ns.
const JUPYTER: &str = r#"
import json, sys, time
from jupyter_client.manager import start_new_kernel

def run(client, code):
    reply = client.execute(code, reply=True, timeout=120)
    assert reply["content"]["status"] == "ok", reply

kept = None
print("ready", flush=True)
for line in sys.stdin:
    kind, code = json.loads(line)
    if kind == "again" and kept is None:
        kept = start_new_kernel(startup_timeout=120)
        run(kept[1], code)
    begun = time.perf_counter_ns()
    if kind == "first":
        manager, client = start_new_kernel(startup_timeout=120)
        run(client, code)
        taken = time.perf_counter_ns() - begun
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    else:
        run(kept[1], code)
        taken = time.perf_counter_ns() - begun
    print(taken, flush=True)
if kept is not None:
    kept[1].stop_channels()
    kept[0].shutdown_kernel(now=True)
"#;

/// Copies itself, with pandas imported, when it is told `first`, or lets a copy that has waited go on when it is told `again`;
/// answers with what it took until the copy had run the code and said so, ns.
const COPIES: &str = r#"
import gc, json, os, sys, time
import pandas

def copy():
    asking, answering = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = os.read(asking[0], 4096)
        exec(code, {})
        os.write(answering[1], b"x")
        os._exit(0)
    os.close(asking[0])
    os.close(answering[1])
    return pid, asking[1], answering[0]

def let_run(made, code):
    pid, asking, answering = made
    os.write(asking, code.encode())
    assert os.read(answering, 1) == b"x"
    return made

def end(made):
    pid, *pipes = made
    os.waitpid(pid, 0)
    for pipe in pipes:
        os.close(pipe)

gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    kind, code = json.loads(line)
    made = None
    if kind == "again":
        made = copy()
        time.sleep(0.02)
    begun = time.perf_counter_ns()
    made = let_run(made or copy(), code)
    taken = time.perf_counter_ns() - begun
    end(made)
    print(taken, flush=True)
"#;

/// Has CRIU write down a Python that has imported pandas, and restores it when it is told `first`; answers with what it took
/// until that had run the code, ns, or with why there is none.
const CRIU: &str = r#"
import json, os, signal, subprocess, sys, tempfile, time

HOLDER = """
import os, sys, time
import pandas

def tell(name):
    with open(name + "~", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + "~", name)

os.chdir(sys.argv[1])
tell("ready")
while not os.path.exists("code"):
    time.sleep(0.0005)
exec(open("code").read(), {})
tell("done")
time.sleep(600)
"""

def criu(action, *arguments):
    done = subprocess.run(["criu", action, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"criu {action}: " + "; ".join((done.stderr or done.stdout).split("\n")))

def wait_for(name):
    deadline = time.monotonic() + 60
    while not os.path.exists(name):
        if time.monotonic() > deadline:
            raise OSError(f"no {name} in time")
        time.sleep(0.0005)

with tempfile.TemporaryDirectory() as here:
    os.chdir(here)
    os.mkdir("images")
    try:
        criu("check")
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, here], start_new_session=True, **nothing)
        try:
            wait_for("ready")
            criu("dump", "--tree", str(holder.pid), "--images-dir", "images")
        finally:
            holder.kill()
            holder.wait()
    except OSError as error:
        print(error, flush=True)
        sys.exit(1)
    print("ready", flush=True)
    for line in sys.stdin:
        with open("code", "w") as file:
            file.write(json.loads(line)[1])
        begun = time.perf_counter_ns()
        criu("restore", "--restore-detached", "--images-dir", "images")
        wait_for("done")
        taken = time.perf_counter_ns() - begun
        os.kill(int(open("done").read()), signal.SIGKILL)
        os.unlink("done")
        os.unlink("code")
        print(taken, flush=True)
"#;

/// An environment of the benchmark's own, removed with the last who uses it.
#[derive(Debug)]
struct Environment {
    directory: tempfile::TempDir,
}

/// Installs `packages` and what a Jupyter kernel needs.
///
/// # Errors
/// When they cannot be installed.
fn environment(packages: &[&str]) -> Result<Environment, TaskError> {
    let directory = tempfile::tempdir().map_err(TaskError::file("making", "an environment"))?;
    let environment = Environment { directory };
    program::run(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment.directory.path()),
    )?;
    let mut install = Command::new(environment.program("pip"));
    install
        .args(["install", "--quiet", "jupyter_client", "ipykernel"])
        .args(packages);
    program::run(&mut install)?;
    Ok(environment)
}

impl Environment {
    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join("bin").join(name)
    }
}

/// Those that could be started; each lives in the environment, which goes with them.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) python: Python,
    pub(super) jupyter: Told,
    pub(super) copies: Told,
    /// Or why it does not run here.
    pub(super) criu: Result<Told, TaskError>,
    _environment: Environment,
}

impl Peers {
    /// # Errors
    /// When the packages cannot be installed, or one does not start.
    pub(super) fn start(packages: &[&str]) -> Result<Self, TaskError> {
        let environment = environment(packages)?;
        Ok(Self {
            python: Python::new(&environment),
            jupyter: Told::start(&environment, JUPYTER)?,
            copies: Told::start(&environment, COPIES)?,
            criu: Told::start(&environment, CRIU),
            _environment: environment,
        })
    }
}

/// A plain `python3` with pandas.
#[derive(Debug)]
pub(super) struct Python {
    program: PathBuf,
}

impl Python {
    fn new(environment: &Environment) -> Self {
        Self {
            program: environment.program("python3"),
        }
    }

    /// What `import pandas` takes from start to end, ns.
    pub(super) fn import(&mut self) -> Result<u64, TaskError> {
        let mut command = Command::new(&self.program);
        command.args(["-c", "import pandas"]);
        let started = Instant::now();
        program::run(&mut command)?;
        Ok(nanoseconds(started))
    }
}

/// A program in Python that is told what to do, a line each, and answers with what that took.
#[derive(Debug)]
pub(super) struct Told {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Told {
    fn start(environment: &Environment, script: &str) -> Result<Self, TaskError> {
        let mut child = Command::new(environment.program("python3"))
            .args(["-c", script])
            .env("PATH", with_path(&environment.program("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(TaskError::start("python3"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| answered("a Python that is compared", "it has no output".to_owned()))?;
        let mut told = Self {
            child,
            input,
            output: BufReader::new(output),
        };
        let said = told.line()?;
        if said.trim() == "ready" {
            Ok(told)
        } else {
            Err(answered("what is compared", said.trim().to_owned()))
        }
    }

    /// What a new one takes from nothing to the end of its first cell, ns.
    pub(super) fn first(&mut self, code: &str) -> Result<u64, TaskError> {
        self.ask("first", code)
    }

    /// What a cell takes in one that is there, ns.
    pub(super) fn again(&mut self, code: &str) -> Result<u64, TaskError> {
        self.ask("again", code)
    }

    fn ask(&mut self, kind: &str, code: &str) -> Result<u64, TaskError> {
        let line = format!("{}\n", serde_json::json!([kind, code]));
        if let Some(input) = &mut self.input {
            input
                .write_all(line.as_bytes())
                .map_err(TaskError::file("asking", "a Python that is compared"))?;
        }
        let told = self.line()?;
        told.trim()
            .parse()
            .map_err(|_| answered("a Python that is compared", told))
    }

    fn line(&mut self) -> Result<String, TaskError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read.map_err(TaskError::file("reading from", "a Python that is compared"))? {
            0 => Err(answered("a Python that is compared", "it has ended".to_owned())),
            _ => Ok(line),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // The end of its input is its end, and that of the kernel that it keeps.
        self.input = None;
        let _reaped = self.child.wait();
    }
}

fn with_path(first: &Path) -> std::ffi::OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(first.to_owned()).chain(std::env::split_paths(&rest));
    std::env::join_paths(all).unwrap_or(rest)
}
