//! Why a worker ended.

use offleash_core::limits::{LimitName, Limits};
use offleash_core::record::{LimitEffect, LimitHit};

use crate::worker_process::WorkerEnd;

const SIGABRT: i32 = 6;
const SIGXCPU: i32 = 24;

/// Why a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LossCause {
    /// A limit of the kernel.
    Limit(LimitHit),
    /// A signal, and what is said of it.
    Crash(i32, String),
}

pub(super) fn cause_of(end: &WorkerEnd, limits: &Limits) -> LossCause {
    let killed = |limit, value| {
        LossCause::Limit(LimitHit {
            limit,
            value,
            effect: LimitEffect::Killed,
        })
    };
    match (end.signal, limits.memory, limits.cpu_time) {
        // By whichever signal: aborting raises one by a call that the filter refuses.
        (Some(_), Some(memory), _) if end.complaint.contains("memory allocation of") => {
            killed(LimitName::Memory, memory.0)
        }
        (Some(SIGXCPU), _, Some(time)) => killed(LimitName::CpuTime, time.0),
        (Some(signal), ..) if end.complaint.contains("has overflowed its stack") => {
            LossCause::Crash(signal, "overflowed its stack".to_owned())
        }
        (Some(signal), ..) => LossCause::Crash(signal, format!("was ended by signal {signal}")),
        (None, ..) => {
            let code = end.code.unwrap_or(-1);
            LossCause::Crash(SIGABRT, format!("ended by itself with code {code}"))
        }
    }
}
