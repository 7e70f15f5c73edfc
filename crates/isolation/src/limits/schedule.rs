//! When to look next: often at the start and near a limit, seldom otherwise.
//!
//! Pure: durations in, durations out.

use std::time::Duration;

/// The time to the next look at a sandbox in which nothing runs but what we put there.
///
/// As seldom as a layer is walked at the latest: many sandboxes that wait would otherwise keep processors busy with looks.
pub(super) const ALONE: Duration = Duration::from_secs(2);

/// The time to the next look at a sandbox that is `age` old.
///
/// Most runs are short, and one that goes wrong does so at once; later a look costs more than it can find.
pub(super) fn interval(age: Duration, near_a_limit: bool) -> Duration {
    let by_age = match age.as_millis() {
        0..250 => 20,
        250..2000 => 50,
        _ => 100,
    };
    Duration::from_millis(if near_a_limit { 10 } else { by_age })
}

/// Whether `used` is more than half of `limit`.
pub(super) fn is_near(used: u64, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| used > limit / 2)
}

/// The shortest time in which `cpus` processors can use up `remaining_us` of CPU time.
///
/// Until then nobody needs to look at how much was used.
pub(super) fn cpu_exhausted_at_the_earliest(remaining_us: u64, cpus: u64) -> Duration {
    Duration::from_micros(remaining_us / cpus.max(1))
}

/// The number of processors in a list such as `0-3,8`; `None` when it is not such a list.
pub(super) fn count_cpus(list: &str) -> Option<u64> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_with_age_and_frequent_near_a_limit() {
        let at = |ms| interval(Duration::from_millis(ms), false);
        assert!(at(0) < at(500) && at(500) < at(5000));
        assert!(interval(Duration::from_secs(60), true) < at(0));
    }

    #[test]
    fn nearness_is_more_than_half() {
        assert!(!is_near(50, Some(100)));
        assert!(is_near(51, Some(100)));
        assert!(!is_near(u64::MAX, None));
    }

    #[test]
    fn cpu_time_cannot_run_out_sooner_than_all_processors_allow() {
        assert_eq!(cpu_exhausted_at_the_earliest(8_000_000, 4), Duration::from_secs(2));
        assert_eq!(cpu_exhausted_at_the_earliest(8, 0), Duration::from_micros(8));
    }

    #[test]
    fn processors_are_counted_in_lists_of_ranges() {
        for (list, expected) in [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
        ] {
            assert_eq!(count_cpus(list), expected, "{list:?}");
        }
    }
}
