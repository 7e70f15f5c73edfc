//! Programs whose outcome is asked for later, by a token: kept in memory, within bounds and for a while, each for the key that brought it.
//!
//! Nothing of it outlives the server.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use data_encoding::HEXLOWER;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, watch};

/// How long what came of one can be asked for.
pub(crate) const KEPT: Duration = Duration::from_secs(3600);
/// How many of a key may wait or run, and how many run at once.
pub(crate) const MAX_WAITING: usize = 100;
const MAX_AT_ONCE: usize = 4;
/// How many of a key are kept, and bytes of those; the oldest that are over make room.
const MAX_KEPT: usize = 1000;
const MAX_BYTES_OF_KEY: usize = 64 * 1024 * 1024;
/// Bytes of all.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// What a client brought.
#[derive(Debug, Default)]
pub(crate) struct SubmittedProgram {
    pub(crate) source: Vec<u8>,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) expected: Option<Vec<u8>>,
    /// An archive of further files.
    pub(crate) archive: Option<Vec<u8>>,
    /// Bytes that its program has of its own until it is over: an archive has many more than it takes.
    pub(crate) of_program: usize,
    /// What else was said, as it is told again.
    pub(crate) settings: Map<String, Value>,
}

/// What came of a program, in the words of judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    WrongAnswer,
    TimeLimitExceeded,
    CompilationError,
    /// A signal ended it, or it did more than it may.
    Signaled(i32),
    /// It exited with a code.
    NonZeroExit,
    InternalError,
}

/// The same with what it wrote and used.
#[derive(Debug, Clone)]
pub(crate) struct JudgedOutcome {
    pub(crate) verdict: Verdict,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) compile_output: Vec<u8>,
    pub(crate) message: Option<String>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) exit_signal: Option<i32>,
    pub(crate) cpu_ms: Option<u64>,
    pub(crate) wall_ms: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
}

impl JudgedOutcome {
    /// One of which there is nothing but this.
    pub(crate) fn of(verdict: Verdict, message: Option<String>) -> Self {
        Self {
            verdict,
            message,
            stdout: Vec::new(),
            stderr: Vec::new(),
            compile_output: Vec::new(),
            exit_code: None,
            exit_signal: None,
            cpu_ms: None,
            wall_ms: None,
            memory_bytes: None,
        }
    }
}

/// How far one is.
#[derive(Debug, Clone)]
pub(crate) enum SubmissionProgress {
    Waiting,
    Running,
    Over {
        outcome: Arc<JudgedOutcome>,
        at: SystemTime,
    },
}

/// One submission.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) token: String,
    owner: String,
    pub(crate) program: SubmittedProgram,
    pub(crate) created_at: SystemTime,
    /// The order in which they came.
    number: u64,
    progress: watch::Sender<SubmissionProgress>,
    over: Mutex<Option<Instant>>,
}

impl Submission {
    pub(crate) fn progress(&self) -> SubmissionProgress {
        self.progress.borrow().clone()
    }

    /// It runs from now on.
    pub(crate) fn begin(&self) {
        self.progress.send_replace(SubmissionProgress::Running);
    }

    /// Waits until it is over.
    pub(crate) async fn wait(&self) {
        let mut progress = self.progress.subscribe();
        let over = progress.wait_for(|now| matches!(now, SubmissionProgress::Over { .. }));
        // It is the one who tells.
        let _over = over.await;
    }

    fn is_over(&self) -> bool {
        matches!(*self.progress.borrow(), SubmissionProgress::Over { .. })
    }

    fn bytes(&self) -> usize {
        let SubmittedProgram {
            source,
            stdin,
            expected,
            archive,
            of_program,
            settings: _,
        } = &self.program;
        let given = [stdin, expected, archive].into_iter().flatten().map(Vec::len);
        let given = source.len() + given.sum::<usize>();
        match &*self.progress.borrow() {
            SubmissionProgress::Over { outcome, .. } => {
                given + outcome.stdout.len() + outcome.stderr.len() + outcome.compile_output.len()
            }
            SubmissionProgress::Waiting | SubmissionProgress::Running => given + of_program,
        }
    }
}

