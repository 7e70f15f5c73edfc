//! Resource limits of a single process (`setrlimit(2)`), as a typed set.
//!
//! Hard limits only ever go down here: a process without `CAP_SYS_RESOURCE` may not raise one, and a sandbox must
//! not leave its caller with less restriction than it found. Deliberately not here: which limit gets which value
//! (`isolation::limits`) and limits of a whole tree of processes ([`crate::cgroup`]).

use std::io;

use rustix::process::{Pid, Rlimit, getrlimit, prlimit, setrlimit};

/// What a process may be limited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitedResource {
    /// `RLIMIT_AS`: bytes of address space.
    AddressSpace,
    /// `RLIMIT_CORE`: bytes of a core dump.
    Core,
    /// `RLIMIT_CPU`: seconds of CPU time of the process; `SIGXCPU` at the soft limit, `SIGKILL` at the hard one.
    CpuSeconds,
    /// `RLIMIT_DATA`: bytes of heap and private writable mappings.
    Data,
    /// `RLIMIT_FSIZE`: the size a file may grow to, in bytes; `SIGXFSZ` and `EFBIG` beyond.
    FileSize,
    /// `RLIMIT_MEMLOCK`: bytes locked in memory.
    LockedMemory,
    /// `RLIMIT_MSGQUEUE`: bytes of POSIX message queues of the user.
    MessageQueues,
    /// `RLIMIT_NICE`: 20 minus the lowest nice value that may be taken.
    Nice,
    /// `RLIMIT_NOFILE`: one more than the highest file descriptor.
    OpenFiles,
    /// `RLIMIT_NPROC`: processes and threads of the user, counted per user namespace since Linux 5.14.
    Processes,
    /// `RLIMIT_RTPRIO`: the highest real-time priority.
    RealtimePriority,
    /// `RLIMIT_RTTIME`: microseconds of real-time scheduling without a blocking call.
    RealtimeMicroseconds,
    /// `RLIMIT_SIGPENDING`: queued signals of the user.
    PendingSignals,
    /// `RLIMIT_STACK`: bytes of the first thread's stack.
    Stack,
}

impl LimitedResource {
    /// The name in `getrlimit(2)`.
    pub fn name(self) -> &'static str {
        match self {
            LimitedResource::AddressSpace => "RLIMIT_AS",
            LimitedResource::Core => "RLIMIT_CORE",
            LimitedResource::CpuSeconds => "RLIMIT_CPU",
            LimitedResource::Data => "RLIMIT_DATA",
            LimitedResource::FileSize => "RLIMIT_FSIZE",
            LimitedResource::LockedMemory => "RLIMIT_MEMLOCK",
            LimitedResource::MessageQueues => "RLIMIT_MSGQUEUE",
            LimitedResource::Nice => "RLIMIT_NICE",
            LimitedResource::OpenFiles => "RLIMIT_NOFILE",
            LimitedResource::Processes => "RLIMIT_NPROC",
            LimitedResource::RealtimePriority => "RLIMIT_RTPRIO",
            LimitedResource::RealtimeMicroseconds => "RLIMIT_RTTIME",
            LimitedResource::PendingSignals => "RLIMIT_SIGPENDING",
            LimitedResource::Stack => "RLIMIT_STACK",
        }
    }

    /// Its number in the kernel (`include/uapi/asm-generic/resource.h`).
    pub fn number(self) -> u32 {
        match self {
            LimitedResource::CpuSeconds => 0,
            LimitedResource::FileSize => 1,
            LimitedResource::Data => 2,
            LimitedResource::Stack => 3,
            LimitedResource::Core => 4,
            LimitedResource::Processes => 6,
            LimitedResource::OpenFiles => 7,
            LimitedResource::LockedMemory => 8,
            LimitedResource::AddressSpace => 9,
            LimitedResource::PendingSignals => 11,
            LimitedResource::MessageQueues => 12,
            LimitedResource::Nice => 13,
            LimitedResource::RealtimePriority => 14,
            LimitedResource::RealtimeMicroseconds => 15,
        }
    }

    fn kernel(self) -> rustix::process::Resource {
        use rustix::process::Resource as Kernel;
        match self {
            LimitedResource::AddressSpace => Kernel::As,
            LimitedResource::Core => Kernel::Core,
            LimitedResource::CpuSeconds => Kernel::Cpu,
            LimitedResource::Data => Kernel::Data,
            LimitedResource::FileSize => Kernel::Fsize,
            LimitedResource::LockedMemory => Kernel::Memlock,
            LimitedResource::MessageQueues => Kernel::Msgqueue,
            LimitedResource::Nice => Kernel::Nice,
            LimitedResource::OpenFiles => Kernel::Nofile,
            LimitedResource::Processes => Kernel::Nproc,
            LimitedResource::RealtimePriority => Kernel::Rtprio,
            LimitedResource::RealtimeMicroseconds => Kernel::Rttime,
            LimitedResource::PendingSignals => Kernel::Sigpending,
            LimitedResource::Stack => Kernel::Stack,
        }
    }
}

