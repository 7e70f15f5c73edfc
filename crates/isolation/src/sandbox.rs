//! The interface of every level: a backend makes sandboxes, a sandbox runs commands.
//!
//! Nothing here blocks: a caller waits until one of the descriptors of [`Sandbox::wait_on`] is readable or
//! [`Sandbox::next_turn`] has come, and then calls [`Sandbox::turn`]. That suits a command line, which waits with
//! poll, as well as a server, which waits with an event loop.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use offleash_core::exec::{ExecEvent, ExecRequest, TerminalSize, UserIds};
use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;
use offleash_core::record::{DenialRecord, LimitHit, RunUsage};
use offleash_core::spec::{IdChoice, ProcessRef, ZygoteRole};

use offleash_sys::network::NetworkSockets;

use crate::error::IsolationError;

/// Makes sandboxes of one level.
pub trait Backend: Debug {
    /// The level.
    fn level(&self) -> Level;

    /// Does ahead what depends on no more of a plan than `ids`, so that [`Self::create`] takes less time; at most one
    /// sandbox ahead.
    ///
    /// # Errors
    /// As [`Self::create`].
    fn prepare(&mut self, ids: &SandboxIds) -> Result<(), IsolationError> {
        let _not_needed = ids;
        Ok(())
    }

    /// Is told the state directory, where something may be kept from one sandbox to the next.
    fn keep_in(&mut self, state: &Path) {
        let _not_needed = state;
    }

    /// Has the zygote at the other end of `zygote` make, while the sandbox that was prepared is made, a copy of its process
    /// that the first [`Sandbox::enter`] then moves into it. Does not wait for it.
    ///
    /// # Errors
    /// `Unsupported` where no sandbox was prepared below a zygote, `Step` for what the kernel answered. Nothing depends on it.
    fn ask_for_copy(&mut self, zygote: OwnedFd) -> Result<(), IsolationError> {
        drop(zygote);
        Err(IsolationError::Unsupported {
            level: self.level(),
            operation: "copy a process",
        })
    }

    /// Makes a sandbox; when it fails, the host is as it was.
    ///
    /// `leftovers` is told, before it is made, of each thing that would outlive a crash of this process.
    ///
    /// # Errors
    /// `NotEnforceable` when the plan asks for more than the machine has, `Step` for everything else.
    fn create(&mut self, plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError>;
}

/// Which ids a sandbox is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxIds {
    /// The sandbox.
    pub sandbox: RunId,
    /// How many ids it has.
    pub choice: IdChoice,
    /// The user id inside that the first process has, and commands for which no other is asked.
    pub uid: u32,
    /// The group id inside, likewise.
    pub gid: u32,
    /// The user who works in the sandbox: the owner of its workspace and mounts.
    pub worker: UserIds,
    /// Whether it lies below another sandbox, or others below it.
    pub descent: ZygoteRole,
}

impl SandboxIds {
    /// Those that `plan` asks for.
    pub fn of(plan: &Plan) -> Self {
        Self {
            sandbox: plan.id.clone(),
            choice: plan.ids,
            uid: plan.user.uid,
            gid: plan.user.gid,
            worker: plan.users.first().unwrap_or(&plan.user).ids(),
            descent: plan.descent,
        }
    }
}

/// Takes note of what a crash of this process would leave behind, so that the next start can remove it.
pub trait LeftoverKeeper {
    /// These cgroup directories are about to be made.
    ///
    /// # Errors
    /// When the note cannot be written; then they are not made.
    fn cgroups(&mut self, paths: &[std::path::PathBuf]) -> std::io::Result<()>;

    /// Called while the sandbox's first process is at work and there is nothing else to do: a place for a little of
    /// what can wait. `false` when there is no more of it.
    fn meanwhile(&mut self) -> bool {
        false
    }
}

/// The number of an execution in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecId(pub u32);

/// A running sandbox. Dropping it kills everything in it and removes what it consists of.
pub trait Sandbox: Debug {
    /// What is enforced, and what was asked for and is not.
    fn enforcement(&self) -> &EnforcementReport;

    /// Hands out the sockets of its network, once. `None` if its plan has none.
    fn take_network(&mut self) -> Option<NetworkSockets> {
        None
    }

    /// The limit on memory, if a process of a sandbox that outlives the lack of it was killed for that a moment ago: a command
    /// that ended with `SIGKILL` just now was that process, or ended at the same time.
    fn was_out_of_memory(&mut self) -> Option<u64> {
        None
    }

    /// How many connections and datagrams found no way out, in a network of its own that leads nowhere. 0 where that is
    /// not known.
    fn found_no_route(&self) -> u64 {
        0
    }

