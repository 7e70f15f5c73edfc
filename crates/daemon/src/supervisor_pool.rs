//! Supervisors that were started before anybody asked for a sandbox, and wait for an order.
//!
//! Starting one takes as long as many of the steps by which it makes a sandbox. What waits is a process that knows of no
//! sandbox, holds nothing of the host's and ends when the daemon does. There is one for as long as sandboxes are asked
//! for one after another; of many at once most start their own.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::jobs::blocking;
use crate::launch::{self, Process, Started};

/// How long after a sandbox was asked for the next supervisor is started: what follows at once is not to wait for that.
const AFTER: Duration = Duration::from_millis(25);
/// How long one waits for an order. Then nobody is expected to ask for a sandbox soon.
const WAITS: Duration = Duration::from_secs(60);

/// Those of a daemon.
#[derive(Debug, Default)]
pub(crate) struct SupervisorPool {
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    waiting: Option<WaitingSupervisor>,
    /// Whether one is about to be started.
    expected: bool,
    /// How many have been there.
    count: u64,
    closed: bool,
}

/// A supervisor that waits. It is ended when it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingSupervisor {
    /// Taken when it becomes the supervisor of a sandbox.
    parts: Option<(Started, Process, Process)>,
}

impl WaitingSupervisor {
    /// What it is once it is somebody's.
    pub(crate) fn into_supervisor(mut self) -> Option<(Started, Process, Process)> {
        self.parts.take()
    }

    fn lives(&self) -> bool {
        self.parts.as_ref().is_some_and(|(_, process, _)| !process.has_ended())
    }
}

impl Drop for WaitingSupervisor {
    fn drop(&mut self) {
        // It fails only for one that has ended, which is to be reaped as well.
        let _ended = self.parts.take().map(|(_, process, _)| process.end());
    }
}

impl SupervisorPool {
    /// No more of them.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting = None;
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<WaitingSupervisor> {
        self.lock().waiting.take().filter(WaitingSupervisor::lives)
    }

    /// Whether one is to be started, which is expected from then on.
    fn expect(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = !state.closed && !state.expected && state.waiting.is_none();
        state.expected |= is_wanted;
        is_wanted
    }

    /// What was expected has come, or has not; its number.
    fn put(&self, waiting: Option<WaitingSupervisor>) -> u64 {
        let mut state = self.lock();
        state.expected = false;
        state.count += 1;
        state.waiting = waiting.filter(|_| !state.closed);
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

/// A supervisor for a sandbox that is asked for, if one waits. In a while there is another one.
pub(crate) fn take(pool: &Arc<SupervisorPool>, program: Option<&Path>) -> Option<WaitingSupervisor> {
    let waiting = pool.take();
    if pool.expect() {
        let (weak, program) = (Arc::downgrade(pool), program.map(Path::to_owned));
        tokio::spawn(async move {
            tokio::time::sleep(AFTER).await;
            let Some(pool) = weak.upgrade() else { return };
            let started = blocking("start a supervisor", move || launch::start(program.as_deref())).await;
            // Whoever asks for a sandbox next starts one, and is told why that fails.
            let parts = started.ok().and_then(Result::ok);
            let number = pool.put(parts.map(|parts| WaitingSupervisor { parts: Some(parts) }));
            drop(pool);
            tokio::time::sleep(WAITS).await;
            if let Some(pool) = weak.upgrade() {
                pool.drop_if_it_waits(number);
            }
        });
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in place of a supervisor: it writes as long as somebody reads that.
    const WAITS: &str = "/usr/bin/yes";

    fn waiting() -> (WaitingSupervisor, i32) {
        let parts = launch::start(Some(Path::new(WAITS))).unwrap();
        let pid = parts.0.process.pid;
        (WaitingSupervisor { parts: Some(parts) }, pid)
    }

    fn is_there(pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn what_waits_is_handed_out_once_and_the_next_one_is_expected_once() {
        let pool = SupervisorPool::default();
        assert!(pool.take().is_none());
        assert!(pool.expect());
        assert!(!pool.expect());
        let (waiting, pid) = waiting();
        pool.put(Some(waiting));
        assert!(!pool.expect());
        let taken = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert!(pool.expect());
        let (started, process, _watched) = taken.into_supervisor().unwrap();
        assert_eq!(started.process.pid, pid);
        process.end().unwrap();
    }

    #[test]
    fn what_has_ended_is_not_handed_out() {
        let pool = SupervisorPool::default();
        let (ended, pid) = waiting();
        assert!(ended.lives());
        ended.parts.as_ref().unwrap().1.kill().unwrap();
        while ended.lives() {
            std::thread::yield_now();
        }
        pool.put(Some(ended));
        assert!(pool.take().is_none());
        assert!(!is_there(pid), "nobody has reaped it");
    }

    #[test]
    fn nothing_waits_longer_than_it_may_or_than_the_daemon() {
        let pool = SupervisorPool::default();
        let (first, of_first) = waiting();
        let number = pool.put(Some(first));
        pool.drop_if_it_waits(number + 1);
        assert!(is_there(of_first));
        pool.drop_if_it_waits(number);
        assert!(!is_there(of_first));
        let (second, of_second) = waiting();
        pool.put(Some(second));
        pool.close();
        assert!(!is_there(of_second));
        let (late, of_late) = waiting();
        pool.put(Some(late));
        assert!(!is_there(of_late));
        assert!(!pool.expect());
    }
}
