//! Keepers that were started before anybody asked for a sandbox, and wait for an order.
//!
//! Starting one takes as long as many of the steps by which it makes a sandbox. What waits is a process that knows of no
//! sandbox, holds nothing of the host's and ends when the daemon does. There is one for as long as sandboxes are asked
//! for one after another; of many at once most start their own.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jobs::blocking;
use crate::launch::{self, Process, Started};

/// How long after a sandbox was asked for the next keeper is started: what follows at once is not to wait for that.
const AFTER: Duration = Duration::from_millis(25);
/// How long one waits for an order. Then nobody is expected to ask for a sandbox soon.
const WAITS: Duration = Duration::from_secs(60);

/// Those of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<Spare>,
    /// Whether one is about to be started.
    expected: bool,
    /// How many have been there.
    count: u64,
    closed: bool,
}

/// A keeper that waits. It is ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Taken when it becomes the keeper of a sandbox.
    parts: Option<(Started, Process, Process)>,
}

impl Spare {
    /// What it is once it is somebody's.
    pub(crate) fn into_keeper(mut self) -> Option<(Started, Process, Process)> {
        self.parts.take()
    }

    fn lives(&self) -> bool {
        self.parts.as_ref().is_some_and(|(_, process, _)| !process.has_ended())
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // It fails only for one that has ended, which is to be reaped as well.
        let _ended = self.parts.take().map(|(_, process, _)| process.end());
    }
}

impl Spares {
    /// No more of them.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Spare> {
        self.lock().waiting.take().filter(Spare::lives)
    }

    /// Whether one is to be started, which is expected from then on.
    fn expect(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = !state.closed && !state.expected && state.waiting.is_none();
        state.expected |= is_wanted;
        is_wanted
    }

    /// What was expected has come, or has not; its number.
    fn put(&self, spare: Option<Spare>) -> u64 {
        let mut state = self.lock();
        state.expected = false;
        state.count += 1;
        state.waiting = spare.filter(|_| !state.closed);
        state.count
    }

    /// Ends one that is still there.
    fn drop_if_it_waits(&self, number: u64) {
        let mut state = self.lock();
        if state.count == number {
            state.waiting = None;
        }
    }
}

/// A keeper for a sandbox that is asked for, if one waits. In a while there is another one.
pub(crate) fn take(spares: &Arc<Spares>, program: Option<&Path>) -> Option<Spare> {
    let spare = spares.take();
    if spares.expect() {
        let (weak, program) = (Arc::downgrade(spares), program.map(Path::to_owned));
        tokio::spawn(async move {
            tokio::time::sleep(AFTER).await;
            let Some(spares) = weak.upgrade() else { return };
            let started = blocking("start a keeper", move || launch::start(program.as_deref())).await;
            // Whoever asks for a sandbox next starts one, and is told why that fails.
            let parts = started.ok().and_then(Result::ok);
            let number = spares.put(parts.map(|parts| Spare { parts: Some(parts) }));
            drop(spares);
            tokio::time::sleep(WAITS).await;
            if let Some(spares) = weak.upgrade() {
                spares.drop_if_it_waits(number);
            }
        });
    }
    spare
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in place of a keeper: it writes as long as somebody reads that.
    const WAITS: &str = "/usr/bin/yes";

    fn spare() -> (Spare, i32) {
        let parts = launch::start(Some(Path::new(WAITS))).unwrap();
        let pid = parts.0.process.pid;
        (Spare { parts: Some(parts) }, pid)
    }

    fn is_there(pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn what_waits_is_handed_out_once_and_the_next_one_is_expected_once() {
        let spares = Spares::default();
        assert!(spares.take().is_none());
        assert!(spares.expect());
        assert!(!spares.expect());
        let (waiting, pid) = spare();
        spares.put(Some(waiting));
        assert!(!spares.expect());
        let taken = spares.take().unwrap();
        assert!(spares.take().is_none());
        assert!(spares.expect());
        let (started, process, _watched) = taken.into_keeper().unwrap();
        assert_eq!(started.process.pid, pid);
        process.end().unwrap();
    }

    #[test]
    fn what_has_ended_is_not_handed_out() {
        let spares = Spares::default();
        let (ended, pid) = spare();
        assert!(ended.lives());
        ended.parts.as_ref().unwrap().1.kill().unwrap();
        while ended.lives() {
            std::thread::yield_now();
        }
        spares.put(Some(ended));
        assert!(spares.take().is_none());
        assert!(!is_there(pid), "nobody has reaped it");
    }

    #[test]
    fn nothing_waits_longer_than_it_may_or_than_the_daemon() {
        let spares = Spares::default();
        let (first, of_first) = spare();
        let number = spares.put(Some(first));
        spares.drop_if_it_waits(number + 1);
        assert!(is_there(of_first));
        spares.drop_if_it_waits(number);
        assert!(!is_there(of_first));
        let (second, of_second) = spare();
        spares.put(Some(second));
        spares.close();
        assert!(!is_there(of_second));
        let (late, of_late) = spare();
        spares.put(Some(late));
        assert!(!is_there(of_late));
        assert!(!spares.expect());
    }
}
