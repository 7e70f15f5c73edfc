//! Browsers that wait: sandboxes of nobody's in which one runs already, so that a session is a hand-out.
//!
//! All are of one template, with the limits of a session that asks for none, and began with an empty profile. Deliberately not
//! here: how one is made and started, and how it becomes somebody's.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::origin::TemplateOrigin;
use crate::registry::SandboxState;
use crate::sandboxes::SandboxEntry;
use crate::view::SandboxLimits;

/// Nothing is made for so long after a hand-out: whoever got a browser is about to use it.
const QUIET_TIME: Duration = Duration::from_millis(500);
/// How long nothing is made after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Browsers that wait.
#[derive(Debug)]
pub(crate) struct BrowserPool {
    size: usize,
    contents: Mutex<BrowserPoolContents>,
    /// Told when one was taken.
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct BrowserPoolContents {
    /// The oldest first.
    waiting: VecDeque<WaitingBrowser>,
    /// Templates that are being removed: none of them is made.
    closed: BTreeSet<String>,
    /// When the next may be made.
    not_before: Option<Instant>,
}

/// A browser that waits. Its watch ends with this.
#[derive(Debug)]
pub(crate) struct WaitingBrowser {
    entry: Arc<SandboxEntry>,
    since: Instant,
    watch: JoinHandle<()>,
}

impl WaitingBrowser {
    /// One that has begun to wait, and what looks whether it ends.
    pub(crate) fn new(entry: Arc<SandboxEntry>, watch: JoinHandle<()>) -> Self {
        let since = Instant::now();
        Self { entry, since, watch }
    }

    fn is(&self, origin: &TemplateOrigin, limits: Option<&SandboxLimits>) -> bool {
        let is_alive = self.entry.state() == SandboxState::Running && !self.entry.has_supervisor_ended();
        let has_limits = |limits: &SandboxLimits| self.entry.specification().limits == *limits;
        is_alive && self.entry.origin() == *origin && limits.is_none_or(has_limits)
    }
}

impl Drop for WaitingBrowser {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// A template of which no browser waits as long as this lives.
#[derive(Debug)]
pub(crate) struct ClosedBrowsers<'a> {
    pool: &'a BrowserPool,
    template: String,
}

impl Drop for ClosedBrowsers<'_> {
    fn drop(&mut self) {
        self.pool.lock().closed.remove(&self.template);
    }
}

impl BrowserPool {
    /// One of `size` browsers; none ever wait if that is zero.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            contents: Mutex::default(),
            wanted: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BrowserPoolContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether none ever waits.
    pub(crate) fn is_off(&self) -> bool {
        self.size == 0
    }

