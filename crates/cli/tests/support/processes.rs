//! Programs that a test starts, and processes that it looks for: nothing may hang, nothing may stay.

use std::io::{Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest that a test waits for anything; a healthy run takes a hundredth of it.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// Copies a program that is going to be executed.
///
/// By another process: a test that starts something at that moment would otherwise have the copy open for writing until
/// its exec, and the kernel executes no such file (`ETXTBSY`).
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "copying {from:?} to {to:?}");
}

/// Starts a command with pipes for its three streams.
pub fn start(command: &mut Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end of `child`, its input closed; one that does not end is killed, and the test has failed.
pub fn finish(mut child: Child) -> Output {
    drop(child.stdin.take());
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let status = wait(&mut child);
    let text = |reader: Option<std::thread::JoinHandle<Vec<u8>>>| {
        reader.map_or_else(Vec::new, |reader| reader.join().unwrap())
    };
    Output {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Runs a command with `input`; one that does not end is killed, and the test has failed.
pub fn feed(command: &mut Command, input: impl Into<Vec<u8>>) -> Output {
    let mut child = start(command);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.into();
    // A command that does not read all of its input is no failure here.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = finish(child);
    writer.join().unwrap();
    output
}

/// Waits for the end of `child`.
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the program did not end within {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to `child`.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until `happened` answers something.
pub fn eventually<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = happened() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads from a pipe until `end` has come, and answers everything up to there.
pub fn read_until(pipe: &mut impl Read, end: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(end.as_bytes()) {
        let read = pipe.read(&mut byte).unwrap();
        assert!(
            read == 1,
            "the stream ended before {end:?}: {}",
            String::from_utf8_lossy(&seen)
        );
        seen.extend_from_slice(&byte);
    }
    String::from_utf8(seen).unwrap()
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Processes of this machine, those in sandboxes among them, that have `word` in their arguments.
pub fn processes_with(word: &str) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mentions = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|argument| argument == word.as_bytes())
    };
    numbers.filter(mentions).collect()
}

/// The children of `parent` whose name among their arguments is `name`.
pub fn children_named(parent: u32, name: &str) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| {
            line.strip_prefix("PPid:")
                .is_some_and(|parent_of| parent_of.trim() == parent.to_string())
        })
    };
    processes_with(name).into_iter().filter(is_child).collect()
}

/// Whether a process is the gateway of a sandbox, which is a child of its supervisor as the sandbox's first process is.
pub fn is_gateway(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"offleash: gateway"))
}

/// A number of seconds for sleep(1) that no other process of this machine has, to find it by.
pub fn long_sleep() -> String {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
    format!("3600.{:010}", u32::from_ne_bytes(random))
}

/// A program of this machine that the sandbox has as well.
pub fn program(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| PathBuf::from(directory).join(name))
        .find(|path| path.exists())
}

/// The control groups of a run that are still there.
pub fn groups_of(run: &str) -> Vec<PathBuf> {
    let name = format!("offleash-{run}");
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = todo.pop() {
        let children = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        for child in children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir())) {
            if child.file_name().as_bytes() == name.as_bytes() {
                found.push(child.path());
            }
            todo.push(child.path());
        }
    }
    found
}

/// The niceness of a process, which children have from their parents (proc_pid_stat(5), the 19th field).
pub fn niceness(process: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(16).unwrap().to_owned()
}

/// `offleash` started by another program, which takes it behind its own arguments.
pub fn through(wrapper: &[&str], offleash: &Command) -> Command {
    let mut wrapped = Command::new(wrapper[0]);
    wrapped
        .args(&wrapper[1..])
        .arg(offleash.get_program())
        .args(offleash.get_args());
    if let Some(directory) = offleash.get_current_dir() {
        wrapped.current_dir(directory);
    }
    for (name, value) in offleash.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}
