//! Memory that large answers needed, given back to the kernel.
//!
//! The allocator keeps what is freed below something that is still held, in a heap for each of several threads, and so a
//! server would stay as large as its busiest moment.

use std::time::Duration;

use offleash_sys::process::{memory_beside_allocations, release_free_memory};

/// How often it is looked how much there is.
const EVERY: Duration = Duration::from_secs(10);
/// From how many bytes on it is worth the work.
const WORTH: u64 = 16 * 1024 * 1024;

/// Begins to give back what is free, as long as the event loop runs.
pub(super) fn give_back() {
    tokio::spawn(async {
        let mut free = Free::default();
        loop {
            // Without `/proc` nobody knows, and it stays as the allocator has it.
            if memory_beside_allocations().is_ok_and(|bytes| free.is_much(bytes)) {
                // It may take milliseconds, in which other threads answer.
                let _done = tokio::task::spawn_blocking(release_free_memory).await;
                if let Ok(bytes) = memory_beside_allocations() {
                    free.least = Some(bytes);
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    });
}

/// What is known of memory that is no allocation: the least there was, when nothing of it was free.
#[derive(Debug, Default)]
struct Free {
    least: Option<u64>,
}

impl Free {
    /// Whether much of `bytes` is free.
    fn is_much(&mut self, bytes: u64) -> bool {
        let least = self.least.map_or(bytes, |least| least.min(bytes));
        self.least = Some(least);
        bytes - least >= WORTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_the_least_is_free() {
        const MIB: u64 = 1024 * 1024;
        let mut free = Free::default();
        for (mib, is_much) in [
            (50, false),
            (60, false),
            (66, true),
            (40, false),
            (55, false),
            (56, true),
        ] {
            assert_eq!(free.is_much(mib * MIB), is_much, "{mib}");
        }
    }
}