    /// Told when one was taken.
    pub(crate) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes out one of `origin` with these limits.
    pub(crate) fn take(&self, origin: &TemplateOrigin, limits: &SandboxLimits) -> Option<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let place = contents.waiting.iter().position(|one| one.is(origin, Some(limits)))?;
        let taken = contents.waiting.remove(place)?;
        contents.not_before = Some(Instant::now() + QUIET_TIME);
        self.wanted.notify_one();
        Some(Arc::clone(&taken.entry))
    }

    /// Takes out `entry`; `false` where somebody has it.
    pub(crate) fn forget(&self, entry: &Arc<SandboxEntry>) -> bool {
        let mut contents = self.lock();
        let before = contents.waiting.len();
        contents.waiting.retain(|one| !Arc::ptr_eq(&one.entry, entry));
        contents.waiting.len() < before
    }

    /// Takes out all.
    pub(crate) fn take_all(&self) -> Vec<Arc<SandboxEntry>> {
        self.take_those(|_| true)
    }

    /// Takes out what is not of `origin`, what has waited longer than `age`, and what has ended.
    pub(crate) fn take_stale(&self, origin: &TemplateOrigin, age: Duration) -> Vec<Arc<SandboxEntry>> {
        self.take_those(|one| !one.is(origin, None) || one.since.elapsed() > age)
    }

    /// Takes out the older half: the machine needs what they hold.
    pub(crate) fn give_up_half(&self) -> Vec<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let half = contents.waiting.len().div_ceil(2);
        let given_up = contents.waiting.drain(..half);
        given_up.map(|one| Arc::clone(&one.entry)).collect()
    }

    fn take_those(&self, is_such: impl Fn(&WaitingBrowser) -> bool) -> Vec<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let (such, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut contents.waiting)
            .into_iter()
            .partition(|one| is_such(one));
        contents.waiting = others;
        such.iter().map(|one| Arc::clone(&one.entry)).collect()
    }

    /// Makes no more of a template, and answers those that wait.
    pub(crate) fn close(&self, template: &str) -> (ClosedBrowsers<'_>, Vec<Arc<SandboxEntry>>) {
        self.lock().closed.insert(template.to_owned());
        let members = self.take_those(|one| one.entry.template() == template);
        let template = template.to_owned();
        (ClosedBrowsers { pool: self, template }, members)
    }

    /// How long to wait until another one of `origin` is made; `None` where none is lacking.
    pub(crate) fn wait(&self, origin: &TemplateOrigin) -> Option<Duration> {
        let contents = self.lock();
        let is_lacking = contents.waiting.len() < self.size && !contents.closed.contains(&origin.template);
        let left = |time: Instant| time.saturating_duration_since(Instant::now());
        is_lacking.then(|| contents.not_before.map_or(Duration::ZERO, left))
    }

    /// Puts in one that was made; answers it where nobody is to have it.
    pub(crate) fn put(&self, browser: WaitingBrowser) -> Option<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        if contents.closed.contains(&browser.entry.template()) || contents.waiting.len() >= self.size {
            return Some(Arc::clone(&browser.entry));
        }
        contents.waiting.push_back(browser);
        None
    }

    /// One could not be made, or ended while it waited.
    pub(crate) fn note_failure(&self) {
        self.lock().not_before = Some(Instant::now() + AFTER_FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DaemonConfig;
    use crate::specification::Specification;

    fn entry(template: &str, build: Option<&str>) -> Arc<SandboxEntry> {
        let specification = Specification {
            build: build.map(str::to_owned),
            ..Specification::usual(&DaemonConfig::default())
        };
        let id = crate::random::sandbox_id().unwrap();
        let row = specification.new_row(id.as_str(), template);
        let entry = Arc::new(SandboxEntry::new(id, row, specification));
        entry.set_state(SandboxState::Running);
        entry
    }

    fn origin(entry: &Arc<SandboxEntry>) -> TemplateOrigin {
        entry.origin()
    }

    fn waiting(entry: &Arc<SandboxEntry>) -> WaitingBrowser {
        WaitingBrowser::new(Arc::clone(entry), tokio::spawn(std::future::pending()))
    }

    #[tokio::test]
    async fn one_is_handed_out_once_for_what_it_is() {
        let (pool, limits) = (BrowserPool::new(2), DaemonConfig::default().default_limits);
        let one = entry("browser", Some("1"));
        assert!(pool.put(waiting(&one)).is_none());
        let other_build = entry("browser", Some("2"));
        assert!(pool.take(&origin(&other_build), &limits).is_none());
        let more = SandboxLimits {
            cpus: limits.cpus + 1,
            ..limits
        };
        assert!(pool.take(&origin(&one), &more).is_none());
        assert!(Arc::ptr_eq(&pool.take(&origin(&one), &limits).unwrap(), &one));
        assert!(pool.take(&origin(&one), &limits).is_none());
        // Whoever got it is about to use it.
        assert!(pool.wait(&origin(&one)).unwrap() > Duration::ZERO);
        assert!(!pool.forget(&one));
    }

    #[tokio::test]
    async fn those_that_ended_or_are_outdated_are_nobodys() {
        let (pool, limits) = (BrowserPool::new(3), DaemonConfig::default().default_limits);
        let all = [
            entry("browser", Some("1")),
            entry("browser", Some("1")),
            entry("base", None),
        ];
        for one in &all {
            assert!(pool.put(waiting(one)).is_none());
        }
        assert!(pool.put(waiting(&entry("base", None))).is_some());
        all[0].note_supervisor_ended();
        let taken = pool.take(&origin(&all[0]), &limits).unwrap();
        assert!(Arc::ptr_eq(&taken, &all[1]));
        assert!(pool.put(waiting(&all[1])).is_none());
        let stale = pool.take_stale(&origin(&all[2]), Duration::from_secs(60));
        assert_eq!((stale.len(), pool.len()), (2, 1));
        assert_eq!(pool.take_stale(&origin(&all[2]), Duration::ZERO).len(), 1);
    }

    #[tokio::test]
    async fn none_waits_of_a_template_that_is_being_removed() {
        let pool = BrowserPool::new(1);
        let one = entry("browser", Some("1"));
        assert!(pool.put(waiting(&one)).is_none());
        let (closed, members) = pool.close("browser");
        assert_eq!(members.len(), 1);
        assert!(pool.wait(&origin(&one)).is_none() && pool.put(waiting(&one)).is_some());
        drop(closed);
        assert_eq!(pool.wait(&origin(&one)), Some(Duration::ZERO));
        pool.note_failure();
        assert!(pool.wait(&origin(&one)).unwrap() > QUIET_TIME);
    }

    #[tokio::test]
    async fn half_is_given_up_the_older_first() {
        let pool = BrowserPool::new(3);
        let all = [(); 3].map(|()| entry("base", None));
        for one in &all {
            pool.put(waiting(one));
        }
        assert_eq!(pool.give_up_half().len(), 2);
        assert!(Arc::ptr_eq(&pool.take_all()[0], &all[2]));
        assert!(pool.give_up_half().is_empty() && BrowserPool::new(0).is_off());
    }
}
