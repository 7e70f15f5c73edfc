//! The limits of each process in a sandbox.

use offleash_core::limits::{LimitName, Limits};
use offleash_sys::rlimit::LimitedResource;

/// Memory that may be locked: the kernel's default since Linux 5.16; locked pages cannot be reclaimed.
const LOCKED_MEMORY_BYTES: u64 = 8 * 1024 * 1024;
/// POSIX message queues: the kernel's default, `MQ_BYTES_MAX`.
const MESSAGE_QUEUE_BYTES: u64 = 819_200;
/// Queued signals, which timers use too. The kernel's default grows with the machine; each takes kernel memory.
const PENDING_SIGNALS: u64 = 8192;
/// The largest main stack without a memory group: a stack is not part of `RLIMIT_DATA`.
const STACK_BYTES: u64 = 64 * 1024 * 1024;

/// With exactly this soft limit the kernel does not start a program that `core_pattern` pipes to, which it does with 0;
/// no file is as small as this either (core(5), "Piping core dumps to a program").
pub(crate) const NO_CORE_DUMP: u64 = 1;

/// By how much a file may outgrow the workspace: so much that the watcher sees it and names the limit that was hit.
const WORKSPACE_SLACK_BYTES: u64 = 32 * 1024 * 1024;

/// Which limits a control group holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct HeldByGroup {
    /// Memory of all processes together.
    pub memory: bool,
    /// The number of processes and threads.
    pub pids: bool,
}

/// How many more processes `RLIMIT_NPROC` allows than a group that counts refusals.
const PROCESSES_SLACK: u64 = 16;

/// The size that no file outgrows, and the limit that it follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestFile {
    /// Apparent size in bytes, so that a sparse file counts in full: copying one, or downloading it, writes it in full.
    pub bytes: u64,
    /// The limit.
    pub limit: LimitName,
    /// That limit's own value, in bytes.
    pub value: u64,
}

impl LargestFile {
    /// `None` where no limit bounds a file.
    ///
    /// No single file is much larger than the workspace, so that one which no walk can see is bounded by that too.
    pub fn of(limits: &Limits) -> Option<Self> {
        let by_itself = limits.file_size.map(|size| Self {
            bytes: size.0,
            limit: LimitName::FileSize,
            value: size.0,
        });
        let by_workspace = limits.workspace.map(|size| Self {
            bytes: size.0.saturating_add(WORKSPACE_SLACK_BYTES),
            limit: LimitName::Workspace,
            value: size.0,
        });
        by_itself
            .into_iter()
            .chain(by_workspace)
            .min_by_key(|bound| bound.bytes)
    }
}

