//! Puts the record of a run together.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Instant;

use offleash_core::exec::{ExecEnd, StartFailure};
use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::Plan;
use offleash_core::record::{
    AlertRecord, ChangeSummary, DenialRecord, LimitEffect, LimitHit, NetworkUse, Outcome, RECORD_VERSION, RunRecord,
    RunUsage, ToolUse,
};
use offleash_core::text::Text;
use offleash_isolation::limits::LargestFile;
use offleash_isolation::sandbox::{EnforcementReport, FinalReport};
use offleash_store::{StateDirectory, rfc3339_now};
use offleash_sys::rlimit::{self, LimitedResource};
use offleash_sys::signals;

use super::{EndedSandbox, ExecutedRun, LifecycleError, RunReport, RunRequest, audit};
use crate::capture::Capture;
use crate::images;
use crate::run_client::RunOutcome;
use crate::sandbox_loop::Ending;
use offleash_core::error::with_causes;
use offleash_planner::{self, PlanningHost};

/// `SIGPIPE`.
const SIGPIPE: i32 = 13;

/// What the record of a sandbox that has ended is made from, beside the sandbox itself.
pub(super) struct RecordFacts<'a> {
    /// What it is recorded as.
    pub(super) command: &'a [OsString],
    /// When it was asked for.
    pub(super) began: Instant,
    pub(super) outcome: Outcome,
    pub(super) enforcement: EnforcementReport,
    pub(super) limits_hit: Vec<LimitHit>,
    pub(super) output: Capture,
    pub(super) usage: RunUsage,
    /// What it was refused while it ran.
    pub(super) denials: Vec<DenialRecord>,
    pub(super) changes: Option<ChangeSummary>,
    pub(super) network: Option<NetworkUse>,
    pub(super) tools: Vec<ToolUse>,
    pub(super) alerts: Vec<AlertRecord>,
}

impl RecordFacts<'_> {
    pub(super) fn into_record(self, ended: &EndedSandbox) -> RunRecord {
        let (stdout, stderr) = self.output.into_records();
        let mut usage = self.usage;
        usage.wall_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        RunRecord {
            version: RECORD_VERSION,
            id: ended.plan.id.clone(),
            command: texts(self.command),
            started_at: ended.started_at.clone(),
            level: ended.plan.level,
            enforced: self.enforcement.enforced,
            not_enforced: self.enforcement.not_enforced,
            exit_code: self.outcome.exit_code(),
            limits_hit: self.limits_hit,
            outcome: self.outcome,
            stdout,
            stderr,
            usage,
            denials: denials(ended.spec.env.withheld(&ended.host.env), self.denials),
            changes: self.changes,
            network: self.network,
            tools: self.tools,
            alerts: self.alerts,
            image: images::used(&ended.spec.root),
        }
    }
}

/// The record of a run whose command was executed.
pub(super) fn of_run(
    request: &RunRequest,
    ended: &EndedSandbox,
    executed: ExecutedRun,
    enforcement: EnforcementReport,
    changes: Option<ChangeSummary>,
) -> RunRecord {
    let plan = &ended.plan;
    let outcome = ExecutedCommand {
        request,
        plan,
        host: &ended.host,
        executed: &executed,
    }
    .outcome();
    let ExecutedRun {
        outcome: run,
        mut last,
        network,
        tools,
        alerts,
        ..
    } = executed;
    last.limits_hit.extend(told_by_code(&outcome, &plan.limits));
    last.limits_hit.extend(told_by_words(&run, &last, &plan.limits));
    let facts = RecordFacts {
        command: &request.command,
        began: request.started,
        limits_hit: all_hits(run.limits_hit, last.limits_hit, &outcome),
        outcome,
        enforcement,
        output: run.capture,
        usage: last.usage,
        denials: last.denials,
        changes,
        network,
        tools,
        alerts,
    };
    facts.into_record(ended)
}

/// A command that was executed, from which it is told what became of its run.
struct ExecutedCommand<'a> {
    request: &'a RunRequest,
    plan: &'a Plan,
    host: &'a PlanningHost,
    executed: &'a ExecutedRun,
}