    /// Whether something that was begun for a program, which may have ended, is to be finished in further turns: a directory
    /// is being renamed.
    fn is_finishing(&self) -> bool {
        false
    }

    /// Starts a command; what becomes of it follows as events.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone or the request is too large for it.
    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError>;

    /// Its first process, below which others can be made if it is a zygote; `None` at levels without one.
    fn first_process(&self) -> Option<ProcessRef> {
        None
    }

    /// Has a zygote move a copy of its process into the sandbox, with the user, the environment and the directory of
    /// `request`, whose arguments are of no account; what becomes of it follows as events. Takes milliseconds, fewer where the
    /// copy was asked for ahead and nothing was started since; otherwise `zygote` connects to the zygote. Nothing of the zygote
    /// but its memory comes along.
    ///
    /// # Errors
    /// `Unsupported` for a sandbox that was not made below that zygote; `Running` when the zygote or the kernel refuses,
    /// or when the process lacks anything that commands of the sandbox have.
    fn enter(
        &mut self,
        request: &ExecRequest,
        zygote: &mut dyn FnMut() -> std::io::Result<OwnedFd>,
    ) -> Result<ExecId, IsolationError>;

    /// How many bytes of input may be sent to an execution now.
    fn input_window(&self, exec: ExecId) -> usize;

    /// Sends input, at most [`Self::input_window`] bytes.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError>;

    /// Closes the input of an execution after what was sent.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError>;

    /// Sends a signal to an execution's processes.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError>;

    /// Leaves the output of one execution where it is, which makes its command wait, until [`Self::release_output`].
    /// What the guest has read already still comes.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn hold_output(&mut self, exec: ExecId) -> Result<(), IsolationError>;

    /// Takes the output of an execution again.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn release_output(&mut self, exec: ExecId) -> Result<(), IsolationError>;

    /// Tells the terminal of an execution its size.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone.
    fn resize(&mut self, exec: ExecId, size: TerminalSize) -> Result<(), IsolationError>;

    /// Opens a conversation about files with a process inside that acts as `user`, or as the sandbox's first process:
    /// our end of its socket, on which `offleash_protocol::files` is spoken. Closing it ends that process.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone, `Unsupported` where the level cannot.
    fn open_files(&mut self, user: Option<UserIds>) -> Result<OwnedFd, IsolationError>;

    /// Has calls of tools taken from those inside: our end of the socket on which they come, as
    /// `offleash_protocol::tools` says. To be asked for before any command; once.
    ///
    /// # Errors
    /// `Guest` when the sandbox is gone, `Unsupported` where the level cannot.
    fn take_tool_calls(&mut self) -> Result<OwnedFd, IsolationError>;

    /// Descriptors; when one is readable (or, where `writable` says so, writable), [`Self::turn`] has work.
    ///
    /// Without `take_output` those that only bring output are left out.
    fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>>;

    /// When [`Self::turn`] has work even if no descriptor is ready.
    fn next_turn(&self) -> Instant;

    /// Takes in what happened since the last turn, and nothing else: for a moment that is to be short. What has become due
    /// waits for the next [`Self::turn`].
    ///
    /// # Errors
    /// As [`Self::turn`].
    fn news(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError>;

    /// Takes in what happened since the last turn, and does what has become due.
    ///
    /// Without `take_output`, output stays where it is, which makes the command wait: for callers that cannot pass on
    /// what they have already. Limits and refusals are attended to all the same.
    ///
    /// # Errors
    /// `Running` when a call on the host fails; the sandbox is then to be killed.
    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError>;

    /// What was used up to now.
    fn usage(&mut self) -> RunUsage;

    /// What is used now; a few small files are read.
    fn measure(&mut self) -> UsageMeasure;

    /// What was done so far and is used now, for whoever looks twice a second; how many processes were started only where
    /// `counts_forks`, and where that can be known.
    fn activity(&mut self, counts_forks: bool) -> ActivityMeasure {
        let _cannot_be_known = counts_forks;
        let measured = self.measure();
        ActivityMeasure {
            cpu_us: measured.cpu_us,
            memory_bytes: measured.memory_bytes,
            pids: measured.pids,
            ..ActivityMeasure::default()
        }
    }

    /// Bounds the processors that it has from now on, in thousandths of one.
    ///
    /// # Errors
    /// `Running` where nothing bounds them, or the kernel refuses.
    fn throttle(&mut self, cpus_millis: u64) -> Result<(), IsolationError> {
        let _as_before = cpus_millis;
        Err(IsolationError::Running {
            action: "slow the sandbox down",
            source: std::io::Error::other("its level has no control group"),
        })
    }

    /// Stops every process until [`Self::resume`], and gives memory back to the machine where it can. No limit of time
    /// counts meanwhile, and nothing is to be sent to executions. Nothing happens when it is paused.
    ///
    /// # Errors
    /// `Unsupported` where the level cannot; `Running` when not all came to rest, after which all run again.
    fn pause(&mut self) -> Result<(), IsolationError>;

    /// As [`Self::pause`], for a moment: memory is not given back.
    ///
    /// # Errors
    /// As [`Self::pause`].
    fn hold_still(&mut self) -> Result<(), IsolationError>;

    /// Continues every process that [`Self::pause`] has stopped. Nothing happens when it is not paused.
    ///
    /// # Errors
    /// `Running` when the kernel refuses.
    fn resume(&mut self) -> Result<(), IsolationError>;

    /// Keeps what is mounted inside from being taken apart at its end: that takes the kernel a while, for which
    /// [`Self::kill`] waits otherwise. It is done when what is returned is dropped. `None` where it makes no difference.
    fn keep_mounts(&self) -> Option<OwnedFd> {
        None
    }

    /// Kills everything inside, waits until it is gone, and removes what the sandbox consisted of.
    ///
    /// # Errors
    /// `Running` when something could not be removed; what could be was.
    fn kill(&mut self) -> Result<FinalReport, IsolationError>;
}

/// What a sandbox uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageMeasure {
    /// CPU time so far, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes; without a group what processes have in common counts for each.
    pub memory_bytes: u64,
    /// The part of it that is the cache of files, where that is known.
    pub memory_cache_bytes: u64,
    /// The most memory so far, in bytes.
    pub memory_peak_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// What its files take on disk, in bytes, when they were measured last.
    pub disk_bytes: u64,
}

