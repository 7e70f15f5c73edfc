//! Processes of this machine in place of a sandbox's.

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_interpreter::process::{
    EndedProcess, ProcessError, ProcessHost, ProcessNews, ProcessStart, ProcessStream, RunningProcess,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::mpsc;

/// Processes that are killed with the last of these.
#[derive(Debug, Clone, Default)]
pub(crate) struct Local {
    all: Arc<All>,
}

#[derive(Debug, Default)]
struct All {
    running: Mutex<BTreeMap<u32, Entry>>,
    ended: Mutex<BTreeMap<String, Past>>,
    environment: Mutex<Arc<BTreeMap<String, String>>>,
}

impl Local {
    /// From here on processes are given other variables.
    pub(crate) fn set_environment(&self, name: &str, value: &str) {
        let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        *self.all.environment.lock().unwrap() = Arc::new(env);
    }
}

/// What is known of the process with a tag.
#[derive(Debug, Default)]
struct Past {
    ended: Option<(String, ExecEnd)>,
    is_asked_for: bool,
    note: Option<String>,
}

#[derive(Debug)]
struct Entry {
    start: ProcessStart,
    input: Arc<Mutex<ChildStdin>>,
    followers: Vec<mpsc::UnboundedSender<ProcessNews>>,
}

impl Drop for All {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pid in running.keys() {
            let _gone = kill_process_group(pid_of(*pid), Signal::KILL);
        }
    }
}

/// What one of them writes.
#[derive(Debug)]
pub(crate) struct LocalStream {
    pid: u32,
    news: mpsc::UnboundedReceiver<ProcessNews>,
}

impl ProcessStream for LocalStream {
    fn pid(&self) -> u32 {
        self.pid
    }

    async fn next(&mut self) -> Result<Option<ProcessNews>, ProcessError> {
        Ok(self.news.recv().await)
    }
}

impl ProcessHost for Local {
    type Stream = LocalStream;

    async fn start(&self, start: ProcessStart) -> Result<LocalStream, ProcessError> {
        let (program, arguments) = start.argv.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(arguments).process_group(0).env_remove("PYTHONPATH");
        command.envs(self.environment().iter());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let cwd = start.cwd.clone().unwrap_or_default();
        command.current_dir(if cwd == "/home/user" { "/" } else { &cwd });
        let mut child = command.spawn().map_err(|_| ProcessError::Directory {
            reason: "there is none".to_owned(),
        })?;
        let pid = child.id();
        let (sender, news) = mpsc::unbounded_channel();
        let input = Arc::new(Mutex::new(child.stdin.take().unwrap()));
        let followers = vec![sender];
        let entry = Entry {
            start,
            input,
            followers,
        };
        let past = Past {
            is_asked_for: true,
            ..Past::default()
        };
        self.all.ended.lock().unwrap().insert(entry.start.tag.clone(), past);
        self.all.running.lock().unwrap().insert(pid, entry);
        let all = Arc::downgrade(&self.all);
        std::thread::spawn(move || relay(pid, child, &all));
        Ok(LocalStream { pid, news })
    }

    fn environment(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.all.environment.lock().unwrap())
    }

    async fn attach(&self, pid: u32) -> Result<LocalStream, ProcessError> {
        let mut running = self.all.running.lock().unwrap();
        let entry = running.get_mut(&pid).ok_or(ProcessError::Ended)?;
        let (sender, news) = mpsc::unbounded_channel();
        entry.followers.push(sender);
        Ok(LocalStream { pid, news })
    }

    async fn list(&self) -> Result<Vec<RunningProcess>, ProcessError> {
        let running = self.all.running.lock().unwrap();
        let all = running.iter().map(|(pid, entry)| RunningProcess {
            pid: *pid,
            tag: Some(entry.start.tag.clone()),
            cwd: entry.start.cwd.clone().unwrap_or_default(),
        });
        Ok(all.collect())
    }

    async fn input(&self, pid: u32, bytes: Vec<u8>) -> Result<(), ProcessError> {
        let entry = self
            .all
            .running
            .lock()
            .unwrap()
            .get(&pid)
            .map(|entry| Arc::clone(&entry.input));
        let input = entry.ok_or(ProcessError::Ended)?;
        let written = tokio::task::spawn_blocking(move || input.lock().unwrap().write_all(&bytes)).await;
        written.unwrap().map_err(|_| ProcessError::Ended)
    }

    async fn signal(&self, pid: u32, signal: i32) -> Result<(), ProcessError> {
        // Held, so that the number is that of nobody else.
        let running = self.all.running.lock().unwrap();
        running.get(&pid).ok_or(ProcessError::Ended)?;
        let signal = Signal::from_named_raw(signal).unwrap();
        kill_process_group(pid_of(pid), signal).map_err(|_| ProcessError::Ended)
    }

    async fn ended(&self) -> Result<Vec<EndedProcess>, ProcessError> {
        let all = self.all.ended.lock().unwrap();
        let asked_for = all.iter().filter(|(_, past)| past.is_asked_for);
        let ended = asked_for.filter_map(|(tag, past)| {
            let (cwd, end) = past.ended.clone()?;
            Some(EndedProcess {
                tag: tag.clone(),
                cwd,
                end,
                note: past.note.clone(),
            })
        });
        Ok(ended.collect())
    }

    async fn note_end(&self, tag: &str, note: Option<String>) -> Result<(), ProcessError> {
        if let Some(past) = self.all.ended.lock().unwrap().get_mut(tag) {
            past.is_asked_for = note.is_some();
            past.note = note;
        }
        Ok(())
    }
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

/// Tells followers what a process writes, and how it ends.
fn relay(pid: u32, mut child: Child, all: &std::sync::Weak<All>) {
    let tell = |news: &ProcessNews| {
        if let Some(all) = all.upgrade()
            && let Some(entry) = all.running.lock().unwrap().get_mut(&pid)
        {
            entry.followers.retain(|follower| follower.send(news.clone()).is_ok());
        }
    };
    let copy = |stream, mut from: Box<dyn Read + Send>| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            tell(&ProcessNews::Output(stream, buffer[..length].to_vec()));
        }
    };
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| copy(OutputStream::Stderr, Box::new(err)));
        scope.spawn(|| copy(OutputStream::Stdout, Box::new(out)));
        // What it leaves may hold its streams open for ever. The group has its number as long as it is not waited for.
        let _ended = waitid(WaitId::Pid(pid_of(pid)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _gone = kill_process_group(pid_of(pid), Signal::KILL);
    });
    let status = child.wait().unwrap();
    let end = match (status.code(), status.signal()) {
        (Some(code), _) => ExecEnd::Exited {
            code: u8::try_from(code).unwrap_or(255),
        },
        (None, signal) => ExecEnd::Signaled {
            signal: signal.unwrap_or(0),
        },
    };
    if let Some(all) = all.upgrade() {
        let mut running = all.running.lock().unwrap();
        if let Some(entry) = running.remove(&pid) {
            let mut ended = all.ended.lock().unwrap();
            if let Some(past) = ended.get_mut(&entry.start.tag) {
                past.ended = Some((entry.start.cwd.unwrap_or_default(), end.clone()));
            }
            for follower in entry.followers {
                // Nobody may be there.
                let _told = follower.send(ProcessNews::Ended(end.clone()));
            }
        }
    }
}