/// A limit that the kernel refused to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("setting {} to {value}", .resource.name())]
pub struct RlimitError {
    /// Which limit.
    pub resource: LimitedResource,
    /// The value asked for.
    pub value: u64,
    /// Why.
    #[source]
    pub source: rustix::io::Errno,
}

/// The soft and the hard limit of this process; `None` is unlimited.
pub fn current(resource: LimitedResource) -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(resource.kernel());
    (limit.current, limit.maximum)
}

/// Sets the soft and the hard limit of this process to `value`.
///
/// # Errors
/// `EPERM` when the hard limit is lower and the process lacks `CAP_SYS_RESOURCE`.
pub fn set_both(resource: LimitedResource, value: u64) -> Result<(), RlimitError> {
    set(
        resource,
        value,
        Rlimit {
            current: Some(value),
            maximum: Some(value),
        },
    )
}

/// Lowers the limits of this process to at most `value`, and returns the soft limit that holds afterwards.
///
/// A limit that is already lower stays. The hard limit of [`LimitedResource::CpuSeconds`] is one second above `value`, so
/// that the process sees `SIGXCPU` before it is killed. The soft limit of [`LimitedResource::Core`] becomes `value` even if it
/// is lower, as far as the hard one permits, because 1 forbids more there than 0 does (core(5)). The hard limit of
/// [`LimitedResource::Data`] stays, so that [`raise_soft_of`] can make room for what a process reserves.
///
/// # Errors
/// What `setrlimit(2)` answers; lowering is always permitted, so this is unexpected.
pub fn lower(resource: LimitedResource, value: u64) -> Result<u64, RlimitError> {
    let now = getrlimit(resource.kernel());
    let hard = match resource {
        LimitedResource::CpuSeconds => value.saturating_add(1),
        LimitedResource::Data => now.maximum.unwrap_or(u64::MAX),
        _ => value,
    };
    let soft = if resource == LimitedResource::Core {
        now.maximum
    } else {
        now.current
    };
    let wanted = Rlimit {
        current: Some(at_most(soft, value)),
        maximum: match resource {
            LimitedResource::Data => now.maximum,
            _ => Some(at_most(now.maximum, hard)),
        },
    };
    if wanted != now {
        set(resource, value, wanted)?;
    }
    Ok(wanted.current.unwrap_or(value))
}

/// Raises the soft limit of this process to `value`, or as far as the hard one permits, and returns the soft limit that
/// holds afterwards; `None` is unlimited. Nothing is lowered.
///
/// # Errors
/// What `setrlimit(2)` answers; this much is always permitted, so it is unexpected.
pub fn raise_soft(resource: LimitedResource, value: u64) -> Result<Option<u64>, RlimitError> {
    let now = getrlimit(resource.kernel());
    let Some(soft) = now.current else { return Ok(None) };
    let wanted = at_most(now.maximum, value).max(soft);
    if wanted > soft {
        let limit = Rlimit {
            current: Some(wanted),
            maximum: now.maximum,
        };
        set(resource, wanted, limit)?;
    }
    Ok(Some(wanted))
}

/// Raises the soft limit of another process by `more`, as far as its hard one permits.
///
/// # Errors
/// What `prlimit(2)` answers: `EPERM` for a process of another user whose user namespace is not below ours, `ESRCH`.
pub fn raise_soft_of(pid: Pid, resource: LimitedResource, more: u64) -> io::Result<()> {
    let now = limits_of(pid, resource)?;
    let Some(soft) = now.current else { return Ok(()) };
    let limit = Rlimit {
        current: Some(at_most(now.maximum, soft.saturating_add(more))),
        maximum: now.maximum,
    };
    prlimit(Some(pid), resource.kernel(), limit)?;
    Ok(())
}

/// The limits of another process.
fn limits_of(pid: Pid, resource: LimitedResource) -> io::Result<Rlimit> {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_pid()))?;
    let name = match resource {
        LimitedResource::Data => "Max data size",
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut values = line.into_iter().flat_map(str::split_whitespace);
    let mut value = || match values.next() {
        Some("unlimited") => Ok(None),
        Some(number) => number.parse().map(Some).map_err(|_| io::ErrorKind::InvalidData),
        None => Err(io::ErrorKind::InvalidData),
    };
    Ok(Rlimit {
        current: value()?,
        maximum: value()?,
    })
}

