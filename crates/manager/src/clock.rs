//! The machine's clock, as the registry counts it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use offleash_store::registry::UnixMs;

/// Now.
pub(crate) fn now_ms() -> UnixMs {
    to_ms(SystemTime::now())
}

/// `time` in the registry's words; the nearest that there is.
pub(crate) fn to_ms(time: SystemTime) -> UnixMs {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs::try_from(since.as_millis()).unwrap_or(UnixMs::MAX)
}

/// A time of the registry's.
pub(crate) fn from_ms(ms: UnixMs) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// So long after `ms`.
pub(crate) fn after(ms: UnixMs, time: Duration) -> UnixMs {
    ms.saturating_add(UnixMs::try_from(time.as_millis()).unwrap_or(UnixMs::MAX))
}

/// So long before `ms`.
pub(crate) fn before(ms: UnixMs, time: Duration) -> UnixMs {
    ms.saturating_sub(UnixMs::try_from(time.as_millis()).unwrap_or(UnixMs::MAX))
}
