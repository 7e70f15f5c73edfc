//! Times as JSON has them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// RFC 3339 in UTC, to the millisecond, as in `2026-01-02T03:04:05.678Z`.
pub(crate) fn text(time: SystemTime) -> String {
    // Times that no calendar has come from nowhere.
    let stamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{stamp:.3}")
}

/// Whole seconds since the beginning of 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The last second that has a name: the end of the year 9999.
pub(crate) const LATEST: u64 = 253_402_300_799;

/// The time of so many seconds, at most [`LATEST`], since the beginning of 1970.
pub(crate) fn of_unix_seconds(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.min(LATEST))
}

/// The time of so many milliseconds, at most those of [`LATEST`], since the beginning of 1970.
pub(crate) fn of_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms.min(LATEST * 1000))
}

/// Reads RFC 3339.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    let stamp: Timestamp = text.parse().ok()?;
    Some(stamp.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        let time = UNIX_EPOCH + Duration::from_millis(1_700_000_000_120);
        assert_eq!(text(time), "2023-11-14T22:13:20.120Z");
        assert_eq!(unix_seconds(time), 1_700_000_000);
        assert_eq!(parse("2023-11-14T22:13:20.12Z"), Some(time));
        assert_eq!(parse("2023-11-14T23:13:20.12+01:00"), Some(time));
        assert_eq!(parse("yesterday"), None);
    }
}
