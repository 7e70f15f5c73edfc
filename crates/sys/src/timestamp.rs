//! How fast the processor's time stamp counter runs, which an emulated machine cannot find out by itself.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long is measured; a thousandth of that is the error of a read that was interrupted, which is measured again.
const MEASURED: Duration = Duration::from_millis(20);

/// Most attempts, of which the one with the least doubt about when the counter was read is taken.
const ATTEMPTS: usize = 3;

/// The counter's frequency in kilohertz, measured against the clock that nobody sets; takes some 60 ms. `None` on processors that
/// are not x86, and where the answer makes no sense.
pub fn tsc_khz() -> Option<u64> {
    let measured = (0..ATTEMPTS).filter_map(|_| measure());
    let (_, khz) = measured.min_by_key(|(doubt, _)| *doubt)?;
    (100_000..100_000_000).contains(&khz).then_some(khz)
}

/// How long it took to read clock and counter, and what came of it.
fn measure() -> Option<(u128, u64)> {
    let (first_doubt, began, first) = read_both()?;
    std::thread::sleep(MEASURED);
    let (last_doubt, ended, last) = read_both()?;
    let nanoseconds = ended.checked_sub(began).filter(|passed| *passed > 0)?;
    let khz = u128::from(last.checked_sub(first)?) * 1_000_000 / nanoseconds;
    Some((first_doubt + last_doubt, u64::try_from(khz).ok()?))
}

fn read_both() -> Option<(u128, u128, u64)> {
    let before = nanoseconds();
    let counter = counter()?;
    let after = nanoseconds();
    Some((after.saturating_sub(before), before / 2 + after / 2, counter))
}

fn nanoseconds() -> u128 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    u128::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u128::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this architecture has the counter, and reading it touches no memory.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        assert_eq!(tsc_khz().is_some(), cfg!(target_arch = "x86_64"));
        let (one, other) = (tsc_khz().unwrap_or(0), tsc_khz().unwrap_or(0));
        // A machine that is busy may interrupt either between its clock and its counter.
        assert!(one.abs_diff(other) <= one / 20, "{one} and {other}");
    }
}
