//! The machine's clock, as the registry counts it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the beginning of 1970, by the machine's clock.
pub type UnixMs = i64;

/// Now.
pub fn now_ms() -> UnixMs {
    to_ms(SystemTime::now())
}

/// Now, or the next moment that this process was not told of before: what begins later has a later time, so that times are
/// an order.
pub fn own_ms() -> UnixMs {
    static LAST: AtomicI64 = AtomicI64::new(0);
    let now = now_ms();
    let mut last = LAST.load(Ordering::Acquire);
    loop {
        let next = now.max(last.saturating_add(1));
        match LAST.compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return next,
            Err(seen) => last = seen,
        }
    }
}

/// `time` in the registry's words; the nearest that there is.
pub fn to_ms(time: SystemTime) -> UnixMs {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs::try_from(since.as_millis()).unwrap_or(UnixMs::MAX)
}

/// A time of the registry's.
pub fn from_ms(ms: UnixMs) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// So long after `ms`.
pub fn after(ms: UnixMs, time: Duration) -> UnixMs {
    ms.saturating_add(UnixMs::try_from(time.as_millis()).unwrap_or(UnixMs::MAX))
}

/// So long before `ms`.
pub fn before(ms: UnixMs, time: Duration) -> UnixMs {
    ms.saturating_sub(UnixMs::try_from(time.as_millis()).unwrap_or(UnixMs::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_told_twice() {
        let told = || (0..1000).map(|_| own_ms()).collect::<Vec<_>>();
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(told);
            (told(), other.join().unwrap())
        });
        assert!(one.is_sorted() && other.is_sorted());
        let mut all = [one, other].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2000);
    }
}
