//! What a collector did not take: counted, and told of now and then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::TelemetrySignal;
use super::collector::ExportError;
use crate::journal::{Event, Journal};

/// How often at most it is told of a signal that it is lost.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How much of each signal was lost since the server began.
#[derive(Debug, Default)]
pub(crate) struct LostSignals {
    counts: [AtomicU64; TelemetrySignal::ALL.len()],
    told: Mutex<[Option<Instant>; TelemetrySignal::ALL.len()]>,
    /// Whether it was told that a collector is not trusted, since one took something last.
    untrusted: AtomicBool,
}

impl LostSignals {
    pub(super) fn add(&self, signal: TelemetrySignal, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.counts[place(signal)].fetch_add(count, Ordering::Relaxed);
    }

    /// What became of so much of a signal: what was not taken is counted and told of.
    pub(super) fn sent(
        &self,
        journal: &dyn Journal,
        (signal, count): (TelemetrySignal, usize),
        outcome: Result<(), ExportError>,
    ) {
        match outcome {
            Ok(()) => self.untrusted.store(false, Ordering::Relaxed),
            Err(cause) => {
                self.add(signal, count);
                self.tell(journal, signal, &cause);
            }
        }
    }

    /// Tells the owner of it, unless that was done a moment ago. That a certificate is not trusted is told once: it does not
    /// pass by itself.
    fn tell(&self, journal: &dyn Journal, signal: TelemetrySignal, cause: &ExportError) {
        if matches!(cause, ExportError::Untrusted(_)) {
            if !self.untrusted.swap(true, Ordering::Relaxed) {
                let told = "nothing is told to a collector that is not trusted";
                journal.record(&Event::Failure { told, cause });
            }
            return;
        }
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let last = &mut told[place(signal)];
            if last.is_some_and(|last| last.elapsed() < TOLD_EVERY) {
                return;
            }
            *last = Some(Instant::now());
        }
        let told = match signal {
            TelemetrySignal::Traces => "traces are lost",
            TelemetrySignal::Metrics => "metrics are lost",
            TelemetrySignal::Logs => "logs are lost",
        };
        journal.record(&Event::Failure { told, cause });
    }

    /// How much of each was lost: spans, messages of metrics, lines.
    pub(crate) fn counts(&self) -> [(TelemetrySignal, u64); TelemetrySignal::ALL.len()] {
        TelemetrySignal::ALL.map(|signal| (signal, self.counts[place(signal)].load(Ordering::Relaxed)))
    }
}

fn place(signal: TelemetrySignal) -> usize {
    match signal {
        TelemetrySignal::Traces => 0,
        TelemetrySignal::Metrics => 1,
        TelemetrySignal::Logs => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// What the owner is told.
    #[derive(Debug, Default)]
    struct KeptJournal(Mutex<Vec<String>>);

    impl Journal for KeptJournal {
        fn record(&self, event: &Event<'_>) {
            if let Event::Failure { told, .. } = event {
                self.0.lock().unwrap().push((*told).to_owned());
            }
        }
    }

    #[test]
    fn a_collector_that_is_not_trusted_is_told_of_once_for_all_signals() {
        let (lost, journal) = (LostSignals::default(), KeptJournal::default());
        let told = || journal.0.lock().unwrap().len();
        let untrusted = || Err(ExportError::Untrusted(io::Error::other("another")));
        for signal in TelemetrySignal::ALL {
            lost.sent(&journal, (signal, 2), untrusted());
            lost.sent(&journal, (signal, 1), untrusted());
        }
        assert_eq!(told(), 1);
        assert_eq!(lost.counts().map(|(_, count)| count), [3, 3, 3]);
        // Another failure is told of, and so is this one once there was a good collector again.
        lost.sent(&journal, (TelemetrySignal::Logs, 1), Err(ExportError::Late));
        assert_eq!(told(), 2);
        lost.sent(&journal, (TelemetrySignal::Logs, 1), Ok(()));
        lost.sent(&journal, (TelemetrySignal::Logs, 1), untrusted());
        assert_eq!(told(), 3);
    }
}
