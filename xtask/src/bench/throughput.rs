//! How many sandboxes a second are made, used for `true` and gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Shuffle;
use super::contender::{Arena, Contender, Workload};
use crate::error::TaskError;

/// How many are under way at the same time.
const CONCURRENCY: [usize; 4] = [1, 2, 8, 32];
/// How long one contender runs before it is the next one's turn.
const SLICE: Duration = Duration::from_secs(1);
/// How many turns each has.
const SLICES: usize = 3;
/// Between turns, so that what the kernel does behind the one before (the teardown of its namespaces) is done.
const PAUSE: Duration = Duration::from_millis(300);

/// The rate of one contender.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    /// Who.
    pub(super) contender: &'static str,
    /// How many at the same time.
    pub(super) concurrency: usize,
    /// Runs a second, the median of all turns.
    pub(super) per_second: f64,
}

/// Measures every contender that this process can start, at every concurrency.
///
/// # Errors
/// When a run fails.
pub(super) fn measure(arena: &Arena, contenders: &[Contender]) -> Result<Vec<Throughput>, TaskError> {
    let contenders: Vec<_> = contenders
        .iter()
        .filter(|contender| contender.is_one_process_tree())
        .collect();
    let mut shuffle = Shuffle(0x2545_f491_4f6c_dd1d);
    let mut results = Vec::new();
    for concurrency in CONCURRENCY {
        eprintln!("── throughput at {concurrency}");
        let mut rates: Vec<Vec<f64>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..SLICES {
            for index in shuffle.order(contenders.len()) {
                std::thread::sleep(PAUSE);
                rates[index].push(slice(arena, contenders[index], concurrency)?);
            }
        }
        for (contender, mut rates) in contenders.iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            let per_second = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
            results.push(Throughput {
                contender: contender.name,
                concurrency,
                per_second,
            });
        }
    }
    Ok(results)
}

/// The rate over one turn: everything that was started in it, over the time until the last of it had ended.
fn slice(arena: &Arena, contender: &Contender, concurrency: usize) -> Result<f64, TaskError> {
    let runs = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let worker = || {
            while start.elapsed() < SLICE {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                contender.command_line(arena, Workload::True, run).run()?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..concurrency).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| {
                Err(TaskError::Answer {
                    from: "a measuring thread",
                    why: "it panicked".to_owned(),
                })
            })
        })
    })?;
    let count = u32::try_from(runs.into_inner()).unwrap_or(u32::MAX);
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