/// There are as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmissionError {
    #[error("{MAX_WAITING} submissions of the key wait or run already")]
    Waiting,
    #[error("the submissions that are kept take as much memory as they may")]
    Memory,
    #[error("the system gives no random numbers")]
    Random,
}

/// All that are kept.
#[derive(Debug, Default)]
pub(crate) struct SubmissionStore {
    kept: Mutex<KeptSubmissions>,
}

#[derive(Debug, Default)]
struct KeptSubmissions {
    by_number: BTreeMap<u64, Arc<Submission>>,
    by_token: HashMap<String, u64>,
    turns: HashMap<String, Arc<Semaphore>>,
    last: u64,
}

impl SubmissionStore {
    fn kept(&self) -> MutexGuard<'_, KeptSubmissions> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one of a key's.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub(crate) fn add(&self, owner: &str, program: SubmittedProgram) -> Result<Arc<Submission>, SubmissionError> {
        let token = uuid()?;
        let mut kept = self.kept();
        kept.forget();
        let waiting = kept.of(owner).filter(|one| !one.is_over()).count();
        if waiting >= MAX_WAITING {
            return Err(SubmissionError::Waiting);
        }
        kept.last += 1;
        let one = Arc::new(Submission {
            token,
            owner: owner.to_owned(),
            program,
            created_at: SystemTime::now(),
            number: kept.last,
            progress: watch::channel(SubmissionProgress::Waiting).0,
            over: Mutex::default(),
        });
        kept.make_room(owner, 1, one.bytes())?;
        let all: usize = kept.by_number.values().map(|one| one.bytes()).sum();
        if all + one.bytes() > MAX_BYTES {
            return Err(SubmissionError::Memory);
        }
        kept.by_token.insert(one.token.clone(), one.number);
        kept.by_number.insert(one.number, Arc::clone(&one));
        Ok(one)
    }

    /// That of a key's with this token.
    pub(crate) fn find(&self, owner: &str, token: &str) -> Option<Arc<Submission>> {
        let mut kept = self.kept();
        kept.forget();
        let number = kept.by_token.get(token)?;
        let found = kept.by_number.get(number)?;
        (found.owner == owner).then(|| Arc::clone(found))
    }

    /// Those of a key, the latest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<Arc<Submission>> {
        let mut kept = self.kept();
        kept.forget();
        kept.of(owner).rev().map(Arc::clone).collect()
    }

    /// Keeps one no longer.
    pub(crate) fn remove(&self, one: &Submission) {
        self.kept().remove(one.number);
    }

    /// Says what came of one; older ones of its key make room for it.
    pub(crate) fn finish(&self, one: &Submission, outcome: JudgedOutcome) {
        let mut kept = self.kept();
        let outcome = Arc::new(outcome);
        let at = SystemTime::now();
        *one.over.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        one.progress.send_replace(SubmissionProgress::Over { outcome, at });
        // What does not fit alone is the last to go, and is there for a moment.
        let _made = kept.make_room(&one.owner, 0, 0);
    }

    /// What those of a key take turns with.
    pub(crate) fn turns(&self, owner: &str) -> Arc<Semaphore> {
        let mut kept = self.kept();
        let turns = kept.turns.entry(owner.to_owned());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(MAX_AT_ONCE))))
    }
}

impl KeptSubmissions {
    fn of<'a>(&'a self, owner: &'a str) -> impl DoubleEndedIterator<Item = &'a Arc<Submission>> {
        self.by_number.values().filter(move |one| one.owner == owner)
    }

    fn remove(&mut self, number: u64) {
        if let Some(gone) = self.by_number.remove(&number) {
            self.by_token.remove(&gone.token);
        }
    }

    /// Removes those whose time is over, and the turns that nobody takes.
    fn forget(&mut self) {
        let over = |one: &Submission| *one.over.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |one: &Arc<Submission>| over(one).is_some_and(|at| at.elapsed() >= KEPT);
        let gone: Vec<u64> = self
            .by_number
            .values()
            .filter(|one| old(one))
            .map(|one| one.number)
            .collect();
        for number in gone {
            self.remove(number);
        }
        self.turns.retain(|_, turns| Arc::strong_count(turns) > 1);
    }