/// What a sandbox has done so far, and what it uses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivityMeasure {
    /// CPU time so far, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processes and threads that were started so far; `None` where that is not known.
    pub forks: Option<u64>,
    /// System calls that were refused so far.
    pub refused_calls: u64,
    /// Connections that were tried where there is no network.
    pub strays: u64,
    /// Refused calls that read keyrings or other processes, and connections to metadata services where there is no network.
    pub credentials: u64,
}

/// A descriptor and what to wait for.
#[derive(Debug)]
pub struct DescriptorInterest<'a> {
    /// The descriptor.
    pub descriptor: BorrowedFd<'a>,
    /// Whether to wait for writability too.
    pub writable: bool,
}

/// Something that happened in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEvent {
    /// To an execution.
    Exec {
        /// Which.
        exec: ExecId,
        /// What.
        event: ExecEvent,
    },
    /// A limit was hit; when it is one that ends the run, the caller is to kill the sandbox.
    Limit(LimitHit),
    /// Everything inside is gone, or about to be: the first process ended.
    Gone,
}

/// What is left to say when a sandbox is gone.
#[derive(Debug, Clone, Default)]
pub struct FinalReport {
    /// What was used in all.
    pub usage: RunUsage,
    /// What was refused.
    pub denials: Vec<DenialRecord>,
    /// Limits that turned out to have been hit.
    pub limits_hit: Vec<LimitHit>,
    /// Whether something was killed for want of memory: at any time or, in a sandbox that outlives that, just before the end.
    pub out_of_memory: bool,
    /// Limits that the kernel keeps without counting what it refuses.
    pub uncounted: Vec<LimitName>,
    /// How many descriptors a process may have open where whoever started this one allows no more.
    pub open_files: Option<u64>,
}

/// What is enforced on this machine for one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnforcementReport {
    /// Control by control, and the means.
    pub enforced: BTreeMap<String, String>,
    /// What was asked for and is not enforced, with the reason.
    pub not_enforced: BTreeMap<String, String>,
}

impl EnforcementReport {
    /// Notes that `control` is held by `means`.
    pub fn holds(&mut self, control: impl Into<String>, means: impl Into<String>) {
        self.enforced.insert(control.into(), means.into());
    }

    /// Notes that `control` is not enforced, because of `reason`.
    pub fn lacks(&mut self, control: impl Into<String>, reason: impl Into<String>) {
        self.not_enforced.insert(control.into(), reason.into());
    }

    /// Notes the graphics cards that the sandbox has, and that only their driver holds what is done with them.
    pub(crate) fn gives_gpu(&mut self, plan: &Plan) {
        let nodes: Vec<String> = plan.gpu_nodes().iter().map(|node| node.display().to_string()).collect();
        if !nodes.is_empty() {
            let means = "code reaches the host's driver, which alone keeps sandboxes with one card apart";
            self.holds(
                "gpu",
                format!("{}: {means}; no limit counts a card's memory", nodes.join(", ")),
            );
        }
    }

    /// Notes a limit.
    pub fn holds_limit(&mut self, limit: LimitName, means: impl Into<String>) {
        self.holds(format!("limit.{}", limit.name()), means);
    }
}
