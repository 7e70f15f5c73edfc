//! The moment a run began, in the time that file systems stamp on entries.

use rustix::fs::{Timestamps, UTIME_NOW};
use rustix::time::{ClockId, Timespec};

use crate::node::NodeTime;

/// Both times of an entry that is stamped now (utimensat(2)).
pub(crate) const NOW: Timestamps = {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    Timestamps {
        last_access: now,
        last_modification: now,
    }
};

/// A step of the clock smaller than this is not taken for one.
const TOLERANCE_NS: i128 = 10_000_000;

/// When a run began.
///
/// `stamp` is the change time of a directory that was just made, so it comes from the same coarse clock as those of
/// the workspace. An entry stamped later has changed since; one stamped in the same tick (4 ms at most) is taken for
/// unchanged, because the sandbox starts after the baseline and sees what was written in that tick.
///
/// `boot_offset` is real time minus time since boot. It changes only when somebody sets the clock, not by slewing, so a
/// smaller one later means that the clock was set back and stamps of the two times cannot be compared. A clock that is
/// set back and then forward again between the two looks is not noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ClockBaseline {
    stamp: NodeTime,
    boot_offset_ns: i128,
}

impl ClockBaseline {
    pub(crate) fn now(stamp: NodeTime) -> Self {
        Self {
            stamp,
            boot_offset_ns: boot_offset_ns(),
        }
    }

    /// The latest change time that an untouched entry can have.
    ///
    /// After the clock was set back this is the moment the machine was started, which calls more entries changed than
    /// were, and never fewer.
    pub(crate) fn latest_untouched(&self) -> NodeTime {
        self.latest_untouched_at(boot_offset_ns())
    }

    fn latest_untouched_at(&self, boot_offset_ns: i128) -> NodeTime {
        if boot_offset_ns + TOLERANCE_NS < self.boot_offset_ns {
            self.stamp.min(time(boot_offset_ns))
        } else {
            self.stamp
        }
    }
}

/// Three looks at the clocks, one after another, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct ClockLook {
    boot_before: i128,
    real: i128,
    boot_after: i128,
}

impl ClockLook {
    fn now() -> Self {
        let at = |clock| nanoseconds(rustix::time::clock_gettime(clock));
        Self {
            boot_before: at(ClockId::Boottime),
            real: at(ClockId::Realtime),
            boot_after: at(ClockId::Boottime),
        }
    }

    /// Within this, the real time was looked at; how wrong the offset can be, twice.
    fn width(self) -> i128 {
        self.boot_after - self.boot_before
    }

    fn offset(self) -> i128 {
        self.real - i128::midpoint(self.boot_before, self.boot_after)
    }
}

/// Looks closer together than this are as good as at once; three of them take a microsecond.
const CLOSE_NS: i128 = 100_000;

/// How often the clocks are looked at, until three looks are close together.
const LOOKS: usize = 64;

/// Real time minus time since boot, as it is now.
fn boot_offset_ns() -> i128 {
    tightest(std::iter::repeat_with(ClockLook::now).take(LOOKS)).map_or(0, ClockLook::offset)
}

/// The first look that is [`CLOSE_NS`], or else the closest.
///
/// Whoever loses its processor between two looks would see a clock that was set.
fn tightest(looks: impl Iterator<Item = ClockLook>) -> Option<ClockLook> {
    let mut best: Option<ClockLook> = None;
    for look in looks {
        if best.is_none_or(|best| look.width() < best.width()) {
            best = Some(look);
        }
        if look.width() <= CLOSE_NS {
            break;
        }
    }
    best
}

fn nanoseconds(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn time(nanoseconds: i128) -> NodeTime {
    NodeTime {
        seconds: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or(0),
        nanoseconds: u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
    }
}

/// The present, as RFC 3339 in UTC with milliseconds.
pub fn rfc3339_now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// A time in RFC 3339, UTC, with milliseconds; the beginning of 1970 for one that is out of range.
pub fn rfc3339(time: std::time::SystemTime) -> String {
    format!("{:.3}", jiff::Timestamp::try_from(time).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    #[test]
    fn a_clock_that_was_set_back_makes_everything_since_the_start_suspicious() {
        let stamp = time(5_000 * SECOND);
        let baseline = ClockBaseline {
            stamp,
            boot_offset_ns: 1_000 * SECOND,
        };
        for (offset, expected) in [
            (1_000 * SECOND, stamp),
            (1_000 * SECOND - 9_000_000, stamp),
            (2_000 * SECOND, stamp),
            (400 * SECOND, time(400 * SECOND)),
        ] {
            assert_eq!(baseline.latest_untouched_at(offset), expected, "{offset}");
        }
    }

    /// A machine whose clock is `offset` ahead of its time since boot, where the process waits between looks.
    fn look(at: i128, offset: i128, before: i128, after: i128) -> ClockLook {
        ClockLook {
            boot_before: at,
            real: at + before + offset,
            boot_after: at + before + after,
        }
    }

    #[test]
    fn losing_the_processor_between_two_looks_is_not_a_clock_that_was_set() {
        let offset = 1_000 * SECOND;
        let waits = [(SECOND, 300), (200, 5 * SECOND), (400, 300), (SECOND, SECOND)];
        let mut taken = 0;
        let looks = waits.map(|(before, after)| look(7 * SECOND, offset, before, after));
        let best = tightest(looks.into_iter().inspect(|_| taken += 1)).unwrap();
        assert!((best.offset() - offset).abs() < 1_000, "{best:?}");
        assert_eq!(taken, 3, "a close look ends it");
    }

    #[test]
    fn where_no_look_is_close_the_closest_is_taken() {
        let offset = 1_000 * SECOND;
        let waits = [(SECOND, 0), (0, 3_000_000), (0, 2 * SECOND)];
        let best = tightest(
            waits
                .map(|(before, after)| look(7 * SECOND, offset, before, after))
                .into_iter(),
        )
        .unwrap();
        assert!((best.offset() - offset).abs() <= 1_500_000, "{best:?}");
        assert!(tightest(std::iter::empty()).is_none());
    }

    #[test]
    fn many_threads_that_wait_for_a_processor_agree_on_the_offset() {
        let ask = || (0..2_000).map(|_| boot_offset_ns()).collect::<Vec<_>>();
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let spread = all.iter().max().unwrap() - all.iter().min().unwrap();
        assert!(spread < TOLERANCE_NS, "{spread} ns");
    }

    #[test]
    fn the_present_is_written_in_utc_with_milliseconds() {
        let now = rfc3339_now();
        assert_eq!(
            (now.len(), now.ends_with('Z'), now.as_bytes()[19]),
            (24, true, b'.'),
            "{now}"
        );
    }
}