/// The process limits that follow from `limits`, to be applied by `sys::rlimit::lower`.
///
/// They must be applied inside the sandbox's user namespace, before its first program runs: `RLIMIT_NPROC` set outside
/// would be compared with all processes of the caller. Where no control group holds the memory limit, a process is at
/// least bounded by itself.
///
/// Not used: `RLIMIT_AS`, because Go, Java, WebAssembly engines and sanitizers reserve address space by the terabyte
/// without using it; `RLIMIT_RSS`, which Linux ignores.
pub fn rlimits(limits: &Limits, held: HeldByGroup) -> Vec<(LimitedResource, u64)> {
    let mut set = vec![
        // A core dump could go to a handler outside of the sandbox and holds whatever memory held.
        (LimitedResource::Core, NO_CORE_DUMP),
        // Real-time scheduling would starve everything else, the supervisor included.
        (LimitedResource::RealtimePriority, 0),
        // No lower nice value than the one it starts with.
        (LimitedResource::Nice, 0),
        (LimitedResource::LockedMemory, LOCKED_MEMORY_BYTES),
        (LimitedResource::MessageQueues, MESSAGE_QUEUE_BYTES),
        (LimitedResource::PendingSignals, PENDING_SIGNALS),
    ];
    let mut add = |resource, value: Option<u64>| set.extend(value.map(|value| (resource, value)));
    add(
        LimitedResource::FileSize,
        LargestFile::of(limits).map(|largest| largest.bytes),
    );
    add(LimitedResource::OpenFiles, limits.open_files);
    // Counted per user and user namespace since Linux 5.14. With one user id in a namespace of its own that is every
    // process of the sandbox. The kernel exempts the host's root (`copy_process`: `INIT_USER`), so it is no bound for
    // a sandbox that is mapped to it.
    // Where a group holds the limit, it is to be the one that refuses, since it counts that; this is then behind it.
    let slack = if held.pids { PROCESSES_SLACK } else { 0 };
    add(
        LimitedResource::Processes,
        limits.pids.map(|pids| pids.saturating_add(slack)),
    );
    // Each process by itself; the sum is the watcher's. It bounds a single process if the supervisor hangs.
    // A second later than the watcher, since the kernel counts this one by ticks, which a busy machine makes coarse.
    add(
        LimitedResource::CpuSeconds,
        limits.cpu_time.map(|time| time.0.div_ceil(1000) + 1),
    );
    if !held.memory
        && let Some(memory) = limits.memory
    {
        add(LimitedResource::Data, Some(memory.0));
        add(LimitedResource::Stack, Some(memory.0.min(STACK_BYTES)));
    }
    set
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use offleash_core::units::{Bytes, Millis};

    use super::super::testing::unlimited;
    use super::*;

    const GROUP: HeldByGroup = HeldByGroup {
        memory: true,
        pids: true,
    };

    #[test]
    fn what_no_sandbox_needs_is_taken_away_without_any_limit() {
        let set: BTreeMap<_, _> = rlimits(&unlimited(), GROUP).into_iter().collect();
        assert_eq!(set[&LimitedResource::Core], 1);
        assert_eq!(set[&LimitedResource::RealtimePriority], 0);
        assert_eq!(set[&LimitedResource::Nice], 0);
        for lifted in [
            LimitedResource::FileSize,
            LimitedResource::OpenFiles,
            LimitedResource::Processes,
            LimitedResource::CpuSeconds,
        ] {
            assert!(!set.contains_key(&lifted), "{lifted:?}");
        }
    }

    #[test]
    fn no_file_is_much_larger_than_the_workspace() {
        let mib = |size: Option<u64>| size.map(Bytes::mib);
        let (own, workspaces) = (LimitName::FileSize, LimitName::Workspace);
        for (file_size, workspace, expected) in [
            (None, None, None),
            (Some(10), None, Some((10, own, 10))),
            (None, Some(20), Some((52, workspaces, 20))),
            (Some(10), Some(20), Some((10, own, 10))),
            (Some(52), Some(20), Some((52, own, 52))),
            (Some(60), Some(20), Some((52, workspaces, 20))),
        ] {
            let limits = Limits {
                file_size: mib(file_size),
                workspace: mib(workspace),
                ..unlimited()
            };
            let set: BTreeMap<_, _> = rlimits(&limits, GROUP).into_iter().collect();
            let expected = expected.map(|(bytes, limit, value): (u64, _, u64)| LargestFile {
                bytes: bytes << 20,
                limit,
                value: value << 20,
            });
            assert_eq!(LargestFile::of(&limits), expected, "{limits:?}");
            let set_to = set.get(&LimitedResource::FileSize).copied();
            assert_eq!(set_to, expected.map(|largest| largest.bytes), "{limits:?}");
        }
    }

    #[test]
    fn memory_bounds_each_process_only_when_no_group_holds_all() {
        let limits = Limits {
            memory: Some(Bytes::mib(256)),
            ..unlimited()
        };
        assert!(
            !rlimits(&limits, GROUP)
                .iter()
                .any(|(resource, _)| *resource == LimitedResource::Data)
        );
        assert!(rlimits(&limits, HeldByGroup::default()).contains(&(LimitedResource::Data, 256 << 20)));
        assert!(rlimits(&limits, HeldByGroup::default()).contains(&(LimitedResource::Stack, 64 << 20)));
    }

    #[test]
    fn cpu_time_is_rounded_up_to_whole_seconds_and_one_more() {
        for (ms, seconds) in [(1, 2), (1000, 2), (1001, 3), (60_000, 61)] {
            let limits = Limits {
                cpu_time: Some(Millis(ms)),
                ..unlimited()
            };
            assert!(
                rlimits(&limits, GROUP).contains(&(LimitedResource::CpuSeconds, seconds)),
                "{ms}"
            );
        }
    }

    #[test]
    fn in_a_user_namespace_of_its_own_the_process_limit_bounds_the_whole_sandbox() {
        // As another user than root, whom the kernel exempts; the host's processes of that user do not count.
        let script = "n=0; for i in 1 2 3 4 5 6 7 8 9; do sleep 2 & n=$((n+1)); done 2>/dev/null; echo $n";
        let mut args = vec!["-U", "-r", "prlimit", "--nproc=5", "/bin/sh", "-c", script];
        let root = rustix::process::geteuid().is_root();
        let program = if root {
            args.splice(0..0, ["--reuid=4243", "--regid=4243", "--clear-groups", "unshare"]);
            "setpriv"
        } else {
            "unshare"
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a test needs a program with a namespace of its own"
        )]
        let output = Command::new(program).args(&args).output();
        let Ok(output) = output else {
            return skip("unshare or setpriv is missing");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("unshare failed") || said.contains("uid_map") {
            return skip("user namespaces are not permitted");
        }
        // A shell that cannot fork gives up; with room for nine it would print `9`.
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains('9'), "nine children were started: {text} {said}");
        assert!(!output.status.success(), "the shell was not refused: {text} {said}");
    }

    fn skip(reason: &str) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
    }
}