impl ExecutedCommand<'_> {
    fn outcome(&self) -> Outcome {
        let last = &self.executed.last;
        match &self.executed.outcome.ending {
            Ending::Limit(hit) => limit_outcome(hit),
            Ending::Rule(rule) => Outcome::EndedByRule { rule: rule.clone() },
            Ending::Interrupted { signal } => Outcome::Interrupted { signal: *signal },
            Ending::OutputClosed => signaled(SIGPIPE),
            // It ended before anybody looked.
            Ending::Command(_) | Ending::Lost if let Some(hit) = hit_of_what_is_left(self.executed).next() => {
                limit_outcome(hit)
            }
            // Whatever the command made of that: of a sandbox without memory left nothing is to be believed, and whether the
            // command was told before the rest was ended is chance.
            Ending::Command(ExecEnd::Exited { .. } | ExecEnd::Signaled { .. }) | Ending::Lost if last.out_of_memory => {
                self.out_of_memory()
            }
            Ending::Command(ExecEnd::Exited { code }) => Outcome::Exited { code: *code },
            Ending::Command(ExecEnd::Signaled { signal }) => signal_outcome(*signal, &self.plan.limits),
            // Of a sandbox that outlives the lack of memory, which that of a run does not.
            Ending::Command(ExecEnd::OutOfMemory { limit }) => Outcome::OutOfMemory { limit: *limit },
            Ending::Command(ExecEnd::NotStarted(failure)) => self.not_started(failure),
            // Nobody else ends a run.
            Ending::Command(ExecEnd::Lost) | Ending::Lost | Ending::Killed | Ending::ClientDone => lost(last),
        }
    }

    fn out_of_memory(&self) -> Outcome {
        Outcome::OutOfMemory {
            limit: self.plan.limits.memory.map_or(0, |memory| memory.0),
        }
    }

    fn not_started(&self, failure: &StartFailure) -> Outcome {
        let reason = |errno: &i32| std::io::Error::from_raw_os_error(*errno).to_string();
        match failure {
            StartFailure::NotFound => Outcome::CommandNotFound {
                hint: self
                    .request
                    .command
                    .first()
                    .and_then(|name| offleash_planner::find_outside(name, self.plan.level, self.host)),
            },
            StartFailure::NotExecutable { errno } => Outcome::NotExecutable { reason: reason(errno) },
            StartFailure::Directory { errno } => Outcome::NotExecutable {
                reason: match &self.request.cwd {
                    Some(cwd) => format!(
                        "the working directory `{}` cannot be entered: {}",
                        Text::from(cwd),
                        reason(errno)
                    ),
                    None => format!("the working directory cannot be entered: {}", reason(errno)),
                },
            },
            StartFailure::Other { step, errno } => Outcome::Failed {
                message: format!("{step}: {}", reason(errno)),
            },
        }
    }
}

/// The limits of what is left that were found to be exceeded in the end.
fn hit_of_what_is_left(executed: &ExecutedRun) -> impl Iterator<Item = &LimitHit> {
    let hits = executed.outcome.limits_hit.iter().chain(&executed.last.limits_hit);
    hits.filter(|hit| hit.effect == LimitEffect::Killed && hit.limit.is_of_what_is_left())
}

/// Why the changes of a run are not written back in mode `rw`; all of them are kept, as is told of any run.
pub(super) fn why_held_back(executed: &ExecutedRun) -> Option<String> {
    if let Ending::Rule(rule) = &executed.outcome.ending {
        return Some(held_back_by(rule));
    }
    let limit = exceeded_by_changes(executed)?.name();
    Some(format!(
        "nothing was written back, since that is more than the limit of {limit} allows"
    ))
}

/// The same where a rule of monitoring ended the sandbox: what it had done by then is what the rule is about.
pub(super) fn held_back_by_rule(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::EndedByRule { rule } => Some(held_back_by(rule)),
        _ => None,
    }
}

fn held_back_by(rule: &str) -> String {
    format!("nothing was written back, since rule `{rule}` of monitoring ended the sandbox")
}

/// The limit that the changes of a run exceed, if they do.
fn exceeded_by_changes(executed: &ExecutedRun) -> Option<LimitName> {
    let by_end = match &executed.outcome.ending {
        Ending::Limit(hit) => Some(hit).filter(|hit| hit.limit.is_of_changes()),
        _ => None,
    };
    let in_the_end = || hit_of_what_is_left(executed).find(|hit| hit.limit.is_of_changes());
    by_end.or_else(in_the_end).map(|hit| hit.limit)
}

