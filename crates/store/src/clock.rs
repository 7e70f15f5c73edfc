//! The moment a run began, in the time that file systems stamp on entries.

use rustix::fs::{Timestamps, UTIME_NOW};
use rustix::time::{ClockId, Timespec};

use crate::node::Time;

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
pub(crate) struct Baseline {
    stamp: Time,
    boot_offset_ns: i128,
}

impl Baseline {
    pub(crate) fn now(stamp: Time) -> Self {
        Self {
            stamp,
            boot_offset_ns: boot_offset_ns(),
        }
    }

    /// The latest change time that an untouched entry can have.
    ///
    /// After the clock was set back this is the moment the machine was started, which calls more entries changed than
    /// were, and never fewer.
    pub(crate) fn latest_untouched(&self) -> Time {
        self.latest_untouched_at(boot_offset_ns())
    }

    fn latest_untouched_at(&self, boot_offset_ns: i128) -> Time {
        if boot_offset_ns + TOLERANCE_NS < self.boot_offset_ns {
            self.stamp.min(time(boot_offset_ns))
        } else {
            self.stamp
        }
    }
}

fn boot_offset_ns() -> i128 {
    let boot = nanoseconds(rustix::time::clock_gettime(ClockId::Boottime));
    nanoseconds(rustix::time::clock_gettime(ClockId::Realtime)) - boot
}

fn nanoseconds(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn time(nanoseconds: i128) -> Time {
    Time {
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
        let baseline = Baseline {
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