    /// Removes the oldest that are over until so many more of a key's fit.
    fn make_room(&mut self, owner: &str, more: usize, bytes: usize) -> Result<(), SubmissionError> {
        loop {
            let (count, held) = self
                .of(owner)
                .fold((0, 0), |(count, held), one| (count + 1, held + one.bytes()));
            if count + more <= MAX_KEPT && held + bytes <= MAX_BYTES_OF_KEY {
                return Ok(());
            }
            let oldest = self.of(owner).find(|one| one.is_over()).map(|one| one.number);
            self.remove(oldest.ok_or(SubmissionError::Memory)?);
        }
    }
}

/// A random one (RFC 9562, version 4): who does not know it does not guess it.
fn uuid() -> Result<String, SubmissionError> {
    let mut bytes = [0; 16];
    if getrandom(&mut bytes[..], GetRandomFlags::empty()) != Ok(bytes.len()) {
        return Err(SubmissionError::Random);
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = HEXLOWER.encode(&bytes);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(bytes: usize) -> SubmittedProgram {
        SubmittedProgram {
            source: vec![0; bytes],
            ..SubmittedProgram::default()
        }
    }

    fn accepted() -> JudgedOutcome {
        JudgedOutcome::of(Verdict::Accepted, None)
    }

    #[test]
    fn one_is_found_by_its_own_key_alone() {
        let store = SubmissionStore::default();
        let one = store.add("a", program(1)).unwrap();
        assert_eq!(one.token.len(), 36);
        assert_eq!(&one.token[14..15], "4");
        assert!(store.find("a", &one.token).is_some());
        assert!(store.find("b", &one.token).is_none());
        assert!(store.find("a", "").is_none());
        assert_eq!((store.list("a").len(), store.list("b").len()), (1, 0));
        store.remove(&one);
        assert!(store.find("a", &one.token).is_none());
    }

    #[test]
    fn a14_more_than_may_wait_are_refused_and_old_ones_make_room() {
        let store = SubmissionStore::default();
        let all: Vec<_> = (0..MAX_WAITING).map(|_| store.add("a", program(1)).unwrap()).collect();
        assert_eq!(store.add("a", program(1)).unwrap_err(), SubmissionError::Waiting);
        let other = store.add("b", program(1));
        other.unwrap();
        store.finish(&all[0], accepted());
        store.finish(&all[1], accepted());
        let large = store.add("a", program(MAX_BYTES_OF_KEY + 2 - MAX_WAITING)).unwrap();
        assert!(store.find("a", &all[0].token).is_none(), "the oldest made room");
        assert!(store.find("a", &all[1].token).is_none(), "and the next");
        assert!(store.find("a", &all[2].token).is_some(), "nothing that waits did");
        assert_eq!(store.add("a", program(200)).unwrap_err(), SubmissionError::Memory);
        store.finish(&large, accepted());
        store.add("a", program(200)).unwrap();
        assert!(store.find("a", &large.token).is_none());
    }

    #[test]
    fn what_a_program_has_beside_counts_until_it_is_over() {
        let store = SubmissionStore::default();
        let packed = || SubmittedProgram {
            of_program: MAX_BYTES_OF_KEY / 2,
            ..program(1)
        };
        let one = store.add("a", packed()).unwrap();
        assert_eq!(store.add("a", packed()).unwrap_err(), SubmissionError::Memory);
        store.finish(&one, accepted());
        store.add("a", packed()).unwrap();
        assert!(store.find("a", &one.token).is_some());
    }

    #[test]
    fn an_outcome_that_is_large_makes_others_go() {
        let store = SubmissionStore::default();
        let one = store.add("a", program(MAX_BYTES_OF_KEY / 2)).unwrap();
        store.finish(&one, accepted());
        let two = store.add("a", program(1)).unwrap();
        let outcome = JudgedOutcome {
            stdout: vec![0; MAX_BYTES_OF_KEY / 2],
            ..accepted()
        };
        store.finish(&two, outcome);
        assert!(store.find("a", &one.token).is_none());
        assert!(matches!(
            store.find("a", &two.token).unwrap().progress(),
            SubmissionProgress::Over { .. }
        ));
    }
}