pub(super) fn limit_outcome(hit: &LimitHit) -> Outcome {
    match hit.limit {
        LimitName::Memory => Outcome::OutOfMemory { limit: hit.value },
        limit => Outcome::LimitExceeded {
            limit,
            value: hit.value,
        },
    }
}

/// Signals by which the kernel says that a limit was reached are told as that limit.
fn signal_outcome(signal: i32, limits: &Limits) -> Outcome {
    const SIGXCPU: i32 = 24;
    const SIGXFSZ: i32 = 25;
    let reached = match signal {
        SIGXCPU => limits.cpu_time.map(|time| (LimitName::CpuTime, time.0)),
        SIGXFSZ => file_bound(limits, rlimit::current(LimitedResource::FileSize).0),
        _ => None,
    };
    match reached {
        Some((limit, value)) => Outcome::LimitExceeded { limit, value },
        None => signaled(signal),
    }
}

/// The limit that ended a process below the command, where that is a shell and says so by its own code, as shells do.
fn told_by_code(outcome: &Outcome, limits: &Limits) -> Option<LimitHit> {
    const OF_SIGNALS: u8 = 128;
    let Outcome::Exited { code } = outcome else { return None };
    let signal = code.checked_sub(OF_SIGNALS)?;
    match signal_outcome(signal.into(), limits) {
        Outcome::LimitExceeded { limit, value } => Some(LimitHit {
            limit,
            value,
            effect: LimitEffect::Ended,
        }),
        _ => None,
    }
}

/// The limits of which the command says that they were why it failed.
fn told_by_words(run: &RunOutcome, last: &FinalReport, limits: &Limits) -> Vec<LimitHit> {
    let Ending::Command(end) = &run.ending else {
        return Vec::new();
    };
    let said = run.output_tail.of(end, &last.uncounted).into_iter();
    let held = said.filter_map(|limit| match limit {
        LimitName::FileSize => file_bound(limits, rlimit::current(LimitedResource::FileSize).0),
        LimitName::OpenFiles => lower(limits.open_files, last.open_files).map(|value| (limit, value)),
        limit => limits.get(limit).map(|value| (limit, value)),
    });
    let hit = |(limit, value)| LimitHit {
        limit,
        value,
        effect: LimitEffect::Reported,
    };
    held.map(hit).collect()
}