fn at_most(now: Option<u64>, value: u64) -> u64 {
    now.map_or(value, |now| now.min(value))
}

fn set(resource: LimitedResource, value: u64, limit: Rlimit) -> Result<(), RlimitError> {
    setrlimit(resource.kernel(), limit).map_err(|source| RlimitError {
        resource,
        value,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Real limits of the test process are shared by all tests, so only ones that nothing here depends on are changed,
    // and each test has its own.

    #[test]
    fn lowering_sets_both_limits_and_never_raises_them_again() {
        assert_eq!(lower(LimitedResource::MessageQueues, 4096), Ok(4096));
        assert_eq!(current(LimitedResource::MessageQueues), (Some(4096), Some(4096)));
        assert_eq!(lower(LimitedResource::MessageQueues, 1 << 40), Ok(4096));
        assert_eq!(current(LimitedResource::MessageQueues), (Some(4096), Some(4096)));
    }

    #[test]
    fn room_is_made_for_data_below_the_hard_limit_which_stays() {
        let (_, hard) = current(LimitedResource::Data);
        let (most, more) = (1 << 45, 1 << 44);
        assert_eq!(lower(LimitedResource::Data, most), Ok(most));
        assert_eq!(current(LimitedResource::Data), (Some(most), hard));
        let own = rustix::process::getpid();
        raise_soft_of(own, LimitedResource::Data, more).unwrap();
        assert_eq!(current(LimitedResource::Data), (Some(at_most(hard, most + more)), hard));
    }

    #[test]
    fn a_soft_limit_below_the_value_stays_when_the_hard_limit_is_lowered() {
        let (soft, hard) = current(LimitedResource::PendingSignals);
        let (Some(soft), Some(hard)) = (soft, hard) else { return };
        let below = soft.min(hard) / 2;
        setrlimit(
            LimitedResource::PendingSignals.kernel(),
            Rlimit {
                current: Some(below),
                maximum: Some(hard),
            },
        )
        .unwrap();
        assert_eq!(lower(LimitedResource::PendingSignals, below + 1), Ok(below));
        assert_eq!(current(LimitedResource::PendingSignals), (Some(below), Some(below + 1)));
    }

    #[test]
    fn raising_stops_at_the_hard_limit_and_never_lowers() {
        let resource = LimitedResource::LockedMemory;
        let limit = |current, maximum| Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        };
        setrlimit(resource.kernel(), limit(100, 1000)).unwrap();
        for (value, soft) in [(50, 100), (500, 500), (200, 500), (5000, 1000)] {
            assert_eq!(raise_soft(resource, value), Ok(Some(soft)));
            assert_eq!(current(resource), (Some(soft), Some(1000)));
        }
    }

    #[test]
    fn the_soft_limit_of_core_dumps_is_exactly_what_was_asked_for() {
        let (_, hard) = current(LimitedResource::Core);
        if hard.is_some_and(|hard| hard < 1) {
            println!("SKIP: the hard limit of core dumps is 0 here");
            return;
        }
        let none = Rlimit {
            current: Some(0),
            maximum: hard,
        };
        setrlimit(LimitedResource::Core.kernel(), none).unwrap();
        assert_eq!(lower(LimitedResource::Core, 1), Ok(1));
        assert_eq!(current(LimitedResource::Core), (Some(1), Some(1)));
        setrlimit(
            LimitedResource::Core.kernel(),
            Rlimit {
                current: Some(0),
                maximum: Some(0),
            },
        )
        .unwrap();
        assert_eq!(lower(LimitedResource::Core, 1), Ok(0), "no hard limit is raised");
    }

    #[test]
    fn cpu_time_is_warned_of_one_second_before_the_kill() {
        assert_eq!(lower(LimitedResource::CpuSeconds, 1 << 30), Ok(1 << 30));
        let (soft, hard) = current(LimitedResource::CpuSeconds);
        assert_eq!((soft, hard), (Some(1 << 30), Some((1 << 30) + 1)));
    }

    #[test]
    fn setting_both_is_exact() {
        set_both(LimitedResource::RealtimeMicroseconds, 1_000_000).unwrap();
        assert_eq!(
            current(LimitedResource::RealtimeMicroseconds),
            (Some(1_000_000), Some(1_000_000))
        );
    }

    #[test]
    fn the_error_names_the_limit_and_the_value() {
        let error = RlimitError {
            resource: LimitedResource::OpenFiles,
            value: 7,
            source: rustix::io::Errno::PERM,
        };
        assert_eq!(error.to_string(), "setting RLIMIT_NOFILE to 7");
    }
}
