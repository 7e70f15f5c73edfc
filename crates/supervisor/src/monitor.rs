//! Monitoring of a sandbox while it runs: what is known of it outside is sampled, and rules say when that is too much.
//!
//! The rules and the decision are `core`'s ([`offleash_core::monitor`]). Sampled is on turns that the loop has anyway, at most
//! twice a second: nothing here wakes a supervisor, and a sandbox in which nothing runs is one small file.

mod workspace;

use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_core::id::RunId;
use offleash_core::monitor::{MonitorEngine, MonitorFigure, MonitorRule, MonitorSample, RuleFiring, effective_rules};
use offleash_core::plan::Plan;
use offleash_core::record::AlertRecord;
use offleash_gateway::Gateway;
use offleash_isolation::sandbox::{ActivityMeasure, Sandbox};
use offleash_store::{AuditEvent, AuditLog, StateDirectory, rfc3339_now};
use serde_json::{Value, json};

use workspace::WorkspaceWatch;

/// How long it is between two samples at least.
const PERIOD: Duration = Duration::from_millis(500);
/// How old a sandbox is whose end is worth a sample.
const WORTH_A_LAST: Duration = Duration::from_millis(100);

/// Watches one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxMonitor {
    engine: MonitorEngine,
    began: Instant,
    due: Instant,
    watches: bool,
    counts_forks: bool,
    workspace: Option<WorkspaceWatch>,
    cpu_us: u64,
    state: StateDirectory,
    id: RunId,
    alerts: Vec<AlertRecord>,
}

impl SandboxMonitor {
    /// A watch over the sandbox of `plan`, which is made now, by the rules that are built in and those of its owner.
    pub(crate) fn of(plan: &Plan, own: &[MonitorRule], state: &StateDirectory) -> Self {
        let engine = MonitorEngine::new(effective_rules(own));
        let of_files = [
            MonitorFigure::Overwrites,
            MonitorFigure::Removals,
            MonitorFigure::ProtectedNames,
        ];
        let workspace = engine.watches(&of_files).then(|| WorkspaceWatch::of(plan)).flatten();
        let now = Instant::now();
        Self {
            watches: engine.watches(MonitorFigure::ALL),
            counts_forks: engine.watches(&[MonitorFigure::Forks]),
            engine,
            began: now,
            due: now + PERIOD,
            workspace,
            cpu_us: 0,
            state: state.clone(),
            id: plan.id.clone(),
            alerts: Vec::new(),
        }
    }

    /// Whether it is time for a sample; also before, at the end of a sandbox that is not younger than any, or may leave files.
    /// Never without rules.
    pub(crate) fn is_due(&self, is_end: bool) -> bool {
        if !self.watches {
            return false;
        }
        let now = Instant::now();
        now >= self.due || (is_end && (self.workspace.is_some() || now >= self.began + WORTH_A_LAST))
    }

    /// Takes a sample, the last one at the end; the rules that fire, of which nobody was told yet.
    pub(crate) fn look(
        &mut self,
        sandbox: &mut dyn Sandbox,
        gateway: Option<&Gateway>,
        is_end: bool,
    ) -> Vec<AlertRecord> {
        let now = Instant::now();
        self.due = now + PERIOD;
        let activity = sandbox.activity(self.counts_forks);
        if let Some(workspace) = &mut self.workspace {
            if is_end {
                workspace.look_at_once();
            } else if activity.cpu_us != self.cpu_us {
                workspace.look(now);
            }
        }
        self.cpu_us = activity.cpu_us;
        let age_ms = u64::try_from((now - self.began).as_millis()).unwrap_or(u64::MAX);
        let sample = self.sample(age_ms, &activity, gateway);
        let firings = self.engine.take(&sample);
        firings.into_iter().map(|firing| self.alert(firing, gateway)).collect()
    }

    /// Puts it on record that a rule has fired, and what came of it.
    pub(crate) fn note(&mut self, alert: AlertRecord) {
        self.append("alert", json!(alert));
        self.alerts.push(alert);
    }

    /// Puts it in the audit log how a question was decided that somebody was asked: by an answer, or because there was none.
    pub(crate) fn note_decision(&self, about: &ApprovalSubject, rule: Option<&str>, answer: ApprovalAnswer) {
        let data = json!({ "about": about.on_record(), "rule": rule, "answer": answer });
        self.append("approval_decided", data);
    }

    /// Adds a line to the audit log. One that cannot be written ends nothing: the record of the run, or the log of the
    /// sandbox, has it, too.
    fn append(&self, event: &str, data: Value) {
        let event = AuditEvent {
            event: event.to_owned(),
            run: Some(self.id.clone()),
            data,
        };
        let _logged = AuditLog::new(&self.state).append(&event);
    }

    /// Those that fired, the oldest first.
    pub(crate) fn alerts(&self) -> &[AlertRecord] {
        &self.alerts
    }

    /// The same, for the record.
    pub(crate) fn take_alerts(&mut self) -> Vec<AlertRecord> {
        std::mem::take(&mut self.alerts)
    }

    fn sample(&self, age_ms: u64, activity: &ActivityMeasure, gateway: Option<&Gateway>) -> MonitorSample {
        let mut sample = MonitorSample::at(age_ms)
            .with(MonitorFigure::Cpu, activity.cpu_us)
            .with(MonitorFigure::Memory, activity.memory_bytes >> 20)
            .with(MonitorFigure::Processes, activity.pids)
            .with(MonitorFigure::RefusedCalls, activity.refused_calls);
        if let Some(forks) = activity.forks {
            sample = sample.with(MonitorFigure::Forks, forks);
        }
        if let Some(workspace) = &self.workspace {
            let counts = workspace.counts();
            sample = sample
                .with(MonitorFigure::Overwrites, counts.overwrites)
                .with(MonitorFigure::Removals, counts.removals)
                .with(MonitorFigure::ProtectedNames, counts.protected_names);
        }
        let Some(traffic) = gateway.map(Gateway::traffic) else {
            return sample
                .with(MonitorFigure::RefusedConnections, activity.strays)
                .with(MonitorFigure::Credentials, activity.credentials);
        };
        let credentials = activity.credentials.saturating_add(traffic.metadata);
        sample
            .with(MonitorFigure::Connections, traffic.connections)
            .with(MonitorFigure::RefusedConnections, traffic.refused_connections)
            .with(MonitorFigure::Hosts, traffic.hosts)
            .with(MonitorFigure::RefusedNames, traffic.refused_names)
            .with(MonitorFigure::GeneratedNames, traffic.generated_names)
            .with(MonitorFigure::Sent, traffic.sent_bytes >> 10)
            .with(MonitorFigure::Miners, traffic.miners)
            .with(MonitorFigure::Credentials, credentials)
    }

    fn alert(&self, firing: RuleFiring, gateway: Option<&Gateway>) -> AlertRecord {
        let RuleFiring { rule, value } = firing;
        let of_files = self.workspace.as_ref().map(|workspace| workspace.examples(rule.watch));
        let of_network = gateway.map(|gateway| gateway.examples(rule.watch));
        AlertRecord {
            at: rfc3339_now(),
            rule: rule.name,
            watch: rule.watch,
            value,
            threshold: rule.threshold,
            window_ms: rule.window.0,
            action: rule.action,
            not_done: None,
            evidence: of_files.into_iter().chain(of_network).flatten().collect(),
        }
    }
}
