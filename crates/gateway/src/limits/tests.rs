use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use offleash_core::units::Bytes;

use super::*;

fn limits() -> Limits {
    Limits {
        net_bytes: None,
        net_rate: None,
        net_connections: None,
        net_at_once: None,
        ..Limits::default()
    }
}

fn budget(limits: &Limits) -> (Rc<Budget>, Journal) {
    let journal = Journal::default();
    (Budget::new(limits, journal.clone()), journal)
}

/// Whether it is done when it is asked for the first time.
fn is_done<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn hits(journal: &Journal) -> Vec<(LimitName, u64, LimitEffect)> {
    let hits = journal.take().limits_hit;
    hits.into_iter().map(|hit| (hit.limit, hit.value, hit.effect)).collect()
}

#[test]
fn nothing_is_bounded_without_a_limit() {
    let (budget, journal) = budget(&limits());
    let counts = Counts::new(&budget);
    let places: Vec<Place> = (0..10_000).map(|_| budget.admit().unwrap()).collect();
    assert!(is_done(counts.sent.pass(usize::MAX)).is_some());
    assert!(is_done(counts.received.pass(usize::MAX)).is_some());
    assert!(is_done(budget.used_up()).is_none());
    assert_eq!(counts.sent.piece(65_536), 65_536);
    drop(places);
    assert_eq!(hits(&journal), []);
}

#[test]
fn bytes_of_all_connections_and_both_ways_come_from_one_limit() {
    let (budget, journal) = budget(&Limits {
        net_bytes: Some(Bytes(100)),
        ..limits()
    });
    let (one, other) = (Counts::new(&budget), Counts::new(&budget));
    let _place = budget.admit().unwrap();
    assert!(is_done(one.sent.pass(40)).is_some());
    assert!(is_done(other.received.pass(50)).is_some());
    // The rest can be used to the last byte.
    assert_eq!((one.sent.piece(65_536), one.sent.piece(4)), (10, 4));
    assert!(is_done(budget.used_up()).is_none());
    assert!(is_done(one.received.pass(10)).is_some());
    assert_eq!(one.sent.piece(65_536), 1);
    assert!(is_done(other.sent.pass(1)).is_none());
    let reached = is_done(budget.used_up()).unwrap();
    assert_eq!((reached.limit, reached.value), (LimitName::NetBytes, 100));
    assert_eq!(budget.admit().unwrap_err(), reached);
    assert_eq!(hits(&journal), [(LimitName::NetBytes, 100, LimitEffect::Cut)]);
}

#[test]
fn a_connection_that_waits_hears_that_bytes_are_used_up() {
    let (budget, _) = budget(&Limits {
        net_bytes: Some(Bytes(1)),
        ..limits()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let counts = Counts::new(&budget);
        tokio::select! {
            reached = budget.used_up() => assert_eq!(reached.limit, LimitName::NetBytes),
            () = counts.sent.pass(2) => panic!("more passed than may"),
        }
    });
}

#[test]
fn connections_are_counted_in_all_and_at_once() {
    let (budget, journal) = budget(&Limits {
        net_connections: Some(4),
        net_at_once: Some(2),
        ..limits()
    });
    let first = budget.admit().unwrap();
    let second = budget.admit().unwrap();
    let at_once = budget.admit().unwrap_err();
    assert_eq!((at_once.limit, at_once.value), (LimitName::NetAtOnce, 2));
    drop(first);
    // One that was refused counts for nothing.
    let third = budget.admit().unwrap();
    drop((second, third));
    drop(budget.admit().unwrap());
    let in_all = budget.admit().unwrap_err();
    assert_eq!((in_all.limit, in_all.value), (LimitName::NetConnections, 4));
    assert_eq!(
        in_all.to_string(),
        "the limit `net_connections` of 4 is reached; raise it with `--net-connections`"
    );
    assert_eq!(
        hits(&journal),
        [
            (LimitName::NetAtOnce, 2, LimitEffect::Refused),
            (LimitName::NetConnections, 4, LimitEffect::Refused)
        ]
    );
}

#[test]
fn a_rate_lets_a_burst_through_and_then_its_own_share_of_each_second() {
    let (budget, _) = budget(&Limits {
        net_rate: Some(Bytes(100_000)),
        ..limits()
    });
    let rate = budget.rate.as_ref().unwrap();
    let begun = Instant::now();
    // A tenth of a second's worth, at most, is free.
    assert_eq!(rate.next_turn(5_000), None);
    let mut last = begun;
    for _ in 0..50 {
        if let Some(turn) = rate.next_turn(20_000) {
            assert!(turn >= last, "turns are in order");
            last = turn;
        }
    }
    // A million and five thousand bytes at 100 kB in a second, less the burst.
    let least = Duration::from_millis(10_050) - BURST;
    assert!(last.duration_since(begun) >= least, "{:?}", last.duration_since(begun));
    assert_eq!(budget.piece(65_536), 10_000);
    assert_eq!(budget.piece(100), 100);
}

#[test]
fn a_rate_is_told_when_it_makes_something_wait() {
    let (budget, journal) = budget(&Limits {
        net_rate: Some(Bytes(1024)),
        ..limits()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let counts = Counts::new(&budget);
        assert!(is_done(counts.sent.pass(1)).is_some());
        // An hour's worth: it cannot be done already, however slow this machine is.
        assert!(is_done(counts.sent.pass(1024 * 3600)).is_none());
    });
    assert_eq!(hits(&journal), [(LimitName::NetRate, 1024, LimitEffect::Slowed)]);
}

#[test]
fn what_cannot_be_paid_for_in_this_century_is_no_panic() {
    let rate = Rate::new(1);
    assert!(rate.next_turn(u64::MAX).is_some_and(|turn| turn > Instant::now()));
    for _ in 0..10 {
        let _ = rate.next_turn(u64::MAX);
    }
}