/// The lower one of two limits, of which either may be none.
fn lower(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// The limit that kept files from growing, and its value. A lower one that this process was started with (`inherited`)
/// held inside too. One that a program set for itself is not known here.
fn file_bound(limits: &Limits, inherited: Option<u64>) -> Option<(LimitName, u64)> {
    let ours = LargestFile::of(limits);
    match inherited {
        Some(bytes) if ours.is_none_or(|ours| bytes < ours.bytes) => Some((LimitName::FileSize, bytes)),
        _ => ours.map(|ours| (ours.limit, ours.value)),
    }
}

fn signaled(signal: i32) -> Outcome {
    Outcome::Signaled {
        signal,
        name: signals::name(signal),
    }
}

fn lost(last: &FinalReport) -> Outcome {
    let message = match last.limits_hit.first() {
        Some(hit) => return limit_outcome(hit),
        None => "the sandbox's first process ended before the command did",
    };
    Outcome::Failed {
        message: message.to_owned(),
    }
}

/// The limit that ended the run first, however it was noticed; then those that refused single requests.
pub(super) fn all_hits(refused: Vec<LimitHit>, last: Vec<LimitHit>, outcome: &Outcome) -> Vec<LimitHit> {
    let ended_by = match outcome {
        Outcome::LimitExceeded { limit, value } => Some((*limit, *value)),
        Outcome::OutOfMemory { limit } => Some((LimitName::Memory, *limit)),
        _ => None,
    };
    let killed = ended_by.map(|(limit, value)| LimitHit {
        limit,
        value,
        effect: LimitEffect::Killed,
    });
    let mut hits: Vec<LimitHit> = killed.into_iter().collect();
    for hit in refused.into_iter().chain(last) {
        if !hits.iter().any(|known| known.limit == hit.limit) {
            hits.push(hit);
        }
    }
    hits
}

/// Refusals of the running sandbox, and variables that were withheld from it.
fn denials(withheld: Vec<&OsStr>, mut running: Vec<DenialRecord>) -> Vec<DenialRecord> {
    running.extend(withheld.into_iter().map(|name| DenialRecord {
        subject: "env".to_owned(),
        name: Text::from(name),
        rule: "default: names that look like secrets are passed only when named".to_owned(),
        count: 1,
    }));
    running
}

pub(super) fn texts(arguments: &[OsString]) -> Vec<Text> {
    arguments.iter().map(Text::from).collect()
}

/// The report of a command that a rule of the policy refused: nothing was started.
pub(super) fn command_denied(
    request: &RunRequest,
    state: &StateDirectory,
    id: RunId,
    level: Level,
    rule: String,
) -> Result<RunReport, LifecycleError> {
    let name = request.command.first().map_or_else(|| Text::from(""), Text::from);
    let denials = vec![DenialRecord {
        subject: "command".to_owned(),
        name,
        rule: rule.clone(),
        count: 1,
    }];
    let record = RunRecord {
        denials,
        ..without_sandbox(request, id, level, Outcome::CommandDenied { rule })
    };
    audit::ended(state, &record)?;
    Ok(report_of(record, None))
}

/// The report of a run whose sandbox could not be made, or was lost.
///
/// # Errors
/// When the audit log cannot be written.
pub(super) fn failed(
    request: &RunRequest,
    ended: EndedSandbox,
    failure: LifecycleError,
) -> Result<RunReport, LifecycleError> {
    let EndedSandbox {
        plan,
        state,
        started_at,
        ..
    } = ended;
    let outcome = Outcome::Failed {
        message: with_causes(&failure),
    };
    let record = RunRecord {
        started_at,
        ..without_sandbox(request, plan.id, plan.level, outcome)
    };
    // A log that cannot be written must not hide why there is something to be logged.
    let _logged = audit::ended(&state, &record);
    Ok(report_of(record, Some(failure)))
}

fn report_of(record: RunRecord, failure: Option<LifecycleError>) -> RunReport {
    RunReport {
        record,
        notes: Vec::new(),
        held_back: None,
        unkept: None,
        failure,
    }
}

/// The record of a run that never had a sandbox.
fn without_sandbox(request: &RunRequest, id: RunId, level: Level, outcome: Outcome) -> RunRecord {
    let (stdout, stderr) = Capture::default().into_records();
    RunRecord {
        version: RECORD_VERSION,
        id,
        command: texts(&request.command),
        started_at: rfc3339_now(),
        level,
        enforced: BTreeMap::new(),
        not_enforced: BTreeMap::new(),
        exit_code: outcome.exit_code(),
        outcome,
        stdout,
        stderr,
        usage: RunUsage::default(),
        limits_hit: Vec::new(),
        denials: Vec::new(),
        changes: None,
        network: None,
        tools: Vec::new(),
        alerts: Vec::new(),
        image: images::used(&request.spec.root),
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::units::Bytes;

    use super::*;

    #[test]
    fn a_file_that_may_not_grow_is_told_as_the_limit_that_was_in_force() {
        let (file_size, workspace) = (LimitName::FileSize, LimitName::Workspace);
        for (own, of_workspace, inherited, expected) in [
            (None, None, None, None),
            (Some(10), Some(20), None, Some((file_size, 10))),
            (Some(60), Some(20), None, Some((workspace, 20))),
            (None, Some(20), None, Some((workspace, 20))),
            (Some(60), Some(20), Some(5), Some((file_size, 5))),
            (Some(60), Some(20), Some(55), Some((workspace, 20))),
            (None, None, Some(5), Some((file_size, 5))),
        ] {
            let limits = Limits {
                file_size: own.map(Bytes::mib),
                workspace: of_workspace.map(Bytes::mib),
                ..Limits::default()
            };
            let found = file_bound(&limits, inherited.map(|mib: u64| mib << 20));
            let expected = expected.map(|(limit, mib): (LimitName, u64)| (limit, mib << 20));
            assert_eq!(found, expected, "{own:?} {of_workspace:?} {inherited:?}");
        }
    }
}
