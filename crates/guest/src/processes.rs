//! The processes for which the guest is responsible: found through `/proc`, signalled, killed to the last one.

use alloc::vec::Vec;
use core::ffi::CStr;

use offleash_sys::spawn::{self, SignalTarget};
use rustix::fd::OwnedFd;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// What the guest is to the processes of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestRole {
    /// Init of a pid namespace: every process that it can see is the sandbox's.
    Init,
    /// A subreaper among the host's own processes: its descendants are the sandbox's, orphans included.
    Subreaper,
}

const SIGKILL: i32 = 9;

/// The process ids of the sandbox without the guest's own, dead ones that were not reaped included.
pub(crate) fn all(role: GuestRole) -> Vec<i32> {
    match role {
        GuestRole::Init => numbered_entries(c"/proc").into_iter().filter(|pid| *pid != 1).collect(),
        GuestRole::Subreaper => descendants(),
    }
}

/// Whether all processes of the sandbox can be found, without which they could not be killed.
pub(crate) fn can_be_found(role: GuestRole) -> bool {
    match role {
        GuestRole::Init => true,
        GuestRole::Subreaper => {
            // The only thread's; absent where the kernel was built without it, refused where `/proc` may not be read.
            let pid = rustix::process::getpid().as_raw_pid();
            rustix::fs::open(children_list(pid, pid), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok()
        }
    }
}

/// Rounds in which an init tries to kill everything: some 100 ms. What it may not kill, because it belongs to another
/// user, the kernel kills when the init ends.
const ROUNDS_OF_INIT: u32 = 200;

/// Kills every process of the sandbox and reaps them all.
pub(crate) fn kill_all(role: GuestRole) {
    let mut round = 0_u32;
    while role == GuestRole::Subreaper || round < ROUNDS_OF_INIT {
        round = round.saturating_add(1);
        match role {
            // In one step, so that nothing can be forked meanwhile (kill(2)).
            GuestRole::Init => drop(spawn::signal(SignalTarget::All, SIGKILL)),
            // Children of the dead become ours, so that whatever escaped one round is found in a later one.
            GuestRole::Subreaper => {
                for pid in descendants() {
                    let _ = spawn::signal(SignalTarget::Process(pid), SIGKILL);
                }
            }
        }
        if reap_all() == ReapedProcess::Everything {
            return;
        }
        let pause = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 500_000,
        };
        // Nothing to wait for but time: the dying need some.
        let _ = rustix::event::poll(&mut [], Some(&pause));
    }
}

#[derive(PartialEq, Eq)]
enum ReapedProcess {
    Everything,
    SomeLive,
}

fn reap_all() -> ReapedProcess {
    loop {
        match spawn::reap() {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return ReapedProcess::SomeLive,
            Err(_) => return ReapedProcess::Everything,
        }
    }
}

/// Sends a signal to every process of a session but those of the group `except`.
pub(crate) fn signal_session(role: GuestRole, session: i32, except: i32, signal: i32) {
    for pid in all(role) {
        let Some(process) = Pid::from_raw(pid) else { continue };
        let is = |found: Result<Pid, Errno>, wanted: i32| found.is_ok_and(|found| found.as_raw_pid() == wanted);
        let in_session = is(rustix::process::getsid(Some(process)), session);
        if in_session && !is(rustix::process::getpgid(Some(process)), except) {
            let _ = spawn::signal(SignalTarget::Process(pid), signal);
        }
    }
}

/// Children, their children and so on.
fn descendants() -> Vec<i32> {
    let mut found = children(rustix::process::getpid().as_raw_pid());
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let more = children(*pid);
        found.extend(more);
        next += 1;
    }
    found
}

/// The children of all threads of a process (proc(5), `/proc/pid/task/tid/children`).
fn children(pid: i32) -> Vec<i32> {
    let tasks = path(&[
        ProcessPart::Text(b"/proc/"),
        ProcessPart::Number(pid),
        ProcessPart::Text(b"/task\0"),
    ]);
    let Ok(directory) = CStr::from_bytes_with_nul(&tasks) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for thread in numbered_entries(directory) {
        let list = read(&children_list(pid, thread));
        found.extend(list.split(|byte| *byte == b' ').filter_map(number));
    }
    found
}

fn children_list(pid: i32, thread: i32) -> Vec<u8> {
    let (task, children) = (ProcessPart::Text(b"/task/"), ProcessPart::Text(b"/children"));
    path(&[
        ProcessPart::Text(b"/proc/"),
        ProcessPart::Number(pid),
        task,
        ProcessPart::Number(thread),
        children,
    ])
}

enum ProcessPart {
    Text(&'static [u8]),
    Number(i32),
}

fn path(parts: &[ProcessPart]) -> Vec<u8> {
    let mut path = Vec::new();
    for part in parts {
        match part {
            ProcessPart::Text(text) => path.extend_from_slice(text),
            ProcessPart::Number(number) => spawn::append_decimal(&mut path, number.unsigned_abs()),
        }
    }
    path
}

/// The entries of a directory whose names are numbers.
fn numbered_entries(directory: &CStr) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty());
    let Ok(mut entries) = opened.and_then(Dir::new::<OwnedFd>) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    while let Some(Ok(entry)) = entries.read() {
        found.extend(number(entry.file_name().to_bytes()));
    }
    found
}

/// A positive number in decimal.
fn number(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text)
        .ok()?
        .parse()
        .ok()
        .filter(|number| *number > 0)
}

/// The whole of a file of `/proc`; what can be read of it, if not all can.
pub(crate) fn read(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return text;
    };
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return text,
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(_) => return text,
        }
    }
}
